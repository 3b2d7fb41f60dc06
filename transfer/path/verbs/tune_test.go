package verbs

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/transfer/path"
)

// line is an adapter with a queue: what is posted costs what the knobs said when it was posted, and
// completes later, in order.
type line struct {
	queue []time.Duration
	now   time.Duration
}

const lineUnit = 1 << 20

// run completes n units, of which as many are at the adapter as the tuner lets it be.
func (l *line) run(t *tuner, n int, cost func() time.Duration) {
	for range n {
		for len(l.queue) == 0 || uint64(len(l.queue))*lineUnit < t.knobs[knobAhead].value {
			l.queue = append(l.queue, cost())
		}
		l.now += l.queue[0]
		l.queue = append(l.queue[:0], l.queue[1:]...)
		t.moved(lineUnit, l.now)
	}
}

// steps is how many steps a knob is from a value.
func steps(k *knob, from, to uint64) (n int) {
	for v := from; v != to && n < 64; n++ { // a knob that does not get there fails a test, and does not hang it
		v = k.beside(v, v < to)
	}
	return n
}

// values are all that a knob can have.
func values(k *knob) []uint64 {
	all := []uint64{k.min}
	for v := k.min; v < k.max && len(all) < 64; all = append(all, v) {
		v = k.beside(v, true)
	}
	return all
}

// TestTuner: on a machine whose best settings are known it finds them, also when they change, and
// then tries less and less.
func TestTuner(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 2))
		tn := newTuner(&Options{})
		var best [3]uint64
		draw := func(turn string) {
			for i := range tn.knobs {
				best[i] = rapid.SampledFrom(values(&tn.knobs[i])).Draw(t, turn)
			}
		}
		rate := 1e7
		cost := func() time.Duration { // a factor of 1.25 for each step from the best
			r := rate * (1 + 0.02*(rng.Float64()-0.5))
			for i := range tn.knobs {
				for range steps(&tn.knobs[i], tn.knobs[i].value, best[i]) {
					r /= 1.25
				}
			}
			return time.Duration(lineUnit / r * 1e9)
		}
		var l line
		converge := func(when string) {
			l.run(&tn, 150_000, cost)
			for tn.phase != steady {
				l.run(&tn, 1, cost)
			}
			for i := range tn.knobs {
				if v := tn.knobs[i].value; v != best[i] {
					t.Fatalf("%s: knob %d is %d where %d is the best: %+v", when, i, v, best[i], tn)
				}
			}
			if tn.every < 64 {
				t.Fatalf("%s: it tries as often as in the beginning although nothing helps: pause %d, %d trials", when,
					tn.every, tn.tried)
			}
		}
		draw("best")
		converge("first")
		before := tn.changes
		draw("other")
		// the values make 1.25^18 at most, which is 56
		rate *= rapid.SampledFrom([]float64{0.005, 200}).Draw(t, "factor")
		converge("after a change")
		if tn.changes == before {
			t.Fatal("another situation was not noticed")
		}
	})
}

// TestTunerNoise: where nothing matters, noise below the threshold changes nothing at all, and more
// noise moves no knob to and fro more often than what a change back must bring allows.
func TestTunerNoise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 3))
		noise := rapid.Float64Range(0, 0.15).Draw(t, "noise")
		worst := rapid.Bool().Draw(t, "worst") // noise that knows when something is tried
		tn := newTuner(&Options{})
		ratio := (1 + noise) / (1 - noise)
		// a change back that is kept brings 16 %, the next 32 % and so on, and there is no more
		// than this ratio
		most := 0
		for g := 2 * tuneGain; 1+g <= ratio; g *= 2 {
			most++
		}
		var turned [3]int
		for range 20_000 {
			before := tn.knobs
			u := 2*rng.Float64() - 1
			if worst {
				if u = -1; tn.phase == trying {
					u = 1
				}
			}
			tn.judge(1e9 * (1 + noise*u))
			for i := range tn.knobs {
				if d := before[i].turned; d != 0 && tn.knobs[i].turned == -d {
					turned[i]++
				}
			}
		}
		for i, n := range turned {
			if n > most {
				t.Fatalf("noise of %.3f turned knob %d %d times: expected at most %d", noise, i, n, most)
			}
		}
		if ratio < 1+tuneGain && tn.kept > 0 {
			t.Fatalf("noise of %.3f changed something", noise)
		}
		if tn.tried == 0 || tn.changes > 0 {
			t.Fatalf("%d trials, %d changes", tn.tried, tn.changes)
		}
		// In another situation a change back is a change like any other.
		for tn.phase != steady {
			tn.judge(1e9)
		}
		tn.judge(1e12)
		for i := range tn.knobs {
			if k := &tn.knobs[i]; k.needs(1) != 1+tuneGain || k.needs(-1) != 1+tuneGain || tn.changes != 1 {
				t.Fatalf("knob %d needs %.2f and %.2f in another situation (%d)", i, k.needs(1), k.needs(-1),
					tn.changes)
			}
		}
	})
}

// TestTunerBounds: whatever it learns, every value stays within the bounds, and what is fixed stays
// as it is.
func TestTunerBounds(t *testing.T) {
	bounds := func(t *rapid.T, name string, lo, hi uint64) Bounds {
		a, b := rapid.Uint64Range(lo, hi).Draw(t, name), rapid.Uint64Range(lo, hi).Draw(t, name)
		if rapid.Bool().Draw(t, name+" own") {
			return Bounds{}
		}
		return Bounds{min(a, b), max(a, b)}
	}
	rapid.Check(t, func(t *rapid.T) {
		o := Options{Tuning: Tuning{bounds(t, "piece", 4096, 1<<30), bounds(t, "signal", 1, 64),
			bounds(t, "ahead", 64<<10, 1<<30), bounds(t, "inline", 0, 400)}}
		if err := o.Check(); err != nil {
			t.Fatal(err)
		}
		fixed := rapid.Bool().Draw(t, "fixed")
		if fixed {
			o.Piece, o.Signal = just(5000), just(3)
		}
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 4))
		most := rapid.SampledFrom([]uint64{0, 60, 64, 220}).Draw(t, "inline at most")
		for _, tn := range []tuner{newTuner(&o), newInlineTuner(&o, most)} {
			var now time.Duration
			moved := false
			began := tn
			for range 5000 {
				switch rng.IntN(8) {
				case 0:
					tn.idle()
				case 1:
					tn.size(rng.Uint64N(most + 1))
				case 2:
					tn.took(uint64(rng.IntN(1<<24)), time.Duration(rng.IntN(1e7))-1e6)
				case 3:
					tn.judge(1e9 * rng.ExpFloat64())
				default:
					now += time.Duration(rng.IntN(1e7))
					tn.moved(uint64(rng.IntN(1<<24)), now)
				}
				for i := range tn.n {
					k := &tn.knobs[i]
					if k.value < k.min || k.value > k.max || k.min != began.knobs[i].min ||
						k.max != began.knobs[i].max {
						t.Fatalf("knob %d is %d: expected %d to %d", i, k.value, k.min, k.max)
					}
					moved = moved || k.value != began.knobs[i].value
				}
			}
			if tn.fixed() && (moved || tn.tried > 0) {
				t.Fatalf("what was fixed moved, or %d trials", tn.tried)
			}
			if tn.sizes && tn.knobs[0].max > most {
				t.Fatalf("it puts %d bytes into a request that takes %d", tn.knobs[0].max, most)
			}
		}
		if f := newTuner(&o); fixed && (f.knobs[knobPiece].value != 5000 || f.knobs[knobSignal].value != 3) {
			t.Fatalf("what the user gave is not what is taken: %+v", f)
		}
	})
	for _, bad := range []Tuning{{Piece: Bounds{1 << 20, 1 << 19}}, {Signal: Bounds{0, 8}},
		{Ahead: Bounds{1 << 20, 1 << 40}}, {Inline: Bounds{0, 1 << 20}}} {
		o := Options{Tuning: bad}
		if err := o.Check(); !errors.Is(err, path.ErrUnavailable) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// TestTunerOtherGain: a rate that rises for another reason while a value is tried does not keep the
// value.
func TestTunerOtherGain(t *testing.T) {
	tn := newTuner(&Options{})
	rate := 1e9
	for range 300 {
		if tn.phase == trying {
			rate *= 1.2 // by itself, and for good
		}
		tn.judge(rate)
	}
	if tn.kept != 0 || tn.tried < 3 {
		t.Errorf("%d of %d changes were kept", tn.kept, tn.tried)
	}
}

// TestTunerInline: the threshold goes to where the writes that there are gain from it, without
// trying what none of them feels.
func TestTunerInline(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 5))
		sizes := rapid.SliceOfNDistinct(rapid.Uint64Range(1, 220), 1, 3, rapid.ID).Draw(t, "sizes")
		turn := rapid.Uint64Range(0, 220).Draw(t, "turn") // what is longer is slower in the request
		tn := newInlineTuner(&Options{}, 220)
		rate := func(threshold uint64) float64 {
			ns := 0.0
			for _, n := range sizes {
				if ns += 1000; n <= threshold && n > turn {
					ns += 700
				} else if n <= threshold {
					ns -= 500
				}
			}
			return float64(len(sizes)) / ns * 1e9
		}
		felt := func(a, b uint64) bool {
			for _, n := range sizes {
				if n > min(a, b) && n <= max(a, b) {
					return true
				}
			}
			return false
		}
		k := &tn.knobs[0]
		for range 4000 {
			at := k.value
			r := rate(at) * (1 + 0.02*(rng.Float64()-0.5))
			for _, n := range sizes {
				tn.size(n)
			}
			tn.took(tuneRequests, time.Duration(tuneRequests/r*1e9))
			// Classes of sizes are what it knows, so a step may be tried beside which there is a
			// size of the class.
			if k.value != at && !felt(at, k.value) && (at < 128 || k.value < 128) {
				t.Fatalf("from %d to %d is tried, and the sizes are %v", at, k.value, sizes)
			}
		}
		// No step beside where it is gains more than what noise would.
		if tn.phase == steady {
			for _, v := range []uint64{k.beside(k.value, true), k.beside(k.value, false)} {
				if rate(v) > rate(k.value)*(1+tuneGain)*1.05 {
					t.Fatalf("the threshold is %d, and %d would be better: %v", k.value, v, sizes)
				}
			}
		}
	})
}
