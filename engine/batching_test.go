package engine

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/packet/burst"
)

// delivery is a burst as the model of Batching expects it.
type delivery struct {
	at      time.Duration
	packets int
}

// deliveries says when which packets are delivered to a consumer that always waits, if they arrive
// at these times.
func deliveries(arrivals []time.Duration, o Batching) []delivery {
	var out []delivery
	free := time.Duration(0) // when the one before was delivered
	for len(arrivals) > 0 {
		first := max(arrivals[0], free)
		n, at := 1, first
		for n < o.Packets && n < len(arrivals) && arrivals[n] <= first+o.Timeout {
			at = max(at, arrivals[n])
			n++
		}
		if n < o.Packets {
			at = first + o.Timeout
		}
		out = append(out, delivery{at, n})
		free, arrivals = at, arrivals[n:]
	}
	return out
}

// Whenever packets come, and however many at a time: Rx and Poller deliver each burst at the very
// moment when it is due, also where the queue wakes them for nothing, and where it is only polled:
// then a packet comes when the consumer looks at the queue.
func TestBatchingModel(t *testing.T) {
	const beat = retryAfter
	for seed := range uint64(120) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 3))
			o := Batching{Packets: 1 + r.IntN(8)}
			if r.IntN(4) > 0 {
				o.Timeout = time.Duration(1 + r.IntN(1e6))
			}
			if r.IntN(2) == 0 {
				o.Spin = time.Microsecond
			}
			q := newQueue(t, 512)
			q.lazy = r.IntN(2) == 0
			var from Receiver = q
			polled := seed%3 == 0
			pause := int64(4e5)
			switch seed % 3 {
			case 0:
				from, pause, o.Timeout = newDeaf(q), 4e6, (10 * o.Timeout).Round(beat)
			case 1:
				from = &restless{Receiver: q}
			}
			var recv func(context.Context, *burst.Burst) error
			if seed%2 == 0 {
				recv = NewRx(from, o).Recv
			} else {
				p := newPoller(t, PollerOptions{CPU: Unpinned, Mode: PollMode(r.IntN(2)), Spin: time.Microsecond})
				recv = add(t, p, from, PollOptions{Batching: o}).Recv
			}
			var pushes, arrivals []time.Duration
			var ends []int // of the arrivals of each push
			at := time.Duration(0)
			for range 60 {
				at += time.Duration(1 + r.Int64N(pause))
				seen := at
				if polled { // between two looks
					at = at.Truncate(beat) + beat/2
					seen = at + beat/2
				}
				pushes = append(pushes, at)
				for range 1 + r.IntN(4) {
					arrivals = append(arrivals, seen)
				}
				ends = append(ends, len(arrivals))
			}
			start := time.Now()
			go func() {
				n := 0
				for i, at := range pushes {
					time.Sleep(at - time.Since(start))
					var ns []uint64
					for ; n < ends[i]; n++ {
						ns = append(ns, uint64(n))
					}
					q.push(ns...)
				}
			}()
			b := burst.New(o.Packets)
			next := uint64(0)
			for i, want := range deliveries(arrivals, o) {
				if err := recv(t.Context(), b); err != nil {
					t.Fatal(err)
				}
				if got := (delivery{time.Since(start), b.Len()}); got != want {
					t.Fatalf("seed %d, %+v: burst %d is %+v, want %+v", seed, o, i, got, want)
				}
				for k := range b.Len() {
					if number(b, k) != next {
						t.Fatalf("seed %d: packet %d, expected %d", seed, number(b, k), next)
					}
					next++
				}
				b.Release()
			}
		})
	}
}

// restless is a Receiver that wakes the Waker it is armed with for no reason, once at once and then
// again and again.
type restless struct {
	Receiver
	arms int
}

func (r *restless) Arm(w *Waker) bool {
	if r.Receiver.Arm(w) {
		return true
	}
	if r.arms++; r.arms%3 == 0 {
		w.Wake()
	} else {
		time.AfterFunc(7*time.Microsecond, w.Wake)
	}
	return false
}

// Wakes for nothing do not look like traffic: a spinning consumer sleeps soon all the same, and
// does not look for as long as it may.
func TestSpinIsNotKeptUpByWakes(t *testing.T) {
	const spin = 2 * retryAfter
	for _, adaptive := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			q := newDeaf(newQueue(t, 8))
			ctx, cancel := context.WithTimeout(t.Context(), 5*spin)
			defer cancel()
			var s *spinner
			if adaptive {
				p := newPoller(t, PollerOptions{CPU: Unpinned, Mode: Adaptive, Spin: spin})
				s = &p.spin
				add(t, p, q, PollOptions{})
				<-ctx.Done()
				p.Close()
			} else {
				r := NewRx(q, Batching{Spin: spin})
				s = &r.spin
				if err := r.Recv(ctx, burst.New(4)); err != context.DeadlineExceeded {
					t.Fatal(err)
				}
			}
			if s.budget > spin/4 { // the end of a poller counts as traffic
				t.Errorf("looks for %v after wakes for nothing, expected an eighth of %v", s.budget, spin)
			}
		})
	}
}

// A context that ends is seen between any number of wakes.
func TestRxContextRestless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 8)
		r := NewRx(&restless{Receiver: q}, Batching{Packets: 4, Timeout: time.Hour})
		q.push(1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		start := time.Now()
		b := burst.New(4)
		if err := r.Recv(ctx, b); err != context.DeadlineExceeded || time.Since(start) != time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		expect(t, b, nil, 1)
	})
}
