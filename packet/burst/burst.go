package burst

import (
	"fmt"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/mem"
)

const (
	// MaxSources is the number of different Sources in one burst: more than the memories of one
	// queue.
	MaxSources = 8
	// MaxSegments is the number of segments of one packet.
	MaxSegments = 64
)

// NoHandle marks a segment that no Owner takes back: another segment of the same packet carries the
// handle of its memory, as for a header and a payload that are two views of one slot.
const NoHandle = ^Handle(0)

// Role says what a segment holds.
type Role uint8

const (
	Frame   Role = iota // the packet, or the next chunk of it, headers and payload together
	Header              // the packet's headers
	Payload             // what comes after them
)

func (r Role) String() string {
	switch r {
	case Frame:
		return "frame"
	case Header:
		return "header"
	case Payload:
		return "payload"
	}
	return fmt.Sprintf("role %d", uint8(r))
}

// Flags say more about a packet.
type Flags uint16

const (
	Truncated Flags = 1 << iota // longer on the wire than what is here; WireLen says how long
	// its checksums were verified by the NIC or the kernel; without this and the next flag nothing
	// is known of them
	ChecksumGood
	ChecksumBad  // they were found wrong, and the queue is set to deliver such packets
	HasTime      // Time holds the receive time
	HardwareTime // that time was taken by the NIC
	VLANStripped // the NIC or the kernel took a VLAN tag off; Flow rules saw it
	Last         // last packet of a message or stream: the peer has ended its direction
	HasHash      // Hash holds the receive hash
)

// Requests of a packet that is to be sent, among its flags. The device does what it can, and
// software the rest, before the packet leaves: engine.Capabilities say who. On ports whose packets
// are payloads the transport does the checksums, whether they are asked for or not.
const (
	ChecksumIPv4 Flags = 1 << (iota + 8) // compute the checksum of the IPv4 header
	ChecksumL4                           // compute the checksum of TCP or UDP
	Segmented                            // SegmentSize says how to cut the payload; by SetSegmentSize only

	// ChecksumPartial is set by receive queues: the sender of the frame, on this machine, left the
	// checksum of TCP or UDP to a device, and no device has computed it: the field holds the folded
	// sum of the pseudo header. TxQueue.Forward keeps the flag, and Send computes the checksum, or
	// drops the frame (engine.DropBadChecksum). Who changes addresses or ports asks for ChecksumL4;
	// so does who sends a copy of the bytes.
	ChecksumPartial

	// Outgoing is set by receive queues: this host sent the packet. All others came from outside.
	Outgoing

	Requests = ChecksumIPv4 | ChecksumL4 | Segmented | ChecksumPartial
)

// segment is one run of bytes. It holds no pointer.
type segment struct {
	handle Handle
	off    uint64 // of its first byte in the region
	len    uint32
	cap    uint32 // bytes from off that belong to it
	head   uint16 // bytes before off that belong to it
	src    uint8
	role   Role
}

// meta is what else is known of a packet: 24 bytes, without a gap.
type meta struct {
	time  int64
	conn  uint32
	wire  uint32
	hash  uint32 // with Segmented the segment size
	flags Flags
	typ   Type
}

// Burst is a batch of packets. Make it with New; it belongs to one goroutine at a time.
type Burst struct {
	n    int
	segs []segment // all packets' segments, one packet after the other
	// Per packet. first has one more entry, so that packet i has segments first[i] to first[i+1].
	first []uint32
	flow  []uint32
	meta  []meta

	sources  [MaxSources]*Source
	nsources int
	scratch  []Handle

	asked Flags // requests of packets that are here, and perhaps of some that were

	reserver Reserver
	reserved int
	fetched  byte // by Fetch

	debug debug // empty without -tags invariants
}

// New makes a burst with room for that many packets, at least 1, of one segment each.
func New(packets int) *Burst { return NewSegmented(packets, packets) }

// NewSegmented makes a burst with room for that many packets and segments altogether.
func NewSegmented(packets, segments int) *Burst {
	packets = max(packets, 1)
	segments = max(segments, packets)
	return &Burst{
		segs:    make([]segment, 0, segments),
		first:   make([]uint32, packets+1),
		flow:    make([]uint32, packets),
		meta:    make([]meta, packets),
		scratch: make([]Handle, segments),
	}
}

// Len is the number of packets.
func (b *Burst) Len() int { return b.n }

// Cap is the number of packets that there is room for.
func (b *Burst) Cap() int { return len(b.flow) }

// Room is the number of packets that can be added, if they have one segment each and come from
// Sources that are known or for which there is room.
func (b *Burst) Room() int { return min(len(b.flow)-b.n, cap(b.segs)-len(b.segs)) }

// SegmentRoom is the number of segments that can be added.
func (b *Burst) SegmentRoom() int { return cap(b.segs) - len(b.segs) }

// Segments is the number of segments of packet i; 0 once Take has taken it.
func (b *Burst) Segments(i int) int {
	b.check(i)
	return int(b.first[i+1] - b.first[i])
}

func (b *Burst) segment(i, k int) *segment {
	b.check(i)
	return &b.segs[b.first[i]:b.first[i+1]][k]
}

// check stops an access to a packet that is not there: it would read what an earlier burst left.
func (b *Burst) check(i int) {
	if uint(i) >= uint(b.n) {
		b.outside(i)
	}
}

//go:noinline
func (b *Burst) outside(i int) {
	text := fmt.Sprintf("burst: packet %d of %d", i, b.n)
	if invariants.Enabled {
		text += b.debug.emptied()
	}
	panic(text)
}

// Segment names segment k of packet i.
func (b *Burst) Segment(i, k int) mem.Span {
	s := b.segment(i, k)
	return mem.Span{Region: b.sources[s.src].region, Off: s.off, Len: uint64(s.len)}
}

// Role says what segment k of packet i holds.
func (b *Burst) Role(i, k int) Role { return b.segment(i, k).role }

// Bytes are the bytes of segment k of packet i, valid as long as the packet is owned; nil in memory
// that the CPU cannot reach.
func (b *Burst) Bytes(i, k int) []byte {
	s := b.segment(i, k)
	m := b.sources[s.src].bytes
	if m == nil {
		return nil
	}
	return m[s.off : s.off+uint64(s.len) : s.off+uint64(s.cap)]
}

// Hidden is the first packet with bytes that the CPU cannot reach, -1 if there is none.
func (b *Burst) Hidden() int {
	hidden := false
	for s := range b.nsources {
		hidden = hidden || b.sources[s].bytes == nil
	}
	if !hidden { // nearly always
		return -1
	}
	for i := range b.n {
		for k := b.first[i]; k < b.first[i+1]; k++ {
			if g := &b.segs[k]; g.len > 0 && b.sources[g.src].bytes == nil {
				return i
			}
		}
	}
	return -1
}

// Fetch reads the first byte of each packet, so that the processor has the front of all of them in
// its cache before the first is looked at: it waits for many at the same time then, and otherwise
// for one after the other. It pays for bursts that were just received and whose headers are to be
// read: the bytes were written by another processor, or by a card.
func (b *Burst) Fetch() {
	var sum byte
	for i, from := range b.first[:b.n] {
		if from == b.first[i+1] {
			continue // it was taken
		}
		if s := &b.segs[from]; s.len > 0 {
			if m := b.sources[s.src].bytes; s.off < uint64(len(m)) {
				sum += m[s.off]
			}
		}
	}
	b.fetched = sum // a load whose result is not used would not be made
}

// PacketLen is the number of bytes of packet i in all its segments.
func (b *Burst) PacketLen(i int) int {
	b.check(i)
	segs := b.segs[b.first[i]:b.first[i+1]]
	if len(segs) == 1 { // nearly always
		return int(segs[0].len)
	}
	return total(segs)
}

// LenFrom is the number of bytes of packet i and those behind it.
func (d *Builder) LenFrom(i int) int {
	b := d.Burst()

	if i >= b.n {
		return 0
	}
	return total(b.segs[b.first[i]:])
}

func total(segs []segment) (n int) {
	for len(segs) >= 4 { // four at once: of one after the other the counting takes longer than the sum
		n += int(segs[0].len) + int(segs[1].len) + int(segs[2].len) + int(segs[3].len)
		segs = segs[4:]
	}
	for k := range segs {
		n += int(segs[k].len)
	}
	return n
}

// TotalLen is the number of bytes of all packets.
func (b *Burst) TotalLen() int { return total(b.segs) }

// CopyTo copies the bytes of packet i, all its segments in order, to dst and returns how many fit.
// Segments that the CPU cannot reach end the copy.
func (b *Burst) CopyTo(dst []byte, i int) int {
	n := 0
	for k := range b.Segments(i) {
		from := b.Bytes(i, k)
		n += copy(dst[n:], from)
		if from == nil || n == len(dst) {
			break
		}
	}
	return n
}

// SegmentCap is the number of bytes that segment k of packet i can hold: SetLen takes up to that
// many.
func (b *Burst) SegmentCap(i, k int) int { return int(b.segment(i, k).cap) }

// SetLen makes segment k of packet i n bytes long, at most SegmentCap. It reports whether that many
// fit, and changes nothing otherwise.
func (b *Burst) SetLen(i, k, n int) bool {
	s := b.segment(i, k)
	if n < 0 || uint64(n) > uint64(s.cap) {
		return false
	}
	s.len = uint32(n)
	return true
}

// Headroom is the number of bytes before segment 0 of packet i that Prepend can use.
func (b *Burst) Headroom(i int) int { return int(b.segment(i, 0).head) }

// Prepend makes packet i begin n bytes earlier, for headers that are put in front. It reports
// whether there was so much headroom, and changes nothing otherwise.
func (b *Burst) Prepend(i, n int) bool {
	s := b.segment(i, 0)
	if n < 0 || n > int(s.head) {
		return false
	}
	s.head -= uint16(n)
	s.off -= uint64(n)
	s.len += uint32(n)
	s.cap += uint32(n)
	return true
}

// TrimFront takes n bytes off the front of segment 0 of packet i; they become headroom. It reports
// whether there were so many.
func (b *Burst) TrimFront(i, n int) bool {
	s := b.segment(i, 0)
	if n < 0 || uint64(n) > uint64(s.len) || n+int(s.head) > 1<<16-1 {
		return false
	}
	s.head += uint16(n)
	s.off += uint64(n)
	s.len -= uint32(n)
	s.cap -= uint32(n)
	return true
}

// Flow is the id of the rule that steered packet i here, 0 for none.
func (b *Burst) Flow(i int) uint32 { b.check(i); return b.flow[i] }

// Flows are the flow ids of all packets.
func (b *Burst) Flows() []uint32 { return b.flow[:b.n] }

// Conn is the connection or peer that packet i came from or goes to, as numbered by the port; 0
// where there is none.
func (b *Burst) Conn(i int) uint32 { b.check(i); return b.meta[i].conn }

// SetConn says to which connection or peer packet i goes.
func (b *Burst) SetConn(i int, id uint32) { b.check(i); b.meta[i].conn = id }

// Flags are the flags of packet i.
func (b *Burst) Flags(i int) Flags { b.check(i); return b.meta[i].flags }

// Hash is the receive hash of packet i, which is the same for all packets of one flow in one
// direction; ok is false where the device gave none. Devices differ in the function, its key and
// the fields that it reads.
func (b *Burst) Hash(i int) (hash uint32, ok bool) {
	b.check(i)
	return b.meta[i].hash, b.meta[i].flags&HasHash != 0
}

// Type says which headers packet i begins with, as far as the device knows; 0 where it does not.
func (b *Burst) Type(i int) Type { b.check(i); return b.meta[i].typ }

// WireLen is the length in bytes that packet i had on the wire, where the engine knows it;
// otherwise that of what is here.
func (b *Burst) WireLen(i int) int {
	b.check(i)
	if w := b.meta[i].wire; w != 0 {
		return int(w)
	}
	return b.PacketLen(i)
}

// Time is when packet i was received, in nanoseconds since 1970 (CLOCK_REALTIME, or the NIC's clock
// set to it); ok is false where the queue has no timestamps. In a burst to be sent it is when to
// send at the earliest.
func (b *Burst) Time(i int) (ns int64, ok bool) {
	b.check(i)
	return b.meta[i].time, b.meta[i].flags&HasTime != 0
}

// Times are the earliest and the latest time, as Time gives them, of the packets from from to to-1;
// ok is false where none of them has a time.
func (b *Burst) Times(from, to int) (first, last int64, ok bool) {
	if from >= to {
		return 0, 0, false
	}
	b.check(from)
	b.check(to - 1)
	for i := range b.meta[from:to] {
		m := &b.meta[from+i]
		if m.flags&HasTime == 0 {
			continue
		}
		if !ok {
			first, last, ok = m.time, m.time, true
		}
		first, last = min(first, m.time), max(last, m.time)
	}
	return first, last, ok
}

// SetTime says when packet i is to be sent, in nanoseconds since 1970; 0 is at once.
func (b *Burst) SetTime(i int, ns int64) {
	b.check(i)
	b.meta[i].time = ns
	b.meta[i].flags |= HasTime
	if ns == 0 {
		b.meta[i].flags &^= HasTime
	}
}

// Ask asks for checksums of packet i, a frame that is to be sent: of ChecksumIPv4 and ChecksumL4
// those in what. What the frame holds in their places does not matter. A frame without the header
// in question, or a part of an IP packet, is sent without.
func (b *Burst) Ask(i int, what Flags) {
	b.check(i)
	what &= ChecksumIPv4 | ChecksumL4
	m := &b.meta[i]
	if m.flags |= what; what&ChecksumL4 != 0 {
		m.flags &^= ChecksumPartial
	}
	b.asked |= what
}

// SetSegmentSize has packet i sent as several, each with size bytes of payload, and the last one
// with the rest. Of a frame it is the payload of TCP or UDP: each segment gets the headers, with
// lengths, numbers and checksums of its own. There are up to 64 segments, and software needs a
// descriptor and a slot of the queue's pools for each when the packet is given to Send. 0 takes the
// request back.
func (b *Burst) SetSegmentSize(i, size int) {
	b.check(i)
	m := &b.meta[i]
	m.flags &^= HasHash | ChecksumIPv4 | ChecksumL4 | Segmented
	if m.hash = uint32(max(size, 0)); size > 0 {
		b.Ask(i, ChecksumIPv4|ChecksumL4)
		m.flags |= Segmented
		b.asked |= Segmented
	}
}

// SegmentSize is what SetSegmentSize has set; 0 for a packet that is to be sent as it is.
func (b *Burst) SegmentSize(i int) int {
	b.check(i)
	if m := &b.meta[i]; m.flags&Segmented != 0 {
		return int(m.hash)
	}
	return 0
}

// Asked are the requests of all packets together. Those of packets that have left may be among
// them.
func (d *Builder) Asked() Flags {
	b := d.Burst()
	return b.asked
}

// Release gives everything back to its owners and empties the burst. An empty one is left as it is:
// what was sent or released is never released again.
func (b *Burst) Release() {
	b.reclaim(b.segs)
	b.clear("Release")
}

// reclaim gives the memory of segments back: one call for each source.
func (b *Burst) reclaim(segs []segment) {
	if len(segs) == 0 {
		return
	}
	for s := range b.nsources {
		n := 0
		for k := range segs {
			if g := &segs[k]; int(g.src) == s && g.handle != NoHandle {
				b.scratch[n] = g.handle
				n++
			}
		}
		if n > 0 {
			b.sources[s].owner.Reclaim(b.scratch[:n])
		}
	}
}

// clear empties the burst without giving memory back: its packets have a new owner.
func (b *Burst) clear(how string) {
	if b.reserver != nil {
		if b.reserved > 0 {
			b.reserver.Unreserve(b.reserved)
		}
		b.reserver, b.reserved = nil, 0
	}
	if invariants.Enabled {
		b.debug.empty(b, how)
	}
	b.n, b.asked = 0, 0
	b.segs = b.segs[:0]
	b.first[0] = 0
	clear(b.sources[:b.nsources])
	b.nsources = 0
}
