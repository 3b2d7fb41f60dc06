package paired

import (
	"errors"
	"fmt"
	"github.com/penstock-io/penstock/metrics"
	"math"
	"slices"
)

// Confidence is the level of every interval in this package.
const Confidence = 0.95

// ErrNoSamples is returned where statistics of nothing were asked for.
var ErrNoSamples = errors.New("paired: no samples")

// Interval is a confidence interval. Level is what it really covers: at least Confidence, except
// where there are too few samples for that (fewer than six for a median) and the interval is their
// whole range.
type Interval struct {
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
	Level float64 `json:"level"`
}

// Stats summarises samples of one quantity, in the samples' unit.
type Stats struct {
	N        int      `json:"n"`
	Min      float64  `json:"min"`
	Median   float64  `json:"median"`
	Max      float64  `json:"max"`
	Interval Interval `json:"interval"` // of the median
}

// Summarize returns the statistics of the samples, which it does not change. Samples must be
// numbers: NaN is an error.
func Summarize(samples []float64) (Stats, error) {
	s, err := sorted(samples)
	if err != nil {
		return Stats{}, err
	}
	return Stats{N: len(s), Min: s[0], Median: middle(s), Max: s[len(s)-1], Interval: medianInterval(s)}, nil
}

func sorted(samples []float64) ([]float64, error) {
	if len(samples) == 0 {
		return nil, ErrNoSamples
	}
	s := slices.Clone(samples)
	for i, v := range s {
		if math.IsNaN(v) {
			return nil, fmt.Errorf("paired: sample %d is not a number", i)
		}
	}
	slices.Sort(s)
	return s, nil
}

// middle is the median of sorted samples: the mean of the two in the middle when their number is
// even.
func middle(s []float64) float64 {
	n := len(s)
	if n%2 == 1 {
		return s[n/2]
	}
	return mean(s[n/2-1], s[n/2])
}

// mean of two numbers, which does not overflow and is exact for equal ones.
func mean(a, b float64) float64 {
	if a == b {
		return a
	}
	return a/2 + b/2
}

// medianInterval is the distribution-free interval of the median by order statistics (H. A. David
// and H. N. Nagaraja, Order Statistics, 2003, section 7.1): [x(k), x(n+1-k)] covers the median with
// probability 1 - 2·P(Bin(n, 1/2) < k). k is the largest for which that is at least Confidence.
func medianInterval(s []float64) Interval {
	n := len(s)
	k, tail := 1, binomialBelow(n, 1)
	for k < (n+1)/2 {
		next := binomialBelow(n, k+1)
		if 1-2*next < Confidence {
			break
		}
		k, tail = k+1, next
	}
	return Interval{Low: s[k-1], High: s[n-k], Level: max(0, 1-2*tail)}
}

// binomialBelow is P(X < k) for X distributed as Bin(n, 1/2). Logarithms keep it exact enough for
// any n.
func binomialBelow(n, k int) float64 {
	sum := 0.0
	ln, _ := math.Lgamma(float64(n + 1))
	for i := range k {
		li, _ := math.Lgamma(float64(i + 1))
		lr, _ := math.Lgamma(float64(n - i + 1))
		sum += math.Exp(ln - li - lr - float64(n)*math.Ln2)
	}
	return sum
}

// Percentile returns the p-th percentile, 0 < p <= 100, of samples in ascending order by the
// nearest-rank method: the smallest sample that at least p percent of them do not exceed. It
// returns NaN for no samples.
func Percentile(ascending []float64, p float64) float64 {
	n := len(ascending)
	if n == 0 {
		return math.NaN()
	}
	// The small number takes back what floating point adds to exact ranks, such as 99.9 % of 1000.
	rank := int(math.Ceil(p/100*float64(n) - 1e-9))
	return ascending[min(max(rank, 1), n)-1]
}

// HistogramLatency is the distribution of a histogram of nanoseconds, in microseconds; nil for an
// empty one.
func HistogramLatency(h *metrics.HistogramSnapshot) *Latency {
	if h.Count == 0 {
		return nil
	}
	q := func(p float64) float64 { return float64(h.Quantile(p)) / 1e3 }
	return &Latency{N: int(h.Count), P50: q(0.5), P90: q(0.9), P99: q(0.99), P999: q(0.999), Max: float64(h.Max) / 1e3}
}
