package verbs

import (
	"errors"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
)

const (
	batchMax = 64 // requests in one call of the library
	// bytes of bulk operations that are posted and not completed, in the beginning: what a small
	// one may wait for at the adapter
	bulkAhead = 8 << 20
	keepSmall = 32 // requests of a queue pair that bulk operations leave free
	keepBinds = 8  // requests of a queue pair that all operations leave free: for windows
)

// part is a part of a region, the number of a granule.
type part struct {
	region *mem.Region
	number uint64
}

// local is a part of a local region that is registered because requests use it.
type local struct {
	part
	reg  mem.Registration
	lkey uint32
	base uint64 // address of the region's first byte, for requests; the first registered one may be another
	refs int
}

// localsMax is how many parts of regions can be in use at once; an operation that needs another one
// waits.
const localsMax = 128

var errNoLocal = errors.New("verbs: too many regions in use at once")

// localFor finds or makes the registration that a piece needs, with one use more.
func (p *Path) localFor(s *mem.Span, off uint64) (*local, error) {
	at := part{s.Region, (s.Off + off) / granule}
	l := p.lastLocal
	if l == nil || l.part != at {
		l = p.locals[at]
	}
	if l == nil {
		if len(p.locals) == localsMax {
			return nil, errNoLocal
		}
		access := mem.ReadAccess | mem.WriteAccess
		if s.Region.ReadOnly() {
			access = mem.ReadAccess
		}
		from := at.number * granule
		reg, err := p.dom.local.Get(mem.Span{Region: s.Region, Off: from, Len: min(granule, s.Region.Len()-from)},
			access)
		if err != nil {
			return nil, err
		}
		h, err := reg.Handle()
		if err != nil {
			return nil, err
		}
		if n := len(p.freeLocals); n > 0 {
			l, p.freeLocals = p.freeLocals[n-1], p.freeLocals[:n-1]
		} else {
			l = &local{}
		}
		mr := h.(*ibv.MR)
		*l = local{part: at, reg: reg, lkey: mr.LKey(), base: mr.Addr() - reg.Span().Off}
		p.locals[at] = l
	}
	l.refs++
	p.lastLocal = l
	return l, nil
}

// dropLocal ends one use. A part that no request uses goes back to the cache at once: the path must
// not be what keeps a region mapped.
func (p *Path) dropLocal(l *local) {
	if l.refs--; l.refs != 0 {
		return
	}
	l.reg.Release()
	delete(p.locals, l.part)
	if p.lastLocal == l {
		p.lastLocal = nil
	}
	*l = local{}
	p.freeLocals = append(p.freeLocals, l)
}

// issue posts what the operations have left: small ones first, then one batch of each bulk
// operation in turn.
func (p *Path) issue() {
	for p.small.n > 0 && p.err == nil {
		if !p.advance(p.small.head, keepBinds, 1<<62) {
			break
		}
	}
	for n := p.bulk.n; n > 0 && p.bulk.n > 0 && p.err == nil; n-- {
		k := p.bulk.head
		most := p.tuner.knobs[knobAhead].value
		if p.ahead >= most || !p.advance(k, keepSmall, most-p.ahead) {
			break
		}
		if p.bulk.head == k {
			p.rotate(&p.bulk)
		}
	}
	for _, l := range p.data {
		l.flush(int(p.tuner.knobs[knobSignal].value))
	}
}

// advance posts pieces of an operation, up to a batch and so many bytes. false: there is no room,
// or no queue pair, for now.
func (p *Path) advance(k int32, keep int, budget uint64) bool {
	w := &p.works[k]
	if w.again || w.cancel || w.err != nil {
		p.remove(k)
		p.proceed(k)
		return true
	}
	limit := p.tuner.knobs[knobPiece].value
	for n := 0; p.err == nil; n++ {
		if w.cur.done(w.op.Copies) { // looked at first: who has nothing to post is in no list when the last piece ends
			p.remove(k)
			p.proceed(k)
			return true
		}
		if n == batchMax || budget == 0 {
			return true
		}
		c := &w.op.Copies[w.cur.block]
		r := p.reachOf(c.Key)
		if r == nil || !r.known {
			w.again = true // the peer took the export back: what it is now shows when the operation restarts
			p.remove(k)
			p.proceed(k)
			return true
		}
		l, stall := p.queuePairFor(r, keep)
		if l == nil {
			if stall {
				return false
			}
			p.remove(k)
			p.enqueue(&p.waiting, k)
			return true
		}
		before := w.cur
		pc, _ := w.cur.next(w.op.Copies, min(limit, budget))
		if err := p.piece(l, k, w, r, c, pc); err != nil {
			w.cur = before
			if err == errNoLocal {
				return false
			}
			w.err = err
			p.remove(k)
			p.proceed(k)
			return true
		}
		budget -= pc.n
		if len(l.plan) >= batchMax {
			l.flush(int(p.tuner.knobs[knobSignal].value))
		}
	}
	return true
}

// piece plans the request for one piece, and the notification behind it where the order of the
// queue pair proves what is needed.
func (p *Path) piece(l *queuePair, k int32, w *work, r *reach, c *path.Copy, pc piece) error {
	s := &c.Local
	b := s.Region.All().Bytes() // nil: memory of an accelerator
	req := request{record: record{kind: kindWrite, work: k, slot: -1}, raddr: r.addr + c.RemoteOff + pc.off,
		rkey: r.rkeys[l.index-1].rkey}
	req.sge.Length = uint32(pc.n)
	if w.op.Kind == path.Get {
		req.kind = kindRead
	}
	threshold := &p.inlineTuner.knobs[0]
	req.short = b != nil && req.kind == kindWrite && pc.n <= threshold.max && !w.bulk
	if req.inline = b != nil && req.kind == kindWrite && pc.n <= threshold.value; req.inline {
		req.sge.Addr = uint64(sys.Address(b[s.Off+pc.off:]))
	} else {
		m, err := p.localFor(s, pc.off)
		if err != nil {
			return err
		}
		req.local, req.sge.LKey, req.sge.Addr = m, m.lkey, m.base+s.Off+pc.off
	}
	if w.op.Kind == path.Put {
		w.flushes = w.flushes || r.flush
	} else {
		w.foreign = w.foreign || b == nil
	}
	alone := w.qps == 0 && w.pending == 0
	w.qps |= 1 << l.index
	last := w.op.Kind == path.Put && w.op.Notify && !w.noted && w.qps == 1<<l.index && w.cur.done(w.op.Copies) &&
		l.out.left() > 0
	switch {
	case last && alone && len(w.op.Msg) == 0 && w.op.Imm < 1<<32:
		req.kind, req.imm, req.no = kindWriteImm, uint32(w.op.Imm), l.sent
		l.out.sent++
		l.sent++
	case last && l.room() >= 2 && len(l.frames) > 0:
		p.post(l, w, &req)
		p.notify(l, k, 0)
		return nil
	}
	p.post(l, w, &req)
	return nil
}

func (p *Path) post(l *queuePair, w *work, req *request) {
	if w.bulk {
		req.bytes = uint64(req.sge.Length)
		p.ahead += req.bytes
	} else if req.short {
		p.shortPosted(uint64(req.sge.Length))
	}
	l.add(*req)
	w.pending++
}

// over takes in that a request succeeded.
func (p *Path) over(l *queuePair, r *record) {
	p.release1(l, r, true)
	switch r.kind {
	case kindBind:
		g := r.given
		g.binding--
		g.refused = 0
		g.windows[l.index-1].bound = true
		p.bound(g)
		return
	case kindFrame, kindNudge, kindMark:
		return
	}
	p.repairs = 0
	w := &p.works[r.work]
	w.pending--
	if r.kind == kindNotify || r.kind == kindWriteImm {
		w.noted = true
	}
	p.completed += r.bytes
	p.proceed(r.work)
}

// lose takes in that a request came back unexecuted, or of which this side does not know whether it
// was executed.
func (p *Path) lose(l *queuePair, r *record) {
	p.release1(l, r, false)
	switch r.kind {
	case kindBind:
		g := r.given
		g.binding--
		g.windows[l.index-1].close()
		p.bound(g)
		return
	case kindFrame, kindNudge, kindMark:
		return
	}
	w := &p.works[r.work]
	w.pending--
	w.lost |= 1 << l.index
	if r.kind == kindNotify || r.kind == kindWriteImm {
		w.noteLost, w.noteQP, w.noteNo = true, l.index, r.no
	}
}

// release1 gives back what a request held, which succeeded or not.
func (p *Path) release1(l *queuePair, r *record, ok bool) {
	if r.short {
		p.shortEnded(ok)
	}
	if r.slot >= 0 {
		l.frames = append(l.frames, r.slot)
	}
	if r.local != nil {
		p.dropLocal(r.local)
	}
	p.ahead -= r.bytes
}
