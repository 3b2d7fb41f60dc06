package rdma

import (
	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/engine"
)

// held are packets of one transmit queue that wait for a connection; those before from have been given to the device.
type held struct {
	b    *burst.Burst
	from int
	s    *txSink
}

// spares are bursts for packets that wait, to be used again.
type spares []*burst.Burst

// heldBurst is the room of a burst of packets that wait, in packets and in segments.
const heldBurst = 64

// send gives packets from to to-1 of b to the device, and keeps those that it does not take now. All are taken.
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
		if len(c.held) == 0 {
			from = o.post(s, b, from, to)
		}
		defer c.watch(o)
	}
	for i := from; i < to; i++ {
		if b.Segments(i) > 0 {
			c.keep(s, b, i)
		}
	}
}

// watch makes sure that the driver hears when the device has done something, and sends what can be sent by then.
func (c *conn) watch(o *txChannel) {
	if o.armed || o.flying() == 0 && len(c.held) == 0 {
		return
	}
	o.rearm()
	c.flush()
}

// keep moves a packet to what waits.
func (c *conn) keep(s *txSink, b *burst.Burst, i int) {
	if n := len(c.held); n > 0 && c.held[n-1].s == s && b.Take(c.held[n-1].b, i) {
		return
	}
	var to *burst.Burst
	if n := len(c.spare); n > 0 && b.Segments(i) <= c.spare[n-1].SegmentRoom() {
		to, c.spare = c.spare[n-1], c.spare[:n-1]
	} else {
		to = burst.NewSegmented(heldBurst, max(heldBurst, b.Segments(i)))
	}
	b.Take(to, i)
	c.held = append(c.held, held{b: to, s: s})
}

// flush gives what waits to the device, as much as it takes.
func (c *conn) flush() {
	o := c.out
	if o == nil || !o.ready || c.dead {
		return
	}
	n := 0
	for n < len(c.held) {
		h := &c.held[n]
		h.from = o.post(h.s, h.b, h.from, h.b.Len())
		if h.from < h.b.Len() {
			break
		}
		c.empty(h.b)
		n++
	}
	if n > 0 {
		rest := copy(c.held, c.held[n:])
		clear(c.held[rest:])
		c.held = c.held[:rest]
	}
}

// empty gives a burst's packets back and keeps it.
func (c *conn) empty(b *burst.Burst) {
	b.Release()
	if len(c.spare) < 4 {
		c.spare = append(c.spare, b)
	}
}

// drop drops what waits, of one sink or of all.
func (c *conn) drop(why engine.Drop, of *txSink) {
	n := 0
	for _, h := range c.held {
		if of != nil && h.s != of {
			c.held[n] = h
			n++
			continue
		}
		k := h.b.Builder().LivePart(h.from, h.b.Len())
		c.empty(h.b)
		h.s.lose(why, k)
	}
	clear(c.held[n:])
	c.held = c.held[:n]
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
	c.drop(engine.DropDown, nil)
}
