package transfer

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/mem/vec"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer/path"
)

// ShareOptions modify Peer.Share. The zero value is usual.
type ShareOptions struct {
	// Copy asks for a copy of the bytes, which does not change any more, also where the peer's
	// memory could be borrowed.
	Copy bool
	// Digest proves the copy end to end, as PutOptions.Digest does. It implies Copy.
	Digest bool
	// Paths restricts the choice to these; nil allows all.
	Paths []string
	// Keep is how long a copy stays in memory after its last Release, for callers to come. It goes
	// at once when its memory is needed for something else, when the export is revoked, and when
	// the peer is lost.
	Keep time.Duration
}

// Shared is one caller's reference to bytes of a peer that all callers of this process share. Its
// methods may be called from any goroutine.
type Shared struct {
	e        *shareEntry
	released atomic.Bool
}

// Share gives access to what the peer exports under a name, the tensor or else the whole export.
// All callers that ask for the same at the same time get the same bytes: they are read once, into
// memory that counts against Options.Budget, or not at all where the peer's memory can be borrowed
// (Peer.Borrow). Each caller has a reference of its own and releases it.
//
// Each call looks the name up, which takes one round trip, and joins others only if it still names
// the same export: what was revoked or exported anew is never given out. A copy is as it was read.
// If the peer writes into an export in place, a call may join a copy from before that as long as a
// caller holds it or it is kept; a borrowed view changes with the peer's memory.
//
// When ctx ends the call returns, and the others go on; the read ends when no call waits for it any
// more. A failed read fails each call that waits for it, and the next call tries again.
func (p *Peer) Share(ctx context.Context, name string, o ShareOptions) (*Shared, error) {
	again := true // once, if the export went between the look-up and the read
	for {
		r, err := p.Lookup(ctx, name)
		if err != nil {
			return nil, err
		}
		s, err := p.share(ctx, r, o)
		if err != nil && again && ctx.Err() == nil && (errors.Is(err, path.ErrRevoked) || errors.Is(err, path.ErrKey)) {
			again = false
			continue
		}
		return s, err
	}
}

func (p *Peer) share(ctx context.Context, r *Remote, o ShareOptions) (*Shared, error) {
	kind := shareCopy
	switch {
	case r.Desc.Rights&path.Read == 0:
		return nil, fmt.Errorf("transfer: share %q of %s: the export permits %v: %w", r.Name, p, r.Desc.Rights,
			path.ErrRights)
	case o.Digest:
		kind = shareProven
	case !o.Copy && r.Desc.Whole && p.lends(o.Paths):
		kind = shareBorrow
	}
	s, err := p.node.shares.join(ctx, p, r, o, kind)
	if err != nil && kind == shareBorrow && ctx.Err() == nil && p.Err() == nil && !errors.Is(err, path.ErrRevoked) &&
		!errors.Is(err, path.ErrKey) {
		s, err = p.node.shares.join(ctx, p, r, o, shareCopy) // a path that cannot lend, or could not be set up
	}
	if err != nil {
		return nil, fmt.Errorf("transfer: share %q of %s: %w", r.Name, p, err)
	}
	return s, nil
}

// lends reports whether memory of the peer can perhaps be borrowed by one of the paths allowed.
func (p *Peer) lends(allowed []string) bool {
	if !p.SameHost() {
		return false
	}
	for _, d := range p.node.drivers {
		if d.Traits().Borrow && slices.Contains(p.info.Paths, d.Name()) &&
			(len(allowed) == 0 || slices.Contains(allowed, d.Name())) {
			return true
		}
	}
	return false
}

// Bytes are the shared bytes, valid until Release. They must not be written: others read them.
// Borrowed memory cannot be written; writes into a copy are found by builds with -tags invariants.
func (s *Shared) Bytes() []byte {
	if s.e.kind == shareBorrow {
		return s.e.view.Bytes
	}
	return s.e.span.Bytes()
}

// Tensor is a view of the bytes as the tensor that the peer exported, valid until Release; ok is
// false if it did not say that they are one.
func (s *Shared) Tensor() (t tensor.Tensor, ok bool) {
	d := s.e.remote.Tensor
	if d == nil {
		return t, false
	}
	t, err := tensor.New(s.e.remote.Name, *d, s.Bytes())
	return t, err == nil
}

// Borrowed reports whether the bytes are the peer's memory itself. Its export cannot be revoked to
// the end until they are released.
func (s *Shared) Borrowed() bool { return s.e.kind == shareBorrow }

// Stale reports whether later calls of Share will not be given these bytes: the export was revoked
// or the peer is lost. The bytes stay valid; a caller that holds borrowed ones should release them
// soon, because the peer waits for that.
func (s *Shared) Stale() bool {
	c := &s.e.peer.node.shares
	c.mu.Lock()
	defer c.mu.Unlock()
	return s.e.gone
}

// Explain is the account of the get that brought the bytes; empty but for the names when they are
// borrowed.
func (s *Shared) Explain() Explanation {
	if s.e.t != nil {
		return s.e.t.Explain()
	}
	return Explanation{Kind: "borrow", Peer: s.e.peer.String(), Bytes: s.e.size, Proof: path.ProofMemory}
}

// Release gives the reference up. A second call does nothing.
func (s *Shared) Release() {
	if !s.released.Swap(true) {
		s.e.peer.node.shares.leave(s.e)
	}
}

// ShareStats say what a node shares among its callers.
type ShareStats struct {
	Entries    int    // exports of peers whose bytes are here, or on their way
	References int    // callers that hold or wait for one
	Idle       int    // entries that are only kept
	Bytes      uint64 // in copies, by the size of what was copied

	Reads   uint64 // gets and borrows begun
	Joined  uint64 // calls that found one begun already
	Failed  uint64 // reads that failed
	Evicted uint64 // kept copies that went because memory was needed
}

// Shares are the node's figures about Peer.Share.
func (n *Node) Shares() ShareStats {
	c := &n.shares
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Entries, s.Idle = len(c.entries), c.idle.Len()
	return s
}

type shareKind uint8

const (
	shareCopy shareKind = iota
	shareProven
	shareBorrow
)

// shareKey names what callers share. Keys of exports are never used twice.
type shareKey struct {
	peer *Peer
	key  path.Key
	kind shareKind
}

// shareEntry is what callers share. What its mutex-guarded fields say holds for all of them; the
// others are set before done is closed.
type shareEntry struct {
	peer   *Peer
	remote *Remote
	kind   shareKind
	size   uint64
	done   chan struct{} // closed when the bytes are here or will not come
	cancel context.CancelFunc

	err   error
	t     *Transfer
	block mem.Block
	span  mem.Span
	view  path.View
	sum   uint32 // with -tags invariants

	// Guarded by the mutex of shares.
	refs  int
	ready bool
	gone  bool // not in the table any more: goes with its last reference
	keep  time.Duration
	idle  *list.Element // when it has no references
	timer *time.Timer
}

// shares is the table of a node.
type shares struct {
	mu      sync.Mutex // guards what follows; never held while memory is taken, given back or read
	entries map[shareKey]*shareEntry
	idle    list.List // of *shareEntry, the one released last at the front
	stats   ShareStats
}

func (e *shareEntry) key() shareKey { return shareKey{e.peer, e.remote.Desc.Key, e.kind} }

// join waits for the bytes of an export, and begins to read them if no other call has.
func (c *shares) join(ctx context.Context, p *Peer, r *Remote, o ShareOptions, kind shareKind) (*Shared, error) {
	size := r.Size()
	if r.Tensor != nil {
		var err error
		if size, err = tensorSize(*r.Tensor); err != nil {
			return nil, err
		}
	}
	var old *shareEntry
	c.mu.Lock()
	e := c.entries[shareKey{p, r.Desc.Key, kind}]
	if e != nil && (e.remote.Generation != r.Generation || e.remote.Tag != r.Tag || e.size != size) {
		// a peer that says something new of an old key
		old, e = c.drop(e), nil
	}
	if e != nil {
		c.stats.Joined++
		c.busy(e)
		e.keep = max(e.keep, o.Keep)
	} else {
		if err := p.enter(); err != nil {
			c.mu.Unlock()
			old.free()
			return nil, err
		}
		e = &shareEntry{peer: p, remote: r, kind: kind, size: size, keep: o.Keep, done: make(chan struct{})}
		var rctx context.Context
		rctx, e.cancel = context.WithCancel(p.ctx)
		c.entries[e.key()] = e
		c.stats.Reads++
		go func() {
			defer p.node.wg.Done()
			c.read(rctx, e, o)
		}()
	}
	e.refs++
	c.stats.References++
	c.mu.Unlock()
	old.free()
	select {
	case <-e.done:
	case <-ctx.Done():
		select {
		case <-e.done:
		default:
			c.leave(e)
			return nil, ctx.Err()
		}
	}
	if e.err != nil {
		c.leave(e)
		return nil, e.err
	}
	return &Shared{e: e}, nil
}

// read fetches the bytes of an entry.
func (c *shares) read(ctx context.Context, e *shareEntry, o ShareOptions) {
	defer e.cancel()
	p, err := e.peer, error(nil)
	if e.kind == shareBorrow {
		e.view, err = p.Borrow(ctx, e.remote, 0, e.size)
	} else if e.block, err = p.node.landing(e.size); err == nil {
		e.span, _ = e.block.Whole().Sub(0, e.size)
		e.t, err = p.Get(ctx, []path.Copy{e.remote.At(0, e.span)},
			PutOptions{Paths: o.Paths, Digest: e.kind == shareProven})
		if err == nil {
			<-e.t.Done() // also when ctx ends, which cancels it: only then is nothing written any more
			err = e.t.Err()
		}
		if err != nil {
			p.node.pool.Free(e.block)
			e.block = mem.Block{}
		} else if invariants.Enabled {
			e.sum = vec.CRC32C(0, e.span.Bytes())
		}
	}
	if lost := p.Err(); err != nil && lost != nil {
		err = lost
	}
	e.err = err
	var old *shareEntry
	c.mu.Lock()
	if err != nil {
		c.stats.Failed++
		c.drop(e) // so that the next call tries again
	} else {
		e.ready = true
		if e.kind != shareBorrow {
			c.stats.Bytes += e.size
		}
		if e.refs == 0 { // all calls have left meanwhile
			old = c.drop(e)
		}
	}
	close(e.done)
	c.mu.Unlock()
	old.free()
}

// leave gives one reference back.
func (c *shares) leave(e *shareEntry) {
	var old *shareEntry
	c.mu.Lock()
	e.refs--
	c.stats.References--
	switch {
	case e.refs > 0:
	case !e.ready:
		e.cancel() // no call waits for it
		c.drop(e)
	case e.gone || e.keep <= 0 || e.kind == shareBorrow:
		old = c.drop(e)
	default:
		e.idle = c.idle.PushFront(e)
		mine := e.idle
		e.timer = time.AfterFunc(e.keep, func() {
			var old *shareEntry
			c.mu.Lock()
			if e.idle == mine { // no call took it meanwhile
				old = c.drop(e)
			}
			c.mu.Unlock()
			old.free()
		})
	}
	c.mu.Unlock()
	old.free()
}

// busy ends the time in which an entry is only kept. The mutex is held.
func (c *shares) busy(e *shareEntry) {
	if e.idle != nil {
		e.timer.Stop()
		c.idle.Remove(e.idle)
		e.idle = nil
	}
}

// drop takes an entry out of the table; callers that hold it keep it. The caller frees the result
// once the mutex is free: nil when the entry has references or nothing is there. The mutex is held.
func (c *shares) drop(e *shareEntry) *shareEntry {
	if !e.gone {
		e.gone = true
		delete(c.entries, e.key())
	}
	c.busy(e)
	if e.refs > 0 || !e.ready {
		return nil
	}
	e.ready = false
	if e.kind != shareBorrow {
		c.stats.Bytes -= e.size
	}
	return e
}

// free gives the memory of an entry back that drop returned.
func (e *shareEntry) free() {
	if e == nil {
		return
	}
	if e.kind == shareBorrow {
		e.view.Release()
		return
	}
	if invariants.Enabled && vec.CRC32C(0, e.span.Bytes()) != e.sum {
		panic(fmt.Sprintf("transfer: somebody wrote into the shared bytes of %q, which others read", e.remote.Name))
	}
	e.peer.node.pool.Free(e.block)
}

// revoked drops what is shared of an export.
func (c *shares) revoked(p *Peer, key path.Key) {
	c.forget(slices.Values([]shareKey{{p, key, shareCopy}, {p, key, shareProven}, {p, key, shareBorrow}}))
}

// lost drops what is shared of a peer that is gone.
func (c *shares) lost(p *Peer) {
	c.forget(func(yield func(shareKey) bool) {
		for k := range c.entries {
			if k.peer == p && !yield(k) {
				return
			}
		}
	})
}

func (c *shares) forget(keys iter.Seq[shareKey]) {
	var old []*shareEntry
	c.mu.Lock()
	for k := range keys {
		if e := c.entries[k]; e != nil {
			old = append(old, c.drop(e))
		}
	}
	c.mu.Unlock()
	for _, e := range old {
		e.free()
	}
}

// evict gives up the copy that was not used for longest, and returns false when none is idle.
func (c *shares) evict() bool {
	var old *shareEntry
	c.mu.Lock()
	if last := c.idle.Back(); last != nil {
		old = c.drop(last.Value.(*shareEntry))
		c.stats.Evicted++
	}
	c.mu.Unlock()
	old.free()
	return old != nil
}

// landing takes memory for n bytes that a peer has, from the budget that pushed tensors and shared
// copies have together. Copies that are only kept make room.
func (n *Node) landing(size uint64) (mem.Block, error) {
	for {
		b, err := n.pool.Alloc(max(size, 1))
		if err == nil || !errors.Is(err, mem.ErrBudget) || size > n.opts.Budget || !n.shares.evict() {
			return b, err
		}
	}
}
