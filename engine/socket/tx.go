package socket

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/pace"
	"github.com/penstock-io/penstock/mem"
)

// txQueue is the part of a transmit queue that UDP and TCP share: memory and descriptors. What sends is its sink.
type txQueue struct {
	id       int
	box      *engine.Outbox
	pools    []*mem.Pool
	srcs     []*burst.Source
	headroom int
	most     int // bytes of a packet, 0 for no limit
	sent     *sent
	pace     pace.Options
	pacer    *pace.Pacer // nil without a rate and times
	closed   atomic.Bool
	end      func() // takes the queue off its port
	once     sync.Once

	full, noBuffers, forwarded atomic.Uint64
}

// sent are the counts of a sink. Those of a TCP sink are written by several goroutines.
type sent struct {
	packets, bytes, calls atomic.Uint64
	drops                 [engine.NumDrops]atomic.Uint64
}

const defaultDepth = 1024

// newTxQueue checks a specification; the sink comes with start.
func newTxQueue(spec engine.TxSpec, id int, s *sent) (*txQueue, error) {
	switch {
	case len(spec.Pools) < 1 || len(spec.Pools) > 2:
		return nil, invalid("transmit queue %d has %d pools: expected 1, or 2 for headers and payload", id, len(spec.Pools))
	case spec.Depth < 0 || spec.Headroom < 0:
		return nil, invalid("transmit queue %d: Depth %d and Headroom %d: expected no negative number", id, spec.Depth, spec.Headroom)
	case spec.SourceMAC:
		return nil, failed(engine.ErrUnsupported, "transmit queue %d: SourceMAC is for frames, and these are payloads", id)
	}
	q := &txQueue{id: id, pools: spec.Pools, headroom: spec.Headroom, sent: s}
	switch o := spec.Options.(type) {
	case nil:
	case pace.Options:
		q.pace = o
	default:
		return nil, invalid("transmit queue %d: options of type %T: expected pace.Options", id, spec.Options)
	}
	for _, p := range spec.Pools {
		if p == nil {
			return nil, failed(engine.ErrNil, "transmit queue %d: a pool is nil", id)
		}
		src := burst.PoolSource(p)
		if p.Region().All().Bytes() == nil {
			return nil, failed(engine.ErrUnsupported, "transmit queue %d: pool %q is in memory that the kernel cannot read", id, p.Name())
		}
		q.srcs = append(q.srcs, src)
	}
	if spec.Headroom > spec.Pools[0].SlotSize() || spec.Headroom > 1<<16-1 {
		return nil, invalid("transmit queue %d: Headroom is %d: expected at most %d, the slots of pool %q", id, spec.Headroom, min(spec.Pools[0].SlotSize(), 1<<16-1), spec.Pools[0].Name())
	}
	return q, nil
}

func (q *txQueue) ID() int { return q.id }

// Alloc implements engine.TxQueue.
func (q *txQueue) Alloc(b *burst.Burst, n, length int) (int, error) {
	data := q.pools[len(q.pools)-1]
	room := data.SlotSize()
	if len(q.pools) == 1 {
		room -= q.headroom
	}
	switch {
	case b == nil:
		return 0, engine.ErrNil
	case b.Len() != 0:
		return 0, invalid("Alloc into a burst that holds %d packets: expected an empty one", b.Len())
	case n < 0 || n*len(q.pools) > b.Room() || n > b.Room():
		return 0, invalid("Alloc of %d packets into a burst with room for %d segments", n, b.Room())
	case length < 0 || length > room:
		return 0, invalid("Alloc of packets of %d bytes: the slots of pool %q have room for %d", length, data.Name(), room)
	case q.most > 0 && length > q.most:
		return 0, invalid("Alloc of packets of %d bytes: expected at most %d", length, q.most)
	case n == 0:
		return 0, nil
	case q.closed.Load():
		return 0, engine.ErrClosed
	}
	got := q.box.Reserve(n)
	made := q.make(b, got, length)
	b.Reserve(q.box, made)
	if made < got {
		q.box.Unreserve(got - made)
		q.noBuffers.Add(1)
		return made, engine.ErrNoBuffers
	}
	if got < n {
		q.full.Add(1)
		return made, engine.ErrFull
	}
	return made, nil
}

// start makes the Outbox.
func (q *txQueue) start(spec engine.TxSpec, s engine.Sink, async bool) (err error) {
	depth := spec.Depth
	orElse(&depth, defaultDepth)
	if spec.Rate > 0 || spec.SendAt {
		o := q.pace
		o.Rate, o.SendAt = spec.Rate, spec.SendAt
		if async {
			o.Complete = func(n int) { q.box.Complete(n) }
		}
		if q.pacer, err = pace.New(s, o); err != nil {
			return err
		}
		s = q.pacer
	}
	q.box, err = engine.NewOutbox(s, depth, async)
	return err
}

// make adds n packets to b, or as many as there is memory for.
func (q *txQueue) make(b *burst.Burst, n, length int) int {
	var hs, more [64]mem.Handle
	for made := 0; made < n; {
		want := min(n-made, len(hs))
		k := q.pools[0].GetBatch(hs[:want])
		if len(q.pools) == 2 {
			if k2 := q.pools[1].GetBatch(more[:k]); k2 < k {
				q.pools[0].PutBatch(hs[k2:k])
				k = k2
			}
		}
		for i, h := range hs[:k] {
			g := burst.Segment{Handle: h, Off: q.pools[0].Offset(h) + uint64(q.headroom), Len: uint32(length),
				Cap: uint32(q.pools[0].SlotSize() - q.headroom), Headroom: uint16(q.headroom)}
			if len(q.pools) == 2 {
				g.Len, g.Role = g.Cap, burst.Header
			}
			b.Add(q.srcs[0], g)
			if len(q.pools) == 2 {
				b.AddSegment(q.srcs[1], burst.Segment{Handle: more[i], Off: q.pools[1].Offset(more[i]), Len: uint32(length),
					Cap: uint32(q.pools[1].SlotSize()), Role: burst.Payload})
			}
		}
		made += k
		if k < want {
			return made
		}
	}
	return n
}

// Forward implements engine.TxQueue. The kernel reads packets where they lie, whosever memory that is, so nothing is copied.
func (q *txQueue) Forward(b *burst.Burst) (int, error) {
	if b == nil {
		return 0, engine.ErrNil
	}
	for i := range b.Len() {
		for k := range b.Segments(i) {
			if b.Bytes(i, k) == nil {
				b.Release()
				return 0, failed(engine.ErrUnsupported, "packet %d of the burst is in memory that the kernel cannot read", i)
			}
		}
	}
	n, err := q.box.Claim(b)
	if err == engine.ErrFull {
		q.full.Add(1)
	}
	q.forwarded.Add(uint64(n))
	return n, err
}

// Send implements engine.TxQueue.
func (q *txQueue) Send(b *burst.Burst) error { return q.box.Send(b) }

// Drain implements engine.TxQueue.
func (q *txQueue) Drain(ctx context.Context) error { return q.box.Drain(ctx) }

// Stats implements engine.TxQueue.
func (q *txQueue) Stats(s *engine.TxStats) {
	*s = engine.TxStats{
		Packets: q.sent.packets.Load(), Bytes: q.sent.bytes.Load(), Calls: q.sent.calls.Load(),
		Forwarded: q.forwarded.Load(), Full: q.full.Load(), NoBuffers: q.noBuffers.Load(), Queued: uint64(q.box.Queued()),
	}
	for i := range q.sent.drops {
		s.Drops[i] += q.sent.drops[i].Load()
	}
	q.box.AddDrops(&s.Drops)
	if q.pacer != nil {
		q.pacer.AddStats(s)
	}
}

// Close implements engine.TxQueue.
func (q *txQueue) Close() error {
	q.closed.Store(true)
	q.box.Close()
	q.once.Do(q.end)
	return nil
}

// keepEnded is the number of closed queues that a port remembers apart: what is given to them later counts too.
const keepEnded = 64

// retire moves a closed queue from those that are open to those that were; of the oldest only the counts remain.
func retire(q *txQueue, open, ended []*txQueue, old *engine.TxStats) (stillOpen, wereOpen []*txQueue) {
	if i := slices.Index(open, q); i >= 0 {
		open = slices.Delete(open, i, i+1)
		ended = append(ended, q)
	}
	if len(ended) > keepEnded {
		var s engine.TxStats
		ended[0].Stats(&s)
		old.Add(&s)
		ended = slices.Delete(ended, 0, 1)
	}
	return open, ended
}

// addTx adds the counts of queues.
func addTx(s *engine.TxStats, qs ...[]*txQueue) {
	for _, l := range qs {
		for _, q := range l {
			var t engine.TxStats
			q.Stats(&t)
			s.Add(&t)
		}
	}
}
