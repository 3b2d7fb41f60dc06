package xdp

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/xdp/prog"
	"github.com/penstock-io/penstock/internal/xsk"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// rxQueue is a logical receive queue: a socket on each queue of the interface that the port uses.
// It implements engine.RxQueue and engine.RxDevice.
type rxQueue struct {
	engine.RxFront
	port  *Port
	pools [2]*mem.Pool // the second with header/data split
	srcs  [2]*burst.Source

	// The queue's lock guards the next fields.
	sockets []*rxSocket
	turn    int           // of the one to ask first
	whole   bool          // packets, or payloads, are where the kernel put them
	caches  [2]*mem.Cache // of the pools, for packets that are copied
	bytes   [2][]byte     // of the pools' regions
	pieces  []piece       // of the packet that is being placed
	scratch []byte        // as long as a packet of several chunks
}

// rxSocket is one socket of a receive queue, and what was taken from its ring and not given to the
// owner yet.
type rxSocket struct {
	nq       *nicQueue
	sock     *xsk.Socket
	descs    [rxBatch]xsk.Desc
	at, n    int
	notifies bool           // the kernel notifies engine.Events of each packet
	since    int            // packets since that was asked for
	counted  xsk.Statistics // by the kernel, and added to the queue's counts

	waker *engine.Waker // of the owner, which sleeps as far as is known; under nq.mu
}

// AddRxQueue implements engine.Port.
func (p *Port) AddRxQueue(spec engine.RxSpec) (engine.RxQueue, error) {
	p.rxs.Lock()
	defer p.rxs.Unlock()
	if err := p.usable(); err != nil {
		return nil, err
	}
	if spec.ID.Number() >= maxQueues { // the program has no more
		return nil, fmt.Errorf("xdp: %s: receive queue %v: expected 0 to %d: %w", p.name, spec.ID, maxQueues-1,
			engine.ErrInvalid)
	}
	can := p.capabilities()
	if err := p.rxs.Admit(&spec, &can); err != nil {
		return nil, fmt.Errorf("xdp: %s: %w", p.name, err)
	}
	q := p.newRx(spec)
	if err := p.ns.Do(func() error { return p.admitRx(q) }); err != nil {
		return nil, err
	}
	return q, nil
}

func (p *Port) newRx(spec engine.RxSpec) *rxQueue {
	q := &rxQueue{port: p, pieces: make([]piece, 0, burst.MaxSegments)}
	for i, pool := range spec.Pools {
		q.pools[i], q.srcs[i], q.caches[i], q.bytes[i] = pool, burst.PoolSource(pool), pool.Cache(),
			pool.Region().All().Bytes()
	}
	q.Start(spec, q)
	q.Inbox(2*spec.Depth+rxBatch, 4*spec.Depth+rxBatch)
	return q
}

// data is the pool into which the kernel would have to receive.
func (q *rxQueue) data() *mem.Pool {
	if q.pools[1] != nil {
		return q.pools[1]
	}
	return q.pools[0]
}

// ring is the number of entries of the receive ring of each socket: so many packets can wait in it,
// whatever the Depth.
func (q *rxQueue) ring() int { return max(64, 1<<bits.Len(uint(q.Spec().Depth-1))) }

// open opens the sockets of the queue. The caller holds the lock of port.rxs and is in the port's
// namespace.
func (q *rxQueue) open() error {
	var sockets []*rxSocket
	defer func() { // also where some are missing: shut closes them
		q.Do(func() { q.sockets, q.whole = sockets, q.port.feed.pool == q.data() })
	}()
	size := q.ring()
	for _, n := range q.port.nqs {
		s, err := n.queue.OpenSocket(xsk.SocketConfig{RxSize: size, BusyPoll: q.port.o.busyPoll()})
		if err != nil {
			return q.port.explain(err)
		}
		sockets = append(sockets, &rxSocket{nq: n, sock: s})
		if err := engine.Events.Add(s.FD()); err != nil {
			return fmt.Errorf("xdp: %s: %w", q.port.name, err)
		}
		engine.Events.Quiet(s.FD()) // an owner that only polls never waits
	}
	return nil
}

// shut closes the sockets. The program gives them nothing any more. What waits in them is added to
// kept, if that is not nil, and the rest is dropped for a reason. The queue's lock is held.
func (q *rxQueue) shut(why engine.Drop, kept *burst.Burst) error {
	var err error
	for _, s := range q.sockets {
		if kept != nil {
			for q.receive(s, kept) > 0 {
			}
		}
		q.Drop(why, uint64(q.flush(s)))
		s.nq.mu.Lock()
		s.nq.sleepers = slices.DeleteFunc(s.nq.sleepers, func(o *rxSocket) bool { return o == s })
		s.nq.mu.Unlock()
		q.account(s)
		engine.Events.Remove(s.sock.FD())
		if e := s.sock.Close(); e != nil {
			err = e
		}
	}
	q.sockets, q.turn = nil, 0
	return err
}

// Stop implements engine.RxDevice.
func (q *rxQueue) Stop(why engine.Drop) error {
	err := q.shut(why, nil)
	for _, c := range q.caches {
		if c != nil {
			c.Close()
		}
	}
	return err
}

// suspend closes the sockets, so that the kernel gives every chunk back. What waits in them waits
// in the inbox then, as far as there is room.
func (q *rxQueue) suspend() (err error) {
	q.Do(func() {
		err = q.shut(engine.DropQueueFull, q.Bring())
		q.Brought()
	})
	return err
}

// Collect implements engine.RxDevice.
func (q *rxQueue) Collect(b *burst.Burst) error {
	had := b.Len()
	for range q.sockets {
		s := q.sockets[q.turn]
		if q.turn++; q.turn == len(q.sockets) {
			q.turn = 0
		}
		got := q.receive(s, b)
		if s.notifies {
			s.polled(got)
		}
		if b.Room() == 0 {
			return nil
		}
	}
	if b.Len() > had {
		return nil
	}
	err := q.port.failed()
	if err != nil && slices.ContainsFunc(q.sockets, func(s *rxSocket) bool { return s.next() > 0 }) {
		return nil // b has no room for it
	}
	return err
}

// failed says why queues bring nothing any more.
func (p *Port) failed() error {
	if p.link.Gone() {
		return ErrRemoved
	}
	if err := p.broken.Load(); err != nil {
		return *err
	}
	return nil
}

// quietAfter is the number of packets between two sleeps from which on the kernel need not notify
// of each: that costs it as much as the two system calls that are saved otherwise.
const quietAfter = 256

// polled counts packets of an owner that does not sleep.
func (s *rxSocket) polled(got int) {
	if s.since += got; s.since >= quietAfter {
		s.since = 0
		s.notifies = !engine.Events.Quiet(s.sock.FD())
	}
}

// next is the number of descriptors of the packet that comes next, 0 if it is not there, or not all
// of it.
func (s *rxSocket) next() int {
	for i := s.at; i < s.n; i++ {
		if s.descs[i].Options&xsk.More == 0 {
			return i - s.at + 1
		}
	}
	return 0
}

// load takes descriptors from the ring, and reports whether a packet is there.
func (s *rxSocket) load() bool {
	if s.at > 0 {
		s.n = copy(s.descs[:], s.descs[s.at:s.n])
		s.at = 0
	}
	s.n += s.sock.Rx().Get(s.descs[s.n:])
	return s.next() > 0
}

// receive adds the packets of a socket to b, as many as there is room for, and returns how many.
func (q *rxQueue) receive(s *rxSocket, b *burst.Burst) (got int) {
	busy := q.port.o.BusyPoll > 0
	if busy {
		s.sock.WakeRx()
		q.Calls(1)
	}
	n := s.nq
	filled, first := false, b.Len()
	for more := true; more && b.Room() > 0; {
		some := s.next() > 0 || s.load()
		if !some && !n.wants() {
			break
		}
		// A ring that had less than a batch has no more, or little: its index, which the kernel
		// writes elsewhere, is not fetched for that.
		more = s.n == len(s.descs)
		n.mu.Lock()
		n.refill() // with what was released since the last time
		filled = true
		had := n.out
		room := true
		for k := s.next(); k > 0 && room; k = s.next() {
			if k == 1 && q.whole && q.pools[1] == nil {
				if added := q.placeRun(n, b, s); added > 0 {
					got += added
					continue
				}
			}
			var added int
			if added, room = q.place(n, b, s.descs[s.at:s.at+k]); room {
				got += added
				s.at += k
			}
		}
		n.count()
		n.wakeSleepers(s, n.out < had)
		n.mu.Unlock()
		more = more && room && some
	}
	if filled && !busy && s.wake() {
		q.Calls(1)
	}
	if card, _ := n.queue.ZeroCopy(); !card {
		q.markPartial(b, first)
	}
	return got
}

// markPartial marks the packets of b from first on whose checksum is not computed yet. XDP does not
// say so; the field does. Frames that a card put into the memory itself always have a checksum;
// what the kernel copied may be from this machine.
func (q *rxQueue) markPartial(b *burst.Burst, first int) {
	var l packet.Layers
	for i := first; i < b.Len(); i++ {
		frame := b.Bytes(i, 0)
		if b.Segments(i) > 1 {
			if size := b.PacketLen(i); len(q.scratch) < size {
				q.scratch = make([]byte, max(size, 1<<16)) // once
			}
			frame = q.scratch[:b.CopyTo(q.scratch, i)]
		}
		if _, partial := packet.FindPartial(frame, &l); partial {
			b.Builder().SetPartial(i)
		}
	}
}

// placeRun adds the next packets that each lie in one chunk, at the same place in it, and returns
// how many. The caller holds n.mu.
func (q *rxQueue) placeRun(n *nicQueue, b *burst.Burst, s *rxSocket) int {
	m := n.memory
	table, shift, inside, mine := m.table, m.shift, m.chunk-1, n.tag|filled
	descs := s.descs[s.at:s.n]
	off := descs[0].Addr & inside
	room := m.chunk - off
	first := b.Len()
	rows := b.Builder().Rows(m.source, len(descs), burst.Segment{Cap: uint32(room), Headroom: uint16(off)})
	descs = descs[:rows.Len()]
	k := 0
	for ; k < len(descs); k++ {
		d := &descs[k]
		at := d.Addr >> shift
		if d.Options&xsk.More != 0 || d.Addr&inside != off || uint64(d.Len) > room || at >= uint64(len(table)) {
			break
		}
		e := table[at]
		if e&(queueMask|stateMask) != mine {
			break
		}
		e = e.delivered()
		table[at] = e
		rows.Set(k, e.handle(at), d.Addr, d.Len)
	}
	b.Builder().AddRows(k)
	if q.port.meta.Load() {
		for i := range k {
			a := descs[i].Addr
			if t, ok := prog.TakeMeta(m.bytes[a-off : a]); ok {
				q.note(b, first+i, &t)
			}
		}
	}
	s.at += k
	n.out -= k
	return k
}

// place adds a packet to b. room is false when there is none, and nothing has happened; added is 0
// when it was dropped, which is counted. The caller holds n.mu.
func (q *rxQueue) place(n *nicQueue, b *burst.Burst, d []xsk.Desc) (added int, room bool) {
	if !q.whole || q.pools[1] != nil {
		return q.placeMore(n, b, d)
	}
	if len(d) > 1 {
		if q.placeChain(n, b, d) {
			return 1, true
		}
		return q.placeMore(n, b, d)
	}
	if !n.received(&d[0]) {
		q.Drop(engine.DropUnattributed, 1)
		return 0, true
	}
	m := n.memory
	off := d[0].Addr & (m.chunk - 1)
	i := b.Builder().Add(m.source, burst.Segment{Handle: m.handle(d[0].Addr), Off: d[0].Addr, Len: d[0].Len,
		Cap: uint32(m.chunk - off), Headroom: uint16(off)})
	if i < 0 {
		return 0, false
	}
	if q.port.meta.Load() {
		if t, ok := prog.TakeMeta(m.bytes[d[0].Addr-off : d[0].Addr]); ok {
			q.note(b, i, &t)
		}
	}
	e := &m.table[d[0].Addr>>m.shift]
	*e = e.delivered()
	n.out--
	return 1, true
}

// note notes what the program says of packet i.
func (q *rxQueue) note(b *burst.Burst, i int, t *prog.Meta) {
	if t.Rule != 0 {
		b.Builder().SetFlow(i, t.Rule)
	}
	if t.HasTime && t.Time != 0 && q.Spec().HardwareTime {
		b.Builder().SetReceived(i, 0, burst.HasTime|burst.HardwareTime, t.Time)
	}
}

// flush throws away what waits in a socket and returns the number of packets.
func (q *rxQueue) flush(s *rxSocket) (packets int) {
	n := s.nq
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		for ; s.at < s.n; s.at++ {
			d := &s.descs[s.at]
			if n.received(d) {
				n.reuse(d.Addr)
			}
			if d.Options&xsk.More == 0 {
				packets++
			}
		}
		if s.at, s.n = 0, s.sock.Rx().Get(s.descs[:]); s.n == 0 {
			n.refill()
			return packets
		}
	}
}

// Flush implements engine.RxDiscarder.
func (q *rxQueue) Flush() (n int) {
	for _, s := range q.sockets {
		n += q.flush(s)
	}
	return n
}

// Watch implements engine.RxDevice.
func (q *rxQueue) Watch(w *engine.Waker) engine.Armed {
	if q.port.failed() != nil {
		return engine.ArmedReady
	}
	for _, s := range q.sockets {
		if s.next() > 0 || s.sock.Rx().Ready() > 0 && s.load() {
			return engine.ArmedReady
		}
	}
	armed := engine.ArmedWake
	for _, s := range q.sockets {
		if s.nq.starving(s, w) {
			armed = engine.ArmedPoll
		}
		s.wake()
		s.notifies, s.since = true, 0
		if engine.Events.Arm(s.sock.FD(), w) != nil {
			return engine.ArmedReady
		}
	}
	return armed
}

// Account implements engine.RxAccounter: the kernel says what it dropped.
func (q *rxQueue) Account() {
	for _, s := range q.sockets {
		q.account(s)
	}
}

func (q *rxQueue) account(s *rxSocket) {
	var now xsk.Statistics
	if s.sock.Statistics(&now) == nil {
		q.Drop(engine.DropNoBuffers, now.RxDropped-s.counted.RxDropped)
		q.Drop(engine.DropQueueFull, now.RxRingFull-s.counted.RxRingFull)
		s.counted = now
	}
}

// Close implements engine.RxQueue.
func (q *rxQueue) Close() error {
	p := q.port
	p.rxs.Lock()
	defer p.rxs.Unlock()
	if !slices.Contains(p.rxs.Live(), q) {
		return nil
	}
	return p.ns.Do(func() error { return p.dismissRx(q) })
}
