package verbs

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/pathtest"
)

// crowd fills a queue pair of b with puts whose completions stay away, but for the room that is
// kept for windows, and has a ask for so many exports. mute: b has no credits left to answer, until
// a polls.
func crowd(t *testing.T, r *rig, qp, exports int, mute bool) (asked []*path.Export, puts []*pathtest.Result) {
	t.Helper()
	back, e := r.B.Region(4096), r.A.Export(r.A.Region(4096), both)
	for k := range r.b.data { // only one carries anything
		r.b.data[k].repl.state = qpConnecting
	}
	l := r.b.data[qp]
	l.repl.state = qpUp
	r.B.MustDo(path.Op{Kind: path.Put, Copies: copyTo(back, e, 0, 1)})
	r.w.do(t, "delay send 1 60s")
	for l.room() > keepBinds {
		r.B.Post(path.Op{Kind: path.Put, Copies: copyTo(back, e, 0, 8)})
	}
	for k := range r.b.data {
		r.b.data[k].repl.state = qpUp
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

// TestFenceBeforeItsWindow: an export is revoked while it waits for room to bind its window. It is
// taken back once: its registration may be another path's as well.
func TestFenceBeforeItsWindow(t *testing.T) {
	for _, qps := range []int{1, 2} { // with two, the window of the other queue pair is bound meanwhile
		t.Run(fmt.Sprint(qps), func(t *testing.T) {
			w := newWorld(t, "")
			r := newRig(t, w, Options{Depth: 128}, qps)
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

// TestOneAnswer: an export has its window on one queue pair, and waits for room on another one that
// breaks, while no answer can be sent. The peer gets one answer.
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
	for r.b.data[1].repl.state == qpUp {
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

// awaitQuiet serves both ends until they sleep, armed, and nothing is left to wake them.
func (r *rig) awaitQuiet(t *testing.T) {
	t.Helper()
	quiet := func(p *Path) bool {
		i, err := sys.PollIn(0, p.FD())
		return i < 0 && err == nil
	}
	for until := time.Now().Add(time.Minute); r.A.Poll()+r.B.Poll() > 0 || r.a.Arm() || r.b.Arm() || !quiet(r.a) ||
		!quiet(r.b); {
		if time.Now().After(until) {
			t.Fatalf("it does not come to rest\n%s", r.Dump())
		}
	}
}

// TestLostWhileArmed: an owner sleeps, with nothing under way, while another call of its posts an
// operation whose completion the adapter loses. It is woken to look all the same.
func TestLostWhileArmed(t *testing.T) {
	w := newWorld(t, "")
	r := newRig(t, w, Options{looks: often}, 1)
	local := r.A.Region(4096)
	e := r.B.Export(r.B.Region(4096), both)
	r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})
	r.awaitQuiet(t)
	w.do(t, "drop send 1")
	put := r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})[0]
	if i, err := sys.PollIn(20_000, r.a.FD()); i < 0 || err != nil {
		t.Errorf("its owner is not woken: %v", err)
	}
	r.sleepUntil(t, "the put", func() bool { return put.Times > 0 })
	if put.Err != nil {
		t.Error(put.Err)
	}
}

// TestFaultWhileArmed: an owner sleeps while another call of its posts an operation, for which the
// adapter takes no request. The path wakes its owner to repair that.
func TestFaultWhileArmed(t *testing.T) {
	w := newWorld(t, "")
	r := newRig(t, w, Options{looks: time.Hour}, 1)
	local := r.A.Region(4096)
	e := r.B.Export(r.B.Region(4096), both)
	r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})
	r.awaitQuiet(t)
	w.do(t, "fail ibv_post_send 1 ENOMEM")
	put := r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})[0]
	if i, err := sys.PollIn(20_000, r.a.FD()); i < 0 || err != nil {
		t.Errorf("its owner is not woken: %v", err)
	}
	r.sleepUntil(t, "the put", func() bool { return put.Times > 0 })
	if put.Err != nil || r.a.replaced != 1 {
		t.Errorf("%v; %d queue pairs replaced", put.Err, r.a.replaced)
	}
}

// TestPortEvents: what happens to the port is noted, and wakes no owner: the retries of the adapter
// decide.
func TestPortEvents(t *testing.T) {
	w := newWorld(t, "")
	r := newRig(t, w, Options{looks: time.Hour}, 1)
	r.awaitQuiet(t)
	dev := r.a.dev
	for _, ev := range []ibv.AsyncEvent{{Type: ibv.EventPortErr, Port: dev.port.Port},
		{Type: ibv.EventPortActive, Port: dev.port.Port}, {Type: ibv.EventPortErr, Port: dev.port.Port + 1}} {
		dev.tell(ev)
		noted := strings.Contains(strings.Join(r.a.Explain(), "\n"), fmt.Sprintf("port %d: %s", ev.Port, ev.Type))
		if i, err := sys.PollIn(0, r.a.FD()); i >= 0 || err != nil || noted != (ev.Port == dev.port.Port) {
			t.Errorf("%s of port %d: noted: %t; its owner is woken: %t (%v)", ev.Type, ev.Port, noted, i >= 0, err)
		}
	}
}

// TestNewQueuePairBreaks: the queue pair that is to replace another one breaks as well, before the
// peer's offer for it is taken in. There is another one behind it.
func TestNewQueuePairBreaks(t *testing.T) {
	w := newWorld(t, "")
	r := newRig(t, w, Options{}, 1)
	local := r.A.Region(4096)
	e := r.B.Export(r.B.Region(4096), both)
	r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})
	pathtest.Fill(local.All().Bytes(), 7)
	l := r.a.data[0]
	r.kill(t, r.a, 0)
	for l.repl.state != qpOffered || l.repl.tell {
		r.A.Poll()
	}
	r.kill(t, r.a, 0)
	for range 5 { // b takes the offer in and makes its own, which comes behind what breaks here
		r.B.Poll()
	}
	put := r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096), Notify: true})[0]
	r.Drive("a put by the third queue pair", func() bool { return put.Times > 0 })
	r.Pump(20)
	if put.Err != nil || l.repl.state != qpUp || pathtest.Verify(e.Span().Bytes(), 7) >= 0 || len(r.B.Notices) != 1 {
		t.Errorf("%v; the queue pair is %s, %d notifications", put.Err, l.repl.state, len(r.B.Notices))
	}
}

// TestNewQueuePairCannotBeJoined: the queue pair that is to replace another one has got into error
// just when it is joined to the peer's, and before its receives have come back. There is another
// one behind it. Where that never ends, the path does.
func TestNewQueuePairCannotBeJoined(t *testing.T) {
	for _, fail := range []string{"1", "2", "*"} { // to receive, to send, whatever it is
		t.Run(fail, func(t *testing.T) {
			w := newWorld(t, "timers instant")
			r := newRig(t, w, Options{}, 1)
			local := r.A.Region(4096)
			e := r.B.Export(r.B.Region(4096), both)
			r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})
			pathtest.Fill(local.All().Bytes(), 7)
			l := r.a.data[0]
			r.kill(t, r.a, 0)
			for l.repl.state != qpOffered || l.repl.tell || l.repl.offer.gen != l.gen {
				r.A.Poll()
				for b := &r.b.data[0].repl; b.state == qpDraining || b.state == qpOffered && b.tell; {
					r.B.Poll()
				}
				r.B.Poll()
				r.a.collect()
			}
			w.do(t, fmt.Sprintf("fail ibv_modify_qp %s EINVAL", fail))
			put := r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096), Notify: true})[0]
			r.Drive("the put", func() bool {
				if fail == "*" { // as if other queue pairs got on
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
			if put.Err != nil || l.repl.state != qpUp || pathtest.Verify(e.Span().Bytes(), 7) >= 0 ||
				len(r.B.Notices) != 1 {
				t.Errorf("%v; the queue pair is %s, %d notifications", put.Err, l.repl.state, len(r.B.Notices))
			}
		})
	}
}

// TestPostBeforeReadyIsTakenIn: the peer says that its end of a replaced queue pair is ready, and
// asks for an export on it. The owner of this side, which Arm tells that there is news, posts
// before it polls. The answer has the key of the new queue pair: the peer asks only once for it.
func TestPostBeforeReadyIsTakenIn(t *testing.T) {
	w := newWorld(t, "")
	r := newRig(t, w, Options{}, 1)
	local := r.A.Region(4096)
	e := r.B.Export(r.B.Region(4096), both)
	r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})
	pathtest.Fill(local.All().Bytes(), 7)
	a, b := r.a.data[0], r.b.data[0]
	r.kill(t, r.a, 0)
	for b.repl.state != qpConnecting {
		r.A.Poll()
		r.B.Poll()
	}
	put := r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})[0]
	for r.a.asking == 0 {
		r.A.Poll()
	}
	if a.repl.state != qpUp || b.repl.state != qpConnecting {
		t.Fatalf("one end is %s, the other %s", a.repl.state, b.repl.state)
	}
	if !r.b.Arm() {
		t.Fatal("nothing has come")
	}
	r.B.Post(path.Op{Kind: path.Notify})
	r.sleepUntil(t, "the put", func() bool { return put.Times > 0 })
	if put.Err != nil || pathtest.Verify(e.Span().Bytes(), 7) >= 0 {
		t.Errorf("%v, or wrong bytes", put.Err)
	}
}

// TestRefusedOnAllQueuePairs: operations that the peer's adapter refuses again and again, on every
// queue pair, are given up. The path goes on.
func TestRefusedOnAllQueuePairs(t *testing.T) {
	for _, c := range []struct{ qps, puts int }{{1, 1}, {maxQPs, 1}, {1, 8}, {3, 8}} {
		qps := c.qps
		t.Run(fmt.Sprintf("%d/%d", qps, c.puts), func(t *testing.T) {
			w := newWorld(t, "")
			r := newRig(t, w, Options{Tuning: Tuning{Piece: just(64 << 10)}}, qps)
			const size = 2 << 20
			local := r.A.Region(size)
			e := r.B.Export(r.B.Region(size), both)
			closed := func() bool { // whatever it grants
				for _, g := range r.b.givens {
					for i := range g.windows {
						if mw := g.windows[i].mw; mw != nil && g.windows[i].bound {
							g.windows[i].mw = nil
							if err := mw.Close(); err != nil {
								t.Error(err)
							}
						}
					}
				}
				return true
			}
			var puts []*pathtest.Result
			for range c.puts {
				puts = append(puts, r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, size)})...)
			}
			for _, put := range puts {
				r.Drive("a put that is refused", func() bool { return closed() && put.Times > 0 })
				if !errors.Is(put.Err, errStrikes) {
					t.Fatalf("%v; expected %v", put.Err, errStrikes)
				}
			}
			r.A.MustDo(path.Op{Kind: path.Get, Copies: copyTo(local, r.B.Export(r.B.Region(size), both), 0, size)})
		})
	}
}

// besides posts one notification after the other and serves both ends until a put of 4 KiB has
// ended. each comes before each turn. What is replaced for ever fails the test.
func (r *rig) besides(t *testing.T, e *path.Export, each func()) *pathtest.Result {
	t.Helper()
	put := r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(r.A.Region(4096), e, 0, 4096)})[0]
	note := &pathtest.Result{Times: 1}
	r.Drive("the put", func() bool {
		if n := max(r.a.replaced, r.b.replaced); n > 10*maxRepairs {
			t.Fatalf("%d queue pairs were replaced, and the put has not ended: %v, %v", n, r.a.why, r.b.why)
		}
		if note.Times > 0 && put.Times == 0 {
			if note.Err != nil {
				t.Fatal(note.Err)
			}
			note = r.A.Post(path.Op{Kind: path.Notify})[0]
		}
		each()
		return put.Times > 0
	})
	return put
}

// TestOneOperationBreaks: each queue pair breaks that gets to one operation, because the network
// does not carry what that sends. Others get on meanwhile. The path ends after a bounded number of
// queue pairs, and the operation with it.
func TestOneOperationBreaks(t *testing.T) {
	w := newWorld(t, "timers instant")
	r := newRig(t, w, Options{}, 1)
	e := r.B.Export(r.B.Region(4096), both)
	l, killed := r.b.data[0], uint32(0)
	put := r.besides(t, e, func() {
		if g := r.b.givens[e.Key()]; g != nil && g.windows[0].bound && l.gen != killed { // the put comes now
			killed = l.gen
			r.kill(t, r.b, 0)
		}
	})
	if !errors.Is(put.Err, path.ErrDown) {
		t.Error(put.Err)
	}
}

// TestNeverUp: each new queue pair breaks before it is up. Operations that do not need it get on
// meanwhile. The path ends after a bounded number of them.
func TestNeverUp(t *testing.T) {
	for _, state := range []qpState{qpOffered, qpConnecting} {
		t.Run(state.String(), func(t *testing.T) {
			w := newWorld(t, "timers instant")
			r := newRig(t, w, Options{}, 1)
			l, killed := r.a.data[0], uint32(0)
			r.kill(t, r.a, 0)
			put := r.besides(t, r.B.Export(r.B.Region(4096), both), func() {
				if l.repl.state == state && l.gen != killed {
					killed = l.gen
					r.kill(t, r.a, 0)
				}
			})
			if !errors.Is(put.Err, path.ErrDown) {
				t.Error(put.Err)
			}
		})
	}
}

// TestWindowRefused: the adapter refuses the window for an export, which breaks the queue pair each
// time. Other operations get on. This side refuses the export to the peer.
func TestWindowRefused(t *testing.T) {
	w := newWorld(t, "timers instant")
	r := newRig(t, w, Options{}, 1)
	e := r.B.Export(r.B.Region(4096), both)
	dom := r.b.dom
	dom.windows = false
	if _, err := dom.pin(e, both); err != nil { // a registration that takes no windows
		t.Fatal(err)
	}
	dom.windows = true
	defer dom.unpin(e)
	if put := r.besides(t, e, func() {}); !errors.Is(put.Err, path.ErrUnavailable) {
		t.Error(put.Err)
	}
	other := r.B.Export(r.B.Region(4096), both)
	r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(r.A.Region(4096), other, 0, 4096)})
}

// TestQueuePairsOfOneThatOnlyServes: a queue pair is replaced again and again because exports are
// taken back in the middle of puts, which get on in between. The side that only serves has no
// operation of its own that could get on, and lives as long as the other one.
func TestQueuePairsOfOneThatOnlyServes(t *testing.T) {
	w := newWorld(t, "timers instant")
	r := newRig(t, w, Options{}, 1)
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
		t.Errorf("%d queue pairs were replaced", r.a.replaced)
	}
}
