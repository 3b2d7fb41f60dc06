package gpu

import (
	"fmt"

	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/internal/invariants"
)

// MemoryOptions say what memory is wanted.
type MemoryOptions struct {
	Name  string // for messages
	Kind  Kind   // the zero value is DeviceMemory
	Size  uint64 // bytes, at least 1
	Align uint64 // bytes, a power of two; 0 means Info.Align. ErrUnsupported where a runtime cannot align so much
}

// Memory is an allocation of a context.
type Memory struct {
	object
	drv   driver.Memory
	kind  Kind
	size  uint64
	addr  uint64
	align uint64
	bytes []byte
	uses  uses // only under -tags invariants
}

// Alloc makes memory of undefined content. The caller closes it. Errors wrap ErrArgument,
// ErrUnsupported (the device has no such kind), ErrOutOfMemory. It may wait for work of the device:
// memory should be there before a persistent kernel is started.
func (c *Context) Alloc(o MemoryOptions) (*Memory, error) {
	f := c.Info()
	refuse := func(kind error, format string, a ...any) error {
		return fmt.Errorf("gpu: %s: memory %q of %d bytes: %w: %s", c.dev, o.Name, o.Size, kind,
			fmt.Sprintf(format, a...))
	}
	if o.Align == 0 {
		o.Align = f.Align
	}
	switch {
	case o.Kind >= driver.NumKinds:
		return nil, refuse(ErrArgument, "%s: there is no such kind", o.Kind)
	case o.Size == 0:
		return nil, refuse(ErrArgument, "expected a size of at least 1")
	case !powerOfTwo(o.Align):
		return nil, refuse(ErrArgument, "an alignment of %d bytes: expected a power of two", o.Align)
	case o.Size > f.MaxAlloc:
		return nil, refuse(ErrOutOfMemory, "the device allocates at most %d bytes at once", f.MaxAlloc)
	}
	if need, ok := o.Kind.Needs(); ok {
		if err := f.Capabilities.Check(need); err != nil {
			return nil, fmt.Errorf("gpu: %s: memory %q of kind %s: %w", c.dev, o.Name, o.Kind, err)
		}
	}
	done, err := c.quiet("allocate")
	if err != nil {
		return nil, err
	}
	defer done()
	align := max(o.Align, f.Align)
	drv, err := c.drv.Alloc(driver.MemorySpec{Name: o.Name, Kind: o.Kind, Size: o.Size, Align: align})
	if err != nil {
		return nil, fmt.Errorf("gpu: %s: memory %q, %d bytes of kind %s: %w", c.dev, o.Name, o.Size, o.Kind,
			c.note(err))
	}
	return c.newMemory(drv, o.Name, o.Kind, o.Size, align)
}

func (c *Context) newMemory(drv driver.Memory, name string, kind Kind, size, align uint64) (*Memory, error) {
	m := &Memory{drv: drv, kind: kind, size: size, addr: drv.Addr(), align: align, bytes: drv.Bytes()}
	if m.bytes != nil {
		m.bytes = m.bytes[:size:size]
	}
	if err := m.init(c, "memory", name); err != nil {
		drv.Close()
		return nil, err
	}
	return m, nil
}

// Adopt registers host memory that exists already, so that copies from and to it are fast, as
// memory of kind MappedMemory, or PinnedMemory where the device does not map. b must not be in the
// Go heap, and must stay valid until Close, which unregisters it. It needs CapAdopt.
func (c *Context) Adopt(name string, b []byte) (*Memory, error) {
	f := c.Info()
	if err := f.Capabilities.Check(CapAdopt); err != nil {
		return nil, fmt.Errorf("gpu: %s: adopt %q: %w", c.dev, name, err)
	}
	if len(b) == 0 {
		return nil, fmt.Errorf("gpu: %s: adopt %q: %w: no bytes", c.dev, name, ErrArgument)
	}
	done, err := c.quiet("adopt memory")
	if err != nil {
		return nil, err
	}
	defer done()
	a, ok := c.drv.(driver.Adopter)
	if !ok {
		return nil, fmt.Errorf("gpu: %s: adopt %q: %w: the runtime declares the capability and does not have it", c.dev,
			name, ErrDriver)
	}
	drv, err := a.Adopt(b)
	if err != nil {
		return nil, fmt.Errorf("gpu: %s: adopt %q, %d bytes: %w", c.dev, name, len(b), c.note(err))
	}
	kind := PinnedMemory
	if f.Capabilities.Has(CapMapped) {
		kind = MappedMemory
	}
	return c.newMemory(drv, name, kind, uint64(len(b)), 1)
}

// AdoptAddress makes memory of kind DeviceMemory of size bytes from addr on, which another library
// of this process has allocated on this device: a tensor of PyTorch, say. It asks the driver what
// is there: an address that is not wholly in one allocation of this device is an error that wraps
// ErrBounds or ErrArgument. The other library must keep the memory until Close, which leaves it as
// it is, and fails where the library did not. It needs CapAdoptAddress.
func (c *Context) AdoptAddress(name string, addr, size uint64) (*Memory, error) {
	if err := c.Info().Capabilities.Check(CapAdoptAddress); err != nil {
		return nil, fmt.Errorf("gpu: %s: adopt %q at %#x: %w", c.dev, name, addr, err)
	}
	if addr == 0 || size == 0 || addr+size < addr {
		return nil, fmt.Errorf("gpu: %s: adopt %q at %#x: %w: %d bytes from there", c.dev, name, addr, ErrArgument,
			size)
	}
	done, err := c.quiet("adopt memory")
	if err != nil {
		return nil, err
	}
	defer done()
	a, ok := c.drv.(driver.AddressAdopter)
	if !ok {
		return nil, fmt.Errorf("gpu: %s: adopt %q at %#x: %w: the runtime declares the capability and does not have it",
			c.dev, name,
			addr, ErrDriver)
	}
	drv, err := a.AdoptAddress(addr, size)
	if err != nil {
		return nil, fmt.Errorf("gpu: %s: adopt %q at %#x: %w", c.dev, name, addr, c.note(err))
	}
	return c.newMemory(drv, name, DeviceMemory, size, 1)
}

// OpenIPC opens memory of size bytes that another process of this machine has exported with
// Memory.ExportIPC, as DeviceMemory. It is the whole allocation of the other process; that one must
// keep it until this one has closed it. It needs CapIPC.
func (c *Context) OpenIPC(name string, handle []byte, size uint64) (*Memory, error) {
	if err := c.Info().Capabilities.Check(CapIPC); err != nil {
		return nil, fmt.Errorf("gpu: %s: open memory %q of another process: %w", c.dev, name, err)
	}
	if len(handle) == 0 || size == 0 {
		return nil, fmt.Errorf("gpu: %s: open memory %q of another process: %w: a handle of %d bytes for %d bytes",
			c.dev, name, ErrArgument, len(handle), size)
	}
	done, err := c.quiet("open memory of another process")
	if err != nil {
		return nil, err
	}
	defer done()
	o, ok := c.drv.(driver.IPCOpener)
	if !ok {
		return nil, fmt.Errorf("gpu: %s: open memory %q of another process: %w: the runtime declares the capability "+
			"and does not have it", c.dev, name, ErrDriver)
	}
	drv, err := o.OpenIPC(handle, size)
	if err != nil {
		return nil, fmt.Errorf("gpu: %s: open memory %q of another process: %w", c.dev, name, c.note(err))
	}
	return c.newMemory(drv, name, DeviceMemory, size, 1)
}

// Name is the name given at allocation.
func (m *Memory) Name() string { return m.name }

// Context is the context that owns it.
func (m *Memory) Context() *Context { return m.ctx }

// Kind says what memory it is.
func (m *Memory) Kind() Kind { return m.kind }

// Size is its size in bytes, as it was asked for.
func (m *Memory) Size() uint64 { return m.size }

// Align is the alignment in bytes that holds for its address on each side that has one.
func (m *Memory) Align() uint64 { return m.align }

// Addr is its address on the device, 0 where there is none.
func (m *Memory) Addr() uint64 { return m.addr }

// Bytes are the memory as the CPU sees it, nil where it does not. They are valid until Close, and
// the CPU's own while no work touches them.
func (m *Memory) Bytes() []byte {
	if m.closed.Load() {
		return nil
	}
	return m.bytes
}

// All is the span of the whole memory.
func (m *Memory) All() Span { return Span{Memory: m, Len: m.size} }

// Span names n bytes from off. The error wraps ErrBounds when they are not all inside.
func (m *Memory) Span(off, n uint64) (Span, error) {
	s := Span{Memory: m, Off: off, Len: n}
	return s, s.check()
}

// Around is how many bytes of the same allocation lie before and after memory of AdoptAddress; 0
// for other memory.
func (m *Memory) Around() (before, after uint64) {
	if a, ok := m.drv.(driver.Surrounded); ok {
		return a.Around()
	}
	return 0, 0
}

// ExportDMABuf is a dma-buf descriptor of n bytes of the memory from off on, which the caller
// closes; both may reach into what is around it, off then being below 0. It needs CapDMABuf and
// DeviceMemory.
func (m *Memory) ExportDMABuf(off int64, n uint64) (fd int, err error) {
	if err := m.exportable(CapDMABuf); err != nil {
		return -1, err
	}
	before, after := m.Around()
	if off < 0 && uint64(-off) > before {
		return -1, fmt.Errorf("gpu: %s: %s: export from %d bytes before it, of %d: %w", m.ctx.dev, &m.object, -off,
			before, ErrBounds)
	}
	if from, all := before+uint64(off), before+m.size+after; from > all || n > all-from {
		return -1, fmt.Errorf("gpu: %s: %s: export of %d bytes from %d on, but it has %d and %d after them: %w",
			m.ctx.dev, &m.object, n, off, m.size, after, ErrBounds)
	}
	e, ok := m.drv.(driver.DMABufExporter)
	if !ok {
		return -1, fmt.Errorf("gpu: %s: %s: export as dma-buf: %w: the runtime has no such call for it", m.ctx.dev,
			&m.object, ErrUnsupported)
	}
	fd, err = e.ExportDMABuf(off, n)
	if err != nil {
		return -1, fmt.Errorf("gpu: %s: %s: export as dma-buf: %w", m.ctx.dev, &m.object, m.ctx.note(err))
	}
	return fd, nil
}

// ExportIPC is a handle by which another process of this machine opens the whole allocation: also
// what the runtime keeps beside it. It needs CapIPC and DeviceMemory.
func (m *Memory) ExportIPC() ([]byte, error) {
	if err := m.exportable(CapIPC); err != nil {
		return nil, err
	}
	e, ok := m.drv.(driver.IPCExporter)
	if !ok {
		return nil, fmt.Errorf("gpu: %s: %s: export to other processes: %w: the runtime has no such call for it",
			m.ctx.dev, &m.object, ErrUnsupported)
	}
	h, err := e.ExportIPC()
	if err != nil {
		return nil, fmt.Errorf("gpu: %s: %s: export to other processes: %w", m.ctx.dev, &m.object, m.ctx.note(err))
	}
	return h, nil
}

func (m *Memory) exportable(c Capability) error {
	if err := m.ctx.Info().Capabilities.Check(c); err != nil {
		return fmt.Errorf("gpu: %s: %s: export: %w", m.ctx.dev, &m.object, err)
	}
	if m.kind != DeviceMemory {
		return fmt.Errorf("gpu: %s: %s: export: %w: it is of kind %s, expected %s", m.ctx.dev, &m.object, ErrArgument,
			m.kind, DeviceMemory)
	}
	return m.usable()
}

// Close gives the memory back. The work that uses it must be known to be done; see the package
// comment. While a Resident holds the device it is an error that wraps ErrInUse, and the memory
// stays.
func (m *Memory) Close() error {
	done, err := m.quiet()
	if err != nil {
		return err
	}
	defer done()
	if !m.end() {
		return nil
	}
	if invariants.Enabled {
		m.uses.over(&m.object)
	}
	return m.ctx.ending(m.drv.Close())
}

// Span names Len bytes of a memory from Off. It is inert and may be kept; what uses it checks it.
type Span struct {
	Memory *Memory
	Off    uint64 // bytes
	Len    uint64 // bytes
}

// Sub names n bytes from off within the span; the error wraps ErrBounds.
func (s Span) Sub(off, n uint64) (Span, error) {
	if off > s.Len || n > s.Len-off {
		return Span{}, fmt.Errorf("gpu: offset %d + %d bytes in a span of %d: %w", off, n, s.Len, ErrBounds)
	}
	return Span{Memory: s.Memory, Off: s.Off + off, Len: n}, nil
}

// Bytes are the span's bytes as the CPU sees them; see Memory.Bytes. The span must be inside its
// memory.
func (s Span) Bytes() []byte {
	b := s.Memory.Bytes()
	if b == nil {
		return nil
	}
	return b[s.Off : s.Off+s.Len : s.Off+s.Len]
}

// Addr is the span's address on the device, 0 where there is none.
func (s Span) Addr() uint64 {
	if s.Memory.addr == 0 {
		return 0
	}
	return s.Memory.addr + s.Off
}

// check is an error unless the span lies inside memory that is open.
func (s *Span) check() error {
	m := s.Memory
	if m == nil {
		return fmt.Errorf("gpu: %w: a span of no memory", ErrArgument)
	}
	if s.Off > m.size || s.Len > m.size-s.Off {
		return fmt.Errorf("gpu: %s: %s: offset %d + %d bytes, but it has %d: %w", m.ctx.dev, &m.object, s.Off, s.Len,
			m.size, ErrBounds)
	}
	if m.closed.Load() {
		return m.usable()
	}
	return nil
}
