package transfer

import (
	"errors"
	"slices"
	"time"

	"github.com/penstock-io/penstock/transfer/fence"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/state"
)

// postMax is the number of operations handed to a path in one call.
const postMax = 16

func (ch *channel) flushAfter(d time.Duration) {
	if ch.timer == nil {
		ch.timer = time.AfterFunc(d, ch.again)
		return
	}
	ch.timer.Reset(d)
}

// again has the queue looked at, by this goroutine or the one that holds the channel.
func (ch *channel) again() {
	ch.arrivals.some.Store(true)
	ch.work()
}

// pump posts from the queue until it is empty or no more may be outstanding. What is small goes
// before the next step of a caller.
func (ch *channel) pump(end *ending) {
	ch.batch.Reset()
	ch.fences.Post(ch.p)
	if ch.now != nil && ch.callers != nil && ch.callers.isBulk() && ch.queue.Len() > 1 {
		ch.post(allClasses&^bulkClasses, end)
	}
	ch.post(allClasses, end)
}

// post posts what is queued in some classes.
func (ch *channel) post(classes uint64, end *ending) {
	for {
		n, step := ch.gather(classes, end)
		if n == 0 {
			return
		}
		now := ch.clock
		if ch.clock = 0; now == 0 {
			now = clock()
		}
		k, done, err := ch.hand(n, step)
		for i := range k {
			t := ch.from[i]
			if t.posted == 0 {
				t.posted = now
			}
		}
		// What was not accepted goes back, last first, so that the order stays.
		for i := n - 1; i >= k; i-- {
			ch.putBack(i)
		}
		for i := range done {
			ch.opEnded(&ch.ends[i], end)
		}
		if err != nil && !errors.Is(err, path.ErrFull) && !errors.Is(err, path.ErrDown) && k < n {
			ch.refuse(ch.from[k], err, end)
			continue
		}
		if errors.Is(err, path.ErrDown) {
			ch.peer.node.loop.Kick(ch) // for the event that says so
		}
		if k < n && (done == 0 || errors.Is(err, path.ErrDown)) {
			return
		}
		if step && done == n && !ch.from[0].m.Posted() {
			ch.arrivals.some.Store(true) // this goroutine goes on when others could have had the channel
			return
		}
	}
}

// hand gives the first n operations to the path. done is how many have ended by then, also of
// earlier ones; their events are in ends. But for the steps of callers, large transfers end by
// Poll: the loop goes on with them, so that they hold neither the caller nor those who want the
// channel meanwhile.
func (ch *channel) hand(n int, step bool) (accepted, done int, err error) {
	if ch.now != nil && (step || !slices.ContainsFunc(ch.ops[:n], func(o path.Op) bool { return o.Bulk })) {
		return ch.now.PostNow(ch.ops[:n], ch.ends[:])
	}
	accepted, err = ch.p.Post(ch.ops[:n])
	return accepted, 0, err
}

// gather fills ops with the next operations and takes slots for them. step says that it is one step
// of a large transfer that its caller carries.
func (ch *channel) gather(classes uint64, end *ending) (n int, step bool) {
	for n < postMax && len(ch.free) > 0 && !step {
		may := classes
		if ch.bulkLen >= ch.room() {
			may &^= bulkClasses
		}
		it, grant := ch.queue.Next(may)
		if it == nil {
			break
		}
		t := it.Value
		if t.canceled() && !t.m.Posted() {
			t.m.Fail(path.ErrCanceled)
		}
		if step := t.m.Next(); step != state.Queue {
			ch.act(t, step, end)
			continue
		}
		step = n == 0 && ch.steps(t)
		bytes := ch.size(t, grant, step)
		if wait := ch.pay(bytes); wait > 0 {
			ch.flushAfter(wait)
			break
		}
		if t.posted == 0 && t.m.Outstanding() == 0 {
			if t.sole = 0; ch.inflight == 0 {
				t.sole = 1 + ch.gathered
			}
		}
		idx := ch.free[len(ch.free)-1]
		ch.free = ch.free[:len(ch.free)-1]
		s := &ch.slots[idx]
		op := &ch.ops[n]
		s.t, s.bulk, s.notify = t, t.isBulk() && !t.m.Posted(), t.m.Posted()
		*op = path.Op{Kind: t.kind, Bulk: s.bulk, Imm: t.id.Number(),
			Token: uint64(s.gen)<<32&^fence.Token | uint64(idx)}
		s.part, op.Copies, op.Notify = t.m.Post(bytes, &s.copies)
		if op.Notify {
			op.Msg = t.msg
		}
		if s.notify {
			op.Kind, op.Notify = path.Notify, false
		}
		if op.Kind != path.Get && !ch.gave.Load() {
			ch.gave.Store(true)
		}
		ch.inflight++
		if s.bulk {
			ch.bulk++
			ch.bulkLen += bytes
			if s.ahead = ch.bulkLen; ch.trip > 0 {
				s.at = clock()
			}
		}
		ch.gathered++
		t.ops++
		ch.from[n], ch.charged[n] = t, ch.queue.Took(it, bytes)
		n++
		if t.m.Posted() {
			ch.leave(t) // what ends last brings it back if the notification is due
		}
	}
	return n, step
}

// putBack undoes the gathering of operation i.
func (ch *channel) putBack(i int) {
	op := &ch.ops[i]
	t := ch.from[i]
	s := &ch.slots[uint32(op.Token)]
	ch.prepaid += s.part.Bytes
	t.m.Unpost(s.part)
	ch.release(uint32(op.Token))
	ch.gathered--
	t.ops--
	if t.item.Queued() {
		ch.queue.Refund(&t.item, ch.charged[i])
	} else {
		f, class := ch.flowOf(t)
		ch.queue.PushFront(f, class, &t.item, ch.charged[i])
	}
}

func (ch *channel) release(idx uint32) {
	s := &ch.slots[idx]
	ch.inflight--
	if s.bulk {
		ch.bulk--
		ch.bulkLen -= s.part.Bytes
	}
	if cap(s.copies) > keepCopies {
		s.copies = nil
	}
	clear(s.copies)
	s.t, s.copies = nil, s.copies[:0]
	s.gen = (s.gen + 1) & 0x7fffffff
	ch.free = append(ch.free, idx)
}

// refuse ends a transfer whose operation the path did not accept.
func (ch *channel) refuse(t *Transfer, err error, end *ending) {
	if t.misses(err) {
		t.m.Refuse()
	} else {
		t.m.Fail(err)
	}
	ch.follow(t, end)
}
