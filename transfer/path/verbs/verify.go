package verbs

import (
	"maps"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/mem"
)

// verify demands that what is counted in two places agrees: lists and slots of operations, requests
// that are posted and what they hold, receives and credits, queue pairs, exports that were given.
// Builds with -tags invariants look after each call; the first disagreement panics, near to what
// made it.
func (p *Path) verify() {
	if p.err != nil || p.closed {
		return // down gave everything up at once
	}
	p.verifyLists()
	p.verifyRequests()
	for _, l := range p.qps {
		l.verifyReceives()
		l.verifyState()
	}
	p.verifyGivens()
}

func (p *Path) verifyLists() {
	listed := 0
	for _, c := range []struct {
		name string
		l    *fifo
	}{{"small", &p.small}, {"bulk", &p.bulk}, {"waiting", &p.waiting}, {"notes", &p.notes}, {"unseen", &p.unseen},
		{"flushing", &p.flushing}} {
		last := c.l.tail
		for n, k := int32(0), c.l.head; n < c.l.n; n, k = n+1, p.works[k].next {
			w := &p.works[k]
			invariants.Insist(w.list == c.l && w.used && !w.done,
				"verbs: operation %d in list %s: listed there %t, used %t, done %t", k, c.name, w.list == c.l, w.used,
				w.done)
			last = k
		}
		invariants.Insist(last == c.l.tail, "verbs: %d operations of list %s reach to %d, and it ends with %d", c.l.n,
			c.name, last, c.l.tail)
		listed += int(c.l.n)
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
		invariants.Insist(free[k] != w.used && ended[k] == (w.used && w.done),
			"verbs: slot %d: free %t, used %t, done %t, its end waits to be reported %t", k, free[k], w.used, w.done,
			ended[k])
	}
	asked := 0
	for _, r := range p.reaches {
		if r.asked {
			asked++
		}
	}
	invariants.Insist(asked == len(p.asks)+p.asking,
		"verbs: %d exports are asked for; %d in line, %d questions under way", asked, len(p.asks), p.asking)
}

// each looks at all requests, posted and planned.
func (l *queuePair) each(look func(r *record)) {
	for i := l.tail; i != l.head; i++ {
		look(&l.ring[i&uint32(len(l.ring)-1)])
	}
	for i := range l.plan {
		look(&l.plan[i].record)
	}
}

func (p *Path) verifyRequests() {
	pending := make([]int, len(p.works))
	locals := map[*local]int{}
	ahead, short := uint64(0), 0
	for _, l := range p.qps {
		frames := len(l.frames)
		take := func(r *record) {
			switch r.kind {
			case kindNotify, kindWrite, kindRead, kindWriteImm:
				pending[r.work]++
			}
			if r.local != nil {
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
		l.each(take)
		sends := msgSends
		if l == p.ctl {
			sends = ctlSends
		}
		invariants.Insist(frames == sends, "verbs: queue pair %d has %d of %d frames, free and under way", l.index,
			frames, sends)
	}
	for k := range p.works {
		if w := &p.works[k]; w.used {
			invariants.Insist(w.pending == pending[k], "verbs: operation %d counts %d requests under way, there are %d",
				k, w.pending, pending[k])
			invariants.Insist(!w.done || w.pending == 0 && w.list == nil,
				"verbs: operation %d is done, and %d of its requests are not", k, w.pending)
		} else {
			invariants.Insist(pending[k] == 0, "verbs: %d requests are under way for slot %d, which is free",
				pending[k], k)
		}
	}
	for _, l := range p.locals {
		invariants.Insist(l.refs > 0 && l.refs == locals[l], "verbs: a registration: %d uses counted, %d in requests",
			l.refs, locals[l])
	}
	invariants.Insist(len(locals) == len(p.locals), "verbs: requests use %d registrations, %d are known", len(locals),
		len(p.locals))
	invariants.Insist(ahead == p.ahead,
		"verbs: %d bytes of bulk operations are counted at the adapter, %d are in requests", p.ahead, ahead)
	invariants.Insist(short == p.short.under, "verbs: %d short writes are counted, %d are under way", p.short.under,
		short)
}

// verifyReceives looks where the slots of a queue pair are that take messages: each is in one
// place.
func (l *queuePair) verifyReceives() {
	p := l.p
	at := map[int32]int{}
	for _, s := range l.recvs {
		at[s]++
	}
	for i := range l.posted {
		at[l.order[(l.first+i)%len(l.order)]]++
	}
	held := 0
	take := func(q *queued) {
		if q.qp == int32(l.index) {
			at[q.slot]++
			held++
		}
	}
	for i := range p.evCount {
		take(&p.events[(p.evHead+i)%len(p.events)])
	}
	for i := range p.lent {
		take(&p.lent[i])
	}
	n := len(l.recvs) + l.posted + l.held
	invariants.Insist(n == len(l.order),
		"verbs: queue pair %d has %d receives: %d to be posted, %d posted, %d held; it was made with %d", l.index, n,
		len(l.recvs), l.posted, l.held, len(l.order))
	invariants.Insist(held == l.held || p.untrue != nil && held < l.held,
		"verbs: queue pair %d counts %d messages that the owner has not given back, there are %d", l.index, l.held,
		held)
	for s, n := range at {
		invariants.Insist(n == 1, "verbs: receive %d of queue pair %d is in %d places", s, l.index, n)
	}
}

// verifyState looks at what a queue pair may have in its state.
func (l *queuePair) verifyState() {
	p, r := l.p, &l.repl
	invariants.Insist(l.out.left() <= l.out.depth,
		"verbs: queue pair %d has sent %d messages of which %d were taken in, and the peer has %d receives", l.index,
		l.out.sent, l.out.freed, l.out.depth)
	invariants.Insist(l.queued() <= len(l.ring), "verbs: queue pair %d has %d requests, and room for %d", l.index,
		l.queued(), len(l.ring))
	if l.index == 0 {
		return
	}
	if r.state != qpUp {
		invariants.Insist(len(l.plan) == 0 && (l.head == l.tail || r.state == qpDraining),
			"verbs: queue pair %d is %s, with %d requests planned and %d posted", l.index, r.state, len(l.plan),
			l.head-l.tail)
		invariants.Insist(r.failed == (r.state == qpDraining), "verbs: queue pair %d is %s, failed: %t", l.index,
			r.state, r.failed)
	}
	if r.state == qpUp || r.state == qpConnecting {
		for k := range p.works {
			invariants.Insist(!p.works[k].used || p.works[k].lost&(1<<l.index) == 0,
				"verbs: queue pair %d is %s, and it is not known what became of operation %d on it", l.index, r.state,
				k)
		}
	}
}

func (p *Path) verifyGivens() {
	binding, lines, answers := map[*given]int{}, map[*given]int{}, map[*given]int{}
	for _, l := range p.qps {
		l.each(func(r *record) {
			if r.kind == kindBind {
				binding[r.given]++
			}
		})
	}
	for _, g := range p.binds {
		lines[g]++
	}
	for _, a := range p.answers {
		if a.given != nil {
			answers[a.given]++
		}
	}
	for _, m := range []map[*given]int{binding, lines, answers} {
		for g := range m {
			invariants.Insist(p.givens[g.key] == g, "verbs: export %d was taken back, and is bound, or answered for",
				g.key.Index)
		}
	}
	flushes := map[mem.Flusher]int{}
	for _, g := range p.givens {
		under := g.binding > 0 || g.inLine
		invariants.Insist(g.binding == binding[g], "verbs: export %d counts %d bindings under way, there are %d",
			g.key.Index, g.binding, binding[g])
		invariants.Insist(g.inLine && lines[g] == 1 || !g.inLine && lines[g] == 0,
			"verbs: export %d is in line for its windows: %t, and %d times", g.key.Index, g.inLine, lines[g])
		invariants.Insist(answers[g] == 0 && (!g.answer || under) || answers[g] == 1 && g.answer && !under,
			"verbs: export %d has %d answers in line; an answer is owed: %t, windows under way: %t", g.key.Index,
			answers[g], g.answer, under)
		invariants.Insist(len(g.fences) == 0 || under, "verbs: export %d has %d fences, which nothing ends",
			g.key.Index, len(g.fences))
		if g.flush != nil {
			flushes[g.flush]++
		}
	}
	invariants.Insist(maps.Equal(flushes, p.flushers), "verbs: flushes are counted for the exports %v, needed for %v",
		p.flushers, flushes)
}
