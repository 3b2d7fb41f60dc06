package socket

import (
	"errors"
	"fmt"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/packet/burst"
)

// udpRx is a receive queue of a UDPPort. It implements engine.RxDevice.
type udpRx struct {
	engine.RxFront
	port *UDPPort

	sock  udpSocket
	slots slots
	msgs  *sys.Messages
	ids   []uint32 // of the senders of msgs
	lens  []uint32 // of msgs
	whole bool     // all of msgs fit
	// With GRO the packets of a message share its slot: pieces is the Source of the slots, and
	// piece is that of the message at at.
	shares *burst.Shares
	pieces *burst.Source
	piece  burst.Handle
	// Messages at to got were received and are not given to the owner yet; of the first one those
	// before off have been.
	at, got, off int
	meta         bool // messages have control messages
	times        bool
	hardware     bool
	watched      bool // engine.Events knows the socket
	collects     uint
}

var _ engine.RxQueue = (*udpRx)(nil)

const (
	metaRoom = 128       // bytes of control messages of a datagram
	groSlot  = 1<<16 - 1 // the most that GRO puts together
	// perPacket is what the kernel needs for a packet besides its bytes, and what it loses by
	// rounding up.
	perPacket = 1024
	// kernelLook is how often, in calls of Collect, the kernel is asked for its drops, whose count
	// has 32 bits.
	kernelLook = 1 << 16
)

// AddRxQueue implements engine.Port.
func (p *UDPPort) AddRxQueue(spec engine.RxSpec) (engine.RxQueue, error) {
	p.rx.Lock()
	defer p.rx.Unlock()
	can := p.can()
	if err := p.rx.Admit(&spec, &can); err != nil {
		return nil, fmt.Errorf("socket: %s: %w", p.name, err)
	}
	pool, id := spec.Pools[0], spec.ID.Number()
	if spec.Conn != 0 {
		return nil, failed(engine.ErrUnsupported,
			"receive queue %d: a UDP port cannot bind a queue to one peer; open a port with remote=", id)
	}
	q := &udpRx{port: p, meta: p.o.GRO || spec.Timestamps || spec.HardwareTime, times: spec.Timestamps ||
		spec.HardwareTime, hardware: spec.HardwareTime}
	room := 0
	if q.meta {
		room = metaRoom
	}
	n := min(p.o.Batch, max(pool.Slots()/4, 1))
	q.msgs = sys.NewMessages(n, n, room)
	q.ids, q.lens = make([]uint32, n), make([]uint32, n)
	src := burst.PoolSource(pool)
	if p.o.GRO {
		q.shares = burst.NewShares(pool.Slots())
		q.pieces = q.shares.Source(src)
	}
	q.slots = newSlots(pool, src, n, q.msgs.SetBuffer)
	q.slots.limit(p.o.MaxPayload)
	if err := p.open(q, spec); err != nil {
		return nil, err
	}
	q.Start(spec, q)
	p.rx.Add(q)
	if p.o.Spread != SpreadFlow {
		if err := sys.SetSpread(q.sock.fd, sys.Spread(p.o.Spread), len(p.rx.Live())); err != nil {
			p.notes = append(p.notes, "the kernel spreads packets by flow: "+err.Error())
		}
	}
	return q, nil
}

// open gives a queue its socket. The caller holds p.rx.
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
	want := p.o.ReceiveBuffer
	if want == 0 {
		want = spec.Depth * (min(spec.Pools[0].SlotSize(), groSlot) + perPacket)
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

// Collect implements engine.RxDevice.
func (q *udpRx) Collect(b *burst.Burst) error {
	if q.collects++; q.collects%kernelLook == 0 {
		q.Account()
	}
	if q.give(b) == 0 && b.Room() > 0 && q.at == q.got && q.receive(b.Room()) {
		q.give(b)
	}
	return nil
}

// receive fills up to n messages and reports whether any came.
func (q *udpRx) receive(n int) bool {
	n = min(n, q.slots.fill())
	if n == 0 {
		return false
	}
	ids := q.port.peers
	got, e := q.msgs.Recv(q.sock.fd, n, ids != nil)
	q.Calls(1)
	for tries := 0; e != 0 && e != sys.EAGAIN && tries < 16; tries++ { // an error that is reported is gone then
		got, e = q.msgs.Recv(q.sock.fd, n, ids != nil)
		q.Calls(1)
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
	n := b.Builder().AddSlots(q.slots.src, q.slots.pool, q.slots.h[from:q.got], q.lens[from:q.got],
		burst.Segment{Cap: q.slots.size})
	for i := range n {
		q.slots.take(from + i)
	}
	if q.port.peers != nil {
		b.Builder().SetConns(q.ids[from : from+n])
	}
	q.at += n
	return n
}

// give passes on what was received, as much as there is room for.
func (q *udpRx) give(b *burst.Burst) int {
	if q.whole && !q.meta {
		return q.giveAll(b)
	}
	n := 0
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
				q.Drop(engine.DropTooLong, 1)
				continue
			}
			wire, size = size, int(q.slots.size)
			flags |= burst.Truncated
		}
		if n >= room {
			break
		}
		if q.shares != nil {
			k, all := q.split(b, i, size, r.Segment, flags, at)
			n += k
			if !all {
				break
			}
			continue
		}
		h := q.slots.h[i]
		off := q.slots.pool.Offset(h)
		k := b.Builder().Add(q.slots.src, burst.Segment{Handle: h, Off: off, Len: uint32(size), Cap: q.slots.size})
		if k < 0 {
			break // too many owners in one burst
		}
		q.slots.take(i)
		if named {
			b.SetConn(k, q.ids[i])
		}
		if flags != 0 {
			b.Builder().SetReceived(k, wire, flags, at)
		}
		n++
	}
	return n
}

// missing is the time of message i, to which the kernel gave none because times had only just been
// asked for (the kernel itself does the same for SO_TIMESTAMP): now, or that of the next one.
func (q *udpRx) missing(i int) int64 {
	for i++; i < q.got; i++ {
		if r := sys.ParseReceived(q.msgs.Control(i)); r.Time != 0 {
			return r.Time
		}
	}
	return time.Now().UnixNano()
}

// split passes on the packets that the kernel has put together in message i, and reports whether
// all of them have been.
func (q *udpRx) split(b *burst.Burst, i, size, segment int, flags burst.Flags, at int64) (n int, all bool) {
	if segment == 0 || segment > size {
		segment = max(size, 1)
	}
	h := q.slots.h[i]
	if q.off == 0 {
		q.piece, _ = q.shares.Hold(h, max((size+segment-1)/segment, 1)) // one for each slot of the pool
	}
	start := q.slots.pool.Offset(h)
	for q.off < size || q.off == 0 {
		length := min(segment, size-q.off)
		k := b.Builder().Add(q.pieces, burst.Segment{Handle: q.piece, Off: start + uint64(q.off), Len: uint32(length)})
		if k < 0 {
			return n, false
		}
		if q.port.peers != nil {
			b.SetConn(k, q.ids[i])
		}
		if flags != 0 {
			b.Builder().SetReceived(k, 0, flags, at)
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
		if q.shares != nil {
			segment = sys.ParseReceived(q.msgs.Control(q.at)).Segment
		}
		if segment == 0 || segment > size {
			segment = max(size, 1)
		}
		for left := max(size, 1) - q.off; left > 0; left -= segment {
			if n++; q.off > 0 { // some of the block are out
				q.pieces.Reclaim([]burst.Handle{q.piece})
			}
		}
		if q.off > 0 {
			q.slots.take(q.at)
			q.off = 0
		}
	}
	return n
}

// discard reads until nothing is there, or so many packets, and throws them away. A packet that was
// dropped for its length has been counted as that.
func (q *udpRx) discard() (n uint64) {
	n = q.flush()
	for range 1 << 14 {
		if q.slots.fill() == 0 {
			// Without memory the kernel's buffer is emptied into none.
			q.msgs.SetBuffer(0, nil)
			got, e := q.msgs.Recv(q.sock.fd, 1, false)
			q.Calls(1)
			if e != 0 && e != sys.EINTR && e != sys.EAGAIN {
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

// Watch implements engine.RxDevice.
func (q *udpRx) Watch(w *engine.Waker) engine.Armed {
	if q.at < q.got {
		return engine.ArmedReady
	}
	if q.slots.fill() == 0 {
		return engine.ArmedPoll
	}
	return watch(q.sock.fd, &q.watched, w)
}

// watch has w woken when a descriptor that only a queue's Watch knows is readable.
func watch(fd int, watched *bool, w *engine.Waker) engine.Armed {
	if readable(fd) {
		return engine.ArmedReady
	}
	if !*watched {
		if engine.Events.Add(fd) != nil {
			return engine.ArmedPoll
		}
		*watched = true
	}
	if engine.Events.Arm(fd, w) != nil {
		return engine.ArmedReady
	}
	return engine.ArmedWake
}

// Flush implements engine.RxDiscarder.
func (q *udpRx) Flush() int { return int(q.discard()) }

// Account implements engine.RxAccounter.
func (q *udpRx) Account() { q.Drop(engine.DropKernel, q.sock.lately()) }

// Close implements engine.RxQueue.
func (q *udpRx) Close() error { return q.port.rx.Close(q) }

// Stop implements engine.RxDevice.
func (q *udpRx) Stop(why engine.Drop) error {
	if q.watched {
		engine.Events.Remove(q.sock.fd)
	}
	// The kernel lets nothing more in, so what is there now is all. What it drops from now on is
	// the port's matter.
	err := sys.DropAll(q.sock.fd, true)
	q.Account()
	q.Drop(why, q.discard())
	q.slots.close()
	return errors.Join(err, q.port.release(&q.sock))
}

// release takes a queue's socket back. Where no other queue is, the port keeps it; otherwise it is
// closed, and if the port sends from it and has joined groups with it, another one takes that over.
// The caller holds p.rx.
func (p *UDPPort) release(s *udpSocket) (err error) {
	live := p.rx.Live()
	if len(live) == 0 {
		p.base, p.idle = *s, true
		return nil
	}
	if s.fd == p.fd {
		next := live[0].sock.fd
		for _, g := range p.groups {
			if e := p.join(next, g); err == nil {
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
