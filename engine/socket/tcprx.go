package socket

import (
	"sync"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/metrics"
)

// tcpRx is a receive queue of a TCPPort: it reads the connections that were given to it.
type tcpRx struct {
	port *TCPPort
	id   int
	conn uint32 // that it is bound to, 0 for any

	mu      sync.Mutex
	closed  bool
	err     error // why nothing more will come
	epoll   *sys.Epoll
	members map[uint32]*conn
	active  []*conn // that may have something, in turn
	done    []*conn // that were read to their end in this call
	slots   slots
	pieces  []sys.Iovec
	waker   *engine.Waker // that Arm was given last
	watched bool          // engine.Events knows the epoll instance
	retry   engine.Retry

	packets, bytes, polls, empty, calls metrics.Counter
	drops                               engine.DropCounters
	fresh                               [64]sys.EpollEvent
	flushed                             struct{ packets, bytes uint64 } // that Discard threw away
}

var _ engine.RxQueue = (*tcpRx)(nil)

// AddRxQueue implements engine.Port. A queue that is bound to a connection (RxSpec.Conn) takes it over from any other that is not.
func (p *TCPPort) AddRxQueue(spec engine.RxSpec) (engine.RxQueue, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, engine.ErrClosed
	}
	id, err := freeID(spec.ID, maxQueues, p.rx)
	if err != nil {
		return nil, err
	}
	if err := checkRx(spec, id); err != nil {
		return nil, err
	}
	if spec.Timestamps || spec.HardwareTime {
		return nil, failed(engine.ErrUnsupported, "receive queue %d: a byte stream has no receive times", id)
	}
	var bound *conn
	if spec.Conn != 0 {
		if bound = p.conns[spec.Conn]; bound == nil {
			return nil, failed(engine.ErrNotFound, "receive queue %d: connection %d", id, spec.Conn)
		}
		if bound.q != nil && bound.q.conn != 0 {
			return nil, failed(engine.ErrInUse, "receive queue %d: connection %d is bound to queue %d", id, spec.Conn, bound.q.id)
		}
	}
	pool := spec.Pools[0]
	q := &tcpRx{port: p, id: id, conn: spec.Conn, members: map[uint32]*conn{}}
	n := min(p.o.Batch, max(pool.Slots()/4, 1))
	q.pieces = make([]sys.Iovec, n)
	q.slots = newSlots(pool, burst.PoolSource(pool), n, func(i int, b []byte) { q.pieces[i].Set(b) }, func(to, from int) { q.pieces[to] = q.pieces[from] })
	q.slots.limit(p.o.MaxPayload)
	if q.epoll, err = sys.NewEpoll(); err != nil {
		return nil, err
	}
	p.rx = append(p.rx, q)
	if bound != nil {
		if bound.q != nil {
			bound.q.lose(bound)
		}
		q.adopt(bound)
		return q, nil
	}
	for _, c := range p.conns {
		if c.q == nil {
			q.adopt(c)
		}
	}
	if p.gone.Load() {
		q.fail(p.cause)
	}
	return q, nil
}

func (q *tcpRx) ID() int { return q.id }

// load is the number of connections.
func (q *tcpRx) load() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.members)
}

// adopt takes a connection over. The caller holds the port's mutex.
func (q *tcpRx) adopt(c *conn) {
	q.mu.Lock()
	defer q.mu.Unlock()
	c.q = q
	q.members[c.id] = c
	c.active = false
	if c.ended {
		return // everything was read, by another queue
	}
	if q.epoll.Add(c.fd, sys.EventIn|sys.EventRdH|sys.EventEdge, uint64(c.id)) != nil {
		q.push(c) // then it is looked at without being asked for
	}
	if q.waker != nil && len(q.members) == 1 {
		q.waker.Wake()
	}
}

// lose gives a connection up. The caller holds the port's mutex.
func (q *tcpRx) lose(c *conn) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.forget(c)
}

func (q *tcpRx) forget(c *conn) {
	if q.members[c.id] != c {
		return
	}
	delete(q.members, c.id)
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
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err == nil {
		q.err = err
	}
	if q.waker != nil {
		q.waker.Wake()
	}
}

func (q *tcpRx) push(c *conn) {
	c.active = true
	q.active = append(q.active, c)
}

// TryRecv implements engine.RxQueue.
func (q *tcpRx) TryRecv(b *burst.Burst) (int, error) {
	if b == nil {
		return 0, engine.ErrNil
	}
	q.mu.Lock()
	q.polls.Inc()
	n, bytes := 0, 0
	if b.Room() > 0 && !q.closed && q.admits(b) {
		n, bytes = q.gather(b)
	}
	var err error
	switch {
	case n > 0:
		q.packets.Add(uint64(n))
		q.bytes.Add(uint64(bytes))
	case q.closed:
		err = engine.ErrClosed
	case b.Room() > 0 && len(q.active) == 0:
		err = q.err
	}
	if n == 0 {
		q.empty.Inc()
	}
	done := q.done
	q.done = nil
	q.mu.Unlock()
	for _, c := range done {
		q.port.readOut(c)
	}
	return n, err
}

// admits reports whether packets of this queue can be added to b: there is a limit to the memories of one burst.
func (q *tcpRx) admits(b *burst.Burst) bool {
	if b.Owned(q.slots.src) {
		return true
	}
	n := b.Len()
	if b.Add(q.slots.src, burst.Segment{Handle: burst.NoHandle}) < 0 {
		return false
	}
	b.Truncate(n)
	return true
}

// gather reads from those connections that have something, in turn.
func (q *tcpRx) gather(b *burst.Burst) (n, bytes int) {
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
		k, size, more := q.read(b, c, have)
		n += k
		bytes += size
		if more {
			q.push(c)
		}
	}
	return n, bytes
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
	q.calls.Inc()
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

// read reads once from a connection, into at most have slots, and reports whether there may be more.
func (q *tcpRx) read(b *burst.Burst, c *conn, have int) (n, bytes int, more bool) {
	have = min(have, b.Room())
	if c.cut == nil && have > 0 {
		got, e := sys.Recvv(c.fd, q.pieces[:have])
		q.calls.Inc()
		switch {
		case e == sys.EAGAIN:
			return 0, 0, false
		case e == sys.EINTR:
			return 0, 0, true
		case e != 0:
			c.cut = e
		case got > 0:
			size := int(q.slots.size)
			for bytes < got {
				k := min(size, got-bytes)
				h := q.slots.take(n)
				i := b.Add(q.slots.src, burst.Segment{Handle: h, Off: q.slots.pool.Offset(h), Len: uint32(k), Cap: q.slots.size})
				b.SetConn(i, c.id)
				bytes += k
				n++
			}
			q.slots.used = n
			return n, bytes, got == have*size || c.hup
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
	i := b.Add(q.slots.src, burst.Segment{Handle: burst.NoHandle})
	b.SetConn(i, c.id)
	b.SetReceived(i, 0, flags, 0)
	q.epoll.Remove(c.fd)
	c.ended = true
	q.done = append(q.done, c)
	return 1, 0, false
}

// readOut says what becomes of a connection that was read to its end.
func (p *TCPPort) readOut(c *conn) {
	if c.cut != nil {
		p.finish(c, c.cut)
		return
	}
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	p.sweep(c.id)
}

// Arm implements engine.RxQueue.
func (q *tcpRx) Arm(w *engine.Waker) (ready bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return true
	}
	q.waker = w
	if q.slots.fill() == 0 {
		q.retry.Arm(w)
		return false
	}
	if len(q.active) > 0 || q.err != nil {
		return true
	}
	if readable(q.epoll.FD()) {
		return true
	}
	if !q.watched {
		if engine.Events.Add(q.epoll.FD()) != nil {
			return true
		}
		q.watched = true
	}
	return engine.Events.Arm(q.epoll.FD(), w) != nil
}

// Discard implements engine.RxQueue. Pieces of streams are counted, as they were read.
func (q *tcpRx) Discard() (int, error) {
	b := burst.New(heldBurst)
	total := 0
	for range 1 << 12 {
		n, err := q.TryRecv(b)
		if n == 0 {
			if total > 0 {
				err = nil
			}
			return total, err
		}
		q.mu.Lock()
		for i := range n {
			if b.PacketLen(i) > 0 {
				total++
				q.drops.Inc(engine.DropFlushed)
			}
		}
		q.flushed.packets += uint64(n)
		q.flushed.bytes += uint64(b.TotalLen())
		q.mu.Unlock()
		b.Release()
	}
	return total, nil
}

// Stats implements engine.RxQueue.
func (q *tcpRx) Stats(s *engine.RxStats) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stats(s)
}

func (q *tcpRx) stats(s *engine.RxStats) {
	*s = engine.RxStats{Packets: q.packets.Load() - q.flushed.packets, Bytes: q.bytes.Load() - q.flushed.bytes,
		Polls: q.polls.Load(), Empty: q.empty.Load(), Calls: q.calls.Load()}
	q.drops.AddTo(&s.Drops)
}

// Close implements engine.RxQueue. The bytes that the kernel has are for another queue, or wait for one.
func (q *tcpRx) Close() error {
	p := q.port
	p.mu.Lock()
	defer p.mu.Unlock()
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return nil
	}
	q.closed = true
	if q.watched {
		engine.Events.Remove(q.epoll.FD())
	}
	q.retry.Stop()
	orphans := make([]*conn, 0, len(q.members))
	for _, c := range q.members {
		orphans = append(orphans, c)
	}
	for _, c := range orphans {
		q.forget(c)
		c.q = nil
	}
	q.slots.close()
	err := q.epoll.Close()
	if q.waker != nil {
		q.waker.Wake()
	}
	var s engine.RxStats
	q.stats(&s)
	q.mu.Unlock()
	p.old.Rx.Add(&s)
	for i, o := range p.rx {
		if o == q {
			p.rx = append(p.rx[:i], p.rx[i+1:]...)
			break
		}
	}
	if !p.closed {
		for _, c := range orphans {
			p.assign(c)
		}
	}
	return err
}
