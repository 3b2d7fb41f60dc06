package socket

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/pace"
	"github.com/penstock-io/penstock/packet/burst"
)

// txQueue is the part of a transmit queue that UDP and TCP share: memory and descriptors. What
// sends is its sink.
type txQueue struct {
	engine.TxFront
	id    int
	box   *engine.Outbox
	slots *engine.TxSlots
	sent  *sent
	pace  pace.Options
	paced bool
	pacer *pace.Pacer // nil without a rate and times
	end   func()      // takes the queue off its port
	once  sync.Once
}

// sent are the counts of a sink. Those of a TCP sink are written by several goroutines.
type sent struct {
	packets, bytes, calls atomic.Uint64
	drops                 [engine.NumDrops]atomic.Uint64
}

// newTxQueue checks a specification; the sink comes with start. most is the length of the longest
// packet, 0 for any; does is what the kernel does of burst.Requests.
func newTxQueue(address string, spec *engine.TxSpec, can engine.Capabilities, id, most int, does burst.Flags,
	s *sent) (*txQueue, error) {
	q := &txQueue{id: id, sent: s}
	err := Spec.TxDefaults(address, spec)
	if err == nil {
		q.pace, q.paced, err = pace.Of(spec)
	}
	if err != nil {
		return nil, fmt.Errorf("socket: transmit queue %d: %w", id, err)
	}
	srcs, err := engine.CheckTx(spec, &can)
	if err != nil {
		return nil, fmt.Errorf("socket: transmit queue %d: %w", id, err)
	}
	q.slots = engine.NewTxSlots(spec.Pools, srcs, spec.Headroom, most)
	q.Offload(does, true)
	return q, nil
}

// start makes the Outbox.
func (q *txQueue) start(spec engine.TxSpec, s engine.Sink, async bool) (err error) {
	if q.paced {
		o := q.pace
		if async {
			o.Complete = func(n int) { q.box.Complete(n) }
		}
		if q.pacer, err = pace.New(s, o); err != nil {
			return err
		}
		s = q.pacer
	}
	q.box, err = engine.NewOutbox(s, spec.Depth, async)
	q.Start(q.id, q.slots, q.box, nil)
	return err
}

// Forward implements engine.TxQueue. The kernel reads packets where they lie, whosever memory that
// is, so nothing is copied.
func (q *txQueue) Forward(b *burst.Burst) (int, error) { return q.ForwardReached(b) }

// Stats implements engine.TxQueue.
func (q *txQueue) Stats(s *engine.TxStats) {
	*s = engine.TxStats{Packets: q.sent.packets.Load(), Bytes: q.sent.bytes.Load(), Calls: q.sent.calls.Load()}
	for i := range q.sent.drops {
		s.Drops[i] += q.sent.drops[i].Load()
	}
	q.AddStats(s)
	q.pacer.AddStats(s)
}

// Close implements engine.TxQueue.
func (q *txQueue) Close() error {
	q.Shut()
	q.once.Do(q.end)
	return nil
}
