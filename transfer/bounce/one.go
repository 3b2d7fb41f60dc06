package bounce

import (
	"context"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/state"
)

// Work of one piece whose bytes the CPU copies, as those of another process, is carried by the
// goroutine that begins it: to hand it over takes longer than a small piece.

// maxOne is the most bytes of such work: their copy holds the caller.
const maxOne = 1 << 20

// CarryOne carries work of one piece in the goroutine of the caller, and calls end with what Carry
// would return: before it returns, or in another goroutine where the path takes its time. It
// returns false, and has done nothing, for other work, and where something would have to be waited
// for.
func (p *Peer) CarryOne(ctx context.Context, w Work, c Carrier, end func(error)) bool {
	if w.Bytes > maxOne || len(w.Far) > 0 || len(w.Copies) > w.Blocks || w.At != (state.Cursor{}) || ctx.Err() != nil {
		return false
	}
	m := Mover(w.Copies[0].Local)
	for _, c := range w.Copies {
		x := Mover(c.Local)
		if x == nil || x.Device() != m.Device() {
			return false
		}
		if x.Staging() != mem.Pages { // a device copies, and is waited for
			return false
		}
	}
	s := p.carrying(ctx, w, c)
	pool := &p.memory.pools[class(s.small)]
	var slot *slot
	if w.Bytes <= pool.size && p.memory.begin() == nil {
		if slot = pool.ready(m); slot == nil {
			p.memory.running.Done()
		}
	}
	if slot == nil {
		s.abort()
		return false
	}
	s.turns <- struct{}{}
	pc := &Piece{local: m, slot: slot}
	s.cut(pc, pool.size)
	over := func(err error) {
		s.end(pc, err)
		err = s.result()
		s.abort()
		p.memory.running.Done()
		end(err)
	}
	put := w.Kind == path.Put
	if put {
		if err := s.local(pc, false); err != nil {
			over(err)
			return true
		}
	}
	moving := c.Move(pc)
	rest := func() {
		err := moving.Wait(s.ctx)
		if err == nil && !put {
			err = s.local(pc, true)
		}
		over(err)
	}
	if moving.Ended() {
		rest()
	} else {
		go rest()
	}
	return true
}

// ready takes a slot that is free, and made for the mover's device; nil where there is none.
func (s *slots) ready(m mem.Mover) *slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.free); n > 0 && len(s.waiting) == 0 {
		x := s.free[n-1]
		if x.device == m.Device() {
			s.free = s.free[:n-1]
			return x
		}
	}
	return nil
}
