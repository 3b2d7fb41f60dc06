package socket

import (
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/pace"
)

// txQueue is the part of a transmit queue that UDP and TCP share: memory and descriptors. What sends is its sink.
type txQueue struct {
	engine.TxFront
	id    int
	box   *engine.Outbox
	slots *engine.TxSlots
	sent  *sent
	pace  pace.Options
	pacer *pace.Pacer // nil without a rate and times
	end   func()      // takes the queue off its port
	once  sync.Once
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
	q.Start(q.id, q.slots, q.box, nil)
	return err
}

// Forward implements engine.TxQueue. The kernel reads packets where they lie, whosever memory that is, so nothing is copied.
func (q *txQueue) Forward(b *burst.Burst) (int, error) { return q.ForwardReached(b) }

// Stats implements engine.TxQueue.
func (q *txQueue) Stats(s *engine.TxStats) {
	*s = engine.TxStats{Packets: q.sent.packets.Load(), Bytes: q.sent.bytes.Load(), Calls: q.sent.calls.Load()}
	for i := range q.sent.drops {
		s.Drops[i] += q.sent.drops[i].Load()
	}
	q.AddStats(s)
	if q.pacer != nil {
		q.pacer.AddStats(s)
	}
}

// Close implements engine.TxQueue.
func (q *txQueue) Close() error {
	q.Shut()
	q.once.Do(q.end)
	return nil
}
