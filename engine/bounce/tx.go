package bounce

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// txQueue is a transmit queue of an engine with copies before it: an engine.Outbox whose device is
// the accelerator, and a goroutine that gives packets to the engine's queue when they are in host
// memory.
type txQueue struct {
	port  *Port
	inner engine.TxQueue
	box   *engine.Outbox
	slots *engine.TxSlots

	dev     *gpu.Memory
	staging *mem.Pool
	src     *burst.Source // of staging, for segments behind those of the engine
	pin     *gpu.Memory
	stream  *gpu.Stream // of Transmit
	chains  bool        // the engine sends packets of several segments

	all    []*txCopy
	idle   chan *txCopy
	under  chan *txCopy // that are being copied, in order
	sender sync.WaitGroup

	forwarded, copied, full, noBuffers atomic.Uint64
	refused                            engine.DropCounters // by Transmit
	down                               atomic.Uint64       // dropped because the device was lost

	lost   atomic.Pointer[error]
	closed atomic.Bool
	once   sync.Once
	err    error // of Close
}

// txCopy is packets that are being copied.
type txCopy struct {
	out  *burst.Burst // in host memory, with descriptors of the engine
	held *burst.Burst // what the copies read
	ev   *gpu.Event
	ops  []gpu.Op
	n    int
}

// again is after how long the engine's queue is asked for descriptors again, which it does not tell
// of.
const again = 100 * time.Microsecond

// newTxQueue makes a queue for packets of its own pools, and for those in pools from, the last of
// which is of the device.
func newTxQueue(p *Port, spec engine.TxSpec, from []*mem.Pool) (*txQueue, error) {
	q := &txQueue{port: p, idle: make(chan *txCopy, p.o.Bursts), under: make(chan *txCopy, p.o.Bursts)}
	if err := q.open(spec, from); err != nil {
		return nil, errors.Join(err, q.free())
	}
	q.sender.Go(q.send)
	return q, nil
}

// open makes what copies need, and the engine's queue. What it made is given back by free, also
// after an error.
func (q *txQueue) open(spec engine.TxSpec, from []*mem.Pool) (err error) {
	p, pool := q.port, from[len(from)-1]
	if len(spec.Pools) == 0 || len(spec.Pools) > 2 || slices.Contains(spec.Pools, nil) {
		return fmt.Errorf("%d pools: expected one, or two for a header and a payload: %w", len(spec.Pools),
			engine.ErrInvalid)
	}
	if spec.Headroom < 0 || spec.Headroom >= spec.Pools[0].SlotSize() || spec.Headroom > 1<<16-1 {
		return fmt.Errorf("headroom of %d bytes in slots of %d: %w", spec.Headroom, spec.Pools[0].SlotSize(),
			engine.ErrInvalid)
	}
	var provider mem.Provider
	if q.dev, provider, err = deviceOf(pool); err != nil {
		return err
	}
	depth := spec.Depth
	if depth == 0 {
		depth = 1024
	}
	size, other := 0, 0
	var srcs []*burst.Source
	for _, x := range spec.Pools {
		size += x.SlotSize()
		srcs = append(srcs, burst.PoolSource(x))
	}
	for _, x := range from {
		other += x.SlotSize()
	}
	size = max(size, other)
	q.slots = engine.NewTxSlots(spec.Pools, srcs, spec.Headroom, 0)
	if q.box, err = engine.NewOutbox((*sink)(q), depth, true); err != nil {
		return err
	}
	name := spec.Name
	if name == "" {
		name = pool.Name()
	}
	slots := depth
	if q.chains = p.caps.Chains; q.chains {
		slots += burst.MaxSegments
	}
	if q.staging, q.pin, err = stagingPool(name, provider, size, slots); err != nil {
		return err
	}
	q.src = burst.PoolSource(q.staging)
	ctx := q.dev.Context()
	if q.stream, err = ctx.NewStream(gpu.StreamOptions{Name: name}); err != nil {
		return err
	}
	for range p.o.Bursts {
		n := segmentsOf(p.o.Packets)
		d := &txCopy{out: burst.NewSegmented(p.o.Packets, n), held: burst.NewSegmented(p.o.Packets, n),
			ops: make([]gpu.Op, 0, n+burst.MaxSegments+1)}
		q.all = append(q.all, d)
		if d.ev, err = ctx.NewEvent(gpu.EventOptions{Name: name}); err != nil {
			return err
		}
		q.idle <- d
	}
	spec.Pools, spec.Headroom = []*mem.Pool{q.staging}, 0
	if q.inner, err = p.Port.AddTxQueue(spec); err != nil {
		return err
	}
	return nil
}

// free gives back what the queue has of the device and of its own memory.
func (q *txQueue) free() error {
	var errs []error
	for _, d := range q.all {
		if d.ev != nil {
			errs = append(errs, d.ev.Close())
		}
	}
	return errors.Join(append(errs, freeStaging(q.stream, q.staging))...)
}

// ID implements engine.TxQueue.
func (q *txQueue) ID() int { return q.inner.ID() }

// Alloc implements engine.TxQueue.
func (q *txQueue) Alloc(b *burst.Burst, n, length int) (int, error) {
	if q.closed.Load() {
		return 0, engine.ErrClosed
	}
	if err := q.lost.Load(); err != nil {
		return 0, *err
	}
	return q.slots.Alloc(q.box, b, n, length)
}

// Forward implements engine.TxQueue. Every packet is copied when it is sent.
func (q *txQueue) Forward(b *burst.Burst) (int, error) {
	if b == nil {
		return 0, engine.ErrNil
	}
	if err := q.reaches(b); err != nil {
		b.Release()
		return 0, err
	}
	n, err := q.box.Claim(b)
	if err == engine.ErrFull {
		q.slots.CountFull()
	}
	q.forwarded.Add(uint64(n))
	return n, err
}

// reaches is an error unless the device or the CPU reads all of b.
func (q *txQueue) reaches(b *burst.Burst) error {
	first := b.Hidden()
	if first < 0 {
		return nil
	}
	for i := first; i < b.Len(); i++ {
		for k := range b.Segments(i) {
			if b.Bytes(i, k) != nil || b.Segment(i, k).Len == 0 {
				continue
			}
			r := b.Segment(i, k).Region
			if m, ok := r.Handle().(*gpu.Memory); !ok || m.Context() != q.dev.Context() {
				return fmt.Errorf("bounce: transmit queue %d: Forward of packets in %q, which is not of %s: %w", q.ID(),
					r.Name(), q.dev.Context().Device(), engine.ErrUnsupported)
			}
		}
	}
	return nil
}

// Send implements engine.TxQueue.
func (q *txQueue) Send(b *burst.Burst) error { return q.box.Send(b) }

// Drain implements engine.TxQueue.
func (q *txQueue) Drain(ctx context.Context) error {
	if err := q.box.Drain(ctx); err != nil {
		return err
	}
	return q.inner.Drain(ctx)
}

// Stats implements engine.TxQueue.
func (q *txQueue) Stats(s *engine.TxStats) {
	var own engine.TxStats
	q.own(&own) // first: what the engine has is no more in the box
	q.inner.Stats(s)
	s.Add(&own)
}

// own is what is to be added to the counts of the engine's queue. Lack of descriptors and memory
// there is no lack of the sender's.
func (q *txQueue) own(s *engine.TxStats) {
	*s = engine.TxStats{Forwarded: q.forwarded.Load(), Copied: q.copied.Load(), Queued: uint64(q.box.Queued())}
	s.Full, s.NoBuffers = -q.full.Load(), -q.noBuffers.Load()
	q.slots.AddStats(s)
	q.box.AddDrops(&s.Drops)
	q.refused.AddTo(&s.Drops)
	s.Drops[engine.DropDown] += q.down.Load()
}

// Close implements engine.TxQueue. It waits for copies that are under way.
func (q *txQueue) Close() error {
	q.once.Do(func() {
		q.closed.Store(true)
		q.box.Close() // Transmit is not called any more
		close(q.under)
		q.sender.Wait()
		q.err = errors.Join(q.inner.Close(), q.free())
		q.port.retireTx(q)
	})
	return q.err
}

// sink is the accelerator behind a txQueue.
type sink txQueue

// Transmit implements engine.Sink.
func (s *sink) Transmit(b *burst.Burst, from, to int) (int, time.Time) {
	q := (*txQueue)(s)
	foreign := q.reaches(b) != nil // parts that the caller added to what Alloc gave
	for from < to {
		if b.Segments(from) == 0 {
			from++
			continue
		}
		if foreign {
			q.skip(b, from, engine.DropRefused)
			from++
			continue
		}
		if q.lost.Load() != nil {
			q.skip(b, from, engine.DropDown)
			from++
			continue
		}
		var d *txCopy
		select {
		case d = <-q.idle:
		default:
			return from, time.Time{} // send kicks
		}
		n, why := q.load(d, b, from, to)
		if from += n; n > 0 {
			q.under <- d
			continue
		}
		q.idle <- d
		if why == engine.NumDrops {
			return from, time.Now().Add(again)
		}
		q.skip(b, from, why)
		from++
	}
	return to, time.Time{}
}

// skip drops packet i, which stays in b.
func (q *txQueue) skip(b *burst.Burst, i int, why engine.Drop) {
	q.refused.Inc(why)
	q.box.Complete(1)
}

// load takes packets from from on, as many as there is room for and up to an empty one, begins to
// copy them, and returns how many. If it took none, why says why the first will never go;
// engine.NumDrops: the engine has no descriptor, or there is no memory, now.
func (q *txQueue) load(d *txCopy, b *burst.Burst, from, to int) (n int, why engine.Drop) {
	longest, segments := 0, 0
	most := min(to-from, d.out.Cap())
	for ; n < most; n++ {
		k, size := b.Segments(from+n), b.PacketLen(from+n)
		if k == 0 || size > q.staging.SlotSize() || segments+k > d.held.SegmentRoom() {
			break
		}
		longest, segments = max(longest, size), segments+k
	}
	pieces := 1
	if n == 0 { // the first is longer than a slot
		slot := q.staging.SlotSize()
		n, longest, pieces = 1, slot, (b.PacketLen(from)+slot-1)/slot
		if !q.chains || pieces > burst.MaxSegments || b.Segments(from) > d.held.SegmentRoom() {
			return 0, engine.DropTooLong
		}
	}
	got, err := q.alloc(d.out, n, longest)
	if got == 0 && n > 1 && !short(err) { // the longest of them may be too long for the engine
		got, err = q.alloc(d.out, 1, b.PacketLen(from))
	}
	switch {
	case got > 0:
	case short(err):
		return 0, engine.NumDrops
	case errors.Is(err, engine.ErrClosed):
		return 0, engine.DropClosed
	default:
		return 0, engine.DropTooLong
	}
	if pieces > 1 && !q.lengthen(d.out, pieces) {
		d.out.Release()
		return 0, engine.NumDrops
	}
	d.ops, d.n = d.ops[:0], got
	for j := range got {
		q.copy(d, b, from+j, j)
	}
	if len(d.ops) == 0 { // all of it is the host's
		return got, 0
	}
	d.ops = append(d.ops, gpu.RecordOp(d.ev))
	if _, err := q.stream.Enqueue(d.ops); err != nil {
		_ = q.stream.Wait(context.Background()) // a device that is lost copies nothing more
		q.lose(err)
	}
	return got, 0
}

// lengthen makes the one packet of b a chain of so many slots, and reports whether there were so
// many.
func (q *txQueue) lengthen(b *burst.Burst, pieces int) bool {
	var slots [burst.MaxSegments]mem.Handle
	more := slots[:pieces-1]
	if got := q.staging.GetBatch(more); got < len(more) {
		q.staging.PutBatch(more[:got])
		return false
	}
	size := uint32(q.staging.SlotSize())
	for _, h := range more {
		// there is room: MaxSegments and more
		b.Builder().AddSegment(q.src, burst.Segment{Handle: h, Off: q.staging.Offset(h), Len: size, Cap: size})
	}
	return true
}

// alloc is Alloc of the engine's queue. What that counts as a want of descriptors or memory, also
// where it had some, is counted here once.
func (q *txQueue) alloc(b *burst.Burst, n, length int) (got int, err error) {
	got, err = q.inner.Alloc(b, n, length)
	switch {
	case errors.Is(err, engine.ErrFull):
		q.full.Add(1)
	case errors.Is(err, engine.ErrNoBuffers):
		q.noBuffers.Add(1)
	}
	return got, err
}

// short reports whether an error of the engine's Alloc will pass.
func short(err error) bool {
	return errors.Is(err, engine.ErrFull) || errors.Is(err, engine.ErrNoBuffers)
}

// copy has packet i of b become packet j of d.
func (q *txQueue) copy(d *txCopy, b *burst.Burst, i, j int) {
	left := b.PacketLen(i)
	q.copied.Add(uint64(left))
	for k := range d.out.Segments(j) {
		n := min(left, q.staging.SlotSize())
		d.out.SetLen(j, k, n)
		left -= n
	}
	d.out.SetConn(j, b.Conn(i))
	d.out.Builder().CopyRequests(j, b, i)
	if ns, ok := b.Time(i); ok {
		d.out.SetTime(j, ns)
	}
	at, used := 0, 0 // segment of the copy, and what of it is filled
	for k := range b.Segments(i) {
		from := b.Segment(i, k)
		m, ok := from.Region.Handle().(*gpu.Memory)
		onDevice := ok && from.Region.Mover() != nil
		for done := 0; done < int(from.Len); {
			to := d.out.Segment(j, at)
			if used == int(to.Len) {
				at, used = at+1, 0
				continue
			}
			n := min(int(from.Len)-done, int(to.Len)-used)
			if onDevice {
				d.ops = append(d.ops, gpu.CopyOp(span(q.pin, to.Off+uint64(used), uint32(n)),
					span(m, from.Off+uint64(done), uint32(n))))
			} else {
				copy(d.out.Bytes(j, at)[used:], b.Bytes(i, k)[done:done+n])
			}
			done, used = done+n, used+n
		}
	}
	b.Take(d.held, i)
}

// lose notes that the device copies nothing any more.
func (q *txQueue) lose(err error) {
	err = fmt.Errorf("bounce: transmit queue %d: copies from %s: %w", q.ID(), q.dev.Context().Device(), err)
	q.lost.CompareAndSwap(nil, &err)
}

// send gives packets to the engine when they have been copied.
func (q *txQueue) send() {
	for d := range q.under {
		if len(d.ops) > 0 && q.lost.Load() == nil {
			if err := d.ev.Wait(context.Background()); err != nil {
				q.lose(err)
			}
		}
		d.held.Release()
		if len(d.ops) > 0 && q.lost.Load() != nil {
			d.out.Release()
			q.down.Add(uint64(d.n))
		} else {
			_ = q.inner.Send(d.out) // the engine counts what it does not send
		}
		q.box.Complete(d.n)
		q.idle <- d
		q.box.Kick()
	}
}
