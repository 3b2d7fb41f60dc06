package socket

import (
	"fmt"
	"net/netip"
	"sync"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/sys"
)

// conn is one connection. What its queue reads from it is guarded by that queue's mutex, what is sent by mu.
type conn struct {
	id            uint32
	port          *TCPPort
	fd            int
	tag           uint64 // in events
	local, remote netip.AddrPort

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
	out    []held // what waits to be sent, in order
	spare  []*burst.Burst
	pieces [sendPieces]sys.Iovec
}

// held are packets of one queue that wait; those before from have left, and off bytes of that one.
type held struct {
	b    *burst.Burst
	from int
	off  int
	s    *tcpSink
}

// heldBurst is the room of a burst of packets that wait, in packets and in segments.
const heldBurst = 64

// send sends packets from to to-1 of b, or keeps what the kernel does not take now. All are taken.
func (c *conn) send(s *tcpSink, b *burst.Burst, from, to int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead || c.shut || c.after {
		s.lose(engine.DropDown, uint64(b.Builder().LivePart(from, to)))
		return
	}
	off := 0
	if len(c.out) == 0 {
		for from < to {
			next, rest, again := c.write(s, b, from, to, off)
			if c.shut {
				s.lose(engine.DropDown, uint64(b.Builder().LivePart(next, to)))
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
		c.keep(s, b, i, off)
		off = 0
	}
}

// write makes one call for packets from to to-1 of b, less the first off bytes. It returns the first packet that has not left, how
// many bytes of it have, and whether to try again. Packets that have left are counted and their descriptors are free.
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

// fail notes that nothing can be sent any more. The queue that reads the connection ends it; it may have more to read.
func (c *conn) fail(err error) {
	c.shut = true
	if c.err == nil {
		c.err = err
	}
	sys.Shutdown(c.fd)
}

// keep moves a packet to what waits.
func (c *conn) keep(s *tcpSink, b *burst.Burst, i, off int) {
	if n := len(c.out); n > 0 && off == 0 && c.out[n-1].s == s && b.Take(c.out[n-1].b, i) {
		return
	}
	var to *burst.Burst
	if n := len(c.spare); n > 0 && b.Segments(i) <= c.spare[n-1].Room() {
		to, c.spare = c.spare[n-1], c.spare[:n-1]
	} else {
		to = burst.NewSegmented(heldBurst, max(heldBurst, b.Segments(i)))
	}
	b.Take(to, i)
	c.out = append(c.out, held{b: to, off: off, s: s})
}

// flush sends what waits, as much as the kernel takes. It reports whether the connection is to be closed now.
func (c *conn) flush() (leave bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.out) > 0 && !c.dead && !c.shut {
		h := &c.out[0]
		next, off, again := c.write(h.s, h.b, h.from, h.b.Len(), h.off)
		if c.shut {
			break
		}
		if next < h.b.Len() {
			h.b.Builder().ReleasePart(h.from, next)
			h.from, h.off = next, off
			if !again {
				return false
			}
			continue
		}
		c.empty(h.b)
		c.out = c.out[:copy(c.out, c.out[1:])]
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
	return c.over && !c.dead && len(c.out) == 0 && (c.shut || !c.port.o.HalfOpen)
}

// empty gives a burst's packets back and keeps it.
func (c *conn) empty(b *burst.Burst) {
	b.Release()
	if len(c.spare) < 4 {
		c.spare = append(c.spare, b)
	}
}

// drop drops what waits, of one sink or of all. A connection on which a packet was cut in its middle is broken then.
func (c *conn) drop(why engine.Drop, of *tcpSink) {
	n := 0
	for i, h := range c.out {
		if of != nil && h.s != of {
			c.out[n] = h
			n++
			continue
		}
		h.s.lose(why, uint64(h.b.Builder().LivePart(h.from, h.b.Len())))
		if i == 0 && h.off > 0 && !c.dead && !c.shut {
			c.fail(fmt.Errorf("socket: the transmit queue was closed in the middle of a packet: %w", engine.ErrClosed))
		}
		c.empty(h.b)
	}
	clear(c.out[n:])
	c.out = c.out[:n]
}

// ready implements watcher: there is room to send, or the connection has ended.
func (c *conn) ready(es uint32) {
	leave := false
	if es&(sys.EventOut|sys.EventErr|sys.EventHup) != 0 {
		leave = c.flush()
	}
	if leave {
		c.port.finish(c, nil)
		return
	}
	if es&(sys.EventErr|sys.EventHup) == 0 {
		return
	}
	c.port.rx.Lock()
	defer c.port.rx.Unlock()
	if c.q == nil { // nobody reads it who would notice
		c.port.end(c, sys.SocketError(c.fd))
	}
}

// ConnInfo is what is known of a connection.
type ConnInfo struct {
	ID            uint32
	Local, Remote netip.AddrPort
	Queue         int  // receive queue that its bytes come to, -1 while there is none
	Ended         bool // the peer has ended its direction
	Waiting       int  // packets that wait to be sent
}

func (c *conn) info() ConnInfo {
	i := ConnInfo{ID: c.id, Local: c.local, Remote: c.remote, Queue: -1}
	if c.q != nil {
		i.Queue = c.q.ID()
		c.q.Do(func() { i.Ended = c.ended })
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.out {
		i.Waiting += h.b.Builder().LivePart(h.from, h.b.Len())
	}
	return i
}

// Conn is what is known of a connection; false when there is none of that id (any more).
func (p *TCPPort) Conn(id uint32) (ConnInfo, bool) {
	p.rx.Lock()
	defer p.rx.Unlock()
	c := p.conns[id]
	if c == nil {
		return ConnInfo{}, false
	}
	return c.info(), true
}

// Conns are the connections, in no order.
func (p *TCPPort) Conns() []ConnInfo {
	p.rx.Lock()
	defer p.rx.Unlock()
	out := make([]ConnInfo, 0, len(p.conns))
	for _, c := range p.conns {
		out = append(out, c.info())
	}
	return out
}

// Find is the id of the connection to a peer; 0 when there is none. For a port that connects, it is that of the address that
// it connects to.
func (p *TCPPort) Find(remote netip.AddrPort) uint32 {
	p.table.RLock()
	defer p.table.RUnlock()
	return p.byAddr[netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port())]
}

func (p *TCPPort) with(id uint32, do func(c *conn) error) error {
	p.rx.Lock()
	defer p.rx.Unlock()
	c := p.conns[id]
	if c == nil {
		return failed(engine.ErrNotFound, "connection %d", id)
	}
	return do(c)
}

// CloseWrite ends the sending direction of a connection, after what waits to be sent on it. Later packets for it are dropped.
func (p *TCPPort) CloseWrite(id uint32) error {
	err := p.with(id, func(c *conn) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		switch {
		case c.shut:
			return nil
		case len(c.out) > 0:
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
	p.with(id, func(c *conn) error {
		c.mu.Lock()
		spent := c.spent()
		c.mu.Unlock()
		if spent {
			p.end(c, nil)
		}
		return nil
	})
}

// CloseConn closes a connection at once. What waits to be sent on it is dropped.
func (p *TCPPort) CloseConn(id uint32) error {
	return p.with(id, func(c *conn) error {
		p.end(c, engine.ErrClosed)
		return nil
	})
}

// SetOption sets an option of a connection by its numbers (man 2 setsockopt).
func (p *TCPPort) SetOption(id uint32, level, name, value int) error {
	return p.with(id, func(c *conn) error { return sys.SetOption(c.fd, level, name, value) })
}

// Option reads an option of a connection by its numbers (man 2 getsockopt).
func (p *TCPPort) Option(id uint32, level, name int) (v int, err error) {
	err = p.with(id, func(c *conn) (err error) {
		v, err = sys.Option(c.fd, level, name)
		return err
	})
	return v, err
}
