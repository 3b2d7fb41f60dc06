package verbs

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/path/pathtest"
)

// crowd fills a rail of b with puts whose completions stay away, but for the room that is kept for windows, and has a ask for so many exports.
// mute: b has no credits left to answer, until a polls.
func crowd(t *testing.T, r *rig, rail, exports int, mute bool) (asked []*path.Export, puts []*pathtest.Result) {
	t.Helper()
	back, e := r.B.Region(4096), r.A.Export(r.A.Region(4096), both)
	for k := range r.b.rails { // only one carries anything
		r.b.rails[k].serves = 0
	}
	l := r.b.rails[rail]
	l.serves = both
	r.B.MustDo(path.Op{Kind: path.Put, Copies: copyTo(back, e, 0, 1)})
	r.w.do(t, "delay send 1 60s")
	for l.room() > keepBinds {
		r.B.Post(path.Op{Kind: path.Put, Copies: copyTo(back, e, 0, 8)})
	}
	for k := range r.b.rails {
		r.b.rails[k].serves = both
	}
	for mute && r.b.ctl.out.left() > plainReserve {
		r.B.Post(path.Op{Kind: path.Notify})
		r.B.Poll()
	}
	local := r.A.Region(4096)
	for range exports {
		x := r.B.Export(r.B.Region(4096), both)
		asked = append(asked, x)
		puts = append(puts, r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, x, 0, 64)})...)
	}
	return asked, puts
}

// TestFenceBeforeItsWindow: an export is revoked while it waits for room to bind its window. It is taken back once: its registration may be
// another path's as well.
func TestFenceBeforeItsWindow(t *testing.T) {
	for _, rails := range []int{1, 2} { // with two, the window of the other rail is bound meanwhile
		t.Run(fmt.Sprint(rails), func(t *testing.T) {
			w := newWorld(t, "")
			r := newRig(t, w, Options{Depth: 128}, rails)
			asked, puts := crowd(t, r, 0, keepBinds+1, false)
			r.B.Poll()
			last := len(asked) - 1
			if n := len(r.b.binds); n != 1 || r.b.binds[0].export != asked[last] {
				t.Fatalf("%d exports wait for room", n)
			}
			r.B.Exports.Revoke(asked[last])
			fence := r.B.Post(path.Op{Kind: path.Fence, Key: asked[last].Key()})[0]
			r.Drive("the fence and the put behind it", func() bool { return fence.Times > 0 && puts[last].Times > 0 })
			if fence.Err != nil || !errors.Is(puts[last].Err, path.ErrRevoked) {
				t.Errorf("fence: %v; put: %v", fence.Err, puts[last].Err)
			}
		})
	}
}

// TestOneAnswer: an export has its window on one rail, and waits for room on another one that breaks, while no answer can be sent. The peer gets
// one answer.
func TestOneAnswer(t *testing.T) {
	w := newWorld(t, "")
	r := newRig(t, w, Options{Depth: 128}, 2)
	_, puts := crowd(t, r, 1, keepBinds+1, true)
	for range 3 {
		r.B.Poll()
	}
	if n := len(r.b.binds); n != 1 {
		t.Fatalf("%d exports wait for room", n)
	}
	r.kill(t, r.b, 1)
	for r.b.rails[1].rail.state == railUp {
		r.B.Poll()
	}
	r.Drive("the puts", func() bool {
		for _, x := range puts {
			if x.Times == 0 {
				return false
			}
		}
		return true
	})
	for i, x := range puts {
		if x.Err != nil {
			t.Errorf("put %d: %v", i, x.Err)
		}
	}
}

// settled serves both ends until they sleep, armed, and nothing is left to wake them.
func (r *rig) settled(t *testing.T) {
	t.Helper()
	quiet := func(p *Path) bool {
		i, err := sys.PollIn(0, p.FD())
		return i < 0 && err == nil
	}
	for until := time.Now().Add(time.Minute); r.A.Poll()+r.B.Poll() > 0 || r.a.Arm() || r.b.Arm() || !quiet(r.a) || !quiet(r.b); {
		if time.Now().After(until) {
			t.Fatalf("it does not come to rest\n%s", r.Dump())
		}
	}
}

// TestLostWhileArmed: an owner sleeps, with nothing under way, while another call of its posts an operation whose completion the adapter loses.
// It is woken to look all the same.
func TestLostWhileArmed(t *testing.T) {
	for _, transport := range []Transport{RC, DC} {
		t.Run(transport.String(), func(t *testing.T) {
			w := newWorld(t, "")
			r := newRig(t, w, Options{Transport: transport, looks: often}, 1)
			local := r.A.Region(4096)
			e := r.B.Export(r.B.Region(4096), both)
			r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})
			r.settled(t)
			w.do(t, "drop send 1")
			put := r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})[0]
			if i, err := sys.PollIn(20_000, r.a.FD()); i < 0 || err != nil {
				t.Errorf("its owner is not woken: %v", err)
			}
			r.sleepUntil(t, "the put", func() bool { return put.Times > 0 })
			if put.Err != nil {
				t.Error(put.Err)
			}
		})
	}
}

// TestFaultWhileArmed: an owner sleeps while another call of its posts an operation, for which the adapter takes no request, or for which there is no
// initiator. The path wakes its owner to repair that, or to end.
func TestFaultWhileArmed(t *testing.T) {
	for _, transport := range []Transport{RC, UC, DC} {
		t.Run("Request/"+transport.String(), func(t *testing.T) {
			w := newWorld(t, "")
			r := newRig(t, w, Options{Transport: transport, looks: time.Hour}, 1)
			local := r.A.Region(4096)
			e := r.B.Export(r.B.Region(4096), both)
			r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})
			r.settled(t)
			w.do(t, "fail ibv_post_send 1 ENOMEM")
			put := r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})[0]
			if i, err := sys.PollIn(20_000, r.a.FD()); i < 0 || err != nil {
				t.Errorf("its owner is not woken: %v", err)
			}
			r.sleepUntil(t, "the put", func() bool { return put.Times > 0 })
			if put.Err != nil || r.a.replaced != 1 {
				t.Errorf("%v; %d rails replaced", put.Err, r.a.replaced)
			}
		})
	}
	t.Run("Initiator", func(t *testing.T) {
		w := newWorld(t, "")
		r := newRig(t, w, Options{Transport: DC, Initiators: 1, looks: time.Hour}, 1)
		local, back := r.A.Region(4096), r.B.Region(4096)
		e, e2 := r.B.Export(r.B.Region(4096), both), r.A.Export(r.A.Region(4096), both)
		r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})
		r.B.MustDo(path.Op{Kind: path.Put, Copies: copyTo(back, e2, 0, 4096)}) // it rests here now
		r.settled(t)
		r.b.seats[forData].i.failed = true
		w.do(t, "fail ibv_modify_qp * ENOMEM")
		put := r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})[0]
		w.do(t, "fail ibv_modify_qp 1000000 ENOMEM")
		if i, err := sys.PollIn(20_000, r.a.FD()); i < 0 || err != nil {
			t.Errorf("its owner is not woken: %v", err)
		}
		r.sleepUntil(t, "the end", func() bool { return put.Times > 0 && r.A.Down != nil })
	})
}

// TestToldWhilePolling: another goroutine hands on an event of the device while the owner of this path polls. Once the path has taken the event
// in, its owner can sleep.
func TestToldWhilePolling(t *testing.T) {
	w := newWorld(t, "")
	r := newRig(t, w, Options{looks: time.Hour}, 1)
	r.settled(t)
	dev := r.a.dev
	ev := ibv.AsyncEvent{Type: ibv.EventPortActive, Port: dev.port.Port}
	told, tell := make(chan struct{}), make(chan struct{})
	go func() {
		for range tell {
			dev.tell(ev)
			told <- struct{}{}
		}
	}()
	defer close(tell)
	for round := range 20_000 {
		tell <- struct{}{}
		for over := false; !over; {
			r.A.Poll()
			select {
			case <-told:
				over = true
			default:
			}
		}
		for range 3 {
			r.A.Poll()
			r.a.Arm()
		}
		if i, err := sys.PollIn(0, r.a.FD()); i >= 0 || err != nil {
			t.Fatalf("round %d: nothing has happened since, and its descriptor is readable: %v", round, err)
		}
	}
}

// sharers are paths that share the one initiator for data of a device. What they post is executed when it is pumped.
func sharers(t *testing.T, n int) (w *world, rigs []*rig, ops []path.Op) {
	t.Helper()
	w = newWorld(t, "")
	d := dynamicDriver(w, 1)
	d.o.looks = time.Hour
	for range n {
		r := rigOn(t, w, d, d, 1)
		e := r.B.Export(r.B.Region(4096), both)
		op := path.Op{Kind: path.Put, Copies: copyTo(r.A.Region(4096), e, 0, 4096)}
		r.A.MustDo(op)
		rigs, ops = append(rigs, r), append(ops, op)
	}
	for _, r := range rigs {
		r.settled(t)
	}
	w.do(t, "mode pump")
	t.Cleanup(func() { w.do(t, "mode post") })
	return w, rigs, ops
}

// leaveArmed closes the path while its initiator's queue of completions is armed, and will tell its next holder.
func (r *rig) leaveArmed(t *testing.T, op path.Op) {
	t.Helper()
	r.A.Post(op)
	if s := r.a.seats[forData]; r.a.Arm() || !s.busy || !s.set {
		t.Fatal("it has nothing under way, or does not sleep")
	}
	if err := r.a.Close(); err != nil {
		t.Fatal(err)
	}
}

// sleeps says whether the owner of a path gets to sleep: nothing that it does not take in keeps its descriptor readable.
func (r *rig) sleeps() bool {
	for range 10 {
		r.A.Poll()
		if r.a.Arm() {
			continue
		}
		if i, err := sys.PollIn(0, r.a.FD()); i < 0 && err == nil {
			return true
		}
	}
	return false
}

// alone has a put executed, by an owner that does not sleep meanwhile.
func (r *rig) alone(t *testing.T, op path.Op) {
	t.Helper()
	r.A.Poll()
	put := r.A.Post(op)[0]
	for i := 0; put.Times == 0; i++ {
		if i > 1000 {
			t.Fatalf("the put does not end\n%s", r.Dump())
		}
		r.w.pumps(1)
		r.A.Poll()
	}
}

// TestRestingWhileAnotherIsTold: the initiator that rested at a path has been taken by another one, whose owner does not take its events. The
// owner of the first sleeps.
func TestRestingWhileAnotherIsTold(t *testing.T) {
	w, rigs, ops := sharers(t, 3)
	rigs[0].leaveArmed(t, ops[0])
	one, other := rigs[1], rigs[2]
	one.alone(t, ops[1])
	if !one.sleeps() || one.a.seats[forData].i == nil {
		t.Fatal("it does not sleep, or has let go of the initiator")
	}
	other.A.Post(ops[2])
	if other.a.Arm() {
		t.Fatal("it has nothing under way")
	}
	for w.pumps(100) > 0 {
	}
	if !one.sleeps() {
		t.Error("what the other one was told keeps it awake")
	}
}

// TestLeasedWithEvents: an initiator comes from a path that had not taken in what it was told, and had asked to be told again. Neither keeps the
// next one awake.
func TestLeasedWithEvents(t *testing.T) {
	w, rigs, ops := sharers(t, 3)
	rigs[0].leaveArmed(t, ops[0])
	rigs[1].alone(t, ops[1]) // told, and not taken in
	rigs[1].leaveArmed(t, ops[1])
	r := rigs[2]
	if s := r.a.seats[forData]; !s.ready() {
		t.Fatal("no initiator")
	} else {
		s.rest() // as who was in line for what it does not need any more
	}
	if !r.sleeps() {
		t.Error("what the one before was told keeps it awake")
	}
	r.alone(t, ops[2])
	for w.pumps(100) > 0 {
	}
	if !r.sleeps() {
		t.Error("what the one before had asked for keeps it awake")
	}
}

// TestNewQueuePairBreaks: the queue pair that is to replace another one breaks as well, before the peer's offer for it is taken in. There is another
// one behind it.
func TestNewQueuePairBreaks(t *testing.T) {
	for _, transport := range []Transport{RC, UC} {
		t.Run(transport.String(), func(t *testing.T) {
			w := newWorld(t, "")
			r := newRig(t, w, Options{Transport: transport}, 1)
			local := r.A.Region(4096)
			e := r.B.Export(r.B.Region(4096), both)
			r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})
			pathtest.Fill(local.All().Bytes(), 7)
			l := r.a.rails[0]
			r.kill(t, r.a, 0)
			for l.rail.state != railOffer || l.rail.sayOffer {
				r.A.Poll()
			}
			r.kill(t, r.a, 0)
			for range 5 { // b takes the offer in and makes its own, which comes behind what breaks here
				r.B.Poll()
			}
			put := r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096), Notify: true})[0]
			r.Drive("a put by the third queue pair", func() bool { return put.Times > 0 })
			r.Pump(20)
			if put.Err != nil || l.rail.state != railUp || pathtest.Verify(e.Span().Bytes(), 7) >= 0 || len(r.B.Notices) != 1 {
				t.Errorf("%v; the rail is %s, %d notifications", put.Err, l.rail.state, len(r.B.Notices))
			}
		})
	}
}

// TestNewQueuePairCannotBeJoined: the queue pair that is to replace another one has got into error just when it is joined to the peer's, and before its
// receives have come back. There is another one behind it. Where that never ends, the path does.
func TestNewQueuePairCannotBeJoined(t *testing.T) {
	for _, transport := range []Transport{RC, UC} {
		for _, fail := range []string{"1", "2", "*"} { // to receive, to send, whatever it is
			t.Run(transport.String()+"/"+fail, func(t *testing.T) {
				w := newWorld(t, "timers instant")
				r := newRig(t, w, Options{Transport: transport}, 1)
				local := r.A.Region(4096)
				e := r.B.Export(r.B.Region(4096), both)
				r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})
				pathtest.Fill(local.All().Bytes(), 7)
				l := r.a.rails[0]
				r.kill(t, r.a, 0)
				for l.rail.state != railOffer || !l.rail.offered || l.rail.offer.gen != l.gen {
					r.A.Poll()
					for r.b.rails[0].rail.state != railUp && !r.b.rails[0].rail.offered {
						r.B.Poll()
					}
					r.B.Poll()
					r.a.collect()
				}
				put := r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096), Notify: true})[0]
				w.do(t, fmt.Sprintf("fail ibv_modify_qp %s EINVAL", fail))
				r.Drive("the put", func() bool {
					if fail == "*" { // as if other rails got on
						r.a.repairs, r.b.repairs = 0, 0
					}
					return put.Times > 0
				})
				if fail == "*" {
					w.do(t, "fail ibv_modify_qp 1000000 EINVAL")
					if !errors.Is(put.Err, path.ErrDown) {
						t.Error(put.Err)
					}
					return
				}
				r.Pump(20)
				if put.Err != nil || l.rail.state != railUp || pathtest.Verify(e.Span().Bytes(), 7) >= 0 || len(r.B.Notices) != 1 {
					t.Errorf("%v; the rail is %s, %d notifications", put.Err, l.rail.state, len(r.B.Notices))
				}
			})
		}
	}
}

// TestRefusedOnAllRails: operations that the peer's adapter refuses again and again, on every rail, are given up. The path goes on.
func TestRefusedOnAllRails(t *testing.T) {
	for _, c := range []struct{ rails, puts int }{{1, 1}, {maxRails, 1}, {1, 8}, {3, 8}} {
		rails := c.rails
		t.Run(fmt.Sprintf("%d/%d", rails, c.puts), func(t *testing.T) {
			w := newWorld(t, "")
			r := newRig(t, w, Options{Piece: 64 << 10}, rails)
			const size = 2 << 20
			local := r.A.Region(size)
			e := r.B.Export(r.B.Region(size), both)
			for _, l := range r.b.rails {
				l.serves = path.Read // whatever it grants
			}
			var puts []*pathtest.Result
			for range c.puts {
				puts = append(puts, r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, size)})...)
			}
			for _, put := range puts {
				r.Drive("a put that is refused", func() bool { return put.Times > 0 })
				if !errors.Is(put.Err, errStrikes) {
					t.Fatalf("%v; expected %v", put.Err, errStrikes)
				}
			}
			r.A.MustDo(path.Op{Kind: path.Get, Copies: copyTo(local, e, 0, size)})
		})
	}
}

// TestRailsOfOneThatOnlyServes: a rail is replaced again and again because exports are taken back in the middle of puts, which get on in between. The
// side that only serves has no operation of its own that could get on, and lives as long as the other one.
func TestRailsOfOneThatOnlyServes(t *testing.T) {
	for _, transport := range []Transport{RC, DC} {
		t.Run(transport.String(), func(t *testing.T) {
			w := newWorld(t, "timers instant")
			r := newRig(t, w, Options{Transport: transport}, 1)
			local := r.A.Region(4096)
			for range 3 * maxRepairs {
				e := r.B.Export(r.B.Region(4096), both)
				r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})
				r.B.Exports.Revoke(e)
				fence := r.B.Post(path.Op{Kind: path.Fence, Key: e.Key()})[0]
				for fence.Times == 0 { // a does not hear of it
					r.B.Poll()
				}
				put := r.A.Do(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})
				if !errors.Is(put.Err, path.ErrRevoked) && !errors.Is(put.Err, path.ErrKey) {
					t.Fatal(put.Err)
				}
			}
			if r.a.replaced < 2*maxRepairs {
				t.Errorf("%d rails were replaced", r.a.replaced)
			}
		})
	}
}
