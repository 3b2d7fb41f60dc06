package gpumem

import (
	"fmt"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/mem"
)

// Handle names device memory of a process to another one of this machine. It is inert, goes as
// JSON, and is worth nothing when the memory is gone. A process that has it can read and write the
// memory: give it to no other one.
type Handle struct {
	Device string `json:"device"` // the card's PCI address, "" where it is not known
	Size   uint64 `json:"size"`   // of the region in bytes
	Token  []byte `json:"token"`  // the runtime's
}

// Export is a handle by which another process of this machine opens the region with Open: all of
// it, since drivers hand over whole allocations. So what pools or allocators divide is refused, and
// so is memory that was adopted or is of another process; the error wraps gpu.ErrArgument. The
// region must stay until all who opened it have closed it. Where the device shares no memory the
// error wraps mem.ErrUnavailable and says why.
func (p *Provider) Export(r *mem.Region) (Handle, error) {
	if err := p.info.Capabilities.Check(gpu.CapIPC); err != nil {
		return Handle{}, fmt.Errorf("gpumem: %s: export region %q: %w", p.o.Name, r.Name(), unavailable(err))
	}
	refuse := func(why string) (Handle, error) {
		return Handle{}, fmt.Errorf("gpumem: %s: export region %q: %w: %s", p.o.Name, r.Name(), gpu.ErrArgument, why)
	}
	l, err := r.Lease()
	if err != nil {
		return Handle{}, err
	}
	defer l.Release()
	m, known := p.of(r)
	switch {
	case known == nil:
		return refuse("it is not of this provider")
	case m.Kind() != gpu.DeviceMemory:
		return refuse("it is memory of the host, which goes to other processes by its descriptor (Region.FD)")
	case !known.whole:
		return refuse("this provider did not allocate it, so other memory may be in the same allocation, or it is " +
			"another process's")
	case r.Divided():
		return refuse("a pool or an allocator hands out parts of it, and an export gives all of them away: allocate " +
			"a region of its own")
	}
	token, err := m.ExportIPC()
	if err != nil {
		return Handle{}, fmt.Errorf("gpumem: %s: export region %q: %w", p.o.Name, r.Name(), unavailable(err))
	}
	return Handle{Device: p.info.Bus, Size: r.Len(), Token: token}, nil
}

// Open makes a region of memory that another process of this machine exported on the same card. It
// cannot be exported again. What the handle says is the other process's word: the runtime holds it
// against what it knows of the allocation, and errors wrap gpu.ErrArgument or gpu.ErrBounds. The
// memory is the other process's, which can write it at any time.
func (p *Provider) Open(name string, h Handle) (*mem.Region, error) {
	if h.Device != "" && p.info.Bus != "" && h.Device != p.info.Bus {
		return nil, fmt.Errorf("gpumem: %s: open %q: %w: it is memory of the card at %.32q, and this one is at %s",
			p.o.Name, name, gpu.ErrArgument, h.Device, p.info.Bus)
	}
	m, err := p.c.OpenIPC(name, h.Token, h.Size)
	if err != nil {
		return nil, unavailable(err)
	}
	r, err := p.Adopt(name, m, m.Close)
	if err != nil {
		m.Close()
		return nil, err
	}
	return r, nil
}
