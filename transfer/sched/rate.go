package sched

import (
	"fmt"
	"sync"
	"time"

	"github.com/penstock-io/penstock/engine/pace"
)

// MaxRate is the largest rate in bytes per second.
const MaxRate = 1 << 57

// burstTime is what the default burst covers: a timer is late by about a millisecond, and by more on a busy machine.
const burstTime = 20 * time.Millisecond

// minBurst is the least default burst in bytes.
const minBurst = 64 << 10

// Rate limits bytes per second, by the exact token bucket of package engine/pace. In any window of d seconds at most
// rate*d + max(burst, largest single operation) bytes pass, and a sender that always has something to send reaches the rate over long
// times without drift. Its methods may be called from any goroutine; a nil Rate limits nothing.
type Rate struct {
	perSec uint64
	burst  uint64
	mu     sync.Mutex
	bucket pace.Bucket
}

// NewRate makes a limit of perSec bytes per second that is at rest at time now, in nanoseconds by any clock that does not go
// back. At most burst bytes pass at once after a rest; 0 means what 20 ms bring, at least 64 KiB.
func NewRate(perSec, burst uint64, now int64) (*Rate, error) {
	if perSec == 0 || perSec > MaxRate {
		return nil, fmt.Errorf("sched: a rate of %d bytes per second: expected 1 to 2^57", perSec)
	}
	if burst == 0 {
		burst = min(max(perSec/uint64(time.Second/burstTime), minBurst), 1<<40)
	}
	if burst > 1<<40 {
		return nil, fmt.Errorf("sched: a burst of %d bytes: expected at most 2^40", burst)
	}
	b, err := pace.NewBucket(8*perSec, int(burst), now)
	if err != nil {
		return nil, fmt.Errorf("sched: %w", err)
	}
	return &Rate{perSec: perSec, burst: burst, bucket: b}, nil
}

// PerSec is the limit in bytes per second, 0 for a nil Rate.
func (r *Rate) PerSec() uint64 {
	if r == nil {
		return 0
	}
	return r.perSec
}

// Burst is the number of bytes that may pass at once, 0 for a nil Rate.
func (r *Rate) Burst() uint64 {
	if r == nil {
		return 0
	}
	return r.burst
}

// Take lets n bytes pass at time now and returns 0, or how long they have to wait: then nothing was taken. When they are more
// than the burst they pass once the bucket is full, and what follows waits for all of them.
func (r *Rate) Take(now int64, n uint64) time.Duration {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n = min(n, 1<<40)
	if wait := r.bucket.Earliest(int(n)) - now; wait > 0 {
		return time.Duration(wait)
	}
	r.bucket.Spend(now, int(n))
	return 0
}

// Reserve takes n bytes from both limits and says how long they have to wait before they may pass. They are taken in any case,
// and later reservations wait for them: so several that share a limit get their turns in the order in which they ask,
// however much each asks for. Two goroutines that reserve from the same two limits name them in the same order.
func Reserve(now int64, n uint64, a, b *Rate) time.Duration {
	n = min(n, 1<<40)
	at := now
	for _, r := range [...]*Rate{a, b} {
		if r != nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			at = max(at, r.bucket.Earliest(int(n)))
		}
	}
	for _, r := range [...]*Rate{a, b} {
		if r != nil {
			r.bucket.Spend(at, int(n))
		}
	}
	return time.Duration(at - now)
}

// Spend takes n bytes that have passed already, and returns how long the next ones have to wait.
func (r *Rate) Spend(now int64, n uint64) time.Duration {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bucket.Spend(now, int(min(n, 1<<40)))
	return time.Duration(max(0, r.bucket.Earliest(1)-now))
}
