package metrics

import (
	"errors"
	"math/bits"
	"sync/atomic"

	"github.com/penstock-io/penstock/internal/invariants"
)

// Shape of a histogram: values below 2*SubBuckets have a bucket each; above, every
// power of two is divided into SubBuckets buckets of equal width. This is the
// log-linear scheme of G. Tene's HdrHistogram, over all of uint64.
const (
	subBits    = 5
	SubBuckets = 1 << subBits
	// Buckets is the number of buckets of every histogram: SubBuckets for the
	// values below SubBuckets, and for each power of two from there to 2^63.
	Buckets = SubBuckets + (64-subBits)*SubBuckets

	// MaxError bounds the relative error of Quantile: a bucket is at most
	// 1/SubBuckets of its lowest value wide and is answered by its middle.
	MaxError = 1.0 / (2 * SubBuckets)
)

// bucketOf returns the index of the bucket of v.
func bucketOf(v uint64) int {
	shift := max(bits.Len64(v)-subBits-1, 0)
	return shift<<subBits + int(v>>shift)
}

// Bounds returns the lowest and the highest value of bucket i, which must be in
// [0, Buckets); outside, it answers for the nearest bucket.
func Bounds(i int) (low, high uint64) {
	i = min(max(i, 0), Buckets-1)
	if i < 2*SubBuckets {
		return uint64(i), uint64(i)
	}
	shift := i>>subBits - 1
	low = uint64(i-shift<<subBits) << shift
	return low, low + (1<<shift - 1)
}

// Histogram is a distribution of uint64 values (latencies in nanoseconds, sizes in
// bytes: the caller knows the unit) with a relative error of at most MaxError,
// whatever the range. It has one writer and any number of readers, and takes
// about 15 KiB.
type Histogram struct {
	_ [before]byte
	// Two words are kept so that zero, as in the zero value, means "nothing yet".
	notMin  atomic.Uint64 // complement of the smallest value
	max     atomic.Uint64
	sum     atomic.Uint64 // modulo 2^64
	buckets [Buckets]atomic.Uint64
	_       [metricSize]byte
}

// Record counts v. Only the one writer may call it. It does not allocate.
func (h *Histogram) Record(v uint64) {
	// The extremes go first: a reader that sees the value counted, and loads
	// them afterwards, finds them wide enough for it.
	if ^v > h.notMin.Load() {
		h.notMin.Store(^v)
	}
	if v > h.max.Load() {
		h.max.Store(v)
	}
	b := &h.buckets[bucketOf(v)]
	n := b.Load()
	if invariants.Enabled {
		if !b.CompareAndSwap(n, n+1) {
			panic(secondWriter)
		}
	} else {
		b.Store(n + 1)
	}
	h.sum.Store(h.sum.Load() + v)
}

// Snapshot copies the state into dst, which may be used again and again. Anyone
// may call it, also while the writer records. Each value recorded before the call
// is in, each one recorded during the call may be; Sum may be off by those.
func (h *Histogram) Snapshot(dst *HistogramSnapshot) {
	dst.Count = 0
	for i := range h.buckets {
		n := h.buckets[i].Load()
		dst.Counts[i] = n
		dst.Count += n
	}
	dst.Sum, dst.Min, dst.Max = 0, 0, 0
	if dst.Count > 0 {
		dst.Sum = h.sum.Load()
		dst.Min = ^h.notMin.Load()
		dst.Max = h.max.Load()
	}
}

// HistogramSnapshot is the state of a Histogram at one time, or a difference or
// sum of such states. It is a plain value of about 15 KiB: pass pointers.
type HistogramSnapshot struct {
	Count  uint64          // values recorded
	Sum    uint64          // of the values, modulo 2^64
	Min    uint64          // smallest value; 0 if none
	Max    uint64          // largest value; 0 if none
	Counts [Buckets]uint64 // values per bucket; see Bounds
}

// Quantile returns the value below or at which a share q of the values lies: 0.5
// is the median, 0.99 the 99th percentile (nearest rank). It is at most MaxError
// times the true value away from it, and never outside [Min, Max]. q at or below 0
// gives Min, at or above 1 Max; without values, or if q is not a number, it is 0.
func (s *HistogramSnapshot) Quantile(q float64) uint64 {
	switch {
	case s.Count == 0 || q != q:
		return 0
	case q <= 0:
		return s.Min
	case q >= 1:
		return s.Max
	}
	rank := nearestRank(q, s.Count)
	var seen uint64
	for i, n := range &s.Counts {
		if seen += n; seen >= rank && n > 0 {
			low, high := Bounds(i)
			mid := low + (high-low+1)/2
			return min(max(mid, s.Min), s.Max)
		}
	}
	return s.Max
}

// nearestRank is the smallest r in [1, n] with r >= q*n, for q in (0, 1).
func nearestRank(q float64, n uint64) uint64 {
	// 0.07*100 is 7.000000000000001: take one rounding error off, so that a
	// share meant to be exact does not move to the next value.
	x := q * float64(n) * (1 - 0x1p-52)
	r := uint64(x) // below 2^64, as q is below 1
	if float64(r) < x {
		r++
	}
	return min(max(r, 1), n)
}

// Mean returns the arithmetic mean; 0 without values. It is right as long as the
// sum of all values is below 2^64.
func (s *HistogramSnapshot) Mean() float64 {
	if s.Count == 0 {
		return 0
	}
	return float64(s.Sum) / float64(s.Count)
}

// Merge adds the values of other to s: several writers' histograms as one. The
// result is what one histogram would have of all the values.
func (s *HistogramSnapshot) Merge(other *HistogramSnapshot) {
	if other.Count == 0 {
		return
	}
	if s.Count == 0 || other.Min < s.Min {
		s.Min = other.Min
	}
	s.Max = max(s.Max, other.Max)
	s.Count += other.Count
	s.Sum += other.Sum
	for i, n := range &other.Counts {
		s.Counts[i] += n
	}
}

// ErrNotEarlier reports a Sub of snapshots that are not of one histogram, or in
// the wrong order. Match it with errors.Is.
var ErrNotEarlier = errors.New("metrics: subtracted snapshot holds values that the other lacks: subtract an earlier " +
	"snapshot of the same histogram")

// Sub removes from s the values of earlier, an earlier snapshot of the same
// histogram; what remains was recorded in between. Min and Max of the remainder
// are known only to the width of a bucket: they become the bounds of its outermost
// buckets, within the old Min and Max. On error s is unchanged.
func (s *HistogramSnapshot) Sub(earlier *HistogramSnapshot) error {
	for i, n := range &earlier.Counts {
		if n > s.Counts[i] {
			return ErrNotEarlier
		}
	}
	lowest, highest := -1, -1
	for i, n := range &earlier.Counts {
		s.Counts[i] -= n
		if s.Counts[i] > 0 {
			if lowest < 0 {
				lowest = i
			}
			highest = i
		}
	}
	s.Count -= earlier.Count
	s.Sum -= earlier.Sum
	if lowest < 0 {
		s.Sum, s.Min, s.Max = 0, 0, 0
		return nil
	}
	low, _ := Bounds(lowest)
	_, high := Bounds(highest)
	s.Min, s.Max = max(s.Min, low), min(s.Max, high)
	return nil
}
