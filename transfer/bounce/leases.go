package bounce

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
)

// The slots that a peer lends to this node.

const (
	// leaseLinger is how long an unused lease is kept.
	leaseLinger = 2 * time.Second
	// leaseRetry is waited first when a peer has lent everything, then twice as long each time up
	// to leaseRetryMost.
	leaseRetry     = 5 * time.Millisecond
	leaseRetryMost = 250 * time.Millisecond
)

// leased is what one peer has lent to this node.
type leased struct {
	mu     sync.Mutex // guards what follows
	leases [2]*lease  // large, small; nil: none
}

// lease is slots of the peer: the first transfer that needs one asks for it, and the node gives it
// back unused after leaseLinger.
type lease struct {
	key   path.Key      // that it was asked for with
	ready chan struct{} // closed when it is known what became of it
	err   error
	l     control.Staging
	free  chan uint32 // slots
	stop  func()      // ends the asking

	users  int         // guarded by leased
	linger *time.Timer // guarded by leased
}

// leasedSlot is a slot of a lease. It is the caller's until give.
type leasedSlot struct {
	of   *lease
	slot uint32
}

// off is where in the lease's export the slot begins.
func (x leasedSlot) off() uint64 { return uint64(x.slot) * x.of.l.SlotSize }

// take waits for a slot of the peer. key names the export that it is for.
func (p *Peer) take(ctx context.Context, small bool, key path.Key) (leasedSlot, error) {
	s := &p.leased
	for {
		s.mu.Lock()
		l := s.leases[class(small)]
		if l == nil {
			l = &lease{key: key, ready: make(chan struct{}), free: make(chan uint32, control.MaxSlots)}
			if err := p.beginLease(l, small); err != nil {
				s.mu.Unlock()
				return leasedSlot{}, err
			}
			s.leases[class(small)] = l
		}
		p.memory.count(&p.memory.users, 1)
		if l.users++; l.linger != nil {
			l.linger.Stop()
			l.linger = nil
		}
		s.mu.Unlock()
		select {
		case <-l.ready:
		case <-ctx.Done():
			p.leaveLease(l, small)
			return leasedSlot{}, ctx.Err()
		}
		if l.err != nil {
			p.leaveLease(l, small)
			switch {
			case ctx.Err() != nil:
				return leasedSlot{}, ctx.Err()
			case l.key == key && l.err != path.ErrCanceled:
				return leasedSlot{}, l.err
			}
			continue // the request was another caller's, with another key or canceled: try again
		}
		select {
		case k := <-l.free:
			return leasedSlot{l, k}, nil
		case <-ctx.Done():
			p.leaveLease(l, small)
			return leasedSlot{}, ctx.Err()
		}
	}
}

// give gives a slot back. Nothing moves to or from it any more.
func (p *Peer) give(x leasedSlot, small bool) {
	x.of.free <- x.slot
	p.leaveLease(x.of, small)
}

// leaveLease ends one use.
func (p *Peer) leaveLease(l *lease, small bool) {
	s := &p.leased
	p.memory.count(&p.memory.users, -1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.users--; l.users > 0 || s.leases[class(small)] != l {
		return
	}
	select {
	case <-l.ready:
		p.lingerLease(l, small)
	default:
		l.stop()
	}
}

// lingerLease gives an unused lease back after leaseLinger. The mutex is held.
func (p *Peer) lingerLease(l *lease, small bool) {
	s := &p.leased
	if l.err != nil || p.ctx.Err() != nil {
		return
	}
	l.linger = time.AfterFunc(leaseLinger, func() {
		s.mu.Lock()
		if l.users > 0 || s.leases[class(small)] != l {
			s.mu.Unlock()
			return
		}
		s.leases[class(small)] = nil
		s.mu.Unlock()
		p.session.Ask(&control.Unstage{Lease: l.l.Desc.Key}) // the session's end gives it back otherwise
	})
}

// beginLease asks for a lease on a goroutine of its own. The mutex of leased is held.
func (p *Peer) beginLease(l *lease, small bool) error {
	if p.ctx.Err() != nil {
		return context.Cause(p.ctx)
	}
	if err := p.memory.begin(); err != nil { // Memory.Close waits for the goroutine
		return err
	}
	ctx, stop := context.WithCancel(p.ctx)
	l.stop = stop
	go func() {
		defer p.memory.running.Done()
		defer stop()
		a, err := p.askLease(ctx, l.key, small)
		s := &p.leased
		s.mu.Lock()
		defer s.mu.Unlock()
		l.l, l.err = a, err
		if err != nil {
			s.leases[class(small)] = nil
		} else {
			for k := range a.Slots {
				l.free <- k
			}
			if l.users == 0 {
				p.lingerLease(l, small)
			}
		}
		close(l.ready)
	}()
	return nil
}

// askLease asks until there is something to lend, or ctx ends. A request that was sent is waited
// for in any case, so that no lease is forgotten.
func (p *Peer) askLease(ctx context.Context, key path.Key, small bool) (control.Staging, error) {
	wait := leaseRetry
	for {
		if ctx.Err() != nil {
			return control.Staging{}, path.ErrCanceled
		}
		r, err := p.session.Ask(&control.Stage{Key: key, Small: small})
		if err == nil {
			a, err := control.Parse[control.Staging](r.Body)
			if err == nil && (a.Desc.Size < a.SlotSize*uint64(a.Slots) || a.Desc.Device) {
				err = fmt.Errorf("transfer: the peer lends %d slots of %d bytes in %d bytes: %w", a.Slots, a.SlotSize,
					a.Desc.Size, path.ErrProtocol)
			}
			return a, err
		}
		// The second: the end of the lease before has not been worked off there.
		if !errors.Is(err, control.Busy) && !errors.Is(err, control.Exists) {
			return control.Staging{}, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		wait = min(2*wait, leaseRetryMost)
	}
}
