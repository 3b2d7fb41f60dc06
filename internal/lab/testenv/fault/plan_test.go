package fault

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestPlanReadsBack(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	number := func() Number { return Number{1 + r.Uint64N(1000), r.IntN(2) == 0} }
	for range 500 {
		p := Plan{Seed: r.Uint64()}
		for range r.IntN(4) {
			x := Rule{Kind: Kind(1 + r.IntN(int(kinds)-1)), Dir: Direction(1 + r.IntN(3)), Conn: r.IntN(3),
				N: r.Uint64N(3)}
			if r.IntN(2) == 0 {
				x.At = number()
			}
			if r.IntN(2) == 0 {
				x.Every = number()
			}
			if r.IntN(2) == 0 {
				x.For = time.Duration(r.IntN(1e9))
			}
			p.Rules = append(p.Rules, x)
		}
		q, err := Parse(p.String())
		if err != nil || !reflect.DeepEqual(p, q) {
			t.Fatalf("%q reads back as %q, %v", p, q, err)
		}
	}
	for u, kinds := range sensible {
		for seed := range uint64(50) {
			p := Random(u, seed, 1000, kinds...)
			if q, err := Parse(p.String()); err != nil || !reflect.DeepEqual(p, q) {
				t.Fatalf("%q reads back as %q, %v", p, q, err)
			}
		}
	}
	for u, kinds := range sensible {
		for seed := range uint64(200) {
			if err := Random(u, seed, 1000, kinds...).Check(u); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestBadPlans(t *testing.T) {
	for text, want := range map[string]string{
		"explode":          "expected one of cut, stall",
		"seed=x":           "seed",
		"seed=1; cut at=y": `part 2: "at=y"`,
		"cut sideways":     "expected up, down, both",
		"cut at=~0":        "mean of 1",
		"delay for=5":      "missing unit",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q in it", text, err, want)
		}
	}
	for text, u := range map[string]Unit{"reorder": Bytes, "halfclose": Operations, "delay": Bytes, "fail": Bytes,
		"cut down": Operations, "cut conn=-1": Bytes} {
		p := parse(t, text)
		if err := p.Check(u); err == nil {
			t.Errorf("%q makes sense for unit %d?", text, u)
		}
	}
	if err := (Plan{Rules: []Rule{{Kind: Cut, Every: Number{Random: true}}}}).Check(Bytes); err == nil {
		t.Error("a random number without a mean was accepted")
	}
}

// events plays a script over n units that come in pieces of random size.
func events(p Plan, u Unit, conn int, dir Direction, n uint64, r *rand.Rand) []Event {
	s := p.script(u, conn, dir)
	var out []Event
	for s.pos < n {
		piece := 1 + r.Uint64N(min(n-s.pos, 700))
		for piece > 0 {
			k, e, ok := s.step(piece)
			if ok {
				out = append(out, e)
			}
			piece -= k
		}
	}
	return out
}

// The same seed makes the same faults at the same places, however the traffic is cut into pieces,
// and another seed others.
func TestSameSeedSameFaults(t *testing.T) {
	r := rand.New(rand.NewPCG(3, uint64(time.Now().UnixNano())))
	differ := 0
	for seed := range uint64(100) {
		p := Random(Bytes, seed, 10_000, Stall, Delay, Short, Corrupt, Drop, Duplicate)
		for i := range p.Rules {
			p.Rules[i].Every = About(100)
		}
		for _, dir := range []Direction{Up, Down} {
			a, b := events(p, Bytes, 1, dir, 10_000, r), events(p, Bytes, 1, dir, 10_000, r)
			if !reflect.DeepEqual(a, b) {
				t.Fatalf("plan %q: two runs differ:\n%v\n%v", p, a, b)
			}
			q := p
			q.Seed++
			if len(a) > 0 && !reflect.DeepEqual(a, events(q, Bytes, 1, dir, 10_000, r)) {
				differ++
			}
			if c := events(p, Bytes, 2, dir, 10_000, r); len(a) > 0 && reflect.DeepEqual(a, c) {
				t.Errorf("plan %q: connections 1 and 2 get the same random faults", p)
			}
		}
	}
	if differ == 0 {
		t.Error("seeds make no difference")
	}
}

func TestPositions(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for text, want := range map[string]string{
		"cut at=5":                  "[cut up at 5]",
		"cut":                       "[cut up at 0]",
		"stall every=30 for=1s":     "[stall up at 30 for 1s stall up at 60 for 1s stall up at 90 for 1s]",
		"short at=10 every=40":      "[short up at 10 short up at 50 short up at 90]",
		"cut down at=5":             "[]",
		"cut conn=2":                "[]",
		"drop at=7; duplicate at=7": "[drop up at 7 duplicate up at 7]",
		"refuse":                    "[]",
	} {
		if got := fmt.Sprint(events(parse(t, text), Bytes, 1, Up, 100, r)); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	gaps, n := uint64(0), 0
	for _, e := range events(parse(t, "drop every=~100"), Bytes, 1, Up, 1_000_000, r) {
		gaps, n = e.Pos, n+1
	}
	if mean := gaps / uint64(n); mean < 80 || mean > 120 {
		t.Errorf("gaps of ~100 have the mean %d", mean)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("seed=7; cut up at=4096; delay down every=~1000 for=2ms; corrupt conn=2 n=3")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := Parse(s)
		if err != nil {
			return
		}
		q, err := Parse(p.String())
		if err != nil || p.String() != q.String() {
			t.Errorf("%q is %q is %q, %v", s, p, q, err)
		}
		if p.Check(Bytes) == nil {
			events(p, Bytes, 1, Up, 1000, rand.New(rand.NewPCG(1, 1)))
		}
	})
}
