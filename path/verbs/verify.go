package verbs

import "github.com/penstock-io/penstock/internal/invariants"

// verify demands that what is counted in two places agrees: lists and slots of operations, requests that are posted and what they hold.
// Builds with -tags invariants look after each call; the first disagreement panics, near to what made it.
func (p *Path) verify() {
	if p.err != nil || p.closed {
		return // down gave everything up at once
	}
	p.verifyLists()
	p.verifyRequests()
}

func (p *Path) verifyLists() {
	listed := 0
	for _, c := range []struct {
		name string
		l    *fifo
	}{{"small", &p.small}, {"bulk", &p.bulk}, {"waiting", &p.waiting}, {"notes", &p.notes}, {"unseen", &p.unseen}, {"flushing", &p.flushing}} {
		n, last := int32(0), int32(-1)
		for k := c.l.head; k >= 0 && n <= c.l.n; k = p.works[k].next {
			w := &p.works[k]
			invariants.Insist(w.list == c.l && w.used && !w.done, "verbs: operation %d in list %s: listed there %t, used %t, done %t", k, c.name, w.list == c.l, w.used, w.done)
			n, last = n+1, k
		}
		invariants.Insist(n == c.l.n && last == c.l.tail, "verbs: list %s holds %d operations up to %d, and counts %d up to %d", c.name, n, last, c.l.n, c.l.tail)
		listed += int(n)
	}
	for k := range p.works {
		if p.works[k].list != nil {
			listed--
		}
	}
	invariants.Insist(listed == 0, "verbs: %d operations are in lists that they do not know of", listed)

	free := make([]bool, len(p.works))
	for _, k := range p.freeWorks {
		invariants.Insist(!free[k] && !p.works[k].used, "verbs: slot %d is free twice, or used", k)
		free[k] = true
	}
	ended := make([]bool, len(p.works))
	for i := range p.evCount {
		if k := p.events[(p.evHead+i)%len(p.events)].work; k >= 0 {
			invariants.Insist(!ended[k] && p.works[k].done, "verbs: operation %d ended twice, or did not", k)
			ended[k] = true
		}
	}
	for k := range p.works {
		w := &p.works[k]
		invariants.Insist(free[k] != w.used && ended[k] == (w.used && w.done), "verbs: slot %d: free %t, used %t, done %t, its end waits to be reported %t", k, free[k], w.used, w.done, ended[k])
	}
	asked := 0
	for _, r := range p.reaches {
		if r.asked {
			asked++
		}
	}
	invariants.Insist(asked == len(p.asks)+p.asking, "verbs: %d exports are asked for; %d in line, %d questions under way", asked, len(p.asks), p.asking)
}

func (p *Path) verifyRequests() {
	pending := make([]int, len(p.works))
	var locals [localsMax]int
	ahead, short := uint64(0), 0
	for _, l := range p.links {
		frames := len(l.frames)
		take := func(r *record) {
			switch r.kind {
			case kindNotify, kindWrite, kindRead, kindWriteImm:
				pending[r.work]++
			}
			if r.local >= 0 {
				locals[r.local]++
			}
			if r.slot >= 0 {
				frames++
			}
			if r.short {
				short++
			}
			ahead += r.bytes
		}
		for i := l.tail; i != l.head; i++ {
			take(&l.ring[i&uint32(len(l.ring)-1)])
		}
		for i := range l.plan {
			take(&l.plan[i].record)
		}
		sends := msgSends
		switch {
		case l == p.ctl:
			sends = ctlSends
		case l.uc != nil:
			sends = 0
		}
		invariants.Insist(frames == sends, "verbs: link %d has %d of %d frames, free and under way", l.index, frames, sends)
		if u := l.uc; u != nil {
			for no := u.acked; no != u.next; no++ {
				if s := &u.flight[no%ucDepth]; s.work >= 0 {
					pending[s.work]++
				}
			}
			for i := range u.redo {
				pending[u.redo[i].work]++
			}
		}
	}
	for k := range p.works {
		if w := &p.works[k]; w.used {
			invariants.Insist(w.pending == pending[k], "verbs: operation %d counts %d requests under way, there are %d", k, w.pending, pending[k])
			invariants.Insist(!w.done || w.pending == 0 && w.list == nil, "verbs: operation %d is done, and %d of its requests are not", k, w.pending)
		} else {
			invariants.Insist(pending[k] == 0, "verbs: %d requests are under way for slot %d, which is free", pending[k], k)
		}
	}
	for i := range p.locals {
		invariants.Insist(p.locals[i].refs == locals[i] && (locals[i] == 0 || i < p.localsTop), "verbs: registration %d: %d uses counted, %d in requests; the top is %d", i, p.locals[i].refs, locals[i], p.localsTop)
	}
	invariants.Insist(ahead == p.ahead, "verbs: %d bytes of bulk operations are counted at the adapter, %d are in requests", p.ahead, ahead)
	invariants.Insist(short == p.short.under, "verbs: %d short writes are counted, %d are under way", p.short.under, short)
}
