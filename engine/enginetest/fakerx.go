package enginetest

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// fakeRx is a receive queue of a fake. What waits lies in wire.
type fakeRx struct {
	port  *fakePort
	id    int
	spec  engine.RxSpec
	pools []*mem.Pool // the user's, or own
	own   bool        // the pool is the engine's
	srcs  []*burst.Source
	ring  *blockRing // of shape Blocks

	polls, empty atomic.Uint64

	mu     sync.Mutex
	closed bool
	wire   *burst.Burst
	waker  *engine.Waker
	stats  engine.RxStats
	slots  [64]burst.Handle
	random uint64
	time   int64
	count  int // for flaws
}

func newFakeRx(p *fakePort, id int, spec engine.RxSpec) (*fakeRx, error) {
	can := p.Capabilities()
	if p.eng.flaw != takesAnything {
		if err := engine.CheckRx(&spec, &can); err != nil {
			return nil, fmt.Errorf("fake: %w", err)
		}
		if spec.Conn > streamConn {
			return nil, fmt.Errorf("%w: fake: connection %d", engine.ErrNotFound, spec.Conn)
		}
	} else if spec.Depth == 0 {
		spec.Depth = 1024
	}
	q := &fakeRx{port: p, id: id, spec: spec, pools: spec.Pools, random: uint64(id + 1)}
	segments := spec.Depth
	switch shape := p.eng.shape; {
	case shape == Foreign:
		own, err := mem.NewPool(mem.PoolOptions{Name: "foreign rx", SlotSize: maxFake, Slots: spec.Depth + 64,
			Memory: mem.Options{Lazy: true}})
		if err != nil {
			return nil, err
		}
		q.pools, q.own = []*mem.Pool{own}, true
		q.srcs = []*burst.Source{burst.NewSource(own.Region(), own.Region().All().Bytes(), &ownPool{own, &p.eng.held})}
	case shape == Blocks:
		ring, err := newBlockRing(max(8, spec.Depth*slotSize/blockSize+4), &p.eng.held)
		if err != nil {
			return nil, err
		}
		q.ring = ring
	default:
		for _, pool := range spec.Pools {
			q.srcs = append(q.srcs, burst.PoolSource(pool))
		}
		if shape == Chunks {
			segments = spec.Depth * 16
		}
		if len(spec.Pools) == 2 {
			segments = 2 * spec.Depth
		}
	}
	q.wire = burst.NewSegmented(spec.Depth, segments)
	return q, nil
}

// ownPool gives back the engine's own buffers, and counts.
type ownPool struct {
	pool *mem.Pool
	held *atomic.Int64
}

func (o *ownPool) Reclaim(handles []burst.Handle) {
	if refused, err := o.pool.PutBatch(handles); err != nil {
		panic(fmt.Sprintf("fake: %d of %d buffers released twice: %v", refused, len(handles), err))
	}
	o.held.Add(int64(-len(handles)))
}

func (q *fakeRx) ID() int { return q.id }

func (q *fakeRx) Stats(s *engine.RxStats) {
	q.mu.Lock()
	defer q.mu.Unlock()
	*s = q.stats
	s.Polls, s.Empty = q.polls.Load(), q.empty.Load()
	if q.port.eng.flaw == countsWrong && s.Packets > 0 {
		s.Packets--
	}
}

// TryRecv implements engine.RxQueue.
func (q *fakeRx) TryRecv(b *burst.Burst) (int, error) {
	if b == nil {
		return 0, engine.ErrNil
	}
	q.polls.Add(1)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flawRecv(b)
	if q.closed {
		if q.port.eng.flaw == forgetsItIsClosed {
			return 0, nil
		}
		return 0, engine.ErrClosed
	}
	before, bytes := b.Len(), b.TotalLen()
	n := q.wire.MoveTo(b)
	if n == 0 {
		q.empty.Add(1)
		return 0, nil
	}
	q.stats.Packets += uint64(n)
	q.stats.Bytes += uint64(b.TotalLen() - bytes)
	if q.ring != nil && q.wire.Len() == 0 {
		q.ring.retire() // as the kernel does with a block after some time
	}
	if q.port.eng.shape == Stream {
		q.kickPeer()
	}
	return n, q.flawReceived(b, before, n)
}

// kickPeer tells the other side of a stream that there is room.
func (q *fakeRx) kickPeer() {
	if p := q.port.eng.peer(q.port); p != nil {
		p.mu.RLock()
		defer p.mu.RUnlock()
		for _, tx := range p.tx {
			if tx.blocked.Swap(false) {
				tx.box.Kick()
			}
		}
	}
}

// Arm implements engine.RxQueue.
func (q *fakeRx) Arm(w *engine.Waker) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.wire.Len() > 0 {
		q.waker = nil
		return true
	}
	if q.port.eng.flaw == keepsFirstWaker && q.waker != nil {
		return false
	}
	q.waker = w
	return false
}

// wake says that there is something. The caller holds mu.
func (q *fakeRx) wake() {
	if q.waker == nil {
		return
	}
	if q.count++; q.port.eng.flaw == forgetsWake && q.count%50 == 0 {
		return
	}
	q.waker.Wake()
	q.waker = nil
}

// Discard implements engine.RxQueue.
func (q *fakeRx) Discard() (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return 0, engine.ErrClosed
	}
	n := q.wire.Len()
	reason := engine.DropFlushed
	if q.port.eng.flaw == wrongReason {
		reason = engine.DropUnattributed
	}
	q.stats.Drops[reason] += uint64(n)
	q.wire.Release()
	if q.ring != nil {
		q.ring.retire()
	}
	return n, nil
}

// Close implements engine.RxQueue.
func (q *fakeRx) Close() error {
	q.port.mu.Lock()
	if q.port.rx[q.id] == q {
		delete(q.port.rx, q.id)
		q.port.pick()
	}
	q.port.mu.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil
	}
	q.closed = true
	q.stats.Drops[engine.DropClosed] += uint64(q.wire.Len())
	if q.port.eng.flaw == leaksOnClose {
		q.wire.Builder().Forget()
	} else {
		q.wire.Release()
	}
	q.flawClosed()
	if q.ring != nil {
		q.ring.close()
	}
	if q.own {
		q.pools[0].Close() // its error says that buffers are out, which is allowed
	}
	q.wake()
	return nil
}

// deliver writes a packet to memory as a NIC would. It is false when a stream has no room for the
// rest.
func (q *fakeRx) deliver(data []byte, rule uint32, done *int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		q.stats.Drops[engine.DropClosed]++
		return true
	}
	if q.port.eng.shape == Stream {
		return q.deliverStream(data, done)
	}
	if q.flawDeliver(data) {
		return true
	}
	if drop, ok := q.place(data); !ok {
		if q.port.eng.flaw != losesUncounted {
			q.stats.Drops[drop]++
		}
		return true
	}
	q.wire.Builder().SetFlow(q.wire.Len()-1, rule)
	q.wake()
	return true
}

// place puts a packet into wire, or says why that cannot be.
func (q *fakeRx) place(data []byte) (engine.Drop, bool) {
	b := q.wire
	if b.Len() == b.Cap() {
		return engine.DropQueueFull, false
	}
	switch {
	case q.ring != nil:
		at, h, ok := q.ring.take(len(data))
		if !ok {
			return engine.DropKernel, false
		}
		copy(q.ring.bytes[at:], data)
		b.Builder().Add(q.ring.src, burst.Segment{Handle: h, Off: at, Len: uint32(len(data))})
	case q.port.eng.shape == Chunks:
		if drop, ok := q.placeChunks(data); !ok {
			return drop, false
		}
	case len(q.pools) == 2:
		if drop, ok := q.placeSplit(data); !ok {
			return drop, false
		}
	default:
		pool := q.pools[0]
		if len(data) > pool.SlotSize() {
			return engine.DropTooLong, false
		}
		if pool.GetBatch(q.slots[:1]) == 0 {
			return engine.DropNoBuffers, false
		}
		if q.own {
			q.port.eng.held.Add(1)
		}
		q.add(0, q.slots[0], data, burst.Frame)
	}
	var flags burst.Flags
	var now int64
	if q.spec.Timestamps {
		flags, now = burst.HasTime, q.now()
	}
	b.Builder().SetReceived(b.Len()-1, len(data), flags, now)
	return 0, true
}

func (q *fakeRx) now() int64 {
	now := time.Now().UnixNano()
	if q.port.eng.flaw == wrongEpoch {
		now -= 1 << 60
	}
	q.time = max(q.time, now)
	return q.time
}

// add adds a packet in one slot of pool k.
func (q *fakeRx) add(k int, h burst.Handle, data []byte, role burst.Role) {
	g := q.segment(k, h, data, role)
	if q.wire.Builder().Add(q.srcs[k], g) < 0 {
		panic("fake: no room in the queue")
	}
}

func (q *fakeRx) segment(k int, h burst.Handle, data []byte, role burst.Role) burst.Segment {
	pool := q.pools[k]
	off := pool.Offset(h)
	copy(pool.Region().All().Bytes()[off:off+uint64(pool.SlotSize())], data)
	return burst.Segment{Handle: h, Off: off, Len: uint32(len(data)), Cap: uint32(pool.SlotSize()), Role: role}
}

// placeChunks writes a packet to as many slots as it takes.
func (q *fakeRx) placeChunks(data []byte) (engine.Drop, bool) {
	pool := q.pools[0]
	size := pool.SlotSize()
	n := max(1, (len(data)+size-1)/size)
	if n > len(q.slots) {
		return engine.DropTooLong, false
	}
	if q.wire.Room() < n {
		return engine.DropQueueFull, false
	}
	if got := pool.GetBatch(q.slots[:n]); got < n {
		pool.PutBatch(q.slots[:got])
		return engine.DropNoBuffers, false
	}
	q.add(0, q.slots[0], data[:min(size, len(data))], burst.Frame)
	for k := 1; k < n; k++ {
		part := data[k*size : min((k+1)*size, len(data))]
		if !q.wire.Builder().AddSegment(q.srcs[0], q.segment(0, q.slots[k], part, burst.Frame)) {
			panic("fake: no room in the queue")
		}
	}
	return 0, true
}

// placeSplit writes headers and payload to a slot each.
func (q *fakeRx) placeSplit(data []byte) (engine.Drop, bool) {
	at := q.spec.SplitAt
	if at == 0 {
		var l packet.Layers
		packet.Parse(data, &l)
		at = int(l.Payload)
	}
	if q.port.eng.flaw == splitsWrong {
		at--
	}
	at = max(0, min(at, len(data)))
	if at > q.pools[0].SlotSize() || len(data)-at > q.pools[1].SlotSize() {
		return engine.DropTooLong, false
	}
	if q.pools[0].GetBatch(q.slots[:1]) == 0 {
		return engine.DropNoBuffers, false
	}
	if q.pools[1].GetBatch(q.slots[1:2]) == 0 {
		q.pools[0].PutBatch(q.slots[:1])
		return engine.DropNoBuffers, false
	}
	q.add(0, q.slots[0], data[:at], burst.Header)
	if !q.wire.Builder().AddSegment(q.srcs[1], q.segment(1, q.slots[1], data[at:], burst.Payload)) {
		panic("fake: no room in the queue")
	}
	return 0, true
}

// deliverStream appends bytes to what waits, in pieces of any length, as far as there is room.
func (q *fakeRx) deliverStream(data []byte, done *int) bool {
	size := q.pools[0].SlotSize()
	for *done < len(data) {
		q.random ^= q.random << 13
		q.random ^= q.random >> 7
		q.random ^= q.random << 17
		piece := data[*done:]
		piece = piece[:min(len(piece), 1+int(q.random%uint64(2*size)), size)]
		last := q.wire.Len() - 1
		if last >= 0 && q.random>>33&3 != 0 && q.wire.SegmentCap(last, 0)-q.wire.PacketLen(last) > 0 {
			have := q.wire.PacketLen(last)
			piece = piece[:min(len(piece), q.wire.SegmentCap(last, 0)-have)]
			q.wire.SetLen(last, 0, have+len(piece))
			copy(q.wire.Bytes(last, 0)[have:], piece)
		} else {
			if q.wire.Room() == 0 || q.pools[0].GetBatch(q.slots[:1]) == 0 {
				return false
			}
			q.add(0, q.slots[0], piece, burst.Frame)
			q.wire.SetConn(q.wire.Len()-1, streamConn)
		}
		*done += len(piece)
		q.wake()
	}
	return true
}

// streamConn is the one connection of a stream.
const streamConn = 1

// blockSize is the size in bytes of what received packets share.
const blockSize = 32 << 10

// blockRing is memory that the "kernel" fills block by block. A block goes back when the kernel has
// retired it and its last packet was released.
type blockRing struct {
	region *mem.Region
	bytes  []byte
	src    *burst.Source
	held   *atomic.Int64

	mu     sync.Mutex
	refs   []int // of each block: its packets, and one for the kernel while it fills it
	free   []int
	now    int    // the block that is being filled, or -1
	at     uint64 // in it
	out    int    // blocks that are not free
	closed bool
	lease  mem.Lease
}

func newBlockRing(blocks int, held *atomic.Int64) (*blockRing, error) {
	region, err := mem.Alloc(mem.Options{Name: "fake blocks", Size: blocks * blockSize})
	if err != nil {
		return nil, err
	}
	lease, err := region.Lease()
	if err != nil {
		return nil, err
	}
	r := &blockRing{region: region, bytes: lease.Bytes(), held: held, refs: make([]int, blocks), now: -1, lease: lease}
	for i := range blocks {
		r.free = append(r.free, i)
	}
	slices.Reverse(r.free)
	r.src = burst.NewSource(region, r.bytes, r)
	return r, nil
}

// take makes room for a packet.
func (r *blockRing) take(n int) (off uint64, h burst.Handle, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now >= 0 && r.at+uint64(n) > blockSize {
		r.drop(r.now)
		r.now = -1
	}
	if r.now < 0 {
		if len(r.free) == 0 {
			return 0, 0, false
		}
		r.now, r.at = r.free[len(r.free)-1], 0
		r.free = r.free[:len(r.free)-1]
		r.refs[r.now] = 1
		r.out++
	}
	off = uint64(r.now)*blockSize + r.at
	r.at += uint64(n+63) &^ 63
	r.refs[r.now]++
	r.held.Add(1)
	return off, burst.Handle(r.now), true
}

// retire ends the filling of the present block.
func (r *blockRing) retire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now >= 0 {
		r.drop(r.now)
		r.now = -1
	}
}

// drop takes one reference. The caller holds mu.
func (r *blockRing) drop(i int) {
	r.refs[i]--
	switch {
	case r.refs[i] < 0:
		panic(fmt.Sprintf("fake: block %d was released more often than it has packets", i))
	case r.refs[i] == 0:
		r.free = append(r.free, i)
		r.out--
		if r.closed && r.out == 0 {
			r.unmap()
		}
	}
}

// Reclaim implements burst.Owner: a block has one handle for all its packets.
func (r *blockRing) Reclaim(handles []burst.Handle) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range handles {
		r.drop(int(h))
	}
	r.held.Add(int64(-len(handles)))
}

func (r *blockRing) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now >= 0 {
		r.drop(r.now)
		r.now = -1
	}
	r.closed = true
	if r.out == 0 {
		r.unmap()
	}
}

func (r *blockRing) unmap() {
	r.region.Close()
	r.lease.Release()
}
