package transfer

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/penstock-io/penstock/transfer/bounce"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/sched"
	"github.com/penstock-io/penstock/transfer/state"
)

// A transfer some of whose bytes are in memory that a CPU cannot reach, and that no path of this
// peer reaches by itself: package bounce cuts it into pieces and brings them to and from slots of
// host memory; each is moved between them by a transfer of its own, which neither application sees.
// When all are in place the transfer is left with its notification, and ends as every other one.

// stager is the carrier of one transfer.
type stager struct {
	t     *Transfer
	abort context.CancelFunc

	mu sync.Mutex // guards what follows; may be taken under the mutex of a channel
	// the transfer's place in queues: its pieces share it; the flow is its channel's
	flows map[*channel]*sched.Flow[*Transfer]
	last  *channel   // that a piece took
	gone  []*channel // that went down under pieces
	ops   int32
}

// stage moves a transfer by a path that reaches its memory if there is one, and else by staging. It
// does not wait.
func (p *Peer) stage(t *Transfer) {
	if err := p.enter(); err != nil {
		t.complete(err)
		return
	}
	ctx, abort := t.abortable(p.ctx)
	s := &stager{t: t, abort: abort, flows: map[*channel]*sched.Flow[*Transfer]{}}
	if s.one(ctx) {
		return
	}
	go func() {
		err := error(nil)
		if p.hasLostSessions() {
			err = p.endLostSessions(ctx)
		}
		var direct *channel
		if allowed, ok := p.directPaths(t); ok && err == nil {
			direct, _ = p.choose(ctx, t, t.exports, allowed)
		}
		if err == nil && direct == nil {
			if t.digest != nil {
				t.digest.Start()
			}
			w := s.begun()
			err = p.staged.Carry(ctx, w, s)
			s.over()
			if err == nil {
				direct, err = s.carried(ctx)
			}
		}
		s.finish(direct, err)
	}()
}

// one moves a transfer that package bounce carries at once; it returns false, and has done nothing,
// for any other one.
func (s *stager) one(ctx context.Context) bool {
	t, p := s.t, s.t.peer
	if t.reach != reachDirect || t.stream != 0 || t.digest != nil || t.canceled() || p.hasLostSessions() {
		return false
	}
	if _, ok := p.directPaths(t); ok {
		return false
	}
	return p.staged.CarryOne(ctx, s.begun(), s, func(err error) {
		s.over()
		var last *channel
		if err == nil {
			last, err = s.carried(ctx)
		}
		s.finish(last, err)
	})
}

// carried leaves a transfer whose pieces are in place with its notification, and chooses its last
// channel, which is for that: no memory is a part of it.
func (s *stager) carried(ctx context.Context) (*channel, error) {
	t := s.t
	t.exports, t.devices, t.reach = nil, nil, reachCarried
	t.m.Carried()
	if !t.peer.hasLostSessions() {
		if ch := t.peer.quick(t); ch != nil {
			return ch, nil
		}
	}
	return t.peer.choose(ctx, t, nil, t.allowed)
}

// finish hands the transfer to its channel, or ends it with the error for which it has none.
func (s *stager) finish(direct *channel, err error) {
	t, p := s.t, s.t.peer
	defer p.node.wg.Done()
	defer s.abort()
	switch lost := p.Err(); {
	case err == nil:
	case lost != nil && !t.canceled() && (errors.Is(err, context.Canceled) || errors.Is(err, path.ErrCanceled)):
		err = lost // that is why its pieces were canceled
	case errors.Is(err, context.Canceled):
		err = path.ErrCanceled
	}
	if err != nil {
		t.complete(err)
		return
	}
	p.launch(t, direct)
}

// misses reports whether an operation ended because its path does not reach memory of devices that
// it was taken for: the peer knows only when it is asked whether its adapter gets at an export.
// Nothing of the operation moved, and nothing will.
func (t *Transfer) misses(err error) bool {
	return errors.Is(err, path.ErrUnreachable) && t.part == nil && needsDevices(t.exports, t.devices)
}

// restage stages what is left of a transfer. Nothing of it is outstanding.
func (p *Peer) restage(t *Transfer) {
	if t.canceled() {
		t.complete(path.ErrCanceled)
		return
	}
	t.m.Resume()
	t.posted, t.reach = 0, reachStaged
	p.stage(t)
}

// directPaths restricts the choice of a path that reaches memory of devices by itself: one that
// went down under the transfer is not tried again, since there is staging. It returns false when
// there is none, or one did not reach it after all.
func (p *Peer) directPaths(t *Transfer) (allowed []string, ok bool) {
	if t.reach == reachStaged {
		return nil, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range p.node.drivers {
		if d.Traits().Devices && !t.avoids(d.Name()) && (len(t.allowed) == 0 || slices.Contains(t.allowed, d.Name())) {
			allowed = append(allowed, d.Name())
		}
	}
	if len(t.explain.Failovers) == 0 {
		return t.allowed, len(allowed) > 0
	}
	return allowed, len(allowed) > 0
}

// begun notes when the first piece begins, and returns all of the work.
func (s *stager) begun() bounce.Work {
	t := s.t
	w := bounce.Work{Kind: t.kind, Copies: t.m.Copies(), At: t.m.At(), Bytes: t.bytes,
		Blocks: control.StagedRoom(t.peer.maxBody()), Plain: 2 * PieceSize}
	for _, e := range t.exports {
		if e.Device {
			if w.Far == nil {
				w.Far = map[path.Key]bool{}
			}
			w.Far[e.Key] = true
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.explain.Times.lap(&t.explain.Times.Open, clock())
	return w
}

// over notes when the last piece has ended.
func (s *stager) over() {
	t := s.t
	s.mu.Lock()
	defer s.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.explain.Pieces = s.ops
	t.explain.Times.lap(&t.explain.Times.Transfer, clock())
}

// moving is a piece on its path.
type moving struct {
	s  *stager
	pc *bounce.Piece
	c  *Transfer
}

// Move begins to move a piece by a path.
func (s *stager) Move(pc *bounce.Piece) bounce.Move {
	t := s.t
	c := &Transfer{part: s,
		request: request{kind: t.kind, peer: t.peer, bytes: pc.Bytes, id: t.id, priority: t.priority,
			allowed: t.allowed, floor: t.floor},
		posting: posting{m: state.New(t.kind, pc.Copies, pc.Bytes, false, true)}}
	c.explain.Times.start(clock())
	if pc.Lent != nil {
		c.exports = append(c.oneExport[:0], *pc.Lent)
	} else {
		c.exports = appendNamed(c.oneExport[:0], t.exports, pc.Copies)
	}
	t.peer.start(c)
	return moving{s, pc, c}
}

func (m moving) Ended() bool { return m.c.ended() }

func (m moving) Wait(ctx context.Context) error {
	if !m.c.ended() {
		select {
		case <-m.c.Done():
		case <-ctx.Done():
			m.c.Cancel()
			<-m.c.Done()
		}
	}
	if m.c.err != nil && !m.pc.Staged() {
		m.s.t.moved.Add(m.c.moved.Load()) // what is in place of it
	}
	return m.c.err
}

// Ended takes note of what became of a piece.
func (s *stager) Ended(pc *bounce.Piece, err error) {
	t := s.t
	if pc.Staged() {
		t.mu.Lock()
		e := t.explain.more()
		e.Local.add(&pc.Local, pc.Bytes)
		e.Remote.add(&pc.Remote, pc.Bytes)
		e.Staged = e.Local.Bytes + e.Remote.Bytes
		t.mu.Unlock()
	}
	if err != nil {
		return
	}
	t.moved.Add(pc.Bytes)
	t.placed(state.Segment{At: pc.At, Bytes: pc.Bytes})
}

// flow is the place of the transfer's pieces in the queue of a channel, whose mutex is held.
func (s *stager) flow(ch *channel) *sched.Flow[*Transfer] {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.flows[ch]
	if f == nil {
		f = new(sched.Flow[*Transfer])
		s.flows[ch] = f
	}
	return f
}

// chose takes note of the channel that a piece takes.
func (s *stager) chose(c *Transfer, ch *channel, cs []Candidate, at int) {
	s.mu.Lock()
	first, changed := s.last == nil, s.last != nil && s.last != ch && slices.Contains(s.gone, s.last)
	if first || changed {
		s.last = ch
	}
	s.mu.Unlock()
	if !first && !changed {
		return
	}
	t := s.t
	t.rerouted(cs[at].Path, at)
	c.mu.Lock()
	x, via := *c.explain.more(), c.explain.Path
	c.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.chosen, t.explain.Path = chosen{}, via
	e := t.explain.more()
	e.Candidates, e.Why = x.Candidates, x.Why
	e.Security, e.Floor, e.UserCopies, e.KernelCopies = x.Security, x.Floor, x.UserCopies, x.KernelCopies
}

// lost takes note of a channel that went down under a piece.
func (s *stager) lost(ch *channel) {
	s.mu.Lock()
	known := slices.Contains(s.gone, ch)
	if !known {
		s.gone = append(s.gone, ch)
	}
	s.mu.Unlock()
	if known {
		return
	}
	t := s.t
	t.mu.Lock()
	defer t.mu.Unlock()
	t.explain.Failovers = append(slices.Clip(t.explain.Failovers), Failover{ch.p.Name(), t.moved.Load(), ch.down})
}

// endPart ends a transfer that is a piece of another one; only the first call counts. No lock may
// be held.
func (t *Transfer) endPart(err error) {
	t.mu.Lock()
	if t.end.Load() != endOpen {
		t.mu.Unlock()
		return
	}
	t.end.Store(endBegun)
	t.err = err
	if t.late != nil {
		t.late.Stop()
	}
	proof := t.proof
	t.mu.Unlock()
	s := t.part
	s.mu.Lock()
	s.ops += t.ops
	s.mu.Unlock()
	if err == nil {
		s.t.mu.Lock()
		s.t.proof = proof
		s.t.mu.Unlock()
	}
	t.release()
}
