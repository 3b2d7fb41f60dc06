package engine

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/burst"
)

// delivery is a burst as the model of Batching expects it.
type delivery struct {
	at      time.Duration
	packets int
}

// deliveries says when which packets are delivered to a consumer that always waits, if they arrive at these times.
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

// Whenever packets come, and however many at a time: Rx and Poller deliver each burst at the very moment when it is due.
func TestBatchingModel(t *testing.T) {
	for seed := range uint64(80) {
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
			var recv func(context.Context, *burst.Burst) error
			if seed%2 == 0 {
				recv = NewRx(q, o).Recv
			} else {
				p := newPoller(t, PollerOptions{CPU: Unpinned, Mode: PollMode(r.IntN(2))})
				recv = add(t, p, q, PollOptions{Batching: o}).Recv
			}
			var pushes, arrivals []time.Duration
			at := time.Duration(0)
			for range 60 {
				at += time.Duration(1 + r.IntN(4e5))
				pushes = append(pushes, at)
				for range 1 + r.IntN(4) {
					arrivals = append(arrivals, at)
				}
			}
			start := time.Now()
			go func() {
				n := 0
				for _, at := range pushes {
					time.Sleep(at - time.Since(start))
					var ns []uint64
					for ; n < len(arrivals) && arrivals[n] == at; n++ {
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
