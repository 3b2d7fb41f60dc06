package afpacket

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/flow"
	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
)

// tap is one packet socket with its ring. It is read by whichever queue's owner comes, one at a time.
type tap struct {
	port   *Port
	fd     int
	number int

	accepted bool // it receives; under port.mu

	mu       sync.Mutex // over everything down to the next comment
	ring     *sys.PacketRing
	bytes    []byte
	head     uint32 // next frame
	cache    *flow.Cache
	counters *flow.Counters
	layers   packet.Layers
	frame    sys.PacketFrame
	closed   bool
	restored bool // the VLAN tag of the frame at head is in it again
	moved    bool // what a rule made of that frame is in its place
	counted  bool // the rule that it matched has counted it

	version uint64          // of the table whose actions these are
	actions [][]flow.Action // of rules that transform
	scratch []byte          // for one packet with headroom

	// Frames that are borrowed.
	region *mem.Region
	src    *burst.Source
	lease  mem.Lease
	out    []atomic.Uint32 // by frame: home, lent or leaving
	held   atomic.Int64    // of them, and one for the tap itself until it is closed
}

// Where a frame is. The order of steps is what keeps one that is released from being read a second time: it is the kernel's before it is home, and
// whoever reads asks whether it is home before it asks whether the kernel has filled it.
const (
	home    = iota // the ring's, the kernel's or to be read
	lent           // with the application
	leaving        // released, and not yet the kernel's
)

// accept makes the ring and begins to receive.
func (t *tap) accept(o *Options, hardware bool) error {
	fail := func(err error) error { return fmt.Errorf("afpacket: %s: %w", t.port.name, err) }
	// Since Linux 4.20. It only saves time: each frame says whether it is outgoing.
	_ = sys.SetOption(t.fd, sys.SolPacket, sys.PacketIgnoreOutgoing, 1)
	if hardware {
		if err := sys.SetOption(t.fd, sys.SolPacket, sys.PacketTimestamp, sys.PacketStampHardware); err != nil {
			return fail(err)
		}
	}
	if len(o.Filter) > 0 {
		if err := sys.AttachFilter(t.fd, o.Filter); err != nil {
			return fail(err)
		}
	}
	if t.accepted { // another socket failed then: a member of a fan-out group cannot be bound again
		return nil
	}
	var err error
	if t.ring == nil {
		if t.ring, err = sys.NewPacketRing(t.fd, o.Frames, o.FrameSize, 0); err != nil {
			return fail(err)
		}
		b := t.ring.Memory()
		if t.region, err = mem.Adopt(t.port.name+" ring", b, func() error { return sys.Munmap(b) }); err != nil {
			return fail(err)
		}
		if t.lease, err = t.region.Lease(); err != nil {
			return fail(err)
		}
		t.bytes = b
		t.src = burst.NewSource(t.region, b, t)
		t.out = make([]atomic.Uint32, t.ring.Frames())
		t.held.Store(1)
		t.counters = t.port.table.NewCounters()
	}
	if err = sys.BindPacket(t.fd, t.port.link.Index(), true); err != nil {
		return fail(err)
	}
	if o.Sockets > 1 {
		err = sys.PacketFanout(t.fd, t.port.fanout, o.Fanout.mode())
	}
	if err != nil {
		return fail(err)
	}
	t.accepted = true
	return nil
}

// close ends reception. The ring stays mapped while frames are out.
func (t *tap) close() error {
	t.mu.Lock()
	if t.closed || t.ring == nil {
		t.closed = true
		t.mu.Unlock()
		return nil
	}
	// The mapping keeps the socket alive, so it must be told to receive no more. A member of a fan-out group cannot be bound anew, and
	// refuses everything by a filter.
	if sys.BindPacket(t.fd, t.port.link.Index(), false) != nil {
		_ = sys.AttachFilter(t.fd, []sys.FilterInstruction{{Op: 6}})
	}
	t.account()
	n := t.discard()
	t.port.drops[engine.DropNoQueue].Add(uint64(n))
	t.counters.Close()
	t.closed = true
	err := t.region.Close()
	t.mu.Unlock()
	t.letGo(1)
	return err
}

// letGo ends that many holds on the ring; the last one unmaps it.
func (t *tap) letGo(n int) {
	if t.held.Add(int64(-n)) == 0 {
		t.lease.Release()
	}
}

// Reclaim implements burst.Owner: borrowed frames go back to the kernel.
func (t *tap) Reclaim(frames []burst.Handle) {
	n := 0
	for _, h := range frames {
		if !t.out[h].CompareAndSwap(lent, leaving) {
			if invariants.Enabled {
				panic(fmt.Sprintf("afpacket: frame %d of %s was released twice", h, t.port.name))
			}
			continue
		}
		t.ring.Return(uint32(h))
		t.out[h].Store(home)
		n++
	}
	if n > 0 {
		t.letGo(n)
	}
}

// ready reports whether there is a frame.
func (t *tap) ready() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ring != nil && !t.closed && t.out[t.head].Load() == home && t.ring.Status(t.head)&sys.FrameReady != 0
}

// blocked reports whether poll would say that the socket is readable although nothing new is there: it looks at the frame that was
// written last, which the application still has.
func (t *tap) blocked() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ring == nil || t.closed {
		return false
	}
	last := t.head + t.ring.Frames() - 1
	return t.out[last%t.ring.Frames()].Load() != home
}

// leave returns when whoever is at the ring now has left it: until then it may go by the rules from before.
func (t *tap) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
}

// account takes the kernel's count of what found no room. The caller holds mu.
func (t *tap) account() {
	if t.ring == nil || t.closed {
		return
	}
	if _, n, err := sys.PacketStatistics(t.fd); err == nil && n > 0 {
		if live := *t.port.live.Load(); len(live) == 1 {
			live[0].drop(engine.DropKernel, uint64(n))
		} else {
			t.port.drops[engine.DropKernel].Add(uint64(n))
		}
	}
}

// discard gives everything that is there back to the kernel, and says how many packets that were. The caller holds mu.
func (t *tap) discard() (n int) {
	for t.next() {
		if !t.frame.Outgoing {
			n++
		}
		t.giveBack()
	}
	return n
}

// next looks at the next frame, if there is one.
func (t *tap) next() bool {
	if t.ring == nil || t.out[t.head].Load() != home {
		return false
	}
	status := t.ring.Status(t.head)
	if status&sys.FrameReady == 0 {
		return false
	}
	t.ring.Frame(t.head, status, &t.frame)
	return true
}

// giveBack gives the frame of next back to the kernel; pass leaves it to somebody else.
func (t *tap) giveBack() {
	t.ring.Return(t.head)
	t.pass()
}

func (t *tap) pass() {
	t.restored, t.moved, t.counted = false, false, false
	if t.head++; t.head == t.ring.Frames() {
		t.head = 0
	}
}

// packetBytes are the bytes of the frame of next, with the VLAN tag put back that the kernel took off: the addresses move 4 bytes to
// the front, where the ring has room.
func (t *tap) packetBytes() []byte {
	f := &t.frame
	if f.Status&sys.FrameVLAN != 0 && f.Len >= packet.EthernetLen {
		f.Off -= packet.VLANLen
		f.Len += packet.VLANLen
		f.Wire += packet.VLANLen
		b := t.bytes[f.Off : f.Off+uint64(f.Len) : f.Off+uint64(f.Len)]
		if t.restored {
			return b
		}
		t.restored = true
		copy(b[:12], b[4:16])
		tpid := f.TPID
		if f.Status&sys.FrameVLANProtocol == 0 {
			tpid = uint16(packet.EtherTypeVLAN)
		}
		binary.BigEndian.PutUint16(b[12:], tpid)
		binary.BigEndian.PutUint16(b[14:], f.TCI)
		return b
	}
	return t.bytes[f.Off : f.Off+uint64(f.Len) : f.Off+uint64(f.Len)]
}

const (
	// pumpOthers is the number of packets for other queues that one TryRecv deals out at most.
	pumpOthers = 256
)

// pump takes packets out of the ring: those of q go to b while there is room, those of others to where they wait. It returns how
// many were added to b.
func (t *tap) pump(q *rxQueue, b *burst.Burst) (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || q.closed.Load() {
		return 0
	}
	if q.waiting.Load() > 0 { // whoever was here before has brought it: it is older than what is here now
		if n = q.takePending(b); q.waiting.Load() > 0 {
			return n
		}
	}
	live := *t.port.live.Load() // q is among them as long as we have the lock
	snap := t.port.table.Snapshot()
	rules := snap.Classifier().Len() > 0
	if rules && t.cache == nil {
		t.cache, _ = flow.NewCache(flow.MinCacheSize << 4)
	}
	plain := live[t.number%len(live)]
	for others := 0; others < pumpOthers && b.Room() > 0 && t.next(); {
		if t.frame.Outgoing {
			t.giveBack()
			continue
		}
		bytes := t.packetBytes()
		to, id := plain, uint32(0)
		if rules || t.port.spec.Isolated {
			if to, id, bytes = t.steer(snap, bytes, live, plain); to == nil {
				t.giveBack()
				others++
				continue
			}
		}
		if to == q {
			got, ok := q.direct.add(q, t, b, bytes, id)
			if !ok {
				if b.Len() == 0 { // there will never be room for its segments: it would hold up the others for ever
					q.drop(engine.DropTooLong, 1)
					t.giveBack()
					continue
				}
				if t.moved { // it cannot be looked at again
					t.port.drops[engine.DropTransform].Add(1)
					t.giveBack()
				}
				break // no room for its segments
			}
			if got {
				n++
			}
			continue
		}
		others++
		to.enqueue(t, bytes, id)
	}
	return n
}

// steer says which queue gets a frame, nil for none, after it has counted it, and what the frame is when the rule has transformed it.
func (t *tap) steer(snap *flow.Snapshot, frame []byte, live []*rxQueue, plain *rxQueue) (*rxQueue, uint32, []byte) {
	p := t.port
	packet.Parse(frame, &t.layers) // what is malformed has fewer fields
	var d flow.Decision
	if t.cache != nil {
		d = t.cache.Classify(snap.Classifier(), frame, &t.layers)
	} else {
		d = snap.Classifier().Classify(frame, &t.layers)
	}
	if !t.counted { // it may have been here before, and have found no room
		t.counted = true
		t.counters.Count(snap, d, len(frame))
	}
	switch d.Verdict {
	case flow.Unmatched:
		if p.spec.Isolated {
			p.kernel.Add(1)
			return nil, 0, nil
		}
		return plain, 0, frame
	case flow.Kernel:
		p.kernel.Add(1)
		return nil, 0, nil
	case flow.Discard:
		p.drops[engine.DropRule].Add(1)
		return nil, 0, nil
	}
	for _, q := range live {
		if q.id != int(d.Queue) {
			continue
		}
		if d.Transform {
			if frame = t.transform(snap, d.Rule, frame, q.pools[0] == nil); frame == nil {
				p.drops[engine.DropTransform].Add(1)
				return nil, 0, nil
			}
		}
		return q, d.ID, frame
	}
	p.drops[engine.DropNoQueue].Add(1)
	return nil, 0, nil
}

// scratchRoom is the headroom of the scratch packet: more than flow.Headroom is for any rule.
const scratchRoom = 1024

// transform does what rule i says to a frame that was parsed, in memory of the tap's own, and, for who borrows, moves the result back
// into the ring. It returns nil where that cannot be done.
func (t *tap) transform(snap *flow.Snapshot, i int32, frame []byte, back bool) []byte {
	if snap.Version() != t.version {
		t.version = snap.Version()
		t.actions = make([][]flow.Action, snap.Classifier().Len())
		for i := range t.actions {
			t.actions[i] = snap.Classifier().Rule(i).Actions
		}
	}
	if t.scratch == nil {
		t.scratch = make([]byte, scratchRoom+t.port.o.FrameSize)
	}
	if t.frame.Len < t.frame.Wire {
		return nil // a part of a packet cannot be put into a tunnel, or taken out of one
	}
	buf := t.scratch[:scratchRoom+copy(t.scratch[scratchRoom:], frame)]
	out, why := flow.Transform(t.actions[i], buf, scratchRoom, &t.layers)
	if why != flow.Applied {
		return nil
	}
	if back {
		from, to := t.ring.Room(t.head)
		if uint64(len(out)) > to-from {
			return nil
		}
		out = t.bytes[from : from+uint64(copy(t.bytes[from:to], out))]
		t.frame.Off, t.moved = from, true
	}
	t.frame.Len, t.frame.Wire = uint32(len(out)), uint32(len(out))
	return out
}
