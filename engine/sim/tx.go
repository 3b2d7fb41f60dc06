package sim

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/pace"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// txQueue is a transmit queue: an Outbox whose device puts packets on the wire of the port.
type txQueue struct {
	engine.TxFront
	port   *Port
	spec   engine.TxSpec
	pools  []*mem.Pool
	srcs   []*burst.Source
	box    *engine.Outbox
	pacer  *pace.Pacer // nil without Rate and SendAt
	pacing sync.Mutex  // over pacer; comes before Network.mu

	// Of Transmit, which runs in one goroutine at a time.
	sending            sending
	attic              *burst.Burst // for packets that a receiver has taken
	came, packets, sum atomic.Uint64
	drops              [engine.NumDrops]atomic.Uint64

	once sync.Once
}

func newTxQueue(p *Port, id int, spec engine.TxSpec) (*txQueue, error) {
	if err := Spec.TxDefaults(p.spec.Address, &spec); err != nil {
		return nil, err
	}
	o, paced, err := pace.Of(&spec)
	if err != nil {
		return nil, fmt.Errorf("sim: port %q: transmit queue %d: %w", p.name, id, err)
	}
	can := p.Capabilities()
	srcs, err := engine.CheckTx(&spec, &can)
	if err != nil {
		return nil, fmt.Errorf("sim: port %q: transmit queue %d: %w", p.name, id, err)
	}
	q := &txQueue{port: p, spec: spec, attic: burst.New(64)}
	q.sending.from = p.at
	for i, pool := range spec.Pools {
		srcs[i], _ = acquireSource(pool)
	}
	q.pools, q.srcs = spec.Pools, srcs
	box, err := q.newBox(paced, o)
	if err != nil {
		releaseSources(q.pools)
		return nil, err
	}
	q.box = box
	if spec.SourceMAC {
		q.SourceMAC(func() packet.MAC { return p.at.mac })
	}
	q.Start(id, engine.NewTxSlots(q.pools, q.srcs, spec.Headroom, 0), box, nil)
	return q, nil
}

// Forward implements engine.TxQueue. It copies nothing: the wire reads packets where they lie.
func (q *txQueue) Forward(b *burst.Burst) (int, error) { return q.ForwardReached(b) }

// Stats implements engine.TxQueue.
func (q *txQueue) Stats(s *engine.TxStats) {
	if q.pacer != nil {
		q.pacing.Lock()
		defer q.pacing.Unlock()
	}
	*s = engine.TxStats{Packets: q.packets.Load(), Bytes: q.sum.Load()}
	for i := range q.drops {
		s.Drops[i] = q.drops[i].Load()
	}
	q.AddStats(s)
	q.pacer.AddStats(s)
}

// Close implements engine.TxQueue.
func (q *txQueue) Close() error {
	q.Shut() // takes Network.mu for reading
	q.once.Do(func() {
		p := q.port
		p.net.mu.Lock()
		defer p.net.mu.Unlock()
		p.tx = slices.DeleteFunc(slices.Clone(p.tx), func(o *txQueue) bool { return o == q })
		p.old = append(p.old, q)
		releaseSources(q.pools)
	})
	return nil
}

// sink is the device behind a txQueue.
type sink txQueue

// Transmit implements engine.Sink. It takes everything.
func (k *sink) Transmit(b *burst.Burst, from, to int) (int, time.Time) {
	q := (*txQueue)(k)
	p := q.port
	p.net.mu.RLock()
	c := &q.sending
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
		b.Builder().Forget() // the receivers own all of it
		return to, time.Time{}
	}
	for n := len(c.taken) - 1; n >= 0; n-- { // from the end: Take moves what is behind
		if !b.Take(q.attic, c.taken[n]) {
			q.attic.Builder().Forget()
			b.Take(q.attic, c.taken[n])
		}
	}
	q.attic.Builder().Forget()
	return to, time.Time{}
}

// uniform reports whether this is a whole burst of packets that lie in one piece in the queue's own
// memory, none of which is too long.
func (q *txQueue) uniform(b *burst.Burst, from, to int) bool {
	return from == 0 && to == b.Len() && b.SegmentCount() == to && b.Builder().Owned(q.srcs[0]) && b.Live() == to &&
		q.pools[0].SlotSize() <= q.port.limit
}

// each looks at packets from to to-1 and puts those on the wire that can go there. It returns the
// numbers of packets, of those that were sent, and of their bytes.
func (q *txQueue) each(b *burst.Burst, from, to int, up bool) (came, sent, sum int) {
	p, c := q.port, &q.sending
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
