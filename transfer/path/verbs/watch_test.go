package verbs

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/rdmadev"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/pathtest"
)

// often makes looks frequent, so that a test need not wait for seconds.
const often = 20 * time.Millisecond

// sleepUntil serves both ends, the way owners do that sleep: nothing but FD wakes them.
func (r *rig) sleepUntil(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); !cond(); {
		if r.A.Poll()+r.B.Poll() > 0 {
			continue
		}
		armed := []int{}
		for _, p := range []*Path{r.a, r.b} {
			if p.Arm() {
				armed = nil
				break
			}
			armed = append(armed, p.FD())
		}
		if armed == nil || cond() {
			continue
		}
		if _, err := sys.PollIn(int(time.Until(limit)/time.Millisecond), armed...); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(limit) {
			t.Fatalf("%s: neither end woke for a minute\n%s", what, r.Dump())
		}
	}
}

// TestPostWhileArmed: an owner that sleeps is woken by the end of what another call of its posted
// meanwhile, and not only by the next look.
func TestPostWhileArmed(t *testing.T) {
	for name, kind := range map[string]path.OpKind{"Put": path.Put, "Get": path.Get, "Notify": path.Notify} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "")
			r := pumped(t, w, Options{looks: time.Hour})
			defer r.end()
			const size = 256 << 10
			local, e := r.A.Region(size), r.B.Export(r.B.Region(size), both)
			one := r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 1)})[0]
			r.drive(t, func() bool { return one.Times > 0 })
			asleep := func() bool { // and what was told of things that are taken in already is gone
				i, err := sys.PollIn(0, r.a.FD())
				return i < 0 && err == nil
			}
			for until := time.Now().Add(time.Minute); r.A.Poll()+r.B.Poll()+w.pumps(1) > 0 || r.a.Arm() || !asleep(); {
				if time.Now().After(until) {
					t.Fatalf("it does not come to rest\n%s", r.Dump())
				}
			}
			op := path.Op{Kind: kind}
			if kind != path.Notify {
				op.Copies = copyTo(local, e, 0, size)
			}
			res := r.A.Post(op)[0]
			if !asleep() {
				t.Fatal("readable before anything was executed")
			}
			for w.pumps(1000) > 0 {
			}
			if i, err := sys.PollIn(30_000, r.a.FD()); i < 0 || err != nil {
				t.Fatalf("all is executed, and the owner sleeps on: %v\n%s", err, r.Dump())
			}
			r.drive(t, func() bool { return res.Times > 0 })
		})
	}
}

// TestLostCompletion: the adapter executes a request and its completion is lost. The operation ends
// all the same, once, with all that it did.
func TestLostCompletion(t *testing.T) {
	for name, op := range map[string]func(*rig, []path.Copy) path.Op{
		"Put":       func(_ *rig, c []path.Copy) path.Op { return path.Op{Kind: path.Put, Copies: c} },
		"PutNotify": func(_ *rig, c []path.Copy) path.Op { return path.Op{Kind: path.Put, Copies: c, Notify: true} },
		"PutMessage": func(_ *rig, c []path.Copy) path.Op {
			return path.Op{Kind: path.Put, Copies: c, Notify: true, Msg: []byte("m")}
		},
		"Get":    func(_ *rig, c []path.Copy) path.Op { return path.Op{Kind: path.Get, Copies: c} },
		"Notify": func(*rig, []path.Copy) path.Op { return path.Op{Kind: path.Notify, Imm: 1} },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "")
			o := Options{looks: often}
			r := newRig(t, w, o, 1)
			local := r.A.Region(4096)
			e := r.B.Export(r.B.Region(4096), both)
			r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})
			pathtest.Fill(local.All().Bytes(), 4)
			if strings.HasSuffix(name, "Get") {
				pathtest.Fill(e.Span().Bytes(), 4)
			}
			x := op(r, copyTo(local, e, 0, 4096))
			w.do(t, "drop send 1")
			lost := w.counted(t, "drops")
			res := r.A.Post(x)[0]
			if w.counted(t, "drops") != lost+1 {
				t.Fatal("no completion was lost")
			}
			r.sleepUntil(t, "an operation whose completion was lost", func() bool { return res.Times > 0 })
			notices := 0
			if x.Notify || x.Kind == path.Notify {
				notices = 1
			}
			r.sleepUntil(t, "its notification", func() bool { return len(r.B.Notices) >= notices })
			r.Pump(20)
			if res.Err != nil || res.Times != 1 || len(r.B.Notices) != notices || r.a.probes == 0 &&
				name != "PutMessage" {
				// whose message shows that the write before it is over
				t.Errorf("%v, ended %d times, %d notifications, %d probes", res.Err, res.Times, len(r.B.Notices),
					r.a.probes)
			}
			if r.a.replaced+r.b.replaced > 0 {
				t.Errorf("a queue pair was replaced: %v, %v", r.a.why, r.b.why)
			}
			if x.Kind != path.Notify && (pathtest.Verify(e.Span().Bytes(), 4) >= 0 ||
				pathtest.Verify(local.All().Bytes(), 4) >= 0) {
				t.Error("wrong bytes")
			}
			r.A.MustDo(path.Op{Kind: path.Get, Copies: copyTo(local, e, 0, 4096)})
		})
	}
}

// TestDeadAdapter: an adapter that ends nothing any more is given up: the queue pair that carries
// the operation first, then the path; the operation ends once.
func TestDeadAdapter(t *testing.T) {
	deadAdapter(t)
}

func deadAdapter(t *testing.T) {
	w := newWorld(t, "")
	r := newRig(t, w, Options{looks: time.Millisecond}, 1)
	local := r.A.Region(4096)
	e := r.B.Export(r.B.Region(4096), both)
	r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})
	w.do(t, "drop send *")
	put := r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})[0]
	r.sleepUntil(t, "the end of the path", func() bool { return r.A.Down != nil && r.B.Down != nil })
	if put.Times != 1 || !errors.Is(put.Err, path.ErrDown) || !errors.Is(r.A.Down, path.ErrDown) {
		t.Errorf("the put ended %d times: %v; down: %v", put.Times, put.Err, r.A.Down)
	}
}

// TestSlowLink: a link that moves the fewest bytes of all from look to look is not given up,
// although it ends nothing for minutes. One that moves nothing is, and is asked again and again
// before.
func TestSlowLink(t *testing.T) {
	w := newWorld(t, "")
	r := pumped(t, w, Options{})
	const size = bulkAhead
	local := r.A.Region(size)
	e := r.B.Export(r.B.Region(size), both)
	first := r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 1)})[0]
	r.drive(t, func() bool { return first.Times > 0 })
	pathtest.Fill(local.All().Bytes(), 3)
	qp := r.a.data[0]
	put := r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, size)})[0]
	if n := qp.head - qp.tail; n != size>>20 {
		t.Fatalf("%d requests are under way, expected one for each MiB", n)
	}
	looks := 0
	for put.Times == 0 && r.a.replaced == 0 {
		for range 1 << 20 / rdmadev.WatchPace {
			r.a.lookAtQP(qp)
			looks++
		}
		w.pumps(1)
		r.Pump(1)
	}
	if put.Err != nil || put.Times != 1 || r.a.replaced != 0 || looks < 2*rdmadev.WatchMost {
		t.Errorf("after %d looks: %v, ended %d times, %d queue pairs replaced (%v)", looks, put.Err, put.Times,
			r.a.replaced, r.a.why)
	}
	if at := pathtest.Verify(e.Span().Bytes(), 3); at >= 0 {
		t.Errorf("byte %d is wrong", at)
	}
	r.drive(t, func() bool { return qp.idle() || qp.head == qp.tail })

	r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, size)})
	for looks = 0; r.a.replaced == 0 && looks < 1<<20; looks++ {
		r.a.lookAtQP(qp)
	}
	if most := rdmadev.WatchMost + size/rdmadev.WatchPace + 1; looks != most { // the first one only sees where it is
		t.Errorf("a dead link was given up after %d looks, expected %d", looks, most)
	}
	if r.a.probes < 10 || !errors.Is(r.a.why, rdmadev.ErrSilent) {
		t.Errorf("%d probes; %v", r.a.probes, r.a.why)
	}
	r.end()
}

// TestLostMessage: a message comes, and the receiver's adapter loses its completion. Its sender
// believes that it came, so the path ends and says why, as soon as anything else comes: on the
// control connection at the latest when the side that waits asks. It reports all other messages.
func TestLostMessage(t *testing.T) {
	lostMessage(t)
}

func lostMessage(t *testing.T) {
	t.Run("Data", func(t *testing.T) {
		w := newWorld(t, "")
		r := newRig(t, w, Options{looks: often}, 1)
		const n = 40
		local := r.A.Region(n * 64)
		e := r.B.Export(r.B.Region(n*64), both)
		r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 64)})
		pathtest.Fill(local.All().Bytes(), 6)
		w.do(t, "drop recv 5")
		for i := range n {
			op := path.Op{Kind: path.Put, Copies: copyTo(local, e, i*64, 64), Notify: true, Imm: uint64(i)}
			if i%3 == 0 {
				op.Msg = []byte("with a message")
			}
			r.A.Post(op)
		}
		r.sleepUntil(t, "the end of the path", func() bool { return r.A.Down != nil && r.B.Down != nil })
		if !errors.Is(r.B.Down, errGap) {
			t.Errorf("down: %v", r.B.Down)
		}
		seen := map[uint64]int{}
		for _, x := range r.B.Notices {
			seen[x.Imm]++
		}
		for i := range n {
			if want := min(1, (i-4)*(i-4)); seen[uint64(i)] != want {
				t.Errorf("put %d: %d notifications, expected %d", i, seen[uint64(i)], want)
			}
		}
	})
	t.Run("Control", func(t *testing.T) {
		w := newWorld(t, "")
		r := newRig(t, w, Options{looks: often}, 1)
		local := r.A.Region(4096)
		e := r.B.Export(r.B.Region(4096), both)
		w.do(t, "drop recv 1") // the question for the export
		put := r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})[0]
		r.sleepUntil(t, "the end of the path", func() bool { return r.A.Down != nil && r.B.Down != nil })
		if put.Times != 1 || !errors.Is(put.Err, path.ErrDown) || !errors.Is(r.B.Down, errGap) {
			t.Errorf("the put ended %d times: %v; down: %v, %v", put.Times, put.Err, r.A.Down, r.B.Down)
		}
	})
}

// TestOverrun: more completions than the queue of a path holds. Some are lost, so how its
// operations ended is not known: it goes down, also while its owner sleeps, each operation ends
// once, and the other end goes down with what it sends.
func TestOverrun(t *testing.T) {
	for _, side := range []string{"poster", "peer"} {
		t.Run(side, func(t *testing.T) {
			w := newWorld(t, "mode wire; delay 200us")
			r := newRig(t, w, Options{Tuning: Tuning{Piece: just(64 << 10)}, looks: often}, 2)
			const size = 1 << 20
			local := r.A.Region(size)
			e := r.B.Export(r.B.Region(size), both)
			r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})
			var res []*pathtest.Result
			for range 20 {
				res = append(res, r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, size), Notify: true})...)
			}
			p := r.a
			if side == "peer" {
				p = r.b
			}
			w.do(t, fmt.Sprintf("overrun 0 %#x", p.ctl.qp.Num()))
			r.sleepUntil(t, "the end", func() bool { return p.err != nil && r.A.Down != nil })
			if p.err == nil || !errors.Is(p.err, ibv.ErrOverrun) &&
				!strings.Contains(p.err.Error(), "control connection failed") {
				t.Errorf("down: %v", p.err)
			}
			for i, x := range res {
				if x.Times != 1 || x.Err != nil && !errors.Is(x.Err, path.ErrDown) {
					t.Errorf("put %d ended %d times: %v", i, x.Times, x.Err)
				}
			}
			if n := len(r.a.freeWorks); n != len(r.a.works) {
				t.Errorf("%d of %d places for operations are free", n, len(r.a.works))
			}
		})
	}
}

// TestPortFlaps: the link goes away in the middle of transfers and comes back before the adapter
// has given up: nothing is lost, nothing comes twice, and both remember it.
func TestPortFlaps(t *testing.T) {
	for _, script := range []string{"port 0 down", "cable 0 cut"} {
		t.Run(script, func(t *testing.T) {
			w := newWorld(t, "mode wire; delay 50us")
			r := newRig(t, w, Options{Tuning: Tuning{Piece: just(64 << 10)}, Timeout: 18}, 2) // a second, six times
			const size, n = 1 << 20, 8
			local := r.A.Region(size)
			e := r.B.Export(r.B.Region(size), both)
			r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})
			pathtest.Fill(local.All().Bytes(), 8)
			var res []*pathtest.Result
			for i := range n {
				res = append(res, r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, size), Notify: true,
					Imm: uint64(i)})...)
			}
			w.do(t, script)
			before := w.counted(t, "retries")
			r.sleepUntil(t, "retries", func() bool { return w.counted(t, "retries") > before })
			if r.A.Down != nil || r.B.Down != nil {
				t.Fatalf("down: %v, %v", r.A.Down, r.B.Down)
			}
			w.do(t, strings.NewReplacer("down", "up", "cut", "mend").Replace(script))
			r.sleepUntil(t, "all puts", func() bool {
				for _, x := range res {
					if x.Times == 0 {
						return false
					}
				}
				return len(r.B.Notices) >= n
			})
			r.Pump(20)
			for i, x := range res {
				if x.Err != nil || x.Times != 1 {
					t.Errorf("put %d ended %d times: %v", i, x.Times, x.Err)
				}
			}
			if len(r.B.Notices) != n || pathtest.Verify(e.Span().Bytes(), 8) >= 0 {
				t.Errorf("%d notifications of %d, or wrong bytes", len(r.B.Notices), n)
			}
			if text := strings.Join(r.a.Explain(), "\n"); strings.HasPrefix(script, "port") &&
				(!strings.Contains(text, "port down") || !strings.Contains(text, "port active")) {
				t.Errorf("it does not say what happened to the port:\n%s", text)
			}
		})
	}
}
