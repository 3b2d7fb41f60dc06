package pool

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Pool keeps connections of the type C to one address. Its methods may be called from any
// goroutine.
type Pool[C any] struct {
	o        Options[C]
	ctx      context.Context // of dials: ends with Close
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	finished chan struct{} // closed when Close has nothing left to do

	mu        sync.Mutex // guards what follows; never held while a function of Options runs
	living    []*conn[C] // can be handed out
	all       map[*conn[C]]bool
	waiters   []*waiter[C] // in the order of coming
	dialing   int
	spread    bool      // one more connection than waiters ask for is wanted
	failures  int       // in a row
	notBefore time.Time // of the next dial
	timer     *time.Timer
	leases    int
	closed    bool
	drained   chan struct{} // not nil: closed when the last lease was given back
	closeErr  error
	lastErr   error
	counts    Counts
}

// waiter is a Get that found nothing to take.
type waiter[C any] struct {
	got    chan result[C] // buffered
	fails  int            // gives up after so many; 0: never
	failed int            // dials, while it waited
}

type result[C any] struct {
	lease *Lease[C]
	err   error
}

// New makes a pool and begins to dial its Min connections. The caller closes it.
func New[C any](o Options[C]) (*Pool[C], error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	p := &Pool[C]{o: o, finished: make(chan struct{}), all: map[*conn[C]]bool{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.mu.Lock()
	p.pump()
	p.mu.Unlock()
	return p, nil
}

// Get waits for a connection. The error wraps ErrClosed, ctx's error, or ErrDial and the error of
// the last dial. It gives up when so many dials have failed while it waited; 0 means never.
func (p *Pool[C]) Get(ctx context.Context, fails int) (*Lease[C], error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, ErrClosed
	}
	w := &waiter[C]{got: make(chan result[C], 1), fails: fails}
	p.waiters = append(p.waiters, w)
	p.pump()
	p.mu.Unlock()
	select {
	case r := <-w.got:
		return r.lease, r.err
	case <-ctx.Done():
	}
	p.mu.Lock()
	if k := slices.Index(p.waiters, w); k >= 0 {
		p.waiters = slices.Delete(p.waiters, k, k+1)
		p.counts.GaveUp++
	}
	failed, last := w.failed, p.lastErr
	p.mu.Unlock()
	select {
	case r := <-w.got: // just now: the next one shall have it
		if r.lease != nil {
			r.lease.Release()
		}
	default:
	}
	if failed > 0 {
		return nil, &DialError{Failed: failed, Last: last, Cause: ctx.Err()}
	}
	return nil, ctx.Err()
}

// DialError says that a waiter left without a connection after dials failed. It matches ErrDial,
// the last dial's error, and the error of the waiter's context if that ended it.
type DialError struct {
	Failed int   // dials, while it waited
	Last   error // of the last one
	Cause  error // of the context; nil if the failures themselves ended the wait
}

func (e *DialError) Error() string {
	s := fmt.Sprintf("%v: %d failed, the last: %v", ErrDial, e.Failed, e.Last)
	if e.Cause != nil {
		s += fmt.Sprintf(" (%v)", e.Cause)
	}
	return s
}

// Unwrap makes the error match its parts.
func (e *DialError) Unwrap() []error {
	out := []error{ErrDial, e.Last}
	if e.Cause != nil {
		out = append(out, e.Cause)
	}
	return out
}

// pump serves waiters, then begins the dials that are due. The mutex is held.
func (p *Pool[C]) pump() {
	if p.closed {
		return
	}
	for len(p.waiters) > 0 {
		c := p.pick()
		if c == nil {
			break
		}
		w := p.waiters[0]
		p.waiters[0] = nil
		p.waiters = p.waiters[1:]
		w.got <- result[C]{lease: p.lend(c)}
	}
	n := min(p.wanted(), p.o.Max-len(p.living))
	if p.failures > 0 { // one at a time until it works again
		n = min(n, 1)
	}
	if n <= p.dialing {
		return
	}
	if wait := time.Until(p.notBefore); wait > 0 {
		if p.timer == nil {
			p.wg.Add(1)
			p.timer = time.AfterFunc(wait, func() {
				defer p.wg.Done()
				p.mu.Lock()
				p.timer = nil
				p.pump()
				p.mu.Unlock()
			})
		}
		return
	}
	for p.dialing < n {
		p.dialing++
		p.counts.Dials++
		p.wg.Add(1)
		go p.dial()
	}
}

// wanted is how many connections are missing: for waiters, for Min, and to spread the users.
func (p *Pool[C]) wanted() int {
	n := len(p.waiters) / p.o.Users
	if len(p.waiters)%p.o.Users > 0 || n == 0 && p.spread {
		n++
	}
	return max(n, p.o.Min-len(p.living))
}

func (p *Pool[C]) dial() {
	defer p.wg.Done()
	ctx, cancel := context.WithTimeout(p.ctx, p.o.DialTimeout)
	v, err := p.o.Dial(ctx)
	cancel()
	if err != nil {
		permanent := p.o.Permanent != nil && p.o.Permanent(err)
		p.mu.Lock()
		p.dialing--
		p.dialFailed(err, permanent)
		p.mu.Unlock()
		return
	}
	c := &conn[C]{v: v, since: time.Now(), used: time.Now()}
	c.ctx, c.stop = context.WithCancel(context.Background())
	if p.o.Done != nil {
		c.done = p.o.Done(v)
	}
	p.mu.Lock()
	p.dialing--
	p.all[c] = true
	if p.closed {
		c.dead = true
		c.stop()
	} else {
		p.living = append(p.living, c)
		p.spread = false
	}
	p.wg.Add(1) // before the Done of this one: Close still waits
	go p.keep(c)
	p.pump()
	p.mu.Unlock()
}

// dialFailed counts a failure and tells the waiters. The mutex is held.
func (p *Pool[C]) dialFailed(err error, permanent bool) {
	if p.closed {
		return
	}
	p.counts.DialsFailed++
	p.spread = false // no caller waits for that one
	p.lastErr = err
	p.backOff()
	p.waiters = slices.DeleteFunc(p.waiters, func(w *waiter[C]) bool {
		w.failed++
		if !permanent && (w.fails == 0 || w.failed < w.fails) {
			return false
		}
		p.counts.GaveUp++
		w.got <- result[C]{err: &DialError{Failed: w.failed, Last: err}}
		return true
	})
	p.pump()
}

// backOff puts the next dial off after one more failure. The mutex is held.
func (p *Pool[C]) backOff() {
	p.failures++
	p.notBefore = time.Now().Add(p.o.Backoff.Delay(p.failures))
}

// Close ends the pool: it serves no more callers, waiters get ErrClosed, dials are ended. It waits
// until every lease was given back; when ctx ends first, the connections still in use are closed
// under their users. When it returns, every connection was closed and every goroutine of the pool
// has ended. The error is the first that Options.Close returned. Later calls wait for the same end.
func (p *Pool[C]) Close(ctx context.Context) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		<-p.finished
		return p.closeErr
	}
	p.closed = true
	p.cancel()
	if p.timer != nil && p.timer.Stop() {
		p.wg.Done()
	}
	for _, w := range p.waiters {
		w.got <- result[C]{err: ErrClosed}
	}
	p.waiters = nil
	for _, c := range p.living {
		c.dead = true
		if c.users == 0 {
			c.stop()
		}
	}
	p.living = nil
	drained := make(chan struct{})
	if p.leases == 0 {
		close(drained)
	} else {
		p.drained = drained
	}
	p.mu.Unlock()
	select {
	case <-drained:
	case <-ctx.Done():
		p.mu.Lock()
		for c := range p.all {
			c.stop()
		}
		p.mu.Unlock()
	}
	p.wg.Wait()
	close(p.finished)
	return p.closeErr
}
