package verbs

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/path"
)

// byeTime is how long Close waits until the peer's adapter has the goodbye. It comes back in
// microseconds unless the network is gone.
const byeTime = 250 * time.Millisecond

// violated takes the path down because of what the peer sent.
func (p *Path) violated(err error) {
	p.down(fmt.Errorf("verbs: %w: %w", path.ErrDown, err))
}

// down ends everything: all queue pairs are destroyed, so that neither side can write through this
// path any more, and then all operations end.
func (p *Path) down(err error) {
	if p.err != nil {
		return
	}
	p.err = err
	if p.events == nil {
		return // it is being made, and newPath gives everything back
	}
	if derr := p.dismantle(); derr != nil {
		p.note(fmt.Sprintf("taking it down: %v", derr))
	}
	for k := range p.works {
		w := &p.works[k]
		if w.used && !w.done {
			w.list = nil
			p.finish(int32(k), err)
		}
	}
	p.lists = lists{}
	p.queue(queued{Event: path.Event{Kind: path.EventDown, Err: err}, work: -1, qp: -1, slot: -1})
	p.dirty = true
	if p.armed && !p.rung {
		p.rung = true
		sys.Ring(p.bell)
	}
}

// dismantle gives everything back to the adapter but what events that were not polled may still
// hold.
func (p *Path) dismantle() (err error) {
	p.dev.leave(p)
	for _, g := range p.givens { // windows before the queue pairs that they belong to
		err = errors.Join(err, p.unwind(g))
	}
	clear(p.givens)
	p.binds, p.answers, p.revoked, p.asks = nil, nil, nil, nil
	for _, l := range p.qps {
		err = errors.Join(err, l.free())
	}
	for _, l := range p.locals {
		l.reg.Release()
		*l = local{}
	}
	clear(p.locals)
	return errors.Join(err, p.arena.unregister())
}

// release gives the rest back.
func (p *Path) release() (err error) {
	for _, l := range p.qps {
		err = errors.Join(err, l.free())
	}
	p.unguard()
	if p.ep != nil {
		err = errors.Join(err, p.ep.Close())
		p.ep = nil
	}
	if p.bell >= 0 {
		err = errors.Join(err, sys.Close(p.bell))
		p.bell = -1
	}
	if p.cq != nil {
		err = errors.Join(err, p.cq.Close())
	}
	if p.channel != nil {
		err = errors.Join(err, p.channel.Close())
	}
	err = errors.Join(err, p.arena.close())
	if p.dom != nil {
		err = errors.Join(err, p.dom.leave())
	}
	return errors.Join(err, p.dev.put())
}

// Close stops the peer's queue pairs, says goodbye and destroys everything. See path.Path.
func (p *Path) Close() error {
	if p.closed {
		return nil
	}
	if p.err == nil {
		p.collect()
	}
	if p.err == nil {
		p.goodbye()
	}
	p.down(errClosed)
	p.closed = true
	// Messages that were not polled are read from memory that goes now.
	for i := range p.evCount {
		q := &p.events[(p.evHead+i)%len(p.events)]
		q.Msg = bytes.Clone(q.Msg)
		q.qp = -1
	}
	p.lent = p.lent[:0]
	p.publish()
	return p.release()
}

// goodbye stops the data queue pairs, so that the peer can write no more, and tells the peer.
func (p *Path) goodbye() {
	for _, l := range p.data {
		if !l.repl.failed {
			l.repl.failed = true
			l.qp.Err()
		}
	}
	c := p.ctl
	f := &p.frame
	*f = frame{typ: frameBye}
	until := time.Now().Add(byeTime)
	if !p.say(f, byeReserve) {
		return
	}
	c.flush(1)
	last := c.head
	for p.err == nil && int32(c.tail-last) < 0 {
		if p.collect() > 0 {
			continue
		}
		left := time.Until(until)
		if left <= 0 || p.err != nil {
			return
		}
		if err := p.cq.Arm(false); err != nil {
			continue
		}
		if p.collect() > 0 {
			continue
		}
		if _, err := sys.PollIn(int(left/time.Millisecond)+1, p.channel.FD()); err != nil {
			return
		}
		p.emptyChannel()
	}
}

// enter and leave keep the list of paths that want to know what happens to the device.
func (dev *device) enter(p *Path) {
	dev.mu.Lock()
	dev.paths[p] = struct{}{}
	dev.mu.Unlock()
}

func (dev *device) leave(p *Path) {
	dev.mu.Lock()
	delete(dev.paths, p)
	dev.mu.Unlock()
}

// async takes the events of the device, which all paths share, and tells each path what concerns
// it.
func (dev *device) async() {
	if i, err := sys.PollIn(0, dev.ctx.AsyncFD()); err != nil || i < 0 {
		return
	}
	for {
		ev, ok, err := dev.ctx.NextAsync()
		if !ok || err != nil {
			return
		}
		dev.tell(ev)
	}
}

// tell notes what an event means for each path. A port that is down may come back before the
// adapter has given up: its retries decide. A queue pair that failed gives its requests and
// receives back.
func (dev *device) tell(ev ibv.AsyncEvent) {
	dev.mu.Lock()
	defer dev.mu.Unlock()
	for p := range dev.paths {
		switch {
		case ev.Type == ibv.EventDeviceFatal:
			p.end(errDevice)
		case ev.Type == ibv.EventCQErr && ev.CQ == p.cq:
			p.end(ibv.ErrOverrun)
		case (ev.Type == ibv.EventPortErr || ev.Type == ibv.EventPortActive) && ev.Port == dev.port.Port:
			p.note(fmt.Sprintf("port %d: %s", ev.Port, ev.Type))
		}
	}
}

var errDevice = errors.New("the device failed")

// end has Poll take the path down, whose owner may sleep. Its caller holds the lock of the device.
func (p *Path) end(why error) {
	p.urgent.Store(&why)
	sys.Ring(p.bell)
}

// alarm takes the path down because of what happened to the device.
func (p *Path) alarm() {
	p.dev.mu.Lock() // tell is through: a bell that it rang after this would ring for ever
	why := *p.urgent.Swap(nil)
	sys.Unring(p.bell)
	p.dev.mu.Unlock()
	p.down(fmt.Errorf("verbs: %w: %w", path.ErrDown, why))
}
