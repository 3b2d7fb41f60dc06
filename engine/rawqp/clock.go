package rawqp

import (
	"math/bits"
	"time"

	"github.com/penstock-io/penstock/internal/ibv"
)

// clock turns the times of completions into nanoseconds since 1970. The lock of rxCQ guards it.
type clock struct {
	kind ibv.Times
	read func() (uint64, error) // the device's clock now
	mask uint64
	khz  uint64

	ticks, wall uint64 // the same moment by both clocks
	until       uint64 // ticks after base at which to compare them again
	last        uint64 // time given last: none goes backwards
}

// compare notes what time it is by both clocks.
func (c *clock) compare() error {
	if c.kind != ibv.TimesDevice {
		return nil
	}
	before := time.Now()
	t, err := c.read()
	if err != nil {
		return err
	}
	after := time.Now()
	c.ticks, c.wall, c.until = t, uint64(before.Add(after.Sub(before)/2).UnixNano()), c.khz*1000
	return nil
}

// ns is the time of a completion.
func (c *clock) ns(at uint64) int64 {
	if c.kind == ibv.TimesDevice {
		d := (at - c.ticks) & c.mask
		if d > c.mask/2 { // before the comparison
			at = c.wall - scale((c.ticks-at)&c.mask, c.khz)
		} else {
			if at = c.wall + scale(d, c.khz); d > c.until {
				_ = c.compare() // else the old comparison goes on to serve
			}
		}
	}
	c.last = max(c.last, at)
	return int64(c.last)
}

// scale is ticks of a clock of that many kHz in nanoseconds.
func scale(ticks, khz uint64) uint64 {
	hi, lo := bits.Mul64(ticks, 1_000_000)
	if hi >= khz {
		return 0 // centuries
	}
	q, _ := bits.Div64(hi, lo, khz)
	return q
}
