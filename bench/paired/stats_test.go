package paired

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

func TestSummarizeKnownData(t *testing.T) {
	s, err := Summarize([]float64{3, 1, 2, 10, 4, 5, 6, 7, 8, 9})
	if err != nil {
		t.Fatal(err)
	}
	// For n = 10 tables give the second and the ninth value, which cover the median with 97.85 %.
	if s.N != 10 || s.Min != 1 || s.Max != 10 || s.Median != 5.5 || s.Interval.Low != 2 || s.Interval.High != 9 ||
		math.Abs(s.Interval.Level-0.978516) > 1e-6 {
		t.Errorf("%+v", s)
	}
	odd, err := Summarize([]float64{5, 1, 3})
	if err != nil || odd.Median != 3 || odd.Interval.Low != 1 || odd.Interval.High != 5 || odd.Interval.Level != 0.75 {
		t.Errorf("%+v, %v", odd, err)
	}
	if _, err := Summarize(nil); !errors.Is(err, ErrNoSamples) {
		t.Errorf("no samples: %v", err)
	}
	if _, err := Summarize([]float64{1, math.NaN()}); err == nil {
		t.Error("NaN passed")
	}
}

// Ranks of the 95 % interval as tables of the sign test give them.
func TestMedianIntervalRanks(t *testing.T) {
	for n, k := range map[int]int{5: 1, 6: 1, 8: 1, 9: 2, 12: 3, 15: 4, 20: 6, 25: 8, 30: 10, 50: 18, 100: 40} {
		s := make([]float64, n)
		for i := range s {
			s[i] = float64(i + 1)
		}
		i := medianInterval(s)
		if i.Low != float64(k) || i.High != float64(n+1-k) {
			t.Errorf("n = %d: %v-%v; want %d-%d", n, i.Low, i.High, k, n+1-k)
		}
		if (i.Level < Confidence) != (n < 6) {
			t.Errorf("n = %d: level %v", n, i.Level)
		}
	}
}

// The interval must cover the true median about as often as it says, whatever the distribution.
func TestMedianIntervalCovers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	draws := map[string]struct {
		draw   func() float64
		median float64
	}{
		"uniform":     {r.Float64, 0.5},
		"exponential": {r.ExpFloat64, math.Ln2},
		"bimodal":     {func() float64 { return r.Float64() + float64(r.IntN(3)/2)*100 }, 0.75},
	}
	const trials = 4000
	for name, d := range draws {
		for _, n := range []int{6, 20, 41} {
			hit, level := 0, 0.0
			for range trials {
				v := make([]float64, n)
				for i := range v {
					v[i] = d.draw()
				}
				s, err := Summarize(v)
				if err != nil {
					t.Fatal(err)
				}
				if s.Interval.Low <= d.median && d.median <= s.Interval.High {
					hit++
				}
				level = s.Interval.Level
			}
			// Four standard deviations of the simulation.
			got, slack := float64(hit)/trials, 4*math.Sqrt(level*(1-level)/trials)
			if math.Abs(got-level) > slack {
				t.Errorf("%s, n = %d: covers %.4f; says %.4f", name, n, got, level)
			}
		}
	}
}

func TestPercentile(t *testing.T) {
	v := make([]float64, 1000)
	for i := range v {
		v[i] = float64(i + 1)
	}
	for p, want := range map[float64]float64{50: 500, 99: 990, 99.9: 999, 100: 1000, 0.01: 1} {
		if got := Percentile(v, p); got != want {
			t.Errorf("p%v = %v; want %v", p, got, want)
		}
	}
	if got := Percentile([]float64{7}, 99.9); got != 7 {
		t.Errorf("of one: %v", got)
	}
	if !math.IsNaN(Percentile(nil, 50)) {
		t.Error("of none is a number")
	}
}

// Whatever the samples: the interval encloses the median and shrinks to samples that were measured.
func TestSummarizeProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.SliceOfN(rapid.Float64Range(-1e9, 1e9), 1, 60).Draw(t, "samples")
		s, err := Summarize(v)
		if err != nil {
			t.Fatal(err)
		}
		i := s.Interval
		if !(s.Min <= i.Low && i.Low <= s.Median && s.Median <= i.High && i.High <= s.Max) {
			t.Fatalf("%+v", s)
		}
	})
}
