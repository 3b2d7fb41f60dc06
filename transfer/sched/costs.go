package sched

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/transfer/path"
)

const (
	latencyMax = 4 << 10 // transfers up to this size tell the latency
	rateMin    = 1 << 20 // transfers from this size on tell the rate
	weight     = 0.25    // of a new observation
	outlier    = 4       // a single observation counts as at most so many times better or worse than what was known
	// forget is how long observations count. A path that lost by them is not taken, and so not
	// observed, until then.
	forget = 10 * time.Second
)

// Costs is what a path is taken to cost: what its transfers achieved of late, else what
// its driver says. Any goroutine may ask, without waiting for the path's owner. The three words
// are not of one moment where they are changed meanwhile; each is one that was true.
type Costs struct {
	Prior path.Cost // fixed before others see it
	// Mapped paths begin from the prior: their first transfers pay for mapping or registering the
	// memory at both sides.
	Mapped bool

	latency, rate atomic.Uint64 // bits of a float64: ns, bytes per second; 0: nothing observed
	at            atomic.Int64  // of the last observation, by the clock of those who call
}

// Observe learns from a transfer of n bytes that had the path for itself and took d. Any may meet a
// busy machine: so one of them moves what is known only a little. One goroutine at a time calls it.
func (c *Costs) Observe(n uint64, d, now time.Duration) {
	var known *atomic.Uint64
	var first, x float64
	switch {
	case d <= 0:
		return
	case n <= latencyMax:
		known, first, x = &c.latency, float64(c.Prior.Latency), float64(d)
	case n >= rateMin:
		known, first, x = &c.rate, c.Prior.BytesPerSec, float64(n)/d.Seconds()
	default:
		return
	}
	if c.stale(now) {
		c.latency.Store(0)
		c.rate.Store(0)
	}
	old := math.Float64frombits(known.Load())
	if old == 0 && c.Mapped {
		old = first
	}
	if old > 0 {
		x = old + weight*(min(max(x, old/outlier), old*outlier)-old)
	}
	known.Store(math.Float64bits(x))
	c.at.Store(int64(now))
}

func (c *Costs) stale(now time.Duration) bool { return now-time.Duration(c.at.Load()) > forget }

// Get returns the best that is known.
func (c *Costs) Get(now time.Duration) path.Cost {
	r := c.Prior
	if c.stale(now) {
		return r
	}
	if l := math.Float64frombits(c.latency.Load()); l > 0 {
		r.Latency, r.Measured = time.Duration(l), true
	}
	if b := math.Float64frombits(c.rate.Load()); b > 0 {
		r.BytesPerSec, r.Measured = b, true
	}
	return r
}

// LastRate is the rate that is known, however long ago it was observed.
func (c *Costs) LastRate() float64 {
	if b := math.Float64frombits(c.rate.Load()); b > 0 {
		return b
	}
	return c.Prior.BytesPerSec
}
