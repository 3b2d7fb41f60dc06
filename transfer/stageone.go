package transfer

import (
	"context"
	"errors"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/transfer/state"
)

// A transfer of one piece whose bytes the CPU copies, as those of another process, is staged by the goroutine that begins it: to hand it over takes
// longer than a small piece.

// maxLone is the most bytes of such a transfer: their copy holds the caller.
const maxLone = 1 << 20

// lone is the only piece of such a transfer, with its slot; nil for others, and where something would have to be waited for.
func (s *stager) lone() *piece {
	t, p := s.t, s.p
	if t.bytes > maxLone || t.reach != reachDirect || t.stream != 0 || t.digest != nil || t.canceled() || len(s.copies) > s.room || s.at != (state.Cursor{}) || p.unsettled() {
		return nil
	}
	if _, ok := p.directPaths(t); ok {
		return nil
	}
	for _, e := range t.exports {
		if e.Device {
			return nil
		}
	}
	m := moverOf(s.copies[0].Local)
	for _, c := range s.copies {
		if x := moverOf(c.Local); x == nil || x != m {
			return nil
		}
	}
	if m.Staging() != mem.Pages { // a device copies, and is waited for
		return nil
	}
	pool := &p.node.staging.pools[class(s.small)]
	if t.bytes > pool.size {
		return nil
	}
	slot := pool.ready(m)
	if slot == nil {
		return nil
	}
	s.turns <- struct{}{}
	pc := &piece{at: s.at, local: m, slot: slot}
	s.cut(pc, pool.size)
	return pc
}

// carryHere moves the only piece of a transfer, and goes on in another goroutine where the path takes its time.
func (s *stager) carryHere(pc *piece) {
	s.begun()
	put := s.t.kind == path.Put
	if put {
		if err := s.local(pc, false); err != nil {
			s.ended(pc, err)
			s.finish(nil, s.over())
			return
		}
	}
	c := s.post(pc)
	rest := func() {
		err := s.await(pc, c)
		if err == nil && !put {
			err = s.local(pc, true)
		}
		s.ended(pc, err)
		var last *lane
		if err = s.over(); err == nil {
			last, err = s.carried()
		}
		s.finish(last, err)
	}
	if c.ended() {
		rest()
		return
	}
	go rest()
}

// begun notes when the first piece begins.
func (s *stager) begun() {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	s.t.explain.Times.lap(&s.t.explain.Times.Open, clock())
}

// over notes when the last piece has ended, and returns why not all are in place.
func (s *stager) over() error {
	t := s.t
	s.mu.Lock()
	defer s.mu.Unlock()
	t.mu.Lock()
	t.explain.Pieces = int32(s.ops)
	t.explain.Times.lap(&t.explain.Times.Transfer, clock())
	t.mu.Unlock()
	if s.err == nil {
		s.err = s.ctx.Err()
	}
	return s.err
}

// carried leaves a transfer whose pieces are in place with its notification, and chooses its last lane, which is for that: no memory is a part of it.
func (s *stager) carried() (*lane, error) {
	t := s.t
	t.exports, t.devices, t.reach = nil, nil, reachCarried
	t.m.Carried()
	if !s.p.unsettled() {
		if ln := s.p.quick(t); ln != nil {
			return ln, nil
		}
	}
	return s.p.choose(s.ctx, t, nil, t.allowed)
}

// finish hands the transfer to its lane, or ends it with the error for which it has none.
func (s *stager) finish(direct *lane, err error) {
	t, p := s.t, s.p
	defer p.node.staging.end()
	defer s.abort()
	switch lost := p.Err(); {
	case err == nil:
	case lost != nil && !t.canceled() && (errors.Is(err, context.Canceled) || errors.Is(err, path.ErrCanceled)):
		err = lost // that is why its pieces were canceled
	case errors.Is(err, context.Canceled):
		err = path.ErrCanceled
	}
	if err != nil {
		t.complete(err)
		return
	}
	p.launch(t, direct)
}

// ready takes a slot that is free, and made for the mover's device; nil where there is none.
func (s *slots) ready(m mem.Mover) *stagingSlot {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.free); n > 0 && len(s.waiting) == 0 && !s.closed {
		x := s.free[n-1]
		if x.device == m.Device() {
			s.free = s.free[:n-1]
			s.out++
			return x
		}
	}
	return nil
}
