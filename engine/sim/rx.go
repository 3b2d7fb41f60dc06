package sim

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/mem/ring"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// item is a packet that waits in a receive queue. The second segment is the payload with
// header/data split.
type item struct {
	off             uint64
	handle, handle2 burst.Handle
	time            int64
	len, len2, cap  uint32
	headers
	head  uint16
	flags burst.Flags
}

func (it *item) take(p burst.Part) {
	it.off, it.handle, it.len, it.cap, it.head = p.Off, p.Handle, p.Len, p.Cap, p.Headroom
}

// set says when the packet came, and with which flags, and forgets what is known of the packet that
// had its place before.
func (it *item) set(now int64, flags burst.Flags) {
	it.time, it.flags, it.headers = now, flags, headers{}
}

// rxQueue is a ring of items, and implements engine.RxDevice. Senders write it, one at a time under
// in; the owner reads it under the queue's own lock. So a sender and the owner share nothing but
// the two ends of the ring.
type rxQueue struct {
	engine.RxFront
	port  *Port
	pools []*mem.Pool
	srcs  []*burst.Source
	bytes [][]byte
	split bool
	depth uint64
	items []item // a power of two of them
	mask  uint64
	// A burst that is handed on whole lies in bulk, and its item says how long its packets are
	// altogether, with flag whole.
	bulk  []*burst.Burst
	spare *ring.SPSC[*burst.Burst] // empty ones, from the owner back to the senders

	waker atomic.Pointer[engine.Waker]

	_     [64]byte
	in    sync.Mutex    // guards what follows
	tail  atomic.Uint64 // items ever put
	holds atomic.Uint64 // and packets in them
	came  uint64        // packets that were offered
	data  []byte
	slots [2][64]burst.Handle

	_     [64]byte
	head  atomic.Uint64 // items ever taken; the owner's, as what follows
	taken atomic.Uint64 // and packets in them, stored after head, so that a sender that sees room finds an item free
	stage *burst.Burst  // with split: taken off the ring, and no room in the owner's burst yet
	_     [64]byte
}

const (
	// whole marks an item that is a burst. It is no flag of a packet.
	whole burst.Flags = 1 << 15
	// bulkBurst is the room of such a burst, and leastBulk the number of packets from which on it
	// is worth one.
	bulkBurst, leastBulk = 64, 8
)

func newRxQueue(p *Port, spec engine.RxSpec) (*rxQueue, error) {
	n := 1 << bits.Len(uint(spec.Depth-1))
	q := &rxQueue{port: p, depth: uint64(spec.Depth), split: len(spec.Pools) == 2,
		items: make([]item, n), mask: uint64(n - 1)}
	if q.split {
		q.stage = burst.NewSegmented(64, 128)
	} else {
		var err error
		if q.spare, err = ring.NewSPSC[*burst.Burst](max(spec.Depth/leastBulk, 2)); err != nil {
			return nil, err
		}
		q.bulk = make([]*burst.Burst, n)
	}
	for _, pool := range spec.Pools {
		src, bytes := acquireSource(pool)
		q.pools, q.srcs, q.bytes = append(q.pools, pool), append(q.srcs, src), append(q.bytes, bytes)
	}
	q.Start(spec, q)
	return q, nil
}

// put takes packets from to to-1 of a burst, for which the flow ids are set if steered. Packets
// that lie in the queue's own pool it takes over, and notes in c; others it copies. The caller
// holds Network.mu for reading.
func (q *rxQueue) put(c *sending, from, to int, steered bool) {
	q.in.Lock()
	tail := q.tail.Load()
	first := tail
	room := q.depth - (q.holds.Load() - q.taken.Load())
	q.came += uint64(to - from)
	var now int64
	var flags burst.Flags
	if q.Spec().Timestamps {
		now, flags = c.now(), burst.HasTime
	}
	b, src := c.b, q.srcs[0]
	i := from
	switch n := to - from; {
	case c.only != src || q.split:
	case c.bulk && n == b.Len() && n >= leastBulk && n <= bulkBurst && uint64(n) <= room:
		b.Builder().SetAllReceived(flags, now)
		if !steered {
			clear(b.Flows())
		}
		it := &q.items[tail&q.mask]
		it.len, it.flags = uint32(c.sum), whole
		q.bulk[tail&q.mask] = q.keep(b)
		q.publish(tail, tail+1, n)
		q.in.Unlock()
		return
	default:
		for end := from + int(min(uint64(to-from), room)); i < end; i++ {
			it := &q.items[tail&q.mask]
			it.take(b.Builder().Part(i, 0))
			it.set(now, flags)
			if steered {
				it.headers = read(b, i)
			}
			c.taken = append(c.taken, i)
			tail++
		}
		room -= uint64(i - from)
	}
	kept := 0 // slots that are had and not used yet
	for ; i < to; i++ {
		if room == 0 {
			q.Drop(engine.DropQueueFull, uint64(to-i))
			break
		}
		it := &q.items[tail&q.mask]
		if !q.split && b.Segments(i) == 1 {
			if part := b.Builder().Part(i, 0); part.Source == src {
				it.take(part)
				it.set(now, flags)
				if steered {
					it.headers = read(b, i)
				}
				c.taken = append(c.taken, i)
				tail++
				room--
				continue
			}
		}
		if kept == 0 {
			if kept = q.get(int(min(uint64(to-i), room, 64))); kept == 0 {
				q.Drop(engine.DropNoBuffers, 1)
				continue
			}
		}
		if !q.write(it, kept-1, view(&q.data, b, i)) {
			q.Drop(engine.DropTooLong, 1)
			continue
		}
		kept--
		it.set(now, flags)
		if steered {
			it.headers = read(b, i)
		}
		tail++
		room--
	}
	q.giveBack(kept)
	q.publish(first, tail, int(tail-first))
	q.in.Unlock()
}

// keep moves the packets of b to a burst of our own.
func (q *rxQueue) keep(b *burst.Burst) *burst.Burst {
	k, ok := q.spare.Get()
	if !ok {
		k = burst.New(bulkBurst)
	}
	b.MoveTo(k)
	return k
}

// frame takes one frame, which it copies, with what is known of its headers. The caller holds
// Network.mu for reading.
func (q *rxQueue) frame(frame []byte, h headers, now int64) {
	q.in.Lock()
	defer q.in.Unlock()
	q.came++
	tail := q.tail.Load()
	if q.holds.Load()-q.taken.Load() >= q.depth {
		q.Drop(engine.DropQueueFull, 1)
		return
	}
	if q.get(1) == 0 {
		q.Drop(engine.DropNoBuffers, 1)
		return
	}
	it := &q.items[tail&q.mask]
	if !q.write(it, 0, frame) {
		q.Drop(engine.DropTooLong, 1)
		q.giveBack(1)
		return
	}
	if it.set(0, 0); q.Spec().Timestamps {
		it.set(now, burst.HasTime)
	}
	it.headers = h
	q.publish(tail, tail+1, 1)
}

// get takes up to n slots of each pool and returns how many there were of both.
func (q *rxQueue) get(n int) int {
	got := q.pools[0].GetBatch(q.slots[0][:n])
	if q.split && got > 0 {
		both := q.pools[1].GetBatch(q.slots[1][:got])
		q.pools[0].PutBatch(q.slots[0][both:got])
		got = both
	}
	return got
}

func (q *rxQueue) giveBack(n int) {
	if n > 0 {
		for k, p := range q.pools {
			p.PutBatch(q.slots[k][:n])
		}
	}
}

// write copies a frame into slots number k and reports whether it fitted.
func (q *rxQueue) write(it *item, k int, frame []byte) bool {
	h, size := q.slots[0][k], q.pools[0].SlotSize()
	head := frame
	if q.split {
		var rest []byte
		head, rest = q.cut(frame)
		if len(rest) > q.pools[1].SlotSize() {
			return false
		}
		if len(head) <= size {
			it.handle2, it.len2 = q.slots[1][k], uint32(len(rest))
			copy(q.bytes[1][q.pools[1].Offset(it.handle2):], rest)
		}
	}
	if len(head) > size {
		return false
	}
	it.handle, it.off, it.len, it.cap, it.head = h, q.pools[0].Offset(h), uint32(len(head)), uint32(size), 0
	copy(q.bytes[0][it.off:], head)
	return true
}

// cut divides a frame into header and payload.
func (q *rxQueue) cut(frame []byte) (head, rest []byte) {
	at := q.Spec().SplitAt
	if at == 0 {
		var l packet.Layers
		packet.Parse(frame, &l)
		at = int(l.Payload)
	}
	at = min(at, len(frame))
	return frame[:at], frame[at:]
}

// publish makes items first to tail-1, of so many packets, visible and wakes the owner. The caller
// holds in.
func (q *rxQueue) publish(first, tail uint64, packets int) {
	if first == tail {
		return
	}
	q.holds.Store(q.holds.Load() + uint64(packets))
	q.tail.Store(tail)
	q.wake()
}

func (q *rxQueue) wake() {
	if q.waker.Load() != nil {
		if w := q.waker.Swap(nil); w != nil {
			w.Wake()
		}
	}
}

// Collect implements engine.RxDevice.
func (q *rxQueue) Collect(b *burst.Burst) error {
	if q.split {
		q.moveSplit(b)
	} else {
		q.move(b)
	}
	return nil
}

// move adds packets to b.
func (q *rxQueue) move(b *burst.Burst) {
	head, tail := q.head.Load(), q.tail.Load()
	start, before := head, b.Len()
	src := q.srcs[0]
	for head != tail {
		it := &q.items[head&q.mask]
		if it.flags == whole {
			if !q.moveBulk(b, head) {
				break
			}
			head++
			continue
		}
		i := b.Builder().Add(src, burst.Segment{Handle: it.handle, Off: it.off, Len: it.len, Cap: it.cap,
			Headroom: it.head})
		if i < 0 {
			break
		}
		if it.flags != 0 {
			b.Builder().SetReceived(i, 0, it.flags, it.time)
		}
		if it.headers != (headers{}) {
			it.headers.set(b, i)
		}
		head++
	}
	if head != start {
		q.head.Store(head)
	}
	if n := b.Len() - before; n > 0 {
		q.taken.Store(q.taken.Load() + uint64(n))
	}
}

// moveBulk moves the packets of a burst, and reports whether it is empty now.
func (q *rxQueue) moveBulk(b *burst.Burst, head uint64) bool {
	k := q.bulk[head&q.mask]
	k.MoveTo(b)
	if k.Len() > 0 {
		return false
	}
	q.bulk[head&q.mask] = nil
	q.spare.Put(k)
	return true
}

// moveSplit is move by way of stage, as a packet takes two segments or none.
func (q *rxQueue) moveSplit(b *burst.Burst) {
	for {
		if q.stage.Len() == 0 {
			head := q.head.Load()
			end := min(q.tail.Load(), head+uint64(q.stage.Cap()))
			if head == end {
				return
			}
			for ; head < end; head++ {
				it := &q.items[head&q.mask]
				i := q.stage.Builder().Add(q.srcs[0],
					burst.Segment{Handle: it.handle, Off: it.off, Len: it.len, Cap: it.cap, Role: burst.Header})
				q.stage.Builder().AddSegment(q.srcs[1],
					burst.Segment{Handle: it.handle2, Off: q.pools[1].Offset(it.handle2), Len: it.len2,
						Cap: uint32(q.pools[1].SlotSize()), Role: burst.Payload})
				q.stage.Builder().SetReceived(i, 0, it.flags, it.time)
				it.headers.set(q.stage, i)
			}
			q.head.Store(head)
			q.taken.Store(q.taken.Load() + uint64(q.stage.Len())) // what is in stage does not count
		}
		q.stage.MoveTo(b)
		if q.stage.Len() > 0 {
			return
		}
	}
}

// waiting is the number of packets that the owner has not taken.
func (q *rxQueue) waiting() uint64 {
	n := q.holds.Load() - q.taken.Load()
	if q.stage != nil {
		n += uint64(q.stage.Len())
	}
	return n
}

// empty reports whether Collect would find nothing.
func (q *rxQueue) empty() bool {
	return q.tail.Load() == q.head.Load() && (q.stage == nil || q.stage.Len() == 0)
}

// Watch implements engine.RxDevice.
func (q *rxQueue) Watch(w *engine.Waker) engine.Armed {
	q.waker.Store(w)
	if q.empty() {
		return engine.ArmedWake
	}
	if q.waker.CompareAndSwap(w, nil) {
		return engine.ArmedReady
	}
	return engine.ArmedWake // a sender was faster: its Wake is the one that was asked for
}

// Flush implements engine.RxDiscarder.
func (q *rxQueue) Flush() (n int) {
	junk := burst.NewSegmented(64, 128)
	for !q.empty() {
		_ = q.Collect(junk)
		n += junk.Len() // what came meanwhile, too
		junk.Release()
	}
	return n
}

// Stop implements engine.RxDevice.
func (q *rxQueue) Stop(why engine.Drop) error {
	q.Drop(why, uint64(q.Flush()))
	return nil
}

// Close implements engine.RxQueue.
func (q *rxQueue) Close() error {
	p := q.port
	p.net.mu.Lock() // no sender is in put
	defer p.net.mu.Unlock()
	removed, err := p.rx.Remove(q)
	if removed {
		p.past.rxCame += q.came
		releaseSources(q.pools)
	}
	return err
}
