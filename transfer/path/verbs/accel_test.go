package verbs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/penstock-io/penstock/internal/ibvmem/cardtest"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/pathtest"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

var (
	bare   = fstest.MapFS{} // a machine without modules
	peered = fstest.MapFS{"sys/module/nvidia_peermem": &fstest.MapFile{Mode: fs.ModeDir}}
)

// newAccelRig is newRig on a machine with these files. Regions of cards are made before it, since
// they outlive the paths.
func newAccelRig(t testing.TB, w *world, tree fs.FS, o Options, qps int) *rig {
	t.Helper()
	o.Library, o.Device = w.lib, "fake0"
	f := factory(o, qps)
	r := &rig{t: t, w: w}
	f.New = func(t testing.TB, ca, cb setup.Config) (path.Path, path.Path) {
		ca.Streams, cb.Streams = qps, qps
		r.a, r.b = dialWith(t, &Driver{o: o, tree: tree}, ca, cb)
		return r.a, r.b
	}
	r.Pair = pathtest.NewPair(t, f, 0)
	return r
}

// load gives a card's region its content.
func load(t testing.TB, r *mem.Region, b []byte) {
	t.Helper()
	src, err := mem.Adopt("source", b, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	if _, err := r.Mover().Store(0, src.All()); err != nil {
		t.Fatal(err)
	}
}

// spot is memory of one side in a test, with what must be in it.
type spot struct {
	card   *cardtest.Card // nil: host memory
	region *mem.Region
	export *path.Export
	want   []byte
}

func (p *spot) now() []byte {
	if p.card != nil {
		return p.card.Seen(p.region)
	}
	return p.region.All().Bytes()
}

// TestAccelerators moves random blocks between host memory and memory of cards on both sides, in
// all directions, by both ways to such memory: at each EventDone the bytes are where they belong
// and nowhere else, as the card itself sees them, and no CPU has copied them.
func TestAccelerators(t *testing.T) {
	const addr, size, skip = 0x6a00_0000_0000, 512 << 10, 12_345
	for _, c := range []struct {
		name, script string
		card         cardtest.Options
		tree         fs.FS
		o            Options
		qps          int
	}{
		{"DMABuf", "", cardtest.Options{DMABuf: true}, bare, Options{}, 1},
		{"DMABufFlush", "mode wire; delay 20us; seed 4", cardtest.Options{DMABuf: true, Flush: true}, bare, Options{Tuning: Tuning{Piece: just(40_000)}}, 3},
		{"DMABufPages", "", cardtest.Options{DMABuf: true, Flush: true, Page: 4096, Addr: addr}, bare, Options{NoInline: true}, 1},
		{"PeerFlush", "mode wire", cardtest.Options{Addr: addr, Flush: true}, peered, Options{}, 2},
		{"Domains", "mode wire; seed 2", cardtest.Options{DMABuf: true, Flush: true}, bare, Options{NoWindows: true, Tuning: Tuning{Piece: just(100_000)}}, 2},
		{"PeerBehindAdapter", "absent dmabuf", cardtest.Options{DMABuf: true, Addr: addr}, peered, Options{}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, c.script)
			// Two cards: a flush of one side's must not do for the other's.
			var cards [2]*cardtest.Card
			var places [2][]*spot
			for i := range cards {
				o := c.card
				if o.Addr != 0 {
					o.Addr += uint64(i) << 32
				}
				cards[i] = cardtest.New(t, o)
				x := cards[i].Region(fmt.Sprint("card of ", i), size)
				if d := x.Direct().Addr; d != 0 {
					w.do(t, fmt.Sprintf("peer %#x %d %d", d, cards[i].FD(x), size))
				}
				places[i] = append(places[i], &spot{card: cards[i], region: x})
			}
			r := newAccelRig(t, w, c.tree, c.o, c.qps)
			rng := rand.New(rand.NewPCG(3, 4))
			for i, s := range r.Sides() {
				places[i] = append(places[i], &spot{region: s.Region(size)})
				for k, p := range places[i] {
					p.want = make([]byte, size)
					pathtest.Fill(p.want, uint64(10*i+k))
					if p.card != nil {
						load(t, p.region, p.want)
					} else {
						copy(p.region.All().Bytes(), p.want)
					}
					var err error // a part whose ends are on no page
					if p.export, err = s.Exports.Add(mem.Span{Region: p.region, Off: skip, Len: size - 2*skip},
						both); err != nil {
						t.Fatal(err)
					}
				}
			}
			notices := [2]int{}
			for i := range 60 {
				me := rng.IntN(2)
				s, local, remote := r.Sides()[me], places[me][rng.IntN(2)], places[1-me][rng.IntN(2)]
				if i < 4 { // each combination at least once
					local, remote = places[me][i&1], places[1-me][i>>1]
				}
				op := path.Op{Kind: []path.OpKind{path.Put, path.Get}[rng.IntN(2)], Notify: rng.IntN(3) == 0,
					Imm: uint64(i)}
				if op.Notify && rng.IntN(2) == 0 {
					op.Msg = []byte("here it is")
				}
				room := uint64(size - 2*skip)
				at, to := rng.Uint64N(room/2), rng.Uint64N(room/2) // blocks follow each other on both sides
				for range 1 + rng.IntN(4) {
					n := min(rng.Uint64N([]uint64{300, 5000, 200_000}[rng.IntN(3)]), room-max(at, to))
					op.Copies = append(op.Copies, path.Copy{Local: mem.Span{Region: local.region, Off: at, Len: n},
						Key: remote.export.Key(), RemoteOff: to})
					l, f := local.want[at:at+n], remote.want[skip+to:skip+to+n]
					if op.Kind == path.Put {
						copy(f, l)
					} else {
						copy(l, f)
					}
					at, to = at+n, to+n
				}
				s.MustDo(op)
				if op.Notify {
					notices[1-me]++
				}
				for k := range 2 {
					for j, p := range places[k] {
						if got := p.now(); !bytes.Equal(got, p.want) {
							at := 0
							for got[at] == p.want[at] {
								at++
							}
							t.Fatalf("operation %d (%v) of side %d: memory %d of side %d is wrong from byte %d", i,
								op.Kind, me, j, k, at)
						}
					}
				}
			}
			r.Drive("the notifications", func() bool {
				return len(r.A.Notices) == notices[0] && len(r.B.Notices) == notices[1]
			})
			for i, c := range cards {
				if n := c.Flushes(); (n > 0) != (places[i][0].region.Direct().Flush != nil) {
					t.Errorf("card %d: %d flushes", i, n)
				}
			}
			want := "by dma-buf"
			if c.card.Addr != 0 && (c.script == "absent dmabuf" || !c.card.DMABuf) {
				want = "by peer memory"
			}
			for i, p := range []*Path{r.a, r.b} {
				if err := p.ReachesRegion(places[i][0].region); err != nil {
					t.Error(err)
				}
				if err := p.ReachesDevice(places[1-i][0].export.Desc()); err != nil {
					t.Error(err)
				}
				if s := strings.Join(p.Explain(), "\n"); !strings.Contains(s, want) ||
					strings.Contains(s, "reaches none") {
					t.Errorf("no %q in:\n%s", want, s)
				}
				if n := p.Stats().BytesCopied; n != 0 {
					t.Errorf("%d bytes were copied", n)
				}
			}
		})
	}
}

// TestNotificationFlushes: what the peer wrote is seen by the card when its notification is
// reported, although the peer has not asked for anything yet, as it is asleep.
func TestNotificationFlushes(t *testing.T) {
	for _, msg := range []string{"", "by a message"} { // a write with a value, or a message behind it
		t.Run(msg, func(t *testing.T) { notificationFlushes(t, msg) })
	}
}

func notificationFlushes(t *testing.T, msg string) {
	w := newWorld(t, "")
	card := cardtest.New(t, cardtest.Options{DMABuf: true, Flush: true})
	theirs := card.Region("tensor", 64<<10)
	r := newAccelRig(t, w, bare, Options{}, 1)
	e := r.B.Export(theirs, both)
	local := r.A.Region(64 << 10)
	r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 1)}) // the export is known
	pathtest.Fill(local.All().Bytes(), 5)
	r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 64<<10), Notify: true, Msg: []byte(msg)})
	if bytes.Equal(card.Seen(theirs), local.All().Bytes()) {
		t.Fatal("the stand-in shows what was not flushed")
	}
	before := card.Flushes()
	for range 1000 {
		if r.B.Poll(); len(r.B.Notices) > 0 {
			break
		}
	}
	if len(r.B.Notices) != 1 || !bytes.Equal(card.Seen(theirs), local.All().Bytes()) || card.Flushes() != before+1 {
		t.Errorf("%d notifications, %d flushes: the card does not see what was notified", len(r.B.Notices),
			card.Flushes()-before)
	}
	r.Pump(50)
}

// TestPutsShareFlushes: puts that are complete together take one question, each ends once, and
// after its end it is seen. Exports that the peer only reads take none.
func TestPutsShareFlushes(t *testing.T) {
	w := newWorld(t, "")
	card := cardtest.New(t, cardtest.Options{DMABuf: true, Flush: true})
	theirs, shown := card.Region("written", 64<<10), card.Region("read", 64<<10)
	r := newAccelRig(t, w, bare, Options{}, 1)
	e, x := r.B.Export(theirs, both), r.B.Export(shown, path.Read)
	local := r.A.Region(64 << 10)
	pathtest.Fill(local.All().Bytes(), 6)
	r.A.MustDo(path.Op{Kind: path.Get, Copies: copyTo(local, x, 0, 1), Notify: true})
	r.Drive("the notification", func() bool { return len(r.B.Notices) == 1 })
	if n := card.Flushes(); n != 0 {
		t.Errorf("%d flushes for reading", n)
	}
	r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 1)})
	before := card.Flushes()
	var ops []path.Op
	const n = 64
	for i := range n {
		ops = append(ops, path.Op{Kind: path.Put, Copies: copyTo(local, e, i<<10, 1<<10)})
	}
	res := r.A.Post(ops...)
	r.Drive("the puts", func() bool {
		done := 0
		for i, x := range res {
			if x.Times > 0 {
				if x.Event.Err != nil || x.Event.Bytes != 1<<10 {
					t.Fatalf("put %d: %+v", i, x.Event)
				}
				if at := i << 10; !bytes.Equal(card.Seen(theirs)[at:at+1<<10], local.All().Bytes()[at:at+1<<10]) {
					t.Fatalf("put %d is done, and the card does not see it", i)
				}
				done++
			}
		}
		return done == n
	})
	if f := card.Flushes() - before; f < 1 || f > n/4 {
		t.Errorf("%d flushes for %d puts", f, n)
	}
}

// TestUnreachable: memory of a card that nothing reaches fails what names it, on either side, with
// what is missing; the rest goes on.
func TestUnreachable(t *testing.T) {
	for _, c := range []struct {
		name, script string
		card         cardtest.Options
		want         string
		flags        bool // the peer says in its hello that it may
	}{
		{"NoWay", "", cardtest.Options{}, "the stand-in card exports none", true},
		{"NoModule", "", cardtest.Options{Addr: 0x6a00_0000_0000}, "modprobe nvidia-peermem", true},
		{"Adapter", "absent dmabuf", cardtest.Options{DMABuf: true}, "mlx5", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, c.script)
			card := cardtest.New(t, c.card)
			mine, theirs := card.Region("mine", 4096), card.Region("theirs", 4096)
			r := newAccelRig(t, w, bare, Options{}, 1)
			host, e := r.A.Region(4096), r.B.Export(r.B.Region(4096), both)
			x := r.B.Export(theirs, both)
			for _, kind := range []path.OpKind{path.Put, path.Get} {
				if n, err := r.a.Post([]path.Op{{Kind: kind, Token: 1 << 40, Copies: copyTo(mine, e, 0,
					100)}}); n != 0 || !errors.Is(err, path.ErrUnreachable) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("operation %d of memory that nothing reaches: %d, %v", kind, n, err)
				}
			}
			if err := r.a.ReachesRegion(mine); !errors.Is(err, path.ErrUnreachable) ||
				!strings.Contains(err.Error(), c.want) {
				t.Errorf("%v", err)
			}
			if err := r.a.ReachesRegion(host); err != nil {
				t.Error(err)
			}
			if err := r.a.ReachesDevice(x.Desc()); (err == nil) != c.flags {
				t.Errorf("before it was tried: %v", err)
			}
			if ev := r.A.Do(path.Op{Kind: path.Put, Copies: copyTo(host, x, 0, 100)}); !errors.Is(ev.Err,
				path.ErrUnreachable) {
				t.Errorf("put into an export that nothing reaches: %v", ev.Err)
			}
			if err := r.a.ReachesDevice(x.Desc()); !errors.Is(err, path.ErrUnreachable) {
				t.Errorf("after it was tried: %v", err)
			}
			if s := strings.Join(r.b.Explain(), "\n"); !strings.Contains(s, c.want) ||
				!strings.Contains(s, `"theirs"`) {
				t.Errorf("its owner does not explain it:\n%s", s)
			}
			r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(host, e, 0, 100)})
		})
	}
}

// TestRegistrationFails: what was thought to be reached and is refused then fails its operation
// with the reason, and is refused at once afterwards.
func TestRegistrationFails(t *testing.T) {
	w := newWorld(t, "")
	card := cardtest.New(t, cardtest.Options{DMABuf: true})
	mine := card.Region("mine", 4096)
	r := newAccelRig(t, w, bare, Options{}, 1)
	e := r.B.Export(r.B.Region(4096), both)
	w.do(t, "fail ibv_reg_dmabuf_mr 1 ENOMEM")
	if ev := r.A.Do(path.Op{Kind: path.Put, Copies: copyTo(mine, e, 0, 100)}); !errors.Is(ev.Err,
		path.ErrUnreachable) || !strings.Contains(ev.Err.Error(), "window (BAR)") {
		t.Errorf("%v", ev.Err)
	}
	if err := r.a.ReachesRegion(mine); !errors.Is(err, path.ErrUnreachable) {
		t.Error(err)
	}
	if n := card.DMABufs(); n != 1 {
		t.Errorf("tried %d times", n)
	}
}

var errLost = errors.New("the card is lost")

// TestFlushFails: a get whose bytes the card does not take fails, and so does a peer's put; a
// notification that would not be true ends the path instead, for a reason that its side says.
func TestFlushFails(t *testing.T) {
	w := newWorld(t, "")
	mineCard, theirCard := cardtest.New(t, cardtest.Options{DMABuf: true, Flush: true}),
		cardtest.New(t, cardtest.Options{DMABuf: true, Flush: true})
	mine, theirs := mineCard.Region("mine", 4096), theirCard.Region("theirs", 4096)
	r := newAccelRig(t, w, bare, Options{}, 1)
	host, e, x := r.A.Region(4096), r.B.Export(r.B.Region(4096), both), r.B.Export(theirs, both)
	mineCard.Refuse.Store(&errLost)
	if ev := r.A.Do(path.Op{Kind: path.Get, Copies: copyTo(mine, e, 0, 100)}); !errors.Is(ev.Err, errLost) ||
		!strings.Contains(ev.Err.Error(), `"mine"`) || ev.Bytes != 0 {
		t.Errorf("%+v", ev)
	}
	r.A.MustDo(path.Op{Kind: path.Get, Copies: copyTo(host, e, 0, 100)})
	r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(mine, e, 0, 100)}) // reading it takes no flush
	theirCard.Refuse.Store(&errLost)
	if ev := r.A.Do(path.Op{Kind: path.Put, Copies: copyTo(host, x, 0, 100)}); !errors.Is(ev.Err,
		path.ErrUnreachable) || ev.Bytes != 0 {
		t.Errorf("%+v", ev)
	}
	if s := strings.Join(r.b.Explain(), "\n"); !strings.Contains(s, errLost.Error()) {
		t.Errorf("its owner does not say why:\n%s", s)
	}
	r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(host, e, 0, 100)})
	if r.A.Down != nil || r.B.Down != nil {
		t.Fatalf("%v, %v", r.A.Down, r.B.Down)
	}
	r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(host, x, 0, 100), Notify: true})
	r.Drive("the end", func() bool { return r.A.Down != nil && r.B.Down != nil })
	if !errors.Is(r.B.Down, errLost) || len(r.B.Notices) != 0 {
		t.Errorf("%v, %d notifications", r.B.Down, len(r.B.Notices))
	}
}

// TestFenceOfAccelerator: after the fence nothing of the peer lands in a card's memory, and it is
// no longer flushed for it.
func TestFenceOfAccelerator(t *testing.T) {
	for _, o := range []Options{{}, {NoWindows: true}} {
		t.Run(fmt.Sprint(o.NoWindows), func(t *testing.T) { fenceOfAccelerator(t, o) })
	}
}

func fenceOfAccelerator(t *testing.T, o Options) {
	w := newWorld(t, "")
	card := cardtest.New(t, cardtest.Options{DMABuf: true, Flush: true})
	theirs := card.Region("theirs", 4096)
	r := newAccelRig(t, w, bare, o, 1)
	host, x := r.A.Region(4096), r.B.Export(theirs, both)
	pathtest.Fill(host.All().Bytes(), 3)
	r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(host, x, 0, 4096)})
	if len(r.b.flushers) != 1 {
		t.Errorf("%d flushes are known", len(r.b.flushers))
	}
	r.B.Exports.Revoke(x)
	r.B.MustDo(path.Op{Kind: path.Fence, Key: x.Key()})
	if len(r.b.flushers) != 0 {
		t.Errorf("%d flushes are left", len(r.b.flushers))
	}
	was := bytes.Clone(card.Written(theirs))
	clear(host.All().Bytes())
	if ev := r.A.Do(path.Op{Kind: path.Put, Copies: copyTo(host, x, 0, 4096)}); !errors.Is(ev.Err, path.ErrRevoked) {
		t.Errorf("%v", ev.Err)
	}
	if !bytes.Equal(card.Written(theirs), was) {
		t.Error("something was written behind the fence")
	}
}

// TestFencedBeforeTheFlush: a put is in a card's memory, its export is fenced, and then comes the
// question for the flush. Where the put ends well, the card sees it; where the card does not take
// it, the put fails.
func TestFencedBeforeTheFlush(t *testing.T) {
	for _, takes := range []bool{true, false} {
		t.Run(fmt.Sprint(takes), func(t *testing.T) {
			w := newWorld(t, "")
			card := cardtest.New(t, cardtest.Options{DMABuf: true, Flush: true})
			theirs := card.Region("theirs", 4096)
			r := newAccelRig(t, w, bare, Options{}, 1)
			host, x := r.A.Region(4096), r.B.Export(theirs, both)
			r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(host, x, 0, 1)}) // the export is known
			pathtest.Fill(host.All().Bytes(), 3)
			whole := host.All().Bytes()[:4096]
			put := r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(host, x, 0, 4096)})[0]
			if !takes {
				card.Refuse.Store(&errLost)
			}
			r.B.Exports.Revoke(x)
			fence := r.B.Post(path.Op{Kind: path.Fence, Key: x.Key()})[0]
			if !bytes.Equal(card.Written(theirs)[:4096], whole) || put.Times > 0 {
				t.Fatal("the put is not where this test wants it")
			}
			r.Drive("both", func() bool { return put.Times > 0 && fence.Times > 0 })
			switch {
			case fence.Err != nil:
				t.Error(fence.Err)
			case takes && (put.Err != nil || !bytes.Equal(card.Seen(theirs)[:4096], whole)):
				t.Errorf("%v; the card sees the bytes: %t", put.Err, bytes.Equal(card.Seen(theirs)[:4096], whole))
			case !takes && !errors.Is(put.Err, path.ErrUnreachable):
				t.Errorf("the put ended with %v, and the card did not take it", put.Err)
			}
		})
	}
}

// TestAcceleratorAllocates: puts into a card's memory and gets into it, with all flushes, allocate
// nothing in steady state.
func TestAcceleratorAllocates(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithRace|testenv.WithInvariants, "counted in the plain build")
	r, put, get := accelOps(t)
	if n := testing.AllocsPerRun(200, func() { accelRun(t, r, put) }); n > 0 {
		t.Errorf("a put allocates %v times", n)
	}
	if n := testing.AllocsPerRun(200, func() { accelRun(t, r, get) }); n > 2 { // the registration cache's
		t.Errorf("a get allocates %v times", n)
	}
}

// accelOps is a pair with memory of cards on both sides, and operations between them that were done
// once.
func accelOps(t testing.TB) (r *rig, put, get path.Op) {
	w := newWorld(t, "")
	card := cardtest.New(t, cardtest.Options{DMABuf: true, Flush: true})
	mine, theirs := card.Region("mine", 64<<10), card.Region("theirs", 64<<10)
	r = newAccelRig(t, w, bare, Options{}, 1)
	x := r.B.Export(theirs, both)
	put, get = path.Op{Kind: path.Put, Copies: copyTo(mine, x, 0, 4096)},
		path.Op{Kind: path.Get, Copies: copyTo(mine, x, 0, 4096)}
	r.A.MustDo(put)
	r.A.MustDo(get)
	return r, put, get
}

// accelRun does one operation with nothing of the suite between.
func accelRun(t testing.TB, r *rig, op path.Op) {
	var events [8]path.Event
	op.Token = 1 << 50
	ops := [1]path.Op{op}
	if n, err := r.a.Post(ops[:]); n != 1 {
		t.Fatal(err)
	}
	for range 1000 {
		for _, e := range events[:r.a.Poll(events[:])] {
			if e.Kind == path.EventDone {
				if e.Err != nil {
					t.Fatal(e.Err)
				}
				return
			}
		}
		r.b.Poll(events[:0])
	}
	t.Fatal("it does not end")
}

// BenchmarkAccelerator is a put of 4 KiB from card to card with the flush that it takes; the
// stand-in copies 64 KiB of memory for each flush.
func BenchmarkAccelerator(b *testing.B) {
	r, put, get := accelOps(b)
	for name, op := range map[string]path.Op{"put": put, "get": get} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				accelRun(b, r, op)
			}
		})
	}
}

// TestBeyondOneRegistration: a region that is registered in parts, as large ones are, has its bytes
// where they belong on both sides of a seam.
func TestBeyondOneRegistration(t *testing.T) {
	w := newWorld(t, "")
	card := cardtest.New(t, cardtest.Options{DMABuf: true})
	mine := card.Region("large", granule+1<<20) // hardly any of it is ever touched
	r := newAccelRig(t, w, bare, Options{}, 1)
	e := r.B.Export(r.B.Region(4096), both)
	const at = granule - 700
	pathtest.Fill(card.Written(mine)[at:at+4096], 9)
	want := bytes.Clone(card.Written(mine)[at : at+4096])
	cp := []path.Copy{{Local: mem.Span{Region: mine, Off: at, Len: 4096}, Key: e.Key()}}
	r.A.MustDo(path.Op{Kind: path.Put, Copies: cp})
	if !bytes.Equal(e.Span().Bytes(), want) {
		t.Error("what was put is not what the card had")
	}
	clear(card.Written(mine)[at : at+4096])
	r.A.MustDo(path.Op{Kind: path.Get, Copies: cp})
	if !bytes.Equal(card.Written(mine)[at:at+4096], want) {
		t.Error("what was got is not in the card")
	}
}

// TestOneQuestion: while the peer has not answered it is not asked again, which it would take for a
// violation.
func TestOneQuestion(t *testing.T) {
	w := newWorld(t, "")
	card := cardtest.New(t, cardtest.Options{DMABuf: true, Flush: true})
	theirs := card.Region("theirs", 4096)
	r := newAccelRig(t, w, bare, Options{}, 1)
	x, local := r.B.Export(theirs, both), r.A.Region(4096)
	r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, x, 0, 1)})
	var res []*pathtest.Result
	for range 3 {
		res = append(res, r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, x, 0, 100)})...)
		for range 10 {
			r.A.Poll()
		}
	}
	if r.a.unseen.n != 2 || r.a.flushing.n != 1 {
		t.Fatalf("%d puts wait for the answer and %d for the next question", r.a.flushing.n, r.a.unseen.n)
	}
	r.Drive("the puts", func() bool { return res[0].Times+res[1].Times+res[2].Times == 3 })
	for _, p := range res {
		if p.Event.Err != nil {
			t.Error(p.Event.Err)
		}
	}
}
