package pool

import (
	"context"
	"slices"
	"sync/atomic"
	"time"
)

// conn is a connection and what the pool knows about it. The pool's mutex guards it.
type conn[C any] struct {
	v    C
	ctx  context.Context // ends when it shall be closed
	stop context.CancelFunc
	done <-chan struct{} // the connection's own; may be nil

	users int
	dead  bool // not in the list of the living any more
	since time.Time
	used  time.Time // when it was last given back
	good  bool      // it did its work
}

// Lease is the right to use a connection until Release or Discard.
type Lease[C any] struct {
	p    *Pool[C]
	c    *conn[C]
	over atomic.Bool
}

// Conn is the connection.
func (l *Lease[C]) Conn() C { return l.c.v }

// Good tells that the connection did what it is for: whatever becomes of it, the next dial need not
// be put off.
func (l *Lease[C]) Good() {
	l.p.mu.Lock()
	l.c.good = true
	l.p.failures = 0
	l.p.mu.Unlock()
}

// Release gives the connection back; only the first call of Release or Discard counts.
func (l *Lease[C]) Release() { l.end(false) }

// Discard gives the connection back and has it never handed out again. It is closed when its last
// user has given it back.
func (l *Lease[C]) Discard() { l.end(true) }

func (l *Lease[C]) end(discard bool) {
	if l.over.Swap(true) {
		return
	}
	p, c := l.p, l.c
	p.mu.Lock()
	c.users--
	c.used = time.Now()
	p.leases--
	p.worked(c)
	if discard && !c.dead {
		p.counts.Discarded++
		p.bury(c)
	}
	if c.dead && c.users == 0 {
		c.stop()
	}
	if p.leases == 0 && p.drained != nil {
		close(p.drained)
		p.drained = nil
	}
	p.pump()
	p.mu.Unlock()
}

// lend hands a connection out. The mutex is held.
func (p *Pool[C]) lend(c *conn[C]) *Lease[C] {
	c.users++
	p.leases++
	p.counts.Served++
	if p.o.Spread > 0 && c.users > p.o.Spread && len(p.living)+p.dialing < p.o.Max {
		p.spread = true
	}
	return &Lease[C]{p: p, c: c}
}

// pick returns the best connection that can take a user, or nil: the one with the fewest users,
// among them the one that was used last, so that others can become idle. The mutex is held.
func (p *Pool[C]) pick() *conn[C] {
	var best *conn[C]
	for i := 0; i < len(p.living); i++ {
		c := p.living[i]
		if isClosed(c.done) { // its keeper has not come to it yet
			p.lose(c)
			i--
			continue
		}
		if c.users >= p.o.Users {
			continue
		}
		if best == nil || c.before(best) {
			best = c
		}
	}
	return best
}

func (c *conn[C]) before(d *conn[C]) bool {
	if c.users != d.users {
		return c.users < d.users
	}
	return c.used.After(d.used)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// bury takes a connection from the living; it is closed once it has no users. The mutex is held.
func (p *Pool[C]) bury(c *conn[C]) {
	c.dead = true
	p.living = slices.DeleteFunc(p.living, func(x *conn[C]) bool { return x == c })
	if c.users == 0 {
		c.stop()
	}
}

// lose buries a connection that died by itself. The mutex is held.
func (p *Pool[C]) lose(c *conn[C]) {
	if c.dead {
		return
	}
	p.counts.Lost++
	p.bury(c)
	if !p.worked(c) {
		p.backOff()
	}
}

// worked forgets earlier failures if a connection was of use: its user said so, or it lived for
// longer than the next wait would be. The mutex is held.
func (p *Pool[C]) worked(c *conn[C]) bool {
	if !c.good && time.Since(c.since) <= p.o.Backoff.Bound(p.failures+1) {
		return false
	}
	p.failures = 0
	return true
}

// keep watches a connection from its dial to its end, and closes it.
func (p *Pool[C]) keep(c *conn[C]) {
	defer p.wg.Done()
	timer := time.NewTimer(p.o.Idle)
	defer timer.Stop()
	idle := timer.C
	if p.o.Idle == 0 {
		idle = nil
	}
	done := c.done
	for {
		select {
		case <-c.ctx.Done():
			err := p.o.Close(c.v)
			p.mu.Lock()
			delete(p.all, c)
			p.counts.Closed++
			if p.closeErr == nil {
				p.closeErr = err
			}
			p.mu.Unlock()
			return
		case <-done:
			done = nil
			p.mu.Lock()
			p.lose(c)
			p.pump()
			p.mu.Unlock()
		case <-idle:
			if wait := p.retire(c); wait > 0 {
				timer.Reset(wait)
			} else {
				idle = nil
			}
		}
	}
}

// retire closes a connection that was idle for long enough, or returns when to look again. It
// returns 0 when that is never.
func (p *Pool[C]) retire(c *conn[C]) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.dead {
		return 0
	}
	unused := time.Since(c.used)
	if c.users > 0 || len(p.living) <= p.o.Min {
		return p.o.Idle
	}
	if unused < p.o.Idle {
		return p.o.Idle - unused
	}
	p.counts.Retired++
	p.bury(c)
	return 0
}
