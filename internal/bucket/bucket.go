// Package bucket is a token bucket in exact integer arithmetic, for rates of packets and of
// transfers.
package bucket

import (
	"fmt"
	"math/bits"
)

// Bounds of a bucket.
const (
	MaxRate  = 1 << 60 // bits per second: sums of two fractions fit
	MaxBurst = 1 << 40 // bytes
	// forever is the time of what a rate never reaches, in nanoseconds: 73 years.
	forever = 1 << 61
)

// Bucket is a token bucket: tokens are bits, they come at a rate, and at most the burst of them are
// kept. Times are int64 nanoseconds by any clock that does not go back. It is a plain value: a copy
// is an independent bucket in the same state.
//
// Instead of tokens it keeps the time at which the bucket is full again, as nanoseconds and a
// fraction of 1/rate of them, which makes everything exact.
type Bucket struct {
	rate  uint64 // bits per second
	burst uint64 // bits
	full  int64  // time at which it is full again
	frac  uint64 // in 1/rate nanoseconds, below rate
}

// New makes a bucket that is full at time now. The rate is in bits per second, the burst in
// bytes; both must be positive, at most 2^60 bits per second and 2^40 bytes, else it is an
// error.
func New(rate uint64, burst int, now int64) (Bucket, error) {
	if rate == 0 || rate > MaxRate || burst <= 0 || burst > MaxBurst {
		return Bucket{}, fmt.Errorf("a bucket of %d bit/s with a burst of %d bytes: expected 1 to 2^60 bit/s "+
			"and 1 to 2^40 bytes", rate, burst)
	}
	return Bucket{rate: rate, burst: 8 * uint64(burst), full: now}, nil
}

// Earliest is the first nanosecond at which n bytes may leave. What is larger than the burst may
// leave when the bucket is full, and leaves it in debt, so that in any window of d seconds at most
// rate*d + max(burst, largest packet) leave.
func (k *Bucket) Earliest(n int) int64 {
	at, frac := k.span(k.burst - min(8*uint64(n), k.burst))
	at = k.full - at
	if k.frac > frac {
		at++
	}
	return at
}

// Spend takes n bytes that leave at time now, which must not be before Earliest(n).
func (k *Bucket) Spend(now int64, n int) {
	if k.full < now {
		k.full, k.frac = now, 0
	}
	d, frac := k.span(8 * uint64(n))
	if k.frac += frac; k.frac >= k.rate {
		k.frac -= k.rate
		d++
	}
	k.full = min(k.full+d, forever)
}

// span is how long the tokens for so many bits take to come: nanoseconds and a fraction in 1/rate
// of them.
func (k *Bucket) span(b uint64) (ns int64, frac uint64) {
	hi, lo := bits.Mul64(b, 1e9)
	if hi >= k.rate {
		return forever, 0
	}
	q, frac := bits.Div64(hi, lo, k.rate)
	if q >= forever {
		return forever, 0
	}
	return int64(q), frac
}
