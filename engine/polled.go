package engine

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/mem/ring"
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/packet/burst"
)

// PollOptions describe the hand-off of one Receiver.
type PollOptions struct {
	// Batching says when the poller hands a burst over; Packets 0 means 64, and 65536 is the most.
	// Spin is how long Polled.Recv looks before it sleeps.
	Batching
	// Depth is the number of bursts between poller and consumer, 1 to 65536; 0 means 32. When all
	// of them are out, the poller leaves the queue alone.
	Depth int
	// Segments is the room of one burst in segments; 0 means two for each packet.
	Segments int
}

// maxHandOff bounds bursts, and packets in each.
const maxHandOff = 1 << 16

// PolledState says how far a queue at a poller is.
type PolledState uint32

// The states, in this order.
const (
	Active   PolledState = iota // the poller receives on the queue
	Draining                    // not any more; what it received is still to be delivered
	Closed                      // everything was delivered
)

func (s PolledState) String() string {
	switch s {
	case Active:
		return "active"
	case Draining:
		return "draining"
	case Closed:
		return "closed"
	}
	return fmt.Sprintf("state %d", uint32(s))
}

// Polled is where what a Poller receives on one Receiver comes out. One goroutine at a time, its
// consumer, calls TryRecv, Recv, Arm and Close; any goroutine the others.
type Polled struct {
	p    *Poller
	q    Receiver
	o    PollOptions
	full *ring.SPSC[*burst.Burst] // from the poller to the consumer
	free *ring.SPSC[*burst.Burst] // and back

	// The poller's own.
	cur      *burst.Burst // being filled
	deadline time.Time    // of cur, when it is partial
	stuck    bool         // the queue said that there is something
	stalled  bool         // no burst was free
	leaving  atomic.Bool  // the poller is asked to end it
	detached chan struct{}

	starved atomic.Bool           // the poller wants a Wake for the next free burst
	armed   atomic.Pointer[Waker] // the consumer's
	ended   atomic.Bool           // nothing is put into full any more, and err says why
	err     error
	closed  atomic.Bool // all of that was delivered

	// The consumer's own.
	rest *burst.Burst // delivered in part
	rx   *Rx

	bursts, packets, stalls metrics.Counter
}

func newPolled(p *Poller, q Receiver, o PollOptions) (*Polled, error) {
	if o.Packets <= 0 {
		o.Packets = 64
	}
	if o.Depth == 0 {
		o.Depth = 32
	}
	if o.Depth < 1 || o.Depth > maxHandOff {
		return nil, fmt.Errorf("engine: poller %q: depth of %d bursts: expected 1 to %d: %w", p.o.Name, o.Depth,
			maxHandOff, ErrInvalid)
	}
	if o.Packets > maxHandOff || o.Segments > maxHandOff*burst.MaxSegments {
		return nil, fmt.Errorf("engine: poller %q: bursts of %d packets in %d segments: expected up to %d and %d: %w",
			p.o.Name, o.Packets, o.Segments,
			maxHandOff, maxHandOff*burst.MaxSegments, ErrInvalid)
	}
	if o.Segments <= 0 {
		o.Segments = 2 * o.Packets
	}
	c := &Polled{p: p, q: q, o: o, detached: make(chan struct{})}
	var err error
	if c.full, err = ring.NewSPSC[*burst.Burst](o.Depth); err != nil {
		return nil, err
	}
	if c.free, err = ring.NewSPSC[*burst.Burst](o.Depth); err != nil {
		return nil, err
	}
	for range o.Depth {
		c.free.Put(burst.NewSegmented(o.Packets, o.Segments))
	}
	c.rx = NewRx(c, Batching{Spin: o.Spin})
	return c, nil
}

// State is how far it is.
func (c *Polled) State() PolledState {
	switch {
	case c.closed.Load():
		return Closed
	case c.ended.Load():
		return Draining
	}
	return Active
}

// poll is the poller's turn: it receives what is there and hands over what is due, and reports
// whether there was anything to do.
func (c *Polled) poll(stop bool) bool {
	if stop || c.leaving.Load() {
		c.end(ErrClosed)
		return true
	}
	if c.cur == nil && !c.supply() {
		return false
	}
	b := c.cur
	n, err := c.q.TryRecv(b)
	if err != nil {
		c.end(err)
		return true
	}
	if n > 0 {
		c.stuck = false
	}
	if b.Len() == 0 {
		return false
	}
	switch {
	case c.o.Timeout <= 0, b.Len() == b.Cap(), b.Room() == 0:
	case n == 0 && c.stuck: // the next packet has more segments than there is room for
	default:
		if now := time.Now(); c.deadline.IsZero() {
			c.deadline = now.Add(c.o.Timeout)
			return true
		} else if now.Before(c.deadline) {
			return n > 0
		}
	}
	c.hand()
	return true
}

// supply gets a burst to fill.
func (c *Polled) supply() bool {
	b, ok := c.free.Get()
	if !ok {
		c.starved.Store(true)
		if b, ok = c.free.Get(); !ok { // one may have come before that
			if !c.stalled {
				c.stalls.Inc()
				c.p.stalls.Inc()
			}
			c.stalled = true
			return false
		}
	}
	c.cur, c.stalled = b, false
	return true
}

// hand hands the burst over. There is room: the ring takes all bursts there are.
func (c *Polled) hand() {
	n := uint64(c.cur.Len())
	c.full.Put(c.cur)
	c.cur, c.deadline, c.stuck = nil, time.Time{}, false
	c.bursts.Inc()
	c.packets.Add(n)
	c.p.bursts.Inc()
	c.p.packets.Add(n)
	c.wake()
}

// wake wakes the consumer if it sleeps.
func (c *Polled) wake() {
	if c.armed.Load() != nil {
		if w := c.armed.Swap(nil); w != nil {
			w.Wake()
		}
	}
}

// end hands over what there is and gives the queue up, because of err.
func (c *Polled) end(err error) {
	if c.cur != nil && c.cur.Len() > 0 {
		c.hand()
	}
	c.cur = nil
	c.err = err
	c.ended.Store(true)
	c.p.drop(c)
	c.wake()
	close(c.detached)
}

// errSmall is met in a loop.
var errSmall = fmt.Errorf("engine: the burst has room for fewer segments, or memories, than its first packet has: "+
	"make it with burst.NewSegmented: %w", ErrInvalid)

// TryRecv adds to b what the poller has handed over, as much as there is room for, and returns the
// number of packets. When the queue was removed, was closed or has failed, the error says so once
// everything was delivered.
func (c *Polled) TryRecv(b *burst.Burst) (int, error) {
	if b == nil {
		return 0, ErrNil
	}
	n := 0
	for b.Room() > 0 {
		if c.rest == nil {
			ended := c.ended.Load() // before the look: what was put before it is seen
			var ok bool
			if c.rest, ok = c.full.Get(); !ok {
				c.rest = nil
				if ended && n == 0 {
					c.closed.Store(true)
					return 0, c.err
				}
				break
			}
		}
		n += c.rest.MoveTo(b)
		if c.rest.Len() > 0 {
			if b.Len() == 0 {
				return 0, errSmall
			}
			break
		}
		c.giveBack()
	}
	return n, nil
}

// giveBack gives the burst that was delivered to the poller.
func (c *Polled) giveBack() {
	c.free.Put(c.rest)
	c.rest = nil
	if c.starved.Load() && c.starved.Swap(false) {
		c.p.waker.Wake()
	}
}

// Arm implements Receiver.
func (c *Polled) Arm(w *Waker) (ready bool) {
	if c.rest != nil {
		return true
	}
	c.armed.Store(w)
	if c.full.Len() > 0 || c.ended.Load() { // the poller may have looked before that
		c.armed.Store(nil)
		return true
	}
	return false
}

// Recv waits until the poller has handed something over and delivers it in b, as many packets as
// there are and as b has room for. Errors are as for Rx.Recv.
func (c *Polled) Recv(ctx context.Context, b *burst.Burst) error { return c.rx.Recv(ctx, b) }

// Close takes the queue from the poller, if it still has it, and releases what was handed over and
// not received, after it has shown it to thrown, which may be nil. The queue stays open and is the
// caller's. It returns how many packets were thrown away.
func (c *Polled) Close(thrown func(b *burst.Burst)) int {
	c.leaving.Store(true)
	c.p.waker.Wake()
	<-c.detached
	n := 0
	for {
		if c.rest == nil {
			b, ok := c.full.Get()
			if !ok {
				break
			}
			c.rest = b
		}
		n += c.rest.Len()
		if thrown != nil {
			thrown(c.rest)
		}
		c.rest.Release()
		c.rest = nil
	}
	c.closed.Store(true)
	return n
}

// PolledStats are counts of one queue at a poller.
type PolledStats struct {
	Bursts, Packets uint64 // handed over
	Waiting         int    // bursts that were handed over and not received
	Stalls          uint64 // see PollerStats
}

// Stats fills s.
func (c *Polled) Stats(s *PolledStats) {
	*s = PolledStats{Bursts: c.bursts.Load(), Packets: c.packets.Load(), Waiting: c.full.Len(), Stalls: c.stalls.Load()}
}
