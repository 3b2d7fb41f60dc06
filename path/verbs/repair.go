package verbs

import (
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/path"
)

// A rail whose queue pair failed is replaced: a request that the peer's adapter refused (an export that was revoked meanwhile) must
// not take the path down. Both sides put their queue pair into error, wait until the adapter has given everything back, destroy it,
// and only then offer a new one over the control connection. So when the offers have crossed, nothing that was under way on the
// old one can land any more, and each side knows which of its notifications had arrived. What is left begins anew.
//
// With DC it is the target that is closed and offered anew, and the initiator that is stopped (seat.abort). Receives of a shared queue do not come back
// by themselves: what had arrived is taken in until the queue of completions is empty, and the shared queue is closed with what it has left.

type railState uint8

const (
	railUp      railState = iota
	railDrain             // in error; the adapter still has requests or receives, or the owner has messages
	railOffer             // the new queue pair exists; the peer's is not known
	railConnect           // connected; the peer may not be yet
)

var railNames = [...]string{"up", "draining", "offered", "connecting"}

func (s railState) String() string { return railNames[s] }

// rail is what a link has beyond its queue pair.
type rail struct {
	state    railState
	failed   bool // the queue pair is in error: nothing more is posted
	sayOffer bool
	offered  bool
	sayReady bool
	ready    uint32 // generation that the peer says is ready
	offer    frame  // the peer's last
	unjoined int    // new queue pairs in a row that could not be joined to the peer's
}

// maxRepairs is how often each rail may be replaced, on the average, while no operation gets on or is given up. A side that has none counts only until
// the peer asks for an export, as it has to before it uses a new rail: it counts itself what comes of its operations, which shows here by nothing.
const maxRepairs = 16

// broken takes a link out of service whose queue pair failed.
func (p *Path) broken(l *link, why error) {
	if p.err != nil {
		return
	}
	if l.index == 0 {
		p.down(fmt.Errorf("verbs: %w: the control connection failed: %w", path.ErrDown, why))
		return
	}
	r := &l.rail
	if r.state == railDrain {
		return
	}
	p.replaced++
	p.why, p.dirty = why, true
	r.state, r.failed, r.sayOffer, r.sayReady, r.offered = railDrain, true, false, false, false
	l.unplan(0) // what was not posted yet
	if l.uc != nil {
		l.uc.abandon(l)
	}
	if p.repairs++; p.repairs > maxRepairs*max(len(p.rails), 1) {
		p.down(fmt.Errorf("verbs: %w: rails were replaced %d times, rail %d the last, and nothing got on: %w", path.ErrDown, p.repairs, l.index, why))
		return
	}
	err := l.stop()
	if err == nil && l.seat != nil {
		err = l.seat.abort(why)
	}
	if err != nil {
		p.down(fmt.Errorf("verbs: %w: a failed queue pair cannot be stopped: %w", path.ErrDown, err))
		return
	}
	if l.seat == nil && l.unmarked && l.head != l.tail {
		// The last request may have succeeded without telling. What is posted now comes back and tells.
		l.unmarked = false
		l.chain.Reset()
		l.chain.Send(l.id(l.head), ibv.Signaled, p.arena.from(0, 1))
		l.ring[l.head&uint32(len(l.ring)-1)] = record{kind: kindMark, work: -1, slot: -1, local: -1}
		if n, err := l.qp.PostSend(l.chain); n == 1 {
			l.head++
		} else {
			p.down(fmt.Errorf("verbs: %w: a failed queue pair takes no marker: %w", path.ErrDown, err))
		}
	}
}

// maxStrikes is how often an operation may break rails before it is given up.
const maxStrikes = 3

// strike counts the rails that an operation broke with all its requests at once as one, since several may carry it.
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

// repair takes the next step with each rail that is not up.
func (p *Path) repair() {
	for _, l := range p.rails {
		if p.err != nil {
			return
		}
		var err error
		switch l.rail.state {
		case railDrain:
			if l.idle() && l.held == 0 {
				err = p.renew(l)
			}
		case railOffer:
			if l.rail.offered && l.rail.offer.gen == l.gen {
				p.connect(l)
			}
		case railConnect:
			if l.rail.ready == l.gen && !l.rail.sayReady {
				l.rail.state, l.rail.unjoined = railUp, 0
				p.readmit()
			}
		}
		if err != nil {
			p.down(fmt.Errorf("verbs: %w: rail %d cannot be replaced: %w", path.ErrDown, l.index, err))
		}
	}
}

// renew makes the new queue pair.
func (p *Path) renew(l *link) error {
	p.unwindRail(l)
	if err := l.destroy(); err != nil {
		return err
	}
	l.gen++
	if o := l.rail.offer.gen; o-l.gen < 1<<31 {
		l.gen = o // the peer is ahead
	}
	if err := p.makeQP(l); err != nil {
		return err
	}
	l.in = debt{depth: l.in.depth}
	l.rail.failed, l.rail.state, l.rail.sayOffer = false, railOffer, true
	l.restock(false)
	return nil
}

// connect joins both queue pairs, and decides about what was under way on the old ones.
func (p *Path) connect(l *link) {
	o := &l.rail.offer
	if undelivered := l.sent - o.delivered; undelivered > uint32(len(l.ring)) {
		p.violated(malformed("it says that it received %d messages on rail %d, of %d that were sent", o.delivered, l.index, l.sent))
		return
	}
	if err := p.join(l, endpoint{o.qpn, o.psn}); err != nil {
		if errors.Is(err, path.ErrProtocol) {
			p.violated(err)
			return
		}
		if l.rail.unjoined++; l.rail.unjoined > maxRepairs { // whatever the other rails do
			p.down(fmt.Errorf("verbs: %w: rail %d cannot be replaced: %w", path.ErrDown, l.index, err))
			return
		}
		p.broken(l, err) // it may have got into error by itself: the next one
		return
	}
	l.sent = o.delivered
	l.out = credits{depth: l.depthOf(&p.peer)}
	l.rail.state, l.rail.sayReady = railConnect, true
	bit := uint16(1) << l.index
	for k := range p.works {
		w := &p.works[k]
		if !w.used || w.lost&bit == 0 {
			continue
		}
		w.lost &^= bit
		if w.noteLost && w.noteRail == l.index {
			w.noteLost, w.noting = false, false
			w.noted = w.noteNo-o.delivered >= 1<<31
		}
		if !w.noted {
			w.again = true
		}
		p.resumed++
		p.settle(int32(k))
	}
}

// offered takes in that the peer has a new queue pair for a rail.
func (p *Path) offered(f *frame) error {
	if int(f.rail) >= len(p.rails) {
		return malformed("an offer for rail %d of %d", f.rail+1, len(p.rails))
	}
	l := p.rails[f.rail]
	r := &l.rail
	ahead := f.gen - l.gen
	switch {
	case !(endpoint{f.qpn, f.psn}).valid(p.transport):
		return malformed("an offer of a sequence number of more than 24 bits for rail %d", l.index)
	case ahead == 0 && (r.state == railOffer || r.state == railDrain) || ahead > 0 && ahead < 1<<16: // draining: what was to be joined to it broke first
		r.offer = *f
	case ahead > 1<<31: // it crossed with a newer one of ours
		return nil
	default:
		return malformed("an offer of generation %d for rail %d, which is %s with generation %d", f.gen, l.index, r.state, l.gen)
	}
	if ahead == 0 {
		return nil
	}
	switch r.state {
	case railUp, railConnect:
		p.broken(l, errPeerReplaced)
	case railOffer: // this side's is unused: it takes part under the new number
		l.gen, r.sayOffer, r.offered = f.gen, true, false
	}
	return nil
}

var errPeerReplaced = fmt.Errorf("the peer replaced its queue pair")

// peerReady takes in that the peer can receive on a replaced rail.
func (p *Path) peerReady(f *frame) error {
	if int(f.rail) >= len(p.rails) {
		return malformed("rail %d of %d is ready", f.rail+1, len(p.rails))
	}
	p.rails[f.rail].rail.ready = f.gen
	return nil
}
