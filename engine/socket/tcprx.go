package socket

import (
	"fmt"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/packet/burst"
)

// tcpRx is a receive queue of a TCPPort: it reads the connections that were given to it. It
// implements engine.RxDevice.
type tcpRx struct {
	engine.RxFront
	port *TCPPort

	err     error // why nothing more will come
	epoll   *sys.Epoll
	members map[uint32]*conn
	active  []*conn // that may have something, in turn
	done    []*conn // that were read to their end in this call; the owner's
	slots   slots
	pieces  []sys.Iovec
	watched bool    // engine.Events knows the epoll instance
	orphans []*conn // that Stop leaves to others
	fresh   [64]sys.EpollEvent
}

var _ engine.RxQueue = (*tcpRx)(nil)

// AddRxQueue implements engine.Port. A queue that is bound to a connection (RxSpec.Conn) takes it
// over from any other that is not.
func (p *TCPPort) AddRxQueue(spec engine.RxSpec) (engine.RxQueue, error) {
	p.rx.Lock()
	defer p.rx.Unlock()
	can := p.Capabilities()
	err := p.rx.Admit(&spec, &can)
	if err != nil {
		return nil, fmt.Errorf("socket: %s: %w", p.name, err)
	}
	id := spec.ID.Number()
	var bound *conn
	if spec.Conn != 0 {
		if bound = p.conns.Get(spec.Conn); bound == nil {
			return nil, failed(engine.ErrNotFound, "receive queue %d: connection %d", id, spec.Conn)
		}
		if bound.q != nil && bound.q.Spec().Conn != 0 {
			return nil, failed(engine.ErrInUse, "receive queue %d: connection %d is bound to queue %d", id, spec.Conn,
				bound.q.ID())
		}
	}
	pool := spec.Pools[0]
	q := &tcpRx{port: p, members: map[uint32]*conn{}}
	n := min(p.o.Batch, max(pool.Slots()/4, 1))
	q.pieces = make([]sys.Iovec, n)
	q.slots = newSlots(pool, burst.PoolSource(pool), n, func(i int, b []byte) { q.pieces[i].Set(b) })
	q.slots.limit(p.o.MaxPayload)
	if q.epoll, err = sys.NewEpoll(); err != nil {
		return nil, err
	}
	q.Start(spec, q)
	p.rx.Add(q)
	if bound != nil {
		if bound.q != nil {
			bound.q.lose(bound)
		}
		q.adopt(bound)
		return q, nil
	}
	for c := range p.conns.All() {
		if c.q == nil {
			q.adopt(c)
		}
	}
	if err := p.conns.Gone(); err != nil {
		q.fail(err)
	}
	return q, nil
}

// load is the number of connections.
func (q *tcpRx) load() (n int) {
	q.Do(func() { n = len(q.members) })
	return n
}

// adopt takes a connection over. The caller holds the set's lock.
func (q *tcpRx) adopt(c *conn) { q.Do(func() { q.join(c) }) }

func (q *tcpRx) join(c *conn) {
	c.q = q
	q.members[c.ID] = c
	c.active = false
	if c.ended {
		return // everything was read, by another queue
	}
	if q.epoll.Add(c.fd, sys.EventIn|sys.EventRdH|sys.EventEdge, uint64(c.ID)) != nil {
		q.push(c) // then it is looked at without being asked for
	}
	if len(q.members) == 1 {
		q.Wake()
	}
}

// lose gives a connection up. The caller holds the set's lock.
func (q *tcpRx) lose(c *conn) { q.Do(func() { q.forget(c) }) }

func (q *tcpRx) forget(c *conn) {
	if q.members[c.ID] != c {
		return
	}
	delete(q.members, c.ID)
	if !c.ended {
		q.epoll.Remove(c.fd)
	}
	c.active = false
	for i, o := range q.active {
		if o == c {
			q.active = append(q.active[:i], q.active[i+1:]...)
			break
		}
	}
}

// fail ends the queue when everything was taken.
func (q *tcpRx) fail(err error) {
	q.Do(func() {
		if q.err == nil {
			q.err = err
		}
	})
	q.Wake()
}

func (q *tcpRx) push(c *conn) {
	c.active = true
	q.active = append(q.active, c)
}

// TryRecv implements engine.RxQueue.
func (q *tcpRx) TryRecv(b *burst.Burst) (int, error) {
	n, err := q.RxFront.TryRecv(b)
	q.readOut()
	return n, err
}

// readOut ends connections that were read to their end, which takes the port's lock.
func (q *tcpRx) readOut() {
	for _, c := range q.done {
		q.port.readOut(c)
	}
	q.done = nil
}

// Collect implements engine.RxDevice.
func (q *tcpRx) Collect(b *burst.Burst) error {
	if q.admits(b) {
		q.gather(b)
	}
	if len(q.active) == 0 {
		return q.err
	}
	return nil
}

// admits reports whether packets of this queue can be added to b: there is a limit to the memories
// of one burst.
func (q *tcpRx) admits(b *burst.Burst) bool {
	if b.Builder().Owned(q.slots.src) {
		return true
	}
	n := b.Len()
	if b.Builder().Add(q.slots.src, burst.Segment{Handle: burst.NoHandle}) < 0 {
		return false
	}
	b.Truncate(n)
	return true
}

// gather reads from those connections that have something, in turn.
func (q *tcpRx) gather(b *burst.Burst) {
	if len(q.active) == 0 {
		q.look()
	}
	for len(q.active) > 0 && b.Room() > 0 {
		c := q.active[0]
		have := q.slots.fill()
		if have == 0 && c.cut == nil {
			break // what is there waits in the kernel
		}
		q.active = q.active[:copy(q.active, q.active[1:])]
		c.active = false
		if q.read(b, c, have) {
			q.push(c)
		}
	}
}

// look asks which connections have something. One alone is read without asking.
func (q *tcpRx) look() {
	if len(q.members) == 1 {
		for _, c := range q.members {
			if !c.ended {
				q.push(c)
			}
		}
		return
	}
	n, err := q.epoll.Wait(q.fresh[:], 0)
	q.Calls(1)
	if err != nil {
		return
	}
	for _, e := range q.fresh[:n] {
		c := q.members[uint32(e.Tag)]
		if c == nil || c.ended {
			continue
		}
		if e.Events&(sys.EventRdH|sys.EventHup|sys.EventErr) != 0 {
			c.hup = true
		}
		if !c.active {
			q.push(c)
		}
	}
}

// read reads once from a connection, into at most have slots, and reports whether there may be
// more.
func (q *tcpRx) read(b *burst.Burst, c *conn, have int) (more bool) {
	have = min(have, b.Room())
	if c.cut == nil && have > 0 {
		got, e := sys.Recvv(c.fd, q.pieces[:have])
		q.Calls(1)
		switch {
		case e == sys.EAGAIN:
			return false
		case e == sys.EINTR:
			return true
		case e != 0:
			c.cut = e
		case got > 0:
			n, bytes, size := 0, 0, int(q.slots.size)
			for bytes < got {
				k := min(size, got-bytes)
				h := q.slots.take(n)
				i := b.Builder().Add(q.slots.src, burst.Segment{Handle: h, Off: q.slots.pool.Offset(h), Len: uint32(k),
					Cap: q.slots.size})
				b.SetConn(i, c.ID)
				bytes += k
				n++
			}
			q.slots.used = n
			return got == have*size || c.hup
		}
	}
	// The end, in order behind the last byte.
	flags := burst.Last
	c.mu.Lock()
	if c.cut == nil && c.err != nil {
		c.cut = c.err
	}
	c.mu.Unlock()
	if c.cut != nil {
		flags |= burst.Truncated
	}
	i := b.Builder().Add(q.slots.src, burst.Segment{Handle: burst.NoHandle})
	b.SetConn(i, c.ID)
	b.Builder().SetReceived(i, 0, flags, 0)
	q.epoll.Remove(c.fd)
	c.ended = true
	q.done = append(q.done, c)
	return false
}

// readOut says what becomes of a connection that was read to its end.
func (p *TCPPort) readOut(c *conn) {
	if c.cut != nil {
		p.conns.Finish(c, c.cut)
		return
	}
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	p.sweep(c.ID)
}

// Watch implements engine.RxDevice.
func (q *tcpRx) Watch(w *engine.Waker) engine.Armed {
	if q.slots.fill() == 0 {
		return engine.ArmedPoll
	}
	if len(q.active) > 0 || q.err != nil {
		return engine.ArmedReady
	}
	return watch(q.epoll.FD(), &q.watched, w)
}

// Discard implements engine.RxQueue. Pieces of streams are counted, as they were read.
func (q *tcpRx) Discard() (int, error) {
	n, err := q.RxFront.Discard()
	q.readOut()
	return n, err
}

// Flush implements engine.RxDiscarder.
func (q *tcpRx) Flush() (n int) {
	b := burst.New(64)
	for range 1 << 12 {
		q.gather(b)
		if b.Len() == 0 {
			break
		}
		for i := range b.Len() {
			if b.PacketLen(i) > 0 { // the end of a stream is no piece
				n++
			}
		}
		b.Release()
	}
	return n
}

// Close implements engine.RxQueue. The bytes that the kernel has are for another queue, or wait for
// one.
func (q *tcpRx) Close() error {
	p := q.port
	p.rx.Lock()
	defer p.rx.Unlock()
	removed, err := p.rx.Remove(q)
	if removed && !p.rx.Closed() {
		for _, c := range q.orphans {
			(*tcpHost)(p).Assign(c)
		}
	}
	q.orphans = nil
	return err
}

// Stop implements engine.RxDevice.
func (q *tcpRx) Stop(engine.Drop) error {
	if q.watched {
		engine.Events.Remove(q.epoll.FD())
	}
	for _, c := range q.members {
		q.orphans = append(q.orphans, c)
	}
	for _, c := range q.orphans {
		q.forget(c)
		c.q = nil
	}
	q.slots.close()
	return q.epoll.Close()
}
