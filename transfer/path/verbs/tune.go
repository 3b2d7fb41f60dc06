package verbs

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/penstock-io/penstock/transfer/path"
)

// knob is a setting that a tuner may change, by doubling and halving: its values are 0 where min
// is, unit, 2 unit, 4 unit and so on, and its bounds.
type knob struct {
	value    uint64
	unit     uint64
	min, max uint64
	turned   int8    // direction of the last change that was kept, 0 none yet
	against  float64 // what a change in the other direction must bring
}

// Bounds are between which values a path looks for the best one. Zero Bounds are the path's own;
// where Min is Max, that is the value.
type Bounds struct{ Min, Max uint64 }

// Tuning has the bounds of what a path finds out by trying, in Options.
type Tuning struct {
	Piece  Bounds // bytes that one request moves at most; 64 KiB to 8 MiB
	Signal Bounds // the path signals one request in this many; 1 to 64
	Ahead  Bounds // bytes of bulk operations at the adapter; 1 to 32 MiB
	Inline Bounds // bytes that travel in the request itself; 0 to what the device takes
}

// check refuses bounds that hold no value, or that the path does not work with.
func (t *Tuning) check() error {
	for _, c := range []struct {
		name     string
		b        Bounds
		min, max uint64
	}{
		{"Piece", t.Piece, 4096, 1 << 30}, {"Signal", t.Signal, 1, 64}, {"Ahead", t.Ahead, 64 << 10, 1 << 30}, {"Inline", t.Inline, 0, 1 << 16},
	} {
		if c.b != (Bounds{}) && (c.b.Min > c.b.Max || c.b.Min < c.min || c.b.Max > c.max) {
			return fmt.Errorf("verbs: Options.%s is %d to %d: expected nothing, or bounds in order from %d "+
				"to %d: %w",
				c.name, c.b.Min, c.b.Max, c.min, c.max, path.ErrUnavailable)
		}
	}
	return nil
}

// within makes a knob that begins at start, or as near to it as the bounds allow.
func within(b Bounds, unit, start uint64) knob {
	return knob{value: min(max(start, b.Min), b.Max), unit: unit, min: b.Min, max: b.Max, against: 2 * tuneGain}
}

// beside is the next value in a direction; the same one where there is none.
func (k *knob) beside(v uint64, up bool) uint64 {
	if up {
		w := k.unit
		for w <= v {
			w *= 2
		}
		return min(w, k.max)
	}
	if v <= k.unit {
		return k.min
	}
	return max(k.unit<<(bits.Len64((v-1)/k.unit)-1), k.min)
}

const (
	tuneBytes    = 8 << 20              // an epoch of bulk operations moves at least this much
	tuneRequests = 4096                 // an epoch of short writes has so many of them
	tuneTime     = 2 * time.Millisecond // and each lasts at least so long
	tuneGain     = 0.08                 // the share by which a change must be better to stay: less is noise
	// a rate below this share of the usual one, or as far above it, is another situation: begin
	// again
	tuneLoss     = 0.70
	tunePause    = 16 // epochs between two trials, in the beginning
	tunePauseMax = 1024
)

// phase is where a tuner is in a trial.
type phase uint8

const (
	steady   phase = iota
	trying         // with the new value
	checking       // with the old value again: a gain that stays without the change came from elsewhere
)

// tuner sets up to three knobs by trying: it changes one by one step, looks whether the rate gets
// better by more than noise, goes back, looks whether the gain is gone, and only then keeps the
// change. A change back must bring twice as much, and twice as much again each time that one is
// kept, so that noise moves nothing to and fro. It tries less and less often while nothing helps.
// It is pure: it learns of work and times by calls, and reads no clock.
type tuner struct {
	knobs [3]knob
	n     int    // of them
	epoch uint64 // work in an epoch
	sizes bool   // the one knob is a bound of sizes: steps over which nothing was seen are not tried

	begun bool
	since time.Duration // when the bytes that moved reports began
	done  uint64        // work in this epoch
	spent time.Duration
	felt  uint64 // classes of sizes that were seen in this epoch
	stale uint64 // work to come that may have begun before the last change

	base    float64 // work per second with the values that are kept
	turn    int     // which knob in which direction is tried next
	phase   phase
	old     uint64  // the value before the trial
	new     uint64  // and of it
	won     float64 // the rate of the trial
	pause   int     // epochs until the next trial
	every   int     // pause after a trial that did not help
	kept    uint64  // trials that helped
	tried   uint64
	changes uint64 // changes of the situation
}

// The knobs of bulk operations. Short writes have one, the inline threshold.
const (
	knobPiece = iota
	knobSignal
	knobAhead
)

// inlineUnit is the smallest inline threshold beside 0.
const inlineUnit = 32

// tuned is what a path found out so far, or what its Options set.
type tuned struct {
	piece, signal, ahead, inline uint64 // values of the knobs
	tried, kept                  uint64 // changes that were tried; of these, the ones that gained and stayed
	fixed                        bool   // nothing is tried: all values are the user's
}

// tuned is the state of the tuners, for others to read.
func (p *Path) tuned() tuned {
	t, s := &p.tuner, &p.inlineTuner
	return tuned{t.knobs[knobPiece].value, t.knobs[knobSignal].value, t.knobs[knobAhead].value, s.knobs[0].value,
		t.tried + s.tried, t.kept + s.kept, t.fixed() && s.fixed()}
}

// String is a line for Explain.
func (t tuned) String() string {
	how := fmt.Sprintf("%d of %d changes that were tried were kept", t.kept, t.tried)
	if t.fixed {
		how = "as configured"
	}
	return fmt.Sprintf("pieces of up to %d KiB, every %dth request signalled, up to %d KiB at the adapter, up to %d "+
		"bytes inline (%s)",
		t.piece>>10, t.signal, t.ahead>>10, t.inline, how)
}

// newTuner is the tuner of bulk operations.
func newTuner(o *Options) tuner {
	t := tuner{n: 3, epoch: tuneBytes, pause: tunePause, every: tunePause}
	t.knobs[knobPiece] = within(cmp.Or(o.Piece, Bounds{64 << 10, 8 << 20}), 64<<10, 1<<20)
	t.knobs[knobSignal] = within(cmp.Or(o.Signal, Bounds{1, 64}), 1, 16)
	t.knobs[knobAhead] = within(cmp.Or(o.Ahead, Bounds{1 << 20, 32 << 20}), 1<<20, bulkAhead)
	return t
}

// newInlineTuner is the tuner of short writes, on a device that takes so many bytes in a request.
func newInlineTuner(o *Options, most uint64) tuner {
	t := tuner{n: 1, epoch: tuneRequests, pause: tunePause, every: tunePause, sizes: true}
	b := cmp.Or(o.Inline, Bounds{0, most})
	t.knobs[0] = within(Bounds{min(b.Min, most), min(b.Max, most)}, inlineUnit, most)
	return t
}

// fixed says that there is nothing to try: all values are the user's.
func (t *tuner) fixed() bool {
	return !slices.ContainsFunc(t.knobs[:t.n], func(k knob) bool { return k.min != k.max })
}

// idle says that nothing is under way: the time until the next work is no one's fault.
func (t *tuner) idle() { t.begun = false }

// moved takes in that n units of work were completed by now, on a clock that only has to go
// forward.
func (t *tuner) moved(n uint64, now time.Duration) {
	since := t.since
	t.since = now
	if !t.begun {
		t.begun = true
		return
	}
	t.took(n, now-since)
}

// took takes in that n units of work took so long.
func (t *tuner) took(n uint64, d time.Duration) {
	if t.stale > 0 {
		t.stale -= min(n, t.stale)
		return
	}
	t.done += n
	t.spent += max(d, 0)
	if t.done < t.epoch || t.spent < tuneTime {
		return
	}
	rate := float64(t.done) / t.spent.Seconds()
	t.done, t.spent = 0, 0
	if !t.fixed() {
		t.judge(rate)
	}
	t.felt = 0
}

// size takes in the size of a short write.
func (t *tuner) size(n uint64) { t.felt |= 1 << sizeClass(n) }

// sizeClass numbers the sizes by the lowest threshold that has them in the request.
func sizeClass(n uint64) int { return bits.Len64((max(n, 1) - 1) / inlineUnit) }

// step is the value that a trial in this direction has; false: there is none that would show.
func (t *tuner) step(k *knob, up bool) (uint64, bool) {
	for v := k.value; ; {
		w := k.beside(v, up)
		if w == v {
			return 0, false
		}
		if !t.sizes {
			return w, true
		}
		lo, hi := min(v, w), max(v, w)
		between := uint64(1)<<(sizeClass(hi)+1) - 1
		between &^= 1<<bits.Len64(lo/inlineUnit) - 1
		if t.felt&between != 0 {
			return w, true
		}
		v = w
	}
}

// needs is the factor by which a change in a direction must be better.
func (k *knob) needs(dir int8) float64 {
	if k.turned == -dir {
		return 1 + k.against
	}
	return 1 + tuneGain
}

// set gives a knob a value. What is at the adapter by then was posted with the old one, and says
// nothing about the new one.
func (t *tuner) set(k *knob, v uint64) {
	before := t.ahead()
	k.value = v
	t.stale = max(before, t.ahead())
}

// ahead is how much work may be at the adapter.
func (t *tuner) ahead() uint64 {
	if t.sizes {
		return shortMost
	}
	return t.knobs[knobAhead].value
}

// judge takes in the rate of an epoch.
func (t *tuner) judge(rate float64) {
	k := &t.knobs[t.turn/2]
	dir := int8(1 - 2*(t.turn%2)) // up, then down
	switch t.phase {
	case trying:
		t.set(k, t.old)
		if rate < t.base*k.needs(dir) {
			t.failed()
			return
		}
		t.phase, t.won = checking, rate
		return
	case checking:
		if t.won < rate*k.needs(dir) {
			t.failed()
			t.usual(rate)
			return
		}
		t.set(k, t.new)
		t.phase, t.base = steady, t.won
		if k.turned == -dir {
			k.against *= 2
		}
		k.turned = dir
		t.kept++
		t.every, t.pause = tunePause, 1
		return // and the same direction again
	}
	t.usual(rate)
	if t.pause--; t.pause > 0 {
		return
	}
	v, ok := t.step(k, dir > 0)
	if !ok {
		t.turn, t.pause = (t.turn+1)%(2*t.n), 1
		return
	}
	t.old, t.new, t.phase = k.value, v, trying
	t.set(k, v)
	t.tried++
}

func (t *tuner) failed() {
	t.phase = steady
	t.turn = (t.turn + 1) % (2 * t.n)
	t.every = min(2*t.every, tunePauseMax)
	t.pause = t.every
}

// usual takes in a rate with the values that are kept.
func (t *tuner) usual(rate float64) {
	switch {
	case t.base == 0:
		t.base = rate
	case rate < t.base*tuneLoss || rate > t.base/tuneLoss:
		t.base, t.every, t.pause = rate, tunePause, min(t.pause, tunePause)
		t.changes++
		for i := range t.knobs {
			t.knobs[i].turned, t.knobs[i].against = 0, 2*tuneGain
		}
	default:
		t.base += (rate - t.base) / 4 // the average of the last epochs: one lucky epoch sets no standard
	}
}

// shortEvery: of so many times that short writes get under way, one is measured, so that most read
// no clock.
const shortEvery = 16

// shortMost ends a measurement that would last as long as the writes do not pause.
const shortMost = 256

// shortMeter tells the tuner of short writes, those that may travel in their requests, how long
// they take.
type shortMeter struct {
	under  int // under way
	skip   int
	active bool
	start  time.Duration
	done   uint64
}

// shortPosted takes in that a short write was posted. Beside bulk operations it says nothing about
// thresholds.
func (p *Path) shortPosted(n uint64) {
	m := &p.short
	if !m.active {
		if m.skip--; m.skip < 0 {
			m.skip = shortEvery - 1
			if p.ahead == 0 {
				m.active, m.start, m.done = true, time.Since(p.began), 0
			}
		}
	}
	m.under++
	p.inlineTuner.size(n)
}

// shortEnded takes in the end of one.
func (p *Path) shortEnded(ok bool) {
	m := &p.short
	m.under--
	if !m.active {
		return
	}
	m.done++
	switch {
	case !ok || p.ahead > 0:
		m.active = false
	case m.under == 0 || m.done >= shortMost:
		m.active = false
		p.inlineTuner.took(m.done, time.Since(p.began)-m.start)
		p.dirty = true
	}
}
