package afpacket

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// socket is a packet socket with its ring. The owners of all queues that read it do so, one at a
// time.
type socket struct {
	port   *Port
	fd     int
	number int

	accepted bool // it receives; under port.rx

	mu       sync.Mutex      // over everything down to the next comment
	ring     *sys.PacketRing // nil: there are blocks
	blocks   *blocks
	bytes    []byte // of the ring; nil: there is none yet
	head     uint32 // next frame
	steerer  *engine.Steerer
	frame    sys.PacketFrame
	typ      burst.Type // of that frame, where the steerer has read its headers
	closed   bool
	restored bool // the VLAN tag of the frame at head is in it again
	moved    bool // what a rule made of that frame is in its place
	counted  bool // the rule that it matched has counted it

	// Frames that are lent.
	region *mem.Region
	src    *burst.Source
	lease  mem.Lease
	out    []atomic.Uint32 // by frame: inRing, lent or leaving
	refs   atomic.Int64    // of them, and one for the socket itself until it is closed
}

// Where a frame is. The order of steps is what keeps one that is released from being read a second
// time: it is the kernel's before it is inRing, and a reader asks whether it is inRing before it
// asks whether the kernel has filled it.
const (
	inRing  = iota // the kernel's, or to be read
	lent           // with the application
	leaving        // released, and not yet the kernel's
)

// accept makes the ring and begins to receive.
func (s *socket) accept(o *Options) error {
	if s.accepted { // a member of a fan-out group cannot be bound again
		return nil
	}
	// Both only save time: each frame says whether it is outgoing.
	program := o.Filter
	switch o.Direction {
	case DirectionIn:
		_ = sys.SetOption(s.fd, sys.SolPacket, sys.PacketIgnoreOutgoing, 1) // since Linux 4.20
	case DirectionOut:
		program = outgoingOnly(program)
	}
	if len(program) > 0 {
		if err := sys.AttachFilter(s.fd, program); err != nil {
			return err
		}
	}
	var err error
	if s.bytes == nil {
		b, err := s.open(o)
		if err != nil {
			return err
		}
		if s.region, err = mem.Adopt(s.port.name+" ring", b, func() error { return sys.Munmap(b) }); err != nil {
			return err
		}
		if s.lease, err = s.region.Lease(); err != nil {
			return err
		}
		s.bytes = b
		s.src = burst.NewSource(s.region, b, s)
		s.refs.Store(1)
		s.steerer = engine.NewSteerer(s.port.table, s.port.spec.Isolated, &s.port.counts)
	}
	if err = sys.BindPacket(s.fd, s.port.link.Index(), true); err != nil {
		return err
	}
	if o.Sockets > 1 {
		err = s.port.join(s.fd)
	}
	if err != nil {
		return err
	}
	s.accepted = true
	return nil
}

// open makes the ring, and returns its memory.
func (s *socket) open(o *Options) ([]byte, error) {
	if o.Blocks > 0 {
		r, err := sys.NewPacketBlocks(s.fd, o.Blocks, blockTime)
		if err != nil {
			return nil, err
		}
		s.blocks = newBlocks(r)
		return r.Memory(), nil
	}
	r, err := sys.NewPacketRing(s.fd, o.Frames, o.FrameSize, 0)
	if err != nil {
		return nil, err
	}
	s.ring, s.out = r, make([]atomic.Uint32, r.Frames())
	return r.Memory(), nil
}

// outgoingOnly is a program that refuses what comes from outside, and does what the program says
// with the rest.
func outgoingOnly(program []FilterInstruction) []FilterInstruction {
	if len(program) == 0 {
		program = []FilterInstruction{{Op: 0x06, K: 0xffffffff}} // ret
	}
	return append([]FilterInstruction{
		{Op: 0x28, K: 0xfffff004},      // ldh [SKF_AD_PKTTYPE]
		{Op: 0x15, JT: 1, K: outgoing}, // jeq
		{Op: 0x06},                     // ret #0
	}, program...)
}

// outgoing is PACKET_OUTGOING.
const outgoing = 4

// wanted reports whether the frame of next goes the way that the port receives.
func (s *socket) wanted() bool {
	switch s.port.o.Direction {
	case DirectionIn:
		return !s.frame.Outgoing
	case DirectionOut:
		return s.frame.Outgoing
	}
	return true
}

// close ends reception. The ring stays mapped while frames are out.
func (s *socket) close() error {
	s.mu.Lock()
	if s.closed || s.bytes == nil {
		s.closed = true
		s.mu.Unlock()
		return nil
	}
	// The mapping keeps the socket alive, so it is bound to no protocol, to receive no more. A
	// member of a fan-out group cannot be bound again: it refuses everything by a filter.
	if sys.BindPacket(s.fd, s.port.link.Index(), false) != nil {
		_ = sys.AttachFilter(s.fd, []sys.FilterInstruction{{Op: 6}})
	}
	s.account()
	s.port.counts.Drop(engine.DropNoQueue, s.discard())
	s.steerer.Close()
	s.closed = true
	err := s.region.Close()
	s.mu.Unlock()
	s.unref(1)
	return err
}

// unref ends that many holds on the ring; the last one unmaps it.
func (s *socket) unref(n int) {
	if s.refs.Add(int64(-n)) == 0 {
		s.lease.Release()
	}
}

// Reclaim implements burst.Owner: lent frames go back to the kernel.
func (s *socket) Reclaim(frames []burst.Handle) {
	n := 0
	for _, h := range frames {
		if s.blocks != nil {
			if !s.blocks.release(uint32(h)) && invariants.Enabled {
				panic(fmt.Sprintf("afpacket: a packet of block %d of %s was released twice", h, s.port.name))
			}
			n++
			continue
		}
		if !s.out[h].CompareAndSwap(lent, leaving) {
			if invariants.Enabled {
				panic(fmt.Sprintf("afpacket: frame %d of %s was released twice", h, s.port.name))
			}
			continue
		}
		s.ring.Return(uint32(h))
		s.out[h].Store(inRing)
		n++
	}
	if n > 0 {
		s.unref(n)
	}
}

// ready reports whether there is a frame.
func (s *socket) ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bytes == nil || s.closed {
		return false
	}
	if s.blocks != nil {
		return s.blocks.ready()
	}
	return s.out[s.head].Load() == inRing && s.ring.Status(s.head)&sys.FrameReady != 0
}

// blocked reports whether poll would say that the socket is readable although nothing new is there:
// it looks at the frame that was written last, which the application still has.
func (s *socket) blocked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bytes == nil || s.closed {
		return false
	}
	if s.blocks != nil {
		return s.blocks.blocked()
	}
	last := s.head + s.ring.Frames() - 1
	return s.out[last%s.ring.Frames()].Load() != inRing
}

// barrier returns when the queue that reads the ring now has finished: until then it may go by the
// rules from before.
func (s *socket) barrier() {
	s.mu.Lock()
	defer s.mu.Unlock()
}

// account takes the kernel's count of what found no room. The caller holds mu.
func (s *socket) account() {
	if s.bytes == nil || s.closed {
		return
	}
	if _, n, err := sys.PacketStatistics(s.fd); err == nil && n > 0 {
		if live := s.port.rx.Live(); len(live) == 1 {
			live[0].Drop(engine.DropKernel, uint64(n))
		} else {
			s.port.counts.Drop(engine.DropKernel, int(n))
		}
	}
}

// discard gives everything that is there back to the kernel, and says how many packets that were.
// The caller holds mu.
func (s *socket) discard() (n int) {
	for s.next() {
		if s.wanted() {
			n++
		}
		s.giveBack()
	}
	return n
}

// next looks at the next frame, if there is one.
func (s *socket) next() bool {
	if s.blocks != nil {
		return s.blocks.next(&s.frame)
	}
	if s.bytes == nil || s.out[s.head].Load() != inRing {
		return false
	}
	status := s.ring.Status(s.head)
	if status&sys.FrameReady == 0 {
		return false
	}
	s.ring.Frame(s.head, status, &s.frame)
	return true
}

// lend lends the frame of next.
func (s *socket) lend() {
	s.refs.Add(1)
	if s.blocks == nil {
		s.out[s.head].Store(lent)
	}
	s.pass(true)
}

// giveBack gives the frame of next back to the kernel.
func (s *socket) giveBack() {
	if s.blocks == nil {
		s.ring.Return(s.head)
	}
	s.pass(false)
}

// handle is what the frame of next is lent as.
func (s *socket) handle() burst.Handle {
	if s.blocks != nil {
		return burst.Handle(s.blocks.cur)
	}
	return burst.Handle(s.head)
}

// round is the number of frames after which a ring that is read while more come has been read once.
func (s *socket) round() int {
	if s.blocks != nil {
		return len(s.bytes) / 128 // what the least frame takes
	}
	return int(s.ring.Frames())
}

// pass goes on to the next frame; this one is lent or not.
func (s *socket) pass(lend bool) {
	s.restored, s.moved, s.counted = false, false, false
	if s.blocks != nil {
		s.blocks.pass(lend)
		return
	}
	if s.head++; s.head == s.ring.Frames() {
		s.head = 0
	}
}

// packetBytes are the bytes of the frame of next, with the VLAN tag put back that the kernel took
// off: the addresses move 4 bytes to the front, where the ring has room.
func (s *socket) packetBytes() []byte {
	f := &s.frame
	if f.Status&sys.FrameVLAN != 0 && f.Len >= packet.EthernetLen {
		f.Off -= packet.VLANLen
		f.Len += packet.VLANLen
		f.Wire += packet.VLANLen
		b := s.bytes[f.Off : f.Off+uint64(f.Len) : f.Off+uint64(f.Len)]
		if s.restored {
			return b
		}
		s.restored = true
		copy(b[:12], b[4:16])
		tpid := f.TPID
		if f.Status&sys.FrameVLANProtocol == 0 {
			tpid = uint16(packet.EtherTypeVLAN)
		}
		binary.BigEndian.PutUint16(b[12:], tpid)
		binary.BigEndian.PutUint16(b[14:], f.TCI)
		return b
	}
	return s.bytes[f.Off : f.Off+uint64(f.Len) : f.Off+uint64(f.Len)]
}

// pumpOthers is the number of packets for other queues that one TryRecv takes out of a ring at
// most.
const pumpOthers = 256

// pump takes packets out of the ring: those of q go to b while there is room, or, without a b, back
// to the kernel; those of other queues go to these, of which it takes that many at most. It returns
// how many it threw away.
func (s *socket) pump(q *rxQueue, b *burst.Burst, others int) (discarded int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	live := s.port.rx.Live()
	if s.closed || len(live) == 0 || b != nil && q.Waiting() > 0 {
		// the owner of another queue has brought older packets meanwhile
		return 0
	}
	classify := s.steerer.Begin()
	first := live[s.number%len(live)]
	for others > 0 && (b == nil || b.Room() > 0) && s.next() {
		if !s.wanted() {
			s.giveBack()
			continue
		}
		bytes := s.packetBytes()
		to, id := first, uint32(0)
		s.typ = 0
		if classify {
			to, id, bytes = s.steer(bytes, live, first)
		}
		switch {
		case to == nil:
			s.giveBack()
			others--
		case to != q:
			s.bring(to, bytes, id)
			others--
		case b == nil:
			s.giveBack()
			discarded++
			others--
		case q.put(s, q.direct, b, bytes, id) != engine.NoRoom:
		case b.Len() == 0: // there will never be room for its segments: it would hold up the others for ever
			q.Drop(engine.DropTooLong, 1)
			s.giveBack()
		default:
			if s.moved { // it cannot be looked at again
				s.port.counts.Drop(engine.DropTransform, 1)
				s.giveBack()
			}
			return discarded
		}
	}
	return discarded
}

// bring puts a frame where it waits for the owner of q.
func (s *socket) bring(q *rxQueue, bytes []byte, id uint32) {
	b := q.Bring()
	if b == nil {
		q.Drop(engine.DropClosed, 1)
		s.giveBack()
		return
	}
	if q.put(s, q.brought, b, bytes, id) == engine.NoRoom {
		q.Drop(engine.DropQueueFull, 1)
		s.giveBack()
	}
	q.Brought()
}

// steer says which queue gets a frame, nil for none, after it has counted it, and what the frame is
// when the rule has transformed it.
func (s *socket) steer(frame []byte, live []*rxQueue, first *rxQueue) (*rxQueue, uint32, []byte) {
	d := s.steerer.ClassifyCut(frame, int(s.frame.Wire))
	s.typ = engine.TypeOf(&s.steerer.Layers)
	if !s.counted { // it may have been here before, and have found no room
		s.counted = true
		s.steerer.Count(d, len(frame))
	}
	id, ok := s.steerer.Queue(d)
	switch {
	case !ok:
		return nil, 0, nil
	case id == engine.First:
		return first, 0, frame
	}
	q := s.port.rx.Find(id)
	if q == nil {
		s.port.counts.Drop(engine.DropNoQueue, 1)
		return nil, 0, nil
	}
	if d.Transform {
		if frame = s.transform(d.Rule, frame, q.direct == nil); frame == nil {
			s.port.counts.Drop(engine.DropTransform, 1)
			return nil, 0, nil
		}
	}
	return q, d.ID, frame
}

// transform does what rule i says to a frame that was parsed, in memory of the socket's own, and,
// for a queue that lends frames, moves the result back into the ring. It returns nil where that
// cannot be done.
func (s *socket) transform(i int32, frame []byte, back bool) []byte {
	s.typ = 0 // it becomes another one
	if s.frame.Len < s.frame.Wire {
		return nil // a part of a packet cannot be put into a tunnel, or taken out of one
	}
	var l packet.Layers
	if p, ok := packet.FindPartial(frame, &l); ok && s.frame.Status&sys.FrameChecksumLater != 0 {
		p.Complete(frame)
		s.frame.Status &^= sys.FrameChecksumLater
	}
	out := s.steerer.Transform(i, frame)
	if out == nil {
		return nil
	}
	s.frame.Status &^= sys.FrameChecksumGood // of what is inside of a tunnel the kernel has verified nothing
	if back {
		from, to := s.frame.Off, s.frame.Off+uint64(s.frame.Len)
		if s.blocks == nil {
			from, to = s.ring.Room(s.head)
		}
		if uint64(len(out)) > to-from {
			return nil
		}
		out = s.bytes[from : from+uint64(copy(s.bytes[from:to], out))]
		s.frame.Off, s.moved = from, true
	}
	s.frame.Len, s.frame.Wire = uint32(len(out)), uint32(len(out))
	return out
}
