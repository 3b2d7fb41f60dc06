package mem

import "fmt"

// Direct is how devices other than their own (network cards) reach the bytes of a region that the
// CPU cannot reach. The Provider of the region fills it; its zero value says that nothing is known,
// which is no way.
type Direct struct {
	// Addr is the address of the first byte as drivers of other devices know it, by which they find
	// the memory where the kernel has a module for that (NVIDIA: nvidia-peermem); 0: there is none.
	Addr uint64
	// Bus is the PCI address of the device whose memory it is ("0000:65:00.0"), for finding what is
	// missing; "": not known.
	Bus string
	// NoDMABuf is why Mapping.DMABuf is nil: what is missing, and how to get it.
	NoDMABuf error
	// Before and After are bytes of the same allocation on both sides of the region, which a
	// dma-buf may have besides: it consists of whole pages, and memory that was adopted begins and
	// ends anywhere. What is registered with a device is the region's part alone.
	Before, After uint64
	// Flush is needed after others wrote the memory, see Flusher; nil: what they wrote is seen in
	// the order in which it came.
	Flush Flusher
}

// Flusher makes writes of other devices visible to the device that has the memory. Regions of one
// device share one, which is comparable.
type Flusher interface {
	// Flush returns when everything that was in the memory's address space before, by the word of
	// the writing device, is seen by work that the owning device begins from now on. It takes
	// microseconds, may be called from any goroutine, and does not allocate.
	Flush() error
}

// Direct is how devices other than its own reach the region.
func (r *Region) Direct() Direct { return r.direct }

// HasDMABuf is nil where DMABuf can be asked for; else the error wraps ErrUnavailable and says what
// is missing.
func (r *Region) HasDMABuf() error {
	switch {
	case r.dmabuf != nil:
		return nil
	case r.direct.NoDMABuf != nil:
		return fmt.Errorf("mem: region %q has no dma-buf: %w: %w", r.name, ErrUnavailable, r.direct.NoDMABuf)
	}
	return fmt.Errorf("mem: region %q: kind %s has no dma-buf: %w", r.name, r.kind, ErrUnavailable)
}
