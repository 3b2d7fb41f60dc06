package rdma

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/rdmadev"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// rxQueue is a receive queue: a completion queue, and buffers (a shared receive queue) for all
// connections that belong to it. It implements engine.RxDevice.
type rxQueue struct {
	engine.RxFront
	port *Port

	mu      sync.Mutex // of what follows; taken behind the front's
	closed  bool
	retired bool
	err     error       // why nothing more will come
	broken  atomic.Bool // its completion queue is of no use any more: connections go to others
	events  *ibv.Channel
	cq      *ibv.CQ
	srq     *ibv.SRQ
	recvs   *rdmadev.Receives
	layout  rdmadev.Layout
	// bytes in front of a message that are not the sender's: the routing header of a datagram
	skip     uint32
	grh      bool                  // which the application gets, too
	channels map[uint32]*rxChannel // by queue pair number
	last     *rxChannel            // whose message was the last one
	wc       []ibv.WC
	arrived  []arrival // messages that the application has not taken: a ring
	first, n int
	watched  bool          // engine.Events knows the completion channel
	armed    bool          // the completion queue was, and its event was not taken
	retry    engine.Retry  // of a closed queue without a posted buffer
	over     chan struct{} // closed when it is closed and no sender can reach its memory
	few      bool          // fewer buffers than an eighth are posted
	flushers []mem.Flusher // of accelerators whose memory messages are received into
	unseen   bool          // there are messages that they may not see yet

	late engine.DropCounters // what was dropped after it was closed
}

// arrival is a message in a buffer.
type arrival struct {
	channel *rxChannel
	id      uint32 // of the receive
	len     uint32 // with what is in front of the message
}

const pollAtOnce = 64

var (
	_ engine.RxQueue     = (*rxQueue)(nil)
	_ engine.RxDevice    = (*rxQueue)(nil)
	_ engine.RxDiscarder = (*rxQueue)(nil)
)

// drop counts messages. The caller holds q.mu.
func (q *rxQueue) drop(why engine.Drop, n uint64) {
	if q.closed {
		q.late.Add(why, n)
		return
	}
	q.Drop(why, n)
}

// Stats implements engine.RxQueue.
func (q *rxQueue) Stats(s *engine.RxStats) {
	q.RxFront.Stats(s)
	q.late.AddTo(&s.Drops)
}

// load is the number of connections, -1 where it takes none any more.
func (q *rxQueue) load() int {
	if q.broken.Load() {
		return -1
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.channels)
}

// fail says that nothing more will come, and why.
func (q *rxQueue) fail(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err == nil {
		q.err = err
	}
	q.Wake()
}

// post gives the device buffers, as many as there are slots and room.
func (q *rxQueue) post() error {
	if err := q.recvs.Post(q.srq); err != nil {
		return q.refused("posting buffers", err) // nothing of the kind is due: there are as many as the device takes
	}
	return nil
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
		if l = q.channels[wc.QPN()]; l != nil {
			q.last = l
		}
	}
	id := uint32(wc.ID())
	q.recvs.Came()
	if s := wc.Status(); s != ibv.Success {
		q.recvs.Free(id)
		if s != ibv.WRFlushErr && l != nil {
			if s == ibv.LocLenErr {
				q.drop(engine.DropTooLong, 1)
			}
			q.failed(l, fmt.Errorf("receiving: %w", wc.Err()))
		}
		return
	}
	if l == nil {
		q.recvs.Free(id) // of a queue pair that is gone, and whose messages were counted then
		return
	}
	if l.choosy && !l.from(wc.SrcQP()) {
		q.recvs.Free(id)
		q.drop(engine.DropNoRule, 1)
		return
	}
	if wc.Opcode() == ibv.OpRecvWrite {
		q.recvs.Free(id)
		q.failed(l, errWrite)
		return
	}
	l.g.received++
	if l.numbered {
		q.gap(l, wc.Imm())
	}
	if q.closed {
		q.recvs.Free(id)
		q.drop(engine.DropClosed, 1)
		return
	}
	q.arrived[(q.first+q.n)%len(q.arrived)] = arrival{channel: l, id: id, len: uint32(wc.Len())}
	q.n++
	q.unseen = len(q.flushers) > 0
}

// show makes the messages that arrived visible to the accelerators whose memory they are in, once
// for all of them. Those that cannot be shown are dropped.
func (q *rxQueue) show() bool {
	if !q.unseen {
		return true
	}
	q.unseen = false
	for _, f := range q.flushers {
		if err := f.Flush(); err != nil {
			q.err = failed(engine.ErrDown,
				"receive queue %d: an accelerator does not take what was received into its memory: %v", q.ID(), err)
			q.drop(engine.DropDown, uint64(q.throw()))
			return false
		}
	}
	return true
}

// gap counts messages that were lost in front of one with that number, as far as numbers tell.
func (q *rxQueue) gap(l *rxChannel, number uint32) {
	if missing := int32(number + 1 - uint32(l.g.received)); missing > 0 {
		q.drop(engine.DropNIC, uint64(missing))
		l.g.received += uint64(missing)
	} else if missing < 0 {
		l.g.received-- // it was given up, and comes after all
	}
}

// failed has the driver end a connection that failed; all of them if l is nil.
func (q *rxQueue) failed(l *rxChannel, err error) {
	if l != nil {
		q.port.report(l.c, err)
		return
	}
	for _, l := range q.channels {
		q.port.report(l.c, err)
	}
}

// Collect implements engine.RxDevice.
func (q *rxQueue) Collect(b *burst.Burst) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for looked := false; b.Room() > 0; {
		if q.n == 0 {
			if looked || !q.look() {
				break
			}
			looked = true
			continue
		}
		if !q.show() || !q.give(b, &q.arrived[q.first]) {
			break
		}
		q.first = (q.first + 1) % len(q.arrived)
		q.n--
	}
	q.again()
	if q.n > 0 {
		return nil
	}
	return q.err
}

// give adds a message to b, or drops it. It is false when there is no room.
func (q *rxQueue) give(b *burst.Burst, a *arrival) bool {
	l := &q.layout
	q.recvs.Lay(l, a.len)
	if q.skip > 0 {
		l.Off[0], l.Len[0] = q.skip, l.Len[0]-min(l.Len[0], q.skip)
		if q.grh {
			l.Header = q.skip
		}
	}
	switch i := q.recvs.Deliver(b, a.id, l); i {
	case rdmadev.NoRoom:
		return false
	case rdmadev.Dropped:
		q.drop(engine.DropTooLong, 1)
	default:
		b.SetConn(i, a.channel.c.ID)
	}
	return true
}

// again gives the device new buffers and tells senders of them.
func (q *rxQueue) again() {
	few := q.recvs.Posted() < len(q.arrived)/8
	if few && !q.few {
		q.port.counts.low.Add(1)
	}
	q.few = few
	if err := q.post(); err != nil {
		q.failed(nil, err)
	}
	for _, l := range q.channels {
		q.grant(l)
	}
}

// Watch implements engine.RxDevice.
func (q *rxQueue) Watch(w *engine.Waker) engine.Armed {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.n > 0 || q.err != nil {
		return engine.ArmedReady
	}
	return q.await(w)
}

// await asks for one Wake of w when something comes. The caller holds q.mu.
func (q *rxQueue) await(w *engine.Waker) engine.Armed {
	if q.armed { // there may be an event of arrivals that were seen since
		if _, _, err := q.events.Next(); err != nil {
			return engine.ArmedReady
		}
	}
	if err := q.cq.Arm(false); err != nil {
		return engine.ArmedReady
	}
	q.armed = true
	if q.look(); q.n > 0 {
		return engine.ArmedReady
	}
	q.again()
	if !q.watched {
		if engine.Events.Add(q.events.FD()) != nil {
			return engine.ArmedReady
		}
		q.watched = true
	}
	switch {
	case engine.Events.Arm(q.events.FD(), w) != nil:
		return engine.ArmedReady
	case q.recvs.Posted() == 0:
		return engine.ArmedPoll
	}
	return engine.ArmedWake
}

// Flush implements engine.RxDiscarder.
func (q *rxQueue) Flush() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for range 1 << 8 { // more keeps coming
		if q.look(); q.n == 0 {
			break
		}
		n += q.throw()
		q.again()
	}
	return n
}

// throw throws away what has arrived, and returns the number of messages, which the caller counts.
func (q *rxQueue) throw() (n int) {
	for ; q.n > 0; q.n-- {
		q.recvs.Free(q.arrived[q.first].id)
		q.first = (q.first + 1) % len(q.arrived)
		n++
	}
	return n
}
