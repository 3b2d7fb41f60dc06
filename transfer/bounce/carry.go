package bounce

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/state"
)

// Session is what a Peer needs of the session with it, and of the node at this side.
type Session interface {
	// Ask sends a request and returns the answer. Of a Place or Fetch it returns when nothing moves
	// any more, or the session is lost.
	Ask(q control.Query) (*control.Response, error)
	// Device finds a block of an export of memory of a device that the peer may use with all the
	// rights wanted. It stays until done is called. Without rights the block stands for all of the
	// export, of which the peer has to have any right.
	Device(b control.Block, want path.Rights) (s mem.Span, done func(), err error)
	// Lend exports memory to the peer alone.
	Lend(s mem.Span) (Export, error)
}

// Export is memory that a peer may name.
type Export interface {
	Desc() path.Desc
	Revoke(ctx context.Context) error
}

// Peer is what one session is lent and lends. Its methods may be called from any goroutine.
type Peer struct {
	memory  *Memory
	session Session
	ctx     context.Context
	lending lending // slots to the peer
	leased  leased  // slots of the peer
}

// NewPeer is for a session that ctx lasts as long as; its cause says why the session ended.
func NewPeer(ctx context.Context, m *Memory, s Session) *Peer {
	return &Peer{memory: m, session: s, ctx: ctx}
}

// Carrier is the transfer whose bytes are carried. Its methods are called by the goroutines of
// pieces, several at once.
type Carrier interface {
	// Move begins to move a piece by a path.
	Move(p *Piece) Move
	// Ended says what became of a piece.
	Ended(p *Piece, err error)
}

// Move is a piece on its path.
type Move interface {
	// Ended reports whether nothing of it moves any more.
	Ended() bool
	// Wait waits until nothing of it moves any more, which is soon once ctx has ended.
	Wait(ctx context.Context) error
}

// Work is what is to be carried.
type Work struct {
	Kind   path.OpKind
	Copies []path.Copy
	At     state.Cursor      // from here on
	Bytes  uint64            // of the whole transfer: its pieces take small slots, or large ones
	Far    map[path.Key]bool // exports of the peer that are memory of devices
	Blocks int               // of one request, at most
	Plain  uint64            // bytes of a piece that needs no slot, at most
}

// Piece is a part of the work whose bytes are in memory of the same kind.
type Piece struct {
	At     state.Cursor
	Bytes  uint64
	Copies []path.Copy // what the path moves: between the slots, where there are any
	Lent   *path.Desc  // the peer's export with the slot, where there is one: all Copies name it
	// Local and Remote are what was copied between devices and slots, at either side.
	Local, Remote Copied

	local  mem.Mover // nil: the CPU reaches the memory
	slot   *slot     // with local
	remote bool      // the peer's is memory of a device
	leased leasedSlot
	spans  []mem.Span      // with local: of the device
	blocks []control.Block // with remote
}

// Copied is a copy between memory of a device and a slot; the zero value is none.
type Copied struct {
	Device string
	Slot   uint64 // bytes
	Under  int    // pieces that were under way
}

// Staged reports whether any byte of the piece takes a slot.
func (p *Piece) Staged() bool { return p.local != nil || p.remote }

// carrying is the work of one call of Carry.
type carrying struct {
	Work
	p     *Peer
	c     Carrier
	ctx   context.Context
	abort context.CancelFunc
	small bool
	turns chan struct{} // holds one element for each piece under way
	wg    sync.WaitGroup

	mu  sync.Mutex // guards err
	err error
}

// Carry moves all pieces, and returns when nothing of them moves any more. It ends early when ctx
// does.
func (p *Peer) Carry(ctx context.Context, w Work, c Carrier) error {
	if err := p.memory.begin(); err != nil {
		return err
	}
	defer p.memory.running.Done()
	s := p.carrying(ctx, w, c)
	defer s.abort()
	for s.skip() && s.next() {
	}
	s.wg.Wait()
	return s.result()
}

func (p *Peer) carrying(ctx context.Context, w Work, c Carrier) *carrying {
	s := &carrying{Work: w, p: p, c: c, small: w.Bytes <= p.memory.SmallSlot(), turns: make(chan struct{}, AtOnce)}
	s.ctx, s.abort = context.WithCancel(ctx)
	return s
}

// result is why not all is carried, once no piece is under way.
func (s *carrying) result() error {
	if s.err == nil {
		s.err = s.ctx.Err()
	}
	return s.err
}

// fail notes why the work fails, and stops it.
func (s *carrying) fail(err error) {
	s.mu.Lock()
	if s.err == nil || errors.Is(s.err, context.Canceled) || errors.Is(s.err, path.ErrCanceled) {
		s.err = err
	}
	s.mu.Unlock()
	s.abort()
}

// skip passes over empty blocks, and reports whether there is another one.
func (s *carrying) skip() bool {
	for s.At.Block < len(s.Copies) && s.Copies[s.At.Block].Local.Len == s.At.Off {
		s.At = state.Cursor{Block: s.At.Block + 1, Done: s.At.Done}
	}
	return s.At.Block < len(s.Copies)
}

// next takes what the next piece needs and begins it; it returns false when there will be no more.
func (s *carrying) next() bool {
	select {
	case s.turns <- struct{}{}:
	case <-s.ctx.Done():
		return false
	}
	first := s.Copies[s.At.Block]
	pc := &Piece{At: s.At, local: Mover(first.Local), remote: s.Far[first.Key]}
	most := s.Plain
	var err error
	if pc.remote { // before the slot of this node: see the package comment
		if pc.leased, err = s.p.take(s.ctx, s.small, first.Key); err == nil {
			most = pc.leased.of.l.SlotSize
		}
	}
	if err == nil && pc.local != nil {
		pool := &s.p.memory.pools[class(s.small)]
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
		s.end(pc, s.carry(pc))
	}()
	return true
}

// end ends a piece.
func (s *carrying) end(pc *Piece, err error) {
	s.release(pc)
	if err != nil {
		s.fail(err)
	}
	s.c.Ended(pc, err)
}

// release gives back what a piece took.
func (s *carrying) release(pc *Piece) {
	if pc.slot != nil {
		s.p.memory.pools[class(s.small)].give(pc.slot)
	}
	if pc.leased.of != nil {
		s.p.give(pc.leased, s.small)
	}
	<-s.turns
}

// cut makes a piece of the next bytes, as far as they are in memory of the same kind.
func (s *carrying) cut(pc *Piece, most uint64) {
	for s.skip() && pc.Bytes < most {
		c := s.Copies[s.At.Block]
		m := Mover(c.Local)
		if (m != nil) != (pc.local != nil) || m != nil && m.Device() != pc.local.Device() ||
			s.Far[c.Key] != pc.remote || len(pc.Copies) >= s.Blocks {
			break
		}
		take := min(c.Local.Len-s.At.Off, most-pc.Bytes)
		pc.Copies = state.Append(pc.Copies, s.Copies, &s.At, take)
		pc.Bytes += take
	}
	for _, c := range pc.Copies {
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
	if pc.remote {
		pc.Lent = &pc.leased.of.l.Desc
	}
	var out []path.Copy
	at := uint64(0)
	for _, c := range pc.Copies {
		n := c.Local.Len
		if pc.local != nil {
			c.Local = mem.Span{Region: pc.slot.region, Off: at, Len: n}
		}
		if pc.remote {
			c.Key, c.RemoteOff = pc.Lent.Key, pc.leased.off()+at
		}
		at += n
		if pc.local != nil && pc.remote && len(out) > 0 {
			out[0].Local.Len += n
			continue
		}
		out = append(out, c)
	}
	pc.Copies = out
}

// carry moves a piece. It returns when nothing of it moves any more.
func (s *carrying) carry(pc *Piece) error {
	put := s.Kind == path.Put
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
	if err := s.c.Move(pc).Wait(s.ctx); err != nil {
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
func (s *carrying) local(pc *Piece, store bool) error {
	if s.ctx.Err() != nil { // no copy begins after the end
		return s.ctx.Err()
	}
	if err := moveAll(store, pc.slot.span(pc.Bytes), pc.spans); err != nil {
		return fmt.Errorf("transfer: %w", err)
	}
	pc.Local = Copied{pc.local.Device(), s.p.memory.pools[class(s.small)].size, len(s.turns)}
	return nil
}

// ask has the peer copy between its device and the piece's slot there.
func (s *carrying) ask(pc *Piece) error {
	if s.ctx.Err() != nil {
		return s.ctx.Err()
	}
	l := &pc.leased.of.l
	var q control.Query = &control.Fetch{Lease: l.Desc.Key, Slot: pc.leased.slot, Blocks: pc.blocks}
	if s.Kind == path.Put {
		q = &control.Place{Lease: l.Desc.Key, Slot: pc.leased.slot, Blocks: pc.blocks}
	}
	// Also a transfer that is canceled waits for the answer: only then does nothing move any more.
	if _, err := s.p.session.Ask(q); err != nil {
		return err
	}
	pc.Remote = Copied{l.Device, l.SlotSize, len(s.turns)}
	return nil
}
