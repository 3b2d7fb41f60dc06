package enginetest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// fakeTx is a transmit queue of a fake.
type fakeTx struct {
	port *fakePort
	id   int
	spec engine.TxSpec
	pool *mem.Pool
	own  bool
	src  *burst.Source
	head *mem.Pool // of header segments, nil with one pool
	hsrc *burst.Source
	box  *engine.Outbox

	forwarded, copied, full, noBuffers atomic.Uint64

	mu    sync.Mutex // of what Alloc and Forward use
	slots [64]burst.Handle
	tmp   *burst.Burst

	// Of Transmit, which runs in one goroutine at a time.
	data    []byte
	done    int // bytes of the packet at the front that a stream has taken
	drops   engine.DropCounters
	packets atomic.Uint64
	bytes   atomic.Uint64
	blocked atomic.Bool // a stream waits for its consumer
	later   []byte      // what a flaw keeps back

	closeOnce sync.Once
	closed    atomic.Bool
}

func newFakeTx(p *fakePort, id int, spec engine.TxSpec) (*fakeTx, error) {
	can := p.Capabilities()
	if p.eng.shape != Foreign && p.eng.flaw != takesAnything {
		if _, err := engine.CheckTx(&spec, &can); err != nil {
			return nil, fmt.Errorf("fake: %w", err)
		}
	} else if spec.Depth == 0 {
		spec.Depth = 1024
	}
	if p.eng.shape == Foreign && (spec.Rate > 0 || spec.SendAt) {
		return nil, fmt.Errorf("%w: fake-foreign: it does not pace", engine.ErrUnsupported)
	}
	q := &fakeTx{port: p, id: id, spec: spec, data: make([]byte, maxFake), tmp: burst.NewSegmented(256, 1024)}
	switch shape := p.eng.shape; {
	case shape == Foreign && len(spec.Pools) > 0:
		return nil, fmt.Errorf("%w: fake-foreign: it sends from memory of its own: give no Pools",
			engine.ErrUnsupported)
	case shape == Foreign:
		own, err := mem.NewPool(mem.PoolOptions{Name: "foreign tx", SlotSize: maxFake + spec.Headroom,
			Slots:  spec.Depth + 64,
			Memory: mem.Options{Lazy: true}})
		if err != nil {
			return nil, err
		}
		q.pool, q.own = own, true
		q.src = burst.NewSource(own.Region(), own.Region().All().Bytes(), &ownPool{own, &p.eng.held})
	case len(spec.Pools) == 2 && shape == Plain:
		q.head, q.pool = spec.Pools[0], spec.Pools[1]
		q.hsrc, q.src = burst.PoolSource(q.head), burst.PoolSource(q.pool)
	case len(spec.Pools) == 2:
		return nil, fmt.Errorf("%w: fake: two pools to send from: expected one", engine.ErrUnsupported)
	default:
		q.pool = spec.Pools[0]
		q.src = burst.PoolSource(q.pool)
	}
	if spec.Headroom >= q.pool.SlotSize() || q.head != nil && spec.Headroom >= q.head.SlotSize() {
		return nil, fmt.Errorf("%w: fake: headroom of %d bytes in slots of %d", engine.ErrInvalid, spec.Headroom,
			q.pool.SlotSize())
	}
	if p.eng.flaw == oneTooMany {
		spec.Depth++
	}
	var err error
	q.box, err = engine.NewOutbox((*fakeSink)(q), spec.Depth, false)
	return q, err
}

func (q *fakeTx) ID() int { return q.id }

// Alloc implements engine.TxQueue.
func (q *fakeTx) Alloc(b *burst.Burst, n, length int) (int, error) {
	if b == nil {
		return 0, engine.ErrNil
	}
	if q.closed.Load() {
		return 0, engine.ErrClosed
	}
	if b.Len() > 0 || n > b.Cap() {
		return 0, fmt.Errorf("%w: Alloc of %d packets into a burst that holds %d of %d: expected an empty one with room", engine.ErrInvalid, n,
			b.Len(), b.Cap())
	}
	if need := q.chunks(length); length < 0 || need > 1 && q.port.eng.shape != Chunks || need > len(q.slots) ||
		length > maxFake {
		return 0, fmt.Errorf("%w: Alloc of packets of %d bytes: expected at most %d", engine.ErrInvalid, length,
			q.pool.SlotSize()-q.spec.Headroom)
	}
	got := q.box.Reserve(n)
	b.Builder().Reserve(q.box, got)
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range got {
		if !q.add(b, length) {
			b.Builder().Unreserve()
			q.box.Unreserve(got - i)
			if q.port.eng.flaw == losesReservations {
				q.box.Reserve(got - i)
			}
			b.Builder().Reserve(q.box, i)
			q.noBuffers.Add(1)
			return i, engine.ErrNoBuffers
		}
	}
	if got < n {
		q.full.Add(1)
		if q.port.eng.flaw == wrongAllocError {
			return got, engine.ErrNoBuffers
		}
		return got, engine.ErrFull
	}
	return got, nil
}

// chunks is the number of slots of a packet.
func (q *fakeTx) chunks(length int) int {
	size := q.pool.SlotSize()
	return max(1, (length+q.spec.Headroom+size-1)/size)
}

// add adds a packet of our memory to b. The caller holds mu.
func (q *fakeTx) add(b *burst.Burst, length int) bool {
	if q.head != nil {
		return q.addTwo(b, length)
	}
	n := q.chunks(length)
	if b.Room() < n {
		return false
	}
	if got := q.pool.GetBatch(q.slots[:n]); got < n {
		q.pool.PutBatch(q.slots[:got])
		return false
	}
	if q.own {
		q.port.eng.held.Add(int64(n))
	}
	size := q.pool.SlotSize()
	for k := range n {
		room, head := size, 0
		if k == 0 {
			room, head = size-q.spec.Headroom, q.spec.Headroom
		}
		g := burst.Segment{Handle: q.slots[k], Off: q.pool.Offset(q.slots[k]) + uint64(head),
			Len: uint32(min(length, room)),
			Cap: uint32(room), Headroom: uint16(head)}
		length -= int(g.Len)
		if k == 0 {
			b.Builder().Add(q.src, g)
		} else {
			b.Builder().AddSegment(q.src, g)
		}
	}
	return true
}

// addTwo adds a packet with a header and a payload segment. The caller holds mu.
func (q *fakeTx) addTwo(b *burst.Burst, length int) bool {
	if b.Room() < 2 || q.head.GetBatch(q.slots[:1]) == 0 {
		return false
	}
	if q.pool.GetBatch(q.slots[1:2]) == 0 {
		q.head.PutBatch(q.slots[:1])
		return false
	}
	room, front := q.head.SlotSize(), q.spec.Headroom
	b.Builder().Add(q.hsrc, burst.Segment{Handle: q.slots[0], Off: q.head.Offset(q.slots[0]) + uint64(front),
		Len:      uint32(room - front),
		Headroom: uint16(front), Role: burst.Header})
	b.Builder().AddSegment(q.src, burst.Segment{Handle: q.slots[1], Off: q.pool.Offset(q.slots[1]), Len: uint32(length),
		Cap: uint32(q.pool.SlotSize()), Role: burst.Payload})
	return true
}

// Forward implements engine.TxQueue.
func (q *fakeTx) Forward(b *burst.Burst) (int, error) {
	if b == nil {
		return 0, engine.ErrNil
	}
	if q.closed.Load() {
		b.Release()
		return 0, engine.ErrClosed
	}
	live := b.Live()
	got := q.box.Reserve(live)
	var err error
	if got < live {
		q.full.Add(1)
		b.Builder().TruncateLive(got)
		err = engine.ErrFull
	}
	if q.port.eng.shape == Foreign || q.port.eng.flaw == copiesForwarded || !b.Builder().Owned(q.src) && !q.reaches(b) {
		n := q.copyOver(b)
		if n < got {
			q.noBuffers.Add(1)
			q.box.Unreserve(got - n)
			got, err = n, engine.ErrNoBuffers
		}
	}
	b.Builder().Reserve(q.box, got)
	for i := range b.Len() {
		b.SetTime(i, 0)
	}
	q.forwarded.Add(uint64(got))
	return got, err
}

// reaches reports whether the engine can send packets from where they lie. It reads its own blocks,
// and no other memory.
func (q *fakeTx) reaches(b *burst.Burst) bool {
	for i := range b.Len() {
		for k := range b.Segments(i) {
			if b.Segment(i, k).Region != q.pool.Region() {
				return false
			}
		}
	}
	return true
}

// copyOver puts copies of the packets of b in their place and returns how many there are.
func (q *fakeTx) copyOver(b *burst.Burst) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.tmp.Cap() < b.Len() {
		q.tmp = burst.NewSegmented(b.Len(), 4*b.Len())
	}
	for i := range b.Len() {
		n := b.PacketLen(i)
		if b.Segments(i) == 0 {
			continue
		}
		if !q.add(q.tmp, n) {
			break
		}
		to := q.tmp.Len() - 1
		at := 0
		for k := range q.tmp.Segments(to) {
			at += copyFrom(q.tmp.Bytes(to, k), b, i, at)
		}
		q.tmp.SetConn(to, b.Conn(i))
		q.tmp.Builder().SetFlow(to, b.Flow(i))
		if q.port.eng.flaw != copiesUncounted {
			q.copied.Add(uint64(n))
		}
	}
	b.Release()
	n := q.tmp.MoveTo(b)
	q.tmp.Release() // chains for which b has no room
	return n
}

// copyFrom fills dst with the bytes of packet i from byte at on.
func copyFrom(dst []byte, b *burst.Burst, i, at int) int {
	n := 0
	for k := range b.Segments(i) {
		p := b.Bytes(i, k)
		if at >= len(p) {
			at -= len(p)
			continue
		}
		n += copy(dst[n:], p[at:])
		at = 0
	}
	return n
}

// Send implements engine.TxQueue.
func (q *fakeTx) Send(b *burst.Burst) error {
	if b != nil && q.flawSend(b) {
		return nil
	}
	return q.box.Send(b)
}

// Drain implements engine.TxQueue.
func (q *fakeTx) Drain(ctx context.Context) error { return q.box.Drain(ctx) }

// Stats implements engine.TxQueue.
func (q *fakeTx) Stats(s *engine.TxStats) {
	*s = engine.TxStats{Packets: q.packets.Load(), Bytes: q.bytes.Load(), Forwarded: q.forwarded.Load(),
		Copied: q.copied.Load(),
		Full:   q.full.Load(), NoBuffers: q.noBuffers.Load(), Queued: uint64(q.box.Queued())}
	q.drops.AddTo(&s.Drops)
	q.box.AddDrops(&s.Drops)
}

// Close implements engine.TxQueue.
func (q *fakeTx) Close() error {
	q.closeOnce.Do(func() {
		q.closed.Store(true)
		q.port.mu.Lock()
		if q.port.tx[q.id] == q {
			delete(q.port.tx, q.id)
		}
		q.port.mu.Unlock()
		q.box.Close()
		if q.own {
			q.pool.Close() // its error says that buffers are out, which is allowed
		}
	})
	return nil
}

// fakeSink is the device behind a fakeTx.
type fakeSink fakeTx

// streamRetry is how long a stream waits before it looks itself whether its consumer has released
// memory.
const streamRetry = 2 * time.Millisecond

// Transmit implements engine.Sink.
func (k *fakeSink) Transmit(b *burst.Burst, from, to int) (int, time.Time) {
	q := (*fakeTx)(k)
	eng := q.port.eng
	for i := from; i < to; i++ {
		if b.Segments(i) == 0 {
			continue
		}
		n := b.CopyTo(q.data, i)
		if b.PacketLen(i) > len(q.data) {
			q.drops.Inc(engine.DropTooLong)
			continue
		}
		peer := eng.peer(q.port)
		if eng.down.Load() || peer == nil {
			q.drops.Inc(engine.DropDown)
			continue
		}
		if eng.shape == Stream && b.Conn(i) != streamConn {
			q.drops.Inc(engine.DropNoRoute)
			continue
		}
		if q.spec.SourceMAC && n >= packet.EthernetLen && eng.flaw != keepsSourceMAC {
			mac := q.port.Info().MAC
			copy(q.data[6:], mac[:])
		}
		q.blocked.Store(true)
		if !q.flawTransmit(peer, q.data[:n]) && !peer.deliver(q.data[:n], &q.done) {
			return i, time.Now().Add(streamRetry)
		}
		q.blocked.Store(false)
		q.done = 0
		q.packets.Add(1)
		q.bytes.Add(uint64(n))
	}
	return to, time.Time{}
}
