package socket

import (
	"time"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/engine"
)

// tcpSink sends the packets of a transmit queue of a TCPPort. Packets that a connection does not take at once wait with that connection,
// so that others go on.
type tcpSink struct {
	port *TCPPort
	sent sent
	box  *engine.Outbox
}

// AddTxQueue implements engine.Port.
func (p *TCPPort) AddTxQueue(spec engine.TxSpec) (engine.TxQueue, error) {
	p.rx.Lock()
	defer p.rx.Unlock()
	if p.rx.Closed() {
		return nil, engine.ErrClosed
	}
	id, err := engine.TxID(spec.ID, maxQueues, p.tx)
	if err != nil {
		return nil, err
	}
	s := &tcpSink{port: p}
	q, err := newTxQueue(p.address, &spec, p.can(), id, 0, burst.Segmented, &s.sent)
	if err != nil {
		return nil, err
	}
	if err := q.start(spec, s, true); err != nil {
		return nil, err
	}
	s.box = q.box
	q.end = func() {
		p.rx.Lock()
		defer p.rx.Unlock()
		for _, c := range p.conns {
			c.mu.Lock()
			c.drop(engine.DropClosed, s)
			c.mu.Unlock()
		}
		p.tx, p.ended = engine.RetireTx(q, p.tx, p.ended, &p.pastTx)
	}
	p.tx = append(p.tx, q)
	return q, nil
}

// lose counts packets that will not be sent.
func (s *tcpSink) lose(why engine.Drop, n uint64) {
	if n > 0 {
		s.sent.drops[why].Add(n)
		s.box.Complete(int(n))
	}
}

// Transmit implements engine.Sink.
func (s *tcpSink) Transmit(b *burst.Burst, from, to int) (int, time.Time) {
	for i := from; i < to; {
		if b.Segments(i) == 0 {
			i++
			continue
		}
		id := b.Conn(i)
		j := i + 1
		for j < to && (!s.port.listen || b.Conn(j) == id) {
			j++
		}
		c, why := s.find(id)
		switch {
		case c != nil:
			c.send(s, b, i, j)
		case why == wait:
			return i, time.Time{}
		default:
			s.lose(why, uint64(b.Builder().LivePart(i, j)))
		}
		i = j
	}
	return to, time.Time{}
}

// wait is no reason to drop a packet: there will be a connection.
const wait = engine.NumDrops

// find is the connection of an id, or why there is none.
func (s *tcpSink) find(id uint32) (*conn, engine.Drop) {
	p := s.port
	if !p.listen {
		gone := p.gone.Load() // first: the other way round it might be set in between
		switch c := p.current.Load(); {
		case c != nil:
			return c, 0
		case gone:
			return nil, engine.DropDown
		}
		return nil, wait
	}
	p.table.RLock()
	defer p.table.RUnlock()
	if c := p.conns[id]; c != nil {
		return c, 0
	}
	if id == 0 {
		return nil, engine.DropNoRoute // a packet to nobody
	}
	return nil, engine.DropDown
}
