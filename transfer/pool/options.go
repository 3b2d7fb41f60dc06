package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Errors of a pool; match them with errors.Is.
var (
	ErrClosed  = errors.New("pool: closed")
	ErrDial    = errors.New("pool: no connection could be dialed") // wraps the last dial's error as well
	ErrOptions = errors.New("pool: invalid options")
)

// Options say how a pool makes connections and how many it keeps. Dial and Close are required.
type Options[C any] struct {
	// Dial makes a connection. Its context ends when the pool is closed or after DialTimeout.
	Dial func(ctx context.Context) (C, error)
	// Close ends a connection and frees what belongs to it. It is called exactly once for each
	// connection that Dial made: after the last lease was given back, or under its users when
	// Pool.Close does not wait for them.
	Close func(C) error
	// Done is closed when a connection is dead; nil means that only Lease.Discard tells.
	Done func(C) <-chan struct{}

	Min int // living connections that are kept, also unused; dialed in the background
	Max int // living connections at most; 0 means 1. One that is dead but still held by its users does not count.
	// Users is how many leases share one connection: 0 means 1, a negative number any number of
	// them.
	Users int
	// Spread makes the pool dial another connection, in the background and up to Max, when the
	// least used has this many users already and may take more. 0 means only when all are full.
	Spread int

	Idle        time.Duration // after which an unused connection above Min is closed; 0 means never
	DialTimeout time.Duration // of one Dial; 0 means 10 s

	Backoff   Backoff          // between dials after a failure
	Permanent func(error) bool // reports whether a failed dial would fail again for sure; nil means never
}

// Backoff is how long to wait after failures in a row: a random time between nothing and
// First×Factor^(n-1), at most Max, after the n-th. That is the "full jitter" of M. Brooker,
// Exponential Backoff And Jitter (AWS, 2015): it spreads the clients of a server that comes back
// evenly. The zero value is First 50 ms, Max 5 s, Factor 2.
type Backoff struct {
	First, Max time.Duration
	Factor     float64
}

// The defaults of a Backoff. A process that was killed needs tens of milliseconds to come back, and
// a session over a network costs a few round trips: the 200 us that suit a device queue would spend
// all attempts before the first could succeed.
const (
	DefaultFirst  = 50 * time.Millisecond
	DefaultMax    = 5 * time.Second
	DefaultFactor = 2
)

// WithDefaults fills the fields that are 0.
func (b Backoff) WithDefaults() Backoff {
	b.First = cmp.Or(b.First, DefaultFirst)
	b.Max = cmp.Or(b.Max, max(DefaultMax, b.First))
	b.Factor = cmp.Or(b.Factor, DefaultFactor)
	return b
}

// Validate reports what is wrong with a Backoff that has its defaults.
func (b Backoff) Validate() error {
	if b.First < 0 || b.Max < b.First {
		return fmt.Errorf("%w: backoff from %v to %v: expected 0 <= First <= Max", ErrOptions, b.First, b.Max)
	}
	if !(b.Factor >= 1) || math.IsInf(b.Factor, 0) {
		return fmt.Errorf("%w: backoff factor %v: expected a number of at least 1", ErrOptions, b.Factor)
	}
	return nil
}

// Bound is the longest wait after the n-th failure in a row; 0 for n < 1.
func (b Backoff) Bound(n int) time.Duration {
	if n < 1 {
		return 0
	}
	d := float64(b.First) * math.Pow(b.Factor, float64(n-1))
	if !(d < float64(b.Max)) { // also when it overflowed
		return b.Max
	}
	return time.Duration(d)
}

// Delay is a random wait up to Bound(n).
func (b Backoff) Delay(n int) time.Duration {
	bound := b.Bound(n)
	if bound <= 0 {
		return 0
	}
	return rand.N(bound + 1)
}

func (o *Options[C]) complete() error {
	if o.Dial == nil || o.Close == nil {
		return fmt.Errorf("%w: Dial and Close are required", ErrOptions)
	}
	o.Max = cmp.Or(o.Max, max(1, o.Min))
	if o.Min < 0 || o.Max < o.Min {
		return fmt.Errorf("%w: %d to %d connections: expected 0 <= Min <= Max", ErrOptions, o.Min, o.Max)
	}
	if o.Users = cmp.Or(o.Users, 1); o.Users < 0 {
		o.Users = math.MaxInt
	}
	if o.Spread < 0 {
		return fmt.Errorf("%w: Spread %d: expected no negative number", ErrOptions, o.Spread)
	}
	if o.Idle < 0 || o.DialTimeout < 0 {
		return fmt.Errorf("%w: Idle %v, DialTimeout %v: expected no negative times", ErrOptions, o.Idle, o.DialTimeout)
	}
	o.DialTimeout = cmp.Or(o.DialTimeout, 10*time.Second)
	o.Backoff = o.Backoff.WithDefaults()
	return o.Backoff.Validate()
}
