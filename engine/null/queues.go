package null

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// rxQueue is a receive queue: it implements engine.RxQueue by the front, and engine.RxDevice.
type rxQueue struct {
	engine.RxFront
	port  *Port
	pool  *mem.Pool
	src   *burst.Source
	cache *mem.Cache
	slots [batch]mem.Handle
}

// batch is the number of packets that are made at once, at most.
const batch = 256

// AddRxQueue implements engine.Port. spec has one pool, with slots for a packet.
func (p *Port) AddRxQueue(spec engine.RxSpec) (engine.RxQueue, error) {
	p.rx.Lock()
	defer p.rx.Unlock()
	can := p.Capabilities()
	if err := p.rx.Admit(&spec, &can); err != nil {
		return nil, fmt.Errorf("null: %s: %w", p.Name(), err)
	}
	pool := spec.Pools[0]
	if err := write(pool, p.size); err != nil {
		return nil, err
	}
	q := &rxQueue{port: p, pool: pool, src: burst.PoolSource(pool), cache: pool.Cache()}
	q.Start(spec, q)
	p.rx.Add(q)
	return q, nil
}

// Collect implements engine.RxDevice.
func (q *rxQueue) Collect(b *burst.Burst) error {
	for want := b.Room(); want > 0; {
		n := q.cache.GetBatch(q.slots[:min(want, batch)])
		added := b.Builder().AddSlots(q.src, q.pool, q.slots[:n], nil,
			burst.Segment{Len: uint32(q.port.size), Cap: uint32(q.pool.SlotSize())})
		if added < n { // packets of others in b lie in too many memories
			q.pool.PutBatch(q.slots[added:n])
		}
		if want -= added; added < batch {
			break
		}
	}
	return nil
}

// Watch implements engine.RxDevice. The front asks when Collect has found no slot, and no
// descriptor says when there is one.
func (q *rxQueue) Watch(*engine.Waker) engine.Armed { return engine.ArmedPoll }

// Stop implements engine.RxDevice. Nothing waits that could be dropped.
func (q *rxQueue) Stop(engine.Drop) error {
	q.cache.Close()
	return nil
}

// Flush implements engine.RxDiscarder: no packet waits.
func (q *rxQueue) Flush() int { return 0 }

// Close implements engine.RxQueue.
func (q *rxQueue) Close() error { return q.port.rx.Close(q) }

// mac is the address of every port, and of the sender of every packet.
var mac = packet.MAC{2, 0, 0, 0, 0, 1}

// write writes a UDP frame into the slots of the pool that are free.
func write(pool *mem.Pool, size int) error {
	f := packet.UDPFrame{SrcMAC: mac, DstMAC: mac, Src: netip.MustParseAddrPort("192.0.2.1:9"),
		Dst: netip.MustParseAddrPort("192.0.2.2:9")}
	slots := make([]mem.Handle, pool.Slots())
	slots = slots[:pool.GetBatch(slots)]
	defer pool.PutBatch(slots)
	memory := pool.Region().All().Bytes()
	for _, h := range slots {
		if _, err := f.Fill(memory[pool.Offset(h):][:size], size-f.HeaderLen()); err != nil {
			return fmt.Errorf("null: a frame of %d bytes: %w", size, err)
		}
	}
	return nil
}

// txQueue is a transmit queue: it implements engine.TxQueue by the front, and engine.Sink.
type txQueue struct {
	engine.TxFront
	port *Port

	packets, bytes metrics.Counter
}

// AddTxQueue implements engine.Port.
func (p *Port) AddTxQueue(spec engine.TxSpec) (engine.TxQueue, error) {
	can := p.Capabilities()
	srcs, err := engine.CheckTx(&spec, &can)
	if err != nil {
		return nil, fmt.Errorf("null: %s: transmit queue %v: %w", p.Name(), spec.ID, err)
	}
	p.rx.Lock()
	defer p.rx.Unlock()
	if p.rx.Closed() {
		return nil, engine.ErrClosed
	}
	id, err := engine.TxID(spec.ID, maxQueues, p.txs)
	if err != nil {
		return nil, fmt.Errorf("null: %s: %w", p.Name(), err)
	}
	q := &txQueue{port: p}
	box, err := engine.NewOutbox(q, spec.Depth, false)
	if err != nil {
		return nil, err
	}
	if spec.SourceMAC {
		q.SourceMAC(func() packet.MAC { return mac })
	}
	q.Start(id, engine.NewTxSlots(spec.Pools, srcs, spec.Headroom, 0), box, nil)
	p.txs = append(p.txs, q)
	return q, nil
}

// Transmit implements engine.Sink: it takes every packet, and the front releases it.
func (q *txQueue) Transmit(b *burst.Burst, from, to int) (int, time.Time) {
	bytes := 0
	for i := from; i < to; i++ {
		bytes += b.PacketLen(i)
	}
	q.packets.Add(uint64(b.Builder().LivePart(from, to)))
	q.bytes.Add(uint64(bytes))
	return to, time.Time{}
}

// Forward implements engine.TxQueue. Nothing is copied.
func (q *txQueue) Forward(b *burst.Burst) (int, error) { return q.ForwardReached(b) }

// Stats implements engine.TxQueue.
func (q *txQueue) Stats(s *engine.TxStats) {
	*s = engine.TxStats{Packets: q.packets.Load(), Bytes: q.bytes.Load()}
	q.AddStats(s)
}

// Close implements engine.TxQueue.
func (q *txQueue) Close() error {
	q.Shut()
	p := q.port
	p.rx.Lock()
	defer p.rx.Unlock()
	p.txs, p.gone = engine.RetireTx(q, p.txs, p.gone, &p.pastTx)
	return nil
}
