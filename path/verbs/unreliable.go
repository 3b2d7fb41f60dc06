package verbs

import (
	"errors"
	"fmt"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/path"
)

// An unreliable connection (UC) tells its receiver of a lost message by silence only, and its sender nothing at all. So every write on it carries a
// number as its immediate value, and the receiver says by the control connection which numbers came. The packets of a queue pair
// stay in order, so a number that is missing when a later one came is lost for good: it cannot land any more, and is written
// again under another number. Where nothing later follows, the sender sends a number without bytes after a while (a probe): what it
// does not find in front of it is lost. Time alone decides nothing. A number that comes late or twice shows a network that does not
// keep the order; the path goes down then, because its writes may have landed behind others.

const (
	// ucDepth is how many numbers may be on their way on a rail, and how many receives each side has for them. Both sides have the same.
	ucDepth = 256
	// probesMost is how many probes may go unanswered until the rail is replaced. So many numbers are kept for them.
	probesMost = 10
	// writesMost is how often a piece of one packet may be lost.
	writesMost = 64
	// calmPieces is how many pieces must come one after the other until larger ones are tried.
	calmPieces = 64

	silenceFirst = 10 * time.Millisecond // until the first probe; then twice as long each time
	silenceMost  = 640 * time.Millisecond
	pieceFirst   = 1 << 20
	pieceMost    = 8 << 20
)

// shot is a numbered write whose fate is not known.
type shot struct {
	work  int32 // -1: a probe
	tries int32 // how often the piece was lost
	piece
}

// unreliable is what a rail of an unreliable connection has on top.
type unreliable struct {
	flight      [ucDepth]shot // by number
	next, acked uint32        // numbers from acked to next are on their way
	redo        []shot        // to be written again
	limit       uint64        // bytes of a piece: with long ones more is lost at once
	mtu         uint64
	cut         uint32 // numbers before this one were sent with longer pieces
	calm        int    // pieces of full length that came since one was lost
	probes      int    // since the peer said anything
	deadline    time.Time
	tries       int32 // of what is written again just now

	seen, told uint32 // numbers before seen came or are lost; the peer knows it of those before told
	gaps       []gap  // the lost ones that it does not know of
}

func newUnreliable() *unreliable {
	return &unreliable{limit: pieceFirst, redo: make([]shot, 0, 2*ucDepth), gaps: make([]gap, 0, ucDepth)}
}

// reset begins anew with a new queue pair.
func (u *unreliable) reset(p *Path) {
	u.next, u.acked, u.seen, u.told, u.cut, u.calm, u.probes = 0, 0, 0, 0, 0, 0, 0
	u.redo, u.gaps, u.deadline = u.redo[:0], u.gaps[:0], time.Time{}
	u.mtu = uint64(p.dev.port.ActiveMTU.Bytes()) // the peer's may be smaller; then a few pieces are cut once less
}

// flies says that it is not known what became of a number.
func (u *unreliable) flies(no uint32) bool { return no-u.acked < u.next-u.acked }

// full says that the numbers that are left are kept for probes.
func (l *link) full() bool {
	return l.uc != nil && (l.out.left() <= probesMost || l.uc.next-l.uc.acked >= ucDepth-probesMost)
}

// number gives a request its number.
func (u *unreliable) number(l *link, req *request, s shot) {
	req.no = u.next
	u.flight[u.next%ucDepth] = s
	u.next++
	l.out.sent++
}

// shoot makes a request for a piece a numbered one.
func (u *unreliable) shoot(l *link, req *request, k int32, pc piece) {
	req.kind = kindShot
	u.number(l, req, shot{k, u.tries, pc})
}

// counted takes a number in that came from the peer.
func (p *Path) counted(l *link, slot int32, no uint32, hasNo, write bool, n int) {
	u := l.uc
	l.recvs = append(l.recvs, slot) // there is nothing in it
	ahead := no - u.seen
	switch {
	case !hasNo || !write && n > 0:
		p.violated(malformed("a message of %d bytes on an unreliable rail: expected a numbered write", n))
		return
	case ahead >= 1<<31:
		p.violated(malformed("number %d came late or twice, %d was expected: the network does not keep packets in order, as UC needs it: use RC", no, u.seen))
		return
	case ahead >= ucDepth || len(u.gaps) >= ucDepth:
		p.violated(malformed("number %d where %d was expected: at most %d may be on their way", no, u.seen, ucDepth))
		return
	}
	if ahead > 0 {
		u.gaps = append(u.gaps, gap{u.seen, ahead})
		l.in.freed += ahead // their receives were never used
	}
	u.seen = no + 1
}

// sayCame tells the peer which of its numbers came.
func (p *Path) sayCame() {
	for _, l := range p.rails {
		u := l.uc
		if u == nil || l.rail.state != railUp && l.rail.state != railConnect {
			continue
		}
		for u.told != u.seen {
			f := &p.frame
			*f = frame{typ: frameCame, rail: uint8(l.index - 1), gen: l.gen, upTo: u.seen, freed: l.in.freed}
			if f.n = copy(f.gaps[:], u.gaps); f.n < len(u.gaps) {
				f.upTo = u.gaps[f.n].first
			}
			if !p.send(p.ctl, f, plainReserve, plain(kindFrame)) {
				return
			}
			u.told, l.in.said = f.upTo, l.in.freed
			u.gaps = u.gaps[:copy(u.gaps, u.gaps[f.n:])]
		}
	}
}

// came takes in what the peer says of numbers: their pieces are in place, or are written again.
func (p *Path) came(f *frame) error {
	if int(f.rail) >= len(p.rails) || p.rails[f.rail].uc == nil {
		return malformed("a report about numbers of rail %d, which has none", f.rail+1)
	}
	l := p.rails[f.rail]
	u := l.uc
	if l.rail.state != railUp || f.gen != l.gen {
		return nil // of a queue pair that is no more
	}
	if f.upTo-u.acked > u.next-u.acked {
		return malformed("a report about numbers up to %d, of %d that were sent", f.upTo, u.next)
	}
	at := u.acked
	for _, g := range f.gaps[:f.n] {
		if g.count == 0 || g.first-at > f.upTo-at || g.count > f.upTo-g.first {
			return malformed("a gap of %d numbers from %d on, in a report about %d to %d", g.count, g.first, at, f.upTo)
		}
		at = g.first + g.count
	}
	if err := l.out.told(f.freed); err != nil {
		return err
	}
	u.probes, u.deadline = 0, time.Time{}
	for k := 0; u.acked != f.upTo; u.acked++ {
		if k < f.n && u.acked == f.gaps[k].first+f.gaps[k].count {
			k++
		}
		s := &u.flight[u.acked%ucDepth]
		switch {
		case s.work < 0:
		case k < f.n && u.acked-f.gaps[k].first < f.gaps[k].count:
			p.missed(u, *s, u.acked)
		default:
			p.landed(u, *s)
		}
	}
	return nil
}

// landed takes in that a piece is in its place.
func (p *Path) landed(u *unreliable, s shot) {
	w := &p.works[s.work]
	w.pending--
	p.repairs = 0
	if w.bulk {
		p.completed += s.n
	}
	if s.n == u.limit {
		if u.calm++; u.calm >= calmPieces {
			u.calm, u.limit = 0, min(2*u.limit, pieceMost)
		}
	}
	p.settle(s.work)
}

// missed takes in that a piece is lost.
func (p *Path) missed(u *unreliable, s shot, no uint32) {
	w := &p.works[s.work]
	p.rewritten++
	p.dirty = true
	u.calm = 0
	if s.n > u.mtu && no-u.cut < 1<<31 { // once for all that went with pieces of this length
		u.limit, u.cut = max(min(u.limit, s.n)/2, u.mtu), u.next
	}
	if s.n <= u.mtu {
		s.tries++
	}
	if s.tries > writesMost && w.err == nil {
		w.err = fmt.Errorf("verbs: %d bytes were written %d times and never came: %w", s.n, s.tries, errStrikes)
	}
	if w.err != nil || w.cancel || w.again {
		w.again = true // it is not complete without this piece
		w.pending--
		p.settle(s.work)
		return
	}
	u.redo = append(u.redo, s)
}

// rewrite writes again what is lost, in shorter pieces if the rail has come to that.
func (p *Path) rewrite() {
	for _, l := range p.rails {
		u := l.uc
		if u == nil || l.rail.state != railUp {
			continue
		}
		for len(u.redo) > 0 && p.rewriteOne(l, &u.redo[0]) {
			u.redo = u.redo[:copy(u.redo, u.redo[1:])]
		}
	}
}

// rewriteOne goes on with one piece; false: there is no room for the rest of it now, or the rail broke, which gives all up.
func (p *Path) rewriteOne(l *link, s *shot) bool {
	u := l.uc
	w := &p.works[s.work]
	for s.n > 0 && w.err == nil && !w.cancel && !w.again {
		if l.full() || l.room() <= keepBinds {
			return false
		}
		c := &w.op.Copies[s.block]
		r := p.reachOf(c.Key)
		if r == nil || !r.known || !r.rails[l.index-1].ok || r.rails[l.index-1].gen != l.gen {
			w.again = true // the peer took the export back
			break
		}
		pc := s.piece
		pc.n = min(pc.n, u.limit)
		u.tries = s.tries
		err := p.piece(l, s.work, w, r, c, pc)
		u.tries = 0
		if errors.Is(err, errNoLocal) && p.busyLocals() > 0 {
			return false
		}
		if err != nil {
			w.err = err
			break
		}
		s.off, s.n = s.off+pc.n, s.n-pc.n
		if len(l.plan) >= batchMax {
			l.flush(int(p.tuner.knobs[knobSignal].value))
			if l.rail.state != railUp {
				return false
			}
		}
	}
	w.again = w.again || s.n > 0 // not complete without the rest
	w.pending--                  // its parts count for themselves
	p.settle(s.work)
	return true
}

// abandon gives up what is on its way on a rail that broke.
func (u *unreliable) abandon(l *link) {
	lose := func(s *shot) {
		if s.work >= 0 {
			w := &l.p.works[s.work]
			w.pending--
			w.lost |= 1 << l.index
		}
	}
	for ; u.acked != u.next; u.acked++ {
		lose(&u.flight[u.acked%ucDepth])
	}
	for i := range u.redo {
		lose(&u.redo[i])
	}
	u.redo = u.redo[:0]
}

var errSilence = fmt.Errorf("nothing came back on an unreliable connection, although %d questions were sent", probesMost)

// due is when the next probe is, if anything is on its way.
func (l *link) due(now time.Time) (time.Time, bool) {
	u := l.uc
	if u == nil || l.rail.state != railUp || u.acked == u.next {
		return time.Time{}, false
	}
	if u.deadline.IsZero() {
		u.deadline = now.Add(min(silenceFirst<<u.probes, silenceMost))
	}
	return u.deadline, true
}

// probe asks where the peer was silent for long.
func (p *Path) probe() {
	if p.transport != UC {
		return
	}
	now := time.Now()
	for _, l := range p.rails {
		at, ok := l.due(now)
		if !ok || now.Before(at) {
			continue
		}
		u := l.uc
		u.deadline = time.Time{}
		if u.probes++; u.probes > probesMost {
			p.broken(l, errSilence)
			continue
		}
		if l.out.left() == 0 || l.room() == 0 {
			continue // what is at the adapter must go first
		}
		p.probed++
		p.dirty = true
		req := request{record: record{kind: kindProbe, work: -1, slot: -1, local: -1}}
		u.number(l, &req, shot{work: -1})
		l.add(req)
	}
}

func (p *Path) openTimer() (err error) {
	if p.transport != UC {
		return nil
	}
	if p.timer, err = sys.Timerfd(0); err != nil {
		return err
	}
	return sys.SetTimerfd(p.timer, 0)
}

// setTimer has the owner woken for the next probe.
func (p *Path) setTimer() {
	if p.transport != UC {
		return
	}
	now := time.Now()
	var first time.Time
	for _, l := range p.rails {
		if at, ok := l.due(now); ok && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	if first.Equal(p.timerAt) {
		return
	}
	p.timerAt = first
	d := time.Duration(0)
	if !first.IsZero() {
		d = max(first.Sub(now), 1)
	}
	if err := sys.SetTimerfd(p.timer, d); err != nil {
		p.down(fmt.Errorf("verbs: %w: %w", path.ErrDown, err))
	}
}

// pieceLimit is the shortest of the rails, in bytes; 0 where there is none.
func (p *Path) pieceLimit() uint64 {
	least := uint64(0)
	for _, l := range p.rails {
		if l.uc != nil && (least == 0 || l.uc.limit < least) {
			least = l.uc.limit
		}
	}
	return least
}
