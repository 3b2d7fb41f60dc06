package sim

import (
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet/burst"
)

// wire is one direction of a link: to a port or to the segment.
type wire struct {
	net  *Network
	id   int
	name string // "a>b"
	// One of the two is where it leads.
	port *endpoint
	sw   *segment
	// owner is the port in whose statistics the drops count: the receiver where it is known, else
	// the sender.
	owner *endpoint

	up atomic.Bool // changes only under Network.mu, held for writing
	// Guarded by Network.mu.
	faults Faults
	plain  bool // no faults

	in, out, made, held           atomic.Uint64
	corrupted, reordered, delayed atomic.Uint64
	drops                         [engine.NumDrops]atomic.Uint64

	mu      sync.Mutex // with faults only; guards what follows
	rng     *rand.Rand
	limit   limiter
	last    int64 // when the frame before arrives
	scratch []byte
}

func (n *Network) newWire(name string, owner *endpoint) *wire {
	w := &wire{net: n, id: len(n.wires), name: name, owner: owner, plain: true}
	h := fnv.New64a()
	h.Write([]byte(name))
	w.rng = rand.New(rand.NewPCG(n.opts.Seed, h.Sum64()))
	w.up.Store(true)
	n.wires = append(n.wires, w)
	return w
}

func (w *wire) String() string { return w.name }

func (w *wire) drop(why engine.Drop, n int) { w.drops[why].Add(uint64(n)) }

// carry takes packets from to to-1 of b off a transmit queue. The caller holds Network.mu for
// reading.
func (w *wire) carry(c *sending, from, to int) {
	if !w.plain {
		w.mu.Lock()
		defer w.mu.Unlock()
		now := c.now()
		for i := from; i < to; i++ {
			w.scratch = gather(w.scratch, c.b, i)
			w.in.Add(1)
			w.pass(w.scratch, c.from, now)
		}
		return
	}
	n := uint64(to - from)
	w.in.Add(n)
	if w.sw != nil {
		w.out.Add(n)
		w.sw.carry(c, from, to)
		return
	}
	if !w.open() {
		w.drop(engine.DropDown, to-from)
		return
	}
	w.out.Add(n)
	w.port.port.carry(c, from, to)
}

// frame takes one frame from the segment. It may be changed. The caller holds Network.mu for
// reading.
func (w *wire) frame(frame []byte, from *endpoint, now int64) {
	w.in.Add(1)
	if w.plain {
		w.give(frame, from, now)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.scratch = append(w.scratch[:0], frame...) // faults are this wire's own
	w.pass(w.scratch, from, now)
}

// pass takes a frame through the faults. The caller holds mu.
func (w *wire) pass(frame []byte, from *endpoint, now int64) {
	f := &w.faults
	if chance(w.rng, f.Loss) {
		w.drop(engine.DropInjected, 1)
		return
	}
	if chance(w.rng, f.Corrupt) {
		corrupt(w.rng, frame, f.Bits)
		w.corrupted.Add(1)
	}
	times := 1
	if chance(w.rng, f.Duplicate) {
		w.made.Add(1)
		times = 2
	}
	for range times {
		if f.instant() {
			w.give(frame, from, now)
			continue
		}
		w.later(frame, from, now)
	}
}

// later sends a frame on its way. The caller holds mu.
func (w *wire) later(frame []byte, from *endpoint, now int64) {
	f := &w.faults
	if w.held.Load() >= uint64(f.InFlight) {
		w.drop(engine.DropQueueFull, 1)
		return
	}
	at := now
	if f.Rate > 0 {
		var ok bool
		if at, ok = w.limit.pass(f, len(frame), now); !ok {
			w.drop(engine.DropQueueFull, 1)
			return
		}
	}
	at = max(at+f.delay(w.rng), w.last)
	w.last = at
	if chance(w.rng, f.Reorder) {
		at += int64(f.ReorderBy)
		w.reordered.Add(1)
	}
	w.held.Add(1)
	w.delayed.Add(1)
	if !w.net.events.add(event{at: at, wire: w, from: from, frame: w.net.events.buffer(frame)}) {
		w.abandon()
	}
}

// abandon drops a frame that will not arrive because the network is closed.
func (w *wire) abandon() {
	w.held.Add(^uint64(0))
	w.drop(engine.DropClosed, 1)
}

// arrive is the end of the way of a frame that was late.
func (w *wire) arrive(e *event) {
	w.net.mu.RLock()
	defer w.net.mu.RUnlock()
	w.held.Add(^uint64(0))
	w.give(e.frame, e.from, e.at)
}

// give hands a frame to what the wire leads to. The caller holds Network.mu for reading.
func (w *wire) give(frame []byte, from *endpoint, now int64) {
	if !w.open() {
		w.drop(engine.DropDown, 1)
		return
	}
	w.out.Add(1)
	if w.sw != nil {
		w.sw.frame(frame, from, now)
		return
	}
	w.port.port.frame(frame, now)
}

// open reports whether the link is up and an open port, or the segment, is at the end.
func (w *wire) open() bool { return w.up.Load() && (w.port == nil || w.port.port != nil) }

// set changes the faults. The caller holds Network.mu for writing.
func (w *wire) set(f Faults) {
	w.faults, w.plain = f, f.none()
}

// sending is a burst on its way through one Transmit, with what the wires know of it.
type sending struct {
	b       *burst.Burst
	from    *endpoint
	time    int64         // 0 until a wire reads the clock
	taken   []int         // packets whose memory a receive queue has taken over, ascending
	only    *burst.Source // of all packets, where each is one segment; nil otherwise
	longest int           // bytes, at least as many as any packet of the run has
	sum     int           // bytes of all packets, where only is set
	bulk    bool          // the burst may be taken away whole
	scratch []byte
}

// now is the time at which the burst was sent, in nanoseconds since 1970.
func (c *sending) now() int64 {
	if c.time == 0 {
		c.time = time.Now().UnixNano()
	}
	return c.time
}

// gather returns the bytes of packet i in one piece, in buf.
func gather(buf []byte, b *burst.Burst, i int) []byte {
	n := b.PacketLen(i)
	if cap(buf) < n {
		buf = make([]byte, max(n, 2048))
	}
	buf = buf[:n]
	b.CopyTo(buf, i)
	return buf
}

// view returns the bytes of packet i in one piece: where they are, or else copied to *buf.
func view(buf *[]byte, b *burst.Burst, i int) []byte {
	if b.Segments(i) == 1 {
		return b.Bytes(i, 0)
	}
	*buf = gather(*buf, b, i)
	return *buf
}
