package transfer

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/sched"
)

// postMax is the number of operations handed to a path in one call.
const postMax = 16

// lane is a path and its owner: the goroutine that holds the mutex owns the path. The node's loop serves the lane when
// its descriptor is ready; goroutines that begin a transfer post on it themselves, so that a put needs no hand-over. They do
// not wait for the mutex, though: they leave the transfer in arrivals, and the goroutine that holds the lane takes it from
// there, at the latest when it unlocks. So a small put never queues up for the lane behind a goroutine that copies.
type lane struct {
	peer *Peer
	id   uint64 // of the path, agreed with the peer
	tag  uint64 // in the loop
	caps path.Capabilities

	grant *grant // of what the path takes

	arrivals arrivals
	cost     costs

	mu       sync.Mutex // guards everything below and owns p; unlock it by unlock
	p        path.Path
	now      path.Immediate // p, if the poster does small operations itself; nil otherwise
	slots    []slot
	free     []uint32
	queue    *sched.Queue[*Transfer]
	light    [priorities]sched.Flow[*Transfer] // small transfers, which share a flow
	inflight int
	bulk     int             // of these, parts of large transfers
	bulkLen  uint64          // bytes of those
	calm     uint64          // bytes posted since large transfers had company
	prepaid  uint64          // bytes that were taken from the rate and not posted yet
	payTill  time.Time       // when they may be
	batch    control.Batcher // used when batching is on
	batching bool
	timer    *time.Timer // flushes the batch at its deadline, and goes on when the rate allows it
	down     error       // why the lane takes no more work
	gone     bool        // the path is closed and all its events are processed
	muted    bool        // the loop does not watch the descriptor: the peer is held back
	gathered uint64      // operations handed over so far
	broken   []*Transfer // their path is going down under them
	ops      [postMax]path.Op
	from     [postMax]*Transfer
	charged  [postMax]sched.Charge
	events   [64]path.Event
	ends     [postMax]path.Event  // of hand
	fences   map[uint64]fenceWait // posted, by token
	unfenced []fenceWait          // not posted yet: the window is full
	watchers []chan struct{}      // closed at the next poll
	metered  uint64               // bytes of the peer that were counted against its rate
	resume   *time.Timer          // serves the lane again when the peer's rate allows it
	heldTill time.Time            // not served before, because of the peer's rate
}

// arrivals are transfers that are not in the lane's queue yet.
type arrivals struct {
	some  atomic.Bool // there are some, or the queue is to be looked at again
	dead  atomic.Bool // the lane is gone: work waits for the mutex
	mu    sync.Mutex
	list  []*Transfer
	taken []*Transfer // of the lane's owner: the list before
}

// slot holds what an outstanding operation belongs to; its token is generation<<32 | index.
type slot struct {
	gen    uint32
	t      *Transfer
	start  cursor // of what it moves
	bytes  uint64
	notify bool
	bulk   bool
	copies []path.Copy // kept for the next operation
}

// fenceRoom is how much of a path's window is left to fences: what is outstanding may wait for a peer for ever, and a
// caller that wants memory back must not wait for that.
const fenceRoom = 1

// fenceToken marks tokens of fences, which use no slot.
const fenceToken = 1 << 63

// fenceWait is a caller that waits for a fence; done is buffered.
type fenceWait struct {
	key  path.Key
	done chan error
}

func newLane(peer *Peer, id uint64, p path.Path, g *grant) *lane {
	caps := p.Capabilities()
	n := max(caps.Window-fenceRoom, 1) // a smaller one is refused by adopt
	l := &lane{peer: peer, id: id, p: p, grant: g, caps: caps, slots: make([]slot, n), free: make([]uint32, n), fences: map[uint64]fenceWait{}, queue: newQueueOf(), calm: calmed}
	for i := range l.free {
		l.free[i] = uint32(n - 1 - i)
	}
	// On a one-sided path an operation costs no system call, so there is nothing to gain by waiting for company.
	l.batching = !caps.OneSided
	l.cost.base = p.Cost()
	l.now, _ = p.(path.Immediate)
	return l
}

// ending collects what must happen once the lane's mutex is free: no callback runs under it.
type ending struct {
	first     ended // of transfers; mostly there is one
	transfers []ended
	moved     []*Transfer // to go on by another path
	missed    []*Transfer // whose memory the path does not reach
	closed    error       // the path went down
}

type ended struct {
	t   *Transfer
	err error
}

// add ends a transfer. It can come here twice, for example when it failed while pieces of it were queued.
func (e *ending) add(t *Transfer) {
	if !t.over {
		t.over = true
		if e.first.t == nil {
			e.first = ended{t, t.failed}
			return
		}
		e.transfers = append(e.transfers, ended{t, t.failed})
	}
}

func (e *ending) run(l *lane) {
	for _, t := range e.missed {
		l.peer.restage(t)
	}
	if x := e.first; x.t != nil {
		x.t.complete(x.err)
	}
	for _, x := range e.transfers {
		x.t.complete(x.err)
	}
	if e.closed != nil {
		l.peer.laneDown(l, e.closed)
	}
	if len(e.moved) > 0 {
		l.peer.failover(l, e.moved)
	}
}

// submit takes a transfer that is ready to be posted.
func (l *lane) submit(t *Transfer) {
	t.mu.Lock()
	t.lane = l
	t.mu.Unlock()
	a := &l.arrivals
	a.mu.Lock()
	a.list = append(a.list, t)
	a.mu.Unlock()
	a.some.Store(true)
	l.work()
}

// work takes what has arrived, unless another goroutine holds the lane: that one does it when it unlocks. No other lock may be held.
func (l *lane) work() {
	for l.arrivals.some.Load() {
		if l.arrivals.dead.Load() { // the goroutine that holds a lane that is gone may not look at arrivals
			l.mu.Lock()
		} else if !l.mu.TryLock() {
			return
		}
		var end ending
		l.take(&end)
		l.mu.Unlock()
		end.run(l)
	}
}

// unlock gives the lane back, and does what others left meanwhile. No other lock may be held.
func (l *lane) unlock() {
	l.mu.Unlock()
	l.work()
}

// take moves what has arrived to the queue and posts what can be.
func (l *lane) take(end *ending) {
	a := &l.arrivals
	if !a.some.Swap(false) {
		return
	}
	a.mu.Lock()
	a.list, a.taken = a.taken[:0], a.list
	a.mu.Unlock()
	now, flush, wait := time.Time{}, len(a.taken) == 0, control.Idle
	for i, t := range a.taken {
		a.taken[i] = nil
		switch {
		case l.down != nil:
			l.interrupted(t, end)
		case t.canceled.Load() && t.inflight == 0: // Cancel may have looked for it before it is in the queue; its digester may have put it there, or posted it
			l.leave(t)
			t.failed = path.ErrCanceled
			end.add(t)
			flush = true // it may have come together with the timer, and no other goroutine would look at the queue
		default:
			l.enqueue(t)
			if !l.batching || t.isBulk() {
				flush = true
				continue
			}
			if now.IsZero() {
				now = time.Now()
			}
			wait = l.batch.Add(now, t.bytes, l.inflight-l.bulk)
			flush = flush || wait <= 0
		}
	}
	switch {
	case l.down != nil:
	case flush:
		l.pump(end)
	case wait > 0:
		l.flushAfter(wait)
	}
}

func (l *lane) flushAfter(d time.Duration) {
	if l.timer == nil {
		l.timer = time.AfterFunc(d, l.again)
		return
	}
	l.timer.Reset(d)
}

// again has the queue looked at, by this goroutine or the one that holds the lane.
func (l *lane) again() {
	l.arrivals.some.Store(true)
	l.work()
}

// pump posts from the queue until it is empty or no more may be outstanding.
func (l *lane) pump(end *ending) {
	l.batch.Reset()
	l.postFences()
	l.post(allClasses, end)
}

// post posts what is queued in some classes.
func (l *lane) post(classes uint64, end *ending) {
	for {
		n := l.gather(classes, end)
		if n == 0 {
			return
		}
		k, done, err := l.hand(n)
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
		for i := range done {
			l.opEnded(&l.ends[i], end)
		}
		if err != nil && !errors.Is(err, path.ErrFull) && !errors.Is(err, path.ErrDown) && k < n {
			l.refuse(l.from[k], err, end)
			continue
		}
		if errors.Is(err, path.ErrDown) {
			l.peer.node.loop.kick(l) // for the event that says so
		}
		if k < n && (done == 0 || errors.Is(err, path.ErrDown)) {
			return
		}
	}
}

// hand gives the first n operations to the path. done is how many have ended by then, also of earlier ones; their events are in ends. Large
// transfers end by Poll: the loop goes on with them, so that they hold neither the caller nor those who want the lane meanwhile.
func (l *lane) hand(n int) (accepted, done int, err error) {
	if l.now != nil && !slices.ContainsFunc(l.ops[:n], func(o path.Op) bool { return o.Bulk }) {
		return l.now.PostNow(l.ops[:n], l.ends[:])
	}
	accepted, err = l.p.Post(l.ops[:n])
	return accepted, 0, err
}

// gather fills ops with the next operations and takes slots for them.
func (l *lane) gather(classes uint64, end *ending) int {
	n := 0
	for n < postMax && len(l.free) > 0 {
		may := classes
		if l.bulkLen >= l.room() {
			may &^= bulkClasses
		}
		it, grant := l.queue.NextOf(may)
		if it == nil {
			break
		}
		t := it.Value
		if t.over {
			l.leave(t)
			continue
		}
		if (t.canceled.Load() || t.failed != nil) && !t.all {
			t.failed = firstError(t.failed, path.ErrCanceled)
			l.leave(t)
			l.failedNow(t, end)
			continue
		}
		if t.all && (t.inflight > 0 || t.notified || t.failed != nil || t.holds() || t.part != nil) {
			l.leave(t) // all posted: its completions bring it back if a notification is due, or its digester
			if t.inflight == 0 && t.digest != nil {
				if err := t.digest.finish(); err != nil || t.failed != nil {
					t.failed = firstError(t.failed, err)
					l.failedNow(t, end)
				}
			}
			continue
		}
		bytes := l.size(t, grant)
		if wait := l.pay(bytes); wait > 0 {
			l.flushAfter(wait)
			break
		}
		if t.posted.IsZero() && t.inflight == 0 {
			t.alone, t.firstOp = l.inflight == 0, l.gathered
		}
		idx := l.free[len(l.free)-1]
		l.free = l.free[:len(l.free)-1]
		s := &l.slots[idx]
		op := &l.ops[n]
		*op = path.Op{Kind: t.kind, Bulk: t.isBulk() && !t.all, Imm: t.id.number()}
		s.t, s.start, s.bytes, s.bulk = t, t.at, bytes, t.isBulk() && !t.all
		if !t.all {
			op.Copies = t.cut(bytes, s)
			if s.start == (cursor{}) && t.all && t.part == nil && !t.holds() {
				op.Notify, op.Msg, t.notified = true, t.msg, true
			}
		} else {
			op.Kind, op.Msg, t.notified = path.Notify, t.msg, true
		}
		s.notify = op.Kind == path.Notify
		op.Token = uint64(s.gen)<<32&^fenceToken | uint64(idx)
		t.inflight++
		l.inflight++
		if s.bulk {
			l.bulk++
			l.bulkLen += bytes
		}
		l.gathered++
		t.ops++
		l.from[n], l.charged[n] = t, l.queue.Took(it, bytes)
		n++
		if t.all {
			l.leave(t)
		}
	}
	return n
}

// putBack undoes the gathering of operation i.
func (l *lane) putBack(i int) {
	op := &l.ops[i]
	t := l.from[i]
	s := &l.slots[uint32(op.Token)]
	l.prepaid += s.bytes
	if t.at = s.start; op.Kind != path.Notify {
		t.all = false
	}
	t.notified = false
	l.release(uint32(op.Token))
	l.gathered--
	t.ops--
	if t.item.Queued() {
		l.queue.Refund(&t.item, l.charged[i])
	} else {
		f, class := l.flowOf(t)
		l.queue.PushFront(f, class, &t.item, l.charged[i])
	}
}

func (l *lane) release(idx uint32) {
	s := &l.slots[idx]
	s.t.inflight--
	l.inflight--
	if s.bulk {
		l.bulk--
		l.bulkLen -= s.bytes
	}
	if cap(s.copies) > keepCopies {
		s.copies = nil
	}
	clear(s.copies)
	s.t, s.copies = nil, s.copies[:0]
	s.gen = (s.gen + 1) & 0x7fffffff
	l.free = append(l.free, idx)
}

// refuse ends a transfer whose operation the path did not accept.
func (l *lane) refuse(t *Transfer, err error, end *ending) {
	if t.misses(err) {
		t.missing = true
		l.leave(t)
		l.missedNow(t, end)
		return
	}
	t.failed = firstError(t.failed, err)
	l.leave(t)
	l.failedNow(t, end)
}

// failedNow ends a transfer that has failed if nothing of it is outstanding. One that lost an operation with the path ends with the path:
// the other side may still write what that operation brought.
func (l *lane) failedNow(t *Transfer, end *ending) {
	if t.inflight == 0 && !t.broken {
		end.add(t)
	}
}

// serve polls once and dispatches; it returns whether there may be more to do at once. Only the loop calls it.
func (l *lane) serve(arm bool) (more bool) {
	var end ending
	held := l.peer.hold(l)
	l.mu.Lock()
	if l.gone {
		l.take(&end)
		l.unlock()
		end.run(l)
		return false
	}
	l.take(&end)
	awaited := len(l.fences)+len(l.unfenced) > 0 // others wait for its fences, which end when it is polled
	if held && awaited && !l.peer.crowded() {
		held = false
	}
	held = held || !awaited && l.overRate() // what it brings beyond its rate meanwhile is made up for afterwards
	if held != l.muted {
		// The descriptor of a lane that is not polled stays readable, and would keep the loop from sleeping.
		l.peer.node.loop.watch(l, !held)
		l.muted = held
	}
	if held {
		l.unlock()
		end.run(l)
		return false
	}
	n := l.poll(&end)
	more = n > 0
	if arm && n < len(l.events) && !l.gone {
		more = l.p.Arm()
	}
	l.mu.Unlock()
	end.run(l)
	l.work()
	return more
}

func (l *lane) poll(end *ending) int {
	n := l.p.Poll(l.events[:])
	l.meter()
	for _, c := range l.watchers {
		close(c)
	}
	l.watchers = l.watchers[:0]
	for i := range n {
		e := &l.events[i]
		switch e.Kind {
		case path.EventDone:
			l.opEnded(e, end)
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
	if n > 0 && l.down == nil && l.queue.Len() > 0 {
		if wait := l.batch.Wait(time.Now(), l.inflight-l.bulk); wait > 0 { // large ones do not wait for company
			l.flushAfter(wait)
			l.post(bulkClasses, end)
		} else {
			l.pump(end)
		}
	}
	return n
}

// opEnded acts on an EventDone.
func (l *lane) opEnded(e *path.Event, end *ending) {
	if e.Token&fenceToken == 0 {
		l.opDone(e, end)
		return
	}
	if f, ok := l.fences[e.Token]; ok && !errors.Is(e.Err, path.ErrDown) { // then EventDown settles it
		f.done <- e.Err
		delete(l.fences, e.Token)
	}
}

func (l *lane) opDone(e *path.Event, end *ending) {
	idx := uint32(e.Token)
	s := &l.slots[idx]
	t := s.t
	if t == nil || s.gen != uint32(e.Token>>32) {
		return // cannot happen with a path that keeps its contract
	}
	part := undone{s.start, s.bytes}
	l.release(idx)
	switch {
	case errors.Is(e.Err, path.ErrDown): // the end of the path follows, and decides
		t.breaks(part, s.notify)
	case t.misses(e.Err):
		t.missing = true
		t.undone = append(t.undone, part)
		l.leave(t)
	case e.Err != nil:
		t.failed = firstError(t.failed, e.Err)
	case !s.notify:
		t.moved.Add(part.bytes)
		t.mu.Lock()
		t.proof = e.Proof
		t.mu.Unlock()
		if t.digest != nil {
			t.digest.place(part)
		}
	}
	if t.inflight > 0 {
		return
	}
	switch {
	case t.broken: // also one that has failed: its user gets the error after the other side is fenced
		l.broken = append(l.broken, t)
	case t.missing && t.failed == nil:
		l.leave(t)
		l.missedNow(t, end)
	case t.failed != nil, t.notified, t.part != nil && t.all:
		l.leave(t)
		l.account(t)
		end.add(t)
	case t.all && t.holds(): // all bytes are in place: the digester says how to go on
		if err := t.digest.finish(); err != nil {
			t.failed = err
			l.leave(t)
			end.add(t)
		}
	case t.all: // all bytes are in place: tell the peer, which is a small operation
		if !t.item.Queued() {
			l.queue.Push(&t.flow, lightClass(t.priority), &t.item)
		}
	}
}

// account notes where the time went and what the path achieved.
func (l *lane) account(t *Transfer) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.carried {
		t.explain.Pieces = t.ops
		if t.ops > 1 && t.notified {
			t.explain.Pieces-- // the notification
		}
	}
	x := &t.explain.Times
	if !t.posted.IsZero() {
		x.lap(&x.Queue, t.posted)
		x.lap(&x.Transfer, now)
		// Only a transfer that had the path for itself says something about it.
		if t.failed == nil && t.alone && t.digest == nil && !t.carried && l.gathered-t.firstOp == uint64(t.ops) {
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
	l.arrivals.dead.Store(true)
	if l.down == nil {
		l.down = cause
	}
	end.closed = l.down
	if l.timer != nil {
		l.timer.Stop()
	}
	if l.resume != nil {
		l.resume.Stop()
	}
	l.p.Close()
	for i := range l.slots { // none, unless the path broke its contract: no transfer may hang for that
		if s := &l.slots[i]; s.t != nil {
			t := s.t
			t.breaks(undone{s.start, s.bytes}, s.notify)
			l.release(uint32(i))
			if t.inflight == 0 {
				l.broken = append(l.broken, t)
			}
		}
	}
	l.queue.Each(func(it *sched.Item[*Transfer]) {
		l.leave(it.Value)
		if it.Value.inflight == 0 {
			l.interrupted(it.Value, end)
		}
	})
	for _, t := range l.broken {
		l.interrupted(t, end)
	}
	l.broken = nil
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
		l.unlock()
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
	l.work()
}
