package fault

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/pathtest"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

func parse(t testing.TB, s string) Plan {
	t.Helper()
	p, err := Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// wrapped makes memory paths whose first end is under a plan, and the second too.
func wrapped(t testing.TB, a, b Plan) (pathtest.Factory, *[2]*Path) {
	var last [2]*Path
	return pathtest.Factory{Large: 4 << 20, New: func(t testing.TB, ca, cb setup.Config) (path.Path, path.Path) {
		pa, pb, err := pathtest.NewMemory(ca, cb)
		if err != nil {
			t.Fatal(err)
		}
		if last[0], err = NewPath(pa, a, 1); err != nil {
			t.Fatal(err)
		}
		if last[1], err = NewPath(pb, b, 2); err != nil {
			t.Fatal(err)
		}
		return last[0], last[1]
	}}, &last
}

// The contract holds under everything that does not break it on purpose.
func TestConformance(t *testing.T) {
	for _, text := range []string{
		"seed=2; delay every=~5 n=3; short every=~50 n=4; reorder every=~40 n=2",
		"seed=4; stall every=~300 for=200us; reorder every=~9 n=5; delay every=~400 for=100us",
	} {
		t.Run(text, func(t *testing.T) {
			f, _ := wrapped(t, parse(t, text), parse(t, text))
			pathtest.Run(t, f)
		})
	}
}

// side is one end with room for one operation's bytes.
func pairOf(t *testing.T, plan string) (*pathtest.Pair, *Path,
	func(kind path.OpKind, seed uint64) (path.Op, []byte, []byte)) {
	t.Helper()
	f, ends := wrapped(t, parse(t, plan), Plan{})
	p := pathtest.NewPair(t, f, 0)
	const n = 4096
	return p, ends[0], func(kind path.OpKind, seed uint64) (path.Op, []byte, []byte) {
		local, remote := p.A.Region(n), p.B.Region(n)
		pathtest.Fill(local.All().Bytes(), seed)
		if kind == path.Get {
			pathtest.Fill(remote.All().Bytes(), seed+1)
		}
		key := p.B.Export(remote, path.Read|path.Write).Key()
		return path.Op{Kind: kind, Copies: []path.Copy{{Local: local.All(), Key: key}}}, local.All().Bytes(),
			remote.All().Bytes()
	}
}

func TestFailedOperationsAreNotCarriedOut(t *testing.T) {
	p, x, op := pairOf(t, "fail at=1; fail at=3")
	for i := range 5 {
		o, local, remote := op(path.Put, uint64(10*i))
		o.Notify = true
		e := p.A.Do(o)
		if i == 1 || i == 3 {
			if !errors.Is(e.Err, ErrInjected) || !errors.Is(e.Err, path.ErrIntegrity) {
				t.Errorf("operation %d: error %v", i, e.Err)
			}
			if pathtest.Verify(remote, uint64(10*i)) < 0 {
				t.Errorf("operation %d failed, but its bytes are there", i)
			}
		} else if e.Err != nil || string(local) != string(remote) {
			t.Errorf("operation %d: %v", i, e.Err)
		}
	}
	if n := len(p.B.Notices); n != 3 {
		t.Errorf("%d notifications of 3 operations that succeeded", n)
	}
	if s := x.Stats(); s.OpsPosted != 5 || s.OpsDone != 3 || s.OpsFailed != 2 {
		t.Errorf("stats %+v", s)
	}
	if l := x.Log(); l.Counts[Fail] != 2 || l.Up != 5 {
		t.Errorf("log %+v", l)
	}
}

func TestPathGoesDownAtAnOperation(t *testing.T) {
	p, _, op := pairOf(t, "delay n=1000000; cut at=2")
	a, _, _ := op(path.Put, 1)
	b, _, _ := op(path.Put, 2)
	c, _, _ := op(path.Put, 3)
	r := p.A.Post(a, b)
	p.Pump(10)
	if r[0].Times != 0 || r[1].Times != 1 {
		t.Fatalf("%d and %d completions before the cut: expected that the first is held back", r[0].Times, r[1].Times)
	}
	e := p.A.Post(c)[0]
	p.Drive("the end of the path", func() bool { return p.A.Down != nil && p.B.Down != nil })
	if r[0].Times != 1 || r[0].Err != nil || e.Times != 1 || !errors.Is(e.Err, path.ErrDown) {
		t.Errorf("after the cut: %+v, %+v", r[0], e)
	}
}

func TestReorderedCompletions(t *testing.T) {
	_, x, _ := pairOf(t, "reorder n=2 for=1h; reorder at=3 n=9 for=1h")
	var ops []path.Op
	for i := range 4 {
		ops = append(ops, path.Op{Kind: path.Notify, Token: uint64(i)})
	}
	if n, err := x.Post(ops); n != len(ops) {
		t.Fatal(err)
	}
	var order []uint64
	var ev [16]path.Event
	for len(order) < len(ops) {
		for _, e := range ev[:x.Poll(ev[:])] {
			order = append(order, e.Token)
		}
	}
	// Two pass the first; none is left to pass the last, which must not wait.
	if !slices.Equal(order, []uint64{1, 2, 0, 3}) {
		t.Errorf("order of completions %v", order)
	}
}

func TestRefusedPosts(t *testing.T) {
	_, x, _ := pairOf(t, "refuse at=2; delay n=10")
	ops := make([]path.Op, 5)
	for i := range ops {
		ops[i] = path.Op{Kind: path.Notify, Token: uint64(i)}
	}
	n, err := x.Post(ops)
	if n != 2 || !errors.Is(err, path.ErrFull) || !errors.Is(err, ErrInjected) {
		t.Fatalf("Post = %d, %v", n, err)
	}
	if n, err = x.Post(ops[2:]); n != 3 || err != nil {
		t.Fatalf("second Post = %d, %v", n, err)
	}
	var ev [16]path.Event
	for seen := 0; seen < 5; {
		seen += x.Poll(ev[:])
	}
	// Without anything outstanding a refusal would leave its poster waiting for ever.
	_, y, _ := pairOf(t, "refuse")
	if n, err := y.Post(ops[:1]); n != 1 || err != nil {
		t.Fatalf("Post on an idle path = %d, %v", n, err)
	}
	for y.Poll(ev[:]) == 0 {
	}
}

func TestStallByHand(t *testing.T) {
	p, x, op := pairOf(t, "")
	o, _, _ := op(path.Put, 1)
	x.Stall()
	r := p.A.Post(o)[0]
	p.Pump(100)
	if r.Times != 0 {
		t.Error("a stalled path reports completions")
	}
	if x.Arm() {
		t.Error("a stalled path has something to do")
	}
	x.Resume()
	p.Drive("the completion after the stall", func() bool { return r.Times == 1 })
}

// A completion that waits for its time wakes a sleeping owner.
func TestDelayWakes(t *testing.T) {
	_, x, _ := pairOf(t, "delay for=20ms; stall at=1 for=20ms")
	w, err := path.NewWaiter()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ctx := t.Context()
	for i := range 2 {
		if n, err := x.Post([]path.Op{{Kind: path.Notify, Token: uint64(i)}}); n != 1 {
			t.Fatal(err)
		}
		var ev [4]path.Event
		start := time.Now()
		n, err := w.Wait(ctx, x, ev[:], 0)
		if n != 1 || err != nil || ev[0].Token != uint64(i) {
			t.Fatalf("Wait = %d %+v, %v", n, ev[0], err)
		}
		if d := time.Since(start); d < 15*time.Millisecond {
			t.Errorf("operation %d was not held back: %v", i, d)
		}
	}
}

// The kinds that break the contract do break it, and package pathtest's rules would notice.
func TestBrokenOnPurpose(t *testing.T) {
	counts := map[string]int{"drop at=1": 2, "duplicate at=1": 4}
	for text, want := range counts {
		f, ends := wrapped(t, parse(t, text), Plan{})
		pa, pb := f.New(t, setup.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)},
			setup.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)})
		if n, err := pa.Post([]path.Op{{Kind: path.Notify, Token: 1}, {Kind: path.Notify, Token: 2},
			{Kind: path.Notify, Token: 3}}); n != 3 {
			t.Fatal(err)
		}
		done := 0
		var ev [16]path.Event
		for range 100 {
			done += pa.Poll(ev[:])
			pb.Poll(ev[:])
		}
		if done != want {
			t.Errorf("%s: %d completions of 3 operations, want %d", text, done, want)
		}
		pa.Close()
		pb.Close()
		if c := ends[0].Log().Counts; c.Total() != 1 {
			t.Errorf("%s: %v", text, c)
		}
	}
	p, _, op := pairOf(t, "corrupt at=1")
	for i := range 3 {
		o, local, _ := op(path.Get, 5)
		if e := p.A.Do(o); e.Err != nil {
			t.Fatal(e.Err)
		}
		if bad := pathtest.Verify(local, 6); (bad >= 0) != (i == 1) {
			t.Errorf("get %d: first wrong byte %d", i, bad)
		}
	}
}

func TestPlanOfAPathIsChecked(t *testing.T) {
	for _, text := range []string{"halfclose up", "delay up", "fail down"} {
		a, b := setup.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)},
			setup.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)}
		pa, pb, err := pathtest.NewMemory(a, b)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := NewPath(pa, parse(t, text), 1); err == nil {
			t.Errorf("a path was put under %q", text)
		}
		pb.Close()
	}
}
