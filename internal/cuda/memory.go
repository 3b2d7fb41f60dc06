package cuda

import (
	"fmt"

	"github.com/penstock-io/penstock/internal/dl"
)

// Pointer is an address as the device sees it (CUdeviceptr). With unified addressing, which all
// 64-bit systems have, no two devices and no host memory share one.
type Pointer uint64

// Alloc is n bytes of the device's memory, aligned to 256 bytes or more, with undefined contents.
// The call takes microseconds to milliseconds and may wait for all work of the context: pools take
// memory once. The caller gives it back with [Context.Free].
func (c *Context) Alloc(n uint64) (Pointer, error) {
	p, err := in[Pointer](c, fnMemAlloc, uintptr(n))
	return p, about(err, "%d bytes", n)
}

// Free gives back memory of [Context.Alloc]. It waits for the work of the context.
func (c *Context) Free(p Pointer) error {
	return about(c.call(fnMemFree, uintptr(p)), "%#x", uint64(p))
}

// Range is the allocation that p lies in.
func (c *Context) Range(p Pointer) (base Pointer, size uint64, err error) {
	base, size, err = ins[Pointer, uint64](c, fnMemGetAddressRange, uintptr(p))
	return base, size, about(err, "%#x", uint64(p))
}

// HostFlags say what pinned host memory can do.
type HostFlags uint32

// The flags of pinned host memory. The last two are for [Context.Register] or [Context.AllocHost]
// only, as written.
const (
	HostPortable HostFlags = 1 // pinned for all contexts
	HostMapped   HostFlags = 2 // kernels reach it (see [Context.HostPointer])
)

// AllocHost is n bytes of pinned memory of the machine, at least page aligned. It counts against
// the machine's memory, not the memlock limit. The caller gives it back with [Context.FreeHost];
// views of it end there.
func (c *Context) AllocHost(n uint64, flags HostFlags) (uintptr, error) {
	p, err := in[uintptr](c, fnMemHostAlloc, uintptr(n), uintptr(flags))
	return p, about(err, "%d bytes of pinned memory", n)
}

// FreeHost gives back memory of AllocHost. It waits for the work of the context.
func (c *Context) FreeHost(p uintptr) error { return about(c.call(fnMemFreeHost, p), "%#x", p) }

// Register pins n bytes of the machine's memory that the process has mapped, so that copies go at
// full speed and, with HostMapped, kernels reach it. It must stay mapped until
// [Context.Unregister].
func (c *Context) Register(p uintptr, n uint64, flags HostFlags) error {
	return about(c.call(fnMemHostRegister, p, uintptr(n), uintptr(flags)), "%d bytes at %#x", n, p)
}

// Unregister ends Register, by the same address.
func (c *Context) Unregister(p uintptr) error { return about(c.call(fnMemHostUnregister, p), "%#x", p) }

// HostPointer is the address by which kernels reach pinned memory with HostMapped.
func (c *Context) HostPointer(p uintptr) (Pointer, error) {
	d, err := in[Pointer](c, fnMemHostGetDevicePointer, p, 0)
	return d, about(err, "%#x", p)
}

// HostFlagsOf are the flags of pinned memory.
func (c *Context) HostFlagsOf(p uintptr) (HostFlags, error) {
	f, err := in[HostFlags](c, fnMemHostGetFlags, p)
	return f, about(err, "%#x", p)
}

// ToDevice copies n bytes of host memory, and waits. Pageable memory is staged by the driver.
func (c *Context) ToDevice(to Pointer, from uintptr, n uint64) error {
	return copied(c.call(fnMemcpyHtoD, uintptr(to), from, uintptr(n)), n)
}

// FromDevice copies n bytes into host memory, and waits.
func (c *Context) FromDevice(to uintptr, from Pointer, n uint64) error {
	return copied(c.call(fnMemcpyDtoH, to, uintptr(from), uintptr(n)), n)
}

// ToDevice queues a copy of n bytes of host memory, which must stay as it is until the copy is
// done. From pageable memory the driver may copy at once or wait. It allocates nothing.
func (s *Stream) ToDevice(to Pointer, from uintptr, n uint64) error {
	return s.queue(fnMemcpyHtoDAsync, uintptr(to), from, n)
}

// FromDevice queues a copy of n bytes into host memory, which must stay mapped until the copy is
// done. It allocates nothing.
func (s *Stream) FromDevice(to uintptr, from Pointer, n uint64) error {
	return s.queue(fnMemcpyDtoHAsync, to, uintptr(from), n)
}

// OnDevice queues a copy of n bytes within the device, or between devices that are peers. The
// ranges must not overlap. It allocates nothing.
func (s *Stream) OnDevice(to, from Pointer, n uint64) error {
	return s.queue(fnMemcpyDtoDAsync, uintptr(to), uintptr(from), n)
}

// Copy queues a copy of n bytes between any two kinds of memory that the driver knows by their
// addresses (unified addressing). Between two of the host's it waits until the copy is done.
func (s *Stream) Copy(to, from Pointer, n uint64) error {
	return s.queue(fnMemcpyAsync, uintptr(to), uintptr(from), n)
}

func (s *Stream) queue(op fn, to, from uintptr, n uint64) error {
	if err := s.c.enter(); err != nil {
		return err
	}
	r := s.c.d.fn[op].Call4(to, from, uintptr(n), s.h)
	leave()
	if int32(r) == 0 {
		return nil
	}
	return copied(check(op, r), n)
}

// ToPeer queues a copy of n bytes from memory of one context to memory of another; the driver goes
// by the host's memory where the devices do not reach each other.
func (s *Stream) ToPeer(to Pointer, toContext *Context, from Pointer, fromContext *Context, n uint64) error {
	if err := s.c.d.Has(Peer); err != nil {
		return err
	}
	if err := s.c.enter(); err != nil {
		return err
	}
	r := s.c.d.fn[fnMemcpyPeerAsync].Call6(uintptr(to), toContext.h, uintptr(from), fromContext.h, uintptr(n), s.h)
	leave()
	return copied(check(fnMemcpyPeerAsync, r), n)
}

func copied(err error, n uint64) error { return about(err, "%d bytes", n) }

// Fill queues the filling of n elements of size bytes (1, 2 or 4) with the low bytes of v. p must
// be a multiple of size. It allocates nothing.
func (s *Stream) Fill(p Pointer, size int, v uint32, n uint64) error {
	op := fnMemsetD8Async
	switch size {
	case 1:
	case 2:
		op = fnMemsetD16Async
	case 4:
		op = fnMemsetD32Async
	default:
		return fmt.Errorf("cuda: fill with elements of %d bytes: expected 1, 2 or 4", size)
	}
	if err := s.c.enter(); err != nil {
		return err
	}
	r := s.c.d.fn[op].Call4(uintptr(p), uintptr(v), uintptr(n), s.h)
	leave()
	if int32(r) == 0 {
		return nil
	}
	return about(check(op, r), "%d elements of %d bytes", n, size)
}

// MemoryType says where an address points to.
type MemoryType uint32

// The types of memory.
const (
	MemoryUnknown MemoryType = 0 // the driver does not know it: pageable memory of the host, or none
	MemoryHost    MemoryType = 1 // pinned
	MemoryDevice  MemoryType = 2
)

// String names the type.
func (t MemoryType) String() string {
	switch t {
	case MemoryUnknown:
		return "unknown to the driver"
	case MemoryHost:
		return "pinned host memory"
	case MemoryDevice:
		return "device memory"
	}
	return fmt.Sprintf("memory of type %d", uint32(t))
}

// PointerInfo is what the driver knows of an address.
type PointerInfo struct {
	Type          MemoryType
	Device        int     // ordinal
	Base          Pointer // of its allocation
	Size          uint64  // of its allocation, in bytes
	BufferID      uint64  // differs for every allocation of the process, also where one has the address of a freed one
	GPUDirectRDMA bool    // network cards can reach it
	Managed       bool    // pages move between host and device
}

// Pointer attributes, as the manual numbers them (CUpointer_attribute).
const (
	pointerMemoryType = 2
	pointerSyncMemops = 6
	pointerBufferID   = 7
	pointerManaged    = 8
	pointerOrdinal    = 9
	pointerRangeStart = 11
	pointerRangeSize  = 12
	pointerRDMA       = 15
)

// Inspect tells what an address is, host or device. An address that the driver does not know is no
// error: its type is MemoryUnknown.
func (c *Context) Inspect(p Pointer) (PointerInfo, error) {
	t, err := in[MemoryType](c, fnPointerGetAttribute, pointerMemoryType, uintptr(p))
	if e, ok := err.(*Error); ok && e.Result == ErrorInvalidValue {
		return PointerInfo{Type: MemoryUnknown}, nil
	}
	if err != nil {
		return PointerInfo{}, about(err, "%#x", uint64(p))
	}
	i := PointerInfo{Type: t}
	var first error
	// A driver answers an attribute that does not apply with an error of its own, which leaves the
	// value 0.
	ask := func(attribute uintptr) uint64 {
		v, err := in[uint64](c, fnPointerGetAttribute, attribute, uintptr(p))
		e, ok := err.(*Error)
		if err != nil && first == nil && !(ok && (e.Result == ErrorInvalidValue || e.Result == ErrorNotSupported)) {
			first = about(err, "attribute %d of %#x", attribute, uint64(p))
		}
		if err != nil {
			return 0
		}
		return v
	}
	i.Device = int(int32(ask(pointerOrdinal)))
	i.Base, i.Size = Pointer(ask(pointerRangeStart)), ask(pointerRangeSize)
	i.BufferID = ask(pointerBufferID)
	i.GPUDirectRDMA, i.Managed = uint32(ask(pointerRDMA)) != 0, uint8(ask(pointerManaged)) != 0
	return i, first
}

// DeviceOf is the ordinal of the device that has the memory at p, and false where the CPU reaches
// it: memory of the host, pinned or not, and managed memory. A process that has not loaded the
// driver, or whose driver does not start, has no memory of a device; DeviceOf does not load the
// driver.
func DeviceOf(p uintptr) (int, bool) {
	if !dl.Loaded(Library) {
		return 0, false
	}
	d, err := Load("")
	if err != nil {
		return 0, false
	}
	f := d.fn[fnPointerGetAttribute]
	if t, r := out[MemoryType](f, pointerMemoryType, p); r != 0 || t != MemoryDevice {
		return 0, false
	}
	if managed, r := out[uint32](f, pointerManaged, p); r == 0 && managed&0xff != 0 {
		return 0, false
	}
	n, r := out[int32](f, pointerOrdinal, p)
	return int(n), r == 0
}

// SyncMemops makes copies by the driver from and to the allocation of p synchronous, as it must be
// for memory that network cards write past the driver.
func (c *Context) SyncMemops(p Pointer, on bool) error {
	var l lent
	defer l.free()
	v := uint32(0)
	if on {
		v = 1
	}
	a, err := place(&l, v)
	if err != nil {
		return err
	}
	return about(c.call(fnPointerSetAttribute, a, pointerSyncMemops, uintptr(p)), "%#x", uint64(p))
}
