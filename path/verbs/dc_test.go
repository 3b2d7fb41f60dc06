package verbs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/path/pathtest"
)

// rigOn is newRig with paths of given drivers, the first of which dials.
func rigOn(t testing.TB, w *world, dials, listens *Driver, rails int) *rig {
	t.Helper()
	f := factory(Options{}, rails)
	r := &rig{t: t, w: w}
	f.New = func(t testing.TB, a, b path.Config) (path.Path, path.Path) {
		a.Streams, b.Streams = rails, rails
		l, err := listens.Listen()
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		tok := newToken()
		got := make(chan path.Path, 1)
		go func() {
			p, err := l.Accept(ctx, tok, b)
			if err != nil {
				t.Error(err)
			}
			got <- p
		}()
		p, err := dials.Dial(ctx, path.Offer{Addr: l.Addr(), Token: tok}, a)
		if err != nil {
			cancel()
		}
		q := <-got
		if err != nil || q == nil {
			t.Fatal(err)
		}
		r.a, r.b = p.(*Path), q.(*Path)
		return p, q
	}
	r.Pair = pathtest.NewPair(t, f, 0)
	return r
}

func dynamicDriver(w *world, initiators int) *Driver {
	return New(Options{Library: w.lib, mlx5: w.lib, Transport: DC, Initiators: initiators, Piece: 64 << 10, Device: "fake0", Insecure: true})
}

// owner serves one end in a goroutine of its own, asleep where there is nothing to do.
type owner struct {
	p    *Path
	op   func(n int) path.Op // the n-th operation
	bell int
	n    int // posted
	done int
}

// busy has all owners post without a pause, so many operations at once, until each has done its number; then all end together.
func busy(t *testing.T, owners []*owner, atOnce, each int) {
	var satisfied, drained atomic.Int32
	all := int32(len(owners))
	wake := func() {
		for _, o := range owners {
			sys.Ring(o.bell)
		}
	}
	for _, o := range owners {
		bell, err := sys.Eventfd()
		if err != nil {
			t.Fatal(err)
		}
		defer sys.Close(bell)
		o.bell = bell
	}
	var wg sync.WaitGroup
	for k, o := range owners {
		wg.Go(func() {
			var events [32]path.Event
			enough, empty := false, false
			for {
				n := o.p.Poll(events[:])
				for _, e := range events[:n] {
					if e.Kind == path.EventDone {
						o.done++
					}
					if e.Err != nil {
						t.Errorf("owner %d: %v", k, e.Err)
						return
					}
				}
				if !enough && o.done >= each {
					if enough = true; satisfied.Add(1) == all {
						wake()
					}
				}
				for satisfied.Load() < all && o.n-o.done < atOnce {
					op := [1]path.Op{o.op(o.n)}
					if _, err := o.p.Post(op[:]); err != nil {
						t.Errorf("owner %d: %v", k, err)
						return
					}
					o.n++
				}
				if !empty && satisfied.Load() == all && o.n == o.done {
					if empty = true; drained.Add(1) == all {
						wake()
					}
				}
				if drained.Load() == all {
					return
				}
				if n > 0 || o.p.Arm() {
					continue
				}
				slept := time.Now()
				switch i, err := sys.PollIn(60_000, o.bell, o.p.FD()); {
				case err != nil, i < 0 && time.Since(slept) >= time.Minute && !t.Failed(): // else a signal came
					t.Errorf("owner %d, which did %d of %d: it is not woken: %v\n%s", k, o.done, o.n, err, strings.Join(o.p.Explain(), "\n"))
					return
				case i == 0:
					sys.Unring(o.bell)
				case t.Failed():
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestInitiatorsAreShared: more paths than initiators, each of which has more to do than it can ever get done. All get on, those that sleep are woken
// by nothing but the one before them, and every byte is where it belongs.
func TestInitiatorsAreShared(t *testing.T) {
	for _, mode := range []string{"mode post", "mode wire; delay 20us; seed 5"} {
		for _, initiators := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s/%d", mode, initiators), func(t *testing.T) {
				w := newWorld(t, mode)
				d := dynamicDriver(w, initiators)
				d.o.looks = time.Hour // no look helps
				const pairs, each, size, slots = 5, 150, 48 << 10, 8
				var owners []*owner
				var rigs []*rig
				var check []func()
				for k := range pairs {
					r := rigOn(t, w, d, d, 1+k%2)
					rigs = append(rigs, r)
					for i, s := range r.Sides() {
						local, e := s.Region(size*slots), s.Other().Export(s.Other().Region(size*slots), both)
						seed := uint64(10*k + i)
						pathtest.Fill(local.All().Bytes(), seed)
						p := r.a
						if i == 1 {
							p = r.b
						}
						owners = append(owners, &owner{p: p, op: func(n int) path.Op {
							kind := path.Put
							if n >= slots && n%3 == 0 {
								kind = path.Get
							}
							return path.Op{Kind: kind, Token: uint64(1_000_000 + n), Copies: copyTo(local, e, n%slots*size, size), Notify: n%2 == 0, Imm: uint64(n)}
						}})
						check = append(check, func() {
							if at := pathtest.Verify(e.Span().Bytes(), seed); at >= 0 {
								t.Errorf("pair %d, side %d: byte %d there is wrong", k, i, at)
							}
							if at := pathtest.Verify(local.All().Bytes(), seed); at >= 0 {
								t.Errorf("pair %d, side %d: byte %d here is wrong", k, i, at)
							}
						})
					}
				}
				busy(t, owners, slots, each)
				for _, c := range check {
					c()
				}
				waited := false
				for _, r := range rigs {
					if r.a.replaced+r.b.replaced > 0 {
						t.Errorf("rails were replaced: %v, %v", r.a.why, r.b.why)
					}
					waited = waited || r.a.seats[forData].waited > 0
				}
				said := strings.Join(rigs[0].a.Explain(), "\n")
				want := fmt.Sprintf("of %d at most, shared by %d paths", initiators, 2*pairs)
				crowded := initiators == 1 && mode != "mode post" // else it may be that each is done before the next one comes
				if crowded && !waited || !strings.Contains(said, want) || !strings.Contains(said, "none that sends; 2 DC targets: 1 for control, 1 for puts and gets") {
					t.Errorf("a path waited: %v; Explain does not say %q:\n%s", waited, want, said)
				}
				if n := len(rigs[0].a.dyn.pools[forData].all); n > initiators {
					t.Errorf("%d initiators, expected at most %d", n, initiators)
				}
			})
		}
	}
}

// TestRefusedKeyHurtsItsPathOnly: a path that is refused stops the initiator that all share. The others, which wait for it, do not notice.
func TestRefusedKeyHurtsItsPathOnly(t *testing.T) {
	for _, mode := range []string{"mode post", "mode wire; delay 20us"} {
		t.Run(mode, func(t *testing.T) {
			w := newWorld(t, mode)
			d := dynamicDriver(w, 1)
			bad, good := rigOn(t, w, d, d, 2), rigOn(t, w, d, d, 2)
			const size = 1 << 20
			local, fine := bad.A.Region(size), good.A.Region(size)
			pathtest.Fill(fine.All().Bytes(), 7)
			to := good.B.Export(good.B.Region(size), both)
			good.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(fine, to, 0, 1)})
			for range 5 {
				e := bad.B.Export(bad.B.Region(size), both)
				bad.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 1)})
				bad.B.Exports.Revoke(e)
				fence := bad.B.Post(path.Op{Kind: path.Fence, Key: e.Key()})[0]
				for fence.Times == 0 { // a does not hear of it
					bad.B.Poll()
				}
				refused := bad.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, size), Notify: true})[0]
				var puts []*pathtest.Result
				for i := range 16 {
					puts = append(puts, good.A.Post(path.Op{Kind: path.Put, Copies: copyTo(fine, to, i*size/16, size/16), Notify: true})...)
				}
				good.Drive("the puts of the path that is not refused", func() bool {
					bad.A.Poll()
					bad.B.Poll()
					return refused.Times > 0 && !slices.ContainsFunc(puts, func(r *pathtest.Result) bool { return r.Times == 0 })
				})
				if !errors.Is(refused.Err, path.ErrRevoked) && !errors.Is(refused.Err, path.ErrKey) {
					t.Errorf("the refused put: %v", refused.Err)
				}
				for _, p := range puts {
					if p.Err != nil {
						t.Error(p.Err)
					}
				}
			}
			if at := pathtest.Verify(to.Span().Bytes(), 7); at >= 0 {
				t.Errorf("byte %d is wrong", at)
			}
			if bad.a.replaced == 0 || good.a.replaced+good.b.replaced > 0 {
				t.Errorf("rails replaced: %d of the refused path, %d and %d of the other", bad.a.replaced, good.a.replaced, good.b.replaced)
			}
		})
	}
}

// TestDeadPeerHoldsNoInitiator: a peer that answers no more takes its path down, and the initiators go on with other peers.
func TestDeadPeerHoldsNoInitiator(t *testing.T) {
	w := newWorld(t, "timers instant")
	d := dynamicDriver(w, 1)
	far := dynamicDriver(w, 1)
	far.o.Device = "fake1"
	dead, alive := rigOn(t, w, d, far, 1), rigOn(t, w, d, d, 1)
	local, e := dead.A.Region(4096), dead.B.Export(dead.B.Region(4096), both)
	fine, to := alive.A.Region(4096), alive.B.Export(alive.B.Region(4096), both)
	dead.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})
	alive.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(fine, to, 0, 1)})
	pathtest.Fill(fine.All().Bytes(), 3)
	w.do(t, "cable 1 cut")
	lost := dead.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})[0]
	put := alive.A.Post(path.Op{Kind: path.Put, Copies: copyTo(fine, to, 0, 4096), Notify: true})[0]
	alive.Drive("a put to the peer that is there", func() bool {
		dead.A.Poll()
		return dead.A.Down != nil && put.Times > 0 && len(alive.B.Notices) > 0
	})
	if put.Err != nil || pathtest.Verify(to.Span().Bytes(), 3) >= 0 || !errors.Is(lost.Err, path.ErrDown) {
		t.Errorf("the put that can: %v; the put that cannot: %v", put.Err, lost.Err)
	}
	next := rigOn(t, w, d, d, 1) // with what the dead path had for control and data
	fine, to = next.A.Region(4096), next.B.Export(next.B.Region(4096), both)
	next.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(fine, to, 0, 4096)})
	w.do(t, "cable 1 mend")
}

// TestInitiatorOverrun: a completion of the initiator that a path holds is lost. How its operations ended is not known, so the path goes down, also
// while its owner sleeps and another path reads the event, and each operation ends once; the others go on with what it had.
func TestInitiatorOverrun(t *testing.T) {
	w := newWorld(t, "mode wire")
	d := dynamicDriver(w, 1)
	d.o.looks = time.Hour // no look helps
	bad, good := rigOn(t, w, d, d, 1), rigOn(t, w, d, d, 1)
	const size = 1 << 20
	local, e := bad.A.Region(size), bad.B.Export(bad.B.Region(size), both)
	fine, to := good.A.Region(size), good.B.Export(good.B.Region(size), both)
	bad.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})
	good.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(fine, to, 0, 1)})
	pathtest.Fill(fine.All().Bytes(), 4)
	w.do(t, "delay 60s")
	var res []*pathtest.Result
	for range 20 {
		res = append(res, bad.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, size), Notify: true})...)
	}
	seat := bad.a.seats[forData]
	for asleep := false; !asleep; {
		bad.A.Poll()
		if !bad.a.Arm() {
			i, err := sys.PollIn(0, bad.a.FD()) // what was told of things that are taken in already is gone
			asleep = i < 0 && err == nil
		}
	}
	w.do(t, fmt.Sprintf("overrun 0 %#x", seat.i.dci.Num()))
	bad.a.dev.async() // as of another path
	if i, err := sys.PollIn(20_000, bad.a.FD()); i < 0 || err != nil {
		t.Errorf("its owner is not woken: %v", err)
	}
	bad.sleepUntil(t, "the end", func() bool { return bad.A.Down != nil })
	if !errors.Is(bad.a.err, ibv.ErrOverrun) {
		t.Errorf("down: %v", bad.a.err)
	}
	for i, x := range res {
		if x.Times != 1 || x.Err != nil && !errors.Is(x.Err, path.ErrDown) {
			t.Errorf("put %d ended %d times: %v", i, x.Times, x.Err)
		}
	}
	if n := len(bad.a.freeWorks); n != len(bad.a.works) {
		t.Errorf("%d of %d places for operations are free", n, len(bad.a.works))
	}
	w.do(t, "delay 0s")
	good.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(fine, to, 0, size)})
	if at := pathtest.Verify(to.Span().Bytes(), 4); at >= 0 {
		t.Errorf("byte %d is wrong", at)
	}
}

// TestTurnEnds: a path that always has something under way lets another one in after its turn, and gets on behind it.
func TestTurnEnds(t *testing.T) {
	w := newWorld(t, "")
	d := dynamicDriver(w, 1)
	greedy, other := rigOn(t, w, d, d, 1), rigOn(t, w, d, d, 1)
	op := func(r *rig) path.Op {
		e := r.B.Export(r.B.Region(64<<10), both)
		op := path.Op{Kind: path.Put, Copies: copyTo(r.A.Region(64<<10), e, 0, 64<<10)}
		r.A.MustDo(op)
		return op
	}
	much, one := op(greedy), op(other)
	w.do(t, "mode pump")
	defer w.do(t, "mode post")
	for range 4 {
		greedy.A.Post(much)
	}
	put := other.A.Post(one)[0]
	posted, ended := 4, 0
	for i := 0; put.Times == 0; i++ {
		if i > 100*turnMost {
			t.Fatalf("%d operations of one path ended, and none of the other", ended)
		}
		w.pumps(1)
		ended += greedy.A.Poll()
		other.A.Poll()
		for ; posted-ended < 4; posted++ {
			greedy.A.Post(much)
		}
	}
	if put.Err != nil || ended < turnMost/4 {
		t.Errorf("%v; the other's turn came after %d operations: expected a whole turn", put.Err, ended)
	}
	for i := 0; ended < posted; i++ {
		if i > 1000 {
			t.Fatalf("the one that gave its turn up does not get on: %d of %d operations", ended, posted)
		}
		w.pumps(1)
		ended += greedy.A.Poll()
		other.A.Poll()
	}
}

// TestUnservedPathKeepsNothing: an initiator that rests at a path whose owner does not come any more is taken by who needs it, and one that was kept
// for such an owner as well, after a while.
func TestUnservedPathKeepsNothing(t *testing.T) {
	w := newWorld(t, "")
	d := dynamicDriver(w, 1)
	d.o.looks = often
	var rigs [3]*rig
	var ops [3]path.Op
	for i := range rigs {
		r := rigOn(t, w, d, d, 1)
		rigs[i] = r
		e := r.B.Export(r.B.Region(4096), both)
		ops[i] = path.Op{Kind: path.Put, Copies: copyTo(r.A.Region(4096), e, 0, 4096)}
		r.A.MustDo(ops[i]) // takes the one that rests at the path before
	}
	w.do(t, "mode pump")
	first := rigs[0].A.Post(ops[0])[0] // holds it
	second := rigs[1].A.Post(ops[1])[0]
	third := rigs[2].A.Post(ops[2])[0]
	if rigs[1].a.seats[forData].busy || rigs[2].a.seats[forData].busy {
		t.Fatal("two paths have the one initiator")
	}
	w.do(t, "mode post")
	w.pumps(100)
	for first.Times == 0 {
		rigs[0].A.Poll()
	}
	// Now it is the turn of the second, whose owner does not come.
	rigs[2].sleepUntil(t, "a path behind one that is not served", func() bool { return third.Times > 0 })
	if second.Times > 0 {
		t.Error("an operation ended by itself")
	}
	rigs[1].Drive("the one that was late", func() bool { return second.Times > 0 })
	for _, r := range []*pathtest.Result{first, second, third} {
		if r.Err != nil {
			t.Error(r.Err)
		}
	}
}

// TestWrongTargetKey: who does not know the key of a target reaches nothing by it, and the path goes on by another.
func TestWrongTargetKey(t *testing.T) {
	w := newWorld(t, "")
	r := newRig(t, w, Options{Transport: DC}, 1)
	local, e := r.A.Region(4096), r.B.Export(r.B.Region(4096), both)
	r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})
	pathtest.Fill(local.All().Bytes(), 5)
	l := r.a.rails[0]
	l.to.Key ^= 1
	put := r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})[0]
	if pathtest.Verify(e.Span().Bytes(), 5) < 0 {
		t.Fatal("a wrong key was taken")
	}
	key := r.b.rails[0].psn
	r.Drive("the put by another target", func() bool { return put.Times > 0 })
	if put.Err != nil || pathtest.Verify(e.Span().Bytes(), 5) >= 0 || r.a.replaced != 1 || r.b.rails[0].psn == key {
		t.Errorf("%v; %d rails replaced, key %#x after %#x", put.Err, r.a.replaced, r.b.rails[0].psn, key)
	}
}

// TestArrivedBeforeTargetCloses: a rail breaks at this side while hundreds of messages that came are not taken in, its own behind all others. Each
// comes exactly once.
func TestArrivedBeforeTargetCloses(t *testing.T) {
	w := newWorld(t, "")
	const rails, plain, short = 4, 120, 55
	r := newRig(t, w, Options{Transport: DC}, rails)
	local, e := r.A.Region(64), r.B.Export(r.B.Region(64), both)
	back, e2 := r.B.Region(64), r.A.Export(r.A.Region(64), both)
	r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 1)})
	r.B.MustDo(path.Op{Kind: path.Put, Copies: copyTo(back, e2, 0, 1)})
	by := func(p *Path, k int) {
		for i, l := range p.rails {
			if l.serves = 0; i == k {
				l.serves = both
			}
		}
	}
	var res []*pathtest.Result
	imm := uint64(0)
	post := func(op path.Op) {
		op.Notify, op.Imm = op.Kind == path.Put, imm
		imm++
		res = append(res, r.A.Post(op)...)
		r.A.Poll()
	}
	for range plain {
		post(path.Op{Kind: path.Notify})
	}
	for k := range rails {
		by(r.a, k)
		for range short {
			post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 8)})
		}
	}
	if n := plain + rails*short; n <= pollBatch*pollMax || r.b.ctl.received > 10 {
		t.Fatalf("%d messages are taken in at once, or were already", n)
	}
	by(r.b, rails-1)
	w.do(t, "status send 1 REM_ACCESS_ERR")
	put := r.B.Post(path.Op{Kind: path.Put, Copies: copyTo(back, e2, 0, 64)})[0]
	for i := range rails {
		r.a.rails[i].serves, r.b.rails[i].serves = both, both
	}
	r.Drive("messages and a put whose rail broke", func() bool { return put.Times > 0 && len(r.B.Notices) >= int(imm) })
	r.Pump(30)
	seen := map[uint64]int{}
	for _, n := range r.B.Notices {
		seen[n.Imm]++
	}
	for i := range imm {
		if seen[i] != 1 {
			t.Errorf("notification %d came %d times", i, seen[i])
		}
	}
	if put.Err != nil || r.b.replaced == 0 || r.A.Down != nil || r.B.Down != nil {
		t.Errorf("%v; %d rails replaced; down: %v, %v", put.Err, r.b.replaced, r.A.Down, r.B.Down)
	}
}

// TestNoDC: where there is no DC, that is said, with what to take.
func TestNoDC(t *testing.T) {
	w := newWorld(t, "absent dc")
	for _, o := range []Options{{mlx5: w.lib}, {mlx5: "/nonexistent/libmlx5.so.1"}} {
		o.Library, o.Transport = w.lib, DC
		err := New(o).Probe()
		if !errors.Is(err, path.ErrUnavailable) || !strings.Contains(err.Error(), "take RC") {
			t.Errorf("%v; expected one that wraps ErrUnavailable and says what to take", err)
		}
	}
	// A listener that takes what comes refuses, and goes on.
	l, err := New(Options{Library: w.lib, mlx5: w.lib}).Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := New(Options{Library: w.lib, Initiators: MaxInitiators + 1}).Listen(); err == nil || !strings.Contains(err.Error(), "Initiators") {
		t.Errorf("too many initiators: %v", err)
	}
}
