package afpacket

import (
	"fmt"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/pace"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/packet/burst"
)

// txQueue is a transmit queue. It implements engine.TxQueue.
type txQueue struct {
	engine.TxFront
	port  *Port
	spec  engine.TxSpec
	out   *engine.Outbox
	pacer *pace.Pacer // nil without a rate and times

	// Of the goroutine that transmits.
	msgs                  *sys.Messages
	packets, bytes, calls metrics.Counter
	drops                 engine.DropCounters
	failures              int // that many refusals of one packet in a row
}

const (
	// sendBatch is the number of packets for one system call, sendPieces of their segments
	// altogether.
	sendBatch, sendPieces = 64, 256
	// sendAgain is the pause when the kernel takes no more.
	sendAgain = 100 * time.Microsecond
	// sendTries is how often a packet is tried that the kernel refuses for lack of room: a second
	// or so.
	sendTries = 10000
)

// AddTxQueue implements engine.Port.
func (p *Port) AddTxQueue(spec engine.TxSpec) (engine.TxQueue, error) {
	if err := Spec.TxDefaults(p.spec.Address, &spec); err != nil {
		return nil, err
	}
	if p.o.Direction != DirectionIn {
		return nil, fmt.Errorf("afpacket: transmit queue of %s: the port receives what this host sends, and would "+
			"receive what the queue sends: open another port, with direction in: %w", p.name, engine.ErrInvalid)
	}
	o, paced, err := pace.Of(&spec)
	if err != nil {
		return nil, fmt.Errorf("afpacket: transmit queue of %s: %w", p.name, err)
	}
	can := p.Capabilities()
	srcs, err := engine.CheckTx(&spec, &can)
	if err != nil {
		return nil, fmt.Errorf("afpacket: transmit queue of %s: %w", p.name, err)
	}
	q := &txQueue{port: p, spec: spec, msgs: sys.NewMessages(sendBatch, sendPieces, 0)}
	slots := engine.NewTxSlots(spec.Pools, srcs, spec.Headroom, 0)
	var sink engine.Sink = (*device)(q)
	if paced {
		if q.pacer, err = pace.New(sink, o); err != nil {
			return nil, err
		}
		sink = q.pacer
	}
	p.rx.Lock()
	defer p.rx.Unlock()
	if p.rx.Closed() {
		return nil, engine.ErrClosed
	}
	if p.link.Gone() {
		return nil, ErrRemoved
	}
	id, err := engine.TxID(spec.ID, maxQueues, p.txs)
	if err != nil {
		return nil, fmt.Errorf("afpacket: %s: %w", p.name, err)
	}
	if q.out, err = engine.NewOutbox(sink, spec.Depth, false); err != nil {
		return nil, err
	}
	if spec.SourceMAC {
		q.SourceMAC(p.link.MAC)
	}
	q.Start(id, slots, q.out, nil)
	p.txs = append(p.txs, q)
	return q, nil
}

// Forward implements engine.TxQueue. Nothing is copied: the kernel reads packets wherever they lie.
func (q *txQueue) Forward(b *burst.Burst) (int, error) { return q.ForwardReached(b) }

// Stats implements engine.TxQueue.
func (q *txQueue) Stats(s *engine.TxStats) {
	*s = engine.TxStats{Packets: q.packets.Load(), Bytes: q.bytes.Load(), Calls: q.calls.Load()}
	q.drops.AddTo(&s.Drops)
	q.AddStats(s)
	q.pacer.AddStats(s)
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

// device is the sink of a queue: the kernel.
type device txQueue

// Transmit implements engine.Sink.
func (d *device) Transmit(b *burst.Burst, from, to int) (int, time.Time) {
	for from < to {
		if !d.port.link.Up() {
			d.drops.Add(engine.DropDown, uint64(b.Builder().LivePart(from, to)))
			return to, time.Time{}
		}
		end := d.gather(b, from, to)
		if d.msgs.Count() == 0 { // nothing but packets that were taken
			from = end
			continue
		}
		d.calls.Inc()
		n, e := d.msgs.Send(d.port.tx, 0)
		if n > 0 {
			d.failures = 0
			from = d.sent(b, from, n)
			continue
		}
		for b.Segments(from) == 0 {
			from++
		}
		why, again := d.refused(e)
		if again {
			return from, time.Now().Add(sendAgain)
		}
		d.failures = 0
		d.drops.Inc(why)
		from++
	}
	return to, time.Time{}
}

// gather makes messages of packets from on, and returns the first that is not among them.
func (d *device) gather(b *burst.Burst, from, to int) int {
	d.msgs.Reset()
	for i := from; i < to; i++ {
		n := b.Segments(i)
		if n == 0 {
			continue
		}
		if d.msgs.Room() < n || !d.msgs.Add(nil) {
			return i
		}
		for k := range n {
			d.msgs.Append(b.Bytes(i, k))
		}
	}
	return to
}

// sent counts the next n packets as sent, and returns the one behind them.
func (d *device) sent(b *burst.Burst, from, n int) int {
	d.packets.Add(uint64(n))
	bytes := 0
	for ; n > 0; from++ {
		if b.Segments(from) > 0 {
			bytes += b.PacketLen(from)
			n--
		}
	}
	d.bytes.Add(uint64(bytes))
	return from
}

// refused says what an error of the kernel's means for the first packet: try again, or the reason
// to drop it.
func (d *device) refused(e sys.Errno) (why engine.Drop, again bool) {
	switch e {
	case sys.EAGAIN, sys.ENOBUFS, sys.ENOMEM, sys.EINTR:
		// The socket's buffer or the device is full. ENOBUFS also says that the queueing discipline
		// or the peer of a veth has dropped the packet: it is gone there, so sending it again makes
		// no second one.
		if d.failures++; d.failures < sendTries {
			return 0, true
		}
		return engine.DropRefused, false
	case sys.EMSGSIZE:
		return engine.DropTooLong, false
	case sys.ENETDOWN, sys.ENXIO, sys.ENODEV:
		return engine.DropDown, false
	case sys.EINVAL: // shorter than an Ethernet header
		return engine.DropBadFrame, false
	}
	return engine.DropRefused, false
}
