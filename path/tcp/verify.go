package tcp

import "github.com/penstock-io/penstock/internal/invariants"

// verify demands that what is counted in two places agrees: slots of operations and the queues that they wait in, frames and blocks under
// way. Builds with -tags invariants look after each call; the first disagreement panics, near to what made it.
func (c *core) verify() {
	if c.err != nil {
		return // fail gave everything up at once
	}
	insist := invariants.Insist
	queued, held, done := make([]int, len(c.ops)), make([]int, len(c.ops)), make([]int, len(c.ops))
	for _, q := range []struct {
		q     *fifo
		count []int
	}{{&c.small, queued}, {&c.big, queued}, {&c.short, queued}, {&c.held, held}, {&c.done, done}} {
		for i := range q.q.n {
			q.count[q.q.v[(q.q.head+i)%len(q.q.v)]]++
		}
	}
	free, flying := make([]int, len(c.ops)), make([]int, len(c.ops))
	for _, k := range c.free {
		free[k]++
	}
	probes := 0
	for _, s := range c.streams {
		o := &s.out
		for i := range o.fn {
			if f := &o.flight[(o.fhead+i)%flightSize]; f.op == probeSlot {
				probes++
			} else {
				flying[f.op]++
			}
		}
	}
	entries := 0
	for k := range c.ops {
		p := &c.ops[k]
		want := 0
		if p.queued {
			want = 1
		}
		insist(queued[k] == want, "tcp: operation %d is in %d queues, it says %d", k, queued[k], want)
		insist(free[k] == count(p.phase == phaseFree) && held[k] == count(p.phase == phaseHeld) && done[k] == count(p.phase == phaseDone),
			"tcp: operation %d in phase %d is free %d times, held %d times, done %d times", k, p.phase, free[k], held[k], done[k])
		insist(flying[k] == p.flying, "tcp: operation %d in phase %d counts %d frames under way, there are %d", k, p.phase, p.flying, flying[k])
		switch p.phase {
		case phaseFree, phaseDone, phaseHeld:
			insist(!p.queued && p.flying == 0 && p.entries == 0, "tcp: operation %d is over, and waits for something: queued %t, %d frames, %d blocks", k, p.queued, p.flying, p.entries)
		}
		entries += p.entries
	}
	insist(c.open == len(c.ops)-len(c.free), "tcp: %d slots are counted in use, %d of %d are free", c.open, len(c.free), len(c.ops))
	insist(c.wanted == entries && c.wanted <= maxRequested, "tcp: %d blocks are counted as requested, %d are, at most %d may be", c.wanted, entries, maxRequested)
	insist(c.probes == probes, "tcp: %d frames for measuring are counted, %d are under way", c.probes, probes)
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}
