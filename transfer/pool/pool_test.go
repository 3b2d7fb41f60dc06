package pool

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// The pool that this one learns from locked its mutex, dialed, and locked it again in the dial.
func TestDialsWithoutLock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer()
		var p *Pool[*fakeConn]
		made := make(chan struct{})
		s.inside = func() { <-made; p.Snapshot() }
		p = newPool(t, options(s))
		close(made)
		get(t, p).Release()
		s.end(t, p)
	})
}

// Neither Done, Close nor Permanent is called under the lock.
func TestCallsWithoutLock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer()
		o := options(s)
		var p *Pool[*fakeConn]
		made := make(chan struct{})
		ask := func() { <-made; p.Snapshot() }
		calls := map[string]int{}
		var mu sync.Mutex
		note := func(what string) { ask(); mu.Lock(); calls[what]++; mu.Unlock() }
		o.Done = func(c *fakeConn) <-chan struct{} { note("done"); return c.done }
		o.Close = func(c *fakeConn) error { note("close"); return c.close() }
		o.Permanent = func(error) bool { note("permanent"); return true }
		p = newPool(t, o)
		close(made)
		get(t, p).Release()
		time.Sleep(1500 * time.Millisecond)
		s.set(errRefused)
		s.conns[0].die()
		synctest.Wait()
		if _, err := p.Get(t.Context(), 0); !errors.Is(err, errRefused) {
			t.Error(err)
		}
		s.end(t, p)
		for _, what := range []string{"done", "close", "permanent"} {
			if calls[what] != 1 {
				t.Errorf("%s was called %d times", what, calls[what])
			}
		}
	})
}

// It grows with demand to Max, not only to Min.
func TestGrows(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer()
		s.latency = 10 * time.Millisecond
		o := options(s)
		o.Min, o.Max = 1, 5
		p := newPool(t, o)
		var all []*Lease[*fakeConn]
		for range 5 {
			all = append(all, get(t, p))
		}
		if c := p.Snapshot(); c.Living != 5 || c.Leases != 5 || c.Unused != 0 {
			t.Errorf("%+v", c)
		}
		seen := map[*fakeConn]bool{}
		for _, l := range all {
			seen[l.Conn()] = true
		}
		if len(seen) != 5 {
			t.Errorf("5 users have %d connections", len(seen))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.Get(ctx, 0); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrDial) {
			t.Errorf("beyond Max: %v", err)
		}
		if s.count() != 5 {
			t.Errorf("%d dials", s.count())
		}
		for _, l := range all {
			l.Release()
		}
		s.end(t, p)
	})
}

// Dials for several waiters go on at the same time.
func TestDialsTogether(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer()
		s.latency = time.Second
		o := options(s)
		o.Max = 4
		p := newPool(t, o)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { defer get(t, p).Release(); time.Sleep(time.Minute) })
		}
		synctest.Wait()
		if c := p.Snapshot(); c.Dialing != 4 || c.Waiting != 4 {
			t.Errorf("%+v", c)
		}
		wg.Wait()
		s.end(t, p)
	})
}

func TestDeadIsNotHandedOut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer()
		p := newPool(t, options(s))
		l := get(t, p)
		first := l.Conn()
		l.Release()
		// No goroutine has run since: the pool's own cannot have noticed.
		first.die()
		l = get(t, p)
		if l.Conn() == first {
			t.Error("a dead connection was handed out")
		}
		// One that dies in use does not come back.
		second := l.Conn()
		second.die()
		synctest.Wait()
		if second.closes() != 0 {
			t.Error("closed under its user")
		}
		l.Release()
		if l = get(t, p); l.Conn() == second {
			t.Error("a dead connection was handed out")
		}
		l.Release()
		if c := p.Snapshot(); c.Lost != 2 {
			t.Errorf("%+v", c)
		}
		s.end(t, p)
	})
}

func TestReleaseTwice(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer()
		o := options(s)
		o.Max = 2
		p := newPool(t, o)
		a := get(t, p)
		a.Release()
		a.Release()
		a.Discard()
		b := get(t, p)
		if b.Conn() != a.Conn() {
			t.Error("a late Discard took the connection from its next user")
		}
		a.Release()
		c := get(t, p)
		if c.Conn() == b.Conn() {
			t.Error("a late Release gave the connection to two users")
		}
		b.Release()
		c.Release()
		s.end(t, p)
	})
}

func TestOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer()
		p := newPool(t, options(s))
		l := get(t, p)
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if i%3 == 1 { // leaves the queue
					time.AfterFunc(time.Second, cancel)
				}
				l, err := p.Get(ctx, 0)
				if err != nil {
					if i%3 != 1 || !errors.Is(err, context.Canceled) {
						t.Errorf("%d: %v", i, err)
					}
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				l.Release()
			})
			synctest.Wait()
		}
		time.Sleep(2 * time.Second)
		l.Release()
		wg.Wait()
		if len(order) != 13 || !slices.IsSorted(order) {
			t.Errorf("served in the order %v", order)
		}
		if c := p.Snapshot(); c.GaveUp != 7 || c.Served != 14 {
			t.Errorf("%+v", c)
		}
		s.end(t, p)
	})
}

func TestMin(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer()
		o := options(s)
		o.Min, o.Max, o.Idle = 2, 4, time.Minute
		p := newPool(t, o)
		synctest.Wait()
		if c := p.Snapshot(); c.Living != 2 {
			t.Errorf("at first %+v", c)
		}
		time.Sleep(time.Hour)
		for _, c := range s.conns {
			c.die()
		}
		time.Sleep(time.Minute)
		if c := p.Snapshot(); c.Living != 2 || c.Lost != 2 || c.Dials != 4 || c.Retired != 0 {
			t.Errorf("after their death %+v", c)
		}
		s.end(t, p)
	})
}

func TestIdle(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer()
		o := options(s)
		o.Min, o.Max, o.Idle = 1, 5, time.Minute
		p := newPool(t, o)
		var all []*Lease[*fakeConn]
		for range 5 {
			all = append(all, get(t, p))
		}
		time.Sleep(time.Hour)
		if c := p.Snapshot(); c.Living != 5 {
			t.Errorf("closed in use: %+v", c)
		}
		for _, l := range all {
			l.Release()
		}
		time.Sleep(59 * time.Second)
		if c := p.Snapshot(); c.Living != 5 || c.Unused != 5 {
			t.Errorf("closed too early: %+v", c)
		}
		// One in use all the time: the others are idle.
		for range 6 {
			get(t, p).Release()
			time.Sleep(20 * time.Second)
		}
		if c := p.Snapshot(); c.Living != 1 || c.Retired != 4 {
			t.Errorf("%+v", c)
		}
		s.end(t, p)
	})
}

// A failure is not for ever, and does not fail a waiter that can wait: the pool goes on with
// growing, random waits, one dial at a time.
func TestBackoff(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer()
		s.set(errRefused)
		o := options(s)
		o.Max = 10
		o.Backoff = Backoff{First: 100 * time.Millisecond, Max: 2 * time.Second, Factor: 2}
		p := newPool(t, o)
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { get(t, p).Release() })
		}
		time.Sleep(time.Minute)
		s.mu.Lock()
		dials := slices.Clone(s.dials)
		s.mu.Unlock()
		if c := p.Snapshot(); c.Waiting != 10 || c.DialsFailed != uint64(len(dials)) || c.Failures != len(dials) ||
			!strings.Contains(c.LastErr, "refused") {
			t.Errorf("%d dials, %+v", len(dials), c)
		}
		b := o.Backoff.WithDefaults()
		differ := false
		for i := 1; i < len(dials); i++ {
			gap := dials[i] - dials[i-1]
			if gap > b.Bound(i) {
				t.Errorf("dial %d came %v after the one before: expected at most %v", i, gap, b.Bound(i))
			}
			differ = differ || gap != b.Bound(i) && gap > 0
		}
		if !differ || len(dials) < 30 {
			t.Errorf("dials at %v", dials)
		}
		s.set(nil)
		wg.Wait()
		s.end(t, p)
	})
}

func TestBackoffOneAtATime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer()
		s.latency = time.Second
		s.set(errRefused)
		o := options(s)
		o.Max = 10
		p := newPool(t, o)
		first, err := p.Get(t.Context(), 1)
		if err == nil {
			first.Release()
			t.Fatal("a dial that fails succeeded")
		}
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { get(t, p).Release() })
		}
		time.Sleep(time.Minute)
		s.set(nil)
		wg.Wait()
		if n := s.together(); n != 1 {
			t.Errorf("%d dials at once after a failure", n)
		}
		s.end(t, p)
	})
}

func TestFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer()
		s.set(errRefused)
		o := options(s)
		p := newPool(t, o)
		for range 2 { // the second one restarts
			before := s.count()
			_, err := p.Get(t.Context(), 3)
			var d *DialError
			if !errors.Is(err, ErrDial) || !errors.Is(err, errRefused) || !errors.As(err, &d) || d.Failed != 3 ||
				d.Cause != nil {
				t.Errorf("%v", err)
			}
			if n := s.count() - before; n != 3 {
				t.Errorf("%d dials", n)
			}
		}
		// A waiter that leaves before says why nothing came.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := p.Get(ctx, 0); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errRefused) {
			t.Errorf("%v", err)
		}
		// No caller waits, so the pool does not dial.
		before := s.count()
		time.Sleep(time.Hour)
		if n := s.count() - before; n > 0 {
			t.Errorf("%d dials for nobody", n)
		}
		s.set(nil)
		get(t, p).Release()
		s.end(t, p)
	})
}

func TestPermanent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer()
		s.set(errRefused)
		o := options(s)
		o.Permanent = func(err error) bool { return errors.Is(err, errRefused) }
		p := newPool(t, o)
		if _, err := p.Get(t.Context(), 0); !errors.Is(err, errRefused) {
			t.Error(err)
		}
		if s.count() != 1 {
			t.Errorf("%d dials", s.count())
		}
		s.set(nil)
		get(t, p).Release()
		s.end(t, p)
	})
}

// A server that accepts and hangs up at once is not dialed in a loop, unless its connections are of
// use.
func TestFlapping(t *testing.T) {
	for _, good := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			s := newServer()
			s.life = time.Millisecond
			o := options(s)
			o.Min = 1
			p := newPool(t, o)
			span := time.Minute
			if good { // nothing but dials
				span = 5 * time.Second
			}
			for begin := time.Now(); time.Since(begin) < span; {
				if !good {
					time.Sleep(time.Second)
					continue
				}
				l := get(t, p)
				l.Good()
				<-l.Conn().done
				l.Release()
			}
			if n := s.count(); !good && (n < 10 || n > 200) || good && n < 1000 {
				t.Errorf("%d dials in %v, good: %v", n, span, good)
			}
			s.end(t, p)
		})
	}
}

func TestShared(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer()
		o := options(s)
		o.Max, o.Users = 3, 2
		p := newPool(t, o)
		var all []*Lease[*fakeConn]
		for range 6 {
			all = append(all, get(t, p))
		}
		if s.count() != 3 {
			t.Errorf("%d dials for 6 users", s.count())
		}
		use := map[*fakeConn]int{}
		for _, l := range all {
			use[l.Conn()]++
		}
		for _, n := range use {
			if n != 2 {
				t.Errorf("users: %v", use)
			}
		}
		all[1].Release()
		all[1] = get(t, p)
		// A discarded one stays with its other user until that is done.
		c := all[0].Conn()
		all[0].Discard()
		synctest.Wait()
		if c.closes() != 0 || p.Snapshot().Discarded != 1 {
			t.Error("closed under its other user")
		}
		for _, l := range all {
			l.Release()
		}
		synctest.Wait()
		if c.closes() != 1 {
			t.Error("not closed")
		}
		s.end(t, p)
	})
}

// With Spread users share at once, and more connections come in the background.
func TestSpread(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer()
		s.latency = time.Second
		o := options(s)
		o.Max, o.Users, o.Spread = 3, -1, 1
		p := newPool(t, o)
		a := get(t, p)
		begin := time.Now()
		b := get(t, p)
		if time.Since(begin) > 0 || a.Conn() != b.Conn() {
			t.Error("waited although it may be shared")
		}
		time.Sleep(2 * time.Second)
		c := get(t, p)
		d := get(t, p)
		if c.Conn() == a.Conn() || d.Conn() != c.Conn() {
			t.Error("not the least used")
		}
		time.Sleep(time.Minute)
		if n := s.count(); n != 3 {
			t.Errorf("%d dials", n)
		}
		for _, l := range []*Lease[*fakeConn]{a, b, c, d} {
			l.Release()
		}
		time.Sleep(time.Minute)
		if n := s.count(); n != 3 {
			t.Errorf("%d dials for nobody", n)
		}
		s.end(t, p)
	})
}
