package socket

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/metrics"
)

// udpRx is a receive queue of a UDPPort. Its mutex is for those who close the port and look at statistics; the owner finds it free.
type udpRx struct {
	port *UDPPort
	id   int

	mu     sync.Mutex
	closed bool
	sock   udpSocket
	slots  slots
	msgs   *sys.Messages
	ids    []uint32 // of the senders of msgs
	lens   []uint32 // of msgs
	whole  bool     // all of msgs fit
	blocks *blocks  // with GRO
	// Messages at to got were received and are not given to the owner yet; of the first one those before off have been.
	at, got, off int
	meta         bool // messages have control messages
	times        bool
	hardware     bool
	waker        *engine.Waker // that Arm was given last
	watched      bool          // engine.Events knows the socket
	retry        engine.Retry

	packets, bytes, polls, empty, calls metrics.Counter
	drops                               engine.DropCounters
}

var _ engine.RxQueue = (*udpRx)(nil)

const (
	metaRoom = 128       // bytes of control messages of a datagram
	groSlot  = 1<<16 - 1 // the most that GRO puts together
	// perPacket is what the kernel needs for a packet besides its bytes, and what it loses by rounding up.
	perPacket = 1024
	// kernelLook is how often, in calls of TryRecv, the kernel is asked for its drops, whose count has 32 bits.
	kernelLook = 1 << 16
)

// AddRxQueue implements engine.Port.
func (p *UDPPort) AddRxQueue(spec engine.RxSpec) (engine.RxQueue, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, engine.ErrClosed
	}
	id, err := freeID(spec.ID, p.o.Queues, p.rx)
	if err != nil {
		return nil, err
	}
	if err := checkRx(spec, id); err != nil {
		return nil, err
	}
	pool := spec.Pools[0]
	switch {
	case spec.Conn != 0:
		return nil, failed(engine.ErrUnsupported, "receive queue %d: a UDP port cannot bind a queue to one peer; open a port with remote=", id)
	case p.o.GRO && pool.SlotSize() < groSlot:
		return nil, invalid("receive queue %d: with GRO the slots of pool %q must have %d bytes, not %d", id, pool.Name(), groSlot, pool.SlotSize())
	case spec.HardwareTime && !p.hw:
		return nil, failed(engine.ErrUnsupported, "receive queue %d: HardwareTime: the port is on no interface whose driver takes times of all packets", id)
	}
	q := &udpRx{port: p, id: id, meta: p.o.GRO || spec.Timestamps || spec.HardwareTime, times: spec.Timestamps || spec.HardwareTime, hardware: spec.HardwareTime}
	room := 0
	if q.meta {
		room = metaRoom
	}
	n := min(p.o.Batch, max(pool.Slots()/4, 1))
	q.msgs = sys.NewMessages(n, n, room)
	q.ids, q.lens = make([]uint32, n), make([]uint32, n)
	src := burst.PoolSource(pool)
	if p.o.GRO {
		q.blocks = newBlocks(pool)
		src = q.blocks.src
	}
	q.slots = newSlots(pool, src, n, q.msgs.SetBuffer, q.msgs.MoveBuffer)
	q.slots.limit(p.o.MaxPayload)
	if err := p.open(q, spec); err != nil {
		return nil, err
	}
	p.rx = append(p.rx, q)
	if p.o.Spread != SpreadFlow {
		if err := sys.SetSpread(q.sock.fd, sys.Spread(p.o.Spread), len(p.rx)); err != nil {
			p.notes = append(p.notes, "the kernel spreads packets by flow: "+err.Error())
		}
	}
	return q, nil
}

// checkRx checks what UDP and TCP have in common.
func checkRx(spec engine.RxSpec, id int) error {
	switch {
	case len(spec.Pools) == 2:
		return failed(engine.ErrUnsupported, "receive queue %d: header/data split", id)
	case len(spec.Pools) != 1:
		return invalid("receive queue %d has %d pools: expected 1", id, len(spec.Pools))
	case spec.Pools[0] == nil:
		return failed(engine.ErrNil, "receive queue %d: the pool is nil", id)
	case spec.Pools[0].Region().All().Bytes() == nil:
		return failed(engine.ErrUnsupported, "receive queue %d: pool %q is in memory that the kernel cannot write", id, spec.Pools[0].Name())
	case spec.Depth < 0:
		return invalid("receive queue %d: Depth is %d: expected 0 or more", id, spec.Depth)
	case spec.Options != nil:
		return invalid("receive queue %d: options of type %T: expected none", id, spec.Options)
	}
	return nil
}

// open gives a queue its socket. The caller holds p.mu.
func (p *UDPPort) open(q *udpRx, spec engine.RxSpec) (err error) {
	fd := p.base.fd
	if !p.idle {
		if fd, err = p.socket(p.local); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				sys.Close(fd)
			}
		}()
	}
	if q.times {
		flags := sys.TimestampRxSoftware | sys.TimestampSoftware
		if spec.HardwareTime {
			flags |= sys.TimestampRxHardware | sys.TimestampRawHardware
			if err := sys.SetHardwareReceiveTimes(fd, p.device); err != nil {
				return err
			}
		}
		if err := sys.SetOption(fd, sys.SolSocket, sys.SoTimestamping, flags); err != nil {
			return err
		}
	} else if err := sys.SetOption(fd, sys.SolSocket, sys.SoTimestamping, 0); err != nil {
		return err
	}
	depth := spec.Depth
	orElse(&depth, defaultDepth)
	want := p.o.ReceiveBuffer
	if want == 0 {
		want = depth * (min(spec.Pools[0].SlotSize(), groSlot) + perPacket)
	}
	given, err := setBuffer(fd, sys.SoRcvBuf, sys.SoRcvBufForce, want)
	if err != nil {
		return err
	}
	p.short("receive", "rmem_max", given, want)
	q.sock = udpSocket{fd: fd}
	if !p.idle {
		return nil
	}
	if err := sys.DropAll(fd, false); err != nil {
		return err
	}
	p.look()
	q.sock.drops = p.base.drops
	p.idle = false
	return nil
}

func (q *udpRx) ID() int { return q.id }

// TryRecv implements engine.RxQueue.
func (q *udpRx) TryRecv(b *burst.Burst) (int, error) {
	if b == nil {
		return 0, engine.ErrNil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.polls.Inc()
	if q.polls.Load()%kernelLook == 0 {
		q.drops.Add(engine.DropKernel, q.sock.lately())
	}
	n := q.give(b)
	if n == 0 && b.Room() > 0 && q.at == q.got {
		if q.closed {
			return 0, engine.ErrClosed
		}
		if q.receive(b.Room()) {
			n = q.give(b)
		}
	}
	if n == 0 {
		q.empty.Inc()
	}
	return n, nil
}

// receive fills up to n messages and reports whether any came.
func (q *udpRx) receive(n int) bool {
	n = min(n, q.slots.fill())
	if n == 0 {
		return false
	}
	ids := q.port.peers
	got, e := q.msgs.Recv(q.sock.fd, n, ids != nil)
	q.calls.Inc()
	for tries := 0; e != 0 && e != sys.EAGAIN && tries < 16; tries++ { // an error that is reported is gone then
		if e != sys.EINTR {
			q.port.errs.count(e)
		}
		got, e = q.msgs.Recv(q.sock.fd, n, ids != nil)
		q.calls.Inc()
	}
	if e != 0 || got == 0 {
		if t := q.port.timed.Load(); t != nil {
			t.ReadReports(q.sock.fd) // or they make the socket look ready for ever
		}
		return false
	}
	q.slots.used = got
	q.at, q.got, q.off = 0, got, 0
	longest := uint32(0)
	for i := range q.lens[:got] {
		q.lens[i] = uint32(q.msgs.Len(i))
		longest = max(longest, q.lens[i])
	}
	q.whole = longest <= q.slots.size
	if ids != nil {
		ids.mu.Lock()
		for i := range q.ids[:got] {
			if i > 0 && q.msgs.SameName(i, i-1) {
				q.ids[i] = q.ids[i-1]
			} else {
				q.ids[i] = ids.of(q.msgs.Name(i))
			}
		}
		ids.mu.Unlock()
	}
	return true
}

// giveAll is give for messages of which each is a packet that fits, and nothing more is known.
func (q *udpRx) giveAll(b *burst.Burst) int {
	from := q.at
	n := b.AddSlots(q.slots.src, q.slots.pool, q.slots.h[from:q.got], q.lens[from:q.got], burst.Segment{Cap: q.slots.size})
	bytes := 0
	for i := range n {
		bytes += int(q.lens[from+i])
		q.slots.take(from + i)
	}
	if q.port.peers != nil {
		b.SetConns(q.ids[from : from+n])
	}
	q.at += n
	q.packets.Add(uint64(n))
	q.bytes.Add(uint64(bytes))
	return n
}

// give passes on what was received, as much as there is room for.
func (q *udpRx) give(b *burst.Burst) int {
	if q.whole && !q.meta {
		return q.giveAll(b)
	}
	n, bytes := 0, 0
	room, named := b.Room(), q.port.peers != nil
	for ; q.at < q.got; q.at++ {
		i := q.at
		size := int(q.lens[i])
		var r sys.Received
		if q.meta {
			r = sys.ParseReceived(q.msgs.Control(i))
		}
		var flags burst.Flags
		var at int64
		if q.times {
			if r.Time == 0 {
				r.Time = q.missing(i)
			}
			flags, at = burst.HasTime, r.Time
		}
		if q.hardware && r.HardwareTime != 0 {
			flags, at = burst.HasTime|burst.HardwareTime, r.HardwareTime
		}
		wire := 0
		if size > int(q.slots.size) { // the full length of one that was cut off
			if !q.port.o.KeepTruncated || r.Segment != 0 {
				q.drops.Inc(engine.DropTooLong)
				continue
			}
			wire, size = size, int(q.slots.size)
			flags |= burst.Truncated
		}
		if n >= room {
			break
		}
		if q.blocks != nil {
			k, all := q.split(b, i, size, r.Segment, flags, at)
			n += k
			if !all {
				break
			}
			bytes += size
			continue
		}
		h := q.slots.h[i]
		off := q.slots.pool.Offset(h)
		k := b.Add(q.slots.src, burst.Segment{Handle: h, Off: off, Len: uint32(size), Cap: q.slots.size})
		if k < 0 {
			break // too many owners in one burst
		}
		q.slots.take(i)
		if named {
			b.SetConn(k, q.ids[i])
		}
		if flags != 0 {
			b.SetReceived(k, wire, flags, at)
		}
		n++
		bytes += size
	}
	if n > 0 {
		q.packets.Add(uint64(n))
		q.bytes.Add(uint64(bytes))
	}
	return n
}

// missing is the time of message i, to which the kernel gave none because times had only just been asked for (the kernel itself does
// the same for SO_TIMESTAMP): now, or that of the next one.
func (q *udpRx) missing(i int) int64 {
	for i++; i < q.got; i++ {
		if r := sys.ParseReceived(q.msgs.Control(i)); r.Time != 0 {
			return r.Time
		}
	}
	return time.Now().UnixNano()
}

// split passes on the packets that the kernel has put together in message i, and reports whether all of them have been.
func (q *udpRx) split(b *burst.Burst, i, size, segment int, flags burst.Flags, at int64) (n int, all bool) {
	if segment == 0 || segment > size {
		segment = max(size, 1)
	}
	h := q.slots.h[i]
	if q.off == 0 {
		q.blocks.hold(h, max((size+segment-1)/segment, 1))
	}
	start := q.slots.pool.Offset(h)
	for q.off < size || q.off == 0 {
		length := min(segment, size-q.off)
		k := b.Add(q.slots.src, burst.Segment{Handle: h, Off: start + uint64(q.off), Len: uint32(length)})
		if k < 0 {
			return n, false
		}
		if q.port.peers != nil {
			b.SetConn(k, q.ids[i])
		}
		if flags != 0 {
			b.SetReceived(k, 0, flags, at)
		}
		n++
		q.off += segment
	}
	q.off = 0
	q.slots.take(i)
	return n, true
}

// flush throws away what was received and not given to the owner.
func (q *udpRx) flush() (n uint64) {
	for ; q.at < q.got; q.at++ {
		size, segment := q.msgs.Len(q.at), 0
		if q.blocks != nil {
			segment = sys.ParseReceived(q.msgs.Control(q.at)).Segment
		}
		if segment == 0 || segment > size {
			segment = max(size, 1)
		}
		for left := max(size, 1) - q.off; left > 0; left -= segment {
			if n++; q.off > 0 { // some of the block are out
				q.blocks.Reclaim([]mem.Handle{q.slots.h[q.at]})
			}
		}
		if q.off > 0 {
			q.slots.take(q.at)
			q.off = 0
		}
	}
	return n
}

// discard reads until nothing is there, or so many packets, and throws them away. A packet that was dropped for its length has been
// counted as that.
func (q *udpRx) discard() (n uint64) {
	n = q.flush()
	for range 1 << 14 {
		if q.slots.fill() == 0 {
			// Without memory the kernel's buffer is emptied into none.
			q.msgs.SetBuffer(0, nil)
			got, e := q.msgs.Recv(q.sock.fd, 1, false)
			q.calls.Inc()
			if e != 0 && e != sys.EINTR && e != sys.EAGAIN {
				q.port.errs.count(e)
				continue
			}
			if got == 0 {
				return n
			}
			n++
			continue
		}
		if !q.receive(len(q.slots.h)) {
			return n
		}
		n += q.flush()
	}
	return n
}

// Arm implements engine.RxQueue.
func (q *udpRx) Arm(w *engine.Waker) (ready bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.at < q.got {
		return true
	}
	q.waker = w
	if q.slots.fill() == 0 {
		q.retry.Arm(w)
		return false
	}
	if readable(q.sock.fd) {
		return true
	}
	if !q.watched {
		if engine.Events.Add(q.sock.fd) != nil {
			return true // then it is spinning that finds packets
		}
		q.watched = true
	}
	return engine.Events.Arm(q.sock.fd, w) != nil
}

// Discard implements engine.RxQueue.
func (q *udpRx) Discard() (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return 0, engine.ErrClosed
	}
	n := q.discard()
	q.drops.Add(engine.DropFlushed, n)
	return int(n), nil
}

// Stats implements engine.RxQueue.
func (q *udpRx) Stats(s *engine.RxStats) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.drops.Add(engine.DropKernel, q.sock.lately())
	}
	*s = engine.RxStats{Packets: q.packets.Load(), Bytes: q.bytes.Load(), Polls: q.polls.Load(), Empty: q.empty.Load(), Calls: q.calls.Load()}
	q.drops.AddTo(&s.Drops)
}

// Close implements engine.RxQueue.
func (q *udpRx) Close() error {
	p := q.port
	p.mu.Lock()
	defer p.mu.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil
	}
	q.closed = true
	if q.watched {
		engine.Events.Remove(q.sock.fd)
	}
	q.retry.Stop()
	// The kernel lets nothing more in, so what is there now is all. What it drops from now on is the port's matter.
	err := sys.DropAll(q.sock.fd, true)
	q.drops.Add(engine.DropKernel, q.sock.lately())
	q.drops.Add(engine.DropClosed, q.discard())
	q.slots.close()
	for i, o := range p.rx {
		if o == q {
			p.rx = append(p.rx[:i], p.rx[i+1:]...)
			break
		}
	}
	if e := p.release(&q.sock); err == nil {
		err = e
	}
	if q.waker != nil {
		q.waker.Wake()
	}
	s := engine.RxStats{Packets: q.packets.Load(), Bytes: q.bytes.Load(), Polls: q.polls.Load(), Empty: q.empty.Load(), Calls: q.calls.Load()}
	q.drops.AddTo(&s.Drops)
	p.old.Rx.Add(&s)
	return err
}

// release takes a queue's socket back. Where no other queue is, the port keeps it; otherwise it is closed, and if the port sends
// from it and has joined groups with it, another one takes that over. The caller holds p.mu.
func (p *UDPPort) release(s *udpSocket) (err error) {
	if len(p.rx) == 0 {
		p.base, p.idle = *s, true
		return nil
	}
	if s.fd == p.fd {
		next := p.rx[0].sock.fd
		for _, g := range p.groups {
			if e := p.join(next, g, true); err == nil {
				err = e
			}
		}
		p.sendMu.Lock()
		p.fd = next
		p.sendMu.Unlock()
	}
	p.sum.Drops[engine.DropNoQueue] += s.lately()
	if e := sys.Close(s.fd); err == nil {
		err = e
	}
	return err
}

// blocks owns the slots of a pool in which the kernel has put several packets: a slot goes back with the last of them.
type blocks struct {
	pool *mem.Pool
	src  *burst.Source
	refs []atomic.Int32 // by slot
}

func newBlocks(pool *mem.Pool) *blocks {
	o := &blocks{pool: pool, refs: make([]atomic.Int32, pool.Slots())}
	o.src = burst.NewSource(pool.Region(), pool.Region().All().Bytes(), o)
	return o
}

// hold makes a slot wait for n packets.
func (o *blocks) hold(h mem.Handle, n int) { o.refs[o.pool.Slot(h).Index()].Store(int32(n)) }

// Reclaim implements burst.Owner.
func (o *blocks) Reclaim(handles []burst.Handle) {
	var free [64]mem.Handle
	n := 0
	for _, h := range handles {
		i := o.pool.Slot(h).Index()
		if i >= len(o.refs) {
			o.bad()
			continue
		}
		left := o.refs[i].Add(-1)
		if left < 0 {
			o.bad()
		}
		if left != 0 {
			continue
		}
		free[n] = h
		if n++; n == len(free) {
			o.pool.PutBatch(free[:])
			n = 0
		}
	}
	if n > 0 {
		o.pool.PutBatch(free[:n])
	}
}

func (o *blocks) bad() {
	if invariants.Enabled {
		panic("socket: a packet was released twice")
	}
}
