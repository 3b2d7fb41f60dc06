package xdp

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/pace"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/internal/xsk"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// txQueue is a transmit queue: a socket of its own on one queue of the interface. It implements
// engine.TxQueue.
type txQueue struct {
	engine.TxFront
	port  *Port
	spec  engine.TxSpec
	out   *engine.Outbox
	pacer *pace.Pacer // nil without a rate and times

	lost   atomic.Uint64 // packets that the kernel had, and of which it is not known whether they left
	drops  engine.DropCounters
	done   atomic.Uint64 // packets that the kernel has done with; under the mutex of its nicQueue
	pacing atomic.Bool   // the pacer is at work
	owed   atomic.Int64  // packets that the outbox does not know of yet, with a pacer
	busy   atomic.Uint64 // of which the device dropped

	mu     sync.Mutex // of those that transmit, open or close; the next fields
	nq     *nicQueue  // nil while there is no socket
	sender *sender
	sock   *xsk.Socket
	descs  []xsk.Desc
	chunks []carried // of the packet that is being dealt with

	bytes, copied, calls uint64
}

const (
	// maxPieces is the number of descriptors of one packet: the kernel takes MAX_SKB_FRAGS and one
	// more, which may be 18.
	maxPieces = 16
	// sendAgain is the pause when the kernel takes no more, or there is no spare chunk.
	sendAgain = 50 * time.Microsecond
)

// AddTxQueue implements engine.Port.
func (p *Port) AddTxQueue(spec engine.TxSpec) (engine.TxQueue, error) {
	if err := Spec.TxDefaults(p.spec.Address, &spec); err != nil {
		return nil, err
	}
	o, pacing, err := pace.Of(&spec)
	if err != nil {
		return nil, fmt.Errorf("xdp: transmit queue of %s: %w", p.name, err)
	}
	can := p.Capabilities()
	srcs, err := engine.CheckTx(&spec, &can)
	if err != nil {
		return nil, fmt.Errorf("xdp: transmit queue of %s: %w", p.name, err)
	}
	q := &txQueue{port: p, spec: spec}
	slots := engine.NewTxSlots(spec.Pools, srcs, spec.Headroom, 0)
	if p.frags.Load() {
		slots.Chain(burst.MaxSegments, p.link.MTU()+packet.EthernetLen+vlanRoom)
	}
	var sink engine.Sink = (*device)(q)
	if pacing {
		o.Complete = func(n int) { q.out.Complete(n) }
		if q.pacer, err = pace.New(sink, o); err != nil {
			return nil, err
		}
		sink = (*paced)(q)
	}
	p.rxs.Lock()
	defer p.rxs.Unlock()
	if err := p.usable(); err != nil {
		return nil, err
	}
	id, err := engine.TxID(spec.ID, maxQueues, p.txs)
	if err != nil {
		return nil, fmt.Errorf("xdp: %s: %w", p.name, err)
	}
	if q.out, err = engine.NewOutbox(sink, spec.Depth, true); err != nil {
		return nil, err
	}
	if spec.SourceMAC {
		q.SourceMAC(p.link.MAC)
	}
	q.Start(id, slots, q.out, q.reap)
	if err := p.ns.Do(func() error { return p.admitTx(q) }); err != nil {
		return nil, err
	}
	return q, nil
}

// open opens the socket of the queue on a queue of the interface. The caller holds the lock of
// port.rxs and is in the port's namespace.
func (q *txQueue) open(n *nicQueue) error {
	size := min(max(64, 1<<bits.Len(uint(q.spec.Depth-1))), q.port.o.Ring)
	s, err := n.queue.OpenSocket(xsk.SocketConfig{TxSize: size, BusyPoll: q.port.o.busyPoll()})
	if err != nil {
		return q.port.explain(err)
	}
	from, err := n.memory.addSender(q, n)
	if err != nil {
		return errors.Join(err, s.Close())
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.nq, q.sender, q.sock = n, from, s
	q.descs = make([]xsk.Desc, 0, size)
	n.mu.Lock()
	n.txs = append(slices.Clone(n.txs), q)
	n.mu.Unlock()
	q.out.Kick()
	return nil
}

// shut closes the socket. What the kernel has not begun to send is dropped for a reason; what it
// has begun comes back to the nicQueue.
func (q *txQueue) shut(why engine.Drop) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.nq
	if n == nil {
		return nil
	}
	left, ring := 0, q.sock.Tx()
	for tries := 0; ; tries++ {
		q.push()
		if left = ring.Pending(); left == 0 || tries == 64 || !q.port.link.Up() {
			break
		}
	}
	q.descs = q.descs[:0]
	for i := range left { // the ring ends with the socket
		q.descs = append(q.descs, ring.Recent(i))
	}
	err := q.sock.Close()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reap()
	n.txs = slices.DeleteFunc(slices.Clone(n.txs), func(o *txQueue) bool { return o == q })
	m := n.memory
	for _, d := range q.descs {
		at := d.Addr >> m.shift
		if at >= uint64(len(m.table)) || m.sender(*m.senders.Load(), m.table[at], n) != q.sender {
			continue // it was sent after all
		}
		last := m.table[at]&lastChunk != 0
		c := m.unsend(at)
		q.sender.gone(1)
		one := [1]mem.Handle{c.handle}
		m.put(c.src, one[:])
		if last {
			q.drops.Inc(why)
			q.out.Complete(1)
		}
	}
	q.sender.end()
	n.later()
	q.nq, q.sender, q.sock = nil, nil, nil
	return err
}

// reap takes back what was sent, unless another goroutine is transmitting, which does it.
func (q *txQueue) reap() {
	if !q.mu.TryLock() {
		return
	}
	defer q.mu.Unlock()
	if q.nq != nil {
		q.nq.mu.Lock()
		q.nq.reap()
		q.nq.mu.Unlock()
	}
}

// Forward implements engine.TxQueue. Packets in the port's memory are sent from where they lie;
// others are copied when they are sent.
func (q *txQueue) Forward(b *burst.Burst) (int, error) { return q.ForwardReached(b) }

// Stats implements engine.TxQueue.
func (q *txQueue) Stats(s *engine.TxStats) {
	busy, lost := q.busy.Load(), q.lost.Load()
	q.mu.Lock() // for a call to the kernel, at most
	*s = engine.TxStats{Bytes: q.bytes, Calls: q.calls, Copied: q.copied}
	q.mu.Unlock()
	s.Packets = q.done.Load()
	s.Packets -= min(busy, s.Packets)
	s.Drops[engine.DropRefused] = busy
	s.Drops[engine.DropUnattributed] = lost
	q.drops.AddTo(&s.Drops)
	q.AddStats(s)
	q.pacer.AddStats(s)
}

// Close implements engine.TxQueue.
func (q *txQueue) Close() error {
	q.Shut()
	p := q.port
	p.rxs.Lock()
	defer p.rxs.Unlock()
	if !slices.Contains(p.txs, q) {
		return nil
	}
	return p.ns.Do(func() error { return p.dismissTx(q) })
}

// complete counts packets that the kernel has done with. The caller holds the mutex of the
// nicQueue.
func (q *txQueue) complete(n int) {
	if n == 0 {
		return
	}
	q.done.Add(uint64(n))
	if q.pacer == nil {
		q.out.Complete(n)
	} else if q.owed.Add(int64(n)); !q.pacing.Load() {
		q.out.Complete(int(q.owed.Swap(0)))
	}
}

// paced is the pacer as the outbox sees it. The kernel may finish packets before the pacer has
// counted them: the outbox learns that they are done after that, so that the figures are whole when
// Drain returns.
type paced txQueue

// Transmit implements engine.Sink.
func (d *paced) Transmit(b *burst.Burst, from, to int) (int, time.Time) {
	q := (*txQueue)(d)
	q.pacing.Store(true)
	next, again := q.pacer.Transmit(b, from, to)
	q.pacing.Store(false)
	if n := q.owed.Swap(0); n > 0 {
		q.out.Complete(int(n))
	}
	return next, again
}

// device is the queue's end of the outbox.
type device txQueue

// Transmit implements engine.Sink.
func (d *device) Transmit(b *burst.Burst, from, to int) (int, time.Time) {
	q := (*txQueue)(d)
	q.mu.Lock() // also for the counters: shut drops as well
	defer q.mu.Unlock()
	if !q.port.link.Up() || q.port.broken.Load() != nil {
		n := b.Builder().LivePart(from, to)
		q.drops.Add(engine.DropDown, uint64(n))
		q.out.Complete(n)
		return to, time.Time{}
	}
	if q.sock == nil {
		return from, time.Now().Add(sendAgain) // the port is restarting
	}
	for from < to {
		next := q.post(b, from, to)
		if next > from {
			q.push()
			from = next
			continue
		}
		before := q.sock.Tx().Pending()
		q.push()
		if q.sock.Tx().Pending() == before {
			return from, time.Now().Add(sendAgain)
		}
	}
	return to, time.Time{}
}

// post gives packets from to to-1 to the kernel, as many as there is room for, and returns the
// number of the first that it has not dealt with. The caller holds mu.
func (q *txQueue) post(b *burst.Burst, from, to int) int {
	n := q.nq
	n.mu.Lock()
	defer n.mu.Unlock()
	room := min(q.sock.Tx().Room(), cap(q.descs))
	q.descs = q.descs[:0]
	limit := q.port.link.MTU() + packet.EthernetLen
	taken, bytes, dropped := from, 0, 0 // packets from taken on are in place, and forgotten together
	i := from
	for ; i < to; i++ {
		had := len(q.descs)
		if k, sum := q.forwardRun(b, i, min(to, i+room-had), limit); k > 0 {
			bytes += sum
			if i += k; i == to {
				break
			}
			had += k
		}
		k := b.Segments(i)
		if k == 0 {
			continue
		}
		if room-had < min(k, maxPieces) {
			break
		}
		size := b.PacketLen(i)
		if size > limit && !tagged(b.Bytes(i, 0), size-limit) || size < packet.EthernetLen {
			why := engine.DropTooLong
			if size < packet.EthernetLen {
				why = engine.DropBadFrame
			}
			q.drops.Inc(why)
			dropped++
			b.Builder().ForgetPart(taken, i)
			taken = i + 1
			continue
		}
		if q.gather(b, i) {
			bytes += size
			q.enter(had)
			continue
		}
		q.descs = q.descs[:had]
		pieces := (size + int(n.memory.chunk) - 1) / int(n.memory.chunk)
		if why := q.cannotCopy(size, pieces); why != engine.NumDrops {
			q.drops.Inc(why)
			dropped++
			b.Builder().ForgetPart(taken, i)
			taken = i + 1
			continue
		}
		if !q.copyOut(b, i, size, pieces, room-had) {
			break
		}
		bytes += size
		q.enter(had)
		b.Builder().ForgetPart(taken, i)
		taken = i + 1
	}
	b.Builder().ForgetPart(taken, i)
	q.sock.Tx().Put(q.descs)
	n.inFlight += len(q.descs)
	q.sender.inFlight += len(q.descs)
	q.bytes += uint64(bytes)
	if dropped > 0 {
		q.out.Complete(dropped)
	}
	return i
}

// forwardRun makes the descriptors of packets from from on, to to-1 at most, that each lie in one
// chunk that was received into this memory, and enters the chunks: what a forwarder sends. It
// returns how many, and their bytes; the next one takes more thought.
func (q *txQueue) forwardRun(b *burst.Burst, from, to, limit int) (packets, bytes int) {
	m := q.nq.memory
	if m.source == nil {
		return 0, 0
	}
	run := b.Builder().Run(m.source, from, to)
	table, shift, by := m.table, m.shift, q.sender.forwards()
	descs := q.descs[len(q.descs):][:run.Len()]
	for k := range descs {
		h, off, size := run.At(k)
		at := off >> shift
		if int(size) > limit || size < packet.EthernetLen || at >= uint64(len(table)) ||
			(off+uint64(size)-1)>>shift != at || uint64(uint32(h)) != at {
			break
		}
		e := table[at]
		if h == burst.NoHandle || e&^queueMask != lentAs(h)&^queueMask {
			break
		}
		table[at] = e&^low | by
		descs[k] = xsk.Desc{Addr: off, Len: size}
		packets++
		bytes += int(size)
	}
	q.descs = q.descs[:len(q.descs)+packets]
	return packets, bytes
}

// tagged reports whether a frame is only by its VLAN tags longer than the limit: by so many bytes.
func tagged(b []byte, over int) bool {
	tags := 0
	for at := 12; at+4 <= len(b) && tags < 2; at += packet.VLANLen {
		if t := packet.EtherType(uint16(b[at])<<8 | uint16(b[at+1])); t != packet.EtherTypeVLAN &&
			t != packet.EtherTypeQinQ {
			break
		}
		tags++
	}
	return over <= tags*packet.VLANLen
}

// gather makes descriptors of packet i where it lies. It is false when that cannot be: a part of it
// is elsewhere, or has no owner of its own.
func (q *txQueue) gather(b *burst.Burst, i int) bool {
	m := q.nq.memory
	if m.region == nil {
		return false
	}
	first := len(q.descs)
	q.chunks = q.chunks[:0]
	for k := range b.Segments(i) {
		p := b.Builder().Part(i, k)
		if p.Len == 0 && p.Handle == burst.NoHandle {
			continue
		}
		end := p.Off + uint64(p.Len)
		if p.Source.Region() != m.region || p.Source.Shared() || end > m.home || p.Len == 0 ||
			(end-1)>>m.shift != p.Off>>m.shift {
			return false
		}
		if last := len(q.descs) - 1; last >= first { // the other view of the same chunk
			d, c := &q.descs[last], &q.chunks[last-first]
			if d.Addr+uint64(d.Len) == p.Off && (d.Addr>>m.shift) == p.Off>>m.shift &&
				(c.handle == burst.NoHandle || p.Handle == burst.NoHandle) {
				d.Len += p.Len
				if c.handle == burst.NoHandle {
					c.handle, c.src = p.Handle, p.Source
				}
				continue
			}
		}
		if len(q.descs)-first == maxPieces || len(q.descs) > first && !q.port.frags.Load() {
			return false
		}
		q.descs = append(q.descs, xsk.Desc{Addr: p.Off, Len: p.Len})
		q.chunks = append(q.chunks, carried{p.Handle, p.Source})
	}
	if len(q.descs) == first {
		return false
	}
	for k := first; k < len(q.descs); k++ {
		at, c := q.descs[k].Addr>>m.shift, &q.chunks[k-first]
		if c.handle == burst.NoHandle || !m.unused(at, c.src, c.handle) {
			return false
		}
		for o := first; o < k; o++ {
			if q.descs[o].Addr>>m.shift == at {
				return false
			}
		}
	}
	return true
}

// enter enters the chunks of a packet, whose descriptors begin at first, in the table.
func (q *txQueue) enter(first int) {
	m := q.nq.memory
	for k := first; k < len(q.descs); k++ {
		last := k == len(q.descs)-1
		if !last {
			q.descs[k].Options = xsk.More
		}
		at, c := q.descs[k].Addr>>m.shift, &q.chunks[k-first]
		e, state := &m.table[at], sending
		if *e&stateMask == lent {
			state = sendingLent
		}
		if c.src == m.source && c.src != nil {
			state = forwarding
		} else {
			m.origins[at].handle, m.origins[at].src = c.handle, c.src
		}
		*e = e.sentBy(q.sender, state, last)
	}
}

// cannotCopy says why a packet of so many bytes, which would take so many spare chunks, cannot be
// copied at any time; NumDrops if it can.
func (q *txQueue) cannotCopy(size, pieces int) engine.Drop {
	m := q.nq.memory
	switch {
	case m.spare == nil:
		return engine.DropNoBuffers
	case pieces > 1 && !q.port.frags.Load(), pieces > min(maxPieces, m.spare.Slots(), cap(q.descs)):
		return engine.DropTooLong
	}
	return engine.NumDrops
}

// copyOut copies packet i into spare chunks, for which there is that much room, and makes their
// descriptors. It is false when there are not enough.
func (q *txQueue) copyOut(b *burst.Burst, i, size, pieces, room int) bool {
	if pieces > room {
		return false
	}
	m := q.nq.memory
	q.chunks = q.chunks[:0]
	var handles [maxPieces]mem.Handle
	got := m.spare.GetBatch(handles[:pieces])
	if got < pieces {
		q.nq.reap() // some may have left
		got += m.spare.GetBatch(handles[got:pieces])
	}
	if got < pieces {
		m.spare.PutBatch(handles[:got])
		return false
	}
	k, off := 0, 0 // of the segment
	for _, h := range handles[:pieces] {
		a := m.home + m.spare.Offset(h)
		to := m.bytes[a : a+min(m.chunk, uint64(size))]
		size -= len(to)
		q.descs = append(q.descs, xsk.Desc{Addr: a, Len: uint32(len(to))})
		q.chunks = append(q.chunks, carried{handle: h})
		for len(to) > 0 {
			from := b.Bytes(i, k)[off:]
			c := copy(to, from)
			to = to[c:]
			q.copied += uint64(c)
			if off += c; c == len(from) {
				k, off = k+1, 0
			}
		}
	}
	return true
}

// push has the kernel send what is in the ring. The caller holds mu.
func (q *txQueue) push() {
	ring := q.sock.Tx()
	before := -1
	for {
		if !q.sock.NeedWakeTx() {
			break
		}
		e := q.sock.WakeTx()
		q.calls++
		if e == sys.EBUSY {
			q.busy.Add(1)
			continue
		}
		if e != sys.EAGAIN {
			break
		}
		left := ring.Pending()
		if left == 0 || left == before {
			break
		}
		if before >= 0 {
			q.nq.take()
		}
		before = left
	}
	q.nq.take()
}

// take takes what was sent, and has the timer look later if there is more to come.
func (n *nicQueue) take() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.visits++
	n.reap()
	n.later()
}

// resume has the kernel go on with what is in the ring, and the outbox with what is in front of it.
func (q *txQueue) resume() {
	if q.mu.TryLock() { // otherwise another goroutine is at it
		if q.sock != nil && q.sock.Tx().Pending() > 0 {
			q.push()
		}
		q.mu.Unlock()
	}
	if q.out.Queued() > 0 {
		q.out.Kick()
	}
}
