package sim

import (
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/ring"
)

// item is a packet that waits in a receive queue. The second segment is the payload with header/data split.
type item struct {
	off             uint64
	handle, handle2 burst.Handle
	time            int64
	len, len2, cap  uint32
	flow            uint32
	head            uint16
	flags           burst.Flags
}

func (it *item) take(p burst.Part) {
	it.off, it.handle, it.len, it.cap, it.head = p.Off, p.Handle, p.Len, p.Cap, p.Headroom
}

// rxQueue is a ring of items. Senders write it, one at a time under in; the owner reads it under out, which nobody else wants but
// Stats and Close. So a sender and the owner share nothing but the two ends of the ring.
type rxQueue struct {
	port  *Port
	id    int
	spec  engine.RxSpec
	pools []*mem.Pool
	srcs  []*burst.Source
	bytes [][]byte
	split bool
	depth uint64
	items []item // a power of two of them
	mask  uint64
	// A burst that is handed on whole lies in bulk, and its item says how long its packets are altogether, with flag whole.
	bulk  []*burst.Burst
	spare *ring.SPSC[*burst.Burst] // empty ones, from the owner back to the senders

	waker  atomic.Pointer[engine.Waker]
	closed atomic.Bool

	_     [64]byte
	in    sync.Mutex    // guards what follows
	tail  atomic.Uint64 // items ever put
	holds atomic.Uint64 // and packets in them
	came  uint64        // packets that were offered
	drops engine.Drops
	data  []byte
	slots [2][64]burst.Handle

	_     [64]byte
	out   sync.Mutex    // guards what follows
	head  atomic.Uint64 // items ever taken
	taken atomic.Uint64 // and packets in them, stored after head, so that a sender that sees room finds an item free
	stats engine.RxStats
	stage *burst.Burst // with split: taken off the ring, and no room in the owner's burst yet
	_     [64]byte
}

const defaultDepth = 1024

const (
	// whole marks an item that is a burst. It is no flag of a packet.
	whole burst.Flags = 1 << 15
	// bulkBurst is the room of such a burst, and leastBulk the number of packets from which on it is worth one.
	bulkBurst, leastBulk = 64, 8
)

// maxDepth bounds the memory of a ring.
const maxDepth = 1 << 24

func newRxQueue(p *Port, id int, spec engine.RxSpec) (*rxQueue, error) {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: sim: port %q: receive queue %d: %s", engine.ErrInvalid, p.name, id, fmt.Sprintf(format, args...))
	}
	switch {
	case len(spec.Pools) < 1 || len(spec.Pools) > 2:
		return nil, bad("%d pools: expected one, or two for header/data split, headers first", len(spec.Pools))
	case spec.Depth < 0 || spec.Depth > maxDepth:
		return nil, bad("Depth is %d: expected 0 to %d packets", spec.Depth, maxDepth)
	case spec.SplitAt < 0 || spec.SplitAt > 0 && len(spec.Pools) < 2:
		return nil, bad("SplitAt is %d with %d pools: expected 0, or two pools", spec.SplitAt, len(spec.Pools))
	case spec.Conn != 0:
		return nil, fmt.Errorf("%w: sim: port %q: receive queue %d of connection %d: the simulator carries frames, which have none",
			engine.ErrUnsupported, p.name, id, spec.Conn)
	case spec.HardwareTime:
		return nil, fmt.Errorf("%w: sim: port %q: receive queue %d with HardwareTime: ask for Timestamps", engine.ErrUnsupported, p.name, id)
	case spec.Options != nil:
		return nil, bad("options of type %T: there are none", spec.Options)
	}
	if spec.Depth == 0 {
		spec.Depth = defaultDepth
	}
	n := 1 << bits.Len(uint(spec.Depth-1))
	q := &rxQueue{port: p, id: id, spec: spec, depth: uint64(spec.Depth), split: len(spec.Pools) == 2,
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
	for i, pool := range spec.Pools {
		if pool == nil {
			releaseSources(q.pools)
			return nil, bad("pool %d is nil", i)
		}
		src, bytes, err := acquireSource(pool)
		if err != nil {
			releaseSources(q.pools)
			return nil, fmt.Errorf("sim: port %q: receive queue %d: %w", p.name, id, err)
		}
		q.pools, q.srcs, q.bytes = append(q.pools, pool), append(q.srcs, src), append(q.bytes, bytes)
	}
	return q, nil
}

// ID implements engine.RxQueue.
func (q *rxQueue) ID() int { return q.id }

// put takes packets from to to-1 of a burst, for which the flow ids are set if steered. Packets that lie in the queue's own pool it takes
// over, and notes in c; others it copies. The caller holds Network.mu for reading.
func (q *rxQueue) put(c *cargo, from, to int, steered bool) {
	q.in.Lock()
	tail := q.tail.Load()
	first := tail
	room := q.depth - (q.holds.Load() - q.taken.Load())
	q.came += uint64(to - from)
	var now int64
	var flags burst.Flags
	if q.spec.Timestamps {
		now, flags = c.now(), burst.HasTime
	}
	b, src := c.b, q.srcs[0]
	i := from
	switch n := to - from; {
	case c.only != src || q.split:
	case c.bulk && n == b.Len() && n >= leastBulk && n <= bulkBurst && uint64(n) <= room:
		b.SetAllReceived(flags, now)
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
			it.take(b.Part(i, 0))
			it.flow, it.time, it.flags = 0, now, flags
			if steered {
				it.flow = b.Flow(i)
			}
			c.taken = append(c.taken, i)
			tail++
		}
		room -= uint64(i - from)
	}
	kept := 0 // slots that are had and not used yet
	for ; i < to; i++ {
		if room == 0 {
			q.drops[engine.DropQueueFull] += uint64(to - i)
			break
		}
		it := &q.items[tail&q.mask]
		if !q.split && b.Segments(i) == 1 {
			if part := b.Part(i, 0); part.Source == src {
				it.take(part)
				it.flow, it.time, it.flags = 0, now, flags
				if steered {
					it.flow = b.Flow(i)
				}
				c.taken = append(c.taken, i)
				tail++
				room--
				continue
			}
		}
		if kept == 0 {
			if kept = q.get(int(min(uint64(to-i), room, 64))); kept == 0 {
				q.drops[engine.DropNoBuffers]++
				continue
			}
		}
		if !q.write(it, kept-1, view(&q.data, b, i)) {
			q.drops[engine.DropTooLong]++
			continue
		}
		kept--
		it.flow, it.time, it.flags = 0, now, flags
		if steered {
			it.flow = b.Flow(i)
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

// frame takes one frame, which it copies. The caller holds Network.mu for reading.
func (q *rxQueue) frame(frame []byte, flow uint32, now int64) {
	q.in.Lock()
	defer q.in.Unlock()
	q.came++
	tail := q.tail.Load()
	if q.holds.Load()-q.taken.Load() >= q.depth {
		q.drops[engine.DropQueueFull]++
		return
	}
	if q.get(1) == 0 {
		q.drops[engine.DropNoBuffers]++
		return
	}
	it := &q.items[tail&q.mask]
	if !q.write(it, 0, frame) {
		q.drops[engine.DropTooLong]++
		q.giveBack(1)
		return
	}
	it.flow, it.time, it.flags = flow, 0, 0
	if q.spec.Timestamps {
		it.time, it.flags = now, burst.HasTime
	}
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
	at := q.spec.SplitAt
	if at == 0 {
		var l packet.Layers
		packet.Parse(frame, &l)
		at = int(l.Payload)
	}
	at = min(at, len(frame))
	return frame[:at], frame[at:]
}

// publish makes items first to tail-1, of so many packets, visible and wakes who waits. The caller holds in.
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

// TryRecv implements engine.RxQueue.
func (q *rxQueue) TryRecv(b *burst.Burst) (int, error) {
	if b == nil {
		return 0, engine.ErrNil
	}
	q.out.Lock()
	defer q.out.Unlock()
	q.stats.Polls++
	if q.closed.Load() {
		return 0, engine.ErrClosed
	}
	before := b.Len()
	if q.split {
		q.moveSplit(b)
	} else {
		q.stats.Bytes += q.move(b)
	}
	n := b.Len() - before
	if n == 0 {
		q.stats.Empty++
		return 0, nil
	}
	q.stats.Packets += uint64(n)
	return n, nil
}

// move adds packets to b and returns the sum of their bytes. The caller holds out.
func (q *rxQueue) move(b *burst.Burst) (bytes uint64) {
	head, tail := q.head.Load(), q.tail.Load()
	start, before := head, b.Len()
	src := q.srcs[0]
	for head != tail {
		it := &q.items[head&q.mask]
		if it.flags == whole {
			if !q.moveBulk(b, head, it, &bytes) {
				break
			}
			head++
			continue
		}
		i := b.Add(src, burst.Segment{Handle: it.handle, Off: it.off, Len: it.len, Cap: it.cap, Headroom: it.head})
		if i < 0 {
			break
		}
		if it.flags != 0 {
			b.SetReceived(i, 0, it.flags, it.time)
		}
		if it.flow != 0 {
			b.SetFlow(i, it.flow)
		}
		bytes += uint64(it.len)
		head++
	}
	if head != start {
		q.head.Store(head)
	}
	if n := b.Len() - before; n > 0 {
		q.taken.Store(q.taken.Load() + uint64(n))
	}
	return bytes
}

// moveBulk moves the packets of a burst, and reports whether it is empty now. The caller holds out.
func (q *rxQueue) moveBulk(b *burst.Burst, head uint64, it *item, bytes *uint64) bool {
	k := q.bulk[head&q.mask]
	k.MoveTo(b)
	if k.Len() > 0 {
		left := uint32(k.TotalLen())
		*bytes += uint64(it.len - left)
		it.len = left
		return false
	}
	*bytes += uint64(it.len)
	q.bulk[head&q.mask] = nil
	q.spare.Put(k)
	return true
}

// moveSplit is move by way of stage, as a packet takes two segments or none. The caller holds out.
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
				i := q.stage.Add(q.srcs[0], burst.Segment{Handle: it.handle, Off: it.off, Len: it.len, Cap: it.cap, Role: burst.Header})
				q.stage.AddSegment(q.srcs[1], burst.Segment{Handle: it.handle2, Off: q.pools[1].Offset(it.handle2), Len: it.len2,
					Cap: uint32(q.pools[1].SlotSize()), Role: burst.Payload})
				q.stage.SetReceived(i, 0, it.flags, it.time)
				q.stage.SetFlow(i, it.flow)
			}
			q.head.Store(head)
			q.taken.Store(q.taken.Load() + uint64(q.stage.Len())) // what is in stage does not count
		}
		before := b.TotalLen()
		q.stage.MoveTo(b)
		q.stats.Bytes += uint64(b.TotalLen() - before)
		if q.stage.Len() > 0 {
			return
		}
	}
}

// waiting is the number of packets that the owner has not taken. The caller holds out.
func (q *rxQueue) waiting() uint64 {
	n := q.holds.Load() - q.taken.Load()
	if q.stage != nil {
		n += uint64(q.stage.Len())
	}
	return n
}

// empty reports whether TryRecv would find nothing. The caller holds out.
func (q *rxQueue) empty() bool {
	return q.tail.Load() == q.head.Load() && (q.stage == nil || q.stage.Len() == 0)
}

// Arm implements engine.RxQueue.
func (q *rxQueue) Arm(w *engine.Waker) bool {
	q.out.Lock()
	defer q.out.Unlock()
	q.waker.Store(w)
	if !q.closed.Load() && q.empty() {
		return false
	}
	// If a sender was faster, its Wake is the one that was asked for.
	return q.waker.CompareAndSwap(w, nil)
}

// Discard implements engine.RxQueue.
func (q *rxQueue) Discard() (int, error) {
	q.out.Lock()
	defer q.out.Unlock()
	if q.closed.Load() {
		return 0, engine.ErrClosed
	}
	return q.throw(engine.DropFlushed), nil
}

// throw releases what waits. The caller holds out.
func (q *rxQueue) throw(why engine.Drop) int {
	bytes, n := q.stats.Bytes, 0
	junk := burst.NewSegmented(64, 128)
	for !q.empty() {
		if q.split {
			q.moveSplit(junk)
		} else {
			q.move(junk)
		}
		n += junk.Len() // what came meanwhile, too
		junk.Release()
	}
	q.stats.Bytes = bytes
	q.stats.Drops[why] += uint64(n)
	return n
}

// Stats implements engine.RxQueue.
func (q *rxQueue) Stats(s *engine.RxStats) {
	q.out.Lock()
	*s = q.stats
	q.out.Unlock()
	q.in.Lock()
	s.Drops.Add(&q.drops)
	q.in.Unlock()
}

// Close implements engine.RxQueue.
func (q *rxQueue) Close() error {
	p := q.port
	p.net.mu.Lock() // no sender is in put
	if q.closed.Load() {
		p.net.mu.Unlock()
		return nil
	}
	p.rx[q.id] = nil
	p.pick()
	q.out.Lock()
	q.closed.Store(true)
	q.throw(engine.DropClosed)
	q.out.Unlock()
	var s engine.RxStats
	q.Stats(&s)
	p.past.rx.Add(&s)
	p.past.rxCame += q.came
	releaseSources(q.pools)
	p.net.mu.Unlock()
	q.wake()
	return nil
}
