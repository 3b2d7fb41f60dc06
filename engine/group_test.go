package engine

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/burst"
)

func TestGroup(t *testing.T) {
	for _, spin := range []time.Duration{0, time.Microsecond} {
		synctest.Test(t, func(t *testing.T) {
			x, y, z := newQueue(t, 64), newQueue(t, 64), newQueue(t, 64)
			rx := NewRx(y, Batching{})
			p := newPoller(t, PollerOptions{CPU: Unpinned})
			polled := add(t, p, z, PollOptions{})
			g, err := NewGroup(spin, x, rx)
			if err != nil {
				t.Fatal(err)
			}
			b := burst.New(2)
			next := func(want Receiver, ns ...uint64) {
				t.Helper()
				from, err := g.Recv(t.Context(), b)
				if from != want {
					t.Fatalf("from %v, want %v", from, want)
				}
				expect(t, b, err, ns...)
			}
			// They take turns, however much one has.
			x.push(1, 2, 3, 4, 5)
			y.push(6, 7, 8)
			next(x, 1, 2)
			next(rx, 6, 7)
			next(x, 3, 4)
			next(rx, 8)
			next(x, 5)
			// One that comes while the group sleeps, and the one that it waits for.
			go func() {
				time.Sleep(time.Second)
				if err := g.Add(polled); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Second)
				z.push(9)
			}()
			start := time.Now()
			next(polled, 9)
			if d := time.Since(start); d != 2*time.Second || g.Len() != 3 {
				t.Errorf("after %v", d)
			}
			if err := g.Add(polled); err != ErrExists {
				t.Error(err)
			}
			// One that is removed is left alone.
			if err := g.Remove(x); err != nil {
				t.Fatal(err)
			}
			if err := g.Remove(x); err != ErrNotFound {
				t.Error(err)
			}
			x.push(1)
			y.push(2)
			next(rx, 2)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if from, err := g.Recv(ctx, b); from != nil || !errors.Is(err, context.DeadlineExceeded) || x.waiting() != 1 {
				t.Error(from, err)
			}
			if _, err := g.Recv(ctx, b); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			// One that ends goes, and says so once.
			go func() {
				time.Sleep(time.Second)
				y.Close()
			}()
			if from, err := g.Recv(t.Context(), b); from != Receiver(rx) || err != ErrClosed || g.Len() != 1 {
				t.Error(from, err, g.Len())
			}
			z.push(3)
			next(polled, 3)
			z.push(4)
			z.Close()
			next(polled, 4)
			if from, err := g.Recv(t.Context(), b); from != Receiver(polled) || err != ErrClosed {
				t.Error(from, err)
			}
			// A group without members waits for one, or for its end.
			go func() {
				time.Sleep(time.Second)
				g.Add(x)
			}()
			next(x, 1)
			go func() {
				time.Sleep(time.Second)
				g.Close()
			}()
			if from, err := g.Recv(t.Context(), b); from != nil || err != ErrClosed {
				t.Error(from, err)
			}
			if err := g.Add(y); err != ErrClosed {
				t.Error(err)
			}
		})
	}
}

// Whose turn it is stays right when a member goes.
func TestGroupTurns(t *testing.T) {
	x, y, z := newQueue(t, 8), newQueue(t, 8), newQueue(t, 8)
	g, err := NewGroup(0, x, y, z)
	if err != nil {
		t.Fatal(err)
	}
	b := burst.New(1)
	for _, q := range []*queue{x, y, z} {
		q.push(1, 2)
	}
	for i, want := range []*queue{x, y, z, y, z} {
		if i == 1 {
			g.Remove(x)
		}
		if from, err := g.Recv(t.Context(), b); from != Receiver(want) || err != nil {
			t.Errorf("turn %d: %v", i, err)
		}
		b.Release()
	}
}

func TestGroupRefuses(t *testing.T) {
	q := newQueue(t, 4)
	if _, err := NewGroup(0, q, q); err != ErrExists {
		t.Error(err)
	}
	g, err := NewGroup(0, q)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Add(nil); err != ErrNil {
		t.Error(err)
	}
	if _, err := g.Recv(t.Context(), nil); err != ErrNil {
		t.Error(err)
	}
	b := burst.New(4)
	q.push(1)
	if from, err := g.TryRecv(b); from != Receiver(q) || err != nil {
		t.Error(from, err)
	}
	if _, err := g.Recv(t.Context(), b); !errors.Is(err, ErrInvalid) || b.Len() != 1 {
		t.Errorf("a burst that is not empty: %v", err)
	}
	b.Release()
	if from, err := g.TryRecv(b); from != nil || err != nil {
		t.Error(from, err)
	}
}

// Members come and go while packets flow, in real time.
func TestGroupStress(t *testing.T) {
	const queues, total = 5, 3000
	g, err := NewGroup(5 * time.Microsecond)
	if err != nil {
		t.Fatal(err)
	}
	next := map[Receiver]uint64{}
	for i := range queues {
		q := newQueue(t, 64)
		q.lazy = i%2 == 0
		next[q] = 0
		go func() {
			if err := g.Add(q); err != nil {
				t.Error(err)
			}
			for n := range uint64(total) {
				q.push(n)
				if n%500 == 499 { // it pauses
					if g.Remove(q) == nil {
						runtime.Gosched()
						if err := g.Add(q); err != nil {
							t.Error(err)
						}
					}
				}
			}
			q.Close()
		}()
	}
	b := burst.New(16)
	for ended := 0; ended < queues; {
		from, err := g.Recv(t.Context(), b)
		if err == ErrClosed && from != nil {
			if next[from] != total {
				t.Errorf("a queue ended after %d packets", next[from])
			}
			ended++
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for i := range b.Len() {
			if number(b, i) != next[from] {
				t.Fatalf("packet %d, expected %d", number(b, i), next[from])
			}
			next[from]++
		}
		b.Release()
	}
	if g.Len() != 0 {
		t.Errorf("%d members", g.Len())
	}
}
