package verbs

import (
	"fmt"
	"slices"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/transfer/path"
)

// clear says that a frame can be sent on a queue pair: a slot, room and a credit beyond the reserve
// are there.
func (l *queuePair) clear(reserve uint32) bool {
	return len(l.frames) > 0 && l.out.left() > reserve && l.room() > 0
}

// send plans a frame on a queue pair, if it is clear.
func (p *Path) send(l *queuePair, f *frame, reserve uint32, r record) bool {
	if !l.clear(reserve) {
		return false
	}
	slot := l.frames[len(l.frames)-1]
	l.frames = l.frames[:len(l.frames)-1]
	c := p.ctl
	f.consumed = c.in.freed
	b := f.append(p.arena.slot(int(slot))[:0])
	if l == c {
		c.in.said = c.in.freed
	}
	l.out.sent++
	l.sent++
	r.slot = slot
	l.add(request{record: r, sge: p.arena.sge(int(slot), len(b)), inline: len(b) <= p.inline})
	return true
}

// say plans a frame of the protocol on the control connection, if that is clear.
func (p *Path) say(f *frame, reserve uint32) bool {
	return p.send(p.ctl, f, reserve, record{kind: kindFrame, work: -1})
}

// handOut gives elements of a queue away until one is refused, and returns the rest.
func handOut[T any](q []T, take func(T) bool) []T {
	n := 0
	for n < len(q) && take(q[n]) {
		n++
	}
	return slices.Delete(q, 0, n)
}

// control sends the frames of the protocol and the notifications, what others wait for first, as
// far as credits reach.
func (p *Path) control() {
	c, f := p.ctl, &p.frame
	if p.greeting == sendsHello {
		*f = frame{typ: frameHello}
		if !p.say(f, plainReserve) {
			return
		}
		p.greeting = greeted
	}
	for _, l := range p.data {
		if !l.repl.tell {
			continue
		}
		*f = frame{typ: frameReady, qp: uint8(l.index - 1), gen: l.gen}
		if l.repl.state == qpOffered {
			f.typ, f.qpn, f.psn, f.delivered = frameReplace, l.qp.Num(), l.psn, l.received
		}
		if !p.say(f, plainReserve) {
			break
		}
		l.repl.tell = false
	}
	p.revoked = handOut(p.revoked, func(k path.Key) bool {
		*f = frame{typ: frameRevoked, key: k}
		return p.say(f, plainReserve)
	})
	p.answers = handOut(p.answers, func(a answer) bool {
		if !c.clear(plainReserve) {
			return false
		}
		if a.given != nil {
			p.grant(f, a.given)
		} else {
			*f = frame{typ: frameRefuse, key: a.key, status: a.status}
		}
		return p.say(f, plainReserve)
	})
	p.asks = handOut(p.asks, func(r *reach) bool {
		*f = frame{typ: frameAttach, key: r.key}
		if p.asking == maxAsking || !p.say(f, plainReserve) {
			return false
		}
		p.asking++
		return true
	})
	p.askFlush()
	for p.notes.n > 0 && p.notify(c, p.notes.head, plainReserve) {
		p.dequeue(&p.notes)
	}
	due := c.in.due()
	for _, l := range p.data {
		due = due || l.repl.state == qpUp && l.in.due()
	}
	if due { // and no other frame told
		p.tellFreed()
	}
	c.flush(1)
}

// notify plans the frame that notifies the peer for an operation, if the queue pair is clear.
func (p *Path) notify(l *queuePair, k int32, reserve uint32) bool {
	w, f := &p.works[k], &p.frame
	f.typ, f.qp, f.imm, f.bytes, f.msg = frameNotify, 0, w.op.Imm, w.op.Bytes(), w.op.Msg
	if !p.send(l, f, reserve, record{kind: kindNotify, work: k, no: l.sent}) {
		return false
	}
	w.pending++
	return true
}

// tellFreed tells the peer which receives are free again, if that can be sent.
func (p *Path) tellFreed() bool {
	f := &p.frame
	f.typ, f.qp, f.n = frameCredit, 0, len(p.data)
	for i, l := range p.data {
		f.credit[i] = qpCredit{l.gen, l.in.freed}
	}
	if !p.say(f, reportReserve) {
		return false
	}
	for _, l := range p.data {
		l.in.said = l.in.freed
	}
	return true
}

// arrived takes a message in. slot is the receive, which begins with the message, unless that is an
// immediate value.
func (p *Path) arrived(l *queuePair, slot int32, wc *ibv.WC) {
	l.received++
	l.held++
	if wc.Opcode() == ibv.OpRecvWrite {
		if l.index == 0 || wc.Flags()&ibv.FlagImm == 0 {
			p.violated(malformed("a write with a value on the control connection, or a value that is none"))
			return
		}
		p.noticed(l, slot, path.Event{Kind: path.EventNotify, Imm: uint64(wc.Imm()), Bytes: uint64(wc.Len())})
		return
	}
	f := &p.in
	if err := f.parse(p.arena.slot(int(slot))[:wc.Len()]); err != nil {
		p.violated(err)
		return
	}
	if l.index == 0 {
		if err := p.ctl.out.told(f.consumed); err != nil {
			p.violated(err)
			return
		}
	} else if f.typ != frameNotify {
		p.violated(malformed("a frame of type %d on a queue pair", f.typ))
		return
	}
	if f.typ == frameNotify {
		p.noticed(l, slot, path.Event{Kind: path.EventNotify, Imm: f.imm, Bytes: f.bytes, Msg: f.msg})
		return
	}
	l.giveBack(slot)
	if err := p.handle(f); err != nil {
		p.violated(err)
	}
}

func (p *Path) noticed(l *queuePair, slot int32, e path.Event) {
	if err := p.flushGiven(); err != nil && p.untrue == nil {
		p.untrue = fmt.Errorf("verbs: %w: a notification of what the card cannot see: %w", path.ErrDown, err)
	}
	if p.untrue != nil {
		return // not in the middle of the completions: Poll ends it
	}
	p.st.NotifyReceived++
	p.dirty = true
	p.queue(queued{Event: e, work: -1, qp: int32(l.index), slot: slot})
}

// handle acts on a frame of the protocol.
func (p *Path) handle(f *frame) error {
	if p.greeting == expectsHello && f.typ != frameHello {
		return malformed("a frame of type %d before the hello", f.typ)
	}
	switch f.typ {
	case frameHello:
		if p.greeting != expectsHello {
			return malformed("a hello that is not expected")
		}
		p.greeting = greeted
	case frameAttach:
		if len(p.answers) > 2*maxAsking {
			return malformed("more questions than are allowed at once")
		}
		p.attach(f.key)
	case frameGrant, frameRefuse:
		return p.answered(f)
	case frameRevoked:
		p.withdrawn(f.key)
	case frameReplace:
		return p.offered(f)
	case frameReady:
		return p.peerReady(f)
	case frameCredit:
		if f.n != len(p.data) {
			return malformed("a report about %d queue pairs of %d", f.n, len(p.data))
		}
		for i, c := range f.credit[:f.n] {
			if l := p.data[i]; l.repl.state == qpUp && c.gen == l.gen {
				if err := l.out.told(c.consumed); err != nil {
					return err
				}
			}
		}
	case frameFlush:
		if p.owed {
			return malformed("a second question for a flush before the answer")
		}
		p.owed, p.verdict = true, 0
		if err := p.flushGiven(); err != nil {
			p.verdict = flushFailed
			p.note(err.Error())
		}
	case frameFlushed:
		return p.flushed(f.status)
	case frameBye:
		p.down(fmt.Errorf("verbs: closed by the peer: %w", path.ErrDown))
	default:
		return malformed("a frame of type %d at this time", f.typ)
	}
	return nil
}
