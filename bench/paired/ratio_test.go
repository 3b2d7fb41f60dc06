package paired

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func about(a, b, tolerance float64) bool { return math.Abs(a-b) <= tolerance }

// Tails of U from the tables of Mann and Whitney (1947, table I) and exact fractions: all
// arrangements are equally likely.
func TestMannWhitneyTables(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b []float64
		u, p float64
	}{
		{"3 and 3, apart", []float64{1, 2, 3}, []float64{4, 5, 6}, 0, 2. / 20},
		{"4 and 4, apart", []float64{5, 6, 7, 8}, []float64{1, 2, 3, 4}, 16, 2. / 70},
		{"4 and 4, U = 1", []float64{1, 2, 3, 5}, []float64{4, 6, 7, 8}, 1, 4. / 70},
		// one-sided 0.016 in the table
		{"5 and 5, U = 2", []float64{1, 2, 3, 4, 7}, []float64{5, 6, 8, 9, 10}, 2, 8. / 252},
		{"2 and 6, U = 1", []float64{1, 3}, []float64{2, 4, 5, 6, 7, 8}, 1, 4. / 28},
		{"one each", []float64{1}, []float64{2}, 0, 1},
		{"all equal", []float64{3, 3, 3}, []float64{3, 3}, 3, 1},
		// Wikipedia's race of six tortoises and six hares, THHHHHTTTTTH: 11 pairs for the hares, 25
		// for the tortoises by place, so U = 11 and 25. R: wilcox.test(c(1,7:11), c(2:6,12)) has W
		// = 25, p-value = 0.3095.
		{"tortoises and hares", []float64{1, 7, 8, 9, 10, 11}, []float64{2, 3, 4, 5, 6, 12}, 25, 0.3095238},
		// Hollander and Wolfe (1973), page 69: permeability of the chorioamnion; example of R's
		// wilcox.test: W = 35, and p-value = 0.1272 one-sided.
		{"Hollander and Wolfe", []float64{0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46}, []float64{1.15, 0.88, 0.90, 0.74, 1.21}, 35, 2 * 0.1272},
	} {
		u, p, err := MannWhitney(c.a, c.b)
		if err != nil || u != c.u || !about(p, c.p, 1e-4) {
			t.Errorf("%s: U = %v, p = %v, %v; want %v and %v", c.name, u, p, err, c.u, c.p)
		}
		// The other way round: the other U, the same p.
		v, q, err := MannWhitney(c.b, c.a)
		if err != nil || u+v != float64(len(c.a)*len(c.b)) || !about(p, q, 1e-12) {
			t.Errorf("%s, reversed: U = %v, p = %v, %v", c.name, v, q, err)
		}
	}
}

// R's airquality data, ozone in May and August (with ties): wilcox.test gives W = 127.5, p-value =
// 0.0001208 by the normal curve with corrections for ties and continuity.
func TestMannWhitneyWithTies(t *testing.T) {
	may := []float64{41, 36, 12, 18, 28, 23, 19, 8, 7, 16, 11, 14, 18, 14, 34, 6, 30, 11, 1, 11, 4, 32, 23, 45, 115, 37}
	august := []float64{39, 9, 16, 78, 35, 66, 122, 89, 110, 44, 28, 65, 22, 59, 23, 31, 44, 21, 9, 45, 168, 73, 76,
		118, 84, 85}
	u, exact, err := MannWhitney(may, august)
	if err != nil || u != 127.5 {
		t.Fatalf("U = %v, %v", u, err)
	}
	_, ties, err := midranks(slices.Concat(may, august))
	if err != nil {
		t.Fatal(err)
	}
	p := normalP(u, len(may), len(august), ties)
	if !about(p, 0.0001208, 5e-8) {
		t.Errorf("normal curve: p = %v", p)
	}
	if exact < p/2 || exact > p*2 {
		t.Errorf("exact p = %v, by the normal curve %v", exact, p)
	}
	// Twice the data: too many to count, so the normal curve is used; both stay on one line.
	_, large, err := MannWhitney(slices.Concat(may, may), slices.Concat(august, august))
	if err != nil || !(large < p/100) {
		t.Errorf("52 and 52: p = %v, %v", large, err)
	}
	if p := normalP(50, 10, 10, 8000-20); p != 1 {
		t.Errorf("only equal values: p = %v", p)
	}
}

// If nothing differs, p is below 0.05 in at most one run of twenty.
func TestMannWhitneyLevel(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	const trials = 600
	low := 0
	for range trials {
		a, b := make([]float64, 12), make([]float64, 9)
		for i := range a {
			a[i] = r.ExpFloat64()
		}
		for i := range b {
			b[i] = r.ExpFloat64()
		}
		if _, p, err := MannWhitney(a, b); err != nil {
			t.Fatal(err)
		} else if p < 0.05 {
			low++
		}
	}
	if got := float64(low) / trials; got > 0.08 || got < 0.02 {
		t.Errorf("p < 0.05 in %.3f of the runs", got)
	}
}

func TestMannWhitneyRefuses(t *testing.T) {
	if _, _, err := MannWhitney(nil, []float64{1}); !errors.Is(err, ErrNoSamples) {
		t.Errorf("no samples: %v", err)
	}
	if _, _, err := MannWhitney([]float64{1}, []float64{math.NaN()}); err == nil {
		t.Error("NaN passed")
	}
}

// The interval of the ratio contains the true ratio in about 95 % of the runs, however the
// machine's speed wanders, and is narrower the more pairs there are.
func TestPairedRatioCovers(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	const truth, trials = 1.25, 150
	widths := map[int]float64{}
	for _, n := range []int{20, 40} {
		hit := 0
		for k := range trials {
			ours, theirs := make([]float64, n), make([]float64, n)
			for i := range ours {
				machine := math.Exp(r.NormFloat64() / 2) // both of a pair meet the same machine
				theirs[i] = 10 * machine * math.Exp(0.03*r.NormFloat64())
				ours[i] = 10 * truth * machine * math.Exp(0.03*r.NormFloat64())
				if r.IntN(10) == 0 { // outliers on either side
					ours[i] /= 2
				}
				if r.IntN(10) == 0 {
					theirs[i] /= 2
				}
			}
			m, i, err := PairedRatio(ours, theirs, uint64(k))
			if err != nil || !(i.Low <= m && m <= i.High) || i.Level != Confidence {
				t.Fatalf("%v in %+v, %v", m, i, err)
			}
			if i.Low <= truth && truth <= i.High {
				hit++
			}
			widths[n] += i.High - i.Low
		}
		if got := float64(hit) / trials; got < 0.9 || got > 0.999 {
			t.Errorf("%d pairs: the interval contains the ratio in %.3f of the runs", n, got)
		} else {
			t.Logf("%d pairs: covered in %.3f", n, got)
		}
	}
	if !(widths[40] < widths[20]) {
		t.Errorf("40 pairs are no narrower than 20: %v", widths)
	}
}

func TestUnpairedRatioCovers(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	const truth, trials = 0.8, 150
	hit := 0
	for k := range trials {
		a, b := make([]float64, 20), make([]float64, 25)
		for i := range a {
			a[i] = 5 * math.Exp(0.1*r.NormFloat64())
		}
		for i := range b {
			b[i] = 5 * truth * math.Exp(0.1*r.NormFloat64())
		}
		m, i, err := UnpairedRatio(a, b, uint64(k))
		if err != nil || !(i.Low <= m && m <= i.High) {
			t.Fatalf("%v in %+v, %v", m, i, err)
		}
		if i.Low <= truth && truth <= i.High {
			hit++
		}
	}
	if got := float64(hit) / trials; got < 0.9 || got > 0.999 {
		t.Errorf("the interval contains the ratio in %.3f of the runs", got)
	}
}

// The same seed gives the same interval; a machine that changes speed does not touch the ratio of
// pairs.
func TestPairedRatioKnown(t *testing.T) {
	var ours, theirs []float64
	for i := range 20 {
		speed := 1 + float64(i%4)
		ours, theirs = append(ours, 12*speed), append(theirs, 10*speed)
	}
	m, i, err := PairedRatio(ours, theirs, 1)
	if err != nil || !about(m, 1.2, 1e-12) || !about(i.Low, 1.2, 1e-12) || !about(i.High, 1.2, 1e-12) {
		t.Errorf("%v, %+v, %v", m, i, err)
	}
	theirs[3], theirs[9] = 7, 70
	_, a, _ := PairedRatio(ours, theirs, 9)
	_, b, _ := PairedRatio(ours, theirs, 9)
	if a != b {
		t.Errorf("the same seed: %+v and %+v", a, b)
	}
	// Too few for the level: the range, and what it covers.
	m, i, err = PairedRatio([]float64{2, 3, 8}, []float64{1, 1, 2}, 1)
	if err != nil || m != 3 || i.Low != 2 || i.High != 4 || i.Level != 0.75 {
		t.Errorf("three pairs: %v, %+v, %v", m, i, err)
	}
}

func TestRatiosRefuse(t *testing.T) {
	for name, bad := range map[string][2][]float64{
		"zero": {{0}, {1}}, "by zero": {{1}, {0}}, "negative": {{-1}, {1}}, "infinite": {{math.Inf(1)}, {1}},
		"NaN":     {{1}, {math.NaN()}},
		"unequal": {{1, 2}, {1}}, "none": {{}, {}}, "overflow": {{1e300}, {1e-300}}, "underflow": {{1e-300}, {1e300}},
	} {
		if _, _, err := PairedRatio(bad[0], bad[1], 1); err == nil {
			t.Errorf("%s passed", name)
		}
	}
	for name, bad := range map[string][2][]float64{"zero": {{0}, {1}}, "NaN": {{1}, {math.NaN()}}, "none": {{1}, {}}} {
		if _, _, err := UnpairedRatio(bad[0], bad[1], 1); err == nil {
			t.Errorf("unpaired %s passed", name)
		}
	}
}

// Drawing ranks gives the same median as drawing values.
func TestDrawMedian(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.SliceOfN(rapid.Float64Range(0.1, 10), 1, 30).Draw(t, "values")
		slices.Sort(s)
		seed := rapid.Uint64().Draw(t, "seed")
		got := drawMedian(generator(seed), s, make([]int, len(s)))
		draw, v := generator(seed), make([]float64, len(s))
		for i := range v {
			v[i] = s[draw.IntN(len(s))]
		}
		slices.Sort(v)
		if want := middle(v); got != want {
			t.Fatalf("%v; want %v", got, want)
		}
	})
}
