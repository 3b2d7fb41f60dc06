package engine

import (
	"context"

	"github.com/penstock-io/penstock/packet/burst"
)

// Consumer takes the packets of a receive queue: what an application does with them.
type Consumer interface {
	// Consume takes the packets of b, which has some: it reads them, moves them elsewhere (MoveTo,
	// Take), or sends them. What it leaves in b the caller releases. An error ends the reception.
	// The context is that of the reception; Consume may wait, and what it waits for the queue
	// loses.
	Consume(ctx context.Context, b *burst.Burst) error
	// Close ends it, after the last Consume: it gives back what it keeps.
	Close() error
}

// recver waits for packets.
type recver interface {
	Recv(ctx context.Context, b *burst.Burst) error
}

// Consume gives what from, an *Rx or *Polled, receives to c, in b, until the context ends or from
// or c fail, and returns that error. What was received by then is given to c first. b is the
// caller's, and empty when Consume returns; c is not closed.
func Consume(ctx context.Context, from recver, b *burst.Burst, c Consumer) error {
	defer b.Release()
	for {
		ended := from.Recv(ctx, b)
		if b.Len() > 0 {
			if err := c.Consume(ctx, b); err != nil {
				return err
			}
			b.Release()
		}
		if ended != nil {
			return ended
		}
	}
}
