package socket

import (
	"fmt"
	"sync"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/conns"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/packet/burst"
)

// conn is one connection. What its queue reads from it is guarded by that queue's mutex, what is
// sent by mu.
type conn struct {
	conns.Conn
	port *TCPPort
	fd   int
	tag  uint64 // in events

	q *tcpRx // guarded by the port's mutex

	active bool  // it is on the queue's list of those that may have something
	hup    bool  // the kernel said that the peer has ended
	ended  bool  // everything was read
	cut    error // why reading failed

	mu     sync.Mutex
	dead   bool // closed
	shut   bool // nothing more is sent
	after  bool // to be shut when everything is sent
	over   bool // everything was read
	err    error
	out    conns.Waiting[*tcpSink]
	pieces [sendPieces]sys.Iovec
}

// send sends packets from to to-1 of b, or keeps what the kernel does not take now. All are taken.
func (c *conn) send(s *tcpSink, b *burst.Burst, from, to int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead || c.shut || c.after {
		s.lose(engine.DropDown, b.Builder().LivePart(from, to))
		return
	}
	off := 0
	if c.out.First() == nil {
		for from < to {
			next, rest, again := c.write(s, b, from, to, off)
			if c.shut {
				s.lose(engine.DropDown, b.Builder().LivePart(next, to))
				return
			}
			if from, off = next, rest; !again {
				break
			}
		}
	}
	for i := from; i < to; i++ {
		if b.Segments(i) == 0 {
			continue
		}
		c.out.Keep(s, b, i, off)
		off = 0
	}
}

// write makes one call for packets from to to-1 of b, less the first off bytes. It returns the
// first packet that has not left, how many bytes of it have, and whether to try again. Packets that
// have left are counted and their descriptors are free.
func (c *conn) write(s *tcpSink, b *burst.Burst, from, to, off int) (next, rest int, again bool) {
	v := c.pieces[:0]
	skip := off
	total := 0
gather:
	for i := from; i < to; i++ {
		for k := range b.Segments(i) {
			p := b.Bytes(i, k)
			if skip >= len(p) {
				skip -= len(p)
				continue
			}
			if p, skip = p[skip:], 0; len(v) == cap(v) {
				break gather
			}
			total += len(p)
			v = v[:len(v)+1]
			v[len(v)-1].Set(p)
		}
	}
	n := 0
	if total > 0 {
		var e sys.Errno
		n, e = sys.Sendv(c.fd, v, 0)
		s.sent.calls.Add(1)
		switch {
		case e == sys.EAGAIN || e == sys.EINTR || e == sys.ENOBUFS || e == sys.ENOMEM:
			return from, off, e == sys.EINTR
		case e != 0:
			c.fail(e)
			return from, off, false
		}
	}
	s.sent.bytes.Add(uint64(n))
	left, done := n+off, 0
	for next = from; next < to; next++ {
		if b.Segments(next) == 0 {
			continue
		}
		size := b.PacketLen(next)
		if left < size {
			break
		}
		left -= size
		done++
	}
	if done > 0 {
		s.sent.packets.Add(uint64(done))
		s.box.Complete(done)
	}
	if next == to {
		left = 0
	}
	return next, left, n == total && next < to
}

// fail notes that nothing can be sent any more. The queue that reads the connection ends it; it may
// have more to read.
func (c *conn) fail(err error) {
	c.shut = true
	if c.err == nil {
		c.err = err
	}
	sys.Shutdown(c.fd)
}

// flush sends what waits, as much as the kernel takes. It reports whether the connection is to be
// closed now.
func (c *conn) flush() (leave bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for h := c.out.First(); h != nil && !c.dead && !c.shut; h = c.out.First() {
		next, off, again := c.write(h.Queue, h.Burst, h.From, h.Burst.Len(), h.Off)
		if c.shut {
			break
		}
		if next == h.Burst.Len() {
			c.out.Pop()
			continue
		}
		h.Burst.Builder().ReleasePart(h.From, next)
		h.From, h.Off = next, off
		if !again {
			return false
		}
	}
	if c.shut {
		c.drop(engine.DropDown, nil)
	} else if c.after && !c.dead {
		c.shut = true
		sys.CloseWrite(c.fd)
	}
	return c.spent()
}

// spent reports whether a connection has done everything it was for.
func (c *conn) spent() bool {
	return c.over && !c.dead && c.out.First() == nil && (c.shut || !c.port.o.HalfOpen)
}

// drop drops what waits, of one sink or of all. A connection on which a packet was cut in its
// middle is broken then.
func (c *conn) drop(why engine.Drop, of *tcpSink) {
	if h := c.out.First(); h != nil && h.Off > 0 && (of == nil || h.Queue == of) && !c.dead && !c.shut {
		c.fail(fmt.Errorf("socket: the transmit queue was closed in the middle of a packet: %w", engine.ErrClosed))
	}
	c.out.Drop(of, why, (*tcpSink).lose)
}

// Ready implements engine.Watcher: there is room to send, or the connection has ended.
func (c *conn) Ready(es uint32) {
	leave := false
	if es&(sys.EventOut|sys.EventErr|sys.EventHup) != 0 {
		leave = c.flush()
	}
	if leave {
		c.port.conns.Finish(c, nil)
		return
	}
	if es&(sys.EventErr|sys.EventHup) == 0 {
		return
	}
	c.port.rx.Lock()
	defer c.port.rx.Unlock()
	if c.q == nil && !c.Over { // no queue reads it, and would notice
		c.port.conns.End(c, sys.SocketError(c.fd))
	}
}

// CloseWrite ends the sending direction of a connection, after what waits to be sent on it. Later
// packets for it are dropped.
func (p *TCPPort) CloseWrite(id uint32) error {
	err := p.conns.With(id, func(c *conn) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		switch {
		case c.shut:
			return nil
		case c.out.First() != nil:
			c.after = true
			return nil
		}
		c.shut = true
		return sys.CloseWrite(c.fd)
	})
	p.sweep(id)
	return err
}

// sweep closes a connection that is spent.
func (p *TCPPort) sweep(id uint32) {
	p.conns.With(id, func(c *conn) error {
		c.mu.Lock()
		spent := c.spent()
		c.mu.Unlock()
		if spent {
			p.conns.End(c, nil)
		}
		return nil
	})
}
