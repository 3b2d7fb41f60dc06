package engine

import (
	"context"
	"runtime"
	"time"

	"github.com/penstock-io/penstock/packet/burst"
)

// Receiver is what can be received from without waiting, and armed to wake its owner when there is
// something: every RxQueue, Stage, *Rx and *Polled. One goroutine at a time, its owner, uses it.
// RxQueue says what the methods promise.
//
// A Wake promises nothing: it may come for no reason, and as often as the Receiver likes. A device
// that is only polled, and has nothing to sleep on, answers Arm with false and wakes the owner by a
// timer. ready is a promise: the next TryRecv of a burst with room gives packets or an error, or
// its first packet finds no room there. A queue that makes no such promise wakes w and answers
// false.
type Receiver interface {
	TryRecv(b *burst.Burst) (int, error)
	Arm(w *Waker) (ready bool)
}

// Batching says when a burst is delivered.
type Batching struct {
	// Packets is the number of packets that is waited for, 0 or more than the burst holds for a
	// full burst. There may be more of them if more are there.
	Packets int
	// Timeout is how long the first packet of a burst waits for the others at most; 0 delivers what
	// is there.
	Timeout time.Duration
	// Spin is how long to look again and again, at most, before sleeping; 0 sleeps at once. It
	// adapts: it becomes shorter while it finds nothing.
	Spin time.Duration
}

// Rx receives on one queue, or on stages behind it, from the caller's own goroutine (direct
// polling). It belongs to one goroutine at a time, which owns the Receiver through it.
type Rx struct {
	q      Receiver
	o      Batching
	waker  *Waker
	timer  *time.Timer // nil until it is needed
	spin   spinner
	short  bool  // the last sleep was shorter than a spin
	failed error // what TryRecv said when there were packets to deliver first
}

// NewRx makes an Rx of a Receiver. Negative values of Batching count as 0.
func NewRx(q Receiver, o Batching) *Rx {
	return &Rx{q: q, o: o, waker: NewWaker(), spin: newSpinner(o.Spin)}
}

// TryRecv adds the packets that are there to b and returns how many it added, without waiting for a
// batch: 0 and nil when there are none.
func (r *Rx) TryRecv(b *burst.Burst) (int, error) {
	if b == nil {
		return 0, ErrNil
	}
	if err := r.failed; err != nil {
		r.failed = nil
		return 0, err
	}
	n, err := r.q.TryRecv(b)
	if n > 0 && err != nil {
		r.failed, err = err, nil
	}
	return n, err
}

// Arm implements Receiver.
func (r *Rx) Arm(w *Waker) (ready bool) { return r.failed != nil || r.q.Arm(w) }

// Recv waits for the first packet, and then until b holds Batching.Packets of them or
// Batching.Timeout has passed since the first, and delivers them in b. A partial burst never waits
// for longer than that. Packets that are in b already count, and wait no longer than that from the
// call on; a b without room is delivered as it is.
//
// When the context ends the error is its Err; what was received by then stays in b, which the
// caller owns as after any other return: the next Recv with the same b goes on with it, or Release
// gives it back. When the queue is closed or has failed, what it received before is delivered
// first, and the next call says why it ended.
//
// It allocates nothing but a timer, once, and may run in virtual time (testing/synctest) where the
// queue does.
func (r *Rx) Recv(ctx context.Context, b *burst.Burst) error {
	if b == nil {
		return ErrNil
	}
	if err := ctx.Err(); err != nil {
		return err // also under load: a context that has ended ends Recv
	}
	want := b.Cap()
	if r.o.Packets > 0 {
		want = min(want, r.o.Packets)
	}
	var deadline time.Time // of a partial burst
	stuck := false         // the queue said that there is something, and gave nothing
	for {
		n, err := 0, error(nil)
		if b.Room() > 0 {
			if n, err = r.TryRecv(b); n == 0 && err == nil {
				n, err = r.look(ctx, b, deadline)
			} else if r.short {
				r.spin.hit() // looking again would have found it
			}
			r.short = false
		}
		if err != nil {
			if b.Len() == 0 {
				return err
			}
			r.failed = err
			return nil
		}
		if b.Len() > 0 {
			if r.o.Timeout <= 0 || b.Len() >= want || b.Room() == 0 {
				return nil
			}
			if now := time.Now(); deadline.IsZero() {
				deadline = now.Add(r.o.Timeout)
			} else if !now.Before(deadline) {
				return nil
			}
			if stuck && n == 0 {
				return nil // the next packet has more segments than there is room for
			}
		}
		if n > 0 {
			stuck = false
		}
		if r.q.Arm(r.waker) {
			if stuck {
				runtime.Gosched()
				if err := ctx.Err(); err != nil {
					return err
				}
			}
			stuck = true
			continue
		}
		stuck = false
		if err := r.sleep(ctx, deadline); err != nil {
			return err
		}
	}
}

// look looks at the queue for a while, and returns what TryRecv says when it says anything.
func (r *Rx) look(ctx context.Context, b *burst.Burst, deadline time.Time) (int, error) {
	limit := r.o.Spin
	if limit <= 0 {
		return 0, nil
	}
	if !deadline.IsZero() {
		limit = min(limit, time.Until(deadline))
	}
	for r.spin.begin(limit); r.spin.again(); {
		if n, err := r.TryRecv(b); n > 0 || err != nil {
			r.spin.hit()
			return n, err
		}
		if r.spin.looks&15 == 0 && ctx.Err() != nil {
			return 0, nil // sleep says so
		}
	}
	r.spin.miss()
	return 0, nil
}

// sleep waits for the queue's Wake, the deadline if there is one, or the end of the context, which
// is the error.
func (r *Rx) sleep(ctx context.Context, deadline time.Time) error {
	if r.o.Spin > 0 {
		start := time.Now()
		defer func() { r.short = time.Since(start) < r.o.Spin }()
	}
	var at <-chan time.Time
	if !deadline.IsZero() {
		d := time.Until(deadline)
		if d <= 0 {
			return nil
		}
		if r.timer == nil {
			r.timer = time.NewTimer(d)
		} else {
			r.timer.Reset(d)
		}
		defer r.timer.Stop()
		at = r.timer.C
	}
	select {
	case <-r.waker.C():
		return nil
	case <-at:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
