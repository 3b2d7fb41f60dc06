package paired

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// fake is a contender whose runs return value(i) for the i-th run, all bytes verified. It writes
// its name into the log.
func fake(log *[]string, name string, value func(int) float64) Contender {
	n := 0
	return Contender{Name: name, Run: func(context.Context) (Sample, error) {
		n++
		if log != nil {
			*log = append(*log, name)
		}
		return Sample{Value: value(n - 1), Verified: 100}, nil
	}}
}

func constant(v float64) func(int) float64 { return func(int) float64 { return v } }

func plan(ours, theirs func(int) float64) Plan {
	p := Plan{Name: "row", Unit: GBs, Ours: fake(nil, "ours", ours)}
	if theirs != nil {
		p.Theirs = []Contender{fake(nil, "theirs", theirs)}
	}
	return p
}

func mustRun(t *testing.T, p Plan) *Row {
	t.Helper()
	x, err := Run(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func TestRunDefaults(t *testing.T) {
	warm := func(i int) float64 { return pick(i == 0, 1e6, 11) } // the warm-up must not count
	x := mustRun(t, plan(warm, constant(10)))
	s := x.Theirs[0]
	if len(x.Ours.Samples) != 20 || len(s.Samples) != 20 || x.Warmup != 1 || x.Ours.Stats.Max != 11 ||
		x.Ours.Verified != 2000 || x.Better != Higher {
		t.Errorf("%+v", x)
	}
	if q := s.Ratio; q.Verdict != Better || !about(q.Median, 1.1, 1e-12) || q.Target != 1 || q.Why != "" {
		t.Errorf("%+v", q)
	}
	if x := mustRun(t, Plan{Name: "alone", Unit: Nanoseconds, Warmup: -1, Pairs: 3, Goal: 6,
		Ours: fake(nil, "ours", constant(5))}); len(x.Ours.Samples) != 3 || x.Warmup != 0 ||
		x.Theirs != nil || x.Better != Lower || x.Goal.Verdict != Inconclusive {
		t.Errorf("alone: %+v", x)
	}
}

func TestRunVerdicts(t *testing.T) {
	noisy := func(i int) float64 { return 8 + 4*float64(i%2) }
	for name, c := range map[string]struct {
		plan Plan
		unit Unit
		want Verdict
	}{
		"faster":  {plan(constant(11), constant(10)), GBs, Better},
		"longer":  {plan(constant(11), constant(10)), Microseconds, Worse},
		"slower":  {plan(constant(9), constant(10)), GBs, Worse},
		"shorter": {plan(constant(9), constant(10)), Microseconds, Better},
		"noisy":   {plan(noisy, constant(10)), GBs, Inconclusive},
		"within the margin": {Plan{Margin: 0.2, Ours: fake(nil, "o", constant(11)),
			Theirs: []Contender{fake(nil, "t", constant(10))}}, GBs, Same},
		"target of 1.2": {Plan{Target: 1.2, Ours: fake(nil, "o", constant(11)),
			Theirs: []Contender{fake(nil, "t", constant(10))}}, GBs, Worse},
		"target of 0.8": {Plan{Target: 0.8, Ours: fake(nil, "o", constant(9)),
			Theirs: []Contender{fake(nil, "t", constant(10))}}, GBs, Better},
		"19 pairs": {Plan{Pairs: 19, Ours: fake(nil, "o", constant(11)),
			Theirs: []Contender{fake(nil, "t", constant(10))}}, GBs, Inconclusive},
		"21 pairs, no warmup": {Plan{Pairs: 21, Warmup: -1, Ours: fake(nil, "o", constant(11)),
			Theirs: []Contender{fake(nil, "t", constant(10))}}, GBs, Better},
	} {
		c.plan.Name, c.plan.Unit = name, c.unit
		x := mustRun(t, c.plan)
		if q := x.Theirs[0].Ratio; q.Verdict != c.want || (q.Why == "") != (c.want != Inconclusive) {
			t.Errorf("%s: %+v; want %s", name, q, c.want)
		}
	}
}

// In as many rounds as there are contenders everybody has each place once; the seed decides the
// rest.
func TestOrder(t *testing.T) {
	sequence := func(seed uint64, theirs int) []string {
		var log []string
		p := Plan{Name: "order", Unit: GBs, Pairs: 24, Warmup: -1, Seed: seed, Ours: fake(&log, "0", constant(1))}
		for i := range theirs {
			p.Theirs = append(p.Theirs, fake(&log, fmt.Sprint(i+1), constant(1)))
		}
		mustRun(t, p)
		return log
	}
	for _, n := range []int{2, 3, 4} {
		log := sequence(1, n-1)
		if len(log) != 24*n {
			t.Fatalf("%d contenders: %d runs", n, len(log))
		}
		places := map[string]int{}
		for i, name := range log {
			places[fmt.Sprintf("%s at %d", name, i%n)]++
		}
		for i := range n {
			for k := range n {
				if got := places[fmt.Sprintf("%d at %d", i, k)]; got != 24/n {
					t.Errorf("of %d contenders, %d ran %d times at place %d; want %d", n, i, got, k, 24/n)
				}
			}
		}
		for i := 0; i < len(log); i += n {
			if round := slices.Sorted(slices.Values(log[i : i+n])); len(slices.Compact(round)) != n {
				t.Errorf("round %d: %v", i/n, log[i:i+n])
			}
		}
	}
	if a, b := sequence(7, 1), sequence(7, 1); !slices.Equal(a, b) {
		t.Error("the same seed gave two orders")
	}
	if a, b := sequence(7, 1), sequence(8, 1); slices.Equal(a, b) {
		t.Error("two seeds gave the same order")
	}
}

// Pairs stay pairs: sample i of both sides is of one round, whatever the order in it.
func TestPairsStayTogether(t *testing.T) {
	x := mustRun(t, plan(func(i int) float64 {
		return float64(i + 1)
	}, func(i int) float64 { return 10 * float64(i+1) }))
	for i, v := range x.Ours.Samples {
		if x.Theirs[0].Samples[i] != 10*v {
			t.Fatalf("sample %d: %v beside %v", i, v, x.Theirs[0].Samples[i])
		}
	}
}

// Outliers are kept.
func TestOutliersAreKept(t *testing.T) {
	x := mustRun(t, plan(func(i int) float64 {
		return pick(i == 5, 1e9, 10)
	}, func(i int) float64 { return pick(i == 6, 1e-9, 10) }))
	if x.Ours.Stats.Max != 1e9 || x.Theirs[0].Stats.Min != 1e-9 || len(x.Ours.Samples) != 20 {
		t.Errorf("%+v, %+v", x.Ours.Stats, x.Theirs[0].Stats)
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := plan(constant(1), constant(1))
	n := 0
	p.Ours.Run = func(context.Context) (Sample, error) {
		if n++; n == 5 {
			cancel()
		}
		return Sample{1, 1, nil}, nil
	}
	x, err := Run(ctx, p)
	if x != nil || !errors.Is(err, context.Canceled) ||
		!strings.Contains(err.Error(), "row: ended after 4 rounds of 20") {
		t.Errorf("%+v, %v", x, err)
	}
	// One of theirs that fails because of ctx is not a failure of its own.
	ctx, cancel = context.WithCancel(t.Context())
	p = plan(constant(1), nil)
	p.Theirs = []Contender{{Name: "theirs", Run: func(ctx context.Context) (Sample, error) {
		cancel()
		return Sample{}, ctx.Err()
	}}}
	if x, err := Run(ctx, p); x != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("theirs: %+v, %v", x, err)
	}
}

var errBroken = errors.New("broken")

func failing(c Contender, when func(int) bool) Contender {
	run, n := c.Run, 0
	c.Run = func(ctx context.Context) (Sample, error) {
		if n++; when(n - 1) {
			return Sample{}, errBroken
		}
		return run(ctx)
	}
	return c
}

// One of theirs that fails in the middle costs its rounds; one that keeps failing is given up and
// the others go on; ours must not fail.
func TestFailures(t *testing.T) {
	p := plan(func(i int) float64 { return float64(i + 1) }, constant(10))
	p.Theirs[0] = failing(p.Theirs[0], func(i int) bool { return i == 4 || i == 9 })
	x := mustRun(t, p)
	if s := x.Theirs[0]; len(s.Samples) != 20 || s.Failures != 2 || x.Repeated != 2 || s.Error != "" || s.Ratio == nil {
		t.Errorf("twice: %+v", x)
	}

	p = plan(constant(10), constant(10))
	p.Theirs = append(p.Theirs, fake(nil, "others", constant(5)))
	p.Theirs[0] = failing(p.Theirs[0], func(i int) bool { return i > 8 })
	x = mustRun(t, p)
	a, b := x.Theirs[0], x.Theirs[1]
	if a.Samples != nil || a.Ratio != nil || a.Error != "given up after 3 failures, the last: broken" ||
		len(b.Samples) != 20 || b.Ratio.Verdict != Better || len(x.Ours.Samples) != 20 {
		t.Errorf("for good: %+v", x)
	}

	p = plan(constant(10), constant(10))
	p.Ours = failing(p.Ours, func(i int) bool { return i == 7 })
	if x, err := Run(t.Context(), p); x != nil || !errors.Is(err, errBroken) ||
		!strings.Contains(err.Error(), "row: round 7 of 20: ours: broken") {
		t.Errorf("ours: %v, %v", x, err)
	}
	for _, bad := range []float64{0, -1} {
		if x, err := Run(t.Context(), plan(constant(bad), nil)); x != nil || err == nil ||
			!strings.Contains(err.Error(), "expected a positive number") {
			t.Errorf("value %v: %v, %v", bad, x, err)
		}
		if x := mustRun(t, plan(constant(1), constant(bad))); x.Theirs[0].Error == "" {
			t.Errorf("their value %v: %+v", bad, x.Theirs[0])
		}
	}
}

// A run with unchecked bytes gives no verdict; ours fails the row. A reason excuses it.
func TestUnverified(t *testing.T) {
	blind := func(c Contender) Contender {
		run, n := c.Run, 0
		c.Run = func(ctx context.Context) (Sample, error) {
			s, err := run(ctx)
			if n++; n%5 == 0 {
				s.Verified = 0
			}
			return s, err
		}
		return c
	}
	p := plan(constant(12), constant(10))
	p.Ours = blind(p.Ours)
	x, err := Run(t.Context(), p)
	if !errors.Is(err, ErrFailed) || x == nil || x.Failed == "" || x.Theirs[0].Ratio.Verdict != Inconclusive ||
		x.Ours.Unverified != 4 {
		t.Errorf("ours: %+v, %v", x, err)
	}
	p = plan(constant(12), constant(10))
	p.Theirs[0] = blind(p.Theirs[0])
	if x, err := Run(t.Context(), p); err != nil || x.Theirs[0].Ratio.Verdict != Inconclusive ||
		!strings.Contains(x.Theirs[0].Ratio.Why, "of theirs were not verified") {
		t.Errorf("theirs: %+v, %v", x, err)
	}
	p.Theirs[0].Unchecked = "their program does not look"
	if x, err := Run(t.Context(), p); err != nil || x.Theirs[0].Ratio.Verdict != Better {
		t.Errorf("with a reason: %+v, %v", x, err)
	}
}

// A figure beyond the ceiling, ours or theirs, fails the row, and Run returns the row with the
// error.
func TestAboveCeiling(t *testing.T) {
	limit := func(v float64, enforce bool) *Ceiling {
		return &Ceiling{Method: "counting", Enforce: enforce, Measure: func(context.Context) (float64, error) {
			return v, nil
		}}
	}
	for name, c := range map[string]struct {
		unit         Unit
		ours, theirs float64
		ceiling      *Ceiling
		failed       string
	}{
		"below":            {GBs, 10, 9, limit(10, true), ""},
		"within the slack": {GBs, 10.4, 9, limit(10, true), ""},
		"above": {GBs, 10.6, 9, limit(10, true),
			"ours: 10.6 GB/s is above the ceiling, 10 GB/s (counting)"},
		"theirs above":         {GBs, 9, 10.6, limit(10, true), "theirs: 10.6 GB/s is above the ceiling"},
		"not enforced":         {GBs, 20, 9, limit(10, false), ""},
		"longer than the time": {Microseconds, 20, 30, limit(10, true), ""},
		"shorter":              {Microseconds, 9, 30, limit(10, true), "ours: 9 us is less than it can take, 10 us"},
	} {
		p := plan(constant(c.ours), constant(c.theirs))
		p.Unit, p.Ceiling = c.unit, c.ceiling
		x, err := Run(t.Context(), p)
		if x == nil || (c.failed == "") != (err == nil) || !strings.HasPrefix(x.Failed, c.failed) ||
			(c.failed == "") != (x.Failed == "") || len(x.Ceiling.Samples) != 20 {
			t.Errorf("%s: %+v, %v", name, x, err)
			continue
		}
		if c.failed != "" && (!errors.Is(err, ErrFailed) || x.Theirs[0].Ratio.Verdict != Inconclusive) {
			t.Errorf("%s: %v, %+v", name, err, x.Theirs[0].Ratio)
		}
	}
	p := plan(constant(1), nil)
	p.Ceiling = &Ceiling{Measure: func(context.Context) (float64, error) { return 0, errBroken }}
	if _, err := Run(t.Context(), p); !errors.Is(err, errBroken) {
		t.Errorf("a ceiling that fails: %v", err)
	}
}

// The gate and the ceiling come before each round, and they and theirs run while ours rests.
func TestAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log []string
		p := plan(nil, nil)
		p.Pairs, p.Warmup = 2, 1
		p.Ours, p.Theirs = fake(&log, "ours", constant(1)), []Contender{fake(&log, "theirs", constant(1))}
		p.Alone = func(f func() error) error {
			log = append(log, "(")
			err := f()
			log = append(log, ")")
			return err
		}
		load := fakeLoad(always(0))
		looks := 0
		p.Gate = &Gate{Load: func() (Load, error) {
			if looks++; looks%2 == 1 {
				log = append(log, "gate")
			}
			return load()
		}}
		p.Ceiling = &Ceiling{Measure: func(context.Context) (float64, error) {
			log = append(log, "ceiling")
			return 9, nil
		}}
		x := mustRun(t, p)
		s := strings.Join(log, " ")
		ab, ba := "( gate ceiling ) ours ( theirs )", "( gate ceiling ) ( theirs ) ours"
		if n := strings.Count(s, ab) + strings.Count(s, ba); n != 3 || len(s) != 3*len(ab)+2 {
			t.Errorf("%s", s)
		}
		if x.Gate == nil || x.Gate.Looks != 2 || len(x.Ceiling.Samples) != 2 {
			t.Errorf("%+v, %+v", x.Gate, x.Ceiling)
		}
	})
	// An error of Alone is that of the run, not of a contender.
	p := plan(constant(1), constant(1))
	p.Alone = func(f func() error) error { return errors.Join(f(), errBroken) }
	if x, err := Run(t.Context(), p); x != nil || !errors.Is(err, errBroken) {
		t.Errorf("%v, %v", x, err)
	}
}

// A machine that does not tell its load is measured all the same, and the row says so.
func TestGateFails(t *testing.T) {
	p := plan(constant(1), nil)
	p.Gate = &Gate{Load: func() (Load, error) { return Load{}, errBroken }}
	if x := mustRun(t, p); x.Gate == nil || x.Gate.Error != "broken" || x.Gate.Looks != 0 || len(x.Ours.Samples) != 20 {
		t.Errorf("%+v", x.Gate)
	}
}

// Time runs out: the rounds that were made count, without a verdict.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := plan(constant(1), constant(1))
		run := p.Ours.Run
		p.Ours.Run = func(ctx context.Context) (Sample, error) {
			<-time.After(time.Second)
			return run(ctx)
		}
		p.Limit = 5500 * time.Millisecond
		x := mustRun(t, p)
		if n := len(x.Ours.Samples); n != 5 || !strings.Contains(x.Note, "stopped after 5 rounds of 20") ||
			x.Theirs[0].Ratio.Verdict != Inconclusive {
			t.Errorf("%d samples, %q, %+v", n, x.Note, x.Theirs[0].Ratio)
		}
	})
}

func TestLatency(t *testing.T) {
	p := plan(constant(1), nil)
	p.Unit = Microseconds
	n := 0
	p.Ours.Run = func(context.Context) (Sample, error) {
		var s []float64
		for range 50 {
			s = append(s, float64(1+n%1000))
			n++
		}
		return Sample{1, 1, s}, nil
	}
	p.Warmup = -1
	x := mustRun(t, p)
	if l := x.Latency; l == nil || *l != (Latency{1000, 500, 900, 990, 999, 1000}) {
		t.Errorf("%+v", l)
	}
}

func TestBadPlans(t *testing.T) {
	good := fake(nil, "ours", constant(1))
	for name, p := range map[string]Plan{
		"no name":       {Unit: GBs, Ours: good},
		"no unit":       {Name: "x", Ours: good},
		"no run":        {Name: "x", Unit: GBs, Ours: Contender{Name: "ours"}},
		"no contender":  {Name: "x", Unit: GBs},
		"twice":         {Name: "x", Unit: GBs, Ours: good, Theirs: []Contender{good}},
		"pairs":         {Name: "x", Unit: GBs, Ours: good, Pairs: -1},
		"target":        {Name: "x", Unit: GBs, Ours: good, Target: -1},
		"margin":        {Name: "x", Unit: GBs, Ours: good, Margin: 1},
		"goal":          {Name: "x", Unit: GBs, Ours: good, Goal: -2},
		"unknown units": {Name: "x", Unit: "furlongs", Ours: good},
	} {
		if x, err := Run(t.Context(), p); err == nil {
			t.Errorf("%s passed: %+v", name, x)
		}
	}
}
