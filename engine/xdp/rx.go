package xdp

import (
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/xdp/prog"
	"github.com/penstock-io/penstock/internal/xsk"
	"github.com/penstock-io/penstock/mem"
)

// rxQueue is a logical receive queue: a socket on each queue of the interface that the port uses. It implements engine.RxQueue.
type rxQueue struct {
	port  *Port
	id    int
	spec  engine.RxSpec
	pools [2]*mem.Pool // the second with header/data split
	srcs  [2]*burst.Source

	mu      sync.Mutex // of the owner, and of whoever closes the port or counts
	ins     []*intake
	turn    int  // of the one to ask first
	whole   bool // packets, or payloads, are where the kernel put them
	pending *burst.Burst
	one     *burst.Burst // of one packet, to drop the first of pending
	slots   [2]stash
	pieces  []piece // of the packet that is being placed
	sum     uint64  // bytes of the packets of this call
	scratch []byte  // as long as a packet of several chunks
	waker   *engine.Waker
	retry   *time.Timer
	closed  bool
	past    xsk.Statistics // of sockets that were closed

	packets, bytes, polls, empty, calls, copied uint64
	drops                                       [engine.NumDrops]atomic.Uint64
}

// intake is one socket of a receive queue, and what was taken from its ring and not given to the owner yet.
type intake struct {
	nq    *nicQueue
	sock  *xsk.Socket
	descs [rxBatch]xsk.Desc
	at, n int
	heard bool // the kernel tells engine.Events of each packet
	since int  // packets since that was asked for

	asleep *engine.Waker // of the owner, who sleeps as far as is known; under nq.mu
}

// AddRxQueue implements engine.Port.
func (p *Port) AddRxQueue(spec engine.RxSpec) (engine.RxQueue, error) {
	q, err := p.newRx(spec)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.usable(); err != nil {
		return nil, err
	}
	used := make([]int, len(p.rxs))
	for i, q := range p.rxs {
		used[i] = q.id
	}
	if q.id, err = number(used, spec.ID); err != nil {
		return nil, fmt.Errorf("xdp: receive queue %d of %s: %w", spec.ID, p.name, err)
	}
	rxs := append(slices.Clone(p.rxs), q)
	slices.SortFunc(rxs, func(a, b *rxQueue) int { return a.id - b.id })
	if err := p.ns.do(func() error { return p.admitRx(q, rxs) }); err != nil {
		return nil, err
	}
	return q, nil
}

func (p *Port) newRx(spec engine.RxSpec) (*rxQueue, error) {
	bad := func(format string, args ...any) (*rxQueue, error) {
		return nil, fmt.Errorf("xdp: receive queue of %s: %s: %w", p.name, fmt.Sprintf(format, args...), engine.ErrInvalid)
	}
	if spec.Depth == 0 {
		spec.Depth = min(1024, p.o.Ring)
	}
	switch {
	case spec.Options != nil:
		return bad("options of type %T: expected none", spec.Options)
	case spec.Depth < 0 || spec.Depth > p.o.Ring:
		return bad("depth of %d packets: expected 1 to %d, the size of the rings (Options.Ring)", spec.Depth, p.o.Ring)
	case len(spec.Pools) < 1 || len(spec.Pools) > 2 || slices.Contains(spec.Pools, nil):
		return bad("%d pools: expected one, or two for header/data split", len(spec.Pools))
	case spec.SplitAt != 0 && len(spec.Pools) != 2:
		return bad("split at %d with %d pools: expected two", spec.SplitAt, len(spec.Pools))
	case spec.SplitAt < 0 || len(spec.Pools) == 2 && spec.SplitAt > spec.Pools[0].SlotSize():
		return bad("split at %d: expected 0 to %d, the slot of the header pool", spec.SplitAt, spec.Pools[0].SlotSize())
	case spec.Conn != 0:
		return bad("connection %d: frames belong to none", spec.Conn)
	case spec.Timestamps && !spec.HardwareTime, spec.HardwareTime && !p.times:
		return nil, fmt.Errorf("xdp: receive queue of %s: %s: %w", p.name, noTimes, engine.ErrUnsupported)
	}
	q := &rxQueue{port: p, spec: spec}
	for i, pool := range spec.Pools {
		if pool.Region().All().Bytes() == nil {
			return nil, fmt.Errorf("xdp: pool %s is in memory that the CPU cannot reach: %w", pool.Name(), engine.ErrUnsupported)
		}
		q.pools[i], q.srcs[i] = pool, burst.PoolSource(pool)
		q.slots[i].init(pool)
	}
	q.pieces = make([]piece, 0, burst.MaxSegments)
	q.pending = burst.NewSegmented(2*spec.Depth+rxBatch, 4*spec.Depth+rxBatch)
	q.one = burst.NewSegmented(1, burst.MaxSegments)
	return q, nil
}

// data is the pool into which the kernel would have to receive.
func (q *rxQueue) data() *mem.Pool {
	if q.pools[1] != nil {
		return q.pools[1]
	}
	return q.pools[0]
}

// ring is the number of entries of the receive ring of each socket: so many packets can wait in it, whatever the Depth.
func (q *rxQueue) ring() int { return max(64, 1<<bits.Len(uint(q.spec.Depth-1))) }

// open opens the sockets of the queue. The caller holds port.mu and is in its namespace.
func (q *rxQueue) open() error {
	q.whole = q.port.feed.pool == q.data()
	size := q.ring()
	for _, n := range q.port.nqs {
		s, err := n.queue.OpenSocket(xsk.SocketConfig{RxSize: size, BusyPoll: q.port.o.busyPoll()})
		if err != nil {
			return q.port.explain(err)
		}
		q.ins = append(q.ins, &intake{nq: n, sock: s})
		if err := engine.Events.Add(s.FD()); err != nil {
			return fmt.Errorf("xdp: %s: %w", q.port.name, err)
		}
		engine.Events.Quiet(s.FD()) // who only polls never waits
	}
	return nil
}

// shut closes the sockets. What waits in them goes to pending, or is dropped for a reason. The program gives them nothing any more.
func (q *rxQueue) shut(why engine.Drop, keep bool) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	var err error
	for _, in := range q.ins {
		if keep {
			for q.receive(in, q.pending) > 0 {
			}
		}
		q.drop(why, uint64(q.discard(in)))
		in.nq.mu.Lock()
		in.nq.sleepers = slices.DeleteFunc(in.nq.sleepers, func(o *intake) bool { return o == in })
		in.nq.mu.Unlock()
		var s xsk.Statistics
		if in.sock.Statistics(&s) == nil {
			q.past.RxDropped += s.RxDropped
			q.past.RxRingFull += s.RxRingFull
		}
		engine.Events.Remove(in.sock.FD())
		if e := in.sock.Close(); e != nil {
			err = e
		}
	}
	q.ins, q.turn = nil, 0
	return err
}

// ID implements engine.RxQueue.
func (q *rxQueue) ID() int { return q.id }

// TryRecv implements engine.RxQueue.
func (q *rxQueue) TryRecv(b *burst.Burst) (int, error) {
	if b == nil {
		return 0, engine.ErrNil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.polls++
	n := 0
	q.sum = 0
	if q.pending.Len() > 0 {
		n = q.kept(b)
		for i := b.Len() - n; i < b.Len(); i++ {
			q.sum += uint64(b.PacketLen(i))
		}
	}
	for range q.ins {
		if q.pending.Len() > 0 {
			break // it is older than what the sockets have
		}
		in := q.ins[q.turn]
		if q.turn++; q.turn == len(q.ins) {
			q.turn = 0
		}
		got := q.receive(in, b)
		n += got
		if in.heard {
			in.hush(got)
		}
		if b.Room() == 0 {
			break
		}
	}
	if n > 0 {
		q.packets += uint64(n)
		q.bytes += q.sum
		return n, nil
	}
	q.empty++
	switch {
	case q.pending.Len() > 0:
	case q.closed:
		return 0, engine.ErrClosed
	case q.port.link.Gone():
		return 0, ErrRemoved
	case q.port.broken.Load() != nil:
		return 0, *q.port.broken.Load()
	}
	return 0, nil
}

// kept moves packets to b that waited while the port started anew. The caller holds mu.
func (q *rxQueue) kept(b *burst.Burst) int {
	n, dropped := engine.MoveKept(b, q.pending, q.one)
	if dropped > 0 {
		q.drop(engine.DropTooLong, uint64(dropped))
	}
	return n
}

// hushed is the number of packets between two sleeps from which on the kernel need not tell of each: that costs it as much as the two
// system calls that are saved otherwise.
const hushed = 256

// hush counts packets of who does not sleep.
func (in *intake) hush(got int) {
	if in.since += got; in.since >= hushed {
		in.since = 0
		in.heard = !engine.Events.Quiet(in.sock.FD())
	}
}

// next is the number of descriptors of the packet that comes next, 0 if it is not there, or not all of it.
func (in *intake) next() int {
	for i := in.at; i < in.n; i++ {
		if in.descs[i].Options&xsk.More == 0 {
			return i - in.at + 1
		}
	}
	return 0
}

// load takes descriptors from the ring, and reports whether a packet is there.
func (in *intake) load() bool {
	if in.at > 0 {
		in.n = copy(in.descs[:], in.descs[in.at:in.n])
		in.at = 0
	}
	in.n += in.sock.Rx().Get(in.descs[in.n:])
	return in.next() > 0
}

// receive adds the packets of a socket to b, as many as there is room for, and returns how many.
func (q *rxQueue) receive(in *intake, b *burst.Burst) (got int) {
	busy := q.port.o.BusyPoll > 0
	if busy {
		in.sock.WakeRx()
		q.calls++
	}
	n := in.nq
	filled := false
	for more := true; more && b.Room() > 0; {
		some := in.next() > 0 || in.load()
		if !some && !n.wants() {
			break
		}
		// A ring that had less than a batch has no more, or little: its index, which the kernel writes elsewhere, is not fetched for that.
		more = in.n == len(in.descs)
		n.mu.Lock()
		n.refill() // with what was released since the last time
		filled = true
		had := n.out
		room := true
		for k := in.next(); k > 0 && room; k = in.next() {
			if k == 1 && q.whole && q.pools[1] == nil {
				if added := q.placeRun(n, b, in); added > 0 {
					got += added
					continue
				}
			}
			var added int
			if added, room = q.place(n, b, in.descs[in.at:in.at+k]); room {
				got += added
				in.at += k
			}
		}
		n.count()
		n.rouse(in, n.out < had)
		n.mu.Unlock()
		more = more && room && some
	}
	if filled && !busy && in.wake() {
		q.calls++
	}
	return got
}

// placeRun adds the next packets that each lie in one chunk, at the same place in it, and returns how many. The caller holds n.mu.
func (q *rxQueue) placeRun(n *nicQueue, b *burst.Burst, in *intake) int {
	m := n.memory
	table, shift, inside, mine := m.table, m.shift, m.chunk-1, n.lane|filled
	descs := in.descs[in.at:in.n]
	off := descs[0].Addr & inside
	room := m.chunk - off
	first := b.Len()
	rows := b.Rows(m.source, len(descs), burst.Segment{Cap: uint32(room), Headroom: uint16(off)})
	descs = descs[:rows.Len()]
	k, sum := 0, uint64(0)
	for ; k < len(descs); k++ {
		d := &descs[k]
		at := d.Addr >> shift
		if d.Options&xsk.More != 0 || d.Addr&inside != off || uint64(d.Len) > room || at >= uint64(len(table)) {
			break
		}
		e := table[at]
		if e&(lanes|stateMask) != mine {
			break
		}
		e = e.delivered()
		table[at] = e
		rows.Set(k, e.handle(at), d.Addr, d.Len)
		sum += uint64(d.Len)
	}
	b.AddRows(k)
	if q.port.tells.Load() {
		for i := range k {
			a := descs[i].Addr
			if t, ok := prog.TakeMeta(m.bytes[a-off : a]); ok {
				q.note(b, first+i, &t)
			}
		}
	}
	in.at += k
	n.out -= k
	q.sum += sum
	return k
}

// place adds a packet to b. room is false when there is none, and nothing has happened; added is 0 when it was dropped, which is
// counted. The caller holds n.mu.
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
		q.drop(engine.DropUnattributed, 1)
		return 0, true
	}
	m := n.memory
	off := d[0].Addr & (m.chunk - 1)
	i := b.Add(m.source, burst.Segment{Handle: m.handle(d[0].Addr), Off: d[0].Addr, Len: d[0].Len, Cap: uint32(m.chunk - off), Headroom: uint16(off)})
	if i < 0 {
		return 0, false
	}
	if q.port.tells.Load() {
		if t, ok := prog.TakeMeta(m.bytes[d[0].Addr-off : d[0].Addr]); ok {
			q.note(b, i, &t)
		}
	}
	e := &m.table[d[0].Addr>>m.shift]
	*e = e.delivered()
	n.out--
	q.sum += uint64(d[0].Len)
	return 1, true
}

// note notes what the program says of packet i.
func (q *rxQueue) note(b *burst.Burst, i int, t *prog.Meta) {
	if t.Rule != 0 {
		b.SetFlow(i, t.Rule)
	}
	if t.HasTime && t.Time != 0 && q.spec.HardwareTime {
		b.SetReceived(i, 0, burst.HasTime|burst.HardwareTime, t.Time)
	}
}

// discard throws away what waits in a socket and returns the number of packets.
func (q *rxQueue) discard(in *intake) (packets int) {
	n := in.nq
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		for ; in.at < in.n; in.at++ {
			d := &in.descs[in.at]
			if n.received(d) {
				n.again(d.Addr)
			}
			if d.Options&xsk.More == 0 {
				packets++
			}
		}
		if in.at, in.n = 0, in.sock.Rx().Get(in.descs[:]); in.n == 0 {
			n.refill()
			return packets
		}
	}
}

func (q *rxQueue) drop(why engine.Drop, n uint64) {
	if n > 0 {
		q.drops[why].Add(n)
	}
}

// waits is how long to sleep at most where no packet can wake the owner.
const rearm = time.Millisecond / 2

// Arm implements engine.RxQueue.
func (q *rxQueue) Arm(w *engine.Waker) (ready bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waker = w
	if q.closed || q.pending.Len() > 0 || q.port.link.Gone() || q.port.broken.Load() != nil {
		return true
	}
	for _, in := range q.ins {
		if in.next() > 0 || in.sock.Rx().Ready() > 0 && in.load() {
			return true
		}
	}
	for _, in := range q.ins {
		if in.nq.starving(in, w) {
			q.later()
		}
		in.wake()
		in.heard, in.since = true, 0
		if engine.Events.Arm(in.sock.FD(), w) != nil {
			return true
		}
	}
	return false
}

// later wakes the queue after a while. The caller holds mu.
func (q *rxQueue) later() {
	if q.retry == nil {
		q.retry = time.AfterFunc(rearm, q.wake)
	} else {
		q.retry.Reset(rearm)
	}
}

func (q *rxQueue) wake() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wakeLocked()
}

func (q *rxQueue) wakeLocked() {
	if w := q.waker; w != nil {
		q.waker = nil
		w.Wake()
	}
}

// Discard implements engine.RxQueue.
func (q *rxQueue) Discard() (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return 0, engine.ErrClosed
	}
	n := q.pending.Len()
	q.pending.Release()
	for _, in := range q.ins {
		n += q.discard(in)
	}
	q.drop(engine.DropFlushed, uint64(n))
	return n, nil
}

// Stats implements engine.RxQueue. It asks the kernel for what it dropped.
func (q *rxQueue) Stats(s *engine.RxStats) {
	q.mu.Lock()
	defer q.mu.Unlock()
	*s = engine.RxStats{Packets: q.packets, Bytes: q.bytes, Polls: q.polls, Empty: q.empty, Copied: q.copied, Calls: q.calls}
	for i := range q.drops {
		s.Drops[i] = q.drops[i].Load()
	}
	kernel := q.past
	for _, in := range q.ins {
		var one xsk.Statistics
		if in.sock.Statistics(&one) == nil {
			kernel.RxDropped += one.RxDropped
			kernel.RxRingFull += one.RxRingFull
		}
	}
	s.Drops[engine.DropNoBuffers] += kernel.RxDropped
	s.Drops[engine.DropQueueFull] += kernel.RxRingFull
}

// Close implements engine.RxQueue.
func (q *rxQueue) Close() error {
	p := q.port
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(p.rxs, q) {
		return nil
	}
	return p.ns.do(func() error { return p.dismissRx(q) })
}

// end ends the queue, whose sockets are closed.
func (q *rxQueue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.drop(engine.DropClosed, uint64(q.pending.Len()))
	q.pending.Release()
	for i := range q.slots {
		q.slots[i].close()
	}
	if q.retry != nil {
		q.retry.Stop()
	}
	q.wakeLocked()
}
