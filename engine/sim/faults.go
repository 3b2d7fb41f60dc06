package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/penstock-io/penstock/engine"
)

// Shape is the distribution of a delay.
type Shape uint8

// The shapes of Faults.Jitter.
const (
	Uniform     Shape = iota // Delay - Jitter to Delay + Jitter
	Normal                   // mean Delay, standard deviation Jitter
	Exponential              // Delay, and on top a number with mean Jitter
)

// Faults are what one direction of a link does to packets besides carrying them. Shares are from 0
// to 1. They apply in the order of the fields. The zero value is a good link of no length.
type Faults struct {
	Loss    float64 // share of packets that are lost: DropInjected
	Corrupt float64 // share of packets in which Bits bits are turned over
	Bits    int     // 0 means 1; the same bit may be hit twice
	// Duplicate is the share of packets that come twice. The second one takes its own place in the
	// queue and its own delay.
	Duplicate float64
	// Rate in bits per second of frames as they lie in memory; 0 is no limit. Queue is how many
	// frames there may be at once that have not left entirely, the one that is leaving included; 0
	// means 1000. What finds it full is lost: DropQueueFull.
	Rate  uint64
	Queue int
	// Delay is how long a frame is under way after it has left, with Jitter around it. No delay is
	// below 0. Delays do not change the order: a frame arrives no earlier than those before it.
	Delay, Jitter time.Duration
	Shape         Shape
	// Reorder is the share of packets that are late by ReorderBy on top, 0 for 1 ms, while those
	// behind pass them.
	Reorder   float64
	ReorderBy time.Duration
	// InFlight is the number of frames that may be on the way at once; 0 means 65536. What comes on
	// top is lost: DropQueueFull.
	InFlight int
}

// defaults fills in and checks.
func (f Faults) defaults() (Faults, error) {
	bad := func(what string, got any, want string) (Faults, error) {
		return f, fmt.Errorf("%w: sim: Faults.%s is %v: expected %s", engine.ErrInvalid, what, got, want)
	}
	for _, s := range []struct {
		name  string
		share float64
	}{{"Loss", f.Loss}, {"Corrupt", f.Corrupt}, {"Duplicate", f.Duplicate}, {"Reorder", f.Reorder}} {
		if !(s.share >= 0 && s.share <= 1) { // NaN too
			return bad(s.name, s.share, "0 to 1")
		}
	}
	const most = time.Hour * 24 * 365
	for _, d := range []struct {
		name string
		d    time.Duration
	}{{"Delay", f.Delay}, {"Jitter", f.Jitter}, {"ReorderBy", f.ReorderBy}} {
		if d.d < 0 || d.d > most {
			return bad(d.name, d.d, "0 to a year")
		}
	}
	switch {
	case f.Bits < 0 || f.Bits > 1<<16:
		return bad("Bits", f.Bits, "0 to 65536")
	case f.Queue < 0 || f.Queue > 1<<24:
		return bad("Queue", f.Queue, "0 to 16777216")
	case f.InFlight < 0:
		return bad("InFlight", f.InFlight, "0 or more")
	case f.Shape > Exponential:
		return bad("Shape", f.Shape, "Uniform, Normal or Exponential")
	}
	if f.Bits == 0 {
		f.Bits = 1
	}
	if f.Queue == 0 {
		f.Queue = 1000
	}
	if f.ReorderBy == 0 {
		f.ReorderBy = time.Millisecond
	}
	if f.InFlight == 0 {
		f.InFlight = 1 << 16
	}
	return f, nil
}

// none reports whether packets pass unchanged, and at once.
func (f *Faults) none() bool { return f.Loss == 0 && f.Corrupt == 0 && f.Duplicate == 0 && f.instant() }

// instant reports whether packets pass at once.
func (f *Faults) instant() bool {
	return f.Rate == 0 && f.Delay == 0 && f.Jitter == 0 && f.Reorder == 0
}

// chance reports whether something with that share happens now. It draws a number only where there
// is a choice.
func chance(rng *rand.Rand, share float64) bool {
	return share > 0 && (share >= 1 || rng.Float64() < share)
}

// delay draws one, in nanoseconds.
func (f *Faults) delay(rng *rand.Rand) int64 {
	if f.Jitter == 0 {
		return int64(f.Delay)
	}
	d, j := float64(f.Delay), float64(f.Jitter)
	switch f.Shape {
	case Uniform:
		d += j * (2*rng.Float64() - 1)
	case Normal:
		d += j * rng.NormFloat64()
	case Exponential:
		d += j * rng.ExpFloat64()
	}
	return int64(min(max(math.Round(d), 0), math.MaxInt64/4))
}

// limiter is the queue of a rate limit. Its arithmetic is exact: fractions of a nanosecond are
// carried on.
type limiter struct {
	free   int64   // when the last frame will have left, ns since 1970
	part   uint64  // and how much later, in 1/Rate ns
	leaves []int64 // when the frames that are in the queue leave, a ring
	first  int     // of the ring
	n      int
}

// pass says when a frame that comes at now will have left, or that it finds the queue full.
func (l *limiter) pass(f *Faults, bytes int, now int64) (at int64, ok bool) {
	if len(l.leaves) != f.Queue {
		*l = limiter{free: l.free, leaves: make([]int64, f.Queue)}
	}
	for l.n > 0 && l.leaves[l.first] <= now {
		l.first = (l.first + 1) % len(l.leaves)
		l.n--
	}
	if l.n == len(l.leaves) {
		return 0, false
	}
	if l.free < now {
		l.free, l.part = now, 0
	}
	ns := uint64(bytes)*8*uint64(time.Second) + l.part // less than 2^50 and Rate
	l.free += int64(ns / f.Rate)
	l.part = ns % f.Rate
	at = l.free
	if l.part > 0 {
		at++ // the frame has left at the end of that nanosecond
	}
	l.leaves[(l.first+l.n)%len(l.leaves)] = at
	l.n++
	return at, true
}

// corrupt turns bits of a frame over.
func corrupt(rng *rand.Rand, frame []byte, bits int) {
	if len(frame) == 0 {
		return
	}
	for range bits {
		k := rng.IntN(len(frame) * 8)
		frame[k/8] ^= 1 << (k % 8)
	}
}
