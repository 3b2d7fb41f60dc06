package cuda

import (
	"fmt"

	"github.com/penstock-io/penstock/internal/sys"
)

// Physical is memory of a device without an address, of [Context.Create]; Map gives it one. It
// counts references: the mapping holds one, Release gives back the creator's.
type Physical struct {
	c    *Context
	h    uint64
	size uint64
}

// PhysicalSpec says what memory of [Context.Create] is for.
type PhysicalSpec struct {
	Share         bool // Export gives it to other processes (needs Info.ShareDescriptor)
	GPUDirectRDMA bool // network cards will reach it (needs Info.GPUDirectVirtual)
}

// allocationProp is CUmemAllocationProp.
type allocationProp struct {
	kind        int32 // 1: pinned, the only one
	handleTypes int32 // 1: a file descriptor
	location    location
	_           uint64
	_           uint8 // compression
	rdma        uint8
	_           [6]uint8
}

// location is CUmemLocation; kind 1 is a device.
type location struct{ kind, id int32 }

// accessDesc is CUmemAccessDesc; flags 3 are read and write, 1 is read.
type accessDesc struct {
	location location
	flags    int32
}

// prop of a spec. The flag of RDMA is set where the device has it, as the driver refuses it
// elsewhere.
func (c *Context) prop(o PhysicalSpec) allocationProp {
	p := allocationProp{kind: 1, location: location{1, c.dev.h}}
	if o.Share {
		p.handleTypes = 1
	}
	if o.GPUDirectRDMA {
		p.rdma = 1
	}
	return p
}

// Granularity is what sizes and addresses of such memory must be multiples of, in bytes: commonly 2
// MiB.
func (c *Context) Granularity(o PhysicalSpec) (uint64, error) {
	if err := c.d.Has(VirtualMemory); err != nil {
		return 0, err
	}
	var l lent
	defer l.free()
	p, err := place(&l, c.prop(o))
	if err != nil {
		return 0, err
	}
	return in[uint64](c, fnMemGetGranularity, p, 0)
}

// Create takes size bytes of the device's memory. size must be a multiple of the granularity. The
// caller ends it with [Physical.Release].
func (c *Context) Create(size uint64, o PhysicalSpec) (*Physical, error) {
	if err := c.d.Has(VirtualMemory); err != nil {
		return nil, err
	}
	var l lent
	defer l.free()
	p, err := place(&l, c.prop(o))
	if err != nil {
		return nil, err
	}
	h, err := in[uint64](c, fnMemCreate, uintptr(size), p, 0)
	if err != nil {
		return nil, about(err, "%d bytes", size)
	}
	return &Physical{c, h, size}, nil
}

// Size is the memory's size in bytes, 0 for one that was imported.
func (p *Physical) Size() uint64 { return p.size }

// Release gives back the creator's reference. The memory stays while it is mapped, here or in
// another process.
func (p *Physical) Release() error { return p.c.call(fnMemRelease, uintptr(p.h)) }

// Export is a new file descriptor of the memory, created with PhysicalSpec.Share, for another
// process of this machine. The caller closes it. Children do not inherit it.
func (p *Physical) Export() (fd int, err error) {
	return sys.Uninherited(func() (int, error) {
		n, err := in[int32](p.c, fnMemExport, uintptr(p.h), 1, 0)
		if err != nil {
			return -1, err
		}
		return int(n), nil
	})
}

// Import opens memory by a file descriptor of [Physical.Export], which stays the caller's. The
// caller ends it with [Physical.Release].
func (c *Context) Import(fd int) (*Physical, error) {
	if err := c.d.Has(VirtualMemory); err != nil {
		return nil, err
	}
	h, err := in[uint64](c, fnMemImport, uintptr(fd), 1)
	if err != nil {
		return nil, about(err, "file descriptor %d", fd)
	}
	return &Physical{c: c, h: h}, nil
}

// Reserve takes size bytes of addresses, without memory. align is a power of two, or 0 for the
// driver's choice. The caller gives them back with [Context.Unreserve].
func (c *Context) Reserve(size, align uint64) (Pointer, error) {
	if err := c.d.Has(VirtualMemory); err != nil {
		return 0, err
	}
	p, err := in[Pointer](c, fnMemAddressReserve, uintptr(size), uintptr(align), 0, 0)
	return p, about(err, "%d bytes of addresses", size)
}

// Unreserve gives back what Reserve took: the whole, with nothing mapped there.
func (c *Context) Unreserve(p Pointer, size uint64) error {
	return about(c.call(fnMemAddressFree, uintptr(p), uintptr(size)), "%d bytes of addresses at %#x", size, uint64(p))
}

// Map puts the first size bytes of memory at p, which was reserved. No device may reach it before
// [Context.Access].
func (c *Context) Map(p Pointer, m *Physical, size uint64) error {
	return about(c.call(fnMemMap, uintptr(p), uintptr(size), 0, uintptr(m.h), 0), "%d bytes at %#x", size, uint64(p))
}

// Unmap ends Map, for the same range. The work that uses it must be over.
func (c *Context) Unmap(p Pointer, size uint64) error {
	return about(c.call(fnMemUnmap, uintptr(p), uintptr(size)), "%d bytes at %#x", size, uint64(p))
}

// Access lets devices read, or read and write, what is mapped at p.
func (c *Context) Access(p Pointer, size uint64, write bool, devices ...*Device) error {
	if len(devices) == 0 {
		return fmt.Errorf("cuda: access to %#x: expected at least one device", uint64(p))
	}
	var l lent
	defer l.free()
	const each = 12
	b, err := l.bytes(each * len(devices))
	if err != nil {
		return err
	}
	for i, d := range devices {
		a := accessDesc{location{1, d.h}, 1}
		if write {
			a.flags = 3
		}
		put(b, i*each, a)
	}
	return about(c.call(fnMemSetAccess, uintptr(p), uintptr(size), address(b, 0), uintptr(len(devices))),
		"%d bytes at %#x", size, uint64(p))
}

// DMABuf is a new file descriptor of a dma-buf of the device's memory from p to p+size, for network
// cards and other drivers. Both must be multiples of the machine's page size. The caller closes it;
// children do not inherit it. The memory must outlive what was imported with it.
func (c *Context) DMABuf(p Pointer, size uint64) (fd int, err error) {
	if err := c.d.Has(DMABuf); err != nil {
		return -1, err
	}
	return sys.Uninherited(func() (int, error) {
		n, err := in[int32](c, fnMemGetHandleForAddressRange, uintptr(p), uintptr(size), 1, 0)
		if err != nil {
			return -1, about(err, "%d bytes at %#x", size, uint64(p))
		}
		return int(n), nil
	})
}
