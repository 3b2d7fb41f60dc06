package ibvmem

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/mem"
)

// Registration is a whole region that a Table has made known to the device: queue pairs of the
// table's domain may read and write it, and no peer may. It is good until the region is closed and
// the table alone leases it.
type Registration struct {
	region *mem.Region
	lease  mem.Lease
	mr     *ibv.MR
	base   uint64 // address of its first byte, for requests
	lkey   uint32
	hidden bool
	flush  mem.Flusher
}

// SGE is n bytes of the region from off on, for a request. Nothing is checked: the device does.
func (x *Registration) SGE(off uint64, n uint32) ibv.SGE {
	return ibv.SGE{Addr: x.base + off, Length: n, LKey: x.lkey}
}

// Hidden reports whether the CPU does not reach the region.
func (x *Registration) Hidden() bool { return x.hidden }

// Flusher is what the region's device needs before it sees what was received into it, see
// mem.Direct; nil: nothing.
func (x *Registration) Flusher() mem.Flusher { return x.flush }

// Table is the regions that one protection domain knows, each registered once and leased by the
// table. Its methods may be called from any goroutine. Finding one that is there takes no lock.
type Table struct {
	pd  *ibv.PD
	at  *Adapter
	mu  sync.Mutex
	all atomic.Pointer[known] // replaced under mu
}

// known is what a Table has, which does not change.
type known struct {
	list []*Registration
	by   map[*mem.Region]*Registration // nil while the list is short
}

// fewRegions is the length up to which a search of a list is faster than a map.
const fewRegions = 8

func (k *known) find(r *mem.Region) *Registration {
	switch {
	case k == nil:
		return nil
	case k.by != nil:
		return k.by[r]
	}
	for _, x := range k.list {
		if x.region == r {
			return x
		}
	}
	return nil
}

// NewTable makes an empty Table of a domain of the adapter's device, which outlives it.
func (a *Adapter) NewTable(pd *ibv.PD) *Table { return &Table{pd: pd, at: a} }

// Find is the registration of a region, made if there is none. Memory that the device cannot reach
// is ErrNoWay, a region that was closed before it was registered mem.ErrClosed; after an error the
// table is as it was, and asking again tries again.
func (t *Table) Find(r *mem.Region) (*Registration, error) {
	if x := t.all.Load().find(r); x != nil {
		return x, nil
	}
	return t.add(r)
}

func (t *Table) add(r *mem.Region) (*Registration, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.all.Load()
	if x := now.find(r); x != nil { // another goroutine was faster
		return x, nil
	}
	x, err := t.register(r)
	if err != nil {
		return nil, err
	}
	var list []*Registration
	if now != nil {
		list = slices.DeleteFunc(slices.Clone(now.list), (*Registration).swept)
	}
	list = append(list, x)
	next := &known{list: list}
	if len(list) > fewRegions {
		next.by = make(map[*mem.Region]*Registration, len(list))
		for _, x := range list {
			next.by[x.region] = x
		}
	}
	t.all.Store(next)
	return x, nil
}

func (t *Table) register(r *mem.Region) (*Registration, error) {
	lease, err := r.Lease()
	if err != nil {
		return nil, err
	}
	access := ibv.LocalWrite
	if r.ReadOnly() {
		access = 0
	}
	mr, err := t.at.Register(t.pd, r.All(), access)
	if err != nil {
		lease.Release()
		return nil, fmt.Errorf("registering region %q of %d bytes: %w", r.Name(), r.Len(), err)
	}
	return &Registration{region: r, lease: lease, mr: mr, base: mr.Addr(), lkey: mr.LKey(),
		hidden: r.All().Bytes() == nil, flush: r.Direct().Flush}, nil
}

// swept gives a region up that was closed and that the table alone keeps mapped: no slot of it is
// under way. One that the device does not let go stays, since it may still be written.
func (x *Registration) swept() bool {
	if !x.region.Closed() || x.region.Leases() > 1 || x.mr.Close() != nil {
		return false
	}
	x.lease.Release()
	return true
}

// Close gives all of them up. No queue pair is left that could reach them.
func (t *Table) Close() (err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.all.Swap(nil); now != nil {
		for _, x := range now.list {
			err = errors.Join(err, x.mr.Close())
			x.lease.Release()
		}
	}
	return err
}
