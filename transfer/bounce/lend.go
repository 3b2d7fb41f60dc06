package bounce

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
)

// What a node lends to a peer that wants to reach its memory of devices, and the copies it makes
// for it.

// lending is what one peer was lent.
type lending struct {
	mu     sync.Mutex // guards what follows
	leases [2]*lent   // large, small
	copies int        // requests that are moving bytes
	ended  bool       // the session is
	quiet  chan struct{}
}

// lent is a lease of slots.
type lent struct {
	export Export // nil while it is being made
	region *mem.Region
	slot   uint64 // bytes
	busy   []bool // slots that bytes move to or from
}

// unstageWait is how long the end of a lease waits for a peer to let go of mapped memory; the
// memory is kept from other use until it has.
const unstageWait = time.Second

// Stage answers a request for slots.
func (p *Peer) Stage(q *control.Stage) (control.Body, error) {
	device, done, err := p.session.Device(control.Block{Key: q.Key}, 0)
	if err != nil {
		return nil, fmt.Errorf("transfer: stage: %w", err)
	}
	defer done()
	count := leasedLarge
	if q.Small {
		count = leasedSmall
	}
	l := &lent{slot: p.memory.pools[class(q.Small)].size, busy: make([]bool, count)}
	s := &p.lending
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return nil, path.ErrCanceled
	}
	if s.leases[class(q.Small)] != nil {
		s.mu.Unlock()
		return nil, control.Errorf(control.Exists, "a lease of this size")
	}
	s.leases[class(q.Small)] = l
	s.mu.Unlock()
	mover := device.Region.Mover()
	err = p.makeLease(l, mover)
	s.mu.Lock()
	ended := s.ended
	mine := s.leases[class(q.Small)] == l // otherwise the end of the session has taken it back
	if mine && (err != nil || ended) {
		s.leases[class(q.Small)] = nil
	}
	s.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case ended:
		if mine {
			p.endLease(l)
		}
		return nil, path.ErrCanceled
	}
	name := mover.Device()
	return &control.Staging{Desc: l.export.Desc(), SlotSize: l.slot, Slots: uint32(count),
		Device: name[:min(len(name), control.MaxDevice)]}, nil
}

func (p *Peer) makeLease(l *lent, m mem.Mover) error {
	bytes := l.slot * uint64(len(l.busy))
	if !p.memory.lend(bytes) {
		return control.Errorf(control.Busy, "all %d bytes of staging memory are lent", p.memory.quota)
	}
	r, err := newRegion(m, bytes)
	if err != nil {
		p.memory.unlend(bytes)
		return control.Errorf(control.OverBudget, "%v", err)
	}
	clear(r.All().Bytes()) // of what others left there
	x, err := p.session.Lend(r.All())
	if err != nil {
		p.memory.unlend(bytes)
		return errors.Join(err, r.Close())
	}
	s := &p.lending
	s.mu.Lock()
	l.region, l.export = r, x
	s.mu.Unlock()
	return nil
}

// endLease takes the memory back. Nothing moves to or from it by requests any more.
func (p *Peer) endLease(l *lent) error {
	ctx, cancel := context.WithTimeout(context.Background(), unstageWait)
	defer cancel()
	err := errors.Join(l.export.Revoke(ctx), l.region.Close())
	bytes := l.slot * uint64(len(l.busy))
	free := func() { p.memory.unlend(bytes) }
	select {
	case <-l.region.Unmapped():
		free()
	default: // a peer that hangs has it mapped
		go func() {
			<-l.region.Unmapped()
			free()
		}()
	}
	return err
}

// lease finds a lease by its key. The mutex of the lending is held.
func (s *lending) lease(k path.Key) (int, *lent) {
	for i, l := range s.leases {
		if l != nil && l.export != nil && l.export.Desc().Key == k {
			return i, l
		}
	}
	return 0, nil
}

// Unstage answers a request that ends a lease.
func (p *Peer) Unstage(q *control.Unstage) (control.Body, error) {
	s := &p.lending
	s.mu.Lock()
	i, l := s.lease(q.Lease)
	if l == nil {
		s.mu.Unlock()
		return nil, control.Errorf(control.NotFound, "no such lease")
	}
	for k, busy := range l.busy {
		if busy {
			s.mu.Unlock()
			return nil, control.Errorf(control.Busy, "slot %d of the lease is in use", k)
		}
	}
	s.leases[i] = nil
	s.mu.Unlock()
	if err := p.endLease(l); err != nil {
		return nil, err
	}
	return &control.Empty{}, nil
}

// Place answers a request to copy the bytes of a slot into memory of devices.
func (p *Peer) Place(q *control.Place) (control.Body, error) {
	return p.answer("place", path.Write, q.Lease, q.Slot, q.Blocks)
}

// Fetch answers a request to copy bytes of memory of devices into a slot.
func (p *Peer) Fetch(q *control.Fetch) (control.Body, error) {
	return p.answer("fetch", path.Read, q.Lease, q.Slot, q.Blocks)
}

// answer copies between a slot and device memory, for a peer that has to have the rights wanted; it
// answers when nothing moves any more.
func (p *Peer) answer(verb string, want path.Rights, key path.Key, slot uint32, blocks []control.Block) (control.Body,
	error) {
	s := &p.lending
	s.mu.Lock()
	_, l := s.lease(key)
	var err error
	switch {
	case s.ended:
		err = path.ErrCanceled
	case l == nil:
		err = control.Errorf(control.NotFound, "no such lease")
	case slot >= uint32(len(l.busy)):
		err = control.Errorf(control.BadRequest, "slot %d of %d", slot, len(l.busy))
	case l.busy[slot]:
		err = control.Errorf(control.Busy, "slot %d is in use", slot)
	}
	if err != nil {
		s.mu.Unlock()
		return nil, err
	}
	l.busy[slot] = true
	s.copies++
	p.memory.count(&p.memory.copies, 1)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		p.memory.count(&p.memory.copies, -1)
		l.busy[slot] = false
		if s.copies--; s.copies == 0 && s.ended {
			close(s.quiet)
		}
		s.mu.Unlock()
	}()
	spans := make([]mem.Span, len(blocks))
	var total uint64
	for i, b := range blocks {
		span, done, err := p.session.Device(b, want)
		if err != nil {
			return nil, fmt.Errorf("transfer: %s: block %d: %w", verb, i, err)
		}
		defer done() // a revocation waits for it
		spans[i] = span
		if b.Len > l.slot-total {
			return nil, control.Errorf(control.BadRequest, "%s: more bytes than the %d of a slot", verb, l.slot)
		}
		total += b.Len
	}
	at := mem.Span{Region: l.region, Off: uint64(slot) * l.slot, Len: total}
	if err := moveAll(want == path.Write, at, spans); err != nil {
		return nil, control.Errorf(control.Internal, "%s: %v", verb, err)
	}
	return &control.Empty{}, nil
}

// End begins no more copies for the peer, whose session is lost; the function returned waits for
// those under way and takes back what was lent.
func (p *Peer) End() (finish func()) {
	s := &p.lending
	s.mu.Lock()
	s.ended, s.quiet = true, make(chan struct{})
	if s.copies == 0 {
		close(s.quiet)
	}
	s.mu.Unlock()
	return func() {
		<-s.quiet
		s.mu.Lock()
		var all []*lent
		for i, l := range s.leases {
			if l != nil && l.export != nil { // otherwise the goroutine that makes it gives it back
				all, s.leases[i] = append(all, l), nil
			}
		}
		s.mu.Unlock()
		for _, l := range all {
			p.endLease(l)
		}
	}
}
