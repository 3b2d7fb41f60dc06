package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/packet/burst"
)

func newPoller(t testing.TB, o PollerOptions) *Poller {
	t.Helper()
	p, err := NewPoller(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func add(t testing.TB, p *Poller, q Receiver, o PollOptions) *Polled {
	t.Helper()
	c, err := p.Add(q, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(nil) })
	return c
}

// Several queues at one poller, each with its own batching: in virtual time every wait is exact.
func TestPollerBatching(t *testing.T) {
	for _, o := range []PollerOptions{{CPU: Unpinned}, {CPU: Unpinned, Mode: Adaptive}} {
		for _, lazy := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				p := newPoller(t, o)
				b := burst.New(8)
				ctx := t.Context()
				start := time.Now()
				var qs []*queue
				var cs []*Polled
				for i := range 3 {
					q := newQueue(t, 64)
					q.lazy = lazy
					qs = append(qs, q)
					cs = append(cs, add(t, p, q, PollOptions{Batching: Batching{Packets: 4,
						Timeout: time.Duration(i) * time.Second}}))
				}
				// Without a Timeout what is there, with one a full batch at once.
				for i, q := range qs {
					q.push(1, 2, 3, 4)
					expect(t, b, cs[i].Recv(ctx, b), 1, 2, 3, 4)
				}
				if d := time.Since(start); d != 0 {
					t.Errorf("waited %v for what was there", d)
				}
				// Partial ones, in the order of their timeouts, not of their queues.
				qs[2].push(5)
				qs[1].push(6)
				qs[0].push(7)
				for i := range cs {
					expect(t, b, cs[i].Recv(ctx, b), uint64(7-i))
					if d := time.Since(start); d != time.Duration(i)*time.Second {
						t.Errorf("queue %d delivered after %v", i, d)
					}
				}
				// Full bursts and the rest of them; one Recv takes what is there.
				qs[1].push(1, 2, 3, 4, 5, 6)
				synctest.Wait()
				if w := NewWaker(); !cs[1].Arm(w) || cs[0].Arm(w) {
					t.Error("Arm does not see what was handed over")
				}
				expect(t, b, cs[1].Recv(ctx, b), 1, 2, 3, 4)
				start = time.Now()
				expect(t, b, cs[1].Recv(ctx, b), 5, 6)
				if d := time.Since(start); d != time.Second {
					t.Errorf("the rest came after %v", d)
				}
				var s PollerStats
				p.Stats(&s)
				if s.Queues != 3 || s.Packets != 21 || s.Bursts != 8 || s.Stalls != 0 || s.Sleeps == 0 ||
					s.Asleep != 3*time.Second || s.Empty >= s.Iterations {
					t.Errorf("%+v", s)
				}
			})
		}
	}
}

// The poller leaves a queue alone when all its bursts are out, and goes on when one comes back; the
// other queue does not notice.
func TestPollerStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPoller(t, PollerOptions{CPU: Unpinned})
		q, other := newQueue(t, 64), newQueue(t, 64)
		c := add(t, p, q, PollOptions{Batching: Batching{Packets: 2}, Depth: 3})
		d := add(t, p, other, PollOptions{Batching: Batching{Packets: 2}, Depth: 3})
		q.push(upTo(10)...)
		synctest.Wait()
		var s PolledStats
		c.Stats(&s)
		if q.waiting() != 4 || s.Waiting != 3 || s.Stalls != 1 || s.Packets != 6 {
			t.Fatalf("%d packets are in the queue, %+v", q.waiting(), s)
		}
		b := burst.New(2)
		other.push(1)
		expect(t, b, d.Recv(t.Context(), b), 1)
		for i := range uint64(5) {
			expect(t, b, c.Recv(t.Context(), b), 2*i, 2*i+1)
			synctest.Wait()
		}
		var ps PollerStats
		p.Stats(&ps)
		c.Stats(&s)
		if ps.Stalls != s.Stalls || s.Stalls < 2 || s.Waiting != 0 {
			t.Errorf("%+v, poller %+v", s, ps)
		}
	})
}

func TestPollerRemove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPoller(t, PollerOptions{CPU: Unpinned})
		q := newQueue(t, 64)
		c := add(t, p, q, PollOptions{Batching: Batching{Packets: 2, Timeout: time.Hour}})
		if c.State() != Active {
			t.Error(c.State())
		}
		if _, err := p.Add(q, PollOptions{}); !errors.Is(err, ErrExists) {
			t.Error(err)
		}
		out := burst.New(1)
		q.push(1, 2, 3)
		if err := c.Recv(t.Context(), out); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := p.Remove(q); err != nil {
			t.Fatal(err)
		}
		if err := p.Remove(q); err != ErrNotFound {
			t.Error(err)
		}
		polls := q.stats.Polls // it is ours now
		q.push(4)
		b := burst.New(8)
		if c.State() != Draining {
			t.Error(c.State())
		}
		expect(t, b, c.Recv(t.Context(), b), 2, 3)
		for range 2 {
			if err := c.Recv(t.Context(), b); err != ErrClosed || c.State() != Closed {
				t.Error(err, c.State())
			}
		}
		if q.stats.Polls != polls || q.waiting() != 1 {
			t.Error("the poller still polls the queue")
		}
		expect(t, out, nil, 1) // a burst that is out stays valid

		// The queue can be added again, to another poller too, and then its owner sleeps in Recv
		// when that poller closes.
		p2 := newPoller(t, PollerOptions{CPU: Unpinned, Name: "second"})
		c = add(t, p2, q, PollOptions{})
		expect(t, b, c.Recv(t.Context(), b), 4)
		go func() {
			time.Sleep(time.Second)
			p2.Close()
		}()
		if err := c.Recv(t.Context(), b); err != ErrClosed {
			t.Error(err)
		}
		if _, err := p2.Add(q, PollOptions{}); err != ErrClosed {
			t.Error(err)
		}
		p2.Close()
		var s PollerStats
		p2.Stats(&s)
		if s.Queues != 0 || s.Packets != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// A queue that fails: first everything that it received, then why.
func TestPollerFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPoller(t, PollerOptions{CPU: Unpinned})
		q := newQueue(t, 64)
		c := add(t, p, q, PollOptions{Batching: Batching{Packets: 4, Timeout: time.Hour}})
		q.push(1, 2)
		synctest.Wait()
		q.fail(ErrDown)
		b := burst.New(8)
		expect(t, b, c.Recv(t.Context(), b), 1, 2)
		if err := c.Recv(t.Context(), b); err != ErrDown {
			t.Error(err)
		}
		synctest.Wait() // the poller hands the error over before it takes the queue out
		var s PollerStats
		if p.Stats(&s); s.Queues != 0 {
			t.Errorf("%d queues", s.Queues)
		}
	})
}

// A consumer that gives up releases what it has not received.
func TestPolledClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPoller(t, PollerOptions{CPU: Unpinned})
		q := newQueue(t, 64)
		c := add(t, p, q, PollOptions{Batching: Batching{Packets: 3}, Depth: 4})
		q.push(upTo(20)...)
		synctest.Wait()
		b := burst.New(1)
		expect(t, b, c.Recv(t.Context(), b), 0)
		synctest.Wait()
		if n := c.Close(nil); n != 11 || c.State() != Closed || q.waiting() != 8 || q.pool.Stats().InUse != 0 {
			t.Errorf("%d packets thrown away, %d in the queue, %d slots out, %v", n, q.waiting(), q.pool.Stats().InUse,
				c.State())
		}
		if n := c.Close(nil); n != 0 {
			t.Error(n)
		}
		if n, err := c.TryRecv(b); n != 0 || err != ErrClosed {
			t.Error(n, err)
		}
	})
}

// Packets with many segments.
func TestPollerSegments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPoller(t, PollerOptions{CPU: Unpinned})
		q := newQueue(t, 64)
		q.segs = 4
		c := add(t, p, q, PollOptions{Batching: Batching{Packets: 4, Timeout: time.Hour}, Segments: 9})
		q.push(1, 2, 3, 4)
		small, b := burst.New(2), burst.NewSegmented(4, 16)
		start := time.Now()
		synctest.Wait()
		if n, err := c.TryRecv(small); n != 0 || !errors.Is(err, ErrInvalid) {
			t.Errorf("a burst that is too small: %d, %v", n, err)
		}
		expect(t, b, c.Recv(t.Context(), b), 1, 2)
		if d := time.Since(start); d != 0 {
			t.Errorf("two packets that fill a burst's segments waited %v", d)
		}
		expect(t, b, c.Recv(t.Context(), b), 3, 4) // nothing comes behind these
		if d := time.Since(start); d != time.Hour {
			t.Errorf("after %v", d)
		}
		if _, err := c.TryRecv(nil); err != ErrNil {
			t.Error(err)
		}
	})
}

func TestPollerRefuses(t *testing.T) {
	for _, o := range []PollerOptions{{CPU: -2}, {CPU: runtime.NumCPU()}, {Mode: 3}} {
		if _, err := NewPoller(o); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	p := newPoller(t, PollerOptions{CPU: Unpinned})
	if p.Name() == "" {
		t.Error("no name")
	}
	if _, err := p.Add(nil, PollOptions{}); err != ErrNil {
		t.Error(err)
	}
	for _, o := range []PollOptions{{Depth: -1}, {Depth: maxHandOff + 1}, {Batching: Batching{Packets: maxHandOff + 1}},
		{Segments: 1 << 30}} {
		if _, err := p.Add(newQueue(t, 1), o); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if s := fmt.Sprint(Event, Adaptive, Busy, PollMode(7), Active, Draining, Closed,
		PolledState(8)); s != "event adaptive busy mode 7 active draining closed state 8" {
		t.Error(s)
	}
}

// Busy pollers leave one processor of the scheduler to the others.
func TestPollerBusy(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	busy := PollerOptions{Name: "greedy", CPU: Unpinned, Mode: Busy}
	if _, err := NewPoller(busy); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "greedy") ||
		!strings.Contains(err.Error(), "GOMAXPROCS") {
		t.Errorf("one of one processor: %v", err)
	}
	runtime.GOMAXPROCS(2)
	p := newPoller(t, busy)
	if _, err := NewPoller(busy); !errors.Is(err, ErrUnavailable) {
		t.Errorf("two of two processors: %v", err)
	}
	q := newQueue(t, 64)
	c := add(t, p, q, PollOptions{Batching: Batching{Packets: 4}})
	b := burst.New(8)
	for n := range uint64(100) {
		q.push(n)
		expect(t, b, c.Recv(t.Context(), b), n)
	}
	var s PollerStats
	if p.Stats(&s); s.Sleeps != 0 || s.Packets != 100 {
		t.Errorf("%+v", s)
	}
	c.Close(nil)
	p.Close()
	newPoller(t, busy).Close() // there is room again
}

func TestPollerPinned(t *testing.T) {
	p := newPoller(t, PollerOptions{CPU: 0})
	q := newQueue(t, 64)
	c := add(t, p, q, PollOptions{})
	b := burst.New(8)
	q.push(1)
	expect(t, b, c.Recv(t.Context(), b), 1)
}

// More queues than the sixteen of others, one consumer each, that come and go: every packet
// arrives, in order.
func TestPollerStress(t *testing.T) {
	const queues = 20
	total := uint64(2000)
	if testenv.Race || testenv.Invariants {
		total = 500
	}
	for _, mode := range []PollMode{Event, Adaptive} {
		p := newPoller(t, PollerOptions{CPU: Unpinned, Mode: mode})
		var wg sync.WaitGroup
		for i := range queues {
			q := newQueue(t, 64)
			q.lazy = i%3 == 0
			o := PollOptions{Batching: Batching{Packets: 1 + i%5}, Depth: 1 + i%4}
			if i%2 == 0 {
				o.Timeout = time.Duration(i) * time.Microsecond
			}
			wg.Go(func() {
				for n := range total {
					q.push(n)
				}
			})
			wg.Go(func() {
				b := burst.New(1 + i%7)
				for next := uint64(0); next < total; {
					c, err := p.Add(q, o)
					if err != nil {
						t.Error(err)
						return
					}
					// Removed now and then, and added again.
					for until := next + 700; ; {
						err := c.Recv(t.Context(), b)
						if err == ErrClosed {
							break
						}
						if err != nil {
							t.Error(err)
							return
						}
						for k := range b.Len() {
							if number(b, k) != next {
								t.Errorf("queue %d: packet %d, expected %d", i, number(b, k), next)
							}
							next++
						}
						b.Release()
						if next >= until || next == total {
							if err := p.Remove(q); err != nil && err != ErrNotFound {
								t.Error(err)
							}
							until = total + 1
						}
					}
				}
			})
		}
		wg.Wait()
		var s PollerStats
		p.Stats(&s)
		if s.Packets != queues*total || s.Queues != 0 {
			t.Errorf("%+v", s)
		}
	}
}

func TestPollerAllocs(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithRace|testenv.WithInvariants, "this build allocates for its checks")
	p := newPoller(t, PollerOptions{CPU: Unpinned})
	q := newQueue(t, 64)
	q.fifo = make([]uint64, 0, 1<<16)
	c := add(t, p, q, PollOptions{Batching: Batching{Packets: 2, Timeout: time.Microsecond}})
	b := burst.New(4)
	if n := testing.AllocsPerRun(200, func() {
		q.push(1)
		c.Recv(context.Background(), b)
		b.Release()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// endless is a queue that always has packets, without memory behind them.
type endless struct {
	RxQueue
	src *burst.Source
}

func (q endless) ID() int         { return 0 }
func (q endless) Arm(*Waker) bool { return true }
func (q endless) TryRecv(b *burst.Burst) (int, error) {
	n := b.Room()
	for range n {
		b.Builder().Add(q.src, burst.Segment{Handle: burst.NoHandle, Len: 64})
	}
	return n, nil
}

// 64 packets from the poller's goroutine to the consumer's.
func BenchmarkPollerHandOff(b *testing.B) {
	p, err := NewPoller(PollerOptions{CPU: Unpinned})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	c, err := p.Add(endless{src: burst.NewSource(nil, nil, nobody{})}, PollOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close(nil)
	bu := burst.New(64)
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		c.Recv(context.Background(), bu)
		n += bu.Len()
		bu.Release()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/packet")
}
