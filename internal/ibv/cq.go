package ibv

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/sys"
)

// Channel wakes the owners of completion queues: its descriptor is readable while it has events.
// Wait for it with epoll, then call Next until it has no more.
type Channel struct {
	object
	ctx *Context
	fd  int
	mu  sync.Mutex // one Next at a time, since they share out
	out temp[[2]uintptr]
}

// CreateChannel makes a completion channel. The caller closes it, after the queues that use it.
func (c *Context) CreateChannel() (*Channel, error) {
	const op = "create_comp_channel"
	if err := c.usable(op); err != nil {
		return nil, err
	}
	h, e := made(op, c.name, c.lib.f.createChannel, c.h)
	if e != nil {
		return nil, e
	}
	cc := dl.At[cChannel](h)
	ch := &Channel{ctx: c, fd: int(cc.fd)}
	err := same(field{"ibv_comp_channel.context", uint64(cc.context), uint64(c.h)})
	if err == nil {
		err = sys.SetNonblock(ch.fd)
	}
	if err == nil {
		ch.out, err = newTemp[[2]uintptr]()
	}
	if err == nil {
		err = ch.open(&c.tree, "completion channel",
			fmt.Sprintf("completion channel (descriptor %d) of %s", ch.fd, c.name), h, nil, &c.object)
	}
	if err != nil {
		return nil, errors.Join(err, c.returned("destroy_comp_channel", c.name, c.lib.f.destroyChannel, h))
	}
	return ch, nil
}

// FD is the descriptor, which does not block and stays the channel's.
func (c *Channel) FD() int { return c.fd }

// Next is the next event: the queue that was armed and has a completion. ok is false when there is
// none. The queue must be armed again for another event, and the event acknowledged at some time:
// CQ.Ack, or CQ.Close.
func (c *Channel) Next() (cq *CQ, ok bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if c.out.v == nil {
			return nil, false, &Error{Op: "get_cq_event", On: c.name, Kind: ErrClosed}
		}
		at := c.out.p()
		ret, errno := c.ctx.lib.f.getCQEvent.CallErrno3(c.h, at, at+8)
		switch e := sys.Errno(errno); {
		case int32(ret) == 0:
		case e == sys.EAGAIN:
			return nil, false, nil
		case e == sys.EINTR:
			continue
		default:
			return nil, false, failed("get_cq_event", c.name, result(ret, errno))
		}
		if cq := c.ctx.tree.event(c.out.v[0]); cq != nil {
			return cq, true, nil
		}
		// A queue that is being closed: no other goroutine acknowledges this event.
		c.ctx.lib.f.ackCQEvents.Call2(c.out.v[0], 1)
	}
}

// event counts an event of the completion queue at h; nil when that is closing.
func (t *tree) event(h uintptr) *CQ {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.byAddr[h]
	if o == nil || o.closing {
		return nil
	}
	cq, ok := o.self.(*CQ)
	if !ok {
		return nil
	}
	cq.unacked++
	return cq
}

// Close ends the channel. ErrInUse names a queue that uses it.
func (c *Channel) Close() error {
	return c.close("destroy_comp_channel", func(h uintptr) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if err := c.ctx.returned("destroy_comp_channel", c.name, c.ctx.lib.f.destroyChannel, h); err != nil {
			return err
		}
		c.out.free()
		c.out = temp[[2]uintptr]{}
		return nil
	})
}

// CQSpec is a completion queue to be made.
type CQSpec struct {
	Entries int      // at least so many completions fit; more outstanding requests than that end the queue
	Channel *Channel // where its events go; nil: it is polled only
	Vector  int      // the interrupt, below Context.CompVectors
	Times   Times    // of completions, for PollTimes; ErrUnsupported where the device does not take them
}

// CQ is a completion queue. One goroutine polls it at a time.
type CQ struct {
	object
	ctx     *Context
	entries int
	channel *Channel
	unacked uint32 // events that Next returned; under the tree's lock
	overrun atomic.Bool
	times   Times
	ex      *cCQEx // with Times; then it is polled by functions of its own
	start   temp[cPollAttr]
}

// CreateCQ makes a completion queue. The caller closes it, after the queue pairs that use it.
func (c *Context) CreateCQ(s CQSpec) (*CQ, error) {
	const op = "create_cq"
	if err := c.usable(op); err != nil {
		return nil, err
	}
	if s.Entries < 1 || s.Entries > 1<<30 {
		return nil, invalid(op, c.name, "%d entries: expected at least 1", s.Entries)
	}
	if s.Vector < 0 || s.Vector >= c.CompVectors() {
		return nil, invalid(op, c.name, "vector %d: expected 0 to %d", s.Vector, c.CompVectors()-1)
	}
	parents := []*object{&c.object}
	var channel uintptr
	if s.Channel != nil {
		if err := s.Channel.usable(op); err != nil {
			return nil, err
		}
		if s.Channel.ctx != c {
			return nil, invalid(op, c.name, "%s is of another device", s.Channel.name)
		}
		parents, channel = append(parents, &s.Channel.object), s.Channel.h
	}
	var h uintptr
	var e *Error
	if s.Times != TimesNone {
		h, e = c.createCQEx(s, channel)
	} else {
		h, e = made(op, c.name, c.lib.f.createCQ, c.h, uintptr(s.Entries), 0, channel, uintptr(s.Vector))
	}
	if e != nil {
		if s.Times == TimesNone && e.Errno == sys.EINVAL || e.Errno == sys.ENOMEM {
			e.Hint = fmt.Sprintf("%d entries: the device has at most DeviceAttr.MaxCQE, and so many queues as MaxCQ",
				s.Entries)
		}
		return nil, e
	}
	cc := dl.At[cCQ](h)
	cq := &CQ{ctx: c, entries: int(cc.cqe), channel: s.Channel, times: s.Times}
	err := same(field{"ibv_cq.context", uint64(cc.context), uint64(c.h)},
		field{"ibv_cq.channel", uint64(cc.channel), uint64(channel)})
	if err == nil && cq.entries < s.Entries {
		err = layoutError("ibv_cq.cqe", cq.entries, fmt.Sprintf("at least %d", s.Entries))
	}
	if err == nil && s.Times != TimesNone {
		err = cq.extend(h)
	}
	if err == nil {
		err = cq.open(&c.tree, "completion queue", fmt.Sprintf("completion queue %d of %s", cc.handle, c.name), h, cq,
			parents...)
	}
	if err != nil {
		cq.start.free()
		return nil, errors.Join(err, c.returned("destroy_cq", c.name, c.lib.f.destroyCQ, h))
	}
	return cq, nil
}

// Entries is how many completions fit, at least what was asked for.
func (q *CQ) Entries() int { return q.entries }

// Poll takes completions and returns how many; 0 means that there are none now. It allocates
// nothing. ErrOverrun: completions were lost because more came than fit; the queue and its queue
// pairs are of no use any more. Most devices tell that by an asynchronous event alone (EventCQErr):
// once Context.NextAsync has returned it, Poll fails as soon as the queue is empty.
func (q *CQ) Poll(wc []WC) (int, error) {
	if q.h == 0 {
		return 0, q.usable("poll_cq")
	}
	if len(wc) == 0 {
		return 0, nil
	}
	if q.ex != nil {
		return q.pollEx(wc, nil)
	}
	n := poll(q.ctx.c.ops.pollCQ, q.h, wc)
	if n < 0 || int(n) > len(wc) || n == 0 && q.overrun.Load() {
		return 0, q.pollError(n)
	}
	return int(n), nil
}

func (q *CQ) pollError(n int32) error {
	e := &Error{Op: "poll_cq", On: q.name, Kind: ErrOverrun,
		Hint: fmt.Sprintf("more completions came than its %d entries hold: give the queue at least as many "+
			"entries as its queue pairs have requests and receives", q.entries)}
	if n < 0 && !q.overrun.Load() {
		e.Errno = sys.Errno(-n)
		e.Hint = "the queue has more completions than it holds, or the device has failed (Context.NextAsync tells)"
	}
	return e
}

// Arm asks for one event on the channel when the next completion comes, or the next that is
// solicited or failed. A completion that came before gives no event: Arm, then Poll once more, and
// sleep only when that finds nothing.
func (q *CQ) Arm(solicitedOnly bool) error {
	if q.h == 0 {
		return q.usable("req_notify_cq")
	}
	s := uintptr(0)
	if solicitedOnly {
		s = 1
	}
	if ret := int32(q.ctx.c.ops.reqNotifyCQ.Call2(q.h, s)); ret != 0 {
		return failed("req_notify_cq", q.name, result(uintptr(uint32(ret)), 0))
	}
	return nil
}

// Ack acknowledges the events of this queue that Next has returned so far. It takes a lock of the
// library, so that it is better called once for many.
func (q *CQ) Ack() {
	t := q.tree
	if t == nil {
		return
	}
	t.mu.Lock()
	n, h := q.unacked, q.h
	q.unacked = 0
	t.mu.Unlock()
	if n > 0 && h != 0 {
		q.ctx.lib.f.ackCQEvents.Call2(h, uintptr(n))
	}
}

// Close ends the queue; what is in it is lost. ErrInUse names a queue pair that uses it.
func (q *CQ) Close() error {
	return q.close("destroy_cq", func(h uintptr) error {
		q.Ack() // the library waits for it
		if err := q.ctx.returned("destroy_cq", q.name, q.ctx.lib.f.destroyCQ, h); err != nil {
			return err
		}
		q.start.free()
		q.start, q.ex = temp[cPollAttr]{}, nil
		return nil
	})
}
