package ibverbs

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/ibvmem"
	"github.com/penstock-io/penstock/mem"
)

// keyed is a region that the device of a port may read and write.
type keyed struct {
	lease mem.Lease
	mr    *ibv.MR
}

// keys are the regions of a port, each registered once. Looking one up that is there takes no lock.
type keys struct {
	pd *ibv.PD
	at *ibvmem.Adapter
	mu sync.Mutex
	by atomic.Pointer[map[*mem.Region]keyed] // replaced under mu
}

// of is the registration of a region, made if there is none.
func (k *keys) of(r *mem.Region) (*ibv.MR, error) {
	if m := k.by.Load(); m != nil {
		if x, ok := (*m)[r]; ok {
			return x.mr, nil
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	next := map[*mem.Region]keyed{}
	if m := k.by.Load(); m != nil {
		if x, ok := (*m)[r]; ok {
			return x.mr, nil
		}
		for old, x := range *m {
			if old.Closed() && old.Leases() == 1 { // nobody but this table: no slot of it is under way
				if x.mr.Close() == nil {
					x.lease.Release()
					continue
				}
			}
			next[old] = x
		}
	}
	lease, err := r.Lease()
	if err != nil {
		return nil, err
	}
	access := ibv.LocalWrite
	if r.ReadOnly() {
		access = 0
	}
	mr, err := k.at.Register(k.pd, r.All(), access)
	if err != nil {
		lease.Release()
		kind := engine.ErrUnavailable
		if errors.Is(err, ibvmem.ErrNoWay) {
			kind = engine.ErrUnsupported
		}
		err = fmt.Errorf("ibverbs: region %q of %d bytes: %w: %w", r.Name(), r.Len(), kind, err)
	} else {
		next[r] = keyed{lease, mr}
	}
	k.by.Store(&next)
	return mr, err
}

// close ends all registrations; no queue pair is left.
func (k *keys) close() (err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if m := k.by.Swap(nil); m != nil {
		for _, x := range *m {
			err = errors.Join(err, x.mr.Close())
			x.lease.Release()
		}
	}
	return err
}
