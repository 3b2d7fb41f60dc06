package sched

import (
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/bucket"
)

// MaxRate is the largest rate in bytes per second.
const MaxRate = 1 << 57

// maxBurst is the largest burst in bytes, and the most that a single operation is counted as.
const maxBurst = 1 << 40

// burstTime is what the default burst covers: a timer is late by about a millisecond, and by more
// on a busy machine.
const burstTime = 20 * time.Millisecond

// minBurst is the least default burst in bytes.
const minBurst = 64 << 10

// Rate limits bytes per second, by the exact token bucket of package bucket. In any window of
// d seconds at most rate*d + max(burst, largest single operation) bytes pass, and a sender that
// always has something to send reaches the rate over long times without drift. More than the burst
// pass once the bucket is full, and what follows waits for all of them. Its methods may be called
// from any goroutine.
type Rate struct {
	perSec uint64
	burst  uint64
	mu     sync.Mutex
	bucket bucket.Bucket
}

// NewRate makes the limit that l.Rate, which is not 0, and l.Burst are. It is at rest at time now,
// in nanoseconds by any clock that does not go back. The limits must have passed Check.
func NewRate(l *Limits, now int64) *Rate {
	burst := l.Burst
	if burst == 0 {
		burst = min(max(l.Rate/uint64(time.Second/burstTime), minBurst), maxBurst)
	}
	b, err := bucket.New(8*l.Rate, int(burst), now)
	if err != nil {
		panic(err) // cannot be: what Check lets pass is less than a bucket takes
	}
	return &Rate{perSec: l.Rate, burst: burst, bucket: b}
}

// PerSec is the limit in bytes per second.
func (r *Rate) PerSec() uint64 { return r.perSec }

// Burst is the number of bytes that may pass at once.
func (r *Rate) Burst() uint64 { return r.burst }

// Reserve takes n bytes from all limits and says how long they have to wait before they may pass.
// They are taken in any case, and later reservations wait for them: so several that share a limit
// get their turns in the order in which they ask, however much each asks for. Two goroutines that
// reserve from the same limits name them in the same order.
func Reserve(now int64, n uint64, of ...*Rate) time.Duration {
	n = min(n, maxBurst)
	at := now
	for _, r := range of {
		r.mu.Lock()
		defer r.mu.Unlock()
		at = max(at, r.bucket.Earliest(int(n)))
	}
	for _, r := range of {
		r.bucket.Spend(at, int(n))
	}
	return time.Duration(at - now)
}

// Spend takes n bytes that have passed already, and returns how long the next ones have to wait.
func (r *Rate) Spend(now int64, n uint64) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bucket.Spend(now, int(min(n, maxBurst)))
	return time.Duration(max(0, r.bucket.Earliest(1)-now))
}
