package verbs

import (
	"fmt"
	"time"
)

// knob is a setting that the tuner may change: a power of two times min.
type knob struct {
	name     string
	value    uint64
	min, max uint64
}

func (k *knob) step(up bool) bool {
	v := k.value / 2
	if up {
		v = k.value * 2
	}
	if v < k.min || v > k.max || v == k.value {
		return false
	}
	k.value = v
	return true
}

const (
	tuneBytes    = 8 << 20              // an epoch moves at least this much
	tuneTime     = 2 * time.Millisecond // and lasts at least so long
	tuneGain     = 1.08                 // what a change must bring to stay: less is noise
	tuneLoss     = 0.70                 // a rate below this share of the best one is another situation: begin anew
	tunePause    = 16                   // epochs between two trials, in the beginning
	tunePauseMax = 1024
)

// tuner sets the size of pieces and the interval of signalled requests by trying: it changes one knob by one step, looks whether
// the rate gets better by more than noise, and takes the change back if not. It tries less and less often while nothing helps.
// It is pure: it learns of bytes and times by calls, and reads no clock.
type tuner struct {
	knobs [2]knob
	off   bool // the values are the user's

	begun bool
	since time.Duration // start of the epoch
	bytes uint64
	base  float64 // bytes per second with the values that are kept
	turn  int     // which knob in which direction is tried next
	trial bool
	old   uint64 // the value before the trial
	pause int    // epochs until the next trial
	every int    // pause after a trial that did not help
	kept  int    // trials that helped
	tried int
}

const (
	knobPiece = iota
	knobSignal
)

func newTuner(piece, signal uint64) tuner {
	t := tuner{pause: tunePause, every: tunePause}
	t.knobs[knobPiece] = knob{"piece", 1 << 20, 64 << 10, 8 << 20}
	t.knobs[knobSignal] = knob{"signal interval", 16, 1, 64}
	if piece != 0 || signal != 0 {
		t.off = true
		if piece != 0 {
			t.knobs[knobPiece].value = piece
		}
		if signal != 0 {
			t.knobs[knobSignal].value = signal
		}
	}
	return t
}

// idle says that nothing is under way: the time until the next bytes is no one's fault.
func (t *tuner) idle() { t.begun = false }

// moved takes in that n bytes were completed by now, on a clock that only has to go forward.
func (t *tuner) moved(n uint64, now time.Duration) {
	if t.off {
		return
	}
	if !t.begun {
		t.begun, t.since, t.bytes = true, now, 0
		return
	}
	t.bytes += n
	took := now - t.since
	if t.bytes < tuneBytes || took < tuneTime {
		return
	}
	rate := float64(t.bytes) / took.Seconds()
	t.begun = false
	t.epoch(rate)
}

func (t *tuner) epoch(rate float64) {
	k := &t.knobs[t.turn/2]
	switch {
	case t.trial:
		t.trial = false
		if rate >= t.base*tuneGain {
			t.base, t.every, t.pause = rate, tunePause, 1
			t.kept++
			return // and the same direction again
		}
		k.value = t.old
		t.turn = (t.turn + 1) % (2 * len(t.knobs))
		t.every = min(2*t.every, tunePauseMax)
		t.pause = t.every
		return
	case t.base == 0:
		t.base = rate
	case rate < t.base*tuneLoss:
		t.base, t.every, t.pause = rate, tunePause, min(t.pause, tunePause)
	default:
		t.base += (rate - t.base) / 4 // the average of the last epochs: one lucky epoch sets no standard
	}
	if t.pause--; t.pause > 0 {
		return
	}
	t.old = k.value
	if t.trial = k.step(t.turn%2 == 0); t.trial {
		t.tried++
		return
	}
	t.turn, t.pause = (t.turn+1)%(2*len(t.knobs)), 1
}

func (t *tuner) String() string {
	how := fmt.Sprintf("%d of %d changes that were tried were kept", t.kept, t.tried)
	if t.off {
		how = "as configured"
	}
	return fmt.Sprintf("pieces of up to %d KiB, every %dth request signalled (%s)", t.knobs[knobPiece].value>>10, t.knobs[knobSignal].value, how)
}
