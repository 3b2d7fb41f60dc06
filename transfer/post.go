package transfer

import (
	"errors"
	"slices"
	"time"

	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/state"
)

// postMax is the number of operations handed to a path in one call.
const postMax = 16

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

// pump posts from the queue until it is empty or no more may be outstanding. What is small goes
// before the next step of a caller.
func (l *lane) pump(end *ending) {
	l.batch.Reset()
	l.fences.post(l.p)
	if l.now != nil && l.callers != nil && l.callers.isBulk() && l.queue.Len() > 1 {
		l.post(allClasses&^bulkClasses, end)
	}
	l.post(allClasses, end)
}

// post posts what is queued in some classes.
func (l *lane) post(classes uint64, end *ending) {
	for {
		n, step := l.gather(classes, end)
		if n == 0 {
			return
		}
		now := l.clock
		if l.clock = 0; now == 0 {
			now = clock()
		}
		k, done, err := l.hand(n, step)
		for i := range k {
			t := l.from[i]
			if t.posted == 0 {
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
		if step && done == n && !l.from[0].m.Posted() {
			l.arrivals.some.Store(true) // this goroutine goes on when others could have had the lane
			return
		}
	}
}

// hand gives the first n operations to the path. done is how many have ended by then, also of
// earlier ones; their events are in ends. But for the steps of callers, large transfers end by
// Poll: the loop goes on with them, so that they hold neither the caller nor those who want the
// lane meanwhile.
func (l *lane) hand(n int, step bool) (accepted, done int, err error) {
	if l.now != nil && (step || !slices.ContainsFunc(l.ops[:n], func(o path.Op) bool { return o.Bulk })) {
		return l.now.PostNow(l.ops[:n], l.ends[:])
	}
	accepted, err = l.p.Post(l.ops[:n])
	return accepted, 0, err
}

// gather fills ops with the next operations and takes slots for them. step says that it is one step
// of a large transfer that its caller carries.
func (l *lane) gather(classes uint64, end *ending) (n int, step bool) {
	for n < postMax && len(l.free) > 0 && !step {
		may := classes
		if l.bulkLen >= l.room() {
			may &^= bulkClasses
		}
		it, grant := l.queue.Next(may)
		if it == nil {
			break
		}
		t := it.Value
		if t.canceled() && !t.m.Posted() {
			t.m.Fail(path.ErrCanceled)
		}
		if step := t.m.Next(); step != state.Queue {
			l.act(t, step, end)
			continue
		}
		step = n == 0 && l.steps(t)
		bytes := l.size(t, grant, step)
		if wait := l.pay(bytes); wait > 0 {
			l.flushAfter(wait)
			break
		}
		if t.posted == 0 && t.m.Outstanding() == 0 {
			if t.sole = 0; l.inflight == 0 {
				t.sole = 1 + l.gathered
			}
		}
		idx := l.free[len(l.free)-1]
		l.free = l.free[:len(l.free)-1]
		s := &l.slots[idx]
		op := &l.ops[n]
		s.t, s.bulk, s.notify = t, t.isBulk() && !t.m.Posted(), t.m.Posted()
		*op = path.Op{Kind: t.kind, Bulk: s.bulk, Imm: t.id.Number(),
			Token: uint64(s.gen)<<32&^fenceToken | uint64(idx)}
		s.part, op.Copies, op.Notify = t.m.Post(bytes, &s.copies)
		if op.Notify {
			op.Msg = t.msg
		}
		if s.notify {
			op.Kind, op.Notify = path.Notify, false
		}
		if op.Kind != path.Get && !l.gave.Load() {
			l.gave.Store(true)
		}
		l.inflight++
		if s.bulk {
			l.bulk++
			l.bulkLen += bytes
			if s.ahead = l.bulkLen; l.trip > 0 {
				s.at = clock()
			}
		}
		l.gathered++
		t.ops++
		l.from[n], l.charged[n] = t, l.queue.Took(it, bytes)
		n++
		if t.m.Posted() {
			l.leave(t) // what ends last brings it back if the notification is due
		}
	}
	return n, step
}

// putBack undoes the gathering of operation i.
func (l *lane) putBack(i int) {
	op := &l.ops[i]
	t := l.from[i]
	s := &l.slots[uint32(op.Token)]
	l.prepaid += s.part.Bytes
	t.m.Unpost(s.part)
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
	l.inflight--
	if s.bulk {
		l.bulk--
		l.bulkLen -= s.part.Bytes
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
		t.m.Refuse()
	} else {
		t.m.Fail(err)
	}
	l.follow(t, end)
}
