package stream

import (
	"context"
	"fmt"
	"math"

	"github.com/penstock-io/penstock/engine"
)

// Outcome is what a search must know of a trial.
type Outcome struct {
	Sent uint64
	Lost uint64
	// Reached says that the sender kept up with the rate. A trial in which it did not fails,
	// whatever the cause.
	Reached bool
}

// TrialFunc makes a trial at a rate, in packets per second.
type TrialFunc func(ctx context.Context, rate float64) (Outcome, error)

// SearchOptions say how Search looks.
type SearchOptions struct {
	Low, High float64 // rates between which the answer is looked for; Low above 0
	// Resolution ends the search: a part of High by which the answer may be too low. 0: 0.01.
	Resolution float64
	// MaxLoss is the part of packets that may be lost in a trial that passes; 0: none.
	MaxLoss float64
	// Verify is how often the found rate must pass once more. When it does not, the search goes on
	// below it. 0: 2; negative: never.
	Verify int
	// Retry is how often a trial that failed is made again before it is believed: one that passes
	// counts (loss verification, ETSI GS NFV-TST 009, section 12.3.3). It is for disturbances that
	// have nothing to do with the rate.
	Retry int
}

// Limit says what a search ended at.
type Limit uint8

// The limits.
const (
	ByLoss   Limit = iota // the next higher rate lost packets
	BySender              // the next higher rate was not reached by the sender
	ByHigh                // SearchOptions.High passed: nothing higher was tried
	ByLow                 // not even SearchOptions.Low passed
)

func (l Limit) String() string {
	if int(l) < len(limitNames) {
		return limitNames[l]
	}
	return fmt.Sprintf("limit %d", uint8(l))
}

var limitNames = []string{"loss", "sender", "none", "nothing passed"}

// Found is the answer of a search.
type Found struct {
	Rate     float64 // the highest that passed every time; 0 with ByLow
	Limit    Limit
	Trials   int
	Verified int // how often Rate passed after it was found
	// Unstable is the number of rates that passed first and failed when they were verified.
	Unstable int
}

func (o *SearchOptions) complete() error {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("%w: stream: search: %s", engine.ErrInvalid, fmt.Sprintf(format, a...))
	}
	if o.Resolution == 0 {
		o.Resolution = 0.01
	}
	if o.Verify == 0 {
		o.Verify = 2
	}
	switch {
	case !(o.Low > 0 && o.Low <= o.High) || math.IsInf(o.High, 0):
		return bad("from %v to %v packets/s: expected positive rates in ascending order", o.Low, o.High)
	case !(o.Resolution > 0 && o.Resolution < 1):
		return bad("resolution %v: expected a part between 0 and 1", o.Resolution)
	case !(o.MaxLoss >= 0 && o.MaxLoss < 1):
		return bad("loss of %v: expected a part from 0 up to 1", o.MaxLoss)
	case o.Verify > 1000 || o.Retry < 0 || o.Retry > 1000:
		return bad("verify %d, retry %d: expected up to 1000", o.Verify, o.Retry)
	}
	return nil
}

// maxTrials bounds a search on a machine on which nothing ever passes twice.
const maxTrials = 400

// Search looks for the highest rate at which no more than MaxLoss of the packets are lost (RFC
// 2544, section 26.1). It begins at High, goes on by halves of what is left, and verifies what it
// has found. Trials that fail although they passed before lower the bound: the answer is a rate
// that passed 1 + Verify times without a failure.
func Search(ctx context.Context, o SearchOptions, trial TrialFunc) (Found, error) {
	var f Found
	if err := o.complete(); err != nil {
		return f, err
	}
	failed := ByLoss // why the lowest failing rate failed
	pass := func(rate float64, retries int) (bool, error) {
		for try := 0; ; try++ {
			f.Trials++
			x, err := trial(ctx, rate)
			if err != nil {
				return false, fmt.Errorf("stream: trial %d, at %.0f packets/s: %w", f.Trials, rate, err)
			}
			lossy := float64(x.Lost) > o.MaxLoss*float64(x.Sent) || x.Sent == 0
			if !lossy && x.Reached {
				return true, nil
			}
			if failed = ByLoss; !lossy {
				failed = BySender
			}
			if try >= retries || f.Trials >= maxTrials {
				return false, nil
			}
		}
	}
	low, high := 0.0, o.High // low passed or is 0, high failed or was not tried
	why := ByHigh
	step := o.Resolution * o.High
	back := step // below a rate that did not hold
	for next := o.High; ; {
		ok, err := pass(next, o.Retry)
		if err != nil {
			return f, err
		}
		if ok {
			low = next
		} else {
			high, why = next, failed
		}
		if low > 0 && (high-low <= step || low == o.High) {
			if ok, err = confirm(&f, o.Verify, low, pass); err != nil {
				return f, err
			}
			if ok {
				f.Rate, f.Limit, f.Verified = low, why, max(o.Verify, 0)
				return f, nil
			}
			f.Unstable++
			high, why, low = low, failed, 0
		}
		if high <= o.Low || f.Trials >= maxTrials {
			f.Limit = ByLow
			return f, nil
		}
		switch {
		case low > 0:
			next = (low + high) / 2
		case f.Unstable > 0 && high-back > o.Low:
			next = high - back // near what was found, and not from the beginning
			back *= 2
		default:
			next = max((o.Low+high)/2, o.Low)
			if next-o.Low <= step/2 {
				next = o.Low
			}
		}
	}
}

// confirm makes the found rate pass once more, as often as asked for.
func confirm(f *Found, times int, rate float64, pass func(float64, int) (bool, error)) (bool, error) {
	for range times {
		if ok, err := pass(rate, 0); !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}

// LossPoint is a line of LossTable.
type LossPoint struct {
	Part float64 // of the highest rate
	Rate float64 // packets per second
	Outcome
}

// LossTable tells the loss at falling rates (RFC 2544, section 26.3): from the highest down by
// steps of a part of it, until two in a row lose nothing.
func LossTable(ctx context.Context, highest, step float64, trial TrialFunc) ([]LossPoint, error) {
	if !(highest > 0 && step > 0 && step <= 0.5) {
		return nil, fmt.Errorf("%w: stream: loss from %v packets/s by %v: expected a rate, and a step of up to 0.5",
			engine.ErrInvalid, highest, step)
	}
	var out []LossPoint
	clean := 0
	for k := 0; clean < 2; k++ {
		part := 1 - float64(k)*step
		if part <= step/2 {
			break
		}
		x, err := trial(ctx, part*highest)
		if err != nil {
			return out, fmt.Errorf("stream: at %.0f packets/s: %w", part*highest, err)
		}
		out = append(out, LossPoint{Part: part, Rate: part * highest, Outcome: x})
		if clean++; x.Lost > 0 {
			clean = 0
		}
	}
	return out, nil
}

// BackToBack looks for the longest burst that passes without loss (RFC 2544, section 26.4), from 1
// up to most packets: trial sends that many back to back. The answer is the longest one that passed
// and has passed once more, 0 if none has.
func BackToBack(ctx context.Context, most uint64, trial func(ctx context.Context, packets uint64) (Outcome,
	error)) (longest uint64, trials int, err error) {
	pass := func(n uint64) (bool, error) {
		trials++
		x, err := trial(ctx, n)
		if err != nil {
			return false, fmt.Errorf("stream: burst of %d packets: %w", n, err)
		}
		return x.Lost == 0 && x.Sent == n, nil
	}
	low, high := uint64(0), most+1 // low passed, high fails or is too long
	for high-low > 1 && high-low > high/64 {
		mid := low + (high-low)/2
		if low == 0 && high == most+1 {
			mid = most
		}
		ok, err := pass(mid)
		if ok && err == nil {
			ok, err = pass(mid)
		}
		if err != nil {
			return low, trials, err
		}
		if ok {
			low = mid
		} else {
			high = mid
		}
		if low == most {
			break
		}
	}
	return low, trials, nil
}
