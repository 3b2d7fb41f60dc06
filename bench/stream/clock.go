package stream

import (
	"context"
	"math"
	"runtime"
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

const (
	// spinFor is how long before a time the waiter stops sleeping and looks at the clock: a sleeper
	// is late by up to that.
	spinFor = 1500 * time.Microsecond
	// stillLooks is the number of looks at a clock after which it is taken to stand still, as a
	// virtual one does.
	stillLooks = 4
)

// waiter waits for times, for one goroutine.
type waiter struct {
	c     *clock
	timer *time.Timer
}

func newWaiter(c *clock) *waiter {
	w := &waiter{c: c, timer: time.NewTimer(time.Hour)}
	w.timer.Stop()
	return w
}

// until waits for a time, and returns what the clock says then. The error is that of the context.
func (w *waiter) until(ctx context.Context, due int64) (now int64, err error) {
	last, still := int64(math.MinInt64), 0
	for {
		now = w.c.now()
		left := time.Duration(due - now)
		switch {
		case left <= 0:
			return now, nil
		case still >= stillLooks:
			err = w.pause(ctx, left)
		case left > 2*spinFor:
			err = w.pause(ctx, left-spinFor)
		default:
			if still++; now != last {
				last, still = now, 0
			}
			runtime.Gosched()
			if now&0xff == 0 {
				err = ctx.Err()
			}
		}
		if err != nil {
			return now, err
		}
	}
}

// pause sleeps for that long, and leaves the processor to others.
func (w *waiter) pause(ctx context.Context, d time.Duration) error {
	w.timer.Reset(d)
	defer w.timer.Stop()
	select {
	case <-w.timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
