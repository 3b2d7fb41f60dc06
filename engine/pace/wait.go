package pace

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet/burst"
)

// Patience waits for room in a transmit queue: a moment, and longer ones when moments do not help.
// One goroutine uses it.
type Patience struct {
	timer *time.Timer
}

// Alloc takes room in a queue for up to n packets of that length, and waits for it up to limit. It
// returns 0 without an error when the context has ended.
func (w *Patience) Alloc(ctx context.Context, tx engine.TxQueue, b *burst.Burst, n, length int,
	limit time.Duration) (int, error) {
	var since time.Time
	for looks := 0; ; looks++ {
		k, err := tx.Alloc(b, n, length)
		switch {
		case k > 0:
			return k, nil
		case !errors.Is(err, engine.ErrFull) && !errors.Is(err, engine.ErrNoBuffers):
			return 0, err
		case ctx.Err() != nil:
			return 0, nil
		case looks < 32:
			runtime.Gosched()
			continue
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > limit:
			return 0, fmt.Errorf("the queue took no packet for %v: is anybody at the other end? (%w)", limit, err)
		}
		const moment = 50 * time.Microsecond
		if w.timer == nil {
			w.timer = time.NewTimer(moment)
		}
		w.timer.Reset(moment)
		select {
		case <-w.timer.C:
		case <-ctx.Done():
		}
	}
}

// spinFor is how long before a time the Waiter stops sleeping and looks at the clock: a sleeper is
// late by up to that.
const spinFor = 1500 * time.Microsecond

// Waiter waits for times by a clock of nanoseconds, for one goroutine.
type Waiter struct {
	clock func() int64
	timer *time.Timer
}

// NewWaiter makes a Waiter that goes by a clock.
func NewWaiter(clock func() int64) *Waiter {
	w := &Waiter{clock: clock, timer: time.NewTimer(time.Hour)}
	w.timer.Stop()
	return w
}

// Until waits for a time, and returns what the clock says then. The error is that of the context.
func (w *Waiter) Until(ctx context.Context, due int64) (now int64, err error) {
	last, still := int64(math.MinInt64), 0
	for {
		now = w.clock()
		left := time.Duration(due - now)
		switch {
		case left <= 0:
			return now, nil
		case still >= 4: // the clock stands still, as a virtual one does
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
func (w *Waiter) pause(ctx context.Context, d time.Duration) error {
	w.timer.Reset(d)
	defer w.timer.Stop()
	select {
	case <-w.timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
