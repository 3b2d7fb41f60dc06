package paired

import (
	"strings"
	"testing"
)

func TestJudge(t *testing.T) {
	at := func(low, high float64) Interval { return Interval{low, high, Confidence} }
	for _, c := range []struct {
		i              Interval
		target, margin float64
		higher, lower  Verdict
	}{
		{at(1.01, 2), 1, 0, Better, Worse},
		{at(1, 2), 1, 0, Better, Worse}, // touches the target
		{at(0.99, 2), 1, 0, Inconclusive, Inconclusive},
		{at(0.5, 1), 1, 0, Worse, Better},
		{at(0.5, 0.99), 1, 0, Worse, Better},
		{at(1, 1), 1, 0, Same, Same},
		{at(0.96, 1.04), 1, 0.05, Same, Same},
		{at(1.01, 1.04), 1, 0.05, Same, Same},
		{at(1.01, 1.06), 1, 0.05, Inconclusive, Inconclusive},
		{at(1.06, 1.07), 1, 0.05, Better, Worse},
		{at(0.90, 0.95), 1, 0.05, Worse, Better},
		{at(0.94, 0.97), 1, 0.05, Inconclusive, Inconclusive},
		{at(0.96, 0.97), 0.95, 0, Better, Worse}, // another target
		{at(0.93, 0.94), 0.95, 0, Worse, Better},
		{at(2.2, 2.3), 2, 0.05, Better, Worse},
		{Interval{1.5, 1.6, 0.75}, 1, 0, Inconclusive, Inconclusive}, // too few samples
		{at(0.97, 0.98), 1, -1, Worse, Better},                       // a margin below 0 is none
	} {
		if got := Judge(c.i, c.target, c.margin, Higher); got != c.higher {
			t.Errorf("%+v, target %v, margin %v, higher is better: %v; want %v", c.i, c.target, c.margin, got, c.higher)
		}
		if got := Judge(c.i, c.target, c.margin, Lower); got != c.lower {
			t.Errorf("%+v, target %v, margin %v, lower is better: %v; want %v", c.i, c.target, c.margin, got, c.lower)
		}
	}
}

// A verdict takes 20 pairs and no doubt; one that is not given says why.
func TestRatioJudge(t *testing.T) {
	for _, c := range []struct {
		name    string
		low     float64
		margin  float64
		pairs   int
		doubt   string
		want    Verdict
		because string
	}{
		{"clear", 1.1, 0, 20, "", Better, ""},
		{"19 pairs", 1.1, 0, 19, "", Inconclusive, "19 pairs; a verdict takes 20"},
		{"straddling", 0.9, 0, 20, "", Inconclusive, "contains the target 1"},
		{"across the margin", 1.04, 0.05, 20, "", Inconclusive, "reaches across a limit, 0.9524 or 1.05"},
		{"doubt", 1.1, 0, 20, "not verified", Inconclusive, "not verified"},
	} {
		r := Ratio{Median: 1.15, Interval: Interval{c.low, 1.2, Confidence}, Target: 1, Margin: c.margin}
		r.judge(c.pairs, Higher, c.doubt)
		if r.Verdict != c.want || !strings.Contains(r.Why, c.because) || (r.Why == "") != (c.because == "") {
			t.Errorf("%s: %s, %q", c.name, r.Verdict, r.Why)
		}
	}
}

func TestGoal(t *testing.T) {
	for _, c := range []struct {
		i             Interval
		higher, lower Verdict
	}{
		{Interval{16, 17, 0.96}, Met, Inconclusive},
		{Interval{15, 16, 0.96}, Inconclusive, Met},
		{Interval{15, 15.9, 0.96}, Missed, Met},
		{Interval{16.1, 17, 0.96}, Met, Missed},
		{Interval{18, 19, 0.75}, Inconclusive, Inconclusive},
	} {
		for better, want := range map[Direction]Verdict{Higher: c.higher, Lower: c.lower} {
			g := Goal{Value: 16}
			if g.judge(c.i, better); g.Verdict != want {
				t.Errorf("%+v, %s is better: %s; want %s", c.i, better, g.Verdict, want)
			}
		}
	}
}

func TestUnits(t *testing.T) {
	for u, want := range map[Unit]Direction{GBs: Higher, MopsPerSec: Higher, Nanoseconds: Lower, Microseconds: Lower,
		Milliseconds: Lower, "furlongs": ""} {
		if got := u.Better(); got != want {
			t.Errorf("%s: %q", u, got)
		}
	}
}
