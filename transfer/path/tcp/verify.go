package tcp

import "github.com/penstock-io/penstock/internal/invariants"

// tally is what verify finds of one operation. It stays, so that looking allocates nothing.
type tally struct{ queued, free, held, done, flying int }

// verify demands that what is counted in two places agrees: slots of operations and the queues that
// they wait in, frames and blocks under way. Builds with -tags invariants look after each call; the
// first disagreement panics, near to what made it.
func (c *core) verify() {
	if c.err != nil {
		return // fail gave everything up at once
	}
	if c.tallies == nil {
		c.tallies = make([]tally, len(c.ops))
	}
	clear(c.tallies)
	each := func(q *fifo, add func(t *tally)) {
		for i := range q.n {
			add(&c.tallies[q.v[(q.head+i)%len(q.v)]])
		}
	}
	each(&c.small, func(t *tally) { t.queued++ })
	each(&c.big, func(t *tally) { t.queued++ })
	each(&c.short, func(t *tally) { t.queued++ })
	each(&c.held, func(t *tally) { t.held++ })
	each(&c.done, func(t *tally) { t.done++ })
	for _, k := range c.free {
		c.tallies[k].free++
	}
	entries, requests := 0, 0
	for _, s := range c.streams {
		o := &s.out
		for i := range o.fn {
			c.tallies[o.flight[(o.fhead+i)%flightSize].op].flying++
		}
	}
	for k := range c.ops {
		p, t := &c.ops[k], &c.tallies[k]
		over := p.phase == phaseFree || p.phase == phaseDone || p.phase == phaseHeld
		switch {
		case t.queued != count(p.queued):
			invariants.Broken("tcp: operation %d is in %d queues, it says %t", k, t.queued, p.queued)
		case t.free != count(p.phase == phaseFree) || t.held != count(p.phase == phaseHeld) ||
			t.done != count(p.phase == phaseDone):
			invariants.Broken("tcp: operation %d in phase %d is free %d times, held %d times, done %d times", k,
				p.phase, t.free, t.held, t.done)
		case t.flying != p.flying:
			invariants.Broken("tcp: operation %d in phase %d counts %d frames under way, there are %d", k, p.phase,
				p.flying, t.flying)
		case over && (p.queued || p.flying > 0 || p.entries > 0 || p.requests > 0):
			invariants.Broken("tcp: operation %d is over, and waits for something: queued %t, %d frames, %d blocks, "+
				"%d requests", k, p.queued, p.flying, p.entries, p.requests)
		}
		entries += p.entries
		requests += p.requests
	}
	switch {
	case c.requests != requests || c.requests > c.window:
		invariants.Broken("tcp: %d requests are counted as open, %d are, at most %d may be", c.requests, requests,
			c.window)
	case c.wanted != entries || c.wanted > maxRequested:
		invariants.Broken("tcp: %d blocks are counted as requested, %d are, at most %d may be", c.wanted, entries,
			maxRequested)
	}
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}
