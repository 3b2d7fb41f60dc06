package transfer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/sched"
	"github.com/penstock-io/penstock/transfer/state"
)

// Staging, last part: a transfer some of whose bytes are in memory that a CPU cannot reach, and that no path of this peer reaches
// by itself. It is cut into pieces; each takes the slots that it needs, is loaded into them, moved by a transfer of its own,
// which neither application sees, and stored from them. Several pieces are under way at once. When all are in place the transfer
// is left with its notification, and ends as every other one.

// stager does that for one transfer.
type stager struct {
	t      *Transfer
	p      *Peer
	ctx    context.Context
	abort  context.CancelFunc
	small  bool
	far    map[path.Key]bool // exports that are memory of devices
	copies []path.Copy
	room   int // blocks in one request
	at     state.Cursor
	turns  chan struct{} // holds one element for each piece under way
	wg     sync.WaitGroup

	mu    sync.Mutex // guards what follows; may be taken under the mutex of a lane
	err   error
	flows map[*lane]*sched.Flow[*Transfer] // the transfer's place in queues: its pieces share it; the flow is its lane's
	last  *lane                            // that a piece took
	gone  []*lane                          // that went down under pieces
	ops   int
}

// piece is a part of a transfer whose bytes are in memory of the same kind.
type piece struct {
	at     state.Cursor
	bytes  uint64
	copies []path.Copy
	local  mem.Mover       // nil: the CPU reaches the memory
	slot   *stagingSlot    // with local
	remote bool            // the peer's is memory of a device
	leased leasedSlot      // with remote
	spans  []mem.Span      // with local: of the device
	blocks []control.Block // with remote
}

// maxPlainPiece is the most bytes of a piece that needs no staging.
const maxPlainPiece = 2 * PieceSize

// stage moves a transfer by a path that reaches its memory if there is one, and else by staging. It does not wait.
func (p *Peer) stage(t *Transfer) {
	ctx, abort := context.WithCancel(p.ctx)
	if !p.node.staging.begin() {
		abort()
		t.complete(ErrClosed)
		return
	}
	t.mu.Lock()
	t.abort = abort
	t.mu.Unlock()
	if t.canceled() { // before it could be aborted
		abort()
	}
	s := &stager{t: t, p: p, copies: t.m.Copies(), ctx: ctx, abort: abort, small: p.node.staging.small(t.bytes), at: t.m.At(), far: map[path.Key]bool{},
		room: control.StagedRoom(p.maxBody()), turns: make(chan struct{}, stagedAtOnce), flows: map[*lane]*sched.Flow[*Transfer]{}}
	if pc := s.lone(); pc != nil {
		s.carryHere(pc)
		return
	}
	go func() {
		err := error(nil)
		if p.unsettled() {
			err = p.settle(ctx)
		}
		var direct *lane
		if allowed, ok := p.directPaths(t); ok && err == nil {
			direct, _ = p.choose(ctx, t, t.exports, allowed)
		}
		if err == nil && direct == nil {
			if err = s.run(); err == nil {
				direct, err = s.carried()
			}
		}
		s.finish(direct, err)
	}()
}

// misses reports whether an operation ended because its path does not reach memory of devices that it was taken for: the peer knows only when
// it is asked whether its adapter gets at an export. Nothing of the operation moved, and nothing will.
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

// directPaths restricts the choice of a path that reaches memory of devices by itself: one that went down under the transfer is
// not tried again, since there is staging. It returns false when there is none, or one did not reach it after all.
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

// run moves all pieces, and returns when nothing of them moves any more.
func (s *stager) run() error {
	t := s.t
	for _, e := range t.exports {
		if e.Device {
			s.far[e.Key] = true
		}
	}
	if t.digest != nil {
		t.digest.start()
	}
	s.begun()
	for s.skip() && s.next() {
	}
	s.wg.Wait()
	return s.over()
}

// fail notes why the transfer fails, and stops it.
func (s *stager) fail(err error) {
	s.mu.Lock()
	if s.err == nil || errors.Is(s.err, context.Canceled) || errors.Is(s.err, path.ErrCanceled) {
		s.err = err
	}
	s.mu.Unlock()
	s.abort()
}

// skip passes over empty blocks, and reports whether there is another one.
func (s *stager) skip() bool {
	for s.at.Block < len(s.copies) && s.copies[s.at.Block].Local.Len == s.at.Off {
		s.at = state.Cursor{Block: s.at.Block + 1, Done: s.at.Done}
	}
	return s.at.Block < len(s.copies)
}

// next takes what the next piece needs and begins it; it returns false when there will be no more.
func (s *stager) next() bool {
	select {
	case s.turns <- struct{}{}:
	case <-s.ctx.Done():
		return false
	}
	first := s.copies[s.at.Block]
	pc := &piece{at: s.at, local: moverOf(first.Local), remote: s.far[first.Key]}
	most := uint64(maxPlainPiece)
	var err error
	if pc.remote { // before the slot of this node: see slots.go
		if pc.leased, err = s.p.takeLeased(s.ctx, s.small, first.Key); err == nil {
			most = pc.leased.of.l.SlotSize
		}
	}
	if err == nil && pc.local != nil {
		pool := &s.p.node.staging.pools[class(s.small)]
		most = min(most, pool.size)
		pc.slot, err = pool.take(s.ctx, pc.local)
	}
	if err != nil {
		s.release(pc)
		s.fail(err)
		return false
	}
	s.cut(pc, most)
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		s.ended(pc, s.carry(pc))
	}()
	return true
}

// ended ends a piece.
func (s *stager) ended(pc *piece, err error) {
	s.release(pc)
	if err != nil {
		s.fail(err)
		return
	}
	s.t.moved.Add(pc.bytes)
	if s.t.digest != nil {
		s.t.digest.place(state.Segment{At: pc.at, Bytes: pc.bytes})
	}
}

// release gives back what a piece took.
func (s *stager) release(pc *piece) {
	if pc.slot != nil {
		s.p.node.staging.pools[class(s.small)].give(pc.slot)
	}
	if pc.leased.of != nil {
		s.p.giveLeased(pc.leased, s.small)
	}
	<-s.turns
}

// moverOf is how bytes get to and from local memory that the CPU cannot reach; nil where it can.
func moverOf(s mem.Span) mem.Mover {
	if s.Bytes() != nil {
		return nil
	}
	return s.Region.Mover()
}

// cut makes a piece of the next bytes, as far as they are in memory of the same kind.
func (s *stager) cut(pc *piece, most uint64) {
	for s.skip() && pc.bytes < most {
		c := s.copies[s.at.Block]
		m := moverOf(c.Local)
		if (m != nil) != (pc.local != nil) || m != nil && m.Device() != pc.local.Device() || s.far[c.Key] != pc.remote || len(pc.copies) >= s.room {
			break
		}
		take := min(c.Local.Len-s.at.Off, most-pc.bytes)
		pc.copies = state.Append(pc.copies, s.copies, &s.at, take)
		pc.bytes += take
	}
	for _, c := range pc.copies {
		if pc.local != nil {
			pc.spans = append(pc.spans, c.Local)
		}
		if pc.remote {
			pc.blocks = append(pc.blocks, control.Block{Key: c.Key, Off: c.RemoteOff, Len: c.Local.Len})
		}
	}
	if pc.local == nil && !pc.remote {
		return
	}
	// What the path moves: between the slots, where there are any.
	var out []path.Copy
	at := uint64(0)
	for _, c := range pc.copies {
		n := c.Local.Len
		if pc.local != nil {
			c.Local = mem.Span{Region: pc.slot.region, Off: at, Len: n}
		}
		if pc.remote {
			c.Key, c.RemoteOff = pc.leased.of.l.Desc.Key, pc.leased.off()+at
		}
		at += n
		if pc.local != nil && pc.remote && len(out) > 0 {
			out[0].Local.Len += n
			continue
		}
		out = append(out, c)
	}
	pc.copies = out
}

// carry moves a piece. It returns when nothing of it moves any more.
func (s *stager) carry(pc *piece) error {
	put := s.t.kind == path.Put
	if put && pc.local != nil {
		if err := s.local(pc, false); err != nil {
			return err
		}
	}
	if !put && pc.remote {
		if err := s.ask(pc); err != nil {
			return err
		}
	}
	if err := s.move(pc); err != nil {
		return err
	}
	if put && pc.remote {
		return s.ask(pc)
	}
	if !put && pc.local != nil {
		return s.local(pc, true)
	}
	return nil
}

// local copies between this side's device and the piece's slot.
func (s *stager) local(pc *piece, store bool) error {
	if s.ctx.Err() != nil { // no copy begins after the end
		return s.ctx.Err()
	}
	if err := moveAll(store, pc.slot.span(pc.bytes), pc.spans); err != nil {
		return fmt.Errorf("transfer: %s: %w", kindName(s.t.kind), err)
	}
	t := s.t
	t.mu.Lock()
	defer t.mu.Unlock()
	x := &t.explain.more().Local
	x.Device = pc.local.Device()
	x.add(pc.bytes, s.p.node.staging.pools[class(s.small)].size, len(s.turns))
	t.explain.more().Staged += pc.bytes
	return nil
}

// ask has the peer copy between its device and the piece's slot there.
func (s *stager) ask(pc *piece) error {
	if s.ctx.Err() != nil {
		return s.ctx.Err()
	}
	l := &pc.leased.of.l
	var q control.Query = &control.Fetch{Lease: l.Desc.Key, Slot: pc.leased.slot, Blocks: pc.blocks}
	if s.t.kind == path.Put {
		q = &control.Place{Lease: l.Desc.Key, Slot: pc.leased.slot, Blocks: pc.blocks}
	}
	// Also a transfer that is canceled waits for the answer: only then does nothing move any more.
	if _, err := s.p.request(s.p.ctx, q); err != nil {
		var said *control.Error
		if errors.Is(err, control.Timeout) && (!errors.As(err, &said) || !said.Remote) {
			// Its device may still write. A session that is lost is quiet before the next one begins.
			s.p.fail(fmt.Errorf("%w: no answer about staged bytes: %w", path.ErrDown, err))
			<-s.p.gone
		}
		return s.p.lostOr(err)
	}
	t := s.t
	t.mu.Lock()
	defer t.mu.Unlock()
	x := &t.explain.more().Remote
	x.Device = l.Device
	x.add(pc.bytes, l.SlotSize, len(s.turns))
	t.explain.more().Staged += pc.bytes
	return nil
}

// move moves a piece by a path.
func (s *stager) move(pc *piece) error { return s.await(pc, s.post(pc)) }

// post begins to move a piece by a path.
func (s *stager) post(pc *piece) *Transfer {
	t := s.t
	c := &Transfer{kind: t.kind, peer: s.p, bytes: pc.bytes, id: t.id, priority: t.priority, allowed: t.allowed, floor: t.floor, part: s,
		m: state.New(t.kind, pc.copies, pc.bytes, state.NotAsked, true)}
	c.explain.Times.start(clock())
	if pc.remote {
		c.exports = append(c.oneExport[:0], pc.leased.of.l.Desc)
	} else {
		c.exports = c.oneExport[:0]
		for i, k := range pc.copies {
			if i > 0 && pc.copies[i-1].Key == k.Key {
				continue
			}
			for _, e := range t.exports {
				if e.Key == k.Key {
					c.exports = append(c.exports, e)
					break
				}
			}
		}
	}
	s.p.start(c)
	return c
}

// await waits for the end of what post has begun.
func (s *stager) await(pc *piece, c *Transfer) error {
	t := s.t
	if !c.ended() {
		select {
		case <-c.Done():
		case <-s.ctx.Done():
			c.Cancel()
			<-c.Done()
		}
	}
	if c.err != nil && pc.local == nil && !pc.remote {
		t.moved.Add(c.moved.Load()) // what is in place of it
	}
	return c.err
}

// flow is the place of the transfer's pieces in the queue of a lane, whose mutex is held.
func (s *stager) flow(l *lane) *sched.Flow[*Transfer] {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.flows[l]
	if f == nil {
		f = new(sched.Flow[*Transfer])
		s.flows[l] = f
	}
	return f
}

// chose takes note of the lane that a piece takes.
func (s *stager) chose(c *Transfer, l *lane, cs []Candidate, at int) {
	s.mu.Lock()
	first, changed := s.last == nil, s.last != nil && s.last != l && slices.Contains(s.gone, s.last)
	if first || changed {
		s.last = l
	}
	s.mu.Unlock()
	if !first && !changed {
		return
	}
	t := s.t
	t.peer.transferPath(t, cs[at].Path, at)
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

// lost takes note of a lane that went down under a piece.
func (s *stager) lost(l *lane) {
	s.mu.Lock()
	known := slices.Contains(s.gone, l)
	if !known {
		s.gone = append(s.gone, l)
	}
	s.mu.Unlock()
	if known {
		return
	}
	t := s.t
	t.mu.Lock()
	defer t.mu.Unlock()
	t.explain.Failovers = append(slices.Clip(t.explain.Failovers), Failover{l.p.Name(), t.moved.Load(), l.down})
}

// endPart ends a transfer that is a piece of another one; only the first call counts. No lock may be held.
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
