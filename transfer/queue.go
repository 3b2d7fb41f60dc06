package transfer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/transfer/fence"
	"github.com/penstock-io/penstock/transfer/path"
)

// Queue is a path of its own between two nodes for callers that count nanoseconds: batches in,
// events out, no allocation, no goroutine. The caller is the path's owner: Post, Poll, Wait, Arm,
// Cancel and Close are called by one goroutine at a time, and the peer's requests on this queue are
// served only inside them. The caller holds leases on the local regions of what it posts.
// Notifications are the raw ones of package path.
type Queue struct {
	peer   *Peer
	name   string
	p      path.Path
	waiter *path.Waiter
	grant  *grant                // of what the path takes
	dead   atomic.Pointer[error] // set by the peer when it is lost
	closed atomic.Bool
	held   []path.Event           // not reported before the peer's session is known to live or to be lost
	judged atomic.Bool            // it is
	told   bool                   // the path has reported EventDown
	again  bool                   // a fence found the window full
	user   atomic.Bool            // Interrupt was called
	inside atomic.Pointer[string] // the method that runs now; only in builds with -tags invariants

	after sync.Mutex // owns the path once closed is set

	pending atomic.Bool // fences are waiting for the owner
	mu      sync.Mutex  // guards what follows
	state   queueState
	fences  fence.Set
}

type queueState uint8

const (
	queueOffered queueState = iota // AcceptQueue has not taken it yet, so nothing was served by it
	queueOwned
	queueClosed
)

// QueueOptions describe a queue to open.
type QueueOptions struct {
	Security   path.Security // the least that the path must give; see Options.Security
	Path       string        // "shm", "tcp"; "" takes the cheapest that can be set up
	Name       string        // the accepting node finds the queue by it; "" names the default queue
	Window     int           // 0: setup.DefaultWindow
	Streams    int
	NoChecksum bool
}

func newQueue(peer *Peer, name string, p path.Path, g *grant, state queueState) (*Queue, error) {
	w, err := path.NewWaiter()
	if err != nil {
		p.Close()
		g.release()
		return nil, err
	}
	q := &Queue{peer: peer, name: name, p: p, grant: g, waiter: w, state: state}
	peer.addQueue(q)
	return q, nil
}

// accept gives an offered queue to its owner; it returns false when the peer was lost before.
func (q *Queue) accept() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state != queueOffered {
		return false
	}
	q.state = queueOwned
	return true
}

// Peer is the node at the other end.
func (q *Queue) Peer() *Peer { return q.peer }

// Name is the name both sides agreed on.
func (q *Queue) Name() string { return q.name }

// Path is the path below, for its Capabilities, Stats, Explain and Borrow. Its owner is the caller
// of this Queue.
func (q *Queue) Path() path.Path { return q.p }

// Post hands over operations; see path.Path. Tokens must be below 1<<63. When the path is down the
// error wraps path.ErrDown; whether the peer is lost is known when Poll reports path.EventDown.
func (q *Queue) Post(ops []path.Op) (int, error) {
	if invariants.Enabled {
		q.own(&inPost)
		defer q.leave()
	}
	if q.dead.Load() != nil {
		return 0, q.lost()
	}
	n, err := q.p.Post(ops)
	if err != nil && errors.Is(err, path.ErrUnreachable) {
		err = q.unreachable(err)
	}
	return n, err
}

// unreachable says what helps with memory that the path does not reach: a queue is the bare path,
// and stages nothing.
func (q *Queue) unreachable(err error) error {
	return fmt.Errorf("transfer: queue %q: %w (memory of a device is moved by Peer.Put and Peer.Get)", q.name, err)
}

// Poll makes progress and fills events; see path.Path.
func (q *Queue) Poll(events []path.Event) int {
	if invariants.Enabled {
		q.own(&inPoll)
		defer q.leave()
	}
	return q.poll(events)
}

// The methods of a queue's owner, as own knows them.
var inPost, inPoll, inWait, inCancel = "Post", "Poll", "Wait", "Cancel"

// own panics if another goroutine is inside a method of the owner's; leave follows at the end of
// this one.
func (q *Queue) own(method *string) {
	if other := q.inside.Swap(method); other != nil {
		invariants.Broken("transfer: queue %q: %s while another goroutine is inside %s: a queue has one owner, one "+
			"goroutine at a time",
			q.name, *method, *other)
	}
}

func (q *Queue) leave() { q.inside.Store(nil) }

func (q *Queue) poll(events []path.Event) int {
	closed := q.closed.Load()
	if closed { // others may ask the path whether its peer has let go of memory
		q.after.Lock()
		defer q.after.Unlock()
	}
	if len(q.held) > 0 {
		return q.release(events)
	}
	if !closed && q.pending.Load() {
		q.postFences()
	}
	if !closed && q.dead.Load() != nil && !q.told {
		q.p.Close()
	}
	n := q.p.Poll(events)
	if !closed && q.again && n > 0 {
		q.again = false
		q.pending.Store(true)
	}
	return q.filter(events, n)
}

// filter keeps events of the queue's own fences from the caller.
func (q *Queue) filter(events []path.Event, n int) int {
	k := 0
	for i := range n {
		e := &events[i]
		if e.Kind == path.EventDone && e.Token&fence.Token != 0 {
			q.mu.Lock()
			q.fences.Ended(e)
			q.mu.Unlock()
			continue
		}
		switch {
		case e.Err == nil:
		case errors.Is(e.Err, path.ErrUnreachable):
			e.Err = q.unreachable(e.Err)
		case errors.Is(e.Err, path.ErrDown) && !q.verdict():
			q.held = slices.Clone(events[i:n]) // the path is not polled meanwhile, so their messages stay
			return k
		default:
			e.Err = q.peer.outcome(e.Err, nil)
		}
		if e.Kind == path.EventDown {
			q.told = true
			if !q.closed.Load() {
				q.p.Close()
				q.pending.Store(true)
				q.postFences()
			}
		}
		if k != i {
			events[k] = *e
		}
		k++
	}
	return k
}

// verdict reports whether it is known that the session is lost or lives on. Otherwise it has the
// peer asked: when a process dies, the path may go down before the session does.
func (q *Queue) verdict() bool {
	if q.closed.Load() || q.dead.Load() != nil || q.judged.Load() {
		return true
	}
	p := q.peer
	if p.enter() != nil {
		return true
	}
	go func() {
		defer p.node.wg.Done()
		p.verdict(p.ctx, path.ErrDown)
		q.judged.Store(true)
		q.waiter.Interrupt()
	}()
	return false
}

// release reports what was held back.
func (q *Queue) release(events []path.Event) int {
	if !q.closed.Load() && q.dead.Load() == nil && !q.judged.Load() {
		return 0
	}
	n := copy(events, q.held)
	q.held = q.held[n:]
	return q.filter(events, n)
}

// Wait polls for up to spin and then sleeps until there are events, ctx ends, or Interrupt is
// called (0, nil). After path.EventDown it fails with path.ErrDown.
func (q *Queue) Wait(ctx context.Context, events []path.Event, spin time.Duration) (int, error) {
	if err := invariants.Context(ctx, "transfer.Queue.Wait"); err != nil {
		return 0, err
	}
	if invariants.Enabled {
		q.own(&inWait)
		defer q.leave()
	}
	for {
		if q.told || q.closed.Load() {
			if n := q.poll(events); n > 0 {
				return n, nil
			}
			return 0, fmt.Errorf("transfer: queue %q: %w", q.name, q.peer.outcome(path.ErrDown, nil))
		}
		n, err := q.waiter.Wait(ctx, (*queuePath)(q), events, spin)
		if err != nil || n > 0 {
			return n, err
		}
		if q.user.Swap(false) {
			return 0, nil
		}
	}
}

// queuePath is the queue seen as the path that a Waiter drives.
type queuePath Queue

func (p *queuePath) Poll(events []path.Event) int { return (*Queue)(p).poll(events) }
func (p *queuePath) Arm() bool                    { return p.pending.Load() || p.p.Arm() }
func (p *queuePath) FD() int                      { return p.p.FD() }

// Interrupt makes a Wait of another goroutine return early.
func (q *Queue) Interrupt() {
	q.user.Store(true)
	q.waiter.Interrupt()
}

// Cancel ends an operation early; see path.Path.
func (q *Queue) Cancel(token uint64) bool {
	if invariants.Enabled {
		q.own(&inCancel)
		defer q.leave()
	}
	return q.p.Cancel(token)
}

// Close ends the queue. Poll it afterwards until path.EventDown to see what became of outstanding
// operations, or forget it.
func (q *Queue) Close() error {
	if q.closed.Swap(true) {
		return nil
	}
	q.after.Lock()
	err := q.p.Close()
	q.peer.node.exposed.Keep(&fence.Path{Mu: &q.after, Path: q.p, Refund: q.grant.release})
	q.mu.Lock()
	q.state = queueClosed
	for _, w := range q.fences.Take() {
		q.peer.node.exposed.Linger(&q.after, q.p, w)
	}
	q.pending.Store(false)
	q.mu.Unlock()
	q.after.Unlock()
	q.peer.removeQueue(q)
	q.waiter.Close()
	return err
}

// fail is called when the peer is lost: the owner sees it at its next Poll.
func (q *Queue) fail(err error) {
	q.dead.CompareAndSwap(nil, &err)
	q.mu.Lock()
	offered := q.state == queueOffered
	if offered {
		q.state = queueClosed
	}
	q.mu.Unlock()
	if offered {
		q.Close() // it has no owner to close it
		return
	}
	q.waiter.Interrupt()
}

// why is why the queue's peer was lost, nil if it was not.
func (q *Queue) why() error {
	if err := q.dead.Load(); err != nil {
		return *err
	}
	return nil
}

func (q *Queue) lost() error {
	return fmt.Errorf("transfer: queue %q: %w (%w)", q.name, *q.dead.Load(), path.ErrDown)
}

// fence asks the owner to fence an export; the owner does it at its next Poll or Wait.
func (q *Queue) fence(key path.Key) <-chan error {
	w, done := fence.For(key)
	q.mu.Lock()
	state := q.state
	if state == queueOwned {
		q.fences.Add(w)
		q.pending.Store(true)
	}
	q.mu.Unlock()
	switch state {
	case queueOffered: // what comes later is refused
		w.End(nil)
	case queueOwned:
		q.waiter.Interrupt()
	case queueClosed:
		q.after.Lock()
		q.peer.node.exposed.Linger(&q.after, q.p, w)
		q.after.Unlock()
	}
	return done
}

// postFences hands the fences to the path; once that is down it answers those whose memory the peer
// has let go.
func (q *Queue) postFences() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pending.Store(false)
	if !q.told {
		q.fences.Post(q.p)
		q.again = q.fences.Waits()
		return
	}
	for _, w := range q.fences.Take() {
		if fence.Exposes(q.p, w.Key) { // the next Poll or Close looks again
			q.fences.Add(w)
			q.pending.Store(true)
		} else {
			w.End(nil)
		}
	}
}
