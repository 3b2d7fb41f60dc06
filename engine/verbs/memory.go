package verbs

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/ibvmem"
	"github.com/penstock-io/penstock/mem"
)

// registered is a region that a port's device can reach: its own queue pairs may read and write it, and no peer may.
type registered struct {
	region *mem.Region
	lease  mem.Lease
	mr     *ibv.MR
	base   uint64 // address of its first byte, for requests
	lkey   uint32
	far    bool        // the processor does not reach it
	flush  mem.Flusher // what its device needs to see what was received; nil: nothing
}

// registrations are the regions that a port has made known to its device, each once. Any goroutine may use them.
type registrations struct {
	pd  *ibv.PD
	at  *ibvmem.Adapter
	mu  sync.Mutex
	all atomic.Pointer[[]*registered] // replaced under mu
}

// find is the registration of a region, made if there is none. It costs nothing but a look at a short list in steady state.
func (s *registrations) find(r *mem.Region) (*registered, error) {
	if l := s.all.Load(); l != nil {
		for _, x := range *l {
			if x.region == r {
				return x, nil
			}
		}
	}
	return s.add(r)
}

func (s *registrations) add(r *mem.Region) (_ *registered, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var have []*registered
	if l := s.all.Load(); l != nil {
		for _, x := range *l {
			if x.region == r {
				return x, nil
			}
		}
		have = s.swept(*l)
	}
	x := &registered{region: r}
	if x.lease, err = r.Lease(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			x.lease.Release()
		}
	}()
	access := ibv.LocalWrite
	if r.ReadOnly() {
		access = 0
	}
	if x.mr, err = s.at.Register(s.pd, r.All(), access); err != nil {
		return nil, fmt.Errorf("verbs: registering region %q of %d bytes: %w: %w", r.Name(), r.Len(), refused(err), err)
	}
	x.base, x.lkey = x.mr.Addr(), x.mr.LKey()
	x.far, x.flush = r.All().Bytes() == nil, r.Direct().Flush
	have = append(have, x)
	s.all.Store(&have)
	return x, nil
}

// refused is the engine's error for memory that cannot be registered.
func refused(err error) error {
	if errors.Is(err, ibvmem.ErrNoWay) {
		return engine.ErrUnsupported
	}
	return engine.ErrUnavailable
}

// swept gives up regions that were closed and that nobody but this list keeps mapped: no slot of them is under way.
func (s *registrations) swept(l []*registered) []*registered {
	return slices.DeleteFunc(slices.Clone(l), func(x *registered) bool {
		if !x.region.Closed() || x.region.Leases() > 1 {
			return false
		}
		x.free()
		return true
	})
}

func (x *registered) free() error {
	err := x.mr.Close()
	x.lease.Release()
	return err
}

// scratch is where the device puts the routing headers of datagrams that bring nothing else.
func (p *Port) scratch() (ibv.SGE, error) {
	p.scratchOnce.Do(func() {
		if p.scratchRegion, p.scratchErr = mem.Alloc(mem.Options{Name: "routing headers", Size: grhLen}); p.scratchErr == nil {
			_, p.scratchErr = p.regs.find(p.scratchRegion)
		}
	})
	if p.scratchErr != nil {
		return ibv.SGE{}, p.scratchErr
	}
	r, err := p.regs.find(p.scratchRegion)
	if err != nil {
		return ibv.SGE{}, err
	}
	return ibv.SGE{Addr: r.base, Length: grhLen, LKey: r.lkey}, nil
}

// close gives up all of them. No queue pair is left that could reach them.
func (s *registrations) close() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.all.Swap(nil); l != nil {
		for _, x := range *l {
			err = errors.Join(err, x.free())
		}
	}
	return err
}
