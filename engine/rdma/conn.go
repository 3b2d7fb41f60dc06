package rdma

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/conns"
)

// conn is one connection: a session, and channels in both directions, which are one queue pair
// where the connection is plain (plain.go). A channel is a pair of queue pairs over which messages
// go one way. The receiver makes it, for the receive queue that the connection belongs to, and
// takes it back when that queue goes; what is to be sent waits meanwhile.
type conn struct {
	conns.Conn // under the port's mutex, as what follows
	port       *Port
	ch         session
	plain      bool // the peer takes no records: one queue pair in both directions

	late    *time.Timer  // until the peer must have said who it is
	q       *rxQueue     // that its messages come to
	in      *rxChannel   // the channel that q has for it
	leaves  []*rxChannel // channels that were taken back and that the peer may still send on
	channel uint32       // number given last

	mu    sync.Mutex // of what is sent
	dead  bool
	out   *txChannel   // the channel to send on; nil while the peer has given none
	gone  []*txChannel // channels that the peer takes back and that have something under way
	held  conns.Waiting[*txSink]
	probe *time.Timer // of a sender that waits

	watchdog *time.Timer // of what the device has
	guarded  bool        // it runs
}

// serve has the session do what the peer asks for until it ends.
func (c *conn) serve() {
	p := c.port
	err := c.ch.serve(c)
	if err == io.EOF || errors.Is(err, errBye) {
		err = nil // the peer has closed
	}
	p.finish(c, err)
	c.ch.close()
	c.ch.wait()
}

// errBye is how a peer says that it closes.
var errBye = errors.New("closed by the peer")

// errOrder is the answer to a record that does not belong where it came.
var errOrder = errors.New("the peer sent a record that does not belong there")

// errWrite is the answer to a write that took a buffer of messages.
var errWrite = errors.New("the peer sent a write with an immediate value, where only messages belong")

// take does what a record asks for.
func (c *conn) take(r *record) error {
	if (r.kind == kindHello) == c.Met && r.kind != kindBye { // only this goroutine sets met
		return failed(engine.ErrConnect, "%v: %v", r.kind, errOrder)
	}
	switch r.kind {
	case kindHello:
		return c.hello(r)
	case kindBye:
		if r.text != "" {
			return failed(engine.ErrDown, "the peer gave the connection up: %q", r.text)
		}
		return errBye
	case kindOffer:
		return c.offered(r)
	case kindReady:
		return c.ready(r)
	case kindWithdraw:
		return c.withdrawn(r)
	case kindAccept:
		return c.accepted(r)
	case kindDrained, kindSent:
		return c.counted(r)
	}
	return errOrder
}

// hello says that the peer is one of this engine, with the same transport.
func (c *conn) hello(r *record) error {
	p := c.port
	if r.transport != p.o.Transport {
		return failed(engine.ErrConnect, "the peer's transport is %v, this port's is %v", r.transport, p.o.Transport)
	}
	return c.meet()
}

// meet notes that there is a peer.
func (c *conn) meet() error {
	p := c.port
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.Over {
		return errBye
	}
	c.late.Stop()
	p.conns.Up(c)
	return nil
}

// finish ends a connection, whose peer has gone or which has failed.
func (p *Port) finish(c *conn, err error) {
	p.conns.Finish(c, err)
}

// sever ends the channels. The caller holds p.mu.
func (c *conn) sever() {
	// First the receiving side: what it has acknowledged by then it has received, and nothing comes
	// later.
	for _, l := range append(c.leaves, c.in) {
		if l != nil {
			l.q.cut(l)
		}
	}
	c.in, c.leaves = nil, nil
	c.mu.Lock()
	c.kill()
	c.mu.Unlock()
}

// move gives a connection to a queue, nil for none. The caller holds p.mu.
func (p *Port) move(c *conn, to *rxQueue) {
	if l := c.in; l != nil {
		c.in = nil
		l.q.leave(l)
		c.leaves = append(c.leaves, l)
		c.ch.send(&record{kind: kindWithdraw, channel: l.id})
	}
	if c.q = to; to == nil {
		return
	}
	c.channel++
	l, err := to.newChannel(c, c.channel)
	if err != nil {
		p.report(c, err)
		return
	}
	c.in = l
	c.ch.send(&record{kind: kindOffer, channel: l.id, pair: l.pair, longest: to.longest()})
}

// accepted connects the queue pair of a channel to the sender's.
func (c *conn) accepted(r *record) error {
	p := c.port
	p.mu.Lock()
	defer p.mu.Unlock()
	l := c.in
	if l == nil || l.id != r.channel {
		return nil // it was taken back meanwhile
	}
	limit, err := l.q.connect(l, &r.pair)
	if err != nil {
		return err
	}
	c.ch.send(&record{kind: kindReady, channel: l.id, count: limit})
	return nil
}

// counted takes the sender's count of its messages on a channel: all there will be, or those so
// far, some of which may be lost.
func (c *conn) counted(r *record) error {
	p := c.port
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.kind == kindSent {
		if l := c.in; l != nil && l.id == r.channel {
			l.q.probed(l, r.count)
		}
		return nil
	}
	for i, l := range c.leaves {
		if l.id == r.channel {
			c.leaves = append(c.leaves[:i], c.leaves[i+1:]...)
			l.q.drained(l, r.count)
			return nil
		}
	}
	return nil // of a channel that never came to be
}

// report leaves a connection that has failed to the driver, for callers that hold a lock.
func (p *Port) report(c *conn, err error) { p.control.report(c, err) }
