package bounce

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/packet/burst"
)

// rxQueue is a receive queue of an engine with copies behind it. Its owner calls it, and the
// goroutine that closes the port.
//
// The entries of pending are a ring: those from head to tail-1 hold bursts that are being copied,
// the oldest first.
type rxQueue struct {
	port     *Port
	inner    engine.RxQueue
	lossless bool

	pool    *mem.Pool // of the device
	src     *burst.Source
	dev     *gpu.Memory
	staging *mem.Pool
	pin     *gpu.Memory
	stream  *gpu.Stream
	headers *mem.Region // nil: packets are whole

	mu         sync.Mutex // guards what follows
	pending    []pending
	head, tail uint64
	rest       *burst.Burst // was received, and waits for slots of the device: only if lossless
	one        *burst.Burst // of one packet, to drop the first of a burst
	slots      []mem.Handle
	stalled    bool  // rest could not go on
	ended      error // the engine's queue, or the device, has nothing more
	closed     bool
	retry      engine.Retry

	armed atomic.Pointer[engine.Waker]
	watch gpu.Watch

	pulled, pulledBytes    metrics.Counter // from the engine
	packets, bytes, copied metrics.Counter
	polls, empty           metrics.Counter
	drops                  engine.DropCounters
}

// pending is a burst that is being copied.
type pending struct {
	b   *burst.Burst
	ev  *gpu.Event
	ops []gpu.Op
	// What the copies read from: a handle for each, and whose it is.
	from []*burst.Source
	held []burst.Handle

	begun bool // the device has all copies and the event
	over  bool // the copies are
	dead  bool // its packets were thrown away
}

func newRxQueue(p *Port, spec engine.RxSpec) (*rxQueue, error) {
	last := len(spec.Pools) - 1
	pool := spec.Pools[last]
	q := &rxQueue{port: p, lossless: p.caps.Lossless || p.caps.Stream, pool: pool, src: burst.PoolSource(pool),
		one:     burst.NewSegmented(1, burst.MaxSegments),
		pending: make([]pending, p.o.Bursts), slots: make([]mem.Handle, segmentsOf(p.o.Packets))}
	q.watch.Wake = q.wake
	if q.lossless {
		q.rest = burst.NewSegmented(p.o.Packets, segmentsOf(p.o.Packets))
	}
	if last > 0 {
		q.headers = spec.Pools[0].Region()
	}
	if err := q.open(spec, last); err != nil {
		return nil, errors.Join(err, q.free())
	}
	return q, nil
}

// open makes what copies need, and the engine's queue. What it made is given back by free, also
// after an error.
func (q *rxQueue) open(spec engine.RxSpec, last int) (err error) {
	p, pool := q.port, q.pool
	var provider mem.Provider
	if q.dev, provider, err = deviceOf(pool); err != nil {
		return err
	}
	depth := spec.Depth
	if depth <= 0 {
		depth = 1024
	}
	name := spec.Name
	if name == "" {
		name = pool.Name()
	}
	slots := depth + p.o.Packets*(p.o.Bursts+1)
	if q.staging, q.pin, err = stagingPool(name, provider, pool.SlotSize(), slots); err != nil {
		return err
	}
	ctx := q.dev.Context()
	if q.stream, err = ctx.NewStream(gpu.StreamOptions{Name: name}); err != nil {
		return err
	}
	for i := range q.pending {
		f := &q.pending[i]
		n := segmentsOf(p.o.Packets)
		f.b, f.ops = burst.NewSegmented(p.o.Packets, n), make([]gpu.Op, 0, n+1)
		f.from, f.held = make([]*burst.Source, 0, n), make([]burst.Handle, 0, n)
		if f.ev, err = ctx.NewEvent(gpu.EventOptions{Name: name}); err != nil {
			return err
		}
	}
	spec.Pools = append(append([]*mem.Pool(nil), spec.Pools[:last]...), q.staging)
	q.inner, err = p.Port.AddRxQueue(spec)
	return err
}

// segmentsOf is the room in segments of a burst of so many packets: the longest chain fits at least
// once.
func segmentsOf(packets int) int { return 2*packets + burst.MaxSegments }

// free gives back what the queue has of the device and of its own memory.
func (q *rxQueue) free() error {
	var errs []error
	for i := range q.pending {
		if ev := q.pending[i].ev; ev != nil {
			errs = append(errs, ev.Close())
		}
	}
	return errors.Join(append(errs, freeStaging(q.stream, q.staging))...)
}

// ID implements engine.RxQueue.
func (q *rxQueue) ID() int { return q.inner.ID() }

// TryRecv implements engine.RxQueue: it begins to copy what the engine has, and gives what is
// there.
func (q *rxQueue) TryRecv(b *burst.Burst) (int, error) {
	if b == nil {
		return 0, engine.ErrNil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.polls.Inc()
	if q.closed {
		return 0, engine.ErrClosed
	}
	q.fill()
	n := q.deliver(b)
	if n > 0 {
		return n, nil
	}
	q.empty.Inc()
	if q.over() {
		return 0, q.ended
	}
	return 0, nil
}

// fill receives from the engine, while entries of pending are free, and begins the copies. The
// caller holds mu.
func (q *rxQueue) fill() {
	for q.tail-q.head < uint64(len(q.pending)) {
		f := &q.pending[q.tail%uint64(len(q.pending))]
		if q.lossless && q.rest.Len() > 0 {
			q.rest.MoveTo(f.b)
		} else {
			if q.ended != nil {
				return
			}
			n, err := q.inner.TryRecv(f.b)
			if err != nil {
				q.ended = err
				return
			}
			if n == 0 {
				return
			}
			q.pulled.Add(uint64(n))
			q.pulledBytes.Add(uint64(f.b.TotalLen()))
		}
		whole, err := q.begin(f)
		if f.b.Len() > 0 {
			q.tail++
		}
		if err != nil {
			q.fail(err)
			return
		}
		if !whole {
			return // an owner without memory does not look for more at once
		}
	}
}

// moves reports whether segment k of packet i goes to the device: all but headers, and what lies in
// the memory for headers.
func (q *rxQueue) moves(b *burst.Burst, i, k int) bool {
	return b.Role(i, k) != burst.Header && (q.headers == nil || b.Segment(i, k).Region != q.headers)
}

// needs is how many slots of the device packet i takes. Empty segments take none.
func (q *rxQueue) needs(b *burst.Burst, i int) (n int) {
	for k := range b.Segments(i) {
		if b.Segment(i, k).Len > 0 && q.moves(b, i, k) {
			n++
		}
	}
	return n
}

// begin begins to copy the packets of a pending burst. Those at the end that find no slot on the
// device are dropped, or wait in rest; whole is false then. With an error some copies may be under
// way.
func (q *rxQueue) begin(f *pending) (whole bool, err error) {
	f.ops, f.from, f.held, f.begun, f.over, f.dead = f.ops[:0], f.from[:0], f.held[:0], false, false, false
	need := 0
	for i := range f.b.Len() {
		need += q.needs(f.b, i)
	}
	got := q.pool.GetBatch(q.slots[:need])
	used, n := 0, f.b.Len()
	if q.stalled = false; got < need {
		n = q.cut(f, got)
	}
	defer func() {
		if used < got {
			q.pool.PutBatch(q.slots[used:got])
		}
	}()
	for i := range n {
		for k := range f.b.Segments(i) {
			if !q.moves(f.b, i, k) {
				continue
			}
			slot := burst.NoHandle
			if f.b.Segment(i, k).Len > 0 {
				slot = q.slots[used]
			}
			if err := q.copy(f, i, k, slot); err != nil {
				return false, err
			}
			if slot != burst.NoHandle {
				used++
			}
		}
	}
	if len(f.ops) == 0 {
		f.landed() // headers only
		return got == need, nil
	}
	f.ops = append(f.ops, gpu.RecordOp(f.ev))
	if _, err := q.stream.Enqueue(f.ops); err != nil {
		return false, err
	}
	f.begun = true
	return got == need, nil
}

// cut leaves in a pending burst the packets that find a slot for each segment, and returns their
// number. The others are dropped, or go to rest.
func (q *rxQueue) cut(f *pending, slots int) (n int) {
	for n < f.b.Len() {
		if slots -= q.needs(f.b, n); slots < 0 {
			break
		}
		n++
	}
	if !q.lossless {
		q.drops.Add(engine.DropNoDeviceBuffers, uint64(f.b.Len()-n))
		f.b.Truncate(n)
		return n
	}
	q.stalled = true
	if n == 0 {
		f.b.MoveTo(q.rest)
		return 0
	}
	for i := n; i < f.b.Len(); i++ {
		f.b.Take(q.rest, i)
	}
	f.b.Truncate(n)
	return n
}

// copy moves segment k of packet i to a slot of the device; an empty one needs none.
func (q *rxQueue) copy(f *pending, i, k int, slot mem.Handle) error {
	old := f.b.Builder().Part(i, k)
	size := uint32(q.pool.SlotSize())
	if old.Len > size || old.Source.Region() != q.staging.Region() {
		return fmt.Errorf("the engine gave a segment of %d bytes in the region %q: expected up to %d in %q, the "+
			"memory that it was given: %w", old.Len,
			old.Source.Region().Name(), size, q.staging.Region().Name(), engine.ErrInternal)
	}
	to := burst.Segment{Handle: slot, Len: old.Len, Role: old.Role}
	if slot != burst.NoHandle {
		to.Off, to.Cap = q.pool.Offset(slot), size
		f.ops = append(f.ops, gpu.CopyOp(span(q.dev, to.Off, old.Len), span(q.pin, old.Off, old.Len)))
	}
	if _, ok := f.b.Builder().Replace(i, k, q.src, to); !ok {
		return fmt.Errorf("the engine's packets lie in %d memories: %w", burst.MaxSources, engine.ErrInternal)
	}
	if old.Handle != burst.NoHandle {
		f.from, f.held = append(f.from, old.Source), append(f.held, old.Handle)
	}
	q.copied.Add(uint64(old.Len))
	return nil
}

// landed gives the memory that the copies read from back to the engine.
func (f *pending) landed() {
	f.over = true
	for a := 0; a < len(f.held); {
		z := a + 1
		for z < len(f.held) && f.from[z] == f.from[a] {
			z++
		}
		f.from[a].Reclaim(f.held[a:z])
		a = z
	}
	clear(f.from)
	f.from, f.held = f.from[:0], f.held[:0]
}

// deliver moves packets whose copies are over to b and returns how many. The caller holds mu.
func (q *rxQueue) deliver(b *burst.Burst) (n int) {
	for q.head != q.tail {
		f := &q.pending[q.head%uint64(len(q.pending))]
		if !q.arrived(f) {
			break
		}
		if f.dead {
			f.b.Release()
		}
		before := f.b.TotalLen()
		k := f.b.MoveTo(b)
		n += k
		q.packets.Add(uint64(k))
		q.bytes.Add(uint64(before - f.b.TotalLen()))
		if f.b.Len() == 0 {
			q.head++
			continue
		}
		if k > 0 || b.Len() > 0 || b.Room() == 0 {
			break
		}
		f.b.MoveTo(q.one) // it would hold up the others for ever
		q.one.Release()
		q.drops.Inc(engine.DropTooLong)
		if f.b.Len() == 0 {
			q.head++
		}
	}
	return n
}

// arrived reports whether the copies of a pending burst are over. The caller holds mu.
func (q *rxQueue) arrived(f *pending) bool {
	if f.over {
		return true
	}
	done, err := f.ev.Query()
	if err != nil {
		q.fail(err)
		return false
	}
	if done {
		f.landed()
	}
	return done
}

// fail ends the queue: what is not over is dropped. The caller holds mu.
func (q *rxQueue) fail(err error) {
	q.ended = fmt.Errorf("bounce: receive queue %d: copies to %s: %w", q.ID(), q.dev.Context().Device(), err)
	lost := q.stream.Wait(context.Background()) // a device that is lost copies nothing more
	keep := q.head
	for ; keep != q.tail; keep++ {
		f := &q.pending[keep%uint64(len(q.pending))]
		if !f.over && f.begun && lost == nil {
			f.landed()
		}
		if !f.over {
			break
		}
	}
	q.drop(keep, engine.DropDown)
	q.tail = keep
}

// drop drops the pending bursts from the given one on, whose copies are over or will never be. The
// caller holds mu.
func (q *rxQueue) drop(from uint64, why engine.Drop) {
	for ; from != q.tail; from++ {
		f := &q.pending[from%uint64(len(q.pending))]
		f.landed()
		if !f.dead {
			q.drops.Add(why, uint64(f.b.Len()))
		}
		f.b.Release()
	}
	if q.lossless {
		q.drops.Add(why, uint64(q.rest.Len()))
		q.rest.Release()
	}
}

// Arm implements engine.RxQueue.
func (q *rxQueue) Arm(w *engine.Waker) (ready bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.over() {
		return true
	}
	q.armed.Store(w)
	if q.ended == nil && q.inner.Arm(w) && q.tail-q.head < uint64(len(q.pending)) && !q.stalled {
		q.armed.Store(nil)
		return true
	}
	if q.stalled {
		q.retry.Arm(w)
	}
	if q.head == q.tail {
		return false
	}
	f := &q.pending[q.head%uint64(len(q.pending))]
	if q.arrived(f) || q.over() {
		q.armed.Store(nil)
		return true
	}
	q.watch.For(f.ev)
	return false
}

// over reports whether there is nothing to come but the error. The caller holds mu.
func (q *rxQueue) over() bool {
	return q.ended != nil && q.head == q.tail && (q.rest == nil || q.rest.Len() == 0)
}

func (q *rxQueue) wake() {
	if w := q.armed.Swap(nil); w != nil {
		w.Wake()
	}
}

// Discard implements engine.RxQueue. What is being copied is thrown away too; its memory comes back
// when the copies are over.
func (q *rxQueue) Discard() (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return 0, engine.ErrClosed
	}
	n := 0
	for at := q.head; at != q.tail; at++ {
		if f := &q.pending[at%uint64(len(q.pending))]; !f.dead {
			n += f.b.Len()
			f.dead = true
		}
	}
	if q.lossless {
		n += q.rest.Len()
		q.rest.Release()
		q.stalled = false
	}
	q.drops.Add(engine.DropFlushed, uint64(n))
	if q.ended != nil {
		return n, nil
	}
	k, err := q.inner.Discard()
	return n + k, err
}

// Stats implements engine.RxQueue.
func (q *rxQueue) Stats(s *engine.RxStats) {
	d := q.drift()
	q.inner.Stats(s)
	d.apply(s)
	s.Polls, s.Empty = q.polls.Load(), q.empty.Load()
}

// Close implements engine.RxQueue. It waits for copies that are under way.
func (q *rxQueue) Close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil
	}
	q.closed = true
	err := q.inner.Close()
	_ = q.stream.Wait(context.Background()) // what it could say is of no use any more
	q.drop(q.head, engine.DropClosed)
	q.tail = q.head
	q.retry.Stop()
	q.watch.Close()
	q.wake()
	err = errors.Join(err, q.free())
	q.port.retireRx(q)
	return err
}

// drift is by how much what came out of staged queues differs from what the engine gave them.
type drift struct {
	pulled, pulledBytes uint64
	out                 engine.RxStats
}

func (q *rxQueue) drift() (d drift) {
	// First what was taken from the engine, and afterwards what came out: then no sum is negative.
	d.pulled, d.pulledBytes = q.pulled.Load(), q.pulledBytes.Load()
	d.out.Packets, d.out.Bytes, d.out.Copied = q.packets.Load(), q.bytes.Load(), q.copied.Load()
	q.drops.AddTo(&d.out.Drops)
	return d
}

func (d *drift) add(o drift) {
	d.pulled += o.pulled
	d.pulledBytes += o.pulledBytes
	d.out.Add(&o.out)
}

// apply changes what the engine counted, read after d, to what came out.
func (d *drift) apply(s *engine.RxStats) {
	s.Packets -= d.pulled
	s.Bytes -= d.pulledBytes
	s.Add(&d.out)
}
