package metrics

import (
	"errors"
	"math"
	"math/bits"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// TestBucketsTile: the buckets cover all of uint64, in order, without gap or
// overlap, and none is wider than MaxError allows.
func TestBucketsTile(t *testing.T) {
	next := uint64(0)
	for i := range Buckets {
		low, high := Bounds(i)
		if low != next || high < low {
			t.Fatalf("bucket %d is [%d, %d], want it to begin at %d", i, low, high, next)
		}
		for _, v := range []uint64{low, low + (high-low)/2, high} {
			if b := bucketOf(v); b != i {
				t.Fatalf("value %d is in bucket %d, want %d", v, b, i)
			}
		}
		if width := float64(high-low) + 1; high > low && width/2 > MaxError*float64(low) {
			t.Errorf("bucket %d, [%d, %d], is too wide", i, low, high)
		}
		next = high + 1
	}
	if next != 0 {
		t.Errorf("buckets end at %d, want 2^64", next)
	}
	for _, c := range [][2]int{{-5, 0}, {Buckets, Buckets - 1}, {math.MaxInt, Buckets - 1}, {math.MinInt, 0}} {
		gl, gh := Bounds(c[0])
		wl, wh := Bounds(c[1])
		if gl != wl || gh != wh {
			t.Errorf("Bounds(%d) = %d, %d, want those of %d", c[0], gl, gh, c[1])
		}
	}
}

// values of all magnitudes, and many equal ones.
var samples = rapid.SliceOfN(rapid.OneOf(
	rapid.Uint64(),
	rapid.Uint64Range(0, 200),
	rapid.Custom(func(t *rapid.T) uint64 {
		return 1<<rapid.IntRange(0, 63).Draw(t, "exponent") + uint64(rapid.IntRange(-2, 2).Draw(t, "off"))
	}),
), 1, 300)

func record(values ...[]uint64) *HistogramSnapshot {
	var h Histogram
	for _, vs := range values {
		for _, v := range vs {
			h.Record(v)
		}
	}
	s := new(HistogramSnapshot)
	h.Snapshot(s)
	return s
}

// distance is |a-b| as a share of b.
func distance(a, b uint64) float64 {
	if a == b {
		return 0
	}
	return float64(max(a, b)-min(a, b)) / float64(b)
}

// TestQuantileError compares with the sorted samples: nearest rank, counted in
// whole numbers here.
func TestQuantileError(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vs := samples.Draw(t, "values")
		s := record(vs)
		slices.Sort(vs)
		if s.Count != uint64(len(vs)) || s.Min != vs[0] || s.Max != vs[len(vs)-1] {
			t.Fatalf("count %d, min %d, max %d of %d values from %d to %d", s.Count, s.Min, s.Max, len(vs), vs[0],
				vs[len(vs)-1])
		}
		for k := 0; k <= 1000; k++ {
			rank := max((k*len(vs)+999)/1000, 1)
			want := vs[rank-1]
			got := s.Quantile(float64(k) / 1000)
			if e := distance(got, want); e > MaxError || got < s.Min || got > s.Max {
				t.Fatalf("quantile %d/1000 is %d, want %d: error %.4f, more than %.4f", k, got, want, e, MaxError)
			}
			if want < 2*SubBuckets && got != want {
				t.Fatalf("quantile %d/1000 is %d, want exactly %d", k, got, want)
			}
		}
	})
}

func TestQuantileOfOddShares(t *testing.T) {
	var none HistogramSnapshot
	s := record([]uint64{3, 5, 1000})
	for _, c := range []struct {
		s    *HistogramSnapshot
		q    float64
		want uint64
	}{
		{&none, 0.5, 0}, {&none, 0, 0}, {&none, 1, 0}, {s, math.NaN(), 0},
		{s, math.Inf(-1), 3}, {s, -1, 3}, {s, 0, 3}, {s, 5e-324, 3},
		{s, 1, 1000}, {s, 7, 1000}, {s, math.Inf(1), 1000},
		{s, math.Nextafter(1, 0), 1000}, {s, 1.0 / 3, 3}, {s, 0.34, 5}, {s, 2.0 / 3, 5},
	} {
		if got := c.s.Quantile(c.q); got != c.want {
			t.Errorf("Quantile(%v) of %d values is %d, want %d", c.q, c.s.Count, got, c.want)
		}
	}
	if m := s.Mean(); m != 336 {
		t.Errorf("mean %v, want 336", m)
	}
	if m := none.Mean(); m != 0 {
		t.Errorf("mean of nothing %v", m)
	}
	// Counts too large for a float64 to tell apart.
	huge := HistogramSnapshot{Count: math.MaxUint64, Min: 1, Max: 2}
	huge.Counts[1], huge.Counts[2] = 1<<63, 1<<63-1
	if a, b := huge.Quantile(0.25), huge.Quantile(math.Nextafter(1, 0)); a != 1 || b != 2 {
		t.Errorf("quantiles of 2^64-1 values: %d and %d, want 1 and 2", a, b)
	}
}

// TestMergeIsOneHistogram: merging snapshots is as if one histogram had seen all.
func TestMergeIsOneHistogram(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := samples.Draw(t, "a"), samples.Draw(t, "b")
		if rapid.Bool().Draw(t, "a is empty") {
			a = nil
		}
		if rapid.Bool().Draw(t, "b is empty") {
			b = nil
		}
		s := record(a)
		s.Merge(record(b))
		if d := cmp.Diff(record(a, b), s); d != "" {
			t.Fatalf("merged (-want +got):\n%s", d)
		}
	})
}

// TestSubIsTheRest: subtracting an earlier snapshot leaves what came later, with
// extremes known to a bucket.
func TestSubIsTheRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := samples.Draw(t, "a"), samples.Draw(t, "b")
		if rapid.Bool().Draw(t, "b is empty") {
			b = nil
		}
		s := record(a, b)
		if err := s.Sub(record(a)); err != nil {
			t.Fatal(err)
		}
		want := record(b)
		if len(b) > 0 && (s.Min > want.Min || distance(s.Min, want.Min) > 2*MaxError || s.Max < want.Max ||
			distance(s.Max, want.Max) > 2*MaxError) {
			t.Fatalf("extremes %d and %d, want about %d and %d", s.Min, s.Max, want.Min, want.Max)
		}
		s.Min, s.Max = want.Min, want.Max
		if d := cmp.Diff(want, s); d != "" {
			t.Fatalf("rest (-want +got):\n%s", d)
		}
	})
	s, other := record([]uint64{1, 2}), record([]uint64{1, 3})
	before := *s
	if err := s.Sub(other); !errors.Is(err, ErrNotEarlier) || *s != before {
		t.Errorf("subtracting a foreign snapshot: %v, and it changed: %v", err, *s != before)
	}
}

func TestSumWraps(t *testing.T) {
	var want uint64
	vs := []uint64{math.MaxUint64, math.MaxUint64 - 5, 17}
	for _, v := range vs {
		want, _ = bits.Add64(want, v, 0)
	}
	if s := record(vs); s.Sum != want {
		t.Errorf("sum %d, want %d", s.Sum, want)
	}
}
