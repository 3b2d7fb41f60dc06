package engine

import (
	"math/rand/v2"
	"time"
)

// Backoff is the pauses between attempts to connect: they double from Least to Most, each less up
// to a half at random, so that many who lost the same peer do not all come at once. It is for
// implementations of engines, has one user at a time, and its zero value makes no pause. A Most
// that is shorter than Least counts as Least.
type Backoff struct {
	Least, Most time.Duration
	last        time.Duration // the longest that the last pause may have been; 0: there was none
}

// Next is the pause before the next attempt.
func (b *Backoff) Next() time.Duration {
	least := max(b.Least, 0)
	switch most := max(b.Most, least); {
	case b.last <= 0:
		b.last = least
	case b.last > most/2: // doubled it might be more than a Duration holds
		b.last = most
	default:
		b.last *= 2
	}
	return b.last - rand.N(b.last/2+1)
}

// Reset makes the next pause the shortest one again: an attempt has succeeded.
func (b *Backoff) Reset() { b.last = 0 }
