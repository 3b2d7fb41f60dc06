package transfer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/inbox"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/sched"
)

// Prepared is a list of blocks that is posted many times, such as those of a KV cache: it was
// checked, leased and registered once. Each post is a transfer as any other: it takes its turn,
// changes its path when one goes down, and is explained and counted. It may be posted again when
// the post before it has ended. Its methods may be called from any goroutine.
type Prepared struct {
	peer *Peer
	of   *Transfer // holds the memory; it is never begun itself
	list []path.Copy
	o    PutOptions

	mu      sync.Mutex // guards what follows
	changes uint64     // of the peer, when its exports were looked at last
	last    *Transfer
	closed  bool
}

// Prepare checks a list for puts (path.Put) or gets (path.Get) and holds its memory until Close.
// The list is copied. A stream is refused: posts of one list follow each other anyway.
func (p *Peer) Prepare(kind path.OpKind, copies []path.Copy, o PutOptions) (*Prepared, error) {
	if kind != path.Put && kind != path.Get {
		return nil, fmt.Errorf("transfer: prepare: %v: expected path.Put or path.Get", kind)
	}
	if o.Stream != 0 {
		return nil, errors.New("transfer: prepare: PutOptions.Stream: expected 0")
	}
	if err := may(p.ctx, kind, &o); err != nil {
		return nil, p.outcome(err, nil)
	}
	r := &Prepared{peer: p, o: o, list: slices.Clone(copies),
		of:      &Transfer{request: request{kind: kind, peer: p, priority: o.Priority}},
		changes: p.changes.Load()}
	r.o.Msg, r.o.Paths = slices.Clone(o.Msg), slices.Clone(o.Paths)
	if err := p.make(r.of, r.list, &r.o); err != nil {
		return nil, err
	}
	if err := p.pin(r.of, kind, r.list); err != nil {
		r.of.unpin()
		return nil, p.lostOr(err)
	}
	return r, nil
}

// Post begins the transfer of the list. It takes no memory from the heap where the post before it
// succeeded on its first path, and neither has a context that can end: then both are one Transfer,
// which belongs to the later post. The error wraps mem.ErrInUse while the post before it is under
// way; otherwise it is that of Put.
func (r *Prepared) Post(ctx context.Context) (*Transfer, error) {
	t, err := r.post(ctx)
	if err != nil {
		r.peer.account.Rejected(r.of.kind, err)
	}
	return t, err
}

func (r *Prepared) post(ctx context.Context) (*Transfer, error) {
	p, now := r.peer, clock()
	if err := may(ctx, r.of.kind, &r.o); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, fmt.Errorf("transfer: the prepared list is closed: %w", ErrClosed)
	}
	if r.last != nil && !r.last.ended() {
		return nil, fmt.Errorf("transfer: the prepared list is under way as %v: %w", r.last.id, mem.ErrInUse)
	}
	if changes := p.changes.Load(); changes != r.changes {
		for _, e := range r.of.exports {
			if _, err := p.remote(e.Key); err != nil {
				return nil, err
			}
		}
		r.changes = changes
	}
	if r.last == nil || !r.last.idle() {
		r.last = &Transfer{}
	}
	t := r.last
	t.again(r)
	t.explain.Times.start(now)
	if err := p.take(t, sched.Grant{}); err != nil {
		t.release()
		return nil, err
	}
	if err := p.set(ctx, t); err != nil {
		t.release()
		return nil, err
	}
	return t, nil
}

// Close waits for the post that is under way, and gives the memory back.
func (r *Prepared) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	if r.last != nil {
		<-r.last.Done()
	}
	r.of.unpin()
	return nil
}

// idle reports whether nothing of a transfer that has ended is left that could still touch it: no
// callback of a context, no timer, no digester.
func (t *Transfer) idle() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ended() && t.err == nil && t.stopCtx == nil && t.late == nil && t.digest == nil && t.tries == 0 &&
		t.because.Load() == nil && t.reach == reachHost
}

// again makes a transfer that is new or idle the next post of a list.
func (t *Transfer) again(r *Prepared) {
	of := r.of
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kind, t.peer, t.priority, t.bytes = of.kind, of.peer, of.priority, of.bytes
	t.allowed, t.floor, t.exports, t.devices, t.reach = of.allowed, of.floor, of.exports, of.devices, of.reach
	t.id = t.peer.node.nextID()
	t.msg = append(inbox.Header{Kind: t.kind, Tag: r.o.Tag, Number: t.id.Number(), Bytes: t.bytes}.Append(t.msg[:0]),
		r.o.Msg...)
	t.m = of.m
	t.ops, t.sole, t.posted = 0, 0, 0
	t.moved.Store(0)
	t.done, t.channel, t.callbacks, t.abort = nil, nil, nil, nil
	t.chosen, t.explain = chosen{}, noted{Blocks: of.explain.Blocks}
	t.end.Store(endOpen)
}
