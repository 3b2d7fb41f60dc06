package rdma

import (
	"github.com/penstock-io/penstock/internal/ibv"
)

// rxChannel is a channel of a connection at its receiver's end. The mutex of the queue guards it.
type rxChannel struct {
	q        *rxQueue
	c        *conn
	id       uint32
	qpn      uint32
	pair     pairInfo
	x        *pair
	chain    *ibv.SendChain // of one request: a credit
	wc       [controlSend]ibv.WC
	busy     int    // credits that the device has
	tells    uint64 // that it was given
	g        grants
	ready    bool   // it is connected
	leaving  bool   // it was taken back
	numbered bool   // messages carry their numbers, since some may be lost
	choosy   bool   // it takes messages from one queue pair only, peer; 0: the first that comes
	peer     uint32 // known by its number
	// the queue pair is the sending side's as well, which ends it, and the peer takes no credits:
	// it is never ready
	plain  bool
	probed bool   // the sender waits, and has said so
	probe  uint64 // messages that it had sent by then: none, where it never could
}

// newChannel makes a channel for a connection. The caller holds the port's mutex.
func (q *rxQueue) newChannel(c *conn, id uint32) (*rxChannel, error) {
	p := q.port
	chain, err := ibv.NewSendChain(1, 1)
	if err != nil {
		return nil, err
	}
	x, err := p.newPair(ibv.QPSpec{RecvCQ: q.cq, SRQ: q.srq, SendWRs: controlSend, SendSGEs: 1}, controlSend+2)
	if err != nil {
		chain.Close()
		return nil, err
	}
	l := &rxChannel{q: q, c: c, id: id, qpn: x.mine.qpn, pair: x.mine, x: x, chain: chain,
		numbered: p.o.Transport != RC}
	p.control.own(x.cq, l)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.channels[l.qpn] = l
	return l, nil
}

// connect connects a channel to the sender's queue pair, and says how many messages may come.
func (q *rxQueue) connect(l *rxChannel, peer *pairInfo) (limit uint64, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l.ready {
		return 0, errOrder
	}
	if err := l.x.connect(q.port, peer); err != nil {
		return 0, err
	}
	l.ready = true
	if err := q.post(); err != nil {
		return 0, err
	}
	l.g.raise(q.recvs.Posted(), share(q.recvs.Posted(), len(q.channels)))
	l.g.told = l.g.limit
	return l.g.limit, nil
}

// leave takes a channel back: it gets no more credits, and the caller asks the sender to send no
// more on it.
func (q *rxQueue) leave(l *rxChannel) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l.leaving = true
}

// remove gives a channel up. The caller holds q.mu.
func (q *rxQueue) remove(l *rxChannel) {
	if q.channels[l.qpn] != l {
		return
	}
	d := q.port.control
	if l.ready && l.x.qp.Err() == nil {
		d.lastTaken(l.x.qp)
		q.look()
	}
	delete(q.channels, l.qpn)
	if q.last == l {
		q.last = nil
	}
	if l.plain {
		return
	}
	d.disown(l.x.cq)
	l.x.close()
	d.gone(l.x.qp)
	l.chain.Close()
}

// grant tells the sender how many more messages may come, when it is time to. It never waits: what
// cannot be sent now follows when the device has ended a credit that it has.
func (q *rxQueue) grant(l *rxChannel) {
	if !l.ready || l.leaving {
		return
	}
	l.g.raise(q.recvs.Posted(), share(q.recvs.Posted(), len(q.channels)))
	if l.probed && q.n == 0 { // everything that came has been seen
		if l.probe > l.g.received {
			q.drop(q.port.lossIs(), l.probe-l.g.received)
			l.g.received = l.probe
			l.g.raise(q.recvs.Posted(), share(q.recvs.Posted(), len(q.channels)))
		}
		if l.g.limit > l.g.received {
			l.probed, l.g.told = false, l.g.received // the credits that it got may be lost as well
		}
	}
	if !l.g.due() {
		return
	}
	if l.busy == controlSend {
		l.reap()
	}
	if l.busy == controlSend {
		l.x.cq.Arm(false)
		if l.reap(); l.busy == controlSend {
			return // the driver gets the event, and calls again
		}
	}
	l.chain.Reset()
	l.chain.SendImm(l.tells, ibv.Signaled, uint32(l.g.limit))
	l.x.to(l.chain)
	if _, err := l.x.qp.PostSend(l.chain); err != nil {
		q.failed(l, err)
		return
	}
	l.tells++
	l.busy++
	l.g.told = l.g.limit
	q.port.counts.credits.Add(1)
}

// reap takes back credits that the device has done with.
func (l *rxChannel) reap() {
	n, err := l.x.cq.Poll(l.wc[:])
	if err != nil {
		l.q.failed(l, err)
	}
	for i := range n {
		if s := l.wc[i].Status(); s != ibv.Success && s != ibv.WRFlushErr {
			l.q.failed(l, l.wc[i].Err())
		}
	}
	if n > 0 { // those before the last one are over, whether they told or not
		l.busy = int(l.tells - l.wc[n-1].ID() - 1)
	}
}

// event implements owner.
func (l *rxChannel) event() {
	q := l.q
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.channels[l.qpn] != l {
		return
	}
	l.reap()
	q.grant(l)
}

// probed takes the word of a waiting sender how many messages it has sent: those that did not
// arrive are lost.
func (q *rxQueue) probed(l *rxChannel, count uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l.probed, l.probe = true, count
	q.look()
	if q.n == 0 {
		q.again()
	}
	q.Wake()
}
