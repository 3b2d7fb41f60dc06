package transfer

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/fence"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/sched"
	"github.com/penstock-io/penstock/transfer/state"
)

// channel is a path and its owner: the goroutine that holds the mutex owns the path. The node's
// loop serves the channel when its descriptor is ready; goroutines that begin a transfer post on it
// themselves, so that a put needs no hand-over. They do not wait for the mutex, though: they leave
// the transfer in arrivals, and the goroutine that holds the channel takes it from there, at the
// latest when it unlocks. So a small put never queues up for the channel behind a goroutine that
// copies.
type channel struct {
	peer *Peer
	id   uint64 // of the path, agreed with the peer
	tag  uint64 // in the loop
	caps path.Capabilities

	grant *grant // of what the path takes

	arrivals arrivals
	cost     sched.Costs
	gave     atomic.Bool // anything but gets was posted
	attended atomic.Bool // a goroutine that waits for a transfer serves the channel; see Transfer.attend

	mu  sync.Mutex // guards everything below and owns p; unlock it by unlock
	p   path.Path
	now path.Immediate // p, if the poster does small operations itself; nil otherwise
	slotTable
	queue *sched.Queue[*Transfer]
	light [priorities]sched.Flow[*Transfer] // small transfers, which share a flow
	// round trip of the connection to the peer when the path came up, 0 if it is not known
	trip time.Duration
	pacing
	batched
	closing
	scratch
	clock    time.Duration // what it says now; 0: read it
	callers  *Transfer     // which the goroutine that holds the channel has just submitted, nil if none
	fences   fence.Set
	watchers []chan struct{} // closed at the next poll
}

// arrivals are transfers that are not in the channel's queue yet.
type arrivals struct {
	some  atomic.Bool // there are some, or the queue is to be looked at again
	dead  atomic.Bool // the channel is gone: work waits for the mutex
	mu    sync.Mutex
	list  []*Transfer
	taken []*Transfer // of the channel's owner: the list before
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

func newChannel(peer *Peer, id uint64, p path.Path, g *grant) *channel {
	caps := p.Capabilities()
	n := max(caps.Window-fenceRoom, 1) // a smaller one is refused by adopt
	ch := &channel{peer: peer, id: id, p: p, grant: g, caps: caps,
		slotTable: slotTable{slots: make([]slot, n), free: make([]uint32, n), calm: calmed},
		queue:     sched.New[*Transfer](ShareSize, append(priorityWeights[:], priorityWeights[:]...)...)}
	for i := range ch.free {
		ch.free[i] = uint32(n - 1 - i)
	}
	// On a one-sided path an operation costs no system call, so there is nothing to gain by waiting
	// for more operations.
	ch.batching = !caps.OneSided
	ch.cost.Prior, ch.cost.Mapped = unknownPrior, caps.OneSided
	ch.shared, ch.trip = peer.sharedRoom(caps)
	if d := peer.node.driver(p.Name()); d != nil {
		ch.cost.Prior = priorOf(d.Traits())
	}
	ch.now, _ = p.(path.Immediate)
	return ch
}

// ending collects what must happen once the channel's mutex is free: no callback runs under it.
type ending struct {
	first  ended // of transfers; mostly there is one
	others []ended
	moved  []*Transfer // to go on by another path
	missed []*Transfer // whose memory the path does not reach
	closed error       // the path went down
	woke   bool        // goroutines of the application have something to do
}

// ended is a transfer with the error that it had then: its machine belongs to the owner of the
// channel, and may get another one from its digests.
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

func (e *ending) run(ch *channel) {
	for _, t := range e.missed {
		ch.peer.restage(t)
	}
	if x := e.first; x.t != nil {
		x.t.complete(x.err)
	}
	for _, x := range e.others {
		x.t.complete(x.err)
	}
	if e.closed != nil {
		ch.peer.channelDown(ch, e.closed)
	}
	if len(e.moved) > 0 {
		ch.peer.failover(ch, e.moved)
	}
}

// submit takes a transfer that is ready to be posted now.
func (ch *channel) submit(t *Transfer, now time.Duration) {
	a := &ch.arrivals
	a.mu.Lock()
	a.list = append(a.list, t)
	a.mu.Unlock()
	a.some.Store(true)
	ch.workAt(now, t)
}

// work takes what has arrived, unless another goroutine holds the channel: that one does it when it
// unlocks. No other lock may be held.
func (ch *channel) work() { ch.workAt(0, nil) }

// workAt is work for a caller that has just read the clock, and has submitted t.
func (ch *channel) workAt(now time.Duration, t *Transfer) {
	for ch.arrivals.some.Load() {
		if ch.arrivals.dead.Load() { // the goroutine that holds a channel that is gone may not look at arrivals
			ch.mu.Lock()
		} else if !ch.mu.TryLock() {
			return
		}
		var end ending
		ch.clock, ch.callers = now, t
		ch.take(&end)
		ch.clock, ch.callers, now = 0, nil, 0
		ch.mu.Unlock()
		end.run(ch)
	}
}

// unlock gives the channel back, and does what others left meanwhile. No other lock may be held.
func (ch *channel) unlock() {
	ch.mu.Unlock()
	ch.work()
}

// finish gives the channel back, and does what follows from the work on it and what others left
// meanwhile.
func (ch *channel) finish(end *ending) {
	ch.mu.Unlock()
	end.run(ch)
	ch.work()
}

// take moves what has arrived to the queue and posts what can be.
func (ch *channel) take(end *ending) {
	a := &ch.arrivals
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
		if t.digest != nil { // it may have come to an outcome before the transfer had this channel
			if known, err := t.digest.Outcome(); known {
				t.m.Proved(err)
			}
		}
		switch {
		case ch.down != nil:
			t.m.Fence()
			ch.interrupted(t, end)
		case t.canceled(): // Cancel may have looked for it before it is in the queue
			t.m.Fail(path.ErrCanceled)
			ch.follow(t, end)
			flush = true // it may have come together with the timer, and no other goroutine would look at the queue
		default:
			ch.alongside(t)
			ch.follow(t, end)
			if !ch.batching || t.isBulk() {
				flush = true
				continue
			}
			if now.IsZero() {
				now = time.Now()
			}
			wait = ch.batch.Add(now, t.bytes, ch.inflight-ch.bulk)
			flush = flush || wait <= 0
		}
	}
	switch {
	case ch.down != nil:
	case flush:
		ch.pump(end)
	case wait > 0:
		ch.flushAfter(wait)
	}
}

// dismiss lets a transfer go on without this channel.
func (ch *channel) dismiss(t *Transfer) {
	t.mu.Lock()
	t.channel, t.abort = nil, nil
	t.mu.Unlock()
}

// follow does what the state of a transfer asks for. The owner of the channel calls it after each
// event.
func (ch *channel) follow(t *Transfer, end *ending) { ch.act(t, t.m.Next(), end) }

func (ch *channel) act(t *Transfer, step state.Step, end *ending) {
	if step == state.Queue {
		ch.enqueue(t)
		return
	}
	ch.leave(t)
	switch step {
	case state.Prove:
		if err := t.digest.Finish(); err != nil {
			t.m.Proved(err)
			ch.follow(t, end)
		}
	case state.Fence: // the end of the path follows
		ch.broken = append(ch.broken, t)
	case state.Stage:
		ch.dismiss(t)
		end.missed = append(end.missed, t)
	case state.End:
		ch.account(t)
		t.explain.atOnce = t.posted != 0 && t.digest == nil && end.first.t == nil
		end.add(t)
	}
}

// Serve polls once and dispatches, as loop.Source says. The goroutine that attends the channel
// calls it as well.
func (ch *channel) Serve(arm bool) (more, woke bool) {
	var end ending
	ch.mu.Lock()
	more = ch.round(arm, &end)
	ch.finish(&end)
	return more, end.woke
}

// Attended reports whether a goroutine that waits for a transfer serves the channel.
func (ch *channel) Attended() bool { return ch.attended.Load() }

// watched gives the channel to the loop.
func (ch *channel) watched() (err error) {
	ch.mu.Lock() // the path may be closed meanwhile, and its descriptor be another file's
	defer ch.unlock()
	if ch.gone {
		return ch.down
	}
	ch.tag, err = ch.peer.node.loop.Add(ch, ch.p.FD())
	return err
}

func (ch *channel) round(arm bool, end *ending) (more bool) {
	held := ch.peer.inbox.Hold(ch)
	ch.take(end)
	if ch.gone {
		end.woke = true
		return false
	}
	// others wait for its fences, which end when it is polled
	awaited := !ch.fences.Empty()
	if held && awaited && !ch.peer.inbox.Crowded() {
		held = false
	}
	held = held || !awaited && ch.overRate() // what it brings beyond its rate meanwhile is made up for afterwards
	if mute := held || ch.attended.Load(); mute != ch.muted {
		// The descriptor of a channel that the loop does not poll stays readable, and would keep
		// the loop from sleeping.
		ch.peer.node.loop.Watch(ch.p.FD(), ch.tag, !mute)
		ch.muted = mute
	}
	if held {
		return false
	}
	n := ch.poll(end)
	if arm && n < len(ch.events) && !ch.gone {
		return ch.p.Arm()
	}
	return n > 0
}

func (ch *channel) poll(end *ending) int {
	n := ch.p.Poll(ch.events[:])
	ch.meter()
	for _, c := range ch.watchers {
		close(c)
	}
	ch.watchers = ch.watchers[:0]
	for i := range n {
		e := &ch.events[i]
		switch e.Kind {
		case path.EventDone:
			ch.opEnded(e, end)
		case path.EventNotify:
			if in, ok := ch.peer.parseNotify(e, ch.p.Name()); ok {
				// Under the mutex: once the channel is shut, everything it brought is in the inbox.
				end.woke = ch.peer.deliver(in) || end.woke
			}
		case path.EventDown:
			ch.wentDown(e.Err, end)
		}
	}
	if n > 0 && ch.down == nil {
		ch.fences.Post(ch.p)
	}
	if n > 0 && ch.down == nil && ch.queue.Len() > 0 {
		if wait := ch.batch.Wait(time.Now(), ch.inflight-ch.bulk); wait > 0 { // large ones do not wait for others
			ch.flushAfter(wait)
			ch.post(bulkClasses, end)
		} else {
			ch.pump(end)
		}
	}
	return n
}

// opEnded acts on an EventDone.
func (ch *channel) opEnded(e *path.Event, end *ending) {
	if e.Token&fence.Token == 0 {
		ch.opDone(e, end)
	} else {
		ch.fences.Ended(e)
	}
}

func (ch *channel) opDone(e *path.Event, end *ending) {
	idx := uint32(e.Token)
	s := &ch.slots[idx]
	t := s.t
	if t == nil || s.gen != uint32(e.Token>>32) {
		return // cannot happen with a path that keeps its contract
	}
	part, notify := s.part, s.notify
	if e.Err == nil {
		ch.learn(s)
	}
	ch.release(idx)
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
		t.placed(part)
	}
	ch.follow(t, end)
}

// account notes where the time went and what the path achieved.
func (ch *channel) account(t *Transfer) {
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
			ch.gathered-(t.sole-1) == uint64(t.ops) {
			ch.cost.Observe(t.bytes, x.Transfer, now)
		}
	}
}

// wentDown processes the last event of the path.
func (ch *channel) wentDown(cause error, end *ending) {
	if ch.gone {
		return
	}
	ch.gone = true
	ch.arrivals.dead.Store(true)
	if ch.down == nil {
		ch.down = cause
	}
	end.closed = ch.down
	if ch.timer != nil {
		ch.timer.Stop()
	}
	if ch.resume != nil {
		ch.resume.Stop()
	}
	ch.p.Close()
	for i := range ch.slots { // none, unless the path broke its contract: no transfer may hang for that
		if s := &ch.slots[i]; s.t != nil {
			t, part := s.t, s.part
			ch.release(uint32(i))
			t.m.Done(part, state.PathDown, nil)
			ch.follow(t, end)
		}
	}
	ch.queue.Each(func(it *sched.Item[*Transfer]) {
		ch.leave(it.Value)
		it.Value.m.Fence()
		ch.interrupted(it.Value, end)
	})
	for _, t := range ch.broken {
		ch.interrupted(t, end)
	}
	ch.broken = nil
	ch.peer.node.exposed.Keep(&fence.Path{Mu: &ch.mu, Path: ch.p, Refund: ch.grant.release})
	for _, w := range ch.fences.Take() {
		ch.peer.node.exposed.Linger(&ch.mu, ch.p, w)
	}
}

// shut closes the path for the reason given and lets every operation end.
func (ch *channel) shut(cause error) {
	var end ending
	ch.mu.Lock()
	if ch.gone {
		ch.unlock()
		return
	}
	if ch.down == nil {
		ch.down = cause
	}
	ch.p.Close()
	for !ch.gone {
		if ch.poll(&end) == 0 {
			// Every path reports EventDown after Close; one that does not must not hang its peer.
			ch.wentDown(cause, &end)
		}
	}
	ch.finish(&end)
}
