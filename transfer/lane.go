package transfer

import (
	"errors"
	"sync"
	"time"

	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/transfer/control"
)

// PieceSize is the largest number of bytes that a transfer hands to a path as one operation; Progress advances by it.
const PieceSize = 32 << 20

// postMax is the number of operations handed to a path in one call.
const postMax = 16

// lane is a path and its owner: the mutex makes whoever holds it the path's one owner. The node's loop serves the lane when
// its descriptor is ready; goroutines that begin a transfer post on it themselves, so that a put needs no hand-over.
type lane struct {
	peer *Peer
	id   uint64 // of the path, agreed with the peer
	tag  uint64 // in the loop

	mu       sync.Mutex // guards everything below and owns p
	p        path.Path
	slots    []slot
	free     []uint32
	queue    []*Transfer // in order; the head is being posted
	inflight int
	batch    control.Batcher // used when batching is on
	batching bool
	timer    *time.Timer // flushes the batch at its deadline
	down     error       // why the lane takes no more work
	gone     bool        // the path is closed and all its events are processed
	muted    bool        // the loop does not watch the descriptor: the peer's inbox is full
	gathered uint64      // operations handed over so far
	ops      [postMax]path.Op
	from     [postMax]*Transfer
	events   [64]path.Event
	fences   map[uint64]fenceWait // posted, by token
	unfenced []fenceWait          // not posted yet: the window is full
	watchers []chan struct{}      // closed at the next poll
	cost     costModel
}

// slot holds what an outstanding operation belongs to; its token is generation<<32 | index.
type slot struct {
	gen    uint32
	t      *Transfer
	bytes  uint64
	notify bool
}

// fenceToken marks tokens of fences, which use no slot.
const fenceToken = 1 << 63

// fenceWait is somebody who waits for a fence; done is buffered.
type fenceWait struct {
	key  path.Key
	done chan error
}

func newLane(peer *Peer, id uint64, p path.Path) *lane {
	n := p.Capabilities().Window
	l := &lane{peer: peer, id: id, p: p, slots: make([]slot, n), free: make([]uint32, n), fences: map[uint64]fenceWait{}}
	for i := range l.free {
		l.free[i] = uint32(n - 1 - i)
	}
	// On a one-sided path an operation costs no system call, so there is nothing to gain by waiting for company.
	l.batching = !p.Capabilities().OneSided
	l.cost.base = p.Cost()
	return l
}

// ending collects what must happen once the lane's mutex is free: no callback runs under it.
type ending struct {
	transfers []ended
	closed    error // the path went down
}

type ended struct {
	t   *Transfer
	err error
}

// add ends a transfer. It can come here twice, for example when it failed while pieces of it were queued.
func (e *ending) add(t *Transfer) {
	if !t.over {
		t.over = true
		e.transfers = append(e.transfers, ended{t, t.failed})
	}
}

func (e *ending) run(l *lane) {
	for _, x := range e.transfers {
		x.t.complete(x.err)
	}
	if e.closed != nil {
		l.peer.laneDown(l, e.closed)
	}
}

// submit takes a transfer that is ready to be posted.
func (l *lane) submit(t *Transfer) {
	var end ending
	t.mu.Lock()
	t.lane = l
	t.mu.Unlock()
	l.mu.Lock()
	switch {
	case l.down != nil:
		t.failed = l.down
		end.add(t)
	case t.canceled.Load(): // Cancel may have looked for it before it is in the queue
		t.failed = path.ErrCanceled
		end.add(t)
	default:
		l.queue = append(l.queue, t)
		wait := time.Duration(0)
		if l.batching {
			wait = l.batch.Add(time.Now(), t.bytes, l.inflight)
		}
		if wait > 0 {
			l.flushAfter(wait)
		} else {
			l.pump(&end)
		}
	}
	l.mu.Unlock()
	end.run(l)
}

func (l *lane) flushAfter(d time.Duration) {
	if l.timer == nil {
		l.timer = time.AfterFunc(d, func() {
			var end ending
			l.mu.Lock()
			if l.down == nil {
				l.pump(&end)
			}
			l.mu.Unlock()
			end.run(l)
		})
		return
	}
	l.timer.Reset(d)
}

// pump posts from the queue until it is empty or the window is full.
func (l *lane) pump(end *ending) {
	l.batch.Reset()
	l.postFences()
	for {
		n := l.gather(end)
		if n == 0 {
			return
		}
		k, err := l.p.Post(l.ops[:n])
		now := time.Now()
		for i := range k {
			t := l.from[i]
			if t.posted.IsZero() {
				t.posted = now
			}
		}
		// What was not accepted goes back, last first, so that the order stays.
		for i := n - 1; i >= k; i-- {
			l.putBack(i)
		}
		if err != nil && !errors.Is(err, path.ErrFull) && k < n {
			l.refuse(l.from[k], err, end)
			continue
		}
		if k < n {
			return
		}
	}
}

// gather fills ops with the next operations and takes slots for them.
func (l *lane) gather(end *ending) int {
	n := 0
	for n < postMax && len(l.queue) > 0 && len(l.free) > 0 {
		t := l.queue[0]
		if t.over {
			l.pop()
			continue
		}
		if (t.canceled.Load() || t.failed != nil) && t.next < len(t.pieces) {
			t.failed = firstError(t.failed, path.ErrCanceled)
			l.pop()
			if t.inflight == 0 {
				end.add(t)
			}
			continue
		}
		if t.posted.IsZero() && t.inflight == 0 {
			t.alone, t.firstOp = l.inflight == 0, l.gathered
		}
		op := &l.ops[n]
		*op = path.Op{Kind: t.kind, Imm: t.id.number()}
		var bytes uint64
		switch {
		case t.next < len(t.pieces):
			pc := &t.pieces[t.next]
			op.Copies, bytes = pc.copies, pc.bytes
			t.next++
			if len(t.pieces) == 1 {
				op.Notify, op.Msg, t.notified = true, t.msg, true
			}
		case t.inflight == 0 && !t.notified && t.failed == nil:
			op.Kind, op.Msg, t.notified = path.Notify, t.msg, true
		default: // all posted: its completions bring it back if a notification is due
			l.pop()
			continue
		}
		idx := l.free[len(l.free)-1]
		l.free = l.free[:len(l.free)-1]
		s := &l.slots[idx]
		s.t, s.bytes, s.notify = t, bytes, op.Kind == path.Notify
		op.Token = uint64(s.gen)<<32&^fenceToken | uint64(idx)
		t.inflight++
		l.inflight++
		l.gathered++
		l.from[n] = t
		n++
		if t.notified {
			l.pop()
		}
	}
	return n
}

func (l *lane) pop() {
	l.queue[0] = nil
	l.queue = l.queue[1:]
	if len(l.queue) == 0 {
		l.queue = nil
	}
}

// putBack undoes the gathering of operation i.
func (l *lane) putBack(i int) {
	op := &l.ops[i]
	t := l.from[i]
	l.release(uint32(op.Token))
	l.gathered--
	if op.Kind != path.Notify {
		t.next--
	}
	t.notified = false
	if len(l.queue) == 0 || l.queue[0] != t {
		l.queue = append([]*Transfer{t}, l.queue...)
	}
}

func (l *lane) release(idx uint32) {
	s := &l.slots[idx]
	s.t.inflight--
	l.inflight--
	s.t = nil
	s.gen = (s.gen + 1) & 0x7fffffff
	l.free = append(l.free, idx)
}

// refuse ends a transfer whose operation the path did not accept.
func (l *lane) refuse(t *Transfer, err error, end *ending) {
	t.failed = firstError(t.failed, err)
	for i, q := range l.queue {
		if q == t {
			l.queue = append(l.queue[:i], l.queue[i+1:]...)
			break
		}
	}
	if t.inflight == 0 {
		end.add(t)
	}
}

// serve polls once and dispatches; it returns whether there may be more to do at once. Only the loop calls it.
func (l *lane) serve(arm bool) (more bool) {
	var end ending
	held := l.peer.hold(l)
	l.mu.Lock()
	if l.gone {
		l.mu.Unlock()
		return false
	}
	if held != l.muted {
		// The descriptor of a lane that is not polled stays readable, and would keep the loop from sleeping.
		l.peer.node.loop.watch(l, !held)
		l.muted = held
	}
	if held {
		l.mu.Unlock()
		return false
	}
	n := l.poll(&end)
	more = n > 0
	if arm && n < len(l.events) && !l.gone {
		more = l.p.Arm()
	}
	l.mu.Unlock()
	end.run(l)
	return more
}

func (l *lane) poll(end *ending) int {
	n := l.p.Poll(l.events[:])
	for _, c := range l.watchers {
		close(c)
	}
	l.watchers = l.watchers[:0]
	for i := range n {
		e := &l.events[i]
		switch e.Kind {
		case path.EventDone:
			if e.Token&fenceToken != 0 {
				if f, ok := l.fences[e.Token]; ok && !errors.Is(e.Err, path.ErrDown) { // then EventDown settles it
					f.done <- e.Err
					delete(l.fences, e.Token)
				}
				continue
			}
			l.opDone(e, end)
		case path.EventNotify:
			if in, ok := l.peer.parseNotify(e, l.p.Name()); ok {
				// Under the mutex: once the lane is shut, everything it brought is in the inbox.
				l.peer.deliver(in)
			}
		case path.EventDown:
			l.wentDown(e.Err, end)
		}
	}
	if n > 0 && l.down == nil {
		l.postFences()
	}
	if n > 0 && l.down == nil && len(l.queue) > 0 {
		if wait := l.batch.Wait(time.Now(), l.inflight); wait > 0 {
			l.flushAfter(wait)
		} else {
			l.pump(end)
		}
	}
	return n
}

func (l *lane) opDone(e *path.Event, end *ending) {
	idx := uint32(e.Token)
	s := &l.slots[idx]
	t := s.t
	if t == nil || s.gen != uint32(e.Token>>32) {
		return // cannot happen with a path that keeps its contract
	}
	bytes := s.bytes
	l.release(idx)
	if e.Err != nil {
		t.failed = firstError(t.failed, e.Err)
	} else if !s.notify {
		t.moved.Add(bytes)
		t.mu.Lock()
		t.proof = e.Proof
		t.mu.Unlock()
	}
	if t.inflight > 0 {
		return
	}
	switch {
	case t.failed != nil, t.notified:
		l.account(t)
		end.add(t)
	case t.next == len(t.pieces): // all pieces are in place: tell the peer before anything else is posted
		if len(l.queue) == 0 || l.queue[0] != t {
			l.queue = append([]*Transfer{t}, l.queue...)
		}
	}
}

// account notes where the time went and what the path achieved.
func (l *lane) account(t *Transfer) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	x := &t.explain.Times
	if !t.posted.IsZero() {
		x.lap(&x.Queue, t.posted)
		x.lap(&x.Transfer, now)
		own := uint64(max(len(t.pieces), 1))
		if len(t.pieces) > 1 {
			own++ // the notification
		}
		// Only a transfer that had the path for itself says something about it.
		if t.failed == nil && t.alone && l.gathered-t.firstOp == own {
			l.cost.observe(t.bytes, x.Transfer, now)
		}
	}
}

// wentDown processes the last event of the path.
func (l *lane) wentDown(cause error, end *ending) {
	if l.gone {
		return
	}
	l.gone = true
	if l.down == nil {
		l.down = cause
	}
	end.closed = l.down
	if l.timer != nil {
		l.timer.Stop()
	}
	l.p.Close()
	for i := range l.slots { // none, unless the path broke its contract: no transfer may hang for that
		if t := l.slots[i].t; t != nil {
			l.release(uint32(i))
			t.failed = firstError(t.failed, l.down)
			if t.inflight == 0 {
				end.add(t)
			}
		}
	}
	for _, t := range l.queue {
		t.failed = firstError(t.failed, l.down)
		if t.inflight == 0 {
			end.add(t)
		}
	}
	l.queue = nil
	l.peer.node.keepExposed(l, l.p)
	for _, f := range l.fences {
		l.peer.node.linger(&l.mu, l.p, f)
	}
	for _, f := range l.unfenced {
		l.peer.node.linger(&l.mu, l.p, f)
	}
	l.fences, l.unfenced = nil, nil
}

// shut closes the path for the reason given and lets every operation end.
func (l *lane) shut(cause error) {
	var end ending
	l.mu.Lock()
	if l.gone {
		l.mu.Unlock()
		return
	}
	if l.down == nil {
		l.down = cause
	}
	l.p.Close()
	for !l.gone {
		if l.poll(&end) == 0 {
			// Every path reports EventDown after Close; one that does not must not hang its peer.
			l.wentDown(cause, &end)
		}
	}
	l.mu.Unlock()
	end.run(l)
}

// cancel ends a transfer of this lane early.
func (l *lane) cancel(t *Transfer) {
	var end ending
	l.mu.Lock()
	for i := range l.slots {
		if s := &l.slots[i]; s.t == t {
			l.p.Cancel(uint64(s.gen)<<32&^fenceToken | uint64(i))
		}
	}
	for i, q := range l.queue {
		if q == t && t.next < len(t.pieces) {
			l.queue = append(l.queue[:i], l.queue[i+1:]...)
			t.failed = firstError(t.failed, path.ErrCanceled)
			if t.inflight == 0 {
				end.add(t)
			}
			break
		}
	}
	l.mu.Unlock()
	end.run(l)
	l.peer.node.loop.kick(l)
}
