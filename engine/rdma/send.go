package rdma

import (
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet/burst"
)

// send gives packets from to to-1 of b to the device, and keeps those that it does not take now.
// All are taken.
func (c *conn) send(s *txSink, b *burst.Burst, from, to int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		s.lose(engine.DropDown, b.Builder().LivePart(from, to))
		b.Builder().ReleasePart(from, to)
		return
	}
	if o := c.out; o != nil && o.ready {
		if o.flying() > 0 || o.w.room() == 0 {
			if o.reap() {
				c.flush()
			}
		}
		if c.held.First() == nil {
			from = o.post(s, b, from, to)
		}
		defer c.watch(o)
	}
	for i := from; i < to; i++ {
		if b.Segments(i) > 0 {
			c.held.Keep(s, b, i, 0)
		}
	}
}

// watch makes sure that the driver gets an event when the device has done something, and sends what
// can be sent by then.
func (c *conn) watch(o *txChannel) {
	if o.armed || o.flying() == 0 && c.held.First() == nil {
		return
	}
	o.rearm()
	c.flush()
}

// flush gives what waits to the device, as much as it takes.
func (c *conn) flush() {
	o := c.out
	if o == nil || !o.ready || c.dead {
		return
	}
	for h := c.held.First(); h != nil; h = c.held.First() {
		if h.From = o.post(h.Queue, h.Burst, h.From, h.Burst.Len()); h.From < h.Burst.Len() {
			return
		}
		c.held.Pop()
	}
}

// kill ends the sending side: what the peer has not acknowledged, and what waits, is dropped.
func (c *conn) kill() {
	c.dead = true
	if c.probe != nil {
		c.probe.Stop()
	}
	if c.watchdog != nil {
		c.watchdog.Stop()
	}
	for _, o := range append(c.gone, c.out) {
		if o != nil {
			o.close()
		}
	}
	c.out, c.gone = nil, nil
	c.held.Drop(nil, engine.DropDown, (*txSink).lose)
}

// probeAfter is how long a sender waits for word, where messages may be lost, until it says how
// many it has sent.
const probeAfter = 20 * time.Millisecond

func (c *conn) probeAfter() time.Duration {
	if c.port.o.Transport == RC { // only a device that loses completions loses anything
		return c.port.o.looks()
	}
	return probeAfter
}

// ask tells the receiver, after a while without a credit, how many messages were sent.
func (c *conn) ask() {
	if c.probe == nil {
		c.probe = time.AfterFunc(c.probeAfter(), c.asked)
		return
	}
	c.probe.Reset(c.probeAfter())
}

func (c *conn) asked() {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.out
	if o == nil || c.dead || !o.ready {
		return
	}
	o.reap()
	if c.flush(); !o.dry {
		return
	}
	if o.flying() == 0 { // what the device still has is not lost
		c.ch.send(&record{kind: kindSent, channel: o.id, count: o.w.sent})
		o.nudge() // the peer's machine may be gone: the device finds out long before TCP does
		c.guard()
	}
	c.probe.Reset(c.probeAfter())
}
