package gpumem

import (
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
)

// Adopt makes a region of memory of the Provider's context that exists already: of kind mem.Device,
// or mem.HostPinned where it is the host's. The memory must stay open until release is called,
// which happens once, after Close and the last lease and the copies that are under way. release may
// be nil. Memory is behind one region at a time.
func (p *Provider) Adopt(name string, m *gpu.Memory, release func() error) (*mem.Region, error) {
	if m == nil || m.Context() != p.c {
		return nil, fmt.Errorf("gpumem: %s: adopt %q: %w: it is no memory of this context", p.o.Name, name,
			gpu.ErrArgument)
	}
	if release == nil {
		release = func() error { return nil }
	}
	if err := p.enter(m, &record{name: name}); err != nil {
		return nil, err
	}
	k := mem.Device
	if m.Kind() != gpu.DeviceMemory {
		k = mem.HostPinned
	}
	r, err := mem.AdoptMapping(name, p.mapping(m, k, sys.PageSize, release))
	if err != nil {
		p.leave(m)
		return nil, err
	}
	return r, nil
}

// AdoptAddress makes a region of size bytes of device memory from addr on, which another library of
// this process has allocated on this device: a tensor of PyTorch, say. It asks the driver what is
// there; see gpu.Context.AdoptAddress for what it refuses. The other library keeps the memory until
// release is called, as with Adopt. Where a runtime knows no addresses the error wraps
// mem.ErrUnavailable.
func (p *Provider) AdoptAddress(name string, addr, size uint64, release func() error) (*mem.Region, error) {
	m, err := p.c.AdoptAddress(name, addr, size)
	if err != nil {
		return nil, unavailable(err)
	}
	r, err := p.Adopt(name, m, func() error {
		err := m.Close() // before the owner gives it back
		if release != nil {
			err = errors.Join(err, release())
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return r, nil
}
