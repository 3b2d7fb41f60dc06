package verbs

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
)

// given is an export of this node that the peer was let into.
type given struct {
	key     path.Key
	export  *path.Export
	rights  path.Rights
	mr      *ibv.MR // nil for an export without bytes
	windows [maxQPs]window
	binding int         // windows whose binding is under way
	answer  bool        // the peer waits for an answer
	inLine  bool        // of Path.binds
	told    bool        // this side has told the peer of it
	failed  bool        // the adapter gave no window
	refused int         // how often in a row the adapter refused one, which broke the queue pair
	flush   mem.Flusher // what the peer's writes into it need, nil for none; the path counts it
	fences  []int32
}

// window shows an export to one queue pair of the peer.
type window struct {
	mw    *ibv.MW
	rkey  uint32
	gen   uint32
	bound bool
}

// close closes a window, if there is one.
func (w *window) close() (err error) {
	if w.mw != nil {
		err = w.mw.Close()
	}
	*w = window{}
	return err
}

// attach answers the question of the peer for an export.
func (p *Path) attach(k path.Key) {
	if len(p.freeWorks) == len(p.works) {
		p.repairs = 0
	}
	e, have, err := p.peerReach.Lookup(k)
	if err != nil {
		p.st.Rejected++
		p.refuse(k, err)
		return
	}
	g := p.givens[k]
	if g == nil {
		g = &given{key: k, export: e, rights: have}
		if g.mr, err = p.dom.pin(e, have); err != nil {
			p.note(fmt.Sprintf("an export of %d bytes could not be registered: %v", e.Span().Len, err))
			if !errors.Is(err, path.ErrUnreachable) {
				err = path.ErrUnavailable
			}
			p.refuse(k, err)
			return
		}
		p.givens[k] = g
		if have&path.Write != 0 {
			g.flush = e.Span().Region.Direct().Flush
		}
		if g.flush != nil {
			p.flushers[g.flush]++
		}
	}
	if g.answer {
		p.violated(malformed("a second question for an export before the answer"))
		return
	}
	g.answer = true
	if !g.inLine {
		g.inLine = true
		p.binds = append(p.binds, g)
	}
}

// bind posts what binds the windows of the exports that the peer asked for, as far as there is
// room.
func (p *Path) bind() {
	n := 0
	for _, g := range p.binds {
		if p.bindOne(g) {
			g.inLine = false
			p.bound(g)
			continue
		}
		p.binds[n] = g
		n++
	}
	clear(p.binds[n:])
	p.binds = p.binds[:n]
}

// bindOne posts the binding of an export on all queue pairs that are up; false when one has no room
// now.
func (p *Path) bindOne(g *given) bool {
	if g.mr == nil || len(g.fences) > 0 {
		return true
	}
	for _, l := range p.data {
		w := &g.windows[l.index-1]
		access := remote(g.rights)
		if access == 0 || l.repl.state != qpUp || w.mw != nil || w.bound && w.gen == l.gen {
			continue
		}
		if !p.dom.windows {
			*w = window{rkey: g.mr.RKey(), gen: l.gen, bound: true}
			continue
		}
		if l.room() == 0 {
			return false
		}
		mw, err := p.dom.pd.AllocMW()
		if err != nil {
			p.note(fmt.Sprintf("no memory window for an export: %v", err))
			g.failed = true
			continue
		}
		*w = window{mw: mw, rkey: mw.NextKey(), gen: l.gen}
		g.binding++
		l.add(request{record: record{kind: kindBind, work: -1, slot: -1, given: g}, mw: mw, rkey: w.rkey,
			window: ibv.Window{MR: g.mr, Addr: g.mr.Addr(), Length: g.mr.Length(), Access: access}})
	}
	return true
}

// bound goes on with an export when all its windows are there or failed. One that waits for room is
// bound when bind is through with it, and not before: it would be answered, or shut, a second time
// then.
func (p *Path) bound(g *given) {
	if g.binding > 0 || g.inLine {
		return
	}
	if len(g.fences) > 0 {
		p.shut(g)
		return
	}
	if !g.answer {
		return
	}
	if g.failed || g.refused >= maxStrikes { // a grant without a key would have the peer wait for ever
		g.answer, g.failed = false, false
		p.refuse(g.key, path.ErrUnavailable)
		return
	}
	p.answers = append(p.answers, answer{given: g})
}

// beginFence is a Fence operation: it is over when nothing of the export can be reached by this
// path any more.
func (p *Path) beginFence(k int32) {
	g := p.givens[p.works[k].op.Key]
	if g == nil {
		p.finish(k, nil)
		return
	}
	g.fences = append(g.fences, k)
	p.bound(g)
}

// shut takes an export from the peer: its windows are closed, which the adapter confirms, before
// the peer and the owner of the fence learn of it.
func (p *Path) shut(g *given) {
	err := p.unwind(g)
	delete(p.givens, g.key)
	if g.flush != nil { // what landed before may be asked for only now
		p.unseenBefore = cmp.Or(p.unseenBefore, g.flush.Flush())
	}
	if g.answer {
		for i := range p.answers {
			if p.answers[i].given == g {
				p.answers[i] = answer{key: g.key, status: statusOf(path.ErrRevoked)}
				g.answer = false
			}
		}
		if g.answer {
			p.refuse(g.key, path.ErrRevoked)
		}
	}
	if g.told {
		p.revoked = append(p.revoked, g.key)
	}
	if err != nil {
		err = fmt.Errorf("verbs: the adapter does not take the export back: %w", err)
	}
	for _, k := range g.fences {
		p.finish(k, err)
	}
}

// unwind closes the windows and gives the registration back.
func (p *Path) unwind(g *given) (err error) {
	if g.flush != nil {
		if p.flushers[g.flush]--; p.flushers[g.flush] == 0 {
			delete(p.flushers, g.flush)
		}
	}
	for i := range g.windows {
		err = errors.Join(err, g.windows[i].close())
	}
	return errors.Join(err, p.dom.unpin(g.export))
}

// unwindQP closes the windows of one queue pair, whose queue pair goes.
func (p *Path) unwindQP(l *queuePair) {
	for _, g := range p.givens {
		if err := g.windows[l.index-1].close(); err != nil {
			p.note(fmt.Sprintf("a memory window could not be closed: %v", err))
		}
	}
}

// answer is a grant or a refusal in line.
type answer struct {
	given  *given
	key    path.Key
	status uint8
}

func statusOf(err error) uint8 {
	for i, e := range refusals {
		if e != nil && errors.Is(err, e) {
			return uint8(i)
		}
	}
	return uint8(len(refusals) - 1)
}

func (p *Path) refuse(k path.Key, err error) {
	p.answers = append(p.answers, answer{key: k, status: statusOf(err)})
}

// grant writes the answer for an export.
func (p *Path) grant(f *frame, g *given) {
	s := g.export.Span()
	*f = frame{typ: frameGrant, key: g.key, rights: g.rights, size: s.Len, flush: g.flush != nil}
	if g.mr != nil {
		f.addr = g.mr.Addr()
	}
	for _, l := range p.data {
		if w := &g.windows[l.index-1]; w.bound && w.gen == l.gen {
			f.grants[f.n] = grantKey{uint8(l.index - 1), l.gen, w.rkey}
			f.n++
		}
	}
	g.answer, g.told = false, true
}
