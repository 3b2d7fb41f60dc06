package rdma

import (
	"errors"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/penstock-io/penstock/engine"
)

// conn is one connection: a session, and channels in both directions, which are one queue pair where the connection is plain (plain.go). A channel is a pair of queue pairs over which messages go one
// way. The receiver makes it, for the receive queue that the connection belongs to, and takes it back when that queue goes; what
// is to be sent waits meanwhile.
type conn struct {
	id            uint32
	port          *Port
	ch            session
	local, remote netip.AddrPort
	main          bool // of a port that connects to one peer
	plain         bool // the peer takes no records: one queue pair in both directions

	// Under the port's mutex:
	met     bool        // the peer has said who it is
	late    *time.Timer // until it must have
	over    bool
	cause   error           // of the end
	q       *rxQueue        // that its messages come to
	in      *rxChannel      // the channel that q has for it
	leaves  []*rxChannel    // channels that were taken back and that the peer may still send on
	channel uint32          // number given last
	mine    map[uint32]*own // memory that the peer may reach, by number
	theirs  map[uint32]exposed
	mines   uint32 // number given last
	unseen  error  // an accelerator did not take what the peer wrote, when the memory was taken back

	mu    sync.Mutex // of what is sent
	dead  bool
	out   *txChannel   // the channel to send on; nil while the peer has given none
	gone  []*txChannel // channels that the peer takes back and that have something under way
	held  []held       // what waits to be sent, in order
	spare spares
	probe *time.Timer // of a sender that waits

	watchdog *time.Timer // of what the device has
	guarded  bool        // it runs
}

// admit makes a connection of a session. The caller holds p.mu.
func (p *Port) admit(ch session, main bool) *conn {
	c := &conn{port: p, ch: ch, local: ch.local(), remote: ch.remote(), main: main, mine: map[uint32]*own{}, theirs: map[uint32]exposed{}}
	_, c.plain = ch.(*link)
	for c.id == 0 || p.conns[c.id] != nil {
		p.last++
		c.id = p.last
	}
	p.table.Lock()
	p.conns[c.id] = c
	p.byAddr[c.remote] = c.id
	p.table.Unlock()
	c.ch.send(&record{kind: kindHello, transport: p.o.Transport})
	c.late = time.AfterFunc(p.o.ConnectTimeout, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !c.met {
			p.end(c, failed(engine.ErrConnect, "the peer has said nothing for %v", p.o.ConnectTimeout))
		}
	})
	p.running.Add(1)
	go c.serve()
	return c
}

// serve has the session do what the peer asks for until it ends.
func (c *conn) serve() {
	p := c.port
	defer p.running.Done()
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

// take does what a record asks for.
func (c *conn) take(r *record) error {
	if (r.kind == kindHello) == c.met && r.kind != kindBye { // only this goroutine sets met
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
	case kindExpose:
		return c.shown(r)
	case kindRetract:
		return c.hidden(r)
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
	if c.over {
		return errBye
	}
	c.met = true
	c.late.Stop()
	if c.main {
		p.backoff.Reset()
		p.primary.Store(c)
	}
	p.assign(c)
	p.changed()
	p.tell(c, true, nil)
	return nil
}

// tell calls OnConn.
func (p *Port) tell(c *conn, up bool, err error) {
	if p.o.OnConn != nil {
		p.o.OnConn(ConnEvent{ID: c.id, Local: c.local, Remote: c.remote, Up: up, Err: err})
	}
}

// changed wakes those who wait for a connection, and what waits to be sent. The caller holds p.mu.
func (p *Port) changed() {
	close(p.change)
	p.change = make(chan struct{})
	for _, q := range p.tx {
		q.box.Kick()
	}
}

// finish ends a connection, whose peer has gone or which has failed.
func (p *Port) finish(c *conn, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end(c, err)
}

// end ends a connection. What waits to be sent on it is dropped, and so is what the peer has not acknowledged. The caller holds p.mu.
func (p *Port) end(c *conn, err error) {
	if c.over {
		return
	}
	c.over, c.cause = true, err
	c.late.Stop()
	p.table.Lock()
	delete(p.conns, c.id)
	if p.byAddr[c.remote] == c.id {
		delete(p.byAddr, c.remote)
	}
	p.table.Unlock()
	if c.plain {
		c.part()
	} else {
		c.sever()
	}
	for _, m := range c.mine {
		m.close()
	}
	clear(c.mine)
	bye := &record{kind: kindBye}
	closing := err == nil || errors.Is(err, engine.ErrClosed)
	if !closing {
		bye.text = err.Error()
		p.counts.broken.Add(1)
	}
	c.ch.send(bye)
	c.ch.close()
	failure := &ConnError{ID: c.id, Remote: c.remote, Err: err}
	q := c.q
	c.q = nil
	if q != nil && q.Spec().Conn == c.id {
		q.fail(failure)
	}
	switch {
	case !c.met:
		if c.main && !p.closed {
			p.missed(err)
		}
		p.changed()
		return
	case c.main && !p.closed:
		p.primary.CompareAndSwap(c, nil)
		if p.cause = failure; p.o.Reconnect {
			p.retryLater()
		} else {
			p.giveUp(failure)
		}
	}
	p.changed()
	if closing {
		p.tell(c, false, nil)
	} else {
		p.tell(c, false, failure)
	}
}

// sever ends the channels. The caller holds p.mu.
func (c *conn) sever() {
	// First the receiving side: what it has acknowledged by then it has received, and nothing comes later.
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

// assign gives a connection to a queue: the one that is bound to it, or else the one of the unbound that has the fewest. The caller
// holds p.mu.
func (p *Port) assign(c *conn) {
	if !c.met || c.over || c.plain { // it is given to a queue when its peer has said who it is; a plain one has its queue from the beginning
		return
	}
	var to *rxQueue
	for _, q := range p.rx.Live() {
		if q.broken.Load() {
			continue
		}
		if q.Spec().Conn == c.id {
			to = q
			break
		}
		if q.Spec().Conn == 0 && (to == nil || q.load() < to.load()) {
			to = q
		}
	}
	if to == c.q {
		return
	}
	p.move(c, to)
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

// counted hears how many messages the sender has sent on a channel: all there will be, or those so far, some of which may be lost.
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

// report leaves a connection that has failed to the driver, for those who hold a lock.
func (p *Port) report(c *conn, err error) { p.control.report(c, err) }

// ConnInfo is what is known of a connection.
type ConnInfo struct {
	ID            uint32
	Local, Remote netip.AddrPort
	Queue         int  // receive queue that its messages come to, -1 while there is none
	Sends         bool // the peer has given a channel to send on
	Waiting       int  // packets that wait to be sent
	Flying        int  // packets that the device has
	Room          int  // messages that the peer has room for now, as far as is known; -1 where peers do not say (ByCM)
}

func (c *conn) info() ConnInfo {
	i := ConnInfo{ID: c.id, Local: c.local, Remote: c.remote, Queue: -1}
	if c.q != nil {
		i.Queue = c.q.ID()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.held {
		i.Waiting += h.b.Builder().LivePart(h.from, h.b.Len())
	}
	if o := c.out; o != nil {
		i.Sends, i.Flying, i.Room = o.ready, o.flying(), o.w.room()
	}
	if c.plain {
		i.Room = -1
	}
	return i
}

// Conn is what is known of a connection; false when there is none of that id (any more).
func (p *Port) Conn(id uint32) (ConnInfo, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.conns[id]
	if c == nil || !c.met {
		return ConnInfo{}, false
	}
	return c.info(), true
}

// Conns are the connections, in no order.
func (p *Port) Conns() []ConnInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]ConnInfo, 0, len(p.conns))
	for _, c := range p.conns {
		if c.met {
			out = append(out, c.info())
		}
	}
	return out
}

// Find is the id of the connection to a peer; 0 when there is none.
func (p *Port) Find(remote netip.AddrPort) uint32 {
	p.table.RLock()
	defer p.table.RUnlock()
	return p.byAddr[unmapped(remote)]
}

// CloseConn closes a connection at once. What waits to be sent on it is dropped. An id that is not there is engine.ErrNotFound.
func (p *Port) CloseConn(id uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.conns[id]
	if c == nil {
		return failed(engine.ErrNotFound, "connection %d", id)
	}
	p.end(c, engine.ErrClosed)
	return nil
}
