package verbs

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/metrics"
)

// rxQueue is a receive queue: a completion queue, and buffers (a shared receive queue) for all connections that belong to it.
type rxQueue struct {
	port  *Port
	id    int
	conn  uint32 // that it is bound to, 0 for any
	depth int

	mu       sync.Mutex
	closed   bool
	buried   bool
	err      error       // why nothing more will come
	broken   atomic.Bool // its completion queue is of no use any more: connections go to others
	events   *ibv.Channel
	cq       *ibv.CQ
	srq      *ibv.SRQ
	chain    *ibv.RecvChain
	slots    *receives
	lanes    map[uint32]*inLane // by queue pair number
	last     *inLane            // whose message was the last one
	wc       []ibv.WC
	arrived  []arrival // messages that the application has not taken: a ring
	first, n int
	watched  bool // engine.Events knows the channel
	armed    bool // the completion queue was, and its event was not taken
	waker    *engine.Waker
	retry    engine.Retry
	over     chan struct{} // closed when it is closed and no sender can reach its memory
	few      bool          // fewer buffers than an eighth are posted
	flushers []mem.Flusher // of accelerators whose memory messages are received into
	unseen   bool          // there are messages that they may not see yet

	packets, bytes, polls, empty metrics.Counter
	drops                        engine.DropCounters
}

// arrival is a message in a buffer.
type arrival struct {
	lane *inLane
	id   uint32 // of the receive
	len  uint32 // with what is in front of the message
	imm  uint32
	what uint8
}

const (
	anArrival    = iota
	aWrite       // the peer wrote to memory of this side, and says so: the buffer is empty
	pollAtOnce   = 64
	defaultDepth = 1024
)

var _ engine.RxQueue = (*rxQueue)(nil)

// ID implements engine.RxQueue.
func (q *rxQueue) ID() int { return q.id }

// load is the number of connections.
func (q *rxQueue) load() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.lanes)
}

// fail says that nothing more will come, and why.
func (q *rxQueue) fail(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err == nil {
		q.err = err
	}
	q.wake()
}

func (q *rxQueue) wake() {
	if q.waker != nil {
		q.waker.Wake()
	}
}

// post gives the device buffers, as many as there are slots and room, in as few calls as there can be.
func (q *rxQueue) post() error {
	for {
		q.chain.Reset()
		for q.chain.Len() < refill && q.slots.fill(q.chain) {
		}
		n := q.chain.Len()
		if n == 0 {
			return nil
		}
		if _, err := q.srq.PostRecv(q.chain); err != nil {
			return q.refused("posting buffers", err) // nothing of the kind is due: the chain is no longer than the room
		}
		if n < refill {
			return nil
		}
	}
}

// look takes what has arrived off the device, and reports whether there was anything.
func (q *rxQueue) look() bool {
	some := false
	for q.n < len(q.arrived) {
		n, err := q.cq.Poll(q.wc[:min(len(q.wc), len(q.arrived)-q.n)])
		if err != nil {
			q.failed(nil, err)
			return some
		}
		for i := range n {
			q.take(&q.wc[i])
		}
		some = some || n > 0
		if n < len(q.wc) {
			break
		}
	}
	return some
}

// take takes one completion.
func (q *rxQueue) take(wc *ibv.WC) {
	l := q.last
	if l == nil || l.qpn != wc.QPN() {
		if l = q.lanes[wc.QPN()]; l != nil {
			q.last = l
		}
	}
	id := uint32(wc.ID())
	q.slots.came()
	if s := wc.Status(); s != ibv.Success {
		q.slots.free(id)
		if s != ibv.WRFlushErr && l != nil {
			if s == ibv.LocLenErr {
				q.drops.Inc(engine.DropTooLong)
			}
			q.failed(l, fmt.Errorf("receiving: %w", wc.Err()))
		}
		return
	}
	if l == nil {
		q.slots.free(id) // of a queue pair that is gone, and whose messages were counted then
		return
	}
	if l.choosy && !l.from(wc.SrcQP()) {
		q.slots.free(id)
		q.drops.Inc(engine.DropNoRule)
		return
	}
	a := arrival{lane: l, id: id, len: uint32(wc.Len()), imm: wc.Imm()}
	l.g.received++
	if wc.Opcode() == ibv.OpRecvWrite {
		a.what, a.len = aWrite, 0
	} else if l.numbered {
		q.gap(l, a.imm)
	}
	if q.closed {
		q.slots.free(id)
		if a.what == aWrite { // what was written is there
			q.port.wrote(l.c, a.imm)
		} else {
			q.drops.Inc(engine.DropClosed)
		}
		return
	}
	q.arrived[(q.first+q.n)%len(q.arrived)] = a
	q.n++
	q.unseen = len(q.flushers) > 0
}

// show makes the messages that arrived visible to the accelerators whose memory they are in, once for all of them. Those that
// cannot be shown are dropped.
func (q *rxQueue) show() bool {
	if !q.unseen {
		return true
	}
	q.unseen = false
	for _, f := range q.flushers {
		if err := f.Flush(); err != nil {
			q.err = failed(engine.ErrDown, "receive queue %d: an accelerator does not take what was received into its memory: %v", q.id, err)
			q.throw(engine.DropDown)
			return false
		}
	}
	return true
}

// gap counts messages that were lost in front of one with that number, as far as numbers tell.
func (q *rxQueue) gap(l *inLane, number uint32) {
	if missing := int32(number + 1 - uint32(l.g.received)); missing > 0 {
		q.drops.Add(engine.DropNIC, uint64(missing))
		l.g.received += uint64(missing)
	} else if missing < 0 {
		l.g.received-- // it was given up, and comes after all
	}
}

// failed has the driver end a connection that failed; all of them if l is nil.
func (q *rxQueue) failed(l *inLane, err error) {
	if l != nil {
		q.port.report(l.c, err)
		return
	}
	for _, l := range q.lanes {
		q.port.report(l.c, err)
	}
}

// TryRecv implements engine.RxQueue.
func (q *rxQueue) TryRecv(b *burst.Burst) (int, error) {
	if b == nil {
		return 0, engine.ErrNil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.polls.Inc()
	n, bytes := 0, 0
	if !q.closed && b.Room() > 0 {
		looked := false
		for b.Room() > 0 {
			if q.n == 0 {
				if looked || !q.look() {
					break
				}
				looked = true
				continue
			}
			if !q.show() {
				break
			}
			a := &q.arrived[q.first]
			size, ok := q.give(b, a)
			if !ok {
				break
			}
			q.first = (q.first + 1) % len(q.arrived)
			q.n--
			if size >= 0 {
				n, bytes = n+1, bytes+size
			}
		}
		q.again()
	}
	var err error
	switch {
	case n > 0:
		q.packets.Add(uint64(n))
		q.bytes.Add(uint64(bytes))
	case q.closed:
		err = engine.ErrClosed
	case b.Room() > 0 && q.n == 0:
		err = q.err
	}
	if n == 0 {
		q.empty.Inc()
	}
	return n, err
}

// give adds a message to b, and returns its length; a negative one if it was no packet, or was dropped. It is false when there is no room.
func (q *rxQueue) give(b *burst.Burst, a *arrival) (int, bool) {
	if a.what == aWrite {
		q.slots.free(a.id)
		q.port.wrote(a.lane.c, a.imm)
		return -1, true
	}
	i := q.slots.deliver(b, a.id, a.len)
	switch {
	case i >= 0:
		b.SetConn(i, a.lane.c.id)
		return b.PacketLen(i), true
	case i == lostInBurst:
		q.drops.Inc(engine.DropTooLong)
		return -1, true
	case b.Len() == 0:
		q.slots.free(a.id)
		q.drops.Inc(engine.DropTooLong)
		return -1, true
	}
	return 0, false
}

// again gives the device new buffers and tells senders of them.
func (q *rxQueue) again() {
	few := q.slots.posted < len(q.arrived)/8
	if few && !q.few {
		q.port.counts.low.Add(1)
	}
	q.few = few
	if err := q.post(); err != nil {
		q.failed(nil, err)
	}
	for _, l := range q.lanes {
		q.grant(l)
	}
}

// Arm implements engine.RxQueue.
func (q *rxQueue) Arm(w *engine.Waker) (ready bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return true
	}
	q.waker = w
	if q.n > 0 || q.err != nil {
		return true
	}
	return q.await(w)
}

// await has w woken when something comes, or is true when something is there. The caller holds q.mu.
func (q *rxQueue) await(w *engine.Waker) (ready bool) {
	if q.armed { // there may be an event of arrivals that were seen since
		if _, _, err := q.events.Next(); err != nil {
			return true
		}
	}
	if err := q.cq.Arm(false); err != nil {
		return true
	}
	q.armed = true
	if q.look(); q.n > 0 {
		return true
	}
	if q.again(); q.slots.posted == 0 {
		q.retry.Arm(w) // nobody tells when there are slots again
	}
	if !q.watched {
		if engine.Events.Add(q.events.FD()) != nil {
			return true
		}
		q.watched = true
	}
	return engine.Events.Arm(q.events.FD(), w) != nil
}

// Discard implements engine.RxQueue.
func (q *rxQueue) Discard() (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return 0, engine.ErrClosed
	}
	n := 0
	for range 1 << 8 { // more keeps coming
		if q.look(); q.n == 0 {
			break
		}
		n += q.throw(engine.DropFlushed)
		q.again()
	}
	return n, nil
}

// throw throws away what has arrived.
func (q *rxQueue) throw(why engine.Drop) (n int) {
	for ; q.n > 0; q.n-- {
		a := &q.arrived[q.first]
		q.first = (q.first + 1) % len(q.arrived)
		q.slots.free(a.id)
		if a.what == aWrite {
			q.port.wrote(a.lane.c, a.imm)
			continue
		}
		q.drops.Inc(why)
		n++
	}
	return n
}

// Stats implements engine.RxQueue.
func (q *rxQueue) Stats(s *engine.RxStats) {
	*s = engine.RxStats{Packets: q.packets.Load(), Bytes: q.bytes.Load(), Polls: q.polls.Load(), Empty: q.empty.Load()}
	q.drops.AddTo(&s.Drops)
}
