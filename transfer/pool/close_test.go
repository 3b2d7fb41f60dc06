package pool

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"
)

func TestCloseWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer()
		o := options(s)
		o.Max = 2
		p := newPool(t, o)
		a, b := get(t, p), get(t, p)
		waiting := make(chan error, 1)
		go func() { _, err := p.Get(context.Background(), 0); waiting <- err }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		closed := make(chan struct{})
		go func() { p.Close(ctx); close(closed) }()
		if err := <-waiting; !errors.Is(err, ErrClosed) {
			t.Errorf("a waiter got %v", err)
		}
		a.Release()
		synctest.Wait()
		if a.Conn().closes() != 1 || b.Conn().closes() != 0 || isClosed(closed) {
			t.Error("Close did not wait for a user")
		}
		begin := time.Now()
		<-closed
		if time.Since(begin) != time.Minute || b.Conn().closes() != 1 {
			t.Errorf("after %v closed %d times", time.Since(begin), b.Conn().closes())
		}
		b.Release()
		s.end(t, p)
	})
}

func TestCloseEndsDials(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer()
		s.latency = time.Hour
		o := options(s)
		o.Min, o.DialTimeout = 1, 2*time.Hour
		p := newPool(t, o)
		synctest.Wait()
		begin := time.Now()
		s.end(t, p)
		if d := time.Since(begin); d > 0 {
			t.Errorf("Close took %v", d)
		}
	})
}

// A dial that succeeds although the pool was closed meanwhile leaves nothing.
func TestCloseMeetsDial(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer()
		o := options(s)
		o.Dial = func(context.Context) (*fakeConn, error) {
			time.Sleep(time.Second)
			return s.dial(context.Background())
		}
		o.Min = 1
		p := newPool(t, o)
		synctest.Wait()
		s.end(t, p)
		if len(s.conns) != 1 {
			t.Errorf("%d connections", len(s.conns))
		}
	})
}

func TestCloseDuringBackoff(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer()
		s.set(errRefused)
		o := options(s)
		o.Min, o.Backoff = 1, Backoff{First: time.Hour, Max: time.Hour}
		p := newPool(t, o)
		synctest.Wait()
		begin := time.Now()
		s.end(t, p)
		if d := time.Since(begin); d > 0 {
			t.Errorf("Close took %v", d)
		}
	})
}

func TestCloseError(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer()
		o := options(s)
		want := errors.New("close failed")
		o.Close = func(c *fakeConn) error { c.close(); return want }
		p := newPool(t, o)
		get(t, p).Release()
		if err := p.Close(t.Context()); err != want {
			t.Errorf("got %v", err)
		}
		if err := p.Close(t.Context()); err != want {
			t.Errorf("again: %v", err)
		}
	})
}

func TestContextIsOverAlready(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer()
		p := newPool(t, options(s))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := p.Get(ctx, 0); !errors.Is(err, context.Canceled) || s.count() > 0 {
			t.Errorf("%v after %d dials", err, s.count())
		}
		s.end(t, p)
	})
}

func TestOptions(t *testing.T) {
	s := newServer()
	for what, change := range map[string]func(*Options[*fakeConn]){
		"no Dial":    func(o *Options[*fakeConn]) { o.Dial = nil },
		"no Close":   func(o *Options[*fakeConn]) { o.Close = nil },
		"Min > Max":  func(o *Options[*fakeConn]) { o.Min, o.Max = 3, 2 },
		"Min < 0":    func(o *Options[*fakeConn]) { o.Min = -1 },
		"Max < 0":    func(o *Options[*fakeConn]) { o.Max = -1 },
		"Idle < 0":   func(o *Options[*fakeConn]) { o.Idle = -1 },
		"Spread < 0": func(o *Options[*fakeConn]) { o.Spread = -1 },
		"factor":     func(o *Options[*fakeConn]) { o.Backoff.Factor = 0.5 },
		"factor NaN": func(o *Options[*fakeConn]) { o.Backoff.Factor = math.NaN() },
		"First < 0":  func(o *Options[*fakeConn]) { o.Backoff.First = -1 },
		"Max below":  func(o *Options[*fakeConn]) { o.Backoff = Backoff{First: 2, Max: 1} },
	} {
		o := options(s)
		change(&o)
		if p, err := New(o); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: %v", what, err)
			if err == nil {
				p.Close(t.Context())
			}
		}
	}
}

func TestBackoffBounds(t *testing.T) {
	b := Backoff{}.WithDefaults()
	for n, want := range map[int]time.Duration{-1: 0, 0: 0, 1: 50 * time.Millisecond, 2: 100 * time.Millisecond,
		7: 3200 * time.Millisecond,
		8: 5 * time.Second, 100000: 5 * time.Second, math.MaxInt: 5 * time.Second} {
		if got := b.Bound(n); got != want {
			t.Errorf("Bound(%d) = %v, expected %v", n, got, want)
		}
	}
	low, high := false, false
	for range 1000 {
		d := b.Delay(3)
		if d < 0 || d > b.Bound(3) {
			t.Fatalf("a wait of %v", d)
		}
		low, high = low || d < b.Bound(3)/4, high || d > b.Bound(3)*3/4
	}
	if !low || !high {
		t.Error("the waits are not spread from nothing to the bound")
	}
}

// A waiter that leaves while the pool serves it takes no connection along.
func TestLeavesWhileServed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer()
		p := newPool(t, options(s))
		for range 100 {
			l := get(t, p)
			ctx, cancel := context.WithCancel(t.Context())
			got := make(chan *Lease[*fakeConn], 1)
			go func() {
				l, _ := p.Get(ctx, 0)
				got <- l
			}()
			synctest.Wait()
			cancel()
			l.Release() // no goroutine has run since: both are true when the waiter looks
			if l := <-got; l != nil {
				l.Release()
			}
			if c := p.Snapshot(); c.Leases != 0 || c.Waiting != 0 {
				t.Fatalf("%+v", c)
			}
		}
		s.end(t, p)
	})
}

// The pool does not repeat a failed dial for one more connection to share the users, when no caller
// waits for it.
func TestSpreadFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer()
		o := options(s)
		o.Max, o.Users, o.Spread = 2, -1, 1
		p := newPool(t, o)
		a := get(t, p)
		s.set(errRefused)
		b := get(t, p)
		time.Sleep(time.Hour)
		if n := s.count(); n != 2 {
			t.Errorf("%d dials", n)
		}
		a.Release()
		b.Release()
		s.end(t, p)
	})
}
