package paired

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// resamples is how often the bootstrap draws. The ends of an interval then wander by about a
// hundredth of its width.
const resamples = 4000

// minForInterval is the number of samples from which the range of them covers their median with
// Confidence.
const minForInterval = 6

// pairedRatios divides pair by pair; both must hold as many positive numbers.
func pairedRatios(ours, theirs []float64) ([]float64, error) {
	if len(ours) != len(theirs) {
		return nil, fmt.Errorf("paired: %d samples of ours and %d of theirs: expected pairs", len(ours), len(theirs))
	}
	if len(ours) == 0 {
		return nil, ErrNoSamples
	}
	out := make([]float64, len(ours))
	for i := range ours {
		if err := positive(ours[i], theirs[i]); err != nil {
			return nil, fmt.Errorf("paired: pair %d: %w", i, err)
		}
		if out[i] = ours[i] / theirs[i]; !(out[i] > 0) || math.IsInf(out[i], 0) {
			return nil, fmt.Errorf("paired: pair %d: %v / %v is out of range", i, ours[i], theirs[i])
		}
	}
	return out, nil
}

func positive(values ...float64) error {
	for _, v := range values {
		if !(v > 0) || math.IsInf(v, 0) {
			return fmt.Errorf("%v: expected a positive number", v)
		}
	}
	return nil
}

// PairedRatio returns the median of ours/theirs over the pairs and its interval, by the percentile
// bootstrap (B. Efron and R. Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13): pairs
// are drawn with replacement, so what a machine did to both sides of a pair stays together. The
// same seed gives the same interval.
func PairedRatio(ours, theirs []float64, seed uint64) (median float64, i Interval, err error) {
	r, err := pairedRatios(ours, theirs)
	if err != nil {
		return 0, Interval{}, err
	}
	slices.Sort(r)
	draw, n := generator(seed), len(r)
	rank := make([]int, n)
	medians := make([]float64, resamples)
	for k := range medians {
		medians[k] = drawMedian(draw, r, rank)
	}
	return middle(r), percentileInterval(medians, r[0], r[n-1], n), nil
}

// UnpairedRatio returns median(b)/median(a) and its interval, by the percentile bootstrap with both
// sides drawn on their own. It is for measurements that were not taken together, such as those of
// two files.
func UnpairedRatio(a, b []float64, seed uint64) (ratio float64, i Interval, err error) {
	if err := positive(slices.Concat(a, b)...); err != nil {
		return 0, Interval{}, fmt.Errorf("paired: sample %w", err)
	}
	sa, err := sorted(a)
	if err != nil {
		return 0, Interval{}, err
	}
	sb, err := sorted(b)
	if err != nil {
		return 0, Interval{}, err
	}
	draw := generator(seed)
	ra, rb := make([]int, len(sa)), make([]int, len(sb))
	ratios := make([]float64, resamples)
	for k := range ratios {
		ratios[k] = drawMedian(draw, sb, rb) / drawMedian(draw, sa, ra)
	}
	return middle(sb) / middle(sa), percentileInterval(ratios, sb[0]/sa[len(sa)-1], sb[len(sb)-1]/sa[0],
		min(len(sa), len(sb))), nil
}

func generator(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x70656e73746f636b)) }

// drawMedian is the median of as many values as s has, drawn from it with replacement. s is sorted;
// drawing ranks instead of values makes that cheap. rank is scratch of the same length.
func drawMedian(draw *rand.Rand, s []float64, rank []int) float64 {
	n := len(s)
	clear(rank)
	for range n {
		rank[draw.IntN(n)]++
	}
	at := func(k int) float64 { // the k-th smallest drawn, counted from 0
		for i, c := range rank {
			if k < c {
				return s[i]
			}
			k -= c
		}
		return s[n-1]
	}
	if n%2 == 1 {
		return at(n / 2)
	}
	return mean(at(n/2-1), at(n/2))
}

// percentileInterval takes the interval from the bootstrap's values. Fewer than six samples do not
// cover a median with Confidence, however they are drawn: then it is the whole range, with what
// that covers.
func percentileInterval(values []float64, low, high float64, n int) Interval {
	if n < minForInterval {
		return Interval{Low: low, High: high, Level: max(0, 1-math.Pow(2, 1-float64(n)))}
	}
	slices.Sort(values)
	return Interval{Low: Percentile(values, 100*(1-Confidence)/2), High: Percentile(values, 100*(1+Confidence)/2),
		Level: Confidence}
}

// exactRanks is the number of samples up to which MannWhitney counts all arrangements instead of
// using the normal curve.
const exactRanks = 60

// MannWhitney tests whether values of a tend to be larger or smaller than those of b (H. B. Mann
// and D. R. Whitney, On a Test of Whether one of Two Random Variables is Stochastically Larger than
// the Other, 1947). u counts the pairs in which a is larger, ties as halves; p is two-sided: how
// likely a u at least as far from its mean is if there is no difference. Up to 60 samples p is
// exact, also with ties; beyond, it is that of the normal curve with corrections for ties and
// continuity.
func MannWhitney(a, b []float64) (u, p float64, err error) {
	if len(a) == 0 || len(b) == 0 {
		return 0, 0, ErrNoSamples
	}
	ranks, ties, err := midranks(slices.Concat(a, b))
	if err != nil {
		return 0, 0, err
	}
	sum := 0
	for _, r := range ranks[:len(a)] {
		sum += r
	}
	n, m := len(a), len(b)
	u = float64(sum)/2 - float64(n*(n+1))/2
	if n+m <= exactRanks {
		return u, exactP(ranks, n, sum), nil
	}
	return u, normalP(u, n, m, ties), nil
}

// midranks returns twice the rank of each value, equal values sharing the mean of their ranks, and
// the sum of t³-t over all groups of t equal values.
func midranks(v []float64) (ranks []int, ties float64, err error) {
	order := make([]int, len(v))
	for i := range v {
		if math.IsNaN(v[i]) {
			return nil, 0, fmt.Errorf("paired: sample %d is not a number", i)
		}
		order[i] = i
	}
	slices.SortFunc(order, func(i, k int) int {
		switch {
		case v[i] < v[k]:
			return -1
		case v[i] > v[k]:
			return 1
		}
		return 0
	})
	ranks = make([]int, len(v))
	for i := 0; i < len(order); {
		k := i
		for k < len(order) && v[order[k]] == v[order[i]] {
			k++
		}
		for _, o := range order[i:k] {
			ranks[o] = i + 1 + k // twice the mean of ranks i+1 to k
		}
		t := float64(k - i)
		ties += t*t*t - t
		i = k
	}
	return ranks, ties, nil
}

// exactP counts in how many choices of n of the ranks their sum is as far from the mean as the one
// that was seen, or farther. ways[k][s] is the number of choices of k ranks with sum s; ranks are
// doubled so that they are whole.
func exactP(ranks []int, n, seen int) float64 {
	total := 0
	for _, r := range ranks {
		total += r
	}
	ways := make([][]float64, n+1)
	for k := range ways {
		ways[k] = make([]float64, total+1)
	}
	ways[0][0] = 1
	for i, r := range ranks {
		for k := min(i+1, n); k > 0; k-- {
			for s := total; s >= r; s-- {
				ways[k][s] += ways[k-1][s-r]
			}
		}
	}
	// Everything times the number of ranks, so that the mean is whole too.
	size := len(ranks)
	far := abs(seen*size - n*total)
	all, extreme := 0.0, 0.0
	for s, w := range ways[n] {
		all += w
		if abs(s*size-n*total) >= far {
			extreme += w
		}
	}
	return extreme / all
}

func abs(i int) int { return max(i, -i) }

// normalP is the two-sided p-value of u by the normal curve (M. Hollander and D. A. Wolfe,
// Nonparametric Statistical Methods, 1999, section 4.1).
func normalP(u float64, n, m int, ties float64) float64 {
	a, b := float64(n), float64(m)
	variance := a * b / 12 * (a + b + 1 - ties/((a+b)*(a+b-1)))
	if !(variance > 0) {
		return 1 // all values are equal
	}
	z := max(0, math.Abs(u-a*b/2)-0.5) / math.Sqrt(variance)
	return min(1, math.Erfc(z/math.Sqrt2))
}
