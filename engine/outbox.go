package engine

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/ring"
)

// Sink is the device behind an Outbox.
type Sink interface {
	// Transmit sends packets from to to-1 of b, in order, and returns the number of the first that the device has not taken, to if it
	// took them all. Packets without segments count as taken. It never waits, and one goroutine calls it at a
	// time. A packet that it takes stays in b, and goes back to its owner with b, unless Transmit moves it elsewhere (Take) because
	// the device still reads it. A packet that can never be sent is counted by the sink as a drop and taken; an async sink also
	// completes it.
	//
	// If it took fewer, again says when to try again: at that time, or when Outbox.Kick is called, whichever comes first. The zero
	// time means only Kick.
	Transmit(b *burst.Burst, from, to int) (next int, again time.Time)
}

// Outbox is the front half of a transmit queue, the same for all engines: it keeps count of descriptors, takes bursts from any
// number of goroutines, and passes them on to a Sink from one goroutine at a time, in order.
//
// A Send that finds nobody else sending does the work itself; others leave their packets to whoever is at it. What the device does
// not take at once is sent later by a goroutine of the Outbox.
type Outbox struct {
	sink  Sink
	async bool
	depth int64

	free   atomic.Int64 // descriptors
	queued atomic.Int64 // packets given to Send and not done
	closed atomic.Bool
	busy   atomic.Bool // somebody is sending; the fields up to the next comment are theirs

	head  *burst.Burst // the first in the queue, of which packets up to from are taken
	from  int
	again time.Time
	drops DropCounters

	// Bursts behind the head, and empty ones to use again.
	queue   *ring.MPSC[*burst.Burst]
	spare   *ring.MPMC[*burst.Burst]
	refused atomic.Uint64 // packets that came after Close

	// The goroutine that sends what the device did not take at once.
	mu      sync.Mutex
	kick    *Waker // nil until it runs
	stop    chan struct{}
	stopped chan struct{}

	// Those who wait in Drain.
	waiting atomic.Int32
	waitMu  sync.Mutex
	waiters []chan struct{}
}

// spareBurst is the least room of a burst in the queue, in packets.
const spareBurst = 64

// NewOutbox makes an Outbox with that many descriptors. With async the Sink gives descriptors back itself, through Complete, when
// the device has done with a packet; otherwise a packet that Transmit took is done.
func NewOutbox(sink Sink, depth int, async bool) (*Outbox, error) {
	o := &Outbox{sink: sink, async: async, depth: int64(depth)}
	o.free.Store(o.depth)
	var err error
	if o.queue, err = ring.NewMPSC[*burst.Burst](depth); err != nil {
		return nil, err
	}
	if o.spare, err = ring.NewMPMC[*burst.Burst](depth); err != nil {
		return nil, err
	}
	return o, nil
}

// Reserve takes up to n descriptors and returns how many there were. They belong to the burst that the caller notes them in (burst.Reserve
// with the Outbox as the Reserver), until Send or its Release.
func (o *Outbox) Reserve(n int) int {
	for {
		free := o.free.Load()
		k := min(int64(n), free)
		if k <= 0 {
			return 0
		}
		if o.free.CompareAndSwap(free, free-k) {
			return int(k)
		}
	}
}

// Unreserve implements burst.Reserver.
func (o *Outbox) Unreserve(n int) { o.free.Add(int64(n)) }

// Free is the number of descriptors that can be reserved now.
func (o *Outbox) Free() int { return int(o.free.Load()) }

// Queued is the number of packets that were given to Send and are not done.
func (o *Outbox) Queued() int { return int(o.queued.Load()) }

// AddDrops adds the packets that the Outbox itself dropped: those that Close found, and those that came after it.
func (o *Outbox) AddDrops(d *Drops) {
	o.drops.AddTo(d)
	d[DropClosed] += o.refused.Load()
}

// Complete says that the device has done with n packets of an async Outbox. Any goroutine may call it.
func (o *Outbox) Complete(n int) {
	o.free.Add(int64(n))
	if o.queued.Add(int64(-n)) == 0 && o.waiting.Load() > 0 {
		o.waitMu.Lock()
		defer o.waitMu.Unlock()
		for _, w := range o.waiters {
			close(w)
		}
		o.waiters = nil
	}
}

// Drain waits until nothing is queued, or the context ends.
func (o *Outbox) Drain(ctx context.Context) error {
	o.waiting.Add(1)
	defer o.waiting.Add(-1)
	for {
		w := make(chan struct{})
		o.waitMu.Lock()
		o.waiters = append(o.waiters, w)
		o.waitMu.Unlock()
		if o.queued.Load() == 0 {
			return nil
		}
		select {
		case <-w:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Send takes the packets of b and sends them. b must carry a reservation of this Outbox for each of its packets; it is empty
// afterwards in any case.
func (o *Outbox) Send(b *burst.Burst) error {
	if b == nil {
		return ErrNil
	}
	live := b.Live()
	if b.Reserved(o) < live {
		b.Release()
		return ErrUnreserved
	}
	if o.closed.Load() {
		o.refused.Add(uint64(live))
		b.Release() // with the reservation
		return ErrClosed
	}
	over := b.Reserved(o) - live
	b.Unreserve() // the descriptors are ours now, until the device has done with the packets
	if over > 0 {
		o.Unreserve(over)
	}
	if live == 0 {
		b.Release()
		return nil
	}
	o.queued.Add(int64(live))
	if o.busy.CompareAndSwap(false, true) {
		o.work() // what came before goes before
		if o.head == nil {
			if o.direct(b); o.head == nil {
				o.leave()
				return nil
			}
		} else {
			o.queue.Put(o.keep(b))
		}
	} else {
		o.queue.Put(o.keep(b)) // there is room: each burst in the queue holds a descriptor
		if !o.busy.CompareAndSwap(false, true) {
			return nil // whoever is busy looks again before it rests
		}
		o.work()
	}
	o.leave()
	return nil
}

// direct sends the packets of b without the queue; what the device does not take becomes the head.
func (o *Outbox) direct(b *burst.Burst) {
	sent := 0
	if !o.async {
		sent = b.Live()
	}
	if o.from, o.again = o.sink.Transmit(b, 0, b.Len()); o.from < b.Len() {
		o.head = o.keep(b)
		return
	}
	b.Release()
	if sent > 0 {
		o.Complete(sent)
	}
}

// keep moves the packets of b to a burst of our own.
func (o *Outbox) keep(b *burst.Burst) *burst.Burst {
	q, ok := o.spare.Get()
	if !ok || q.Cap() < b.Len() || q.Room() < b.SegmentCount() {
		q = burst.NewSegmented(max(b.Len(), spareBurst), max(b.SegmentCount(), spareBurst))
	}
	b.MoveTo(q)
	return q
}

// work sends until nothing is left or the device takes no more. The caller is the busy one.
func (o *Outbox) work() {
	for {
		if o.head == nil {
			q, ok := o.queue.Get()
			if !ok {
				return
			}
			o.head, o.from = q, 0
		}
		b, sent := o.head, 0
		if o.closed.Load() {
			sent = o.discard(b)
		} else if o.from < b.Len() {
			if !o.async {
				sent = b.Live()
			}
			if o.from, o.again = o.sink.Transmit(b, o.from, b.Len()); o.from < b.Len() {
				return
			}
		}
		o.head = nil
		b.Release()
		if sent > 0 {
			o.Complete(sent)
		}
		if b.Cap() >= spareBurst {
			o.spare.Put(b)
		}
	}
}

// discard counts what Close found, and returns how many descriptors come back.
func (o *Outbox) discard(b *burst.Burst) int {
	n := 0
	for i := range b.Len() {
		if b.Segments(i) == 0 {
			continue
		}
		if i >= o.from {
			o.drops.Inc(DropClosed)
			n++
		} else if !o.async {
			n++
		}
	}
	return n
}

// leave ends being busy. What was put into the queue since the last look is sent first; what the device does not take is left to
// the goroutine.
func (o *Outbox) leave() {
	for {
		blocked := o.head != nil
		if blocked {
			o.Kick()
		}
		o.busy.Store(false)
		// Whoever has put something before that, and found us busy, relies on this look.
		if blocked || o.queue.Len() == 0 || !o.busy.CompareAndSwap(false, true) {
			return
		}
		if o.work(); o.head == nil {
			runtime.Gosched() // a Put may be half done
		}
	}
}

// Kick says that the device may take packets again. It starts the goroutine if there is none yet.
func (o *Outbox) Kick() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed.Load() {
		return
	}
	if o.kick == nil {
		o.kick, o.stop, o.stopped = NewWaker(), make(chan struct{}), make(chan struct{})
		go o.run()
	}
	o.kick.Wake()
}

// run sends what was left.
func (o *Outbox) run() {
	defer close(o.stopped)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		var again time.Time
		if o.busy.CompareAndSwap(false, true) {
			o.work()
			if o.head != nil { // no Kick here: it would wake ourselves
				again = o.again
				o.busy.Store(false)
			} else {
				o.leave()
			}
		} // otherwise the busy one kicks us if there is need
		var at <-chan time.Time
		if !again.IsZero() {
			timer.Reset(time.Until(again))
			at = timer.C
		}
		select {
		case <-o.kick.C():
		case <-at:
		case <-o.stop:
			return
		}
	}
}

// Close drops what is queued, counted as DropClosed, and ends the goroutine. Calling it again does nothing.
func (o *Outbox) Close() {
	o.mu.Lock()
	if o.closed.Swap(true) {
		o.mu.Unlock()
		return
	}
	kick := o.kick
	o.mu.Unlock()
	if kick != nil {
		close(o.stop)
		<-o.stopped
	}
	for !o.busy.CompareAndSwap(false, true) {
		runtime.Gosched() // nobody is busy for long: a Sink never waits
	}
	o.work()
	o.leave()
}
