package gpu

import (
	"fmt"
	"math"
	"sync/atomic"

	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/internal/invariants"
)

// Module is a program that was loaded.
type Module struct {
	object
	drv   driver.Module
	prog  *Program
	calls atomic.Int64 // that are open
}

// Load makes the kernels of a program ready. The caller closes the module. Errors wrap ErrArgument
// (the program contradicts itself), ErrArch (no form of it fits the device), ErrBuild (with the
// compiler's log), ErrOutOfMemory. It may wait for work of the device: while a Resident holds that,
// it is an error that wraps ErrInUse.
func (c *Context) Load(p *Program) (*Module, error) {
	if err := checkProgram(p); err != nil {
		return nil, fmt.Errorf("gpu: %s: %w", c.dev, err)
	}
	done, err := c.quiet("load a program")
	if err != nil {
		return nil, err
	}
	defer done()
	drv, err := c.drv.Load(p)
	if err != nil {
		return nil, fmt.Errorf("gpu: %s: program %q: %w", c.dev, p.Name, c.note(err))
	}
	m := &Module{drv: drv, prog: p}
	if err := m.init(c, "module", p.Name); err != nil {
		drv.Close()
		return nil, err
	}
	return m, nil
}

func checkProgram(p *Program) error {
	if p == nil || len(p.Kernels) == 0 {
		return fmt.Errorf("%w: a program without kernels", ErrArgument)
	}
	seen := map[string]bool{}
	for _, k := range p.Kernels {
		if k.Name == "" || seen[k.Name] {
			return fmt.Errorf("%w: program %q: a kernel named %q twice or not at all", ErrArgument, p.Name, k.Name)
		}
		seen[k.Name] = true
		for _, x := range k.Params {
			if x.Type >= driver.NumTypes {
				return fmt.Errorf("%w: program %q: kernel %s: parameter %s is of no type that there is", ErrArgument,
					p.Name, k.Name, x.Name)
			}
		}
		if p.Go != nil && p.Go[k.Name] == nil {
			return fmt.Errorf("%w: program %q: it has kernels in Go, but not %s", ErrArgument, p.Name, k.Name)
		}
	}
	return nil
}

// Kernel finds a kernel by name. It is good until the module is closed.
func (m *Module) Kernel(name string) (*Kernel, error) {
	if err := m.usable(); err != nil {
		return nil, err
	}
	var names []string
	for i := range m.prog.Kernels {
		sig := &m.prog.Kernels[i]
		if sig.Name == name {
			drv, err := m.drv.Kernel(i)
			if err != nil {
				return nil, fmt.Errorf("gpu: %s: %s: kernel %s: %w", m.ctx.dev, &m.object, name, m.ctx.note(err))
			}
			return &Kernel{mod: m, drv: drv, sig: sig}, nil
		}
		names = append(names, sig.Name)
	}
	return nil, fmt.Errorf("gpu: %s: %s: %w: no kernel %q: it has %v", m.ctx.dev, &m.object, ErrArgument, name, names)
}

// Close gives the module back. With a call of it still open, or while a Resident holds the device,
// it is an error that wraps ErrInUse, and nothing is closed.
func (m *Module) Close() error {
	if n := m.calls.Load(); n > 0 {
		return fmt.Errorf("gpu: %s: %s: close: %w: %d calls are open", m.ctx.dev, &m.object, ErrInUse, n)
	}
	done, err := m.quiet()
	if err != nil {
		return err
	}
	defer done()
	if !m.end() {
		return nil
	}
	return m.ctx.ending(m.drv.Close())
}

// Kernel is a function of a module. It may be used from any goroutine.
type Kernel struct {
	mod *Module
	drv driver.Kernel
	sig *Signature
}

// Signature is the kernel's name and parameters. It is not to be changed.
func (k *Kernel) Signature() *Signature { return k.sig }

// Arg is an argument of a kernel. Buffer, U32 and so on make one.
type Arg struct {
	typ  driver.Type
	span Span
	bits uint64
}

// Buffer gives a kernel memory. The kernel must stay within the span; nothing checks that it does.
// The span's offset must be a multiple of Info.ArgAlign, unless it is empty.
func Buffer(s Span) Arg { return Arg{typ: driver.Buffer, span: s} }

// U32 is an unsigned number of 32 bits.
func U32(v uint32) Arg { return Arg{typ: driver.U32, bits: uint64(v)} }

// U64 is an unsigned number of 64 bits.
func U64(v uint64) Arg { return Arg{typ: driver.U64, bits: v} }

// I32 is a signed number of 32 bits.
func I32(v int32) Arg { return Arg{typ: driver.I32, bits: uint64(uint32(v))} }

// I64 is a signed number of 64 bits.
func I64(v int64) Arg { return Arg{typ: driver.I64, bits: uint64(v)} }

// F32 is a float of 32 bits.
func F32(v float32) Arg { return Arg{typ: driver.F32, bits: uint64(math.Float32bits(v))} }

// F64 is a float of 64 bits.
func F64(v float64) Arg { return Arg{typ: driver.F64, bits: math.Float64bits(v)} }

// Call is a kernel with its arguments, ready to be launched any number of times.
type Call struct {
	object
	kernel *Kernel
	drv    driver.Call
	mems   []*Memory // by argument; nil where it is no Buffer
	uses   uses      // only under -tags invariants
}

// Prepare makes a call. The arguments must fit the kernel's Signature in number and type. The
// caller closes it.
func (k *Kernel) Prepare(args ...Arg) (*Call, error) {
	m := k.mod
	if err := m.usable(); err != nil {
		return nil, err
	}
	if len(args) != len(k.sig.Params) {
		return nil, fmt.Errorf("gpu: %s: kernel %s: %w: %d arguments, expected %d", m.ctx.dev, k.sig.Name, ErrArgument,
			len(args), len(k.sig.Params))
	}
	c := &Call{kernel: k, mems: make([]*Memory, len(args))}
	list := make([]driver.Arg, len(args))
	for i := range args {
		if err := k.check(i, &args[i], &list[i]); err != nil {
			return nil, err
		}
		c.mems[i] = args[i].span.Memory
	}
	var err error
	if c.drv, err = k.drv.Prepare(list); err != nil {
		return nil, fmt.Errorf("gpu: %s: kernel %s: %w", m.ctx.dev, k.sig.Name, m.ctx.note(err))
	}
	if err := c.init(m.ctx, "call", k.sig.Name); err != nil {
		c.drv.Close()
		return nil, err
	}
	m.calls.Add(1)
	return c, nil
}

// check translates argument i.
func (k *Kernel) check(i int, a *Arg, out *driver.Arg) error {
	ctx, p := k.mod.ctx, &k.sig.Params[i]
	bad := func(format string, v ...any) error {
		return fmt.Errorf("gpu: %s: kernel %s: argument %d (%s): %w: %s", ctx.dev, k.sig.Name, i, p.Name, ErrArgument,
			fmt.Sprintf(format, v...))
	}
	if a.typ != p.Type {
		return bad("a %s, expected a %s", a.typ, p.Type)
	}
	*out = driver.Arg{Type: a.typ, Bits: a.bits}
	if a.typ != driver.Buffer {
		return nil
	}
	if err := a.span.check(); err != nil {
		return err
	}
	m := a.span.Memory
	switch align := ctx.dev.info.ArgAlign; {
	case m.ctx != ctx:
		return bad("%s is of another context", &m.object)
	case m.kind == PinnedMemory:
		return bad("memory of kind %s, which kernels do not reach: expected %s, %s or %s", m.kind, DeviceMemory,
			MappedMemory, SharedMemory)
	case a.span.Len > 0 && a.span.Off%align != 0:
		return bad("offset %d: this device needs a multiple of %d: give the kernel the offset as a number", a.span.Off,
			align)
	}
	out.Mem, out.Len = m.drv, a.span.Len
	if a.span.Len > 0 {
		out.Off = a.span.Off
	}
	return nil
}

// Kernel is the kernel of the call.
func (c *Call) Kernel() *Kernel { return c.kernel }

// Set changes argument i, for later launches. It has the type of the parameter. Numbers are changed
// without an allocation; memory may need one.
func (c *Call) Set(i int, a Arg) error {
	if err := c.usable(); err != nil {
		return err
	}
	if i < 0 || i >= len(c.mems) {
		return fmt.Errorf("gpu: %s: %s: %w: argument %d of %d", c.ctx.dev, &c.object, ErrArgument, i, len(c.mems))
	}
	var d driver.Arg
	if err := c.kernel.check(i, &a, &d); err != nil {
		return err
	}
	if err := c.drv.Set(i, d); err != nil {
		return fmt.Errorf("gpu: %s: %s: argument %d: %w", c.ctx.dev, &c.object, i, c.ctx.note(err))
	}
	c.mems[i] = a.span.Memory
	return nil
}

// used notes, under -tags invariants, that the work which t has just counted is a launch of c.
func (c *Call) used(t *timeline) {
	c.uses.at(t)
	for _, m := range c.mems {
		if m != nil {
			m.uses.at(t)
		}
	}
}

// Close gives the call back. Its launches must be known to be done; see the package comment.
func (c *Call) Close() error {
	if !c.end() {
		return nil
	}
	c.kernel.mod.calls.Add(-1)
	if invariants.Enabled {
		c.uses.over(&c.object)
	}
	return c.ctx.ending(c.drv.Close())
}
