package pathtest

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/path"
)

// park serves one side, asleep whenever it has nothing to do, until cond holds. asleep, if not nil,
// is called before each sleep. It reports a wake-up that never comes by Errorf and returns false;
// any goroutine may call it.
func (s *Side) park(asleep func(), cond func() bool) bool {
	start, patience := time.Now(), s.pair.f.Patience
	for !cond() {
		if s.Poll() > 0 {
			start = time.Now()
			continue
		}
		if !s.Path.Arm() {
			if asleep != nil {
				asleep()
			}
			i, err := sys.PollIn(int(patience/time.Millisecond)+1, s.Path.FD())
			if err != nil {
				s.t.Errorf("side %s: waiting on FD: %v", s.Name, err)
				return false
			}
			if i >= 0 {
				continue
			}
		}
		if s.t.Context().Err() != nil || time.Since(start) > patience {
			s.t.Errorf("side %s: asleep on FD for %v, and no wake-up came, or nothing to do: lost\n%s", s.Name,
				patience, s.dumpAlone())
			return false
		}
	}
	return true
}

// postAlone posts one operation while another goroutine drives the peer.
func (s *Side) postAlone(op path.Op) (*Result, bool) {
	op, r := s.fresh(op)
	ok := s.park(nil, func() bool { return s.post([]path.Op{op}) == 1 })
	return r, ok
}

// quiet drives both sides until neither has anything to do and both descriptors stay silent.
func (p *Pair) quiet() {
	p.t.Helper()
	start := time.Now()
	for calm := 0; calm < 50; {
		calm++
		for _, s := range p.Sides() {
			if s.Poll() > 0 || s.Path.Arm() {
				calm = 0
				continue
			}
			if i, err := sys.PollIn(0, s.Path.FD()); err != nil || i >= 0 {
				calm = 0
			}
		}
		runtime.Gosched()
		if time.Since(start) > p.f.Patience {
			p.t.Fatalf("the path does not go quiet: Arm keeps returning true, or FD stays readable, with nothing "+
				"to do\n%s", p.Dump())
		}
	}
}

// checkQuiet demands that an idle path lets its owner sleep, after each kind of work.
func checkQuiet(t testing.TB, f Factory) {
	p := newPair(t, f)
	p.quiet()
	for _, s := range p.Sides() {
		l := p.direction(s, f.Large)
		l.roundTrip(t, path.Put, margin, margin, 100, 1)
		p.quiet()
		l.roundTrip(t, path.Get, margin, margin, f.Large-2*margin, 2)
		p.quiet()
		s.Post(path.Op{Kind: path.Notify, Msg: message(1, 1000)})
		p.Drive("a notification", func() bool { return s.pending == 0 && len(s.Other().take()) > 0 })
		p.quiet()
		r := s.Post(l.op(path.Put, l.copyOf(0, 0, f.Large)))
		p.Pump(2)
		s.Path.Cancel(s.next)
		p.Drive("a canceled put", func() bool { return r[0].Times > 0 })
		p.quiet()
		bad := l.op(path.Put, l.copyOf(0, 0, f.Large))
		bad.Copies[0].Key.Secret++
		s.Do(bad)
		p.quiet()
	}
}

// checkWake lets one side sleep until something happens that concerns it.
func checkWake(t testing.TB, f Factory) {
	for _, sleeper := range []int{0, 1} {
		p := newPair(t, f)
		s := p.Sides()[sleeper]
		o := s.Other()
		mine, theirs := p.direction(s, f.Large), p.direction(o, f.Large)
		get := theirs.op(path.Get, theirs.copyOf(0, 0, 100_000))
		get.Notify = true
		put := theirs.op(path.Put, theirs.copyOf(0, 0, f.Large))
		put.Notify = true
		gone := p.direction(o, 4096).export
		noticed := func() bool { return len(s.take()) > 0 }
		byPeer := func(op path.Op) func() {
			return func() {
				op, _ := o.fresh(op)
				o.Path.Post([]path.Op{op})
			}
		}
		var r []*Result
		done := func() bool { return r[0].Times > 0 }
		for _, c := range []struct {
			name  string
			first func()      // by the sleeper, before it sleeps
			until func() bool // by the sleeper
			peer  func()      // by the peer, when the sleeper has armed itself
		}{
			{"the peer's notification", nil, noticed, byPeer(path.Op{Kind: path.Notify})},
			{"the peer's put with notification", nil, noticed, byPeer(put)},
			{"the peer's get with notification", nil, noticed, byPeer(get)},
			{"completion of a large put", func() { r = s.Post(mine.op(path.Put, mine.copyOf(0, 0, f.Large))) }, done, nil},
			{"completion of a large get", func() { r = s.Post(mine.op(path.Get, mine.copyOf(0, 0, f.Large))) }, done, nil},
			{"completion of a small put", func() { r = s.Post(mine.op(path.Put, mine.copyOf(0, 0, 8))) }, done, nil},
			{"completion of a small get", func() { r = s.Post(mine.op(path.Get, mine.copyOf(0, 0, 8))) }, done, nil},
			{"completion of a notification", func() { r = s.Post(path.Op{Kind: path.Notify}) }, done, nil},
			{"a fence", func() {
				s.Exports.Revoke(gone)
				r = s.Post(path.Op{Kind: path.Fence, Key: gone.Key()})
			}, done, nil},
			{"cancellation", func() {
				r = s.Post(mine.op(path.Put, mine.copyOf(0, 0, f.Large)))
				s.Path.Cancel(s.next)
			}, done, nil},
			{"the peer's Close", nil, func() bool { return s.Down != nil }, func() { o.Close() }},
		} {
			p.quiet()
			if c.first != nil {
				c.first()
			}
			var asleep, finished atomic.Bool
			go func() {
				defer finished.Store(true)
				if !s.park(func() { asleep.Store(true) }, c.until) {
					s.t.Errorf("while waiting for %s", c.name)
				}
			}()
			// The peer polls all the time; it does its part once the sleeper has armed itself.
			acted := c.peer == nil
			for !finished.Load() {
				if !acted && asleep.Load() {
					acted = true
					c.peer()
				}
				o.Poll()
				runtime.Gosched()
			}
			if t.Failed() {
				return
			}
			if s.Down == nil {
				p.Drive("what is left of "+c.name, func() bool { return p.A.pending+p.B.pending == 0 })
				s.take()
				o.take()
			}
		}
	}
	checkBothAsleep(t, f)
}

// both runs one goroutine per side, each the only owner of its side. A side that has finished is
// polled here for as long as the other one may still need it.
func (p *Pair) both(run func(i int, s *Side) bool) bool {
	type end struct {
		side *Side
		ok   bool
	}
	ends := make(chan end, 2)
	for i, s := range p.Sides() {
		go func() {
			ok := false
			defer func() { ends <- end{s, ok} }()
			ok = run(i, s)
		}()
	}
	first := <-ends
	for {
		select {
		case second := <-ends:
			return first.ok && second.ok
		default:
			first.side.Poll()
			runtime.Gosched()
		}
	}
}

// checkBothAsleep moves large operations while both sides sleep whenever they can, so that each
// piece of progress must wake the side that can go on.
func checkBothAsleep(t testing.TB, f Factory) {
	p := newPair(t, f)
	var directions [2]direction
	for i, s := range p.Sides() {
		directions[i] = p.direction(s, f.Large)
		Fill(directions[i].here, uint64(i))
	}
	ok := p.both(func(i int, s *Side) bool {
		put := directions[i].op(path.Put, directions[i].copyOf(0, 0, f.Large))
		r, posted := s.postAlone(put)
		if !posted || !s.park(nil, func() bool { return r.Times > 0 }) {
			return false
		}
		get := directions[i].op(path.Get, directions[i].copyOf(0, 0, f.Large))
		get.Notify = true // ends the peer's wait
		if r, posted = s.postAlone(get); !posted {
			return false
		}
		return s.park(nil, func() bool { return r.Times > 0 && len(s.Notices) > 0 })
	})
	if !ok {
		return
	}
	for i := range directions {
		wantFill(t, "put while both sides slept", directions[i].there, uint64(i))
		wantFill(t, "get while both sides slept", directions[i].here, uint64(i))
	}
}

// checkPingPong sends one notification to and fro; the side that waits sleeps. One lost wake-up
// ends it.
func checkPingPong(t testing.TB, f Factory) {
	p := newPair(t, f)
	var sleeps [2]int
	ok := p.both(func(i int, s *Side) bool {
		for round := range f.rounds {
			if i == 1 || round > 0 {
				if !s.park(func() { sleeps[i]++ }, func() bool { return len(s.Notices) > 0 }) {
					s.t.Errorf("side %s: in round %d of %d", s.Name, round, f.rounds)
					return false
				}
				want := uint64(round)
				if i == 0 {
					want--
				}
				if n := s.take(); len(n) != 1 || n[0].Imm != want {
					s.t.Errorf("side %s: round %d: %d notifications, first imm %d; expected one with %d", s.Name, round,
						len(n), n[0].Imm, want)
					return false
				}
			}
			if _, posted := s.postAlone(path.Op{Kind: path.Notify, Imm: uint64(round)}); !posted {
				return false
			}
		}
		return true
	})
	if !ok {
		return
	}
	p.Drive("the last round", func() bool { return p.A.pending+p.B.pending == 0 && len(p.A.Notices) > 0 })
	if sleeps[0]+sleeps[1] < f.rounds/100 {
		t.Errorf("only %d sleeps in %d rounds: Arm hardly ever lets its owner sleep", sleeps[0]+sleeps[1], f.rounds)
	}
	t.Logf("%d rounds, %d sleeps", f.rounds, sleeps[0]+sleeps[1])
}

// checkImmediate demands of a path.Immediate that taking ends in PostNow wakes no goroutine, and that
// what it leaves, and what the peer does later, wakes all the same.
func checkImmediate(t testing.TB, f Factory) {
	p := newPair(t, f)
	s := p.A
	now, ok := s.Path.(path.Immediate)
	if !ok {
		return
	}
	l := p.direction(s, f.Large)
	silent := func(what string) {
		t.Helper()
		if i, err := sys.PollIn(0, s.Path.FD()); err != nil || i >= 0 {
			t.Errorf("%s: FD of a path that sleeps is readable (%v)", what, err)
		}
	}
	var events [8]path.Event
	for _, kind := range []path.OpKind{path.Put, path.Get, path.Notify} {
		s.Do(l.op(path.Put, l.copyOf(0, 0, 100))) // the path knows the export
		p.quiet()
		op := path.Op{Kind: kind}
		if kind != path.Notify {
			op = l.op(kind, l.copyOf(0, 0, 100))
		}
		op, _ = s.fresh(op)
		n, done, err := now.PostNow([]path.Op{op}, events[:])
		if n != 1 || done != 1 || err != nil || events[0].Token != op.Token || events[0].Err != nil {
			t.Fatalf("operation kind %d: PostNow returned %d, %d, %v, event %+v: expected that it is done", kind, n,
				done, err, events[0])
		}
		s.record(events[:done])
		silent("after PostNow")
		if n := s.Path.Poll(events[:]); n != 0 {
			t.Errorf("operation kind %d: %d events after PostNow, the first %+v", kind, n, events[0])
		}
	}
	p.quiet()
	s.Other().take()
	o := s.Other()
	notify, _ := o.fresh(path.Op{Kind: path.Notify})
	o.Path.Post([]path.Op{notify})
	for range 1000 { // more than a path takes to look at its descriptors on the way
		op, _ := s.fresh(l.op(path.Put, l.copyOf(0, 0, 100)))
		n, done, _ := now.PostNow([]path.Op{op}, events[:])
		if s.record(events[:done]); n == 0 {
			delete(s.ops, op.Token)
			s.pending--
			break
		}
	}
	if i, err := sys.PollIn(int(f.Patience/time.Millisecond), s.Path.FD()); err != nil || i < 0 {
		t.Errorf("FD is silent (%v) although the peer's notification came before operations of this side", err)
	}
	if !s.park(nil, func() bool { return len(s.take()) > 0 }) {
		t.Error("the peer's notification, which came before operations of this side, is lost")
	}
	p.quiet()
	large, r := s.fresh(l.op(path.Put, l.copyOf(0, 0, f.Large)))
	if n, done, err := now.PostNow([]path.Op{large}, events[:]); n != 1 || done != 0 || err != nil {
		t.Fatalf("a large put: PostNow returned %d, %d, %v: expected that it goes on", n, done, err)
	}
	if !s.park(nil, func() bool { return r.Times > 0 }) {
		t.Error("a large put that PostNow began does not go on")
	}
}
