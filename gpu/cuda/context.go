package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/internal/cuda"
	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/sys"
)

// cudaContext is a reference to a primary context.
type cudaContext struct {
	c               *cuda.Context
	info            *driver.Info
	least, greatest int // priorities of streams

	mu   sync.Mutex
	idle []*cuda.Event // for waits
}

func (c *cudaContext) MemoryInfo() (free, total uint64, err error) {
	free, total, err = c.c.MemInfo()
	return free, total, translate(err)
}

func (c *cudaContext) Close() error {
	c.mu.Lock()
	var err error
	for _, e := range c.idle {
		err = errors.Join(err, e.Close())
	}
	c.idle = nil
	c.mu.Unlock()
	return translate(errors.Join(err, c.c.Release()))
}

// waiter is an event that is not in use; give takes it back.
func (c *cudaContext) waiter() (*cuda.Event, error) {
	c.mu.Lock()
	if n := len(c.idle); n > 0 {
		e := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		return e, nil
	}
	c.mu.Unlock()
	return c.c.NewEvent(cuda.EventSpec{})
}

func (c *cudaContext) give(e *cuda.Event) {
	c.mu.Lock()
	c.idle = append(c.idle, e)
	c.mu.Unlock()
}

// memory is memory of any kind.
type memory struct {
	c       *cudaContext
	kind    driver.Kind
	base    cuda.Pointer // of the allocation, device memory only
	at      cuda.Pointer // where it is for copies: an address of the device, or of the host
	addr    cuda.Pointer // where it is for kernels; 0 where it is not
	after   uint64       // bytes behind it in the allocation
	adopted bool         // by its address
	bytes   []byte
	end     func() error
}

// host reports whether the memory is the host's.
func (m *memory) host() bool { return m.kind != driver.DeviceMemory }

func (c *cudaContext) Alloc(o driver.MemorySpec) (driver.Memory, error) {
	var m *memory
	var err error
	if o.Kind == driver.DeviceMemory {
		m, err = c.allocDevice(o)
	} else {
		m, err = c.allocHost(o)
	}
	if err != nil {
		return nil, translate(err)
	}
	return m, nil
}

// padding is how many bytes more an alignment beyond the natural one takes.
func padding(o driver.MemorySpec, natural uint64) (uint64, error) {
	if o.Align <= natural {
		return 0, nil
	}
	if o.Align > 1<<40 {
		return 0, fmt.Errorf("%w: an alignment of %d bytes", cuda.ErrUnsupported, o.Align)
	}
	return o.Align - natural, nil
}

func (c *cudaContext) allocDevice(o driver.MemorySpec) (*memory, error) {
	pad, err := padding(o, align)
	if err != nil {
		return nil, err
	}
	if pad > 0 && o.Size >= o.Align {
		// The driver aligns large memory to what it is made of, commonly 2 MiB: then no padding is
		// needed, which would double small multiples of that.
		p, err := c.c.Alloc(o.Size)
		if err != nil {
			return nil, err
		}
		if uint64(p)%o.Align == 0 {
			return &memory{c: c, kind: o.Kind, base: p, at: p, addr: p, end: func() error { return c.c.Free(p) }}, nil
		}
		if err := c.c.Free(p); err != nil {
			return nil, err
		}
	}
	p, err := c.c.Alloc(o.Size + pad)
	if err != nil {
		return nil, err
	}
	at := (p + cuda.Pointer(o.Align-1)) &^ cuda.Pointer(o.Align-1)
	return &memory{c: c, kind: o.Kind, base: p, at: at, addr: at, end: func() error { return c.c.Free(p) }}, nil
}

func (c *cudaContext) allocHost(o driver.MemorySpec) (*memory, error) {
	const page = 4096
	pad, err := padding(o, page)
	if err != nil {
		return nil, err
	}
	flags := cuda.HostPortable
	if o.Kind != driver.PinnedMemory {
		flags |= cuda.HostMapped
	}
	p, err := c.c.AllocHost(o.Size+pad, flags)
	if err != nil {
		return nil, err
	}
	skip := -p & uintptr(o.Align-1)
	m := &memory{c: c, kind: o.Kind, at: cuda.Pointer(p + skip), bytes: dl.Bytes(p+skip, int(o.Size)),
		end: func() error {
			return c.c.FreeHost(p)
		}}
	if o.Kind == driver.PinnedMemory {
		return m, nil
	}
	d, err := c.c.HostPointer(p)
	if err == nil && o.Kind == driver.SharedMemory && d != cuda.Pointer(p) {
		err = fmt.Errorf("%w: the device has another address for the host's memory", cuda.ErrUnsupported)
	}
	if err != nil {
		return nil, errors.Join(err, m.end())
	}
	m.addr = d + cuda.Pointer(skip)
	return m, nil
}

// Adopt pins host memory of others.
func (c *cudaContext) Adopt(b []byte) (driver.Memory, error) {
	p := sys.Address(b)
	m := &memory{c: c, kind: driver.PinnedMemory, at: cuda.Pointer(p), bytes: b, end: func() error {
		return c.c.Unregister(p)
	}}
	flags := cuda.HostPortable
	if c.info.Capabilities.Has(driver.CapMapped) {
		m.kind = driver.MappedMemory
		flags |= cuda.HostMapped
	}
	if err := c.c.Register(p, uint64(len(b)), flags); err != nil {
		return nil, translate(err)
	}
	if m.kind == driver.MappedMemory {
		d, err := c.c.HostPointer(p)
		if err != nil {
			return nil, translate(errors.Join(err, m.end()))
		}
		m.addr = d
	}
	return m, nil
}

// AdoptAddress asks the driver what is at an address.
func (c *cudaContext) AdoptAddress(addr, size uint64) (driver.Memory, error) {
	p := cuda.Pointer(addr)
	in, err := c.c.Inspect(p)
	switch {
	case err != nil:
		return nil, translate(err)
	case in.Managed:
		return nil, fmt.Errorf("%w: it is managed memory, whose pages move between host and device", gpu.ErrUnsupported)
	case in.Type == cuda.MemoryHost:
		return nil, fmt.Errorf("%w: it is pinned memory of the host: adopt its bytes", gpu.ErrArgument)
	case in.Type != cuda.MemoryDevice:
		return nil, fmt.Errorf("%w: it is %s", gpu.ErrArgument, in.Type)
	case in.Device != c.info.Index:
		return nil, fmt.Errorf("%w: it is memory of device %d", gpu.ErrArgument, in.Device)
	}
	off := uint64(p - in.Base)
	if p < in.Base || off > in.Size || size > in.Size-off {
		return nil, fmt.Errorf("%w: %d bytes from %d on, but the allocation there has %d", gpu.ErrBounds, size, off,
			in.Size)
	}
	return &memory{c: c, kind: driver.DeviceMemory, base: in.Base, at: p, addr: p, after: in.Size - off - size,
		adopted: true, end: func() error {
			now, err := c.c.Inspect(p)
			if err == nil && now.BufferID != in.BufferID {
				err = fmt.Errorf("%w: its owner gave it back while it was adopted", cuda.ErrDriver)
			}
			return err
		}}, nil
}

func (m *memory) Addr() uint64  { return uint64(m.addr) }
func (m *memory) Bytes() []byte { return m.bytes }

func (m *memory) Close() error { return translate(m.end()) }

// Around is for adopted memory: only that may be a part of an allocation of others, or begin
// anywhere in it.
func (m *memory) Around() (before, after uint64) {
	if !m.adopted {
		return 0, 0
	}
	return uint64(m.at - m.base), m.after
}

// ExportDMABuf also makes the driver's own copies of the memory synchronous, as they must be where
// others write it.
func (m *memory) ExportDMABuf(off int64, n uint64) (int, error) {
	p := m.addr + cuda.Pointer(off)
	if err := m.c.c.SyncMemops(m.addr, true); err != nil {
		return -1, translate(err)
	}
	fd, err := m.c.c.DMABuf(p, n)
	if err != nil {
		return -1, explain(err, "", "memory for export is best taken with an alignment of 2 MiB and in multiples of it")
	}
	return fd, nil
}

// FlushWrites implements driver.WriteFlusher.
func (c *cudaContext) FlushWrites() error { return translate(c.c.FlushWrites(cuda.OrderingOwner)) }

// ipcSize is the length of what ExportIPC gives: the driver's handle, and where in the allocation
// the memory begins.
const ipcSize = len(cuda.Handle{}) + 8

func (m *memory) ExportIPC() ([]byte, error) {
	h, err := m.c.c.Share(m.base)
	if err != nil {
		return nil, translate(err)
	}
	return binary.LittleEndian.AppendUint64(h[:], uint64(m.at-m.base)), nil
}

// OpenIPC opens memory of another process. The handle and the size are that one's word: both are
// held against what the driver says of the allocation.
func (c *cudaContext) OpenIPC(handle []byte, size uint64) (driver.Memory, error) {
	if len(handle) != ipcSize {
		return nil, fmt.Errorf("%w: a handle of %d bytes: expected %d, as gpu/cuda exports it", gpu.ErrArgument,
			len(handle), ipcSize)
	}
	h := cuda.Handle(handle)
	off := binary.LittleEndian.Uint64(handle[len(h):])
	p, err := c.c.OpenShared(h)
	if err != nil {
		return nil, translate(err)
	}
	_, have, err := c.c.Range(p)
	if err == nil && (off > have || size > have-off) {
		return nil, errors.Join(fmt.Errorf("%w: %d bytes from %d on, but the other process' allocation has %d",
			gpu.ErrBounds, size, off, have),
			translate(c.c.CloseShared(p)))
	}
	if err != nil {
		return nil, translate(errors.Join(err, c.c.CloseShared(p)))
	}
	at := p + cuda.Pointer(off)
	return &memory{c: c, kind: driver.DeviceMemory, base: p, at: at, addr: at, end: func() error {
		return c.c.CloseShared(p)
	}}, nil
}
