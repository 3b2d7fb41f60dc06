package rdma

import (
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/ibvmem"
	"github.com/penstock-io/penstock/mem"
)

// registered is the registration of a region at the port's device, made if there is none. Any goroutine may ask.
func (p *Port) registered(r *mem.Region) (*ibvmem.Registration, error) {
	x, err := p.regs.Find(r)
	if err != nil {
		return nil, fmt.Errorf("rdma: %w: %w", refused(err), err)
	}
	return x, nil
}

// refused is the engine's error for memory that cannot be registered.
func refused(err error) error {
	if errors.Is(err, ibvmem.ErrNoWay) {
		return engine.ErrUnsupported
	}
	return engine.ErrUnavailable
}

// scratch is where the device puts the routing headers of datagrams that bring nothing else.
func (p *Port) scratch() (ibv.SGE, error) {
	p.scratchOnce.Do(func() {
		if p.scratchRegion, p.scratchErr = mem.Alloc(mem.Options{Name: "routing headers", Size: grhLen}); p.scratchErr == nil {
			_, p.scratchErr = p.registered(p.scratchRegion)
		}
	})
	if p.scratchErr != nil {
		return ibv.SGE{}, p.scratchErr
	}
	r, err := p.registered(p.scratchRegion)
	if err != nil {
		return ibv.SGE{}, err
	}
	return r.SGE(0, grhLen), nil
}
