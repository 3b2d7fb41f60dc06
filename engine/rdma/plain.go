package rdma

import (
	"context"
	"io"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/conns"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/ibv/cm"
)

// A plain connection is one that the connection manager makes: one queue pair in both directions,
// whose messages are the packets and nothing else. It belongs to one receive queue, that of its
// queue pair, for as long as it lives. The peer says nothing of its buffers.

// noLimit is more messages than are ever sent: of a peer that does not say how many it takes.
const noLimit = 1 << 62

// serve implements session: it makes the connection, and waits for its end.
func (l *link) serve(c *conn) error {
	if err := l.begin(c); err != nil {
		return err
	}
	for {
		ev, err := l.next(context.Background())
		if err != nil {
			return err
		}
		if err := l.follow(c, ev); err != nil {
			return err
		}
	}
}

// params are this side's of the connection. It starts no reads, but programs ask for them.
func (l *link) params(c *conn, x *pair) cm.Params {
	most := c.port.reads()
	q := cm.Params{RetryCount: uint8(c.port.o.Retries), RNRRetryCount: rnrForever, SRQ: true, QPN: x.mine.qpn}
	switch {
	case c.port.o.Transport != RC: // no reads there
	case l.asked == nil:
		q.ResponderResources, q.InitiatorDepth = min(1, most), min(1, most)
	default:
		q.ResponderResources, q.InitiatorDepth = min(l.asked.ResponderResources, most),
			min(l.asked.InitiatorDepth, most)
	}
	return q
}

// rnrForever has the device try again without an end while the peer has no buffer.
const rnrForever = 7

// reads is the number of reads at a time that the device serves, and starts.
func (p *Port) reads() uint8 { return uint8(min(p.attr.MaxRdAtomic, p.attr.MaxInitRdAtomic, 16)) }

// begin makes the queue pair, and asks for the connection or accepts it.
func (l *link) begin(c *conn) error {
	if err := l.onDevice(); err != nil {
		return err
	}
	x, err := c.join()
	if err != nil {
		return err
	}
	// where the kernel does not take it, the connection manager has one
	l.id.SetACKTimeout(ackCode(c.port.o.AckTimeout))
	q := l.params(c, x)
	if l.asked == nil {
		return l.id.Connect(q)
	}
	if err := l.ready(c, x, q.ResponderResources, q.InitiatorDepth); err != nil {
		return err
	}
	// Its messages may come before the event that it is ready: a caller that receives them must
	// know the connection by then.
	if err := c.meet(); err != nil {
		return err
	}
	return l.accept(q)
}

// ready makes the queue pair ready to receive and to send.
func (l *link) ready(c *conn, x *pair, responder, initiator uint8) error {
	if c.port.o.Transport == UD {
		return l.readyUD(c, x)
	}
	err := l.id.ReadyQP(x.qp, ibv.LocalWrite, responder, initiator,
		cm.Pauses{MinRNR: rnrCode(c.port.o.MinRNR), RNRRetry: rnrForever})
	if err != nil {
		return failed(engine.ErrConnect, "the way to the peer's queue pair: %v", err)
	}
	return nil
}

// follow does what an event asks for. The error is the end of the connection: io.EOF where the peer
// has closed it.
func (l *link) follow(c *conn, ev cm.Event) error {
	switch {
	case ev.Type == cm.Disconnected:
		return io.EOF
	case ev.Type == cm.Rejected && c.Met: // only this goroutine sets met
		return io.EOF // the peer had accepted, and closed before it learned that this side is ready
	case ev.Err != nil:
		return reason(ev)
	case ev.Type == cm.Established && l.asked == nil && c.port.o.Transport == UD:
		return l.found(c, &ev.Params)
	case ev.Type == cm.ConnectResponse && l.asked == nil:
		c.port.mu.Lock()
		in := c.in
		c.port.mu.Unlock()
		if in == nil {
			return io.EOF // it has ended meanwhile
		}
		if err := l.ready(c, in.x, cm.Agreed, cm.Agreed); err != nil {
			return err
		}
		if err := c.meet(); err != nil {
			return err
		}
		if err := l.id.Establish(); err != nil {
			return err
		}
		c.allow()
	case ev.Type == cm.Established && l.asked != nil && c.port.o.Transport != UD:
		c.allow()
	default:
		return failed(engine.ErrConnect, "the connection manager says %q, which does not belong there", ev.Type)
	}
	return nil
}

// join makes the queue pair of a plain connection, for the receive queue that has the fewest.
func (c *conn) join() (*pair, error) {
	p := c.port
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.Over {
		return nil, io.EOF
	}
	q := conns.Pick(p.rx.Live(), c.ID, (*rxQueue).load)
	if q == nil {
		return nil, failed(engine.ErrNotReady, "no receive queue")
	}
	o := p.newOut(c)
	if err := o.make(ibv.QPSpec{RecvCQ: q.cq, SRQ: q.srq}, 0); err != nil {
		return nil, err
	}
	o.longest, o.w.limit = maxMessage, noLimit
	if p.o.Transport == UD {
		o.longest = uint64(p.o.MTU)
	}
	var err error
	if o.chain, err = ibv.NewSendChain(postAtOnce, postAtOnce*max(o.sges, 1)); err == nil {
		o.armed = true
		err = o.x.cq.Arm(false)
	}
	if err == nil {
		c.q, c.in = q, q.plainChannel(c, o.x)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		o.close()
		return nil, err
	}
	c.out = o
	return o.x, nil
}

// plainChannel is the receiving side of a plain connection. The caller holds p.mu.
func (q *rxQueue) plainChannel(c *conn, x *pair) *rxChannel {
	l := &rxChannel{q: q, c: c, qpn: x.mine.qpn, pair: x.mine, x: x, plain: true, choosy: q.port.o.Transport == UD}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.channels[l.qpn] = l
	return l
}

// allow lets what waits be sent: the peer is ready.
func (c *conn) allow() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o := c.out; o != nil {
		o.ready = true
		c.flush()
		c.watch(o)
	}
}

// part ends both sides of a plain connection. The caller holds p.mu.
func (c *conn) part() {
	l := c.in
	c.in = nil
	if l != nil {
		l.q.halt(l)
	}
	c.mu.Lock()
	c.kill()
	c.mu.Unlock()
	if l != nil { // now the device fills no buffer of it any more
		l.q.mu.Lock()
		l.q.look()
		l.q.remove(l)
		l.q.Wake()
		l.q.mu.Unlock()
		c.port.retire(l.q)
	}
}

// halt stops a queue pair, and takes what has arrived by then.
func (q *rxQueue) halt(l *rxChannel) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if d := q.port.control; l.x.qp.Err() == nil {
		d.lastTaken(l.x.qp)
		d.gone(l.x.qp)
	}
	q.look()
}

// begin has a port of the connection manager accept and connect, since a queue pair needs a receive
// queue. The caller holds p.mu.
func (p *Port) begin() error {
	switch {
	case p.accepts == nil && !p.a.remote.IsValid():
		return nil
	case p.accepts == nil:
		p.conns.Dial()
		return nil
	case p.begun:
		return nil
	}
	if err := p.accepts.(*managerListener).id.Listen(backlog); err != nil {
		return failed(engine.ErrUnavailable, "listening at %v: %v", p.a.local, err)
	}
	p.begun = true
	return nil
}
