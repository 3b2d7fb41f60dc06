package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
)

// Staging, second part: what a node lends to a peer that wants to reach its device memory, and the copies it makes for it.

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
	export *Export // nil while it is being made
	region *mem.Region
	slot   uint64 // bytes
	busy   []bool // slots that bytes move to or from
}

// unstageWait is how long the end of a lease waits for a peer to let go of mapped memory; the memory is kept from other use
// until it has.
const unstageWait = time.Second

// answerStage lends slots.
func (p *Peer) answerStage(q *control.Stage) (control.Body, error) {
	if err := p.mayAny(identity.Read | identity.Write); err != nil {
		return nil, err
	}
	x, done, err := p.deviceExport(q.Key)
	if err != nil {
		return nil, fmt.Errorf("transfer: stage: %w", err)
	}
	defer done()
	n := p.node
	count := leasedLarge
	if q.Small {
		count = leasedSmall
	}
	l := &lent{slot: n.staging.pools[class(q.Small)].size, busy: make([]bool, count)}
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
	mover := x.Span().Region.Mover()
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
	device := mover.Device()
	return &control.Staging{Desc: l.export.Desc(), SlotSize: l.slot, Slots: uint32(count), Device: device[:min(len(device), control.MaxDevice)]}, nil
}

func (p *Peer) makeLease(l *lent, m mem.Mover) error {
	n := p.node
	bytes := l.slot * uint64(len(l.busy))
	if !n.staging.lend(bytes) {
		return control.Errorf(control.Busy, "all %d bytes of staging memory are lent", n.staging.quota)
	}
	r, err := stagingRegion(m, bytes)
	if err != nil {
		n.staging.unlend(bytes)
		return control.Errorf(control.OverBudget, "%v", err)
	}
	clear(r.All().Bytes()) // of what others left there
	x, err := n.Export(r.All(), ExportOptions{Rights: path.Read | path.Write, Peer: p})
	if err != nil {
		n.staging.unlend(bytes)
		return errors.Join(err, r.Close())
	}
	s := &p.lending
	s.mu.Lock()
	l.region, l.export = r, x
	s.mu.Unlock()
	return nil
}

// deviceExport finds an export of device memory for the peer and keeps it until done is called.
func (p *Peer) deviceExport(k path.Key) (x *Export, done func(), err error) {
	p.node.mu.Lock()
	x = p.node.byKey[k]
	p.node.mu.Unlock()
	done, ok := x.use()
	_, have, err := p.reach().Lookup(k)
	switch {
	case err != nil:
	case have == 0:
		err = path.ErrRights
	case !ok:
		err = path.ErrRevoked
	case !x.Desc().Device:
		err = control.Errorf(control.BadRequest, "the export is not memory of a device: move its bytes by a path")
	default:
		return x, done, nil
	}
	if ok {
		done()
	}
	return nil, nil, err
}

// endLease takes the memory back. Nothing moves to or from it by requests any more.
func (p *Peer) endLease(l *lent) error {
	ctx, cancel := context.WithTimeout(context.Background(), unstageWait)
	defer cancel()
	err := l.export.Revoke(ctx)
	if cerr := l.region.Close(); cerr != nil {
		p.node.log.Warn("staging memory", "error", cerr)
	}
	bytes := l.slot * uint64(len(l.busy))
	free := func() { p.node.staging.unlend(bytes) }
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
		if l != nil && l.export != nil && l.export.Key() == k {
			return i, l
		}
	}
	return 0, nil
}

// answerUnstage ends a lease.
func (p *Peer) answerUnstage(q *control.Unstage) (control.Body, error) {
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

// answerMove copies between a slot and device memory; it answers when nothing moves any more.
func (p *Peer) answerMove(store bool, key path.Key, slot uint32, blocks []control.Block) (control.Body, error) {
	verb, want, right := "fetch", path.Read, identity.Read
	if store {
		verb, want, right = "place", path.Write, identity.Write
	}
	if err := p.may(right); err != nil {
		return nil, err
	}
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
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		l.busy[slot] = false
		if s.copies--; s.copies == 0 && s.ended {
			close(s.quiet)
		}
		s.mu.Unlock()
	}()
	spans := make([]mem.Span, len(blocks))
	var total uint64
	for i, b := range blocks {
		_, done, err := p.deviceExport(b.Key)
		if err != nil {
			return nil, fmt.Errorf("transfer: %s: block %d: %w", verb, i, err)
		}
		defer done() // a revocation waits for it
		if spans[i], err = p.reach().Locate(b.Key, b.Off, b.Len, want); err != nil {
			return nil, fmt.Errorf("transfer: %s: block %d: %w", verb, i, err)
		}
		if b.Len > l.slot-total {
			return nil, control.Errorf(control.BadRequest, "%s: more bytes than the %d of a slot", verb, l.slot)
		}
		total += b.Len
	}
	at := mem.Span{Region: l.region, Off: uint64(slot) * l.slot, Len: total}
	if err := moveAll(store, at, spans); err != nil {
		return nil, control.Errorf(control.Internal, "%s: %v", verb, err)
	}
	return &control.Empty{}, nil
}

// endLending begins no more copies for the peer; the function returned waits for those under way and takes back what was lent.
func (p *Peer) endLending() (finish func()) {
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
