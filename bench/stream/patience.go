package stream

import (
	"context"
	"errors"
	"fmt"
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
