package engine

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/mem/ring"
	"github.com/penstock-io/penstock/packet/burst"
)

// Sink is the device behind an Outbox.
type Sink interface {
	// Transmit sends packets from to to-1 of b, in order, and returns the number of the first that
	// the device has not taken, to if it took them all. Packets without segments count as taken. It
	// never waits, and one goroutine calls it at a time. A packet that it takes stays in b, and
	// goes back to its owner with b, unless Transmit moves it elsewhere (Take) because the device
	// still reads it. A packet that can never be sent is counted by the sink as a drop and taken;
	// an async sink also completes it.
	//
	// If it took fewer, again says when to try again: at that time, or when Outbox.Kick is called,
	// whichever comes first. The zero time means only Kick. A Kick that comes while Transmit still
	// runs, or soon after, is not lost.
	Transmit(b *burst.Burst, from, to int) (next int, again time.Time)
}

// Outbox is the front half of a transmit queue, the same for all engines: it keeps count of
// descriptors, takes bursts from any number of goroutines, and passes them on to a Sink from one
// goroutine at a time, in order.
//
// A Send that finds no other one at work does the work itself; others leave their packets to the
// one that works. When the device takes no more, a goroutine takes over, and ends when it has sent
// everything; until then Sends only leave their packets.
//
// Being busy is a right that passes from goroutine to goroutine: busy is true while one has it, and
// while the device takes no more the goroutine of the Outbox has it. So there is no moment in which
// packets wait and no goroutine is there to send them.
type Outbox struct {
	sink  Sink
	async bool
	depth int64

	free   atomic.Int64  // descriptors
	given  atomic.Uint64 // packets given to Send
	done   atomic.Uint64 // of which have left
	closed atomic.Bool

	busy  atomic.Bool  // a goroutine is sending; the fields up to the next comment are its own
	head  *burst.Burst // what is being sent, of which packets up to from are taken
	from  int
	again time.Time
	timer *time.Timer // nil until it is needed
	drops DropCounters

	// Bursts behind the head, and empty ones to use again.
	queue   *ring.MPSC[*burst.Burst]
	spare   *ring.MPMC[*burst.Burst]
	late    atomic.Uint64 // packets that came after Close
	refused atomic.Uint64 // packets that came without a descriptor

	kick    *Waker
	loop    func() // run; made once, so that starting it allocates nothing
	running sync.WaitGroup
	over    chan struct{} // closed at the end of Close

	// The goroutines that wait in Drain.
	waiting atomic.Int32
	waitMu  sync.Mutex
	waiters map[chan struct{}]uint64 // until so many are done
}

const (
	// spareBurst is the least room of a burst in the queue, in packets.
	spareBurst = 64
	// othersBursts is the number of bursts of others that a Send does before it leaves them to the
	// goroutine.
	othersBursts = 64
	// othersRounds is how often it looks again after that.
	othersRounds = 8
)

// NewOutbox makes an Outbox with that many descriptors. With async the Sink gives descriptors back
// itself, through Complete, when the device has done with a packet; otherwise a packet that
// Transmit took is done.
func NewOutbox(sink Sink, depth int, async bool) (*Outbox, error) {
	if sink == nil || depth < 1 {
		return nil, fmt.Errorf("engine: outbox of %d descriptors and sink %v: expected at least 1 and a sink: %w",
			depth, sink, ErrInvalid)
	}
	o := &Outbox{sink: sink, async: async, depth: int64(depth), kick: NewWaker(), over: make(chan struct{})}
	o.loop = o.run
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

// Reserve takes up to n descriptors and returns how many there were. They belong to the burst that
// the caller notes them in (burst.Reserve with the Outbox as the Reserver), until Send or its
// Release.
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
func (o *Outbox) Unreserve(n int) {
	if free := o.free.Add(int64(n)); invariants.Enabled && (n < 0 || free > o.depth) {
		panic(fmt.Sprintf("engine: outbox of %d descriptors: %d given back make %d free", o.depth, n, free))
	}
}

// Claim makes packets that were received ready for Send, as TxQueue.Forward has to: it takes a
// descriptor for each, and notes them in b. Packets that find none, the last ones, are released; n
// says how many are ready, and err is ErrFull then. Their times go: when a packet was received is
// not when it is to leave. After Close it releases b, and the error is ErrClosed.
func (o *Outbox) Claim(b *burst.Burst) (n int, err error) {
	if b == nil {
		return 0, ErrNil
	}
	if o.closed.Load() {
		b.Release()
		return 0, ErrClosed
	}
	live := b.Live()
	if n = o.Reserve(live); n < live {
		b.Builder().TruncateLive(n)
		err = ErrFull
	}
	if n > 0 {
		b.Builder().Reserve(o, n)
	}
	b.Builder().AtOnce()
	return n, err
}

// ClaimReached is Claim for devices that read what the CPU reads: packets of b in memory that it
// cannot reach are ErrUnsupported, and b is released.
func (o *Outbox) ClaimReached(b *burst.Burst) (n int, err error) {
	if b == nil {
		return 0, ErrNil
	}
	if i := b.Hidden(); i >= 0 {
		b.Release()
		return 0, fmt.Errorf("%w: Forward of packet %d of the burst, which is in memory that the CPU cannot reach: "+
			"package engine/bounce has queues that copy it", ErrUnsupported, i)
	}
	return o.Claim(b)
}

// Free is the number of descriptors that can be reserved now.
func (o *Outbox) Free() int { return int(o.free.Load()) }

// Queued is the number of packets that were given to Send and are not done.
func (o *Outbox) Queued() int {
	done := o.done.Load() // first: the difference is never negative
	return int(o.given.Load() - done)
}

// AddDrops adds the packets that the Outbox itself dropped: those that Close found and that came
// after it, and those that had no descriptor.
func (o *Outbox) AddDrops(d *Drops) {
	o.drops.AddTo(d)
	d[DropClosed] += o.late.Load()
	d[DropRefused] += o.refused.Load()
}

// Complete says that the device has done with n packets of an async Outbox, the oldest ones that
// Transmit has taken. Any goroutine may call it, Transmit too.
func (o *Outbox) Complete(n int) {
	o.Unreserve(n)
	done := o.done.Add(uint64(n))
	if o.waiting.Load() > 0 {
		o.waitMu.Lock()
		defer o.waitMu.Unlock()
		for w, until := range o.waiters {
			if done >= until {
				delete(o.waiters, w)
				close(w)
			}
		}
	}
}

// Drain waits until everything that was given to Send before is done, or the context ends. What
// others send meanwhile it does not wait for.
func (o *Outbox) Drain(ctx context.Context) error {
	until := o.given.Load()
	if o.done.Load() >= until {
		return nil
	}
	w := make(chan struct{})
	o.waitMu.Lock()
	if o.waiters == nil {
		o.waiters = map[chan struct{}]uint64{}
	}
	o.waiters[w] = until
	o.waitMu.Unlock()
	o.waiting.Add(1) // a Complete after this looks at the waiters
	defer o.waiting.Add(-1)
	if o.done.Load() < until {
		select {
		case <-w:
			return nil
		case <-ctx.Done():
		}
	}
	o.waitMu.Lock()
	delete(o.waiters, w)
	o.waitMu.Unlock()
	if o.done.Load() >= until {
		return nil
	}
	return ctx.Err()
}

// Send takes the packets of b and sends them. b must carry a reservation of this Outbox for each of
// its packets; it is empty afterwards in any case.
func (o *Outbox) Send(b *burst.Burst) error {
	if b == nil {
		return ErrNil
	}
	live := b.Live()
	reserved := b.Builder().Reserved(o)
	switch {
	case reserved < live:
		o.refused.Add(uint64(live))
		b.Release()
		return ErrUnreserved
	case o.closed.Load():
		o.late.Add(uint64(live))
		b.Release() // with the reservation
		return ErrClosed
	case live == 0:
		b.Release()
		return nil
	}
	b.Builder().Unreserve() // the descriptors are ours now, until the device has done with the packets
	if over := reserved - live; over > 0 {
		o.Unreserve(over)
	}
	o.given.Add(uint64(live))
	if o.busy.CompareAndSwap(false, true) {
		if !o.work(othersBursts) { // what came before goes before
			o.queue.Put(o.keep(b)) // the goroutine will see it: it is not there yet
			o.start()
			return nil
		}
		if o.queue.Len() == 0 {
			if o.closed.Load() { // meanwhile
				o.late.Add(uint64(live))
				b.Release()
				o.Complete(live)
				o.rest()
				return ErrClosed
			}
			if !o.direct(b, live) {
				o.start()
				return nil
			}
		} else {
			o.queue.Put(o.keep(b)) // behind a Put of another goroutine that is half done, and perhaps one of ours
		}
	} else {
		o.queue.Put(o.keep(b)) // there is room: each burst in the queue holds a descriptor
		if !o.busy.CompareAndSwap(false, true) {
			return nil // the busy goroutine looks again before it rests
		}
		if !o.work(othersBursts) {
			o.start()
			return nil
		}
	}
	if !o.rest() {
		o.start()
	}
	return nil
}

// direct sends the packets of b without the queue. What the device does not take becomes the head,
// and the answer is false.
func (o *Outbox) direct(b *burst.Burst, live int) bool {
	next, again := o.sink.Transmit(b, 0, b.Len())
	if next < b.Len() {
		o.blocked(b, 0, next, live, again)
		o.head = o.keep(b)
		return false
	}
	b.Release()
	if !o.async {
		o.Complete(live)
	}
	return true
}

// blocked notes that the device took packets from to next-1 of b only. live is the number of
// packets with segments before.
func (o *Outbox) blocked(b *burst.Burst, from, next, live int, again time.Time) {
	o.from, o.again = next, again
	if next == from {
		return
	}
	b.Builder().ReleasePart(from, next)
	if !o.async {
		if n := live - b.Builder().LivePart(next, b.Len()); n > 0 {
			o.Complete(n)
		}
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

// work sends what is queued, up to so many bursts, and reports whether nothing is left, or nothing
// that can be got now. The caller is the busy one, and remains it.
func (o *Outbox) work(bursts int) bool {
	for ; ; bursts-- {
		if o.head == nil {
			if bursts <= 0 && !o.closed.Load() { // what is closed drops itself
				if o.queue.Len() == 0 {
					return true
				}
				o.kick.Wake() // the goroutine need not wait for the device
				return false
			}
			q, ok := o.queue.Get()
			if !ok {
				return true
			}
			o.head, o.from, o.again = q, 0, time.Time{}
		}
		b := o.head
		live, done := b.Builder().LivePart(o.from, b.Len()), 0
		if o.closed.Load() {
			o.drops.Add(DropClosed, uint64(live))
			done = live
		} else if o.from < b.Len() {
			next, again := o.sink.Transmit(b, o.from, b.Len())
			if next < b.Len() {
				o.blocked(b, o.from, next, live, again)
				return false
			}
			if !o.async {
				done = live
			}
		}
		o.head = nil
		b.Release()
		if done > 0 {
			o.Complete(done)
		}
		o.spare.Put(b)
	}
}

// rest ends being busy, after it has sent what was queued since the last look. It answers false if
// that goes on: the caller is still the busy one then.
func (o *Outbox) rest() bool {
	for round := 0; ; round++ {
		o.busy.Store(false)
		// A Send that has put something before that, and found us busy, relies on this look.
		if o.queue.Len() == 0 || !o.busy.CompareAndSwap(false, true) {
			return true
		}
		if round > 0 {
			runtime.Gosched() // a Put is half done, or others send all the time
		}
		if !o.work(othersBursts) {
			return false
		}
		if round == othersRounds && !o.closed.Load() {
			o.kick.Wake() // the goroutine need not wait for the device
			return false
		}
	}
}

// start passes being busy on to the goroutine.
func (o *Outbox) start() {
	o.running.Add(1)
	go o.loop()
}

// run sends what the device did not take at once.
func (o *Outbox) run() {
	defer o.running.Done()
	for {
		var at <-chan time.Time
		if o.head != nil && !o.again.IsZero() {
			d := time.Until(o.again)
			if o.timer == nil {
				o.timer = time.NewTimer(d)
			} else {
				o.timer.Reset(d)
			}
			at = o.timer.C
		}
		select {
		case <-o.kick.C():
		case <-at:
		}
		if at != nil {
			o.timer.Stop()
		}
		if o.work(othersBursts) && o.rest() {
			return
		}
	}
}

// Kick says that the device may take packets again. Any goroutine may call it, also when nothing
// waits.
func (o *Outbox) Kick() { o.kick.Wake() }

// Close drops what is queued, counted as DropClosed, and ends the goroutine; the Sink is not called
// any more when it returns. Packets that an async Sink has taken are still completed by it. Calling
// it again waits for the first call. A Sink must not call it from Transmit.
func (o *Outbox) Close() {
	if o.closed.Swap(true) {
		<-o.over
		return
	}
	o.kick.Wake()
	for !o.busy.CompareAndSwap(false, true) {
		runtime.Gosched() // no goroutine is busy for long: a Sink never waits, and the goroutine was kicked
	}
	// From here on no Send starts the goroutine: work drops everything.
	o.work(0)
	o.rest()
	o.running.Wait()
	close(o.over)
}
