package stream

import (
	"math"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// clock tells CLOCK_MONOTONIC in nanoseconds, which all processes of a machine share, at the price
// of a time.Now. In testing/synctest it is the virtual time, with an offset that means nothing.
type clock struct {
	base   time.Time
	offset int64
}

func newClock() *clock {
	c := &clock{base: time.Now()}
	least := int64(math.MaxInt64)
	for range 8 { // the look with the least in between
		a := time.Since(c.base)
		m := sys.ClockNow(sys.ClockMonotonic)
		if d := int64(time.Since(c.base) - a); d < least {
			least, c.offset = d, m-int64(a)-d/2
		}
	}
	return c
}

func (c *clock) now() int64 { return c.offset + int64(time.Since(c.base)) }
