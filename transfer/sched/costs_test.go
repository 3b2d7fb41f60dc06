package sched

import (
	"testing"
	"time"

	"github.com/penstock-io/penstock/transfer/path"
)

func TestCosts(t *testing.T) {
	prior := path.Cost{Latency: 10 * time.Microsecond, BytesPerSec: 1e10}
	now := 1000 * time.Second
	c := Costs{Prior: prior, Mapped: true}
	if got := c.Get(now); got != prior || c.LastRate() != prior.BytesPerSec {
		t.Fatalf("nothing observed: %v", got)
	}
	c.Observe(64, 20*time.Millisecond, now) // the first transfer maps memory
	if got := c.Get(now); got.Latency > 2*prior.Latency || !got.Measured {
		t.Errorf("one outlier: %v", got)
	}
	for range 100 {
		c.Observe(64, 20*time.Millisecond, now)
		c.Observe(1<<20, time.Second, now)
	}
	if got := c.Get(now); got.Latency < 19*time.Millisecond || got.BytesPerSec > 1.2e6 {
		t.Errorf("a path that stays slow: %v", got)
	}
	if got := c.Get(now + forget + 1); got != prior || c.LastRate() > 1.2e6 {
		t.Errorf("much later: %v, %v", got, c.LastRate())
	}
	c = Costs{Prior: prior}
	if c.Observe(1<<20, time.Second, now); c.Get(now).BytesPerSec != 1<<20 {
		t.Errorf("the first transfer of a path that maps nothing: %v", c.Get(now))
	}
}
