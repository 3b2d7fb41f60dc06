package paired

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// fakeLoad is a machine on which others use busy(t) of all processors' time at time t since start.
// Time is virtual.
func fakeLoad(busy func(time.Duration) float64) func() (Load, error) {
	start, last := time.Now(), time.Duration(0)
	l := Load{Total: time.Hour, Others: time.Minute}
	return func() (Load, error) {
		now := time.Since(start)
		l.Total += now - last
		l.Others += time.Duration(busy(last) * float64(now-last))
		last = now
		return l, nil
	}
}

func always(part float64) func(time.Duration) float64 {
	return func(time.Duration) float64 { return part }
}

func until(t time.Duration, part float64) func(time.Duration) float64 {
	return func(now time.Duration) float64 { return pick(now < t, part, 0) }
}

func TestGate(t *testing.T) {
	const ms = time.Millisecond
	cpus := float64(runtime.NumCPU())
	for name, c := range map[string]struct {
		gate    Gate
		busy    func(time.Duration) float64
		took    time.Duration
		waited  time.Duration
		outcome float64 // processors
	}{
		"idle":                    {Gate{}, always(0), 50 * ms, 0, 0},
		"idle enough":             {Gate{Busy: 0.6}, always(0.5 / cpus), 50 * ms, 0, 0.5},
		"busy for a while":        {Gate{}, until(200*ms, 1), 250 * ms, 200 * ms, 0},
		"busy for ever":           {Gate{}, always(1), 1050 * ms, time.Second, cpus},
		"busy, little time":       {Gate{MaxWait: 120 * ms}, always(1), 150 * ms, 100 * ms, cpus},
		"busy, nobody waits":      {Gate{Budget: -1}, always(1), 50 * ms, 0, cpus},
		"busy, budget spent soon": {Gate{Budget: 60 * ms}, always(1), 100 * ms, 50 * ms, cpus},
		"another window":          {Gate{Window: 10 * ms}, until(20*ms, 1), 30 * ms, 20 * ms, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := &c.gate
			g.Load = fakeLoad(c.busy)
			start := time.Now()
			l, err := g.wait(t.Context())
			if took := time.Since(start); err != nil || took != c.took || l.waited != c.waited ||
				!about(l.busy, c.outcome, 1e-9) {
				t.Errorf("%s: took %v, %+v, %v; want %v, waited %v, %v processors busy", name, took, l, err, c.took,
					c.waited, c.outcome)
			}
		})
	}
}

// The budget is for all rounds together.
func TestGateBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &Gate{Load: fakeLoad(always(1)), MaxWait: 400 * time.Millisecond, Budget: time.Second}
		var waits []time.Duration
		for range 5 {
			l, err := g.wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			waits = append(waits, l.waited/time.Millisecond)
		}
		if got := fmt.Sprint(waits); got != "[400ns 400ns 200ns 0s 0s]" {
			t.Errorf("waits of %v ms", got)
		}
	})
}

func TestGateEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 70*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := (&Gate{Load: fakeLoad(always(1))}).wait(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 70*time.Millisecond {
			t.Errorf("cancelled: %v after %v", err, time.Since(start))
		}
		broken := errors.New("broken")
		if _, err := (&Gate{Load: func() (Load, error) {
			return Load{}, broken
		}}).wait(t.Context()); !errors.Is(err, broken) {
			t.Errorf("broken source: %v", err)
		}
		if _, err := (&Gate{Load: func() (Load, error) {
			return Load{}, nil
		}}).wait(t.Context()); !errors.Is(err, errNoTime) {
			t.Errorf("a clock that stands still: %v", err)
		}
	})
}

func TestParseStat(t *testing.T) {
	l, err := parseStat("cpu  100 20 30 400 50 1 2 3 90 10\ncpu0 1 2 3 4\n")
	if err != nil || l.Total != 606*tick || l.Others != 156*tick {
		t.Errorf("%+v, %v", l, err)
	}
	if l, err := parseStat("cpu 1 2 3 4"); err != nil || l.Total != 10*tick || l.Others != 6*tick {
		t.Errorf("old kernel: %+v, %v", l, err)
	}
	for _, bad := range []string{"", "cpu0 1 2 3 4", "cpu 1 2 3", "cpu 1 2 x 4", "cpu 1 -2 3 4", "intr 1 2 3 4",
		"cpu 1 2 3 99999999999999999999"} {
		if _, err := parseStat(bad); err == nil || !strings.Contains(err.Error(), "/proc/stat") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// On the real machine: time passes, and others do not use more than there is.
func TestSystemLoad(t *testing.T) {
	a, err := SystemLoad()
	if err != nil {
		t.Fatal(err)
	}
	l, err := (&Gate{Budget: -1}).wait(t.Context())
	if err != nil || l.busy < 0 || l.busy > float64(runtime.NumCPU()) {
		t.Errorf("%+v, %v", l, err)
	}
	b, err := SystemLoad()
	if err != nil || b.Total <= a.Total {
		t.Errorf("%+v, then %+v, %v", a, b, err)
	}
}

func TestGateMethodAndLog(t *testing.T) {
	if m := (&Gate{}).Method(); m != (GateMethod{0.25, 0.05, 1, 30}) {
		t.Errorf("defaults: %+v", m)
	}
	if m := (&Gate{Busy: 1, Window: time.Second, MaxWait: 2 * time.Second, Budget: -1}).Method(); m != (GateMethod{1, 1,
		2, 0}) {
		t.Errorf("set: %+v", m)
	}
	g := logOf([]look{{0.5, time.Second}, {0.1, 0}, {1.5, 2 * time.Second}}, nil)
	if *g != (GateLog{Looks: 3, Median: 0.5, Max: 1.5, Waited: 3}) {
		t.Errorf("log: %+v", g)
	}
}
