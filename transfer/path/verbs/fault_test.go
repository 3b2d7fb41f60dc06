package verbs

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/pathtest"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// rig is a pair of ends with memory on both sides.
type rig struct {
	*pathtest.Pair
	t    testing.TB
	w    *world
	a, b *Path
}

func newRig(t testing.TB, w *world, o Options, qps int) *rig {
	t.Helper()
	o.Library = w.lib
	f := factory(o, qps)
	r := &rig{t: t, w: w}
	make := f.New
	f.New = func(t testing.TB, ca, cb setup.Config) (path.Path, path.Path) {
		pa, pb := make(t, ca, cb)
		r.a, r.b = pa.(*Path), pb.(*Path)
		return pa, pb
	}
	r.Pair = pathtest.NewPair(t, f, 0)
	return r
}

// copyTo is a block of n bytes between the start of two regions.
func copyTo(local *mem.Region, e *path.Export, off, n int) []path.Copy {
	return []path.Copy{{Local: mem.Span{Region: local, Off: uint64(off), Len: uint64(n)}, Key: e.Key(),
		RemoteOff: uint64(off)}}
}

const both = path.Read | path.Write

// kill puts a queue pair of a queue pair into error, as an adapter may do.
func (r *rig) kill(t testing.TB, p *Path, qp int) {
	t.Helper()
	r.w.do(t, fmt.Sprintf("kill 0 %#x", p.data[qp].qp.Num()))
}

// TestQueuePairsAreReplaced breaks the data connection in every way that an adapter has, from
// either side, with operations under way: all of them end well, each notification arrives exactly
// once, and the bytes are right.
func TestQueuePairsAreReplaced(t *testing.T) {
	for _, mode := range []string{"mode post", "mode wire; delay 30us; seed 3"} {
		for _, c := range []struct {
			name   string
			script string // before the operations
			kill   int    // 1: a's queue pair, 2: b's, 3: both
		}{
			{"KillHere", "", 1}, {"KillThere", "", 2}, {"KillBoth", "", 3},
			{"RemoteAccess", "status send 3 REM_ACCESS_ERR", 0},
			{"RetryExceeded", "status send 4 RETRY_EXC_ERR", 0},
			{"RemoteOperation", "status send 2 REM_OP_ERR", 0},
			{"LocalProtection", "status send 5 LOC_PROT_ERR", 0},
		} {
			for _, qps := range []int{1, 3} {
				t.Run(fmt.Sprintf("%s/%s/%d", mode, c.name, qps), func(t *testing.T) {
					w := newWorld(t, mode)
					r := newRig(t, w, Options{Tuning: Tuning{Piece: just(64 << 10)}}, qps)
					const size = 4 << 20
					local := r.A.Region(size)
					e := r.B.Export(r.B.Region(size), both)
					remote := e.Span().Bytes()
					// the export is known from here on
					r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 1)})
					pathtest.Fill(local.All().Bytes(), 5)
					if c.script != "" {
						w.do(t, c.script)
					}
					var ops []path.Op
					for i := range 20 {
						op := path.Op{Kind: path.Put, Copies: copyTo(local, e, i*(200<<10), 200<<10), Notify: i%3 != 0,
							Imm: uint64(i)}
						if i%2 == 0 {
							op.Copies[0].Local.Len = 100
						}
						if i%5 == 0 {
							op.Msg = []byte(fmt.Sprint("message ", i))
						}
						ops = append(ops, op)
					}
					want := 0
					for i := range ops {
						if ops[i].Notify {
							want++
						}
					}
					res := r.A.Post(ops[:10]...)
					if c.kill&1 != 0 {
						r.kill(t, r.a, 0)
					}
					if c.kill&2 != 0 {
						r.kill(t, r.b, qps-1)
					}
					res = append(res, r.A.Post(ops[10:]...)...)
					done := func() bool {
						return !slices.ContainsFunc(res, func(x *pathtest.Result) bool {
							return x.Times == 0
						}) && len(r.B.Notices) >= want
					}
					r.Drive("operations on a queue pair that broke", done)
					r.Pump(50)
					seen := map[uint64]int{}
					for _, n := range r.B.Notices {
						seen[n.Imm]++
					}
					for i := range ops {
						if res[i].Err != nil {
							t.Errorf("operation %d: %v", i, res[i].Err)
						}
						c := &ops[i].Copies[0]
						if string(remote[c.RemoteOff:c.RemoteOff+c.Local.Len]) != string(c.Local.Bytes()) {
							t.Errorf("operation %d: wrong bytes", i)
						}
						n := 0
						if ops[i].Notify {
							n = 1
						}
						if seen[uint64(i)] != n {
							t.Errorf("operation %d: %d notifications, expected %d", i, seen[uint64(i)], n)
						}
					}
					if r.a.replaced == 0 || r.b.replaced == 0 {
						t.Errorf("%d and %d queue pairs replaced: the fault did not happen", r.a.replaced, r.b.replaced)
					}
					// The new one carries the other direction too.
					back := r.B.Region(4096)
					e2 := r.A.Export(r.A.Region(4096), both)
					r.B.MustDo(path.Op{Kind: path.Put, Copies: copyTo(back, e2, 0, 4096)})
					r.B.MustDo(path.Op{Kind: path.Get, Copies: copyTo(back, e2, 0, 4096)})
				})
			}
		}
	}
}

// TestNothingLandsBehindAFence revokes an export at every point of a put that is cut into pieces,
// one request at a time. When the fence is over, nothing of it may change any more, whatever the
// adapter still has to do; and an operation on another export that was caught in the middle gets
// through.
func TestNothingLandsBehindAFence(t *testing.T) {
	for _, o := range []Options{{}, {NoWindows: true}} {
		for steps := range 24 {
			w := newWorld(t, "mode pump")
			o.Piece = just(64 << 10)
			r := pumped(t, w, o)
			const size = 1 << 20
			local, local2 := r.A.Region(size), r.A.Region(size)
			pathtest.Fill(local2.All().Bytes(), 9)
			e, other := r.B.Export(r.B.Region(size), both), r.B.Export(r.B.Region(size), both)
			remote := e.Span().Bytes()
			for _, x := range []*path.Export{e, other} {
				one := r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, x, 0, 1)})[0]
				r.drive(t, func() bool { return one.Times > 0 })
			}
			pathtest.Fill(local.All().Bytes(), 1)
			put := r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, size), Notify: true},
				path.Op{Kind: path.Put, Copies: copyTo(local2, other, 0, size), Notify: true, Imm: 7})
			w.pumps(steps)
			r.B.Exports.Revoke(e)
			fence := r.B.Post(path.Op{Kind: path.Fence, Key: e.Key()})[0]
			for fence.Times == 0 { // the poster does not poll, and at first nothing moves at the adapter
				if r.B.Poll() == 0 && w.pumps(1) == 0 {
					r.A.Poll()
				}
			}
			if fence.Err != nil {
				t.Fatal(fence.Err)
			}
			after := slices.Clone(remote)
			pathtest.Fill(local.All().Bytes()[:size/2], 2)
			pathtest.Fill(local.All().Bytes()[size/2:], 3)
			r.drive(t, func() bool { return put[0].Times > 0 && put[1].Times > 0 && len(r.B.Notices) > 0 })
			if string(after) != string(remote) {
				t.Fatalf("%+v, %d requests executed before: memory changed behind the fence", o, steps)
			}
			if err := put[0].Err; err == nil || !errors.Is(err, path.ErrRevoked) && !errors.Is(err, path.ErrKey) {
				if err != nil || pathtest.Verify(after, 1) >= 0 {
					t.Fatalf("%d requests before: the put into the revoked export: %v", steps, err)
				}
			}
			if put[1].Err != nil || pathtest.Verify(other.Span().Bytes(), 9) >= 0 {
				t.Fatalf("%d requests before: the other put: %v", steps, put[1].Err)
			}
			if n := len(r.B.Notices); n != 1 && put[0].Err != nil {
				t.Fatalf("%d requests before: %d notifications", steps, n)
			}
			if steps == 0 && r.a.replaced == 0 {
				t.Error("nothing was refused: the fence came too late to matter")
			}
			r.end()
		}
	}
}

// TestNothingLandsBehindClose: a get that is under way when its path is closed writes no byte of
// this side any more, whatever the adapter had done of it.
func TestNothingLandsBehindClose(t *testing.T) {
	for steps := range 6 {
		w := newWorld(t, "mode pump")
		r := pumped(t, w, Options{Tuning: Tuning{Piece: just(64 << 10)}})
		const size = 512 << 10
		local, e := r.A.Region(size), r.B.Export(r.B.Region(size), both)
		one := r.A.Post(path.Op{Kind: path.Get, Copies: copyTo(local, e, 0, 1)})[0]
		r.drive(t, func() bool { return one.Times > 0 })
		pathtest.Fill(e.Span().Bytes(), 5)
		r.A.Post(path.Op{Kind: path.Get, Copies: copyTo(local, e, 0, size)})
		if n := w.pumps(steps); n != steps {
			t.Fatalf("%d requests under way: expected %d", n, steps)
		}
		r.A.Close()
		after := slices.Clone(local.All().Bytes())
		if steps == 0 && slices.ContainsFunc(after, func(b byte) bool { return b != 0 }) {
			t.Fatal("nothing was executed, and memory has bytes")
		}
		for w.pumps(1000) > 0 {
		}
		if string(after) != string(local.All().Bytes()) {
			t.Fatalf("%d requests executed before: memory changed behind Close", steps)
		}
		r.end()
	}
}

// pumps has the stand-in execute up to n requests, and says how many it had.
func (w *world) pumps(n int) int { return int(int32(w.pump.Call1(uintptr(n)))) }

// pumped is newRig where the stand-in executes requests only on command.
func pumped(t testing.TB, w *world, o Options) *rig {
	t.Helper()
	w.do(t, "mode post")
	r := newRig(t, w, o, 1)
	w.do(t, "mode pump")
	t.Cleanup(func() { w.do(t, "mode post") })
	return r
}

// end closes both ends; the goodbyes are executed at once.
func (r *rig) end() {
	r.w.do(r.t, "mode post")
	r.A.Close()
	r.B.Close()
}

// drive executes requests and polls both sides until cond holds.
func (r *rig) drive(t testing.TB, cond func() bool) {
	t.Helper()
	r.Drive("requests that are pumped", func() bool { r.w.pumps(4); return cond() })
}

// TestDeliveredOnce breaks a queue pair after the peer has a notification and before this side
// knows: the peer's count says that it arrived, so it is not sent again.
func TestDeliveredOnce(t *testing.T) {
	for _, msg := range []string{"", "with a message"} {
		t.Run(msg, func(t *testing.T) { deliveredOnce(t, msg) })
	}
}

func deliveredOnce(t *testing.T, msg string) {
	w := newWorld(t, "")
	r := newRig(t, w, Options{}, 1)
	local := r.A.Region(4096)
	e := r.B.Export(r.B.Region(4096), both)
	r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 1)})
	w.do(t, "delay send 1 10s") // executed, and its completion stays away
	put := r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096), Notify: true, Imm: 5,
		Msg: []byte(msg)})[0]
	r.kill(t, r.a, 0)
	r.Drive("a put whose queue pair broke behind it", func() bool { return put.Times > 0 && len(r.B.Notices) > 0 })
	r.Pump(50)
	if put.Err != nil || len(r.B.Notices) != 1 || r.a.replaced == 0 {
		t.Errorf("message %q: %v, %d notifications, %d queue pairs replaced", msg, put.Err, len(r.B.Notices),
			r.a.replaced)
	}
}
