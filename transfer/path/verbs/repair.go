package verbs

import (
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/transfer/path"
)

// A queue pair that failed is replaced: a request that the peer's adapter refused (an export that
// was revoked meanwhile) must not take the path down. Both sides put their queue pair into error,
// wait until the adapter has given everything back, destroy it, and only then offer a new one over
// the control connection. So when the offers have crossed, nothing that was under way on the old
// one can land any more, and each side knows which of its notifications had arrived. What is left
// restarts.

type qpState uint8

const (
	qpUp         qpState = iota
	qpDraining           // in error; the adapter still has requests or receives, or the owner has messages
	qpOffered            // the new queue pair exists; the peer's is not known
	qpConnecting         // connected; the peer may not be yet
)

var qpStateNames = [...]string{"up", "draining", "offered", "connecting"}

func (s qpState) String() string { return qpStateNames[s] }

// replacement is how far a queue pair is with being replaced.
type replacement struct {
	state  qpState
	failed bool // the queue pair is in error: nothing more is posted
	// the peer is still to be told of the state: offered, or connecting, which is ready on this
	// side
	tell         bool
	ready        uint32 // generation that the peer says is ready
	offer        frame  // the peer's last
	failedSetups int    // new queue pairs in a row that broke before they were up
	stuck        int    // queue pairs that broke without getting past one operation, the last of them here
}

// maxRepairs is how often each queue pair may be replaced, on the average, while no operation gets
// on or is given up. A side that has none counts only until the peer asks for an export, as it has
// to before it uses a new queue pair: it counts itself what comes of its operations, which shows
// here by nothing.
const maxRepairs = 16

// broken takes a queue pair out of service that failed.
func (p *Path) broken(l *queuePair, why error) {
	if p.err != nil {
		return
	}
	if l.index == 0 {
		p.down(fmt.Errorf("verbs: %w: the control connection failed: %w", path.ErrDown, why))
		return
	}
	r := &l.repl
	if r.state == qpDraining {
		return
	}
	p.replaced++
	p.why, p.dirty = why, true
	if r.state != qpUp {
		r.failedSetups++
	}
	r.state, r.failed, r.tell = qpDraining, true, false
	l.unplan(0) // what was not posted yet
	if p.repairs++; p.repairs > maxRepairs*max(len(p.data), 1) {
		p.down(fmt.Errorf("verbs: %w: queue pairs were replaced %d times, queue pair %d the last, and nothing "+
			"got on: %w", path.ErrDown, p.repairs, l.index, why))
		return
	}
	if r.failedSetups > maxRepairs { // whatever the others do
		p.down(fmt.Errorf("verbs: %w: queue pair %d cannot be replaced: %w", path.ErrDown, l.index, why))
		return
	}
	if r.stuck > maxRepairs {
		p.down(fmt.Errorf("verbs: %w: %d queue pairs broke, queue pair %d the last, and none got past one operation: %w", path.ErrDown, r.stuck, l.index, why))
		return
	}
	if err := l.qp.Err(); err != nil {
		p.down(fmt.Errorf("verbs: %w: a failed queue pair cannot be stopped: %w", path.ErrDown, err))
		return
	}
	if l.unmarked && l.head != l.tail {
		// The last request may have succeeded without a completion. What is posted now comes back
		// with one.
		l.unmarked = false
		l.chain.Reset()
		l.chain.Send(l.id(l.head), ibv.Signaled, p.arena.sge(0, 1))
		l.ring[l.head&uint32(len(l.ring)-1)] = record{kind: kindMark, work: -1, slot: -1}
		if n, err := l.qp.PostSend(l.chain); n == 1 {
			l.head++
		} else {
			p.down(fmt.Errorf("verbs: %w: a failed queue pair takes no marker: %w", path.ErrDown, err))
		}
	}
}

// maxStrikes is how often an operation may break queue pairs before it is given up.
const maxStrikes = 3

// strike counts the queue pairs that an operation broke with all its requests at once as one, since
// several may carry it.
func (p *Path) strike(w *work) {
	if w.blamed == nil {
		return
	}
	if w.strikes++; w.strikes >= maxStrikes {
		w.err = fmt.Errorf("verbs: %w: %w", errStrikes, w.blamed)
		p.repairs = 0 // the others get their chance without it
	}
	w.blamed = nil
}

// repair takes the next step with each queue pair that is not up.
func (p *Path) repair() {
	for _, l := range p.data {
		if p.err != nil {
			return
		}
		var err error
		switch l.repl.state {
		case qpDraining:
			if l.idle() && l.held == 0 {
				err = p.renew(l)
			}
		case qpOffered:
			if !l.repl.tell && l.repl.offer.gen == l.gen {
				p.connect(l)
			}
		case qpConnecting:
			if l.repl.ready == l.gen && !l.repl.tell {
				l.repl.state, l.repl.failedSetups = qpUp, 0
				p.readmit()
			}
		}
		if err != nil {
			p.down(fmt.Errorf("verbs: %w: queue pair %d cannot be replaced: %w", path.ErrDown, l.index, err))
		}
	}
}

// renew makes the new queue pair.
func (p *Path) renew(l *queuePair) error {
	p.unwindQP(l)
	if err := l.destroy(); err != nil {
		return err
	}
	l.gen++
	if o := l.repl.offer.gen; o-l.gen < 1<<31 {
		l.gen = o // the peer is ahead
	}
	if err := p.makeQP(l); err != nil {
		return err
	}
	l.in = debt{depth: l.in.depth}
	l.repl.failed, l.repl.state, l.repl.tell = false, qpOffered, true
	l.restock(false)
	return nil
}

// connect joins both queue pairs, and decides about what was under way on the old ones.
func (p *Path) connect(l *queuePair) {
	o := &l.repl.offer
	if undelivered := l.sent - o.delivered; undelivered > uint32(len(l.ring)) {
		p.violated(malformed("it says that it received %d messages on queue pair %d, of %d that were sent", o.delivered,
			l.index, l.sent))
		return
	}
	if err := p.join(l, qpAddress{o.qpn, o.psn}); err != nil {
		if errors.Is(err, path.ErrProtocol) {
			p.violated(err)
			return
		}
		p.broken(l, err) // it may have got into error by itself: the next one
		return
	}
	l.sent = o.delivered
	l.out = credits{depth: uint32(p.peer.msgDepth)}
	l.repl.state, l.repl.tell = qpConnecting, true
	bit := uint16(1) << l.index
	for k := range p.works {
		w := &p.works[k]
		if !w.used || w.lost&bit == 0 {
			continue
		}
		w.lost &^= bit
		if w.noteLost && w.noteQP == l.index {
			w.noteLost = false
			w.noted = w.noteNo-o.delivered >= 1<<31
		}
		if !w.noted {
			w.again = true
		}
		p.resumed++
		p.proceed(int32(k))
	}
}

// offered takes in that the peer has a new queue pair for a queue pair.
func (p *Path) offered(f *frame) error {
	if int(f.qp) >= len(p.data) {
		return malformed("an offer for queue pair %d of %d", f.qp+1, len(p.data))
	}
	l := p.data[f.qp]
	r := &l.repl
	ahead := f.gen - l.gen
	switch {
	case !(qpAddress{f.qpn, f.psn}).valid():
		return malformed("an offer of a sequence number of more than 24 bits for queue pair %d", l.index)
	// draining: what was to be joined to it broke first
	case ahead == 0 && (r.state == qpOffered || r.state == qpDraining) || ahead > 0 && ahead < 1<<16:
		r.offer = *f
	case ahead > 1<<31: // it crossed with a newer one of ours
		return nil
	default:
		return malformed("an offer of generation %d for queue pair %d, which is %s with generation %d", f.gen, l.index,
			r.state, l.gen)
	}
	if ahead == 0 {
		return nil
	}
	switch r.state {
	case qpUp, qpConnecting:
		p.broken(l, errPeerReplaced)
	case qpOffered: // this side's is unused: it takes part under the new number
		l.gen, r.tell = f.gen, true
	}
	return nil
}

var errPeerReplaced = fmt.Errorf("the peer replaced its queue pair")

// peerReady takes in that the peer can receive on a replaced queue pair.
func (p *Path) peerReady(f *frame) error {
	if int(f.qp) >= len(p.data) {
		return malformed("queue pair %d of %d is ready", f.qp+1, len(p.data))
	}
	p.data[f.qp].repl.ready = f.gen
	return nil
}
