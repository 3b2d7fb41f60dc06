package engine

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/packet/burst"
)

func expect(t *testing.T, b *burst.Burst, err error, want ...uint64) {
	t.Helper()
	if err != nil || !slices.Equal(numbers(b), want) {
		t.Fatalf("got %v, error %v; want %v", numbers(b), err, want)
	}
	b.Release()
}

// The clock of these tests is virtual: waits are exact.
func TestRxBatching(t *testing.T) {
	for _, spin := range []time.Duration{0, 20 * time.Microsecond} {
		for _, lazy := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(t, 64)
				q.lazy = lazy
				r := NewRx(q, Batching{Packets: 4, Timeout: time.Second, Spin: spin})
				b := burst.New(8)
				ctx := t.Context()
				start := time.Now()

				// A full batch is delivered at once, and what is there beyond it.
				q.push(1, 2, 3, 4)
				expect(t, b, r.Recv(ctx, b), 1, 2, 3, 4)
				q.push(1, 2, 3, 4, 5, 6, 7, 8, 9)
				expect(t, b, r.Recv(ctx, b), 1, 2, 3, 4, 5, 6, 7, 8)
				if d := time.Since(start); d != 0 {
					t.Errorf("waited %v for what was there", d)
				}

				// A partial one when its first packet has waited long enough, however many come in
				// between.
				go func() {
					for n := range uint64(2) {
						time.Sleep(400 * time.Millisecond)
						q.push(10 + n)
					}
				}()
				expect(t, b, r.Recv(ctx, b), 9, 10, 11)
				if d := time.Since(start); d != time.Second {
					t.Errorf("a partial burst came after %v", d)
				}

				// The wait begins with the first packet, not with the call; the last packet of a
				// batch ends it.
				go func() {
					for n := range uint64(4) {
						time.Sleep(300 * time.Millisecond)
						q.push(n)
					}
				}()
				expect(t, b, r.Recv(ctx, b), 0, 1, 2, 3)
				if d := time.Since(start); d != 2200*time.Millisecond {
					t.Errorf("the batch was full at 2.2 s and came at %v", d)
				}

				// What the caller left in the burst counts, and waits from the call on.
				q.push(1)
				if n, err := r.TryRecv(b); n != 1 || err != nil {
					t.Fatal(n, err)
				}
				time.Sleep(time.Hour)
				before := time.Now()
				expect(t, b, r.Recv(ctx, b), 1)
				if d := time.Since(before); d != time.Second {
					t.Errorf("waited %v", d)
				}
			})
		}
	}
}

func TestRxNoTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 64)
		r := NewRx(q, Batching{})
		b := burst.New(4)
		start := time.Now()
		q.push(1, 2)
		expect(t, b, r.Recv(t.Context(), b), 1, 2)
		go func() {
			time.Sleep(time.Minute)
			q.push(3)
		}()
		expect(t, b, r.Recv(t.Context(), b), 3)
		if d := time.Since(start); d != time.Minute {
			t.Errorf("after %v", d)
		}
	})
}

func TestRxContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 64)
		r := NewRx(q, Batching{Packets: 4, Timeout: time.Hour})
		b := burst.New(4)
		q.push(1, 2)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if err := r.Recv(ctx, b); !errors.Is(err, context.DeadlineExceeded) || b.Len() != 2 {
			t.Fatalf("%v with %d packets", err, b.Len())
		}
		if d := time.Since(start); d != time.Second {
			t.Errorf("after %v", d)
		}
		// The packets are still there, and an ended context ends also a call that need not wait.
		q.push(3, 4)
		if err := r.Recv(ctx, b); !errors.Is(err, context.DeadlineExceeded) || b.Len() != 2 || q.waiting() != 2 {
			t.Fatalf("%v with %d packets", err, b.Len())
		}
		expect(t, b, r.Recv(t.Context(), b), 1, 2, 3, 4)

		// Nothing comes at all.
		ctx, cancel = context.WithCancel(t.Context())
		go func() {
			time.Sleep(time.Second)
			cancel()
		}()
		if err := r.Recv(ctx, b); !errors.Is(err, context.Canceled) || b.Len() != 0 {
			t.Fatalf("%v with %d packets", err, b.Len())
		}
	})
}

func TestRxClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 64)
		r := NewRx(q, Batching{Packets: 4, Timeout: time.Hour})
		b := burst.New(4)
		q.push(1, 2, 3, 4, 5, 6)
		q.Close()
		expect(t, b, r.Recv(t.Context(), b), 1, 2, 3, 4)
		expect(t, b, r.Recv(t.Context(), b), 5, 6)
		for range 2 {
			if err := r.Recv(t.Context(), b); err != ErrClosed {
				t.Fatal(err)
			}
		}

		// While it waits: for the rest of a batch, and for a first packet.
		for _, n := range [][]uint64{{1, 2}, nil} {
			q := newQueue(t, 64)
			r := NewRx(q, Batching{Packets: 4, Timeout: time.Hour})
			q.push(n...)
			go func() {
				time.Sleep(time.Second)
				q.Close()
			}()
			if n != nil {
				expect(t, b, r.Recv(t.Context(), b), n...)
			}
			if err := r.Recv(t.Context(), b); err != ErrClosed {
				t.Fatal(err)
			}
		}
	})
}

// An error that the queue tells once is not lost when there are packets to deliver first.
func TestRxError(t *testing.T) {
	for _, spin := range []time.Duration{0, time.Microsecond} {
		synctest.Test(t, func(t *testing.T) {
			q := newQueue(t, 64)
			r := NewRx(q, Batching{Packets: 4, Timeout: time.Second, Spin: spin})
			b := burst.New(4)
			q.push(1)
			q.fail(ErrDown)
			expect(t, b, r.Recv(t.Context(), b), 1)
			if w := NewWaker(); !r.Arm(w) {
				t.Error("not ready with an error to tell")
			}
			if err := r.Recv(t.Context(), b); err != ErrDown {
				t.Fatal(err)
			}
			q.push(2)
			expect(t, b, r.Recv(t.Context(), b), 2)
		})
	}
}

// A packet that has more segments than the burst has room for ends the batch.
func TestRxNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 64)
		q.segs = 3
		r := NewRx(q, Batching{Timeout: time.Hour})
		b := burst.NewSegmented(8, 8)
		start := time.Now()
		q.push(1, 2, 3)
		expect(t, b, r.Recv(t.Context(), b), 1, 2)
		if d := time.Since(start); d != 0 {
			t.Errorf("waited %v for room in the burst", d)
		}
		expect(t, b, r.Recv(t.Context(), b), 3)

		// A burst that the caller forgot to release is given back as it is.
		q.segs = 1
		q.push(1, 2, 3, 4, 5, 6, 7, 8, 9)
		if err := r.Recv(t.Context(), b); err != nil || b.Len() != 8 {
			t.Fatal(err)
		}
		expect(t, b, r.Recv(t.Context(), b), 1, 2, 3, 4, 5, 6, 7, 8)
		expect(t, b, r.Recv(t.Context(), b), 9)
	})
}

// both tells packets and an error in one answer.
type both struct{ *queue }

func (q both) TryRecv(b *burst.Burst) (int, error) {
	n, err := q.queue.TryRecv(b)
	if n > 0 {
		err = ErrDown
	}
	return n, err
}

func TestRxPacketsAndError(t *testing.T) {
	q := newQueue(t, 4)
	r := NewRx(both{q}, Batching{})
	b := burst.New(4)
	q.push(1)
	expect(t, b, r.Recv(t.Context(), b), 1)
	if err := r.Recv(t.Context(), b); err != ErrDown {
		t.Error(err)
	}
}

func TestRxNil(t *testing.T) {
	r := NewRx(newQueue(t, 1), Batching{})
	if err := r.Recv(t.Context(), nil); err != ErrNil {
		t.Error(err)
	}
	if _, err := r.TryRecv(nil); err != ErrNil {
		t.Error(err)
	}
}

// Everything that one goroutine pushes arrives in order, whatever the batching, in real time.
func TestRxStress(t *testing.T) {
	const total = 20000
	for _, o := range []Batching{{}, {Packets: 7, Timeout: 50 * time.Microsecond},
		{Packets: 64, Timeout: time.Millisecond, Spin: 10 * time.Microsecond}} {
		q := newQueue(t, 256)
		r := NewRx(q, o)
		go func() {
			for n := uint64(0); n < total; n++ {
				q.push(n)
			}
			q.Close()
		}()
		b := burst.New(64)
		next := uint64(0)
		for {
			err := r.Recv(t.Context(), b)
			if err == ErrClosed {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			for i := range b.Len() {
				if number(b, i) != next {
					t.Fatalf("packet %d came after %d", number(b, i), next)
				}
				next++
			}
			b.Release()
		}
		if next != total {
			t.Errorf("%d of %d packets", next, total)
		}
	}
}

// The spin becomes shorter while it finds nothing, and longer when it finds packets.
func TestRxSpinAdapts(t *testing.T) {
	q := newQueue(t, 64)
	r := NewRx(q, Batching{Spin: time.Millisecond})
	b := burst.New(4)
	for range 10 {
		if n, err := r.look(t.Context(), b, time.Time{}); n != 0 || err != nil {
			t.Fatal("spinning found something")
		}
	}
	if r.spin.budget != time.Millisecond/8 {
		t.Errorf("budget %v", r.spin.budget)
	}
	for n := range uint64(4) {
		q.push(n)
		if n, err := r.look(t.Context(), b, time.Time{}); n != 1 || err != nil {
			t.Fatal("spinning found nothing")
		}
	}
	if r.spin.budget != time.Millisecond {
		t.Errorf("budget %v", r.spin.budget)
	}
	b.Release()
}

func TestRxAllocs(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithRace|testenv.WithInvariants, "this build allocates for its checks")
	q := newQueue(t, 64)
	q.fifo = make([]uint64, 0, 1<<16)
	r := NewRx(q, Batching{Packets: 2, Timeout: time.Microsecond, Spin: time.Microsecond})
	b := burst.New(4)
	if n := testing.AllocsPerRun(100, func() {
		q.push(1)
		r.Recv(context.Background(), b)
		b.Release()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
