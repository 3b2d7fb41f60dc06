package rdma

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ibv"
)

// owner is told that its completion queue has something. It may be told once more after disown.
type owner interface{ event() }

// driver is the goroutine of a port that hears of the device: of completions of what was sent, and of what happens to the device itself.
type driver struct {
	port  *Port
	waker *engine.Waker // completions, troubles, writes
	async *engine.Waker // events of the device
	end   chan struct{}
	done  chan struct{}
	once  sync.Once
	began bool
	fds   []int

	mu       sync.Mutex
	owners   map[*ibv.CQ]owner
	troubles []trouble
	writes   []write
	peers    []peer
	draining map[*rxQueue]struct{} // closed receive queues that senders still send to

	news sync.Mutex           // of what comes from the device, whichever goroutine takes it
	told []ibv.AsyncEvent     // for the goroutine
	last map[*ibv.QP]struct{} // queue pairs that have taken their last receive
	mute bool                 // the device does not tell of that
}

// trouble is a connection that has failed.
type trouble struct {
	c   *conn
	err error
}

// write is memory of this side that a peer has written, and says so.
type write struct {
	c   *conn
	imm uint32
}

// peer is the number of the queue pair of a connection's peer, which its first message has shown.
type peer struct {
	c   *conn
	qpn uint32
}

func newDriver(p *Port) (*driver, error) {
	d := &driver{port: p, waker: engine.NewWaker(), async: engine.NewWaker(), end: make(chan struct{}), done: make(chan struct{}), owners: map[*ibv.CQ]owner{}, draining: map[*rxQueue]struct{}{}, last: map[*ibv.QP]struct{}{}}
	for _, fd := range []int{p.events.FD(), p.dev.AsyncFD()} {
		if err := engine.Events.Add(fd); err != nil {
			d.forget()
			return nil, err
		}
		d.fds = append(d.fds, fd)
	}
	return d, nil
}

func (d *driver) forget() {
	for _, fd := range d.fds {
		engine.Events.Remove(fd)
	}
	d.fds = nil
}

func (d *driver) start() {
	d.began = true
	go d.run()
}

// stop ends it. It may be called again.
func (d *driver) stop() {
	d.once.Do(func() {
		close(d.end)
		if d.began {
			<-d.done
		}
		d.forget()
	})
}

func (d *driver) own(cq *ibv.CQ, o owner) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.owners[cq] = o
}

func (d *driver) disown(cq *ibv.CQ) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.owners, cq)
}

// drain leaves a closed receive queue to the goroutine, until drained.
func (d *driver) drain(q *rxQueue) {
	d.mu.Lock()
	d.draining[q] = struct{}{}
	d.mu.Unlock()
	d.waker.Wake()
}

func (d *driver) drained(q *rxQueue) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.draining, q)
}

// report leaves a connection that has failed to the goroutine, which can take the locks for it.
func (d *driver) report(c *conn, err error) {
	d.mu.Lock()
	d.troubles = append(d.troubles, trouble{c, err})
	d.mu.Unlock()
	d.waker.Wake()
}

// learn leaves the number of a peer's queue pair to the goroutine.
func (d *driver) learn(c *conn, qpn uint32) {
	d.mu.Lock()
	d.peers = append(d.peers, peer{c, qpn})
	d.mu.Unlock()
	d.waker.Wake()
}

// wrote leaves the news of a write to the goroutine.
func (p *Port) wrote(c *conn, imm uint32) {
	if p.o.OnMemory == nil {
		return
	}
	d := p.control
	d.mu.Lock()
	d.writes = append(d.writes, write{c, imm})
	d.mu.Unlock()
	d.waker.Wake()
}

func (d *driver) run() {
	defer close(d.done)
	for device := true; ; {
		d.completions()
		if device {
			d.asynchronous()
		}
		d.mu.Lock()
		troubles, writes, peers := d.troubles, d.writes, d.peers
		d.troubles, d.writes, d.peers = nil, nil, nil
		draining := slices.Collect(maps.Keys(d.draining))
		d.mu.Unlock()
		for _, q := range draining {
			q.drain(d.waker)
		}
		for _, x := range peers {
			x.c.learned(x.qpn)
		}
		for _, t := range troubles {
			d.port.finish(t.c, t.err)
		}
		for _, w := range writes {
			if err := d.port.flush(w.c); err != nil { // its word would not be true
				d.port.finish(w.c, err)
				continue
			}
			d.port.o.OnMemory(MemoryEvent{Conn: w.c.id, Kind: Written, Imm: w.imm})
		}
		if engine.Events.Arm(d.fds[0], d.waker) != nil || device && engine.Events.Arm(d.fds[1], d.async) != nil {
			return
		}
		select {
		case <-d.waker.C():
			device = false
		case <-d.async.C():
			device = true
		case <-d.end:
			return
		}
	}
}

// completions tells the owners of completion queues that have something.
func (d *driver) completions() {
	for {
		cq, ok, err := d.port.events.Next()
		if !ok || err != nil {
			return
		}
		d.mu.Lock()
		o := d.owners[cq]
		d.mu.Unlock()
		if o != nil {
			o.event()
		}
	}
}

// asynchronous does what events of the device ask for.
func (d *driver) asynchronous() {
	p := d.port
	d.hear()
	d.news.Lock()
	told := d.told
	d.told = nil
	d.news.Unlock()
	for _, e := range told {
		switch e.Type {
		case ibv.EventPortErr, ibv.EventPortActive:
			if up := e.Type == ibv.EventPortActive; e.Port == p.o.Port && p.active.Swap(up) != up {
				p.mu.Lock()
				p.old.LinkChanges++
				p.mu.Unlock()
				p.bell.Ring()
			}
		case ibv.EventDeviceFatal:
			for _, c := range p.all() {
				p.finish(c, fmt.Errorf("device %s has failed: close the port and open it again", p.dev.Name()))
			}
		case ibv.EventCQErr:
			p.overran(e.CQ)
		case ibv.EventQPFatal, ibv.EventQPReqErr, ibv.EventQPAccessErr:
			p.broke(e)
		}
	}
}

// broke ends the connection of a queue pair that went into error by itself.
func (p *Port) broke(e ibv.AsyncEvent) {
	if e.QP == nil {
		return
	}
	for _, c := range p.all() {
		p.mu.Lock()
		hit := c.in != nil && c.in.x.qp == e.QP
		p.mu.Unlock()
		c.mu.Lock()
		hit = hit || c.out != nil && c.out.x.qp == e.QP
		c.mu.Unlock()
		if hit {
			p.finish(c, fmt.Errorf("%v", e))
			return
		}
	}
}
