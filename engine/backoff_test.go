package engine

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Whatever the limits: pauses double from the least to the most, each less up to a half, and begin
// again after a success.
func TestBackoff(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		least := time.Duration(rapid.Int64Range(1, math.MaxInt64).Draw(t, "least"))
		if rapid.Bool().Draw(t, "usual") {
			least = time.Duration(rapid.IntRange(1, 1000).Draw(t, "least in ms")) * time.Millisecond
		}
		most := time.Duration(rapid.Int64Range(int64(least), math.MaxInt64).Draw(t, "most"))
		b := Backoff{Least: least, Most: most}
		bound := least
		for range rapid.IntRange(1, 100).Draw(t, "attempts") {
			if rapid.IntRange(0, 9).Draw(t, "luck") == 0 {
				b.Reset()
				bound = least
			}
			if got := b.Next(); got > bound || got < bound-bound/2 {
				t.Fatalf("a pause of %v: expected %v to %v", got, bound-bound/2, bound)
			}
			if bound <= most/2 {
				bound *= 2
			} else {
				bound = most
			}
		}
	})
	if d := new(Backoff).Next(); d != 0 {
		t.Errorf("the zero value pauses for %v", d)
	}
	b := Backoff{Least: time.Second}
	for range 3 {
		if d := b.Next(); d < time.Second/2 || d > time.Second {
			t.Errorf("%v, and the most is less than the least", d)
		}
	}
}

// Pauses differ: ports that lost the same peer come back at different times.
func TestBackoffVaries(t *testing.T) {
	seen := map[time.Duration]bool{}
	for range 50 {
		b := Backoff{Least: time.Hour, Most: time.Hour}
		seen[b.Next()] = true
	}
	if len(seen) < 40 {
		t.Errorf("%d different pauses of 50", len(seen))
	}
}
