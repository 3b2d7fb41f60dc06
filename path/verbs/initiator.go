package verbs

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/path"
)

// With DC a path has of its own only what receives, its targets. What sends, the initiators, belongs to the device. A path that has something to post
// leases one, and until it is over it is the only one that posts and polls there, without a lock. An initiator whose requests are all
// acknowledged rests: it stays with its path, which takes it up again with one atomic operation, unless another path has taken it meanwhile. So a
// path alone never hands anything over, and one that is no longer served keeps nothing from others. Where all are at work, paths
// stand in line; who works while others wait ends its turn after a bounded amount of work (seat.go).
//
// The control connection has initiators of its own: a refused key of a rail stops the initiator and flushes what is behind it, which
// the frames of control must not be.

const (
	// DefaultInitiators is what Options.Initiators 0 stands for.
	DefaultInitiators = 8
	// MaxInitiators bounds Options.Initiators.
	MaxInitiators = 1024
	// stale is how long an initiator waits for the path whose turn it is; then who looks whether it gets on may have it.
	stale = time.Second
)

// dynamic is what a device has for DC, from its first path with DC on.
type dynamic struct {
	dev    *device
	dc     *ibv.DC
	dom    *domain // of the initiators, ways, frames and local memory. It has no target: no peer reaches it.
	inline int     // bytes of a request that may be inline, once known
	known  bool
	pools  [2]*pool
	paths  atomic.Int32
}

// The pools.
const (
	forControl = iota
	forData
)

// pool is the initiators of one purpose.
type pool struct {
	dyn     *dynamic
	max     int
	depth   int          // requests in the queue of each
	waiting atomic.Int32 // seats in line

	mu    sync.Mutex // guards what follows, and the same of initiators and seats
	all   []*initiator
	free  []*initiator
	line  []*seat
	waits uint64 // how often a path had to wait
	why   error  // why there are no more
	next  int    // where to look for one that rests
}

// initiator is one with its queue of completions. Its holder alone uses it.
type initiator struct {
	pool    *pool
	channel *ibv.Channel // stays until the device is closed: paths may have its descriptor longer than the initiator
	cq      *ibv.CQ      // exchanged under the pool's lock
	dci     *ibv.DCInitiator
	spec    ibv.DCInitiatorSpec
	failed  bool // mend makes it ready before it is used
	wc      [4]ibv.WC

	rests  atomic.Pointer[seat] // the holder that has nothing under way; the seat that exchanges it for nil has the initiator
	holder *seat                // guarded by pool.mu
	since  time.Time            // when its holder was told that it is its turn; zero once it came. Guarded by pool.mu.
}

// openDynamic is what the device has for DC. ErrUnavailable: it has none.
func (dev *device) openDynamic() (_ *dynamic, err error) {
	dev.dynMu.Lock()
	defer dev.dynMu.Unlock()
	if dev.dyn != nil {
		return dev.dyn, nil
	}
	o := &dev.owner.o
	d := &dynamic{dev: dev}
	if d.dc, err = dev.ctx.OpenDC(ibv.Options{Path: o.mlx5}); err != nil {
		return nil, fmt.Errorf("verbs: %w: Options.Transport is DC, which device %s cannot be used with; take RC: %w", path.ErrUnavailable, dev.ctx.Name(), err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if d.dom, err = dev.newDomain(false); err != nil {
		return nil, err
	}
	n := o.initiators()
	d.pools = [2]*pool{{dyn: d, max: (n + 3) / 4, depth: ctlSends}, {dyn: d, max: n, depth: o.ring()}}
	for _, q := range d.pools { // the first of each, so that a device that has none says so now
		i, err := q.open()
		if err != nil {
			return nil, err
		}
		q.free = append(q.free, i)
	}
	dev.dyn = d
	return d, nil
}

func (d *dynamic) close() (err error) {
	for _, q := range d.pools {
		if q == nil {
			continue
		}
		for _, i := range q.all {
			err = errors.Join(err, i.close(), i.channel.Close())
		}
	}
	if d.dom != nil {
		err = errors.Join(err, d.dom.close())
	}
	return errors.Join(err, d.dc.Close())
}

// holder is the path whose requests complete into a queue, nil for none.
func (d *dynamic) holder(cq *ibv.CQ) *Path {
	for _, q := range d.pools {
		q.mu.Lock()
		k := slices.IndexFunc(q.all, func(i *initiator) bool { return i.cq == cq && i.holder != nil })
		var p *Path
		if k >= 0 {
			p = q.all[k].holder.p
		}
		q.mu.Unlock()
		if p != nil {
			return p
		}
	}
	return nil
}

// open makes one more initiator. It holds q.mu, or the pool is still being made.
func (q *pool) open() (*initiator, error) {
	dev := q.dyn.dev
	i := &initiator{pool: q}
	var err error
	if i.channel, err = dev.ctx.CreateChannel(); err != nil {
		return nil, err
	}
	if i.cq, i.dci, i.spec, err = q.make(i.channel); err != nil {
		return nil, errors.Join(err, i.channel.Close())
	}
	q.all = append(q.all, i)
	return i, nil
}

// make makes an initiator and its queue of completions.
func (q *pool) make(c *ibv.Channel) (*ibv.CQ, *ibv.DCInitiator, ibv.DCInitiatorSpec, error) {
	dev, o := q.dyn.dev, &q.dyn.dev.owner.o
	cq, err := dev.ctx.CreateCQ(ibv.CQSpec{Entries: q.depth, Channel: c})
	if err != nil {
		return nil, nil, ibv.DCInitiatorSpec{}, err
	}
	s := ibv.DCInitiatorSpec{CQ: cq, WRs: q.depth, SGEs: 1, Port: uint8(dev.port.Port), PathMTU: dev.port.ActiveMTU, Timeout: o.timeout(), RetryCount: retries, RNRRetry: 6,
		ReadsLimit: uint8(min(dev.attr.MaxInitRdAtomic, 16))}
	var dci *ibv.DCInitiator
	for _, n := range o.inlines() { // a device cannot be asked how much it takes
		if s.Inline = n; q.dyn.known && n > q.dyn.inline {
			continue
		}
		if dci, err = q.dyn.dc.CreateInitiator(q.dyn.dom.pd, s); err == nil {
			if !q.dyn.known { // the first, which openDynamic makes
				q.dyn.inline, q.dyn.known = n, true
			}
			return cq, dci, s, nil
		}
		var e *ibv.Error
		if !errors.As(err, &e) || e.Op != "mlx5dv_create_qp" { // not for its size
			break
		}
	}
	return nil, nil, s, errors.Join(err, cq.Close())
}

func (i *initiator) close() (err error) {
	if i.dci != nil {
		if err = i.dci.Close(); err != nil {
			return err
		}
		i.dci = nil
	}
	if i.cq != nil {
		err = i.cq.Close()
	}
	return err
}

// mend ends everything that is under way at an initiator, reports no result of it, and makes the initiator ready again.
func (i *initiator) mend() error {
	i.failed = true
	if i.dci != nil {
		err := i.dci.Recover(i.spec)
		for err == nil { // what it had completed before
			var n int
			if n, err = i.cq.Poll(i.wc[:]); n == 0 && err == nil {
				i.failed = false
				return nil
			}
		}
	}
	// It cannot be had back, or completions were lost: another one in its place.
	if err := i.close(); err != nil {
		return err
	}
	cq, dci, spec, err := i.pool.make(i.channel)
	if err != nil {
		return err
	}
	i.pool.mu.Lock()
	i.cq, i.dci, i.spec = cq, dci, spec
	i.pool.mu.Unlock()
	i.failed = false
	return nil
}

// lease gives s an initiator, or puts it in line, and it is called when its turn has come. nil: it is in line.
func (q *pool) lease(s *seat) *initiator {
	q.mu.Lock()
	defer q.mu.Unlock()
	if s.granted == nil && !s.inLine {
		s.inLine = true
		s.called.Store(false)
		q.line = append(q.line, s)
		q.waiting.Store(int32(len(q.line))) // before looking who rests: who comes to rest later sees it
		if q.serve(s, false); s.granted == nil {
			q.waits++
			s.waited++
		}
	}
	i := s.granted
	if i != nil {
		s.granted, i.since = nil, time.Time{}
		s.called.Store(false)
	}
	return i
}

// serve gives what is free or rests to those in line, in their order. It holds q.mu. Seat self is not woken. late: also what a seat did not
// come for who was called long ago.
func (q *pool) serve(self *seat, late bool) {
	for len(q.line) > 0 {
		i := q.find(late)
		if i == nil {
			break
		}
		s := q.line[0]
		q.line = append(q.line[:0], q.line[1:]...)
		s.inLine, s.granted = false, i
		i.holder, i.since = s, time.Now()
		if s != self {
			s.called.Store(true)
			s.p.call()
		}
	}
	q.waiting.Store(int32(len(q.line)))
}

// find is an initiator that no seat needs now, nil for none. It holds q.mu.
func (q *pool) find(late bool) *initiator {
	if n := len(q.free); n > 0 {
		i := q.free[n-1]
		q.free = q.free[:n-1]
		return i
	}
	if len(q.all) < q.max {
		i, err := q.open()
		if err == nil {
			return i
		}
		q.why = err // those that there are do
	}
	for range q.all {
		q.next++
		i := q.all[q.next%len(q.all)]
		if s := i.rests.Load(); s != nil && i.rests.CompareAndSwap(s, nil) {
			return i
		}
		if late && !i.since.IsZero() && time.Since(i.since) > stale {
			i.holder.granted = nil // it goes to the end of the line when it comes
			return i
		}
	}
	return nil
}

// offer serves the line after something came to rest, or when a seat in it asks.
func (q *pool) offer(late bool) {
	q.mu.Lock()
	q.serve(nil, late)
	q.mu.Unlock()
}

// giveBack takes an initiator that its holder does not need any more.
func (q *pool) giveBack(i *initiator) {
	q.mu.Lock()
	i.holder, i.since = nil, time.Time{}
	q.free = append(q.free, i)
	q.serve(nil, false)
	q.mu.Unlock()
}

// quit takes a seat out of the line; it is not called any more.
func (q *pool) quit(s *seat) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if s.inLine {
		s.inLine = false
		q.line = slices.DeleteFunc(q.line, func(x *seat) bool { return x == s })
		q.waiting.Store(int32(len(q.line)))
	}
	if i := s.granted; i != nil {
		s.granted, i.holder, i.since = nil, nil, time.Time{}
		q.free = append(q.free, i)
		q.serve(nil, false)
	}
}

// counts returns, for people, how many initiators there are and may be, how often all seats and s waited, and why there are no more.
func (q *pool) counts(s *seat) (n, most int, waits, own uint64, why error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.all), q.max, q.waits, s.waited, q.why
}
