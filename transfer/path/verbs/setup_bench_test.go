package verbs

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/transfer/path"
)

// setups are operations on an export that is attached and regions that are registered, by name.
func setups(t testing.TB, r *rig) (names []string, ops map[string]path.Op) {
	local, e := r.A.Region(8<<20), r.B.Export(r.B.Region(8<<20), both)
	list := func(n, size int) (all []path.Copy) {
		for i := range n {
			all = append(all, copyTo(local, e, i*2*size, size)...)
		}
		return all
	}
	ops = map[string]path.Op{
		"put 8 B":       {Kind: path.Put, Copies: list(1, 8)},
		"put 4 KiB":     {Kind: path.Put, Copies: list(1, 4<<10)},
		"put+note 4KiB": {Kind: path.Put, Copies: list(1, 4<<10), Notify: true},
		"put 1 MiB":     {Kind: path.Put, Copies: list(1, 1<<20)},
		"get 1 MiB":     {Kind: path.Get, Copies: list(1, 1<<20)},
		"put 64x4 KiB":  {Kind: path.Put, Copies: list(64, 4<<10)},
		"notify":        {Kind: path.Notify, Imm: 1},
	}
	for n := range ops {
		names = append(names, n)
	}
	slices.Sort(names)
	return names, ops
}

// setUp posts an operation, and says how long that took; then it has the stand-in execute it and
// takes its end in.
func setUp(t testing.TB, r *rig, op *[1]path.Op) time.Duration {
	var events [16]path.Event
	begin := time.Now()
	n, err := r.a.Post(op[:])
	took := time.Since(begin)
	if n != 1 {
		t.Fatal(err)
	}
	for range 1000 {
		r.w.pumps(1000)
		done := false
		for _, e := range events[:r.a.Poll(events[:])] {
			if e.Err != nil {
				t.Fatal(e.Err)
			}
			done = done || e.Kind == path.EventDone
		}
		r.b.Poll(events[:])
		if done {
			return took
		}
	}
	t.Fatal("it does not end")
	return 0
}

// BenchmarkSetUp is what Post does for an operation whose memory is registered on both sides, until
// its requests are at the adapter; the stand-in executes them later, outside what is measured.
// post-ns is the mean and median-ns the median of one Post; ns/op is a whole operation.
func BenchmarkSetUp(b *testing.B) {
	w := newWorld(b, "")
	r := pumped(b, w, Options{})
	defer r.end()
	names, ops := setups(b, r)
	for _, name := range names {
		b.Run(strings.ReplaceAll(name, " ", ""), func(b *testing.B) {
			op := [1]path.Op{ops[name]}
			setUp(b, r, &op) // attaches and registers
			took := make([]time.Duration, 0, 1<<20)
			b.ReportAllocs()
			for b.Loop() {
				if d := setUp(b, r, &op); len(took) < cap(took) {
					took = append(took, d)
				}
			}
			var sum time.Duration
			for _, d := range took {
				sum += d
			}
			slices.Sort(took)
			b.ReportMetric(float64(sum)/float64(len(took)), "post-ns")
			b.ReportMetric(float64(took[len(took)/2]), "median-ns")
		})
	}
}

// TestSetUp: a Post whose memory is registered asks neither the library nor the kernel for anything
// but to take the requests, and allocates nothing.
func TestSetUp(t *testing.T) {
	setUpAsks(t)
}

func setUpAsks(t *testing.T) {
	w := newWorld(t, "")
	r := pumped(t, w, Options{})
	defer r.end()
	names, ops := setups(t, r)
	for _, name := range names {
		op := [1]path.Op{ops[name]}
		setUp(t, r, &op)
		setUp(t, r, &op)
		misses, hits := r.a.dom.local.Stats().Misses, r.a.dom.local.Stats().Hits
		before := map[string]int{}
		for _, f := range []string{"ibv_reg_mr", "ibv_dereg_mr", "ibv_bind_mw", "ibv_alloc_mw", "ibv_post_send"} {
			before[f] = w.counted(t, f)
		}
		const times = 20
		for range times {
			setUp(t, r, &op)
		}
		for f, n := range before {
			most := 0
			if f == "ibv_post_send" {
				most = 2 * times // one, and reports of the peer for what it takes in
			}
			if got := w.counted(t, f) - n; got > most {
				t.Errorf("%s: %s was called %d times for %d operations, expected at most %d", name, f, got, times, most)
			}
		}
		s := r.a.dom.local.Stats()
		if s.Misses != misses || op[0].Kind == path.Get && s.Hits == hits {
			t.Errorf("%s: %d registrations were made and %d found: expected hits alone", name, s.Misses-misses,
				s.Hits-hits)
		}
		if invariants.Enabled || testenv.Race {
			continue
		}
		least := 1e9
		for i := 0; i < 5 && least > 0; i++ { // the runtime allocates now and then by itself
			least = min(least, testing.AllocsPerRun(50, func() { setUp(t, r, &op) }))
		}
		if least > 0 {
			t.Errorf("%s allocates %v times", name, least)
		}
	}
}

// TestShortWrites: the tuner of the inline threshold learns of short writes and of nothing else,
// and what it says holds for requests.
func TestShortWrites(t *testing.T) {
	w := newWorld(t, "")
	r := pumped(t, w, Options{Tuning: Tuning{Piece: Bounds{1 << 20, 1 << 20}, Signal: Bounds{8, 8},
		Ahead: Bounds{1 << 20, 2 << 20}}})
	defer r.end()
	_, ops := setups(t, r)
	tn := &r.a.inlineTuner
	most := tn.knobs[0].max
	if most == 0 || tn.knobs[0].value != most {
		t.Fatalf("the threshold is %d of %d in the beginning", tn.knobs[0].value, most)
	}
	run := func(name string, n int) {
		op := [1]path.Op{ops[name]}
		for range n {
			setUp(t, r, &op)
		}
	}
	run("put 4 KiB", 40)
	run("get 1 MiB", 2)
	if tn.done != 0 || tn.felt != 0 {
		t.Fatalf("it was told of %d writes, none of which is short", tn.done)
	}
	const n = 10 * shortEvery
	run("put 8 B", n)
	if tn.done != n/shortEvery || tn.felt != 1 || r.a.short.under != 0 {
		t.Errorf("of %d short writes it was told of %d (sizes %b), and %d are under way", n, tn.done, tn.felt,
			r.a.short.under)
	}
	hits := r.a.dom.local.Stats().Hits
	run("put 8 B", 1)
	if now := r.a.dom.local.Stats().Hits; now != hits {
		t.Error("a write below the threshold asked for a registration")
	}
	tn.knobs[0].value = 0
	run("put 8 B", 1)
	if now := r.a.dom.local.Stats().Hits; now == hits {
		t.Error("a write above the threshold was put into its request")
	}
	// Beside bulk operations it learns nothing.
	before := tn.done
	r.a.short.skip = 0
	op, bulk := ops["put 8 B"], ops["put 1 MiB"]
	if n, err := r.a.Post([]path.Op{op, bulk}); n != 2 || !r.a.short.active {
		t.Fatal(n, err)
	}
	for n := 0; n < 2; {
		r.w.pumps(10)
		n += r.a.Poll(make([]path.Event, 8))
	}
	if tn.done != before || r.a.short.active {
		t.Error("it was told of a write that went beside a bulk operation")
	}
	// A broken queue pair ends them too.
	op.Token = 77
	if n, err := r.a.Post([]path.Op{op}); n != 1 {
		t.Fatal(err)
	}
	r.kill(t, r.a, 0)
	done := false
	var events [8]path.Event
	r.drive(t, func() bool {
		for _, e := range events[:r.a.Poll(events[:])] {
			done = done || e.Kind == path.EventDone && e.Token == 77 && e.Err == nil
		}
		return done
	})
	if r.a.replaced == 0 || r.a.short.under != 0 {
		t.Errorf("%d queue pairs were replaced, and %d short writes are under way", r.a.replaced, r.a.short.under)
	}
	got := r.a.tuned()
	if want := (tuned{piece: 1 << 20, signal: 8, ahead: 2 << 20}); got != want {
		t.Errorf("what it found out is %+v: expected %+v", got, want)
	}
	if s := strings.Join(r.a.Explain(), "\n"); !strings.Contains(s, fmt.Sprint(got)) ||
		!strings.Contains(s, "up to 0 bytes inline") {
		t.Errorf("it is not explained:\n%s", s)
	}
}
