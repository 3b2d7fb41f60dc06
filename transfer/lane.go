package transfer

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/sched"
	"github.com/penstock-io/penstock/transfer/state"
)

// lane is a path and its owner: the goroutine that holds the mutex owns the path. The node's loop
// serves the lane when its descriptor is ready; goroutines that begin a transfer post on it
// themselves, so that a put needs no hand-over. They do not wait for the mutex, though: they leave
// the transfer in arrivals, and the goroutine that holds the lane takes it from there, at the
// latest when it unlocks. So a small put never queues up for the lane behind a goroutine that
// copies.
type lane struct {
	peer *Peer
	id   uint64 // of the path, agreed with the peer
	tag  uint64 // in the loop
	caps path.Capabilities

	grant *grant // of what the path takes

	arrivals arrivals
	cost     costs
	gave     atomic.Bool // anything but gets was posted
	attended atomic.Bool // a goroutine that waits for a transfer serves the lane; see Transfer.attend

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
	shared   uint64          // bytes of large transfers that may be outstanding while they have company
	trip     time.Duration   // round trip of the connection to the peer when the path came up, 0 if it is not known
	prepaid  uint64          // bytes that were taken from the rate and not posted yet
	payTill  time.Time       // when they may be
	batch    control.Batcher // used when batching is on
	batching bool
	timer    *time.Timer // flushes the batch at its deadline, and goes on when the rate allows it
	down     error       // why the lane takes no more work
	gone     bool        // the path is closed and all its events are processed
	muted    bool        // the loop does not watch the descriptor: the peer is held back, or the lane is attended
	gathered uint64      // operations handed over so far
	broken   []*Transfer // their path is going down under them
	ops      [postMax]path.Op
	from     [postMax]*Transfer
	charged  [postMax]sched.Charge
	events   [64]path.Event
	ends     [postMax]path.Event // of hand
	clock    time.Duration       // what it says now; 0: read it
	callers  *Transfer           // which the goroutine that holds the lane has just submitted, nil if none
	fences   fences
	watchers []chan struct{} // closed at the next poll
	metered  uint64          // bytes of the peer that were counted against its rate
	resume   *time.Timer     // serves the lane again when the peer's rate allows it
	heldTill time.Time       // not served before, because of the peer's rate
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
	part   state.Segment
	notify bool
	bulk   bool
	ahead  uint64        // of a part of a large transfer: the bytes that were outstanding with it,
	at     time.Duration // and when it was posted, by clock
	copies []path.Copy   // kept for the next operation
}

// fenceRoom is how much of a path's window is left to fences: what is outstanding may wait for a
// peer for ever, and a caller that wants memory back must not wait for that.
const fenceRoom = 1

// fenceToken marks tokens of fences, which use no slot.
const fenceToken = 1 << 63

func newLane(peer *Peer, id uint64, p path.Path, g *grant) *lane {
	caps := p.Capabilities()
	n := max(caps.Window-fenceRoom, 1) // a smaller one is refused by adopt
	l := &lane{peer: peer, id: id, p: p, grant: g, caps: caps, slots: make([]slot, n), free: make([]uint32, n),
		calm:  calmed,
		queue: sched.New[*Transfer](ShareSize, append(priorityWeights[:], priorityWeights[:]...)...)}
	for i := range l.free {
		l.free[i] = uint32(n - 1 - i)
	}
	// On a one-sided path an operation costs no system call, so there is nothing to gain by waiting
	// for company.
	l.batching = !caps.OneSided
	l.cost.prior, l.cost.mapped = unknownPrior, caps.OneSided
	l.shared, l.trip = peer.sharedRoom(caps)
	if d := peer.node.driver(p.Name()); d != nil {
		l.cost.prior = priorOf(d.Traits())
	}
	l.now, _ = p.(path.Immediate)
	return l
}

// ending collects what must happen once the lane's mutex is free: no callback runs under it.
type ending struct {
	first  ended // of transfers; mostly there is one
	others []ended
	moved  []*Transfer // to go on by another path
	missed []*Transfer // whose memory the path does not reach
	closed error       // the path went down
	woke   bool        // goroutines of the application have something to do
}

// ended is a transfer with the error that it had then: its machine belongs to the owner of the
// lane, and may get another one from its digests.
type ended struct {
	t   *Transfer
	err error
}

// add ends a transfer.
func (e *ending) add(t *Transfer) {
	t.m.End()
	e.woke = true
	if x := (ended{t, t.m.Err()}); e.first.t == nil {
		e.first = x
	} else {
		e.others = append(e.others, x)
	}
}

func (e *ending) run(l *lane) {
	for _, t := range e.missed {
		l.peer.restage(t)
	}
	if x := e.first; x.t != nil {
		x.t.complete(x.err)
	}
	for _, x := range e.others {
		x.t.complete(x.err)
	}
	if e.closed != nil {
		l.peer.laneDown(l, e.closed)
	}
	if len(e.moved) > 0 {
		l.peer.failover(l, e.moved)
	}
}

// submit takes a transfer that is ready to be posted now.
func (l *lane) submit(t *Transfer, now time.Duration) {
	a := &l.arrivals
	a.mu.Lock()
	a.list = append(a.list, t)
	a.mu.Unlock()
	a.some.Store(true)
	l.workAt(now, t)
}

// work takes what has arrived, unless another goroutine holds the lane: that one does it when it
// unlocks. No other lock may be held.
func (l *lane) work() { l.workAt(0, nil) }

// workAt is work for a caller that has just read the clock, and has submitted t.
func (l *lane) workAt(now time.Duration, t *Transfer) {
	for l.arrivals.some.Load() {
		if l.arrivals.dead.Load() { // the goroutine that holds a lane that is gone may not look at arrivals
			l.mu.Lock()
		} else if !l.mu.TryLock() {
			return
		}
		var end ending
		l.clock, l.callers = now, t
		l.take(&end)
		l.clock, l.callers, now = 0, nil, 0
		l.mu.Unlock()
		end.run(l)
	}
}

// unlock gives the lane back, and does what others left meanwhile. No other lock may be held.
func (l *lane) unlock() {
	l.mu.Unlock()
	l.work()
}

// finish gives the lane back, and does what follows from the work on it and what others left
// meanwhile.
func (l *lane) finish(end *ending) {
	l.mu.Unlock()
	end.run(l)
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
		if t.m.State() != state.Routed { // its digester was faster
			flush = true
			continue
		}
		if t.digest != nil { // it may have come to an outcome before the transfer had this lane
			if settled, err := t.digest.outcome(); settled {
				t.m.Proved(err)
			}
		}
		switch {
		case l.down != nil:
			t.m.Fence()
			l.interrupted(t, end)
		case t.canceled(): // Cancel may have looked for it before it is in the queue
			t.m.Fail(path.ErrCanceled)
			l.follow(t, end)
			flush = true // it may have come together with the timer, and no other goroutine would look at the queue
		default:
			l.alongside(t)
			l.follow(t, end)
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

// dismiss lets a transfer go on without this lane.
func (l *lane) dismiss(t *Transfer) {
	t.mu.Lock()
	t.lane, t.abort = nil, nil
	t.mu.Unlock()
}

// follow does what the state of a transfer asks for. The owner of the lane calls it after each
// event.
func (l *lane) follow(t *Transfer, end *ending) { l.act(t, t.m.Next(), end) }

func (l *lane) act(t *Transfer, step state.Step, end *ending) {
	if step == state.Queue {
		l.enqueue(t)
		return
	}
	l.leave(t)
	switch step {
	case state.Prove:
		if err := t.digest.finish(); err != nil {
			t.m.Proved(err)
			l.follow(t, end)
		}
	case state.Fence: // the end of the path follows
		l.broken = append(l.broken, t)
	case state.Stage:
		l.dismiss(t)
		end.missed = append(end.missed, t)
	case state.End:
		l.account(t)
		t.explain.atOnce = t.posted != 0 && t.digest == nil && end.first.t == nil
		end.add(t)
	}
}

// serve polls once and dispatches. It returns whether there may be more to do at once, and whether
// goroutines of the application can go on now. The loop calls it, and the goroutine that attends
// the lane.
func (l *lane) serve(arm bool) (more, woke bool) {
	var end ending
	l.mu.Lock()
	more = l.round(arm, &end)
	l.finish(&end)
	return more, end.woke
}

func (l *lane) round(arm bool, end *ending) (more bool) {
	held := l.peer.hold(l)
	l.take(end)
	if l.gone {
		end.woke = true
		return false
	}
	awaited := len(l.fences.posted)+len(l.fences.waiting) > 0 // others wait for its fences, which end when it is polled
	if held && awaited && !l.peer.crowded() {
		held = false
	}
	held = held || !awaited && l.overRate() // what it brings beyond its rate meanwhile is made up for afterwards
	if mute := held || l.attended.Load(); mute != l.muted {
		// The descriptor of a lane that the loop does not poll stays readable, and would keep the
		// loop from sleeping.
		l.peer.node.loop.watch(l, !mute)
		l.muted = mute
	}
	if held {
		return false
	}
	n := l.poll(end)
	if arm && n < len(l.events) && !l.gone {
		return l.p.Arm()
	}
	return n > 0
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
				end.woke = l.peer.deliver(in) || end.woke
			}
		case path.EventDown:
			l.wentDown(e.Err, end)
		}
	}
	if n > 0 && l.down == nil {
		l.fences.post(l.p)
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
	} else {
		l.fences.ended(e)
	}
}

func (l *lane) opDone(e *path.Event, end *ending) {
	idx := uint32(e.Token)
	s := &l.slots[idx]
	t := s.t
	if t == nil || s.gen != uint32(e.Token>>32) {
		return // cannot happen with a path that keeps its contract
	}
	part, notify := s.part, s.notify
	if e.Err == nil {
		l.learn(s)
	}
	l.release(idx)
	switch {
	case errors.Is(e.Err, path.ErrDown): // the end of the path follows, and decides
		t.m.Done(part, state.PathDown, nil)
	case t.misses(e.Err):
		t.m.Done(part, state.Unreachable, nil)
	case e.Err != nil:
		t.m.Done(part, state.Failed, e.Err)
	default:
		t.m.Done(part, state.Placed, nil)
		if notify {
			break
		}
		t.moved.Add(part.Bytes)
		t.mu.Lock()
		t.proof = e.Proof
		t.mu.Unlock()
		if t.digest != nil {
			t.digest.place(part)
		}
	}
	l.follow(t, end)
}

// account notes where the time went and what the path achieved.
func (l *lane) account(t *Transfer) {
	now := clock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reach != reachCarried {
		t.explain.Pieces = t.ops
		if t.ops > 1 && t.m.State() == state.Notifying {
			t.explain.Pieces-- // the notification
		}
	}
	x := &t.explain.Times
	if t.posted != 0 {
		x.lap(&x.Queue, t.posted)
		x.lap(&x.Transfer, now)
		// Only a transfer that had the path for itself says something about it.
		if t.m.Err() == nil && t.sole > 0 && t.digest == nil && t.reach != reachCarried &&
			l.gathered-(t.sole-1) == uint64(t.ops) {
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
			t, part := s.t, s.part
			l.release(uint32(i))
			t.m.Done(part, state.PathDown, nil)
			l.follow(t, end)
		}
	}
	l.queue.Each(func(it *sched.Item[*Transfer]) {
		l.leave(it.Value)
		it.Value.m.Fence()
		l.interrupted(it.Value, end)
	})
	for _, t := range l.broken {
		l.interrupted(t, end)
	}
	l.broken = nil
	l.peer.node.keepExposed(l, l.p)
	for _, f := range l.fences.take() {
		l.peer.node.linger(&l.mu, l.p, f)
	}
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
	l.finish(&end)
}
