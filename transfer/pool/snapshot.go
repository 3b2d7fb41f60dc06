package pool

import "time"

// Counts only grow. Dials = DialsFailed + Closed + connections that there are + dials under way,
// unless the pool is being closed, when dials that it ends are in no other count.
type Counts struct {
	Dials       uint64 // begun
	DialsFailed uint64
	Served      uint64 // leases handed out
	GaveUp      uint64 // waiters that left without one, by their context or after failed dials
	Lost        uint64 // connections that died
	Discarded   uint64 // by Lease.Discard
	Retired     uint64 // idle for too long
	Closed      uint64 // connections that Options.Close was called for
}

// Snapshot is a pool at one moment.
type Snapshot struct {
	Counts
	Living   int           // can be handed out or are full
	Unused   int           // living ones without a user
	Leases   int           // handed out and not given back
	Dialing  int           // dials under way
	Waiting  int           // callers of Get that wait
	Failures int           // dials in a row that failed, and connections that died at once
	NextDial time.Duration // until the next dial may begin; 0: now
	LastErr  string        // of the last dial that failed; "" if none did
}

// Snapshot says what the pool has and did.
func (p *Pool[C]) Snapshot() Snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Snapshot{Counts: p.counts, Living: len(p.living), Leases: p.leases, Dialing: p.dialing,
		Waiting:  len(p.waiters),
		Failures: p.failures, NextDial: max(time.Until(p.notBefore), 0)}
	for _, c := range p.living {
		if c.users == 0 {
			s.Unused++
		}
	}
	if p.lastErr != nil {
		s.LastErr = p.lastErr.Error()
	}
	return s
}
