package rdma

import (
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/ibvmem"
	"github.com/penstock-io/penstock/mem"
)

// registered is the registration of a region at the port's device, made if there is none.
func (p *Port) registered(r *mem.Region) (*ibvmem.Registration, error) { return p.dev.Registered(r) }

// scratch is where the device puts the routing headers of datagrams that bring nothing else.
func (p *Port) scratch() (ibv.SGE, error) {
	p.scratchOnce.Do(func() {
		if p.scratchRegion, p.scratchErr = mem.Alloc(mem.Options{Name: "routing headers",
			Size: grhLen}); p.scratchErr == nil {
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
