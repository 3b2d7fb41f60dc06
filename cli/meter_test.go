package cli

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestMeterSteady(t *testing.T) {
	now := time.Unix(1000, 0)
	var m meter
	m.start(now, 1000e6, 0)
	if m.rate() != 0 || m.average() != 0 {
		t.Errorf("at the start: rate %v, average %v", m.rate(), m.average())
	}
	if _, ok := m.eta(); ok {
		t.Error("an ETA before anything moved")
	}
	// 10 MB/s for 20 s, then 50 MB/s: after 5 s the rate knows only the latter.
	for i := range 200 {
		m.set(now.Add(time.Duration(i+1)*100*time.Millisecond), uint64(i+1)*1e6)
	}
	if r := m.rate(); math.Abs(r-10e6) > 1 {
		t.Errorf("rate %v", r)
	}
	if d, ok := m.eta(); !ok || d.Round(time.Millisecond) != 80*time.Second {
		t.Errorf("ETA %v, %v", d, ok)
	}
	now = now.Add(20 * time.Second)
	for i := range 51 {
		m.set(now.Add(time.Duration(i+1)*100*time.Millisecond), 200e6+uint64(i+1)*5e6)
	}
	if r := m.rate(); math.Abs(r-50e6) > 1 {
		t.Errorf("rate %v after the change", r)
	}
	if a := m.average(); math.Abs(a-455e6/25.1) > 1 {
		t.Errorf("average %v", a)
	}
	if m.percent() != 45 {
		t.Errorf("%d %%", m.percent())
	}
}

// A stall is seen: the rate falls, and when the window has passed it is 0 and there is no ETA.
func TestMeterStall(t *testing.T) {
	now := time.Unix(1000, 0)
	var m meter
	m.start(now, 100e6, 0)
	for range 50 {
		now = now.Add(100 * time.Millisecond)
		m.set(now, m.done+1e6)
	}
	last := m.rate()
	for i := range 60 {
		now = now.Add(100 * time.Millisecond)
		m.set(now, m.done)
		r := m.rate()
		if r > last {
			t.Errorf("%d00 ms into the stall the rate grows from %v to %v", i+1, last, r)
		}
		last = r
	}
	if _, ok := m.eta(); last != 0 || ok {
		t.Errorf("rate %v, ETA %v after the window", last, ok)
	}
}

func TestMeterResumed(t *testing.T) {
	now := time.Unix(1000, 0)
	var m meter
	m.start(now, 100e6, 60e6)
	now = now.Add(time.Second)
	m.set(now, 70e6)
	if m.rate() != 10e6 || m.average() != 10e6 || m.percent() != 70 {
		t.Errorf("rate %v, average %v, %d %%", m.rate(), m.average(), m.percent())
	}
	// It restarts, because the content changed, say.
	m.set(now.Add(time.Second), 5e6)
	if m.rate() != 0 || m.percent() != 5 {
		t.Errorf("again: rate %v, %d %%", m.rate(), m.percent())
	}
}

func TestMeterProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1000, 0)
		total := rapid.Uint64().Draw(t, "total")
		var m meter
		m.start(now, total, rapid.Uint64().Draw(t, "first"))
		peak := 0.0
		for range rapid.IntRange(0, 200).Draw(t, "steps") {
			step := time.Duration(rapid.Int64Range(0, int64(2*time.Second)).Draw(t, "step"))
			now = now.Add(step)
			before := m.done
			m.set(now, rapid.Uint64().Draw(t, "done"))
			if m.done > before && step > 0 {
				peak = max(peak, float64(m.done-before)/step.Seconds())
			} else if m.done > before {
				peak = math.Inf(1)
			}
			if r := m.rate(); r < 0 || r > peak*1.0001 || math.IsNaN(r) {
				t.Fatalf("rate %v, the fastest step was %v", r, peak)
			}
			if p := m.percent(); p < 0 || p > 100 || (p == 100) != (m.done == total) {
				t.Fatalf("%d %% at %d of %d", p, m.done, total)
			}
			if d, ok := m.eta(); ok && d < 0 {
				t.Fatalf("ETA %v", d)
			}
		}
	})
}
