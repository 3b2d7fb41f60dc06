package verbs

import (
	"fmt"

	"github.com/penstock-io/penstock/transfer/path"
)

// reach is what the peer said of one of its exports.
type reach struct {
	key        path.Key
	asked      bool // a question is under way or in line
	known      bool
	err        error // it was refused
	rights     path.Rights
	addr, size uint64
	flush      bool // what is written there is seen after a flush
	rkeys      [maxQPs]remoteKey
	tried      [maxQPs]uint32 // generations of the queue pairs for which it was asked already
}

// remoteKey is the key of an export on one queue pair.
type remoteKey struct {
	gen, rkey uint32
	ok        bool
}

// maxAsking bounds the questions that are under way: the peer keeps an answer for each.
const maxAsking = 32

// reachOf finds what is known of a key; the last one is remembered, since lists of blocks name one
// export.
func (p *Path) reachOf(k path.Key) *reach {
	if r := p.last; r != nil && r.key == k {
		return r
	}
	r := p.reaches[k]
	if r != nil {
		p.last = r
	}
	return r
}

func (p *Path) ask(r *reach) {
	if !r.asked {
		r.asked = true
		p.asks = append(p.asks, r)
	}
}

// check looks at the blocks of an operation that were not looked at: true when the peer grants all
// of them. What is not known is asked for; the operation waits.
func (p *Path) check(w *work) (bool, error) {
	want := path.Write
	if w.op.Kind == path.Get {
		want = path.Read
	}
	for ; w.checked < len(w.op.Copies); w.checked++ {
		c := &w.op.Copies[w.checked]
		r := p.reachOf(c.Key)
		if r == nil {
			r = &reach{key: c.Key}
			p.reaches[c.Key] = r
		}
		switch {
		case r.err != nil:
			return false, fmt.Errorf("verbs: block %d of %d: the peer refuses: %w", w.checked, len(w.op.Copies), r.err)
		case !r.known:
			p.ask(r)
			return false, nil
		case r.rights&want != want:
			return false, fmt.Errorf("verbs: block %d of %d: the export permits %s: %w", w.checked, len(w.op.Copies),
				r.rights, path.ErrRights)
		case c.RemoteOff > r.size || c.Local.Len > r.size-c.RemoteOff:
			return false, fmt.Errorf("verbs: block %d of %d: offset %d + %d bytes of %d: %w", w.checked,
				len(w.op.Copies), c.RemoteOff, c.Local.Len, r.size, path.ErrBounds)
		}
	}
	return true, nil
}

// readmit looks at all operations again that wait for the peer's answer, or for a queue pair.
func (p *Path) readmit() {
	for n := p.waiting.n; n > 0; n-- {
		k := p.dequeue(&p.waiting)
		if w := &p.works[k]; w.cancel || w.again || w.err != nil {
			p.proceed(k)
			continue
		}
		p.admit(k)
	}
}

// answered takes the answer of the peer in.
func (p *Path) answered(f *frame) error {
	if p.asking == 0 {
		return malformed("an answer to no question")
	}
	p.asking--
	r := p.reaches[f.key]
	if r == nil || !r.asked {
		return malformed("an answer about an export that was not asked for")
	}
	r.asked = false
	if f.typ == frameRefuse {
		r.err, r.known = refusals[f.status], false
		if r.err == path.ErrUnreachable {
			p.closedTo(f.key)
		}
		p.readmit()
		p.forget(r)
		return nil
	}
	r.known, r.rights, r.addr, r.size, r.flush = true, f.rights, f.addr, f.size, f.flush
	for _, g := range f.grants[:f.n] {
		r.rkeys[g.qp] = remoteKey{g.gen, g.rkey, true}
	}
	p.readmit()
	return nil
}

func (p *Path) forget(r *reach) {
	delete(p.reaches, r.key)
	if p.last == r {
		p.last = nil
	}
}

// withdrawn takes in that the peer revoked an export. What is under way fails at the peer's
// adapter.
func (p *Path) withdrawn(k path.Key) {
	r := p.reaches[k]
	if r == nil {
		return
	}
	r.known = false
	if !r.asked { // else the answer comes, and says the same
		p.forget(r)
	}
}

// queuePairFor chooses a queue pair for a piece of an operation: one that is up, has the key and
// room, the least loaded first. stall says that there will be one without any doing; otherwise the
// peer is asked for a key.
func (p *Path) queuePairFor(r *reach, keep int) (best *queuePair, stall bool) {
	lacking := false
	for _, l := range p.data {
		if l.repl.state != qpUp {
			stall = true
			continue
		}
		k := &r.rkeys[l.index-1]
		if !k.ok || k.gen != l.gen {
			// A question that is under way may be older than the queue pair, and its answer then
			// knows nothing of it.
			if r.tried[l.index-1] != l.gen && !r.asked {
				r.tried[l.index-1] = l.gen
				p.ask(r)
			}
			lacking = true
			continue
		}
		stall = true
		if l.room() > keep && (best == nil || l.queued() < best.queued()) {
			best = l
		}
	}
	return best, stall || !lacking
}
