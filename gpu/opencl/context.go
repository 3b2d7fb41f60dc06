package opencl

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/ocl"
)

type openclContext struct {
	d   *device
	l   *ocl.Library
	ctx ocl.Context

	mu     sync.Mutex // guards the queue that maps and unmaps, and those of the streams
	own    *ocl.Queue
	queues map[*stream]struct{}
}

func (d *device) Open() (driver.Context, error) {
	l := d.r.l
	ctx, err := l.NewContext(d.id)
	if err != nil {
		return nil, wrap(err, "open the device")
	}
	q, err := l.NewQueue(ctx, d.id)
	if err != nil {
		return nil, errors.Join(wrap(err, "open the device"), l.ReleaseContext(ctx))
	}
	return &openclContext{d: d, l: l, ctx: ctx, own: q, queues: map[*stream]struct{}{}}, nil
}

func (c *openclContext) Close() error {
	return errors.Join(wrap(c.own.Close(), "close"), wrap(c.l.ReleaseContext(c.ctx), "close"))
}

// MemoryInfo is what this process has not allocated: OpenCL does not say what others have.
func (c *openclContext) MemoryInfo() (free, total uint64, err error) {
	total = c.d.info.Memory
	return total - min(c.d.used.Load(), total), total, nil
}

// memory is a buffer, a buffer that is mapped, or shared virtual memory, which has an address and
// no buffer.
type memory struct {
	c    *openclContext
	buf  ocl.Mem
	host uintptr // where the host sees it, 0: nowhere
	svm  bool
	own  bool // it was allocated here
	size uint64
}

func (c *openclContext) Alloc(o driver.MemorySpec) (driver.Memory, error) {
	if o.Align > c.d.info.Align {
		return nil, fmt.Errorf("%w: memory aligned to %d bytes: OpenCL promises %d", driver.ErrUnsupported, o.Align,
			c.d.info.Align)
	}
	m := &memory{c: c, size: o.Size, own: true}
	var err error
	switch o.Kind {
	case driver.DeviceMemory:
		m.buf, err = c.l.NewBuffer(c.ctx, o.Size, false)
	case driver.PinnedMemory:
		if m.buf, err = c.l.NewBuffer(c.ctx, o.Size, true); err == nil {
			if m.host, err = c.mapped(m.buf, o.Size); err != nil {
				err = errors.Join(err, c.l.ReleaseMem(m.buf))
			}
		}
	default:
		m.svm = true
		if m.host = c.l.SVMAlloc(c.ctx, o.Size, uint32(c.d.info.Align), c.d.atomics); m.host == 0 {
			err = &ocl.Error{Op: "clSVMAlloc", Code: ocl.AllocationFailure}
		}
	}
	if err != nil {
		return nil, wrap(err, "allocate")
	}
	c.d.used.Add(o.Size)
	return m, nil
}

func (c *openclContext) mapped(m ocl.Mem, size uint64) (uintptr, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.own.Map(m, size)
}

// Adopt needs nothing where the device reaches all memory of the host.
func (c *openclContext) Adopt(b []byte) (driver.Memory, error) {
	return &memory{c: c, host: dl.Address(b), svm: true, size: uint64(len(b))}, nil
}

func (m *memory) Addr() uint64 { return 0 }

func (m *memory) Bytes() []byte {
	if m.host == 0 {
		return nil
	}
	return dl.Bytes(m.host, int(m.size))
}

// Close waits for all work: OpenCL keeps buffers as long as commands use them, but not mappings and
// shared virtual memory.
func (m *memory) Close() error {
	c := m.c
	var err error
	if m.host != 0 {
		err = c.drain()
	}
	if !m.own {
		return err
	}
	c.d.used.Add(-m.size)
	switch {
	case m.svm:
		c.l.SVMFree(c.ctx, m.host)
		return err
	case m.host != 0:
		c.mu.Lock()
		err = errors.Join(err, wrap(c.own.Unmap(m.buf, m.host), "unmap"), wrap(c.own.Finish(), "unmap"))
		c.mu.Unlock()
	}
	return errors.Join(err, wrap(c.l.ReleaseMem(m.buf), "free"))
}

// drain waits for what is in the streams now.
func (c *openclContext) drain() error {
	c.mu.Lock()
	var all []*stream
	for s := range c.queues {
		all = append(all, s)
	}
	c.mu.Unlock()
	var errs []error
	for _, s := range all {
		errs = append(errs, s.Wait())
	}
	return errors.Join(errs...)
}

// mark is an event of OpenCL that is replaced by later ones while others may wait for it.
type mark struct {
	l  *ocl.Library
	mu sync.Mutex
	ev ocl.Event // 0: none yet
}

// set replaces the event, of which it becomes the owner.
func (m *mark) set(e ocl.Event) {
	m.mu.Lock()
	old := m.ev
	m.ev = e
	m.mu.Unlock()
	if old != 0 {
		m.l.Release(old)
	}
}

// get is the event, with a reference that the caller releases; 0 where there is none.
func (m *mark) get() ocl.Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ev != 0 {
		m.l.Retain(m.ev)
	}
	return m.ev
}

func (m *mark) Query() (bool, error) {
	e := m.get()
	if e == 0 {
		return true, nil
	}
	defer m.l.Release(e)
	done, err := m.l.Done(e)
	return done, lost(err, "query")
}

func (m *mark) Wait() error {
	e := m.get()
	if e == 0 {
		return nil
	}
	defer m.l.Release(e)
	return lost(m.l.Wait(e), "wait")
}

type event struct{ mark }

func (c *openclContext) NewEvent(bool) (driver.Event, error) { return &event{mark{l: c.l}}, nil }

func (e *event) Elapsed(since driver.Event) (time.Duration, error) {
	to, err := e.end()
	if err != nil {
		return 0, err
	}
	from, err := since.(*event).end()
	if err != nil {
		return 0, err
	}
	return time.Duration(to - from), nil
}

func (e *event) end() (uint64, error) {
	x := e.get()
	defer e.l.Release(x)
	n, err := e.l.End(x)
	return n, wrap(err, "elapsed time")
}

func (e *event) Close() error {
	e.set(0)
	return nil
}

// module is a program that was built.
type module struct {
	c    *openclContext
	id   ocl.Program
	prog *driver.Program
}

func (c *openclContext) Load(p *driver.Program) (driver.Module, error) {
	if p.Source == "" {
		return nil, &driver.Error{Kind: driver.ErrArch, Op: "load", Text: "the program has no OpenCL C",
			Hint: "use a runtime that takes its other forms"}
	}
	if err := c.d.info.Capabilities.Check(driver.CapSource); err != nil {
		return nil, &driver.Error{Kind: driver.ErrArch, Op: "load", Text: err.Error()}
	}
	id, err := c.l.NewProgram(c.ctx, p.Source)
	if err != nil {
		return nil, wrap(err, "load")
	}
	m := &module{c, id, p}
	options := "-cl-std=CL1.2"
	if c.d.version >= 3 {
		options = "-cl-std=CL3.0"
	} else if c.d.version >= 2 {
		options = "-cl-std=CL2.0"
	}
	if err := c.l.Build(id, c.d.id, options); err != nil {
		err = wrap(err, options)
		var e *driver.Error
		if errors.As(err, &e) && e.Code == ocl.BuildFailure {
			e.Kind, e.Log = driver.ErrBuild, c.l.BuildLog(id, c.d.id)
		}
		return nil, errors.Join(err, m.Close())
	}
	for i := range p.Kernels { // all of them, or none
		if err := m.check(&p.Kernels[i]); err != nil {
			return nil, errors.Join(err, m.Close())
		}
	}
	return m, nil
}

// check holds a kernel to its signature, as far as OpenCL tells.
func (m *module) check(sig *driver.Signature) error {
	k, err := m.c.l.NewKernel(m.id, sig.Name)
	if err != nil {
		var e *ocl.Error
		if errors.As(err, &e) && e.Code == ocl.InvalidKernelName {
			return fmt.Errorf("%w: the source has no kernel %q", gpu.ErrArgument, sig.Name)
		}
		return wrap(err, "kernel "+sig.Name)
	}
	defer m.c.l.ReleaseKernel(k)
	n, err := m.c.l.KernelArgs(k)
	if err != nil {
		return wrap(err, "kernel "+sig.Name)
	}
	if n != len(sig.Params) {
		return fmt.Errorf("%w: kernel %s takes %d arguments, its signature has %d", gpu.ErrArgument, sig.Name, n,
			len(sig.Params))
	}
	return nil
}

func (m *module) Close() error { return wrap(m.c.l.ReleaseProgram(m.id), "close") }

func (m *module) Kernel(i int) (driver.Kernel, error) {
	return &kernel{m, m.prog.Kernels[i].Name}, nil
}

type kernel struct {
	m    *module
	name string
}

// Occupancy implements driver.Occupancy. Each compute unit of a CPU runs one group at a time, and
// one unit is left for the other queues: copies need it as well.
func (k *kernel) Occupancy(group uint32) (uint32, error) {
	id, err := k.m.c.l.NewKernel(k.m.id, k.name)
	if err != nil {
		return 0, wrap(err, "occupancy of "+k.name)
	}
	defer k.m.c.l.ReleaseKernel(id)
	most, err := k.m.c.l.KernelMaxGroup(id, k.m.c.d.id)
	if err != nil || uint64(group) > most {
		return 0, wrap(err, "occupancy of "+k.name)
	}
	return uint32(max(1, k.m.c.d.info.Units) - 1), nil
}

// call is a kernel of OpenCL of its own, because that is what holds arguments.
type call struct {
	c     *openclContext
	name  string
	id    ocl.Kernel
	group uint64    // items of a group at most
	parts []ocl.Mem // by argument: a part of a buffer that was made for it, or 0
}

func (k *kernel) Prepare(args []driver.Arg) (driver.Call, error) {
	c := k.m.c
	id, err := c.l.NewKernel(k.m.id, k.name)
	if err != nil {
		return nil, wrap(err, "prepare "+k.name)
	}
	x := &call{c: c, name: k.name, id: id, parts: make([]ocl.Mem, len(args))}
	if x.group, err = c.l.KernelMaxGroup(id, c.d.id); err != nil {
		return nil, errors.Join(wrap(err, "prepare "+k.name), x.Close())
	}
	for i, a := range args {
		if err := x.Set(i, a); err != nil {
			return nil, errors.Join(err, x.Close())
		}
	}
	return x, nil
}

func (x *call) Set(i int, a driver.Arg) error {
	l := x.c.l
	if a.Type != driver.Buffer {
		return wrap(l.SetNumber(x.id, i, a.Type.Size(), a.Bits), "set an argument")
	}
	m := a.Mem.(*memory)
	if m.svm {
		return errors.Join(wrap(l.SetSVM(x.id, i, m.host+uintptr(a.Off)), "set an argument"), x.part(i, 0))
	}
	buf, part := m.buf, ocl.Mem(0)
	if a.Off != 0 {
		var err error
		if part, err = l.NewSubBuffer(m.buf, a.Off, a.Len); err != nil {
			return wrap(err, "set an argument")
		}
		buf = part
	}
	if err := l.SetMem(x.id, i, buf); err != nil {
		err = wrap(err, "set an argument")
		if part != 0 {
			err = errors.Join(err, l.ReleaseMem(part))
		}
		return err
	}
	return x.part(i, part)
}

// part replaces the part of a buffer of argument i. Launches that use the old one keep it.
func (x *call) part(i int, p ocl.Mem) error {
	old := x.parts[i]
	x.parts[i] = p
	if old == 0 {
		return nil
	}
	return wrap(x.c.l.ReleaseMem(old), "set an argument")
}

func (x *call) Close() error {
	err := wrap(x.c.l.ReleaseKernel(x.id), "close")
	for i := range x.parts {
		err = errors.Join(err, x.part(i, 0))
	}
	return err
}
