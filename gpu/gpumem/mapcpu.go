package gpumem

import (
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
)

// whyNotMapped is what stands in the way on cards.
const whyNotMapped = "NVIDIA's open kernel modules let the CPU map dma-bufs of integrated devices only; on a card it " +
	"takes the module gdrdrv of GDRCopy, which " +
	"this build does not use: copy (Region.Mover)"

// MapCPU maps device memory for the CPU, past the driver's copies: good for a few bytes that must
// arrive soon, since reads of a card's memory are slow. It asks the kernel to map the memory's
// dma-buf. Where there is none, or the kernel does not map it, the error wraps mem.ErrUnavailable
// and says what is missing.
//
// The result is a region with the same bytes as r, and with a lease on r until it is closed. A
// write is seen by work that is put into a stream after it, and what the device wrote by reads
// after the wait for that work; a running kernel is promised nothing. The bytes can go away with
// the device: touch them with mem.CopyGuarded. The driver's own copies of r are synchronous from
// here on, as of any memory with a dma-buf.
func (p *Provider) MapCPU(r *mem.Region) (*mem.Region, error) {
	l, err := r.Lease()
	if err != nil {
		return nil, err
	}
	x, err := p.mapCPU(r)
	if err == nil {
		unmap := x.Free
		x.Free = func() error {
			err := unmap()
			l.Release()
			return err
		}
		var c *mem.Region
		if c, err = mem.AdoptMapping(r.Name()+" for the CPU", x); err == nil {
			return c, nil
		}
		err = errors.Join(err, unmap())
	}
	l.Release()
	return nil, fmt.Errorf("gpumem: %s: map region %q for the CPU: %w", p.o.Name, r.Name(), err)
}

func (p *Provider) mapCPU(r *mem.Region) (mem.Mapping, error) {
	m, known := p.of(r)
	switch {
	case known == nil:
		return mem.Mapping{}, fmt.Errorf("%w: it is not of this provider", gpu.ErrArgument)
	case r.Mover() == nil:
		return mem.Mapping{}, fmt.Errorf("%w: the CPU reaches it already: use its bytes", gpu.ErrArgument)
	}
	fd, err := m.ExportDMABuf(0, m.Size())
	if err != nil {
		return mem.Mapping{}, unavailable(err)
	}
	b, err := sys.Mmap(fd, 0, int(m.Size()), sys.ProtRead|sys.ProtWrite, sys.MapShared)
	err = errors.Join(err, sys.Close(fd)) // a mapping keeps the dma-buf
	if err != nil {
		if b != nil {
			err = errors.Join(err, sys.Munmap(b))
		}
		return mem.Mapping{}, fmt.Errorf("%w: %w: %s", mem.ErrUnavailable, err, whyNotMapped)
	}
	return mem.Mapping{Kind: mem.Device, Bytes: b, Size: m.Size(), PageSize: r.PageSize(), FD: -1, NUMANode: -1,
		Present: true, Handle: m,
		Note: "device memory mapped for the CPU", Free: func() error { return sys.Munmap(b) }}, nil
}
