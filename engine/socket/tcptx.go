package socket

import (
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/conns"
	"github.com/penstock-io/penstock/packet/burst"
)

// tcpSink sends the packets of a transmit queue of a TCPPort. Packets that a connection does not
// take at once wait with that connection, so that others go on.
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
	q, err := newTxQueue(p.address, &spec, p.Capabilities(), id, 0, burst.Segmented, &s.sent)
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
		for c := range p.conns.All() {
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
func (s *tcpSink) lose(why engine.Drop, n int) {
	if n > 0 {
		s.sent.drops[why].Add(uint64(n))
		s.box.Complete(n)
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
		for j < to && (s.port.remote.IsValid() || b.Conn(j) == id) {
			j++
		}
		c, why := s.port.conns.To(id)
		switch {
		case c != nil:
			c.send(s, b, i, j)
		case why == conns.Wait:
			return i, time.Time{}
		default:
			s.lose(why, b.Builder().LivePart(i, j))
		}
		i = j
	}
	return to, time.Time{}
}
