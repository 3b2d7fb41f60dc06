package sim

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/pace"
	"github.com/penstock-io/penstock/mem"
)

// txQueue is a transmit queue: an Outbox whose device puts packets on the wire of the port.
type txQueue struct {
	port   *Port
	id     int
	spec   engine.TxSpec
	pools  []*mem.Pool
	srcs   []*burst.Source
	slots  *engine.TxSlots
	box    *engine.Outbox
	pacer  *pace.Pacer // nil without Rate and SendAt
	pacing sync.Mutex  // over pacer; comes before Network.mu

	forwarded atomic.Uint64

	// Of Transmit, which runs in one goroutine at a time.
	cargo              cargo
	attic              *burst.Burst // for packets that a receiver has taken
	came, packets, sum atomic.Uint64
	drops              [engine.NumDrops]atomic.Uint64

	closed atomic.Bool
	ended  chan struct{} // closed when Close has done its work
}

func newTxQueue(p *Port, id int, spec engine.TxSpec) (*txQueue, error) {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: sim: port %q: transmit queue %d: %s", engine.ErrInvalid, p.name, id, fmt.Sprintf(format, args...))
	}
	switch {
	case len(spec.Pools) < 1 || len(spec.Pools) > 2:
		return nil, bad("%d pools: expected one, or two for headers and payload", len(spec.Pools))
	case spec.Depth < 0 || spec.Depth > maxDepth:
		return nil, bad("Depth is %d: expected 0 to %d packets", spec.Depth, maxDepth)
	case spec.Options != nil:
		return nil, bad("options of type %T: there are none", spec.Options)
	}
	if spec.Depth == 0 {
		spec.Depth = defaultDepth
	}
	q := &txQueue{port: p, id: id, spec: spec, attic: burst.New(64), ended: make(chan struct{})}
	q.cargo.from = p.at
	for i, pool := range spec.Pools {
		if pool == nil {
			releaseSources(q.pools)
			return nil, bad("pool %d is nil", i)
		}
		src, _, err := acquireSource(pool)
		if err != nil {
			releaseSources(q.pools)
			return nil, fmt.Errorf("sim: port %q: transmit queue %d: %w", p.name, id, err)
		}
		q.pools, q.srcs = append(q.pools, pool), append(q.srcs, src)
	}
	var err error
	if spec.Headroom < 0 || spec.Headroom >= spec.Pools[0].SlotSize() || spec.Headroom > 1<<16-1 {
		err = bad("headroom of %d bytes: expected less than the slots of %d", spec.Headroom, spec.Pools[0].SlotSize())
	} else {
		q.slots = engine.NewTxSlots(q.pools, q.srcs, spec.Headroom, 0)
		q.box, err = q.newBox()
	}
	if err != nil {
		releaseSources(q.pools)
		return nil, err
	}
	return q, nil
}

// ID implements engine.TxQueue.
func (q *txQueue) ID() int { return q.id }

// Alloc implements engine.TxQueue.
func (q *txQueue) Alloc(b *burst.Burst, n, length int) (int, error) {
	if q.closed.Load() {
		return 0, engine.ErrClosed
	}
	return q.slots.Alloc(q.box, b, n, length)
}

// Forward implements engine.TxQueue. It copies nothing: the wire reads packets where they lie.
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

// Drain implements engine.TxQueue. What is late on a wire has left.
func (q *txQueue) Drain(ctx context.Context) error { return q.box.Drain(ctx) }

// Stats implements engine.TxQueue.
func (q *txQueue) Stats(s *engine.TxStats) {
	if q.pacer != nil {
		q.pacing.Lock()
		defer q.pacing.Unlock()
	}
	*s = engine.TxStats{Packets: q.packets.Load(), Bytes: q.sum.Load(), Forwarded: q.forwarded.Load(),
		Queued: uint64(q.box.Queued())}
	for i := range q.drops {
		s.Drops[i] = q.drops[i].Load()
	}
	q.slots.AddStats(s)
	q.box.AddDrops(&s.Drops)
	if q.pacer != nil {
		q.pacer.AddStats(s)
	}
}

// Close implements engine.TxQueue.
func (q *txQueue) Close() error {
	if q.closed.Swap(true) {
		<-q.ended
		return nil
	}
	defer close(q.ended)
	q.box.Close() // takes Network.mu for reading
	p := q.port
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	p.tx[q.id] = nil
	p.old = append(p.old, q)
	releaseSources(q.pools)
	return nil
}

// sink is the device behind a txQueue.
type sink txQueue

// Transmit implements engine.Sink. It takes everything.
func (k *sink) Transmit(b *burst.Burst, from, to int) (int, time.Time) {
	q := (*txQueue)(k)
	p := q.port
	p.net.mu.RLock()
	c := &q.cargo
	c.b, c.time, c.taken = b, 0, c.taken[:0]
	w := p.at.out
	up := w.up.Load()
	var came, sent, sum int
	if up && q.uniform(b, from, to) {
		came, sent, sum = to, to, b.TotalLen()
		c.only, c.longest, c.sum = q.srcs[0], q.pools[0].SlotSize(), sum
		c.bulk = q.pacer == nil // which looks at the packets afterwards
		w.carry(c, from, to)
	} else {
		c.only, c.bulk = nil, false
		came, sent, sum = q.each(b, from, to, up)
	}
	// In this order: what came is at least what left.
	q.came.Add(uint64(came))
	q.packets.Add(uint64(sent))
	q.sum.Add(uint64(sum))
	whole := q.pacer == nil && len(c.taken) > 0 && len(c.taken) == b.Len()
	p.net.mu.RUnlock()
	c.b = nil
	if whole {
		b.Forget() // the receivers own all of it
		return to, time.Time{}
	}
	for n := len(c.taken) - 1; n >= 0; n-- { // from the end: Take moves what is behind
		if !b.Take(q.attic, c.taken[n]) {
			q.attic.Forget()
			b.Take(q.attic, c.taken[n])
		}
	}
	q.attic.Forget()
	return to, time.Time{}
}

// uniform reports whether this is a whole burst of packets that lie in one piece in the queue's own memory, none of which is too long
// or needs to be changed.
func (q *txQueue) uniform(b *burst.Burst, from, to int) bool {
	return from == 0 && to == b.Len() && b.SegmentCount() == to && b.Owned(q.srcs[0]) && b.Live() == to && !q.spec.SourceMAC &&
		q.pools[0].SlotSize() <= q.port.limit
}

// each looks at packets from to to-1 and puts those on the wire that can go there. It returns the numbers of packets, of those that
// were sent, and of their bytes.
func (q *txQueue) each(b *burst.Burst, from, to int, up bool) (came, sent, sum int) {
	p, c := q.port, &q.cargo
	c.longest = 0
	start := from
	for i := from; i <= to; i++ {
		if i < to && b.Segments(i) > 0 {
			came++
			n := b.PacketLen(i)
			switch {
			case !up:
				q.drops[engine.DropDown].Add(1)
			case n > p.limit && !p.fits(b.Bytes(i, 0), n):
				q.drops[engine.DropTooLong].Add(1)
			default:
				if q.spec.SourceMAC {
					engine.SetSource(b, i, p.at.mac)
				}
				sum += n
				c.longest = max(c.longest, n)
				continue
			}
		}
		if start < i { // a run of packets ends here
			sent += i - start
			p.at.out.carry(c, start, i)
		}
		start = i + 1
	}
	return came, sent, sum
}
