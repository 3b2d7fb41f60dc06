package socket

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/pace"
)

// txQueue is the part of a transmit queue that UDP and TCP share: memory and descriptors. What sends is its sink.
type txQueue struct {
	id     int
	box    *engine.Outbox
	slots  *engine.TxSlots
	sent   *sent
	pace   pace.Options
	pacer  *pace.Pacer // nil without a rate and times
	closed atomic.Bool
	end    func() // takes the queue off its port
	once   sync.Once

	forwarded atomic.Uint64
}

// sent are the counts of a sink. Those of a TCP sink are written by several goroutines.
type sent struct {
	packets, bytes, calls atomic.Uint64
	drops                 [engine.NumDrops]atomic.Uint64
}

const defaultDepth = 1024

// newTxQueue checks a specification; the sink comes with start. most is the length of the longest packet, 0 for any.
func newTxQueue(spec engine.TxSpec, id, most int, s *sent) (*txQueue, error) {
	switch {
	case len(spec.Pools) < 1 || len(spec.Pools) > 2:
		return nil, invalid("transmit queue %d has %d pools: expected 1, or 2 for headers and payload", id, len(spec.Pools))
	case spec.Depth < 0 || spec.Headroom < 0:
		return nil, invalid("transmit queue %d: Depth %d and Headroom %d: expected no negative number", id, spec.Depth, spec.Headroom)
	case spec.SourceMAC:
		return nil, failed(engine.ErrUnsupported, "transmit queue %d: SourceMAC is for frames, and these are payloads", id)
	}
	q := &txQueue{id: id, sent: s}
	switch o := spec.Options.(type) {
	case nil:
	case pace.Options:
		q.pace = o
	default:
		return nil, invalid("transmit queue %d: options of type %T: expected pace.Options", id, spec.Options)
	}
	var srcs []*burst.Source
	for _, p := range spec.Pools {
		if p == nil {
			return nil, failed(engine.ErrNil, "transmit queue %d: a pool is nil", id)
		}
		src := burst.PoolSource(p)
		if p.Region().All().Bytes() == nil {
			return nil, failed(engine.ErrUnsupported, "transmit queue %d: pool %q is in memory that the kernel cannot read", id, p.Name())
		}
		srcs = append(srcs, src)
	}
	if spec.Headroom > spec.Pools[0].SlotSize() || spec.Headroom > 1<<16-1 {
		return nil, invalid("transmit queue %d: Headroom is %d: expected at most %d, the slots of pool %q", id, spec.Headroom, min(spec.Pools[0].SlotSize(), 1<<16-1), spec.Pools[0].Name())
	}
	q.slots = engine.NewTxSlots(spec.Pools, srcs, spec.Headroom, most)
	return q, nil
}

func (q *txQueue) ID() int { return q.id }

// Alloc implements engine.TxQueue.
func (q *txQueue) Alloc(b *burst.Burst, n, length int) (int, error) {
	if q.closed.Load() {
		return 0, engine.ErrClosed
	}
	return q.slots.Alloc(q.box, b, n, length)
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

// Forward implements engine.TxQueue. The kernel reads packets where they lie, whosever memory that is, so nothing is copied.
func (q *txQueue) Forward(b *burst.Burst) (int, error) {
	n, err := q.box.ClaimReached(b)
	if err == engine.ErrFull {
		q.slots.CountFull()
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
		Forwarded: q.forwarded.Load(), Queued: uint64(q.box.Queued()),
	}
	for i := range q.sent.drops {
		s.Drops[i] += q.sent.drops[i].Load()
	}
	q.slots.AddStats(s)
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
