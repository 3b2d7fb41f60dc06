package paired

import (
	"fmt"
	"strings"
)

// MinPairs is the number of rounds below which no verdict is given, and how many there are unless a
// plan says otherwise.
const MinPairs = 20

// Unit is what a row's values are in.
type Unit string

// Units of rows.
const (
	GBs          Unit = "GB/s" // 10⁹ bytes of payload per second
	Nanoseconds  Unit = "ns"
	Microseconds Unit = "us"
	Milliseconds Unit = "ms"
	MopsPerSec   Unit = "Mop/s" // 10⁶ operations per second
)

// units says of each which direction is better.
var units = map[Unit]Direction{GBs: Higher, MopsPerSec: Higher, Nanoseconds: Lower, Microseconds: Lower,
	Milliseconds: Lower}

// Better is the direction in which values of the unit are better, "" for a unit that is not known.
func (u Unit) Better() Direction { return units[u] }

// Direction says whether larger or smaller values are the better ones.
type Direction string

// Directions.
const (
	Higher Direction = "higher"
	Lower  Direction = "lower"
)

// Verdict is what an interval says.
type Verdict string

// Better and Worse mean that the whole interval of a ratio lies beyond its target by more than the
// margin, Same that it lies within the margin. Met and Missed are what an absolute goal gets.
// Inconclusive is everything else: the interval contains the limit, or there is too little to judge
// by.
const (
	Better       Verdict = "better"
	Worse        Verdict = "worse"
	Same         Verdict = "same"
	Met          Verdict = "met"
	Missed       Verdict = "missed"
	Inconclusive Verdict = "inconclusive"
)

// Judge compares the interval of a ratio with its target, whose band reaches from target/(1+margin)
// to target·(1+margin). With a margin of 0 an interval that touches the target from the better side
// is Better. Margins below 0 count as 0.
func Judge(i Interval, target, margin float64, better Direction) Verdict {
	low, high := band(target, margin)
	switch {
	case i.Level < Confidence:
		return Inconclusive
	case i.Low >= low && i.High <= high:
		return Same
	case i.Low >= high:
		return pick(better == Higher, Better, Worse)
	case i.High <= low:
		return pick(better == Higher, Worse, Better)
	}
	return Inconclusive
}

func band(target, margin float64) (low, high float64) {
	m := 1 + max(0, margin)
	return target / m, target * m
}

func pick[T any](first bool, a, b T) T {
	if first {
		return a
	}
	return b
}

// Ratio is the outcome of comparing two sides: the one over the other, in the row's unit, whichever
// direction is better.
type Ratio struct {
	Median   float64  `json:"median"`
	Interval Interval `json:"interval"`
	Target   float64  `json:"target"`
	Margin   float64  `json:"margin"` // a part: 0.05 is 5 %
	Verdict  Verdict  `json:"verdict"`
	Why      string   `json:"why,omitempty"` // of a verdict that is inconclusive
}

// judge fills in the verdict from everything else. n is the number of pairs; doubt is a reason to
// give none.
func (r *Ratio) judge(n int, better Direction, doubt string) {
	r.Verdict, r.Why = Judge(r.Interval, r.Target, r.Margin, better), ""
	low, high := band(r.Target, r.Margin)
	switch {
	case doubt != "":
		r.Why = doubt
	case n < MinPairs:
		r.Why = fmt.Sprintf("%s; a verdict takes %d", count(n, "pair"), MinPairs)
	case r.Verdict != Inconclusive:
		return
	case r.Margin > 0:
		r.Why = fmt.Sprintf("the interval reaches across a limit, %.4g or %.4g", low, high)
	default:
		r.Why = fmt.Sprintf("the interval contains the target %.4g", r.Target)
	}
	r.Verdict = Inconclusive
}

// Goal is an absolute figure to reach, in the row's unit.
type Goal struct {
	Value   float64 `json:"value"`
	Verdict Verdict `json:"verdict"` // met, missed or inconclusive
}

// judge compares the interval of a median with the goal.
func (g *Goal) judge(i Interval, better Direction) {
	reached, failed := i.Low >= g.Value, i.High < g.Value
	if better == Lower {
		reached, failed = i.High <= g.Value, i.Low > g.Value
	}
	switch {
	case i.Level < Confidence:
		g.Verdict = Inconclusive
	case reached:
		g.Verdict = Met
	case failed:
		g.Verdict = Missed
	default:
		g.Verdict = Inconclusive
	}
}

// count writes a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, strings.TrimSuffix(noun, "s"))
}
