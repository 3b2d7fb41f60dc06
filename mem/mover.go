package mem

import (
	"context"
	"fmt"
)

// Mover copies between a region that the CPU cannot reach and memory that it can. The Provider of
// such a region brings it along; the caller of its methods holds a lease on both regions until the
// Move is over. Its methods may be called from any goroutine, and copies run side by side unless
// the caller waits between them.
type Mover interface {
	// Load begins to copy len(dst) bytes of the region, from off, into dst. dst is host memory;
	// copies into memory of Staging run while the CPU does other things, copies into other memory
	// may be over only when Load returns.
	Load(dst Span, off uint64) (Move, error)
	// Store begins to copy src into the region, from off. The bytes of src must not change before
	// the Move is over.
	Store(off uint64, src Span) (Move, error)
	// Staging provides memory of kind HostPinned, the right place for bytes on their way; where
	// nothing can be pinned it refuses with ErrUnavailable, and Host will do.
	Staging() Provider
	// Device names whose memory it is, for people: "cuda 0: NVIDIA H100 80GB HBM3".
	Device() string
}

// Move is a copy under way. It ends once: after Done said true, or Wait returned anything but the
// error of its context, it must not be used any more. One goroutine uses it. With an error the
// bytes of the destination are undefined, and the copy writes them no more. A caller that drops a
// Move cannot know when the copy is over, and so cannot release its leases; nothing else is lost.
type Move interface {
	// Done reports whether the copy is over, without waiting. Over without an error means: every
	// byte is in place, and the CPU and each device see it from now on.
	Done() (bool, error)
	// Wait waits until it is over or ctx ends. In the second case the copy goes on, and the Move is
	// still good.
	Wait(ctx context.Context) error
}

// Mover is how bytes get into and out of a region that the CPU cannot reach; nil where it can.
func (r *Region) Mover() Mover { return r.mover }

// Handle is what the Provider of the region knows it by, nil for regions of this package: for the
// Provider's own code.
func (r *Region) Handle() any { return r.handle }

// DMABuf is a descriptor of a part of the region as a dma-buf, by which other devices reach it
// without the CPU. The caller closes it. off and n are bytes: the part is whole pages of PageSize,
// of the region and what is around it (Direct.Before, Direct.After), where off may be below 0. The
// error wraps ErrUnavailable, and says why, where there is none.
func (r *Region) DMABuf(off int64, n uint64) (fd int, err error) {
	d := &r.direct
	if from := uint64(off) + d.Before; off < 0 && uint64(-off) > d.Before || from > d.Before+r.Len()+d.After ||
		n > d.Before+r.Len()+d.After-from {
		return -1, fmt.Errorf("mem: region %q: a dma-buf of %d bytes from %d on, but there are %d, and %d before and "+
			"%d after them: %w", r.Name(), n, off, r.Len(), d.Before, d.After, ErrBounds)
	}
	if err := r.HasDMABuf(); err != nil {
		return -1, err
	}
	return r.dmabuf(off, n)
}

// AdoptMapping makes a region of memory that a Provider did not allocate but knows how to reach:
// memory of a device that its user has already, or that another process exported. m is as
// Provider.Allocate returns it; its Free is called once, after Close and the last lease.
func AdoptMapping(name string, m Mapping) (*Region, error) {
	switch {
	case m.Size == 0:
		return nil, fmt.Errorf("mem: adopt %q: no bytes", name)
	case m.Bytes != nil && uint64(len(m.Bytes)) != m.Size:
		return nil, fmt.Errorf("mem: adopt %q: %d bytes of a mapping that says it has %d", name, len(m.Bytes), m.Size)
	case m.Bytes == nil && m.Mover == nil:
		return nil, fmt.Errorf("mem: adopt %q: the CPU cannot reach the memory, and nothing moves its bytes", name)
	}
	return newRegion(name, m), nil
}
