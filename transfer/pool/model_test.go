package pool

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// step is one action of the model's program.
type step struct {
	what int
	n    int
}

const (
	doGet = iota
	doRelease
	doDiscard
	doKill
	doFail
	doHeal
	doPass
	doLeave
	actions
)

// program runs steps against a pool and compares what must hold after each of them; it returns the
// first violation.
func program(o Options[*fakeConn], s *server, steps []step) error {
	p, err := New(o)
	if err != nil {
		return err
	}
	type user struct {
		cancel context.CancelFunc
		got    chan result[*fakeConn]
	}
	var waiting []*user
	var held []*Lease[*fakeConn]
	perConn := max(o.Users, 1)
	served, left := uint64(0), uint64(0)
	check := func() error {
		synctest.Wait()
		// The pool serves from the front of the queue.
		for len(waiting) > 0 {
			u := waiting[0]
			select {
			case r := <-u.got:
				waiting = waiting[1:]
				if r.err != nil {
					return fmt.Errorf("a waiter that did not leave got %w", r.err)
				}
				served++
				c := r.lease.Conn()
				c.mu.Lock()
				c.users++
				users := c.users
				c.mu.Unlock()
				if users > perConn {
					return fmt.Errorf("connection %d has %d users", c.number, users)
				}
				held = append(held, r.lease)
				continue
			default:
			}
			break
		}
		for _, u := range waiting {
			if len(u.got) > 0 {
				return errors.New("somebody was served before others who came earlier")
			}
		}
		x := p.Snapshot()
		if x.Living > o.Max || x.Leases != len(held) || x.Waiting != len(waiting) || x.Served != served ||
			x.GaveUp != left {
			return fmt.Errorf("%d held, %d waiting, %d served, %d left: %+v", len(held), len(waiting), served, left, x)
		}
		s.mu.Lock()
		open := s.open
		s.mu.Unlock()
		if made := x.Dials - x.DialsFailed - uint64(x.Dialing); made-x.Closed != uint64(open) {
			return fmt.Errorf("%d connections are open: %+v", open, x)
		}
		if len(waiting) > 0 && x.Dialing == 0 && x.NextDial == 0 && x.Living < o.Max {
			return fmt.Errorf("somebody waits and nothing is done: %+v", x)
		}
		return nil
	}
	fail := check()
	for _, st := range steps {
		if fail != nil {
			break
		}
		switch st.what {
		case doGet:
			ctx, cancel := context.WithCancel(context.Background())
			u := &user{cancel, make(chan result[*fakeConn], 1)}
			waiting = append(waiting, u)
			go func() {
				l, err := p.Get(ctx, 0)
				u.got <- result[*fakeConn]{l, err}
			}()
		case doRelease, doDiscard:
			if len(held) == 0 {
				continue
			}
			i := st.n % len(held)
			l := held[i]
			held = append(held[:i], held[i+1:]...)
			l.c.v.mu.Lock()
			l.c.v.users--
			l.c.v.mu.Unlock()
			if st.what == doRelease {
				l.Release()
			} else {
				l.Discard()
			}
		case doKill:
			s.mu.Lock()
			n := len(s.conns)
			var c *fakeConn
			if n > 0 {
				c = s.conns[st.n%n]
			}
			s.mu.Unlock()
			if c != nil {
				c.die()
			}
		case doFail:
			s.set(errRefused)
		case doHeal:
			s.set(nil)
		case doPass:
			time.Sleep(time.Duration(st.n) * 10 * time.Millisecond)
		case doLeave:
			if len(waiting) == 0 {
				continue
			}
			i := st.n % len(waiting)
			u := waiting[i]
			u.cancel()
			if r := <-u.got; r.lease != nil || !errors.Is(r.err, context.Canceled) {
				fail = fmt.Errorf("who left got %v", r)
			}
			waiting = append(waiting[:i], waiting[i+1:]...)
			left++
		}
		if fail == nil {
			fail = check()
		}
	}
	// When the server is well and all is given back, the pool serves every waiter, in time.
	s.set(nil)
	for fail == nil && len(waiting)+len(held) > 0 {
		for _, l := range held {
			l.c.v.mu.Lock()
			l.c.v.users--
			l.c.v.mu.Unlock()
			l.Release()
		}
		held = nil
		time.Sleep(o.Backoff.WithDefaults().Max + s.latency + 1)
		before := len(waiting)
		if fail = check(); fail == nil && before > 0 && len(waiting) == before {
			fail = fmt.Errorf("%d wait and nobody is served: %+v", before, p.Snapshot())
		}
	}
	for _, u := range waiting {
		u.cancel()
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	p.Close(ended)
	synctest.Wait()
	if fail == nil {
		fail = s.audit()
	}
	return fail
}

func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		low := rapid.IntRange(0, 3).Draw(rt, "min")
		high := rapid.IntRange(max(low, 1), 4).Draw(rt, "max")
		users := rapid.IntRange(1, 3).Draw(rt, "users")
		spread := rapid.IntRange(0, 2).Draw(rt, "spread")
		latency := rapid.IntRange(0, 30).Draw(rt, "latency")
		idle := rapid.IntRange(0, 50).Draw(rt, "idle")
		life := rapid.IntRange(0, 100).Draw(rt, "life")
		steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
			return step{rapid.IntRange(0, actions-1).Draw(rt, "what"), rapid.IntRange(0, 40).Draw(rt, "n")}
		}), 0, 60).Draw(rt, "steps")
		var err error
		synctest.Test(t, func(t *testing.T) {
			s := newServer()
			s.latency = time.Duration(latency) * 10 * time.Millisecond
			if life > 50 {
				s.life = time.Duration(life) * 10 * time.Millisecond
			}
			o := options(s)
			o.Min, o.Max, o.Users, o.Spread, o.Idle = low, high, users, spread, time.Duration(idle)*10*time.Millisecond
			o.Backoff = Backoff{First: 20 * time.Millisecond, Max: 200 * time.Millisecond}
			err = program(o, s, steps)
		})
		if err != nil {
			rt.Fatal(err)
		}
	})
}

// Many goroutines at once, in real time, for the race detector.
func TestRace(t *testing.T) {
	s := newServer()
	o := options(s)
	o.Min, o.Max, o.Users, o.Spread, o.Idle = 1, 4, 3, 1, time.Millisecond
	o.Backoff = Backoff{First: time.Microsecond, Max: 100 * time.Microsecond}
	p := newPool(t, o)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			for range 300 {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rng.IntN(2000))*time.Microsecond)
				l, err := p.Get(ctx, 0)
				cancel()
				if err != nil {
					continue
				}
				c := l.Conn()
				c.mu.Lock()
				c.users++
				if c.users > 3 {
					t.Errorf("%d users", c.users)
				}
				c.mu.Unlock()
				switch rng.IntN(8) {
				case 0:
					c.die()
				case 1:
					s.set(errRefused)
				default:
					s.set(nil)
				}
				p.Snapshot()
				c.mu.Lock()
				c.users--
				c.mu.Unlock()
				if rng.IntN(5) == 0 {
					l.Discard()
				} else {
					l.Release()
				}
			}
		})
	}
	wg.Wait()
	s.end(t, p)
}
