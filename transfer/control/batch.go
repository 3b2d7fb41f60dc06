package control

import "time"

// Defaults of a Batcher.
const (
	BatchCount = 16
	BatchBytes = 1 << 20
	BatchDelay = 50 * time.Microsecond
)

// Batcher decides when the small operations that are queued for one destination are handed over.
// Together they cost less than one by one, but none may wait for others that do not come. So the
// queue is flushed as soon as
//
//   - nothing is in flight to that destination: a single operation never waits (the rule of RFC
//     896, Nagle), or
//   - Count operations or Bytes bytes are queued, or
//   - Delay has passed since the oldest of them was queued.
//
// It holds no operations and knows no order: its caller keeps one queue for each destination and
// takes from its front, so the order stays. An operation of Bytes or more flushes at once, with all
// that is queued before it. The zero value has the defaults. It is pure and not safe for concurrent
// use; it allocates nothing.
type Batcher struct {
	Count int           // operations; 0 means BatchCount, 1 turns batching off
	Bytes uint64        // 0 means BatchBytes
	Delay time.Duration // 0 means BatchDelay

	queued int
	bytes  uint64
	oldest time.Time
}

// Idle is what Add and Wait return when nothing is queued.
const Idle time.Duration = -1

// Add counts an operation that the caller has just queued, and answers as Wait does.
func (b *Batcher) Add(now time.Time, bytes uint64, inflight int) time.Duration {
	if b.queued == 0 {
		b.oldest = now
	}
	b.queued++
	if b.bytes += bytes; b.bytes < bytes {
		b.bytes = ^uint64(0)
	}
	return b.Wait(now, inflight)
}

// Wait says how long the queue may still wait: 0 means flush now; more, flush after that time
// unless an Add or a Wait says 0 earlier; Idle, nothing is queued. inflight is the number of
// operations that were handed over and are not complete; ask again when it falls to 0.
func (b *Batcher) Wait(now time.Time, inflight int) time.Duration {
	if b.queued == 0 {
		return Idle
	}
	count, bytes, delay := b.Count, b.Bytes, b.Delay
	if count == 0 {
		count = BatchCount
	}
	if bytes == 0 {
		bytes = BatchBytes
	}
	if delay == 0 {
		delay = BatchDelay
	}
	if inflight <= 0 || b.queued >= count || b.bytes >= bytes {
		return 0
	}
	return max(0, delay-now.Sub(b.oldest))
}

// Reset tells that nothing is queued any more.
func (b *Batcher) Reset() { b.queued, b.bytes, b.oldest = 0, 0, time.Time{} }
