package transfer

import (
	"slices"
	"time"

	"github.com/penstock-io/penstock/transfer/path"
)

// The choice of a path for the puts that come one after the other: what there is to choose from is
// found once and kept while it stays true, and each transfer compares what the paths cost now.

// clock is the time since the process began, by a clock that only goes forward: reading it takes
// half of what time.Now does.
func clock() time.Duration { return time.Since(epoch) }

var epoch = time.Now()

// way is what there is to choose from for transfers to one export. It is not changed once others
// see it.
type way struct {
	changes uint64 // of the peer when it was found

	export  path.Desc // the zero value: none, for a notification
	allowed []string
	floor   path.Security

	found []Candidate // in the order of survey; no more than maxOpen have a channel
	why   string      // the best of them is taken
}

const (
	maxOpen  = 3  // of a way
	keptWays = 16 // of a peer
)

// chosen is the choice of a path among those of a way. Transfer.Explain makes the explanation of
// it.
type chosen struct {
	way   *way               // nil: the transfer did not go that way
	at    int                // in what it found
	costs [maxOpen]path.Cost // at that time, of those found that have a channel
}

// way finds what there is to choose from for a transfer that names no more than one export; nil if
// that is not to be kept.
func (p *Peer) way(t *Transfer) *way {
	var e path.Desc
	if len(t.exports) > 0 {
		e = t.exports[0]
	}
	at := &p.ways[e.Key.Index%keptWays]
	changes := p.changes.Load()
	w := at.Load()
	if w != nil && w.changes == changes && w.export == e && w.floor == t.floor && slices.Equal(w.allowed, t.allowed) {
		return w
	}
	w = &way{changes: changes, export: e, allowed: slices.Clone(t.allowed), floor: t.floor}
	if len(t.exports) > 0 && !p.knows(e) { // it was revoked a moment ago
		return nil
	}
	w.found = p.survey(t.exports, t.allowed, t.floor, nil)
	open := 0
	for i := range w.found {
		if w.found[i].ch != nil {
			open++
		}
		if w.found[i].again || open > maxOpen { // again: it is tried soon
			return nil
		}
	}
	_, w.why = reason(w.found)
	at.Store(w)
	return w
}

// knows reports whether this node knows an export of the peer.
func (p *Peer) knows(e path.Desc) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, ok := p.remotes[e.Key]
	return ok && r.Desc == e
}

// choose takes the channel with the lowest expected time; nil if that path is not set up, or there
// is none. The transfer has none yet.
func (w *way) choose(t *Transfer, now time.Duration) *channel {
	var c chosen
	var best *channel
	least, k := time.Duration(-1), 0
	for i := range w.found {
		f := &w.found[i]
		cost := f.Cost
		if f.ch != nil {
			cost = f.ch.cost.Get(now)
			c.costs[k] = cost
			k++
		}
		if d := cost.Time(t.bytes); f.Usable && (least < 0 || d < least) {
			least, best, c.at = d, f.ch, i
		}
	}
	if best == nil {
		return nil
	}
	c.way = w
	t.mu.Lock()
	t.chosen = c
	t.explain.Path = best.p.Name()
	t.mu.Unlock()
	return best
}

// explain puts the choice into an explanation for a transfer of n bytes.
func (c *chosen) explain(e *Explanation, n uint64, floor path.Security) {
	caps := &c.way.found[c.at].ch.caps
	cs, k := slices.Clone(c.way.found), 0
	for i := range cs {
		if x := &cs[i]; x.ch != nil {
			x.Cost = c.costs[k]
			k++
			if x.Usable {
				x.Reason = basis(x.Cost)
			}
		}
	}
	rank(cs, n)
	e.Candidates, e.Why = cs, c.way.why
	e.Security, e.Floor = caps.Security, floor
	e.UserCopies, e.KernelCopies = caps.UserCopies, caps.KernelCopies
}

// changed is called after a change of the peer's channels, or of what this node knows of its
// exports.
func (p *Peer) changed() {
	p.changes.Add(1)
	for i := range p.ways {
		p.ways[i].Store(nil) // it would keep a channel that is gone
	}
}
