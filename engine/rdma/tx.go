package rdma

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/conns"
	"github.com/penstock-io/penstock/engine/pace"
	"github.com/penstock-io/penstock/packet/burst"
)

// txQueue is a transmit queue: memory and descriptors. Its packets go to the connections that they
// name.
type txQueue struct {
	engine.TxFront
	port  *Port
	id    int
	box   *engine.Outbox
	sink  txSink
	pacer *pace.Pacer // nil without a rate and times
	once  sync.Once
}

// txSink is what an Outbox passes packets to. Packets that a connection does not take at once wait
// with it, so that others go on. Several goroutines write its counts.
type txSink struct {
	port           *Port
	box            *engine.Outbox
	flying         atomic.Int64 // packets that devices have
	pacing         atomic.Bool  // the pacer is at work
	owed           atomic.Int64 // packets that the box does not know to be done yet, with a pacer
	packets, bytes atomic.Uint64
	drops          [engine.NumDrops]atomic.Uint64
}

var _ engine.TxQueue = (*txQueue)(nil)

// AddTxQueue implements engine.Port.
func (p *Port) AddTxQueue(spec engine.TxSpec) (engine.TxQueue, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rx.Closed() {
		return nil, engine.ErrClosed
	}
	id, err := engine.TxID(spec.ID, maxQueues, p.tx)
	if err != nil {
		return nil, failed(err, "port %s", p.name)
	}
	q := &txQueue{port: p, id: id, sink: txSink{port: p}}
	if err := q.open(spec); err != nil {
		return nil, err
	}
	p.tx = append(p.tx, q)
	return q, nil
}

func (q *txQueue) open(spec engine.TxSpec) error {
	p := q.port
	if err := Spec.TxDefaults(p.a.text, &spec); err != nil {
		return err
	}
	o, paced, err := pace.Of(&spec)
	if err != nil {
		return failed(err, "transmit queue %d", q.id)
	}
	can := capabilities()
	srcs, err := engine.CheckTx(&spec, &can)
	if err != nil {
		return failed(err, "transmit queue %d", q.id)
	}
	if _, _, err := p.dev.Pools(spec.Pools); err != nil {
		return failed(err, "transmit queue %d", q.id)
	}
	most := 0
	if p.o.Transport == UD {
		most = p.o.MTU
	}
	slots := engine.NewTxSlots(spec.Pools, srcs, spec.Headroom, most)
	if most == 0 {
		most = maxMessage
	}
	slots.Chain(min(p.o.Segments, p.attr.MaxSGE), most)
	var s engine.Sink = &q.sink
	if paced {
		o.Complete = q.sink.complete
		if q.pacer, err = pace.New(s, o); err != nil {
			return err
		}
		s = pacedSink{q}
	}
	q.box, err = engine.NewOutbox(s, spec.Depth, true)
	q.sink.box = q.box
	q.Offload(0, true)
	q.Start(q.id, slots, q.box, q.reap)
	return err
}

// reap takes what devices have done with this queue's packets and others, for a caller that needs
// descriptors now.
func (q *txQueue) reap() {
	if q.sink.flying.Load() > 0 {
		q.port.reap()
	}
}

// reap takes what devices have done, for a caller that needs descriptors now.
func (p *Port) reap() {
	for c := range p.conns.Read() {
		c.mu.Lock()
		if o := c.out; o != nil && o.flying() > 0 && o.reap() {
			c.flush()
		}
		c.mu.Unlock()
	}
}

// Forward implements engine.TxQueue. The device fetches packets from where they lie, whosever
// memory that is, so nothing is copied: memory that it does not know yet is registered when the
// first packet of it comes.
func (q *txQueue) Forward(b *burst.Burst) (int, error) {
	if b == nil {
		return 0, engine.ErrNil
	}
	if err := q.port.dev.RegisterAll(b); err != nil {
		b.Release()
		return 0, fmt.Errorf("rdma: %w", err)
	}
	return q.ForwardAny(b)
}

// Stats implements engine.TxQueue.
func (q *txQueue) Stats(s *engine.TxStats) {
	*s = engine.TxStats{Packets: q.sink.packets.Load(), Bytes: q.sink.bytes.Load()}
	for i := range q.sink.drops {
		s.Drops[i] += q.sink.drops[i].Load()
	}
	q.AddStats(s)
	q.pacer.AddStats(s)
}

// Close implements engine.TxQueue. It waits for what devices have, for as long as Options.Linger;
// connections that have not done with it by then are ended.
func (q *txQueue) Close() error {
	q.Shut()
	q.once.Do(q.end)
	return nil
}

// end takes the queue off its port.
func (q *txQueue) end() {
	p := q.port
	for _, c := range p.conns.List() {
		c.mu.Lock()
		c.held.Drop(&q.sink, engine.DropClosed, (*txSink).lose)
		c.mu.Unlock()
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.o.Linger)
	defer cancel()
	if q.box.Drain(ctx) != nil {
		for _, c := range p.conns.List() {
			c.mu.Lock()
			ours := c.carries(&q.sink)
			c.mu.Unlock()
			if ours {
				p.finish(c, failed(engine.ErrClosed,
					"transmit queue %d was closed, and %v later the peer had not taken what was sent", q.id,
					p.o.Linger))
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tx, p.ended = engine.RetireTx(q, p.tx, p.ended, &p.old.Tx)
}

// carries reports whether the device has packets of that sink for the connection.
func (c *conn) carries(s *txSink) bool {
	for _, o := range append(slices.Clone(c.gone), c.out) {
		if o == nil {
			continue
		}
		for at := o.head; at < o.tail; at++ {
			if o.posts[at%uint64(len(o.posts))].s == s {
				return true
			}
		}
	}
	return false
}

// done counts packets that the device is done with.
func (s *txSink) done(n, bytes int, left bool) {
	s.flying.Add(int64(-n))
	if left {
		s.packets.Add(uint64(n))
		s.bytes.Add(uint64(bytes))
		s.complete(n)
		return
	}
	s.lose(engine.DropDown, n)
}

// complete tells the box of packets that are done. A pacer counts packets after it has passed them
// on, and a caller of Drain finds its figures whole: so while it is at work reportDone tells the
// box later.
func (s *txSink) complete(n int) {
	s.owed.Add(int64(n))
	if !s.pacing.Load() {
		s.reportDone()
	}
}

func (s *txSink) reportDone() {
	if n := s.owed.Swap(0); n > 0 {
		s.box.Complete(int(n))
	}
}

// pacedSink is the pacer of a queue as its Outbox sees it.
type pacedSink struct{ q *txQueue }

// Transmit implements engine.Sink.
func (p pacedSink) Transmit(b *burst.Burst, from, to int) (int, time.Time) {
	s := &p.q.sink
	s.pacing.Store(true)
	next, again := p.q.pacer.Transmit(b, from, to)
	s.pacing.Store(false)
	s.reportDone()
	return next, again
}

// lose counts packets that will not be sent.
func (s *txSink) lose(why engine.Drop, n int) {
	if n > 0 {
		s.drops[why].Add(uint64(n))
		s.complete(n)
	}
}

// refuse gives up one packet.
func (s *txSink) refuse(b *burst.Burst, i int, why engine.Drop) {
	b.Builder().ReleasePart(i, i+1)
	s.lose(why, 1)
}

// Transmit implements engine.Sink.
func (s *txSink) Transmit(b *burst.Burst, from, to int) (int, time.Time) {
	for i := from; i < to; {
		if b.Segments(i) == 0 {
			i++
			continue
		}
		id := b.Conn(i)
		j := i + 1
		for j < to && b.Conn(j) == id {
			j++
		}
		c, why := s.port.conns.To(id)
		switch {
		case c != nil:
			c.send(s, b, i, j)
		case why == conns.Wait:
			return i, time.Time{}
		default:
			n := b.Builder().LivePart(i, j)
			b.Builder().ReleasePart(i, j)
			s.lose(why, n)
		}
		i = j
	}
	return to, time.Time{}
}
