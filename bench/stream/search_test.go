package stream

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"pgregory.net/rapid"
)

// device loses what is above its capacity, and its sender reaches so much at most.
type device struct {
	capacity, reach float64
	trials          int
	flaky           map[int]bool // trials that lose a packet for no reason
}

func (d *device) trial(_ context.Context, rate float64) (Outcome, error) {
	d.trials++
	sent := uint64(1000 * min(rate, d.reach))
	lost := uint64(0)
	if min(rate, d.reach) > d.capacity {
		lost = max(1, sent-uint64(1000*d.capacity))
	}
	if d.flaky[d.trials] {
		lost = max(lost, 1)
	}
	return Outcome{Sent: sent, Lost: lost, Reached: rate <= d.reach}, nil
}

func TestSearchFindsAnyCapacity(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		high := rapid.Float64Range(10, 1e9).Draw(t, "high")
		d := &device{capacity: high * rapid.Float64Range(0.01, 1.2).Draw(t, "capacity"),
			reach: high * rapid.Float64Range(0.01, 1.2).Draw(t, "reach")}
		o := SearchOptions{Low: high / 1000, High: high,
			Resolution: rapid.Float64Range(0.001, 0.2).Draw(t, "resolution")}
		f, err := Search(t.Context(), o, d.trial)
		if err != nil {
			t.Fatal(err)
		}
		most := min(d.capacity, d.reach)
		limit := ByLoss
		switch {
		case most >= high:
			limit = ByHigh
		case d.reach <= d.capacity:
			limit = BySender
		}
		if f.Rate > most || f.Rate < min(most, high)-o.Resolution*high || f.Trials != d.trials || f.Verified != 2 ||
			f.Unstable != 0 {
			t.Fatalf("%+v; want up to %v", f, most)
		}
		// Above its capacity a device loses packets even where the sender is the limit a little
		// higher.
		if f.Limit != limit && (limit == ByHigh || math.Abs(d.capacity-d.reach) > o.Resolution*high) {
			t.Fatalf("%+v; want limit %v", f, limit)
		}
	})
}

func TestSearchLoss(t *testing.T) {
	ramp := func(_ context.Context, rate float64) (Outcome, error) { // loses a part that grows with the rate
		return Outcome{Sent: 1e6, Lost: uint64(rate * 100), Reached: true}, nil
	}
	f, err := Search(t.Context(), SearchOptions{Low: 1, High: 1000, Resolution: 0.001, MaxLoss: 0.05}, ramp)
	if err != nil || f.Rate > 500 || f.Rate < 499 {
		t.Errorf("%+v, %v; want 500 packets/s at a loss of 5%%", f, err)
	}
	f, err = Search(t.Context(), SearchOptions{Low: 1, High: 1000}, ramp)
	if err != nil || f.Rate != 0 || f.Limit != ByLow {
		t.Errorf("%+v, %v; want nothing", f, err)
	}
	// The lowest rate is tried.
	d := &device{capacity: 1.5, reach: 1e9}
	f, err = Search(t.Context(), SearchOptions{Low: 1, High: 1000}, d.trial)
	if err != nil || f.Rate != 1 {
		t.Errorf("%+v, %v; want 1 packet/s", f, err)
	}
	none := func(context.Context, float64) (Outcome, error) { return Outcome{Reached: true}, nil }
	if f, err := Search(t.Context(), SearchOptions{Low: 1, High: 1}, none); err != nil || f.Limit != ByLow {
		t.Errorf("%+v, %v: trials in which nothing was sent pass", f, err)
	}
}

// A rate that passes and then fails is given up, and one below it is found that holds.
func TestSearchVerifies(t *testing.T) {
	d := &device{capacity: 600, reach: 1e9}
	clean, err := Search(t.Context(), SearchOptions{Low: 1, High: 1000, Verify: -1}, d.trial)
	if err != nil || clean.Verified != 0 {
		t.Fatal(clean, err)
	}
	// The first repetition of what was found fails.
	d = &device{capacity: 600, reach: 1e9, flaky: map[int]bool{clean.Trials + 1: true}}
	f, err := Search(t.Context(), SearchOptions{Low: 1, High: 1000}, d.trial)
	if err != nil || f.Unstable != 1 || f.Rate >= clean.Rate || f.Rate < clean.Rate-30 || f.Verified != 2 {
		t.Errorf("%+v after %+v, %v", f, clean, err)
	}
	// A trial that fails once is made again where that is asked for.
	d = &device{capacity: 2000, reach: 1e9, flaky: map[int]bool{1: true}}
	if f, err = Search(t.Context(), SearchOptions{Low: 1, High: 1000, Retry: 1}, d.trial); err != nil ||
		f.Rate != 1000 || f.Trials != 4 {
		t.Errorf("%+v, %v; want 1000 packets/s after 4 trials", f, err)
	}
	d.trials = 0
	if f, err = Search(t.Context(), SearchOptions{Low: 1, High: 1000}, d.trial); err != nil || f.Rate >= 1000 {
		t.Errorf("%+v, %v; want less", f, err)
	}
	// Where nothing ever holds, it ends.
	n := 0
	coin := func(context.Context, float64) (Outcome, error) {
		n++
		return Outcome{Sent: 10, Lost: uint64(n % 2), Reached: true}, nil
	}
	if f, err = Search(t.Context(), SearchOptions{Low: 1e-9, High: 1e9, Resolution: 1e-12}, coin); err != nil ||
		f.Limit != ByLow || n > maxTrials {
		t.Errorf("%+v, %v after %d trials", f, err, n)
	}
}

func TestSearchErrors(t *testing.T) {
	broken := errors.New("broken")
	bad := func(context.Context, float64) (Outcome, error) { return Outcome{}, broken }
	if _, err := Search(t.Context(), SearchOptions{Low: 1, High: 2}, bad); !errors.Is(err, broken) {
		t.Error(err)
	}
	for _, o := range []SearchOptions{{}, {Low: 2, High: 1}, {Low: 1, High: math.Inf(1)}, {Low: 1, High: math.NaN()},
		{Low: 1, High: 2, Resolution: 1}, {Low: 1, High: 2, MaxLoss: 1},
		{Low: 1, High: 2, Retry: -1}} {
		if _, err := Search(t.Context(), o, bad); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := LossTable(t.Context(), 0, 0.1, bad); !errors.Is(err, engine.ErrInvalid) {
		t.Error(err)
	}
	if _, err := LossTable(t.Context(), 1, 0.1, bad); !errors.Is(err, broken) {
		t.Error(err)
	}
	if _, _, err := BackToBack(t.Context(), 10, func(context.Context, uint64) (Outcome, error) {
		return Outcome{}, broken
	}); !errors.Is(err, broken) {
		t.Error(err)
	}
}

func TestLossTable(t *testing.T) {
	d := &device{capacity: 650, reach: 1e9}
	p, err := LossTable(t.Context(), 1000, 0.1, d.trial)
	if err != nil || len(p) != 6 { // 100, 90, 80, 70 lose; 60 and 50 do not
		t.Fatalf("%+v, %v", p, err)
	}
	for i, x := range p {
		if x.Part != 1-float64(i)*0.1 || (x.Lost > 0) != (i < 4) {
			t.Errorf("line %d: %+v", i, x)
		}
	}
	one := func(_ context.Context, rate float64) (Outcome, error) { // a single packet is loss
		return Outcome{Sent: 1e6, Lost: uint64(rate / 800), Reached: true}, nil
	}
	if p, err = LossTable(t.Context(), 1000, 0.1, one); err != nil || len(p) != 5 || p[1].Lost != 1 && p[2].Lost != 1 {
		t.Errorf("%+v, %v; want loss at 100, 90 and 80%%", p, err)
	}
	if p, err = LossTable(t.Context(), 1e6, 0.5, d.trial); err != nil || len(p) != 2 {
		t.Errorf("%+v, %v; want two lines, both with loss", p, err)
	}
}

func TestBackToBack(t *testing.T) {
	// What passes once and not twice has not passed.
	passed := map[uint64]bool{}
	n, _, err := BackToBack(t.Context(), 1000, func(_ context.Context, packets uint64) (Outcome, error) {
		again := passed[packets]
		passed[packets] = true
		lost := uint64(0)
		if packets > 100 && again {
			lost = 1
		}
		return Outcome{Sent: packets, Lost: lost}, nil
	})
	if err != nil || n > 100 || n < 90 {
		t.Errorf("%d, %v; want 100", n, err)
	}

	for _, room := range []uint64{0, 1, 7, 1000, 4096, 1 << 20} {
		n, trials, err := BackToBack(t.Context(), 1<<14, func(_ context.Context, packets uint64) (Outcome, error) {
			return Outcome{Sent: packets, Lost: packets - min(packets, room)}, nil
		})
		want := min(room, 1<<14)
		if err != nil || n > want || n < want-want/32 || trials > 40 {
			t.Errorf("room for %d: %d after %d trials, %v", room, n, trials, err)
		}
	}
}
