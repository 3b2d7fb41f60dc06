package verbs

import (
	"fmt"
	"time"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/path"
)

// ring makes FD readable if a call while armed left something for Poll. The owner who sleeps is
// also to look whether what was posted gets on.
func (p *Path) ring() {
	switch {
	case !p.armed || p.rung:
	case p.evCount > 0 || p.err == nil && p.unfinished():
		p.rung = true
		sys.Ring(p.bell)
	case p.err == nil:
		p.guard()
	}
}

// Poll makes progress and reports events. See path.Path.
func (p *Path) Poll(events []path.Event) int {
	if p.closed {
		return p.report(events)
	}
	if p.armed {
		p.disarm()
	}
	p.takeBack()
	n := p.report(events)
	if p.err == nil {
		if p.polls++; p.polls%asyncTurn == 0 {
			p.dev.async()
			p.look()
		}
		if p.urgent.Load() != nil {
			p.alarm()
		}
		if p.err == nil {
			p.collect()
		}
		if p.untrue == nil {
			p.untrue = p.lost
		}
		if p.untrue != nil && p.err == nil {
			p.goodbye()
			p.down(p.untrue)
		}
		if p.err == nil {
			for _, l := range p.qps {
				l.restock(true)
			}
			p.move()
		}
		n += p.report(events[n:])
	}
	p.publish()
	return n
}

// disarm empties what woke the owner.
func (p *Path) disarm() {
	p.armed = false
	if p.rung {
		p.rung = false
		sys.Unring(p.bell)
	}
	if err := p.emptyChannel(); err != nil {
		p.down(fmt.Errorf("verbs: %w: %w", path.ErrDown, err))
	}
	if p.err == nil {
		p.dev.async()
		if p.watchTimer >= 0 {
			p.look()
		}
	}
}

// emptyChannel takes the events of completions in.
func (p *Path) emptyChannel() error {
	for {
		if _, ok, err := p.channel.Next(); !ok || err != nil {
			p.cq.Ack()
			return err
		}
	}
}

// collect takes completions in, a bounded number in one call. It returns how many.
func (p *Path) collect() (total int) {
	for range pollMax {
		n, err := p.cq.Poll(p.wc[:])
		if err != nil {
			p.down(fmt.Errorf("verbs: %w: %w", path.ErrDown, err))
			return total
		}
		for i := range p.wc[:n] {
			p.completion(&p.wc[i])
			if p.err != nil {
				return total
			}
		}
		total += n
		if n < len(p.wc) {
			break
		}
	}
	if p.completed > 0 {
		p.tuner.moved(p.completed, time.Since(p.began))
		p.completed = 0
	} else if p.ahead == 0 {
		p.tuner.idle()
	}
	return total
}

// completion acts on one completion.
func (p *Path) completion(wc *ibv.WC) {
	id := wc.ID()
	index, epoch := int(id>>indexShift&0xff), uint32(id>>epochShift)&epochMask
	if index >= len(p.qps) || p.qps[index].epoch&epochMask != epoch {
		p.down(fmt.Errorf("verbs: %w: %w", path.ErrDown, malformedID(wc)))
		return
	}
	l := p.qps[index]
	if id&recvBit == 0 {
		l.ended(uint32(id), wc)
		return
	}
	slot := int32(uint32(id))
	inOrder := l.came(slot)
	if wc.Status() != ibv.Success {
		l.recvs = append(l.recvs, slot)
		p.broken(l, wc.Err())
		return
	}
	if !inOrder && p.lost == nil {
		// The sender of the message that was lost believes that it came, so nothing sends it again.
		// Poll reports first what else has come.
		p.lost = fmt.Errorf("verbs: %w: queue pair %d: %w", path.ErrDown, l.index, errGap)
	}
	if p.lost != nil && l.index == 0 { // frames mean something in their order only
		l.recvs = append(l.recvs, slot)
		return
	}
	p.arrived(l, slot, wc)
}

// queue keeps an event for the owner; there is room for all that can be.
func (p *Path) queue(q queued) {
	p.events[(p.evHead+p.evCount)%len(p.events)] = q
	p.evCount++
}

// report hands events out.
func (p *Path) report(events []path.Event) int {
	n := 0
	for ; n < len(events) && p.evCount > 0; n++ {
		q := &p.events[p.evHead]
		p.evHead = (p.evHead + 1) % len(p.events)
		p.evCount--
		events[n] = q.Event
		if q.work >= 0 {
			w := &p.works[q.work]
			w.used, w.op.Copies = false, nil
			p.freeWorks = append(p.freeWorks, q.work)
		}
		if q.qp >= 0 {
			p.lent = append(p.lent, *q)
		}
		q.Event = path.Event{}
	}
	return n
}

// takeBack takes the messages back that the owner was lent until now.
func (p *Path) takeBack() {
	for i := range p.lent {
		p.qps[p.lent[i].qp].giveBack(p.lent[i].slot)
	}
	p.lent = p.lent[:0]
}

// Arm prepares for sleeping. See path.Path.
func (p *Path) Arm() bool {
	if p.err != nil || p.closed {
		return p.evCount > 0
	}
	if p.evCount > 0 || len(p.lent) > 0 {
		return true
	}
	if !p.armed {
		if err := p.cq.Arm(false); err != nil {
			p.down(fmt.Errorf("verbs: %w: %w", path.ErrDown, err))
			return true
		}
		p.armed = true
	}
	// No event reports what came before it was armed.
	n := p.collect()
	if n > 0 || p.err != nil || p.unfinished() {
		return true
	}
	p.guard()
	return false
}

// unfinished says that Poll has something to do without any news.
func (p *Path) unfinished() bool {
	for _, l := range p.qps {
		if len(l.recvs) > 0 && !l.repl.failed && l.repl.state != qpDraining {
			return true
		}
		if l.index > 0 && l.repl.state == qpDraining && l.held == 0 && l.idle() {
			return true
		}
	}
	return p.urgent.Load() != nil
}

// Cancel asks to end an operation early. See path.Path.
func (p *Path) Cancel(token uint64) bool {
	if p.err != nil && p.evCount == 0 || !p.cancelToken(token) {
		return false
	}
	p.ring()
	p.publish()
	return true
}
