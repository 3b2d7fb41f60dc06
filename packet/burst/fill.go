package burst

import (
	"sync"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/mem"
)

// What follows fills bursts and takes them apart. It is for engines and for code between queues;
// applications receive, allocate and send.

// Segment describes one segment to Add.
type Segment struct {
	Handle   Handle // given to the Source's Owner at the end; NoHandle for none
	Off      uint64 // of the first byte in the Source's region
	Len      uint32 // bytes
	Cap      uint32 // bytes from Off that it may grow to; less than Len means Len
	Headroom uint16 // bytes before Off that it may grow into
	Role     Role
}

// Add adds a packet with one segment in src and returns its index, or -1 when there is no room: the
// caller still owns the segment then. Other properties of the packet are zero.
func (d *Builder) Add(src *Source, g Segment) int {
	b := d.Burst()

	if b.n == len(b.flow) || len(b.segs) == cap(b.segs) {
		return -1
	}
	s, ok := b.source(src)
	if !ok {
		return -1
	}
	if invariants.Enabled && b.n == 0 {
		b.debug.fill(b)
	}
	i := b.n
	k := len(b.segs)
	b.segs = b.segs[:k+1]
	b.segs[k].set(s, g)
	b.n++
	b.first[i+1] = uint32(k + 1)
	b.flow[i], b.meta[i] = 0, meta{}
	return i
}

// AddSlots adds a packet for each of pool's slots that handles stand for, as many as there is room
// for, and returns how many; src is of that pool. Each has one segment like g, with the handle of
// its slot, g.Off counted from where the slot begins, and the length in lens, which has one for
// each handle, or is nil.
func (d *Builder) AddSlots(src *Source, pool *mem.Pool, handles []Handle, lens []uint32, g Segment) int {
	b := d.Burst()

	n := min(len(handles), b.Room())
	if n == 0 {
		return 0
	}
	s, ok := b.source(src)
	if !ok {
		return 0
	}
	if invariants.Enabled && b.n == 0 {
		b.debug.fill(b)
	}
	from := len(b.segs)
	b.segs = b.segs[:from+n]
	handles = handles[:n]
	segs, first := b.segs[from:][:len(handles)], b.first[b.n+1:][:len(handles)]
	off, stride := pool.Span().Off+g.Off, uint64(pool.Stride())
	length, room, head, role := g.Len, max(g.Cap, g.Len), g.Headroom, g.Role
	for i, h := range handles {
		to := &segs[i] // field by field, as in set
		to.handle, to.off = h, off+uint64(uint32(h))*stride
		to.len, to.cap = length, room
		to.head, to.src, to.role = head, s, role
		first[i] = uint32(from + i + 1)
	}
	if lens != nil {
		for i, n := range lens[:n] {
			segs[i].len, segs[i].cap = n, max(g.Cap, n)
		}
	}
	clear(b.flow[b.n:][:n])
	clear(b.meta[b.n:][:n])
	b.n += n
	return n
}

// Rows is room for packets of one segment each that an engine adds to a burst in one go: see
// Builder.Rows.
type Rows struct {
	segs []segment
	like segment
}

// Rows gives room for up to n packets of one segment in src that differ in nothing but what Set
// says: the rest of each is like that of g, whose Handle, Off and Len are not looked at. There is
// less room where the burst is full, and none where it has too many Sources. The caller sets the
// rows from the first on and adds them by AddRows; until then the burst is as it was, and nothing
// else is added to it.
func (d *Builder) Rows(src *Source, n int, g Segment) Rows {
	b := d.Burst()

	s, ok := b.source(src)
	if n = min(n, b.Room()); n <= 0 || !ok {
		return Rows{}
	}
	from := len(b.segs)
	return Rows{b.segs[from : from+n : from+n], segment{cap: g.Cap, head: g.Headroom, src: s, role: g.Role}}
}

// Chain is Rows for one packet of n segments, which AddChain adds. There is room for all of them or
// for none.
func (d *Builder) Chain(src *Source, n int, g Segment) Rows {
	b := d.Burst()

	if n > MaxSegments || n > b.SegmentRoom() || b.n == len(b.flow) {
		return Rows{}
	}
	s, ok := b.source(src)
	if !ok {
		return Rows{}
	}
	from := len(b.segs)
	return Rows{b.segs[from : from+n : from+n], segment{cap: g.Cap, head: g.Headroom, src: s, role: g.Role}}
}

// Len is the number of rows that there is room for.
func (r *Rows) Len() int { return len(r.segs) }

// Set says of row i which handle is given back at the end, and where its bytes lie, at most as many
// as the Cap of all rows.
func (r *Rows) Set(i int, h Handle, off uint64, length uint32) {
	to, like := &r.segs[i], &r.like // field by field, as in segment.set
	to.handle, to.off, to.len = h, off, length
	to.cap, to.head, to.src, to.role = like.cap, like.head, like.src, like.role
}

// AddRows adds the first n rows, which are those that Rows gave last.
func (d *Builder) AddRows(n int) {
	b := d.Burst()

	if n <= 0 {
		return
	}
	if invariants.Enabled && b.n == 0 {
		b.debug.fill(b)
	}
	from := len(b.segs)
	b.segs = b.segs[:from+n]
	first := b.first[b.n+1:][:n]
	for i := range first {
		first[i] = uint32(from + i + 1)
	}
	clear(b.flow[b.n:][:n])
	clear(b.meta[b.n:][:n])
	b.n += n
}

// AddChain adds a packet of the n rows that Chain gave last.
func (d *Builder) AddChain(n int) {
	b := d.Burst()

	if invariants.Enabled && b.n == 0 {
		b.debug.fill(b)
	}
	i := b.n
	b.segs = b.segs[:len(b.segs)+n]
	b.n++
	b.first[i+1] = uint32(len(b.segs))
	b.flow[i], b.meta[i] = 0, meta{}
}

// AddSegment adds another segment to the last packet and reports whether there was room; the caller
// still owns the segment otherwise.
func (d *Builder) AddSegment(src *Source, g Segment) bool {
	b := d.Burst()

	if b.n == 0 || len(b.segs) == cap(b.segs) || b.Segments(b.n-1) == MaxSegments {
		return false
	}
	s, ok := b.source(src)
	if !ok {
		return false
	}
	k := len(b.segs)
	b.segs = b.segs[:k+1]
	b.segs[k].set(s, g)
	b.first[b.n] = uint32(k + 1)
	return true
}

// set writes field by field: a copy of a value that was just written in parts would wait for the
// parts.
func (s *segment) set(src uint8, g Segment) {
	s.handle, s.off = g.Handle, g.Off
	s.len, s.cap = g.Len, max(g.Cap, g.Len)
	s.head, s.src, s.role = g.Headroom, src, g.Role
}

// source finds the number of a Source, or gives it one.
func (b *Burst) source(src *Source) (uint8, bool) {
	for s := range b.nsources {
		if b.sources[s] == src {
			return uint8(s), true
		}
	}
	if b.nsources == MaxSources {
		return 0, false
	}
	b.sources[b.nsources] = src
	b.nsources++
	return uint8(b.nsources - 1), true
}

// SetFlow sets the id of the rule that steered packet i.
func (d *Builder) SetFlow(i int, id uint32) {
	b := d.Burst()
	b.check(i)
	b.flow[i] = id
}

// SetReceived sets what an engine knows of a packet that it received: its length on the wire, 0 for
// the length of what is here, flags, and with HasTime among them the time in nanoseconds since
// 1970. HasHash is SetHash's. Of Requests it takes ChecksumPartial.
func (d *Builder) SetReceived(i, wireLen int, flags Flags, ns int64) {
	b := d.Burst()

	b.check(i)
	m := &b.meta[i]
	m.wire, m.flags, m.time = uint32(wireLen), flags&^(Requests&^ChecksumPartial), ns
	b.asked |= flags & ChecksumPartial
}

// SetPartial says that the checksum of packet i is not computed yet: ChecksumPartial. SetReceived
// comes before it.
func (d *Builder) SetPartial(i int) {
	b := d.Burst()

	b.check(i)
	b.meta[i].flags |= ChecksumPartial
	b.asked |= ChecksumPartial
}

// SetHash sets the receive hash of packet i. SetReceived comes before it.
func (d *Builder) SetHash(i int, hash uint32) {
	b := d.Burst()

	b.check(i)
	b.meta[i].hash = hash
	b.meta[i].flags |= HasHash
}

// Answer says that what packet i asked for of these is done, or left to who sends it.
func (d *Builder) Answer(i int, what Flags) {
	b := d.Burst()

	b.check(i)
	b.meta[i].flags &^= what & Requests
}

// CopyRequests has packet i ask for what packet k of other asks for.
func (d *Builder) CopyRequests(i int, other *Burst, k int) {
	b := d.Burst()

	if size := other.SegmentSize(k); size > 0 {
		b.SetSegmentSize(i, size)
	}
	b.Ask(i, other.Flags(k))
	if other.Flags(k)&ChecksumPartial != 0 {
		d.SetPartial(i)
	}
}

// SetType says which headers packet i begins with.
func (d *Builder) SetType(i int, t Type) {
	b := d.Burst()
	b.check(i)
	b.meta[i].typ = t
}

// SetConns says for the last len(ids) packets to which connection or peer each goes, or where it
// came from.
func (d *Builder) SetConns(ids []uint32) {
	b := d.Burst()

	for i, id := range ids {
		b.meta[b.n-len(ids)+i].conn = id
	}
}

// AtOnce takes away what a device noted when it received the packets and what does not hold when
// they are sent: their times, hashes and types. Requests go as well, but for ChecksumPartial. What
// is sent leaves at once.
func (d *Builder) AtOnce() {
	b := d.Burst()

	for i := range b.meta[:b.n] {
		m := &b.meta[i]
		m.time, m.hash, m.flags, m.typ = 0, 0, m.flags&^(HasTime|HasHash|Outgoing|Requests&^ChecksumPartial), 0
	}
	b.asked &= ChecksumPartial
}

// SetAllReceived is SetReceived for all packets, with the length of what is here, and takes
// connections away: what a sender noted is not the receiver's. Flow ids, hashes and types stay.
func (d *Builder) SetAllReceived(flags Flags, ns int64) {
	b := d.Burst()

	for i := range b.meta[:b.n] {
		m := &b.meta[i]
		if m.flags&HasHash == 0 {
			m.hash = 0 // or a segment size
		}
		*m = meta{time: ns, flags: flags | m.flags&HasHash, hash: m.hash, typ: m.typ}
	}
	b.asked = 0
}

// Part is one segment of a packet with the Source that it is from, as an engine needs it to send
// and to give back.
type Part struct {
	Source *Source
	Segment
}

// Part describes segment k of packet i.
func (d *Builder) Part(i, k int) Part {
	b := d.Burst()

	s := b.segment(i, k)
	return Part{b.sources[s.src], Segment{s.handle, s.off, s.len, s.cap, s.head, s.role}}
}

// Run is packets of a burst that follow each other, each of one segment in the same Source: see
// Builder.Run.
type Run struct {
	segs  []segment
	bytes []byte // of the source
}

// Run gives the packets from from on, to to-1 at most, that each have one segment in src, for an
// engine that looks at every packet: Part of each would take longer than the rest of its work. It
// has none if packet from is another one.
func (d *Builder) Run(src *Source, from, to int) Run {
	b := d.Burst()

	if from >= to {
		return Run{}
	}
	b.check(from)
	b.check(to - 1)
	at := b.first[from]
	if int(at) == len(b.segs) {
		return Run{}
	}
	of := b.segs[at].src
	if b.sources[of] != src {
		return Run{}
	}
	n := uint32(0)
	first, segs := b.first[from+1:to+1], b.segs[at:]
	for i := range first {
		if first[i] != at+n+1 || segs[n].src != of {
			break
		}
		n++
	}
	return Run{segs[:n], src.bytes}
}

// Len is the number of packets.
func (r *Run) Len() int { return len(r.segs) }

// At is the Handle, the Off and the Len of packet i of the run.
func (r *Run) At(i int) (h Handle, off uint64, length uint32) {
	s := &r.segs[i]
	return s.handle, s.off, s.len
}

// Bytes are the bytes of packet i of the run; nil in memory that the CPU cannot reach.
func (r *Run) Bytes(i int) []byte {
	if r.bytes == nil {
		return nil
	}
	s := &r.segs[i]
	return r.bytes[s.off : s.off+uint64(s.len) : s.off+uint64(s.cap)]
}

// Replace says that segment k of packet i lies elsewhere from now on: in src, as g says. The caller
// owns the old part, and has g's bytes filled with what the segment held. It is false, and nothing
// has changed, when b has no room for another Source.
func (d *Builder) Replace(i, k int, src *Source, g Segment) (old Part, ok bool) {
	b := d.Burst()

	old = b.Builder().Part(i, k)
	s, ok := b.source(src)
	if !ok {
		return Part{}, false
	}
	b.segment(i, k).set(s, g)
	return old, true
}

// Reclaim gives the memory of a part back to its owner.
func (p Part) Reclaim() {
	if p.Handle != NoHandle {
		one := ones.Get().(*[1]Handle)
		one[0] = p.Handle
		p.Source.owner.Reclaim(one[:])
		ones.Put(one)
	}
}

// ones are slices for single handles, so that Part.Reclaim allocates nothing.
var ones = sync.Pool{New: func() any { return new([1]Handle) }}

// Owned reports whether all memory of the burst is of src.
func (d *Builder) Owned(src *Source) bool {
	b := d.Burst()

	return b.nsources == 0 || b.nsources == 1 && b.sources[0] == src
}

// Forget empties the burst without giving anything back: the caller has taken over every part of
// it.
func (d *Builder) Forget() {
	b := d.Burst()
	b.clear("Send")
}

// Take moves packet i to the end of dst, another burst, and reports whether there was room. In b an
// empty packet stays in its place, which has no segments and is not sent.
func (b *Burst) Take(dst *Burst, i int) bool {
	b.check(i)
	from, to := b.first[i], b.first[i+1]
	if from == to || dst == b || !b.fits(dst, int(to-from)) || !b.move(dst, i, from, to) {
		return false
	}
	if i == b.n-1 {
		b.segs = b.segs[:from]
		b.first[b.n] = from
		return true
	}
	// The others keep their numbers; the segments behind move up.
	b.segs = append(b.segs[:from], b.segs[to:]...)
	for k := i + 1; k <= b.n; k++ {
		b.first[k] -= to - from
	}
	return true
}

// MoveTo moves the first packets to the end of dst, another burst, as many as there is room for,
// and returns their number. The others move to the front of b.
func (b *Burst) MoveTo(dst *Burst) int {
	if dst == b {
		return 0
	}
	moved := b.moveMany(dst)
	for moved < b.n {
		from, to := b.first[moved], b.first[moved+1]
		if !b.fits(dst, int(to-from)) || !b.move(dst, moved, from, to) {
			break
		}
		moved++
	}
	switch {
	case moved == b.n:
		b.clear("MoveTo")
	case moved > 0:
		from := b.first[moved]
		b.segs = b.segs[:copy(b.segs, b.segs[from:])]
		for i := moved; i < b.n; i++ {
			b.first[i-moved+1] = b.first[i+1] - from
		}
		copy(b.flow, b.flow[moved:b.n])
		copy(b.meta, b.meta[moved:b.n])
		b.n -= moved
	}
	return moved
}

// moveMany moves the first packets, as many as there is room for, in one go, if their memory is of
// one source.
func (b *Burst) moveMany(dst *Burst) int {
	n := min(b.n, len(dst.flow)-dst.n)
	if b.nsources != 1 || b.reserver != dst.reserver && dst.n > 0 {
		return 0
	}
	room := uint32(cap(dst.segs) - len(dst.segs))
	for n > 0 && b.first[n] > room {
		n--
	}
	if n == 0 || b.first[n] == 0 {
		return 0
	}
	s, ok := dst.source(b.sources[0])
	if !ok {
		return 0
	}
	if invariants.Enabled && dst.n == 0 {
		dst.debug.fill(dst)
	}
	if b.reserver != dst.reserver {
		dst.Builder().Reserve(b.reserver, 0)
	}
	if b.reserved > 0 {
		k := min(b.reserved, b.Builder().LivePart(0, n))
		b.reserved -= k
		dst.reserved += k
	}
	base := uint32(len(dst.segs))
	dst.segs = append(dst.segs, b.segs[:b.first[n]]...)
	if s != 0 {
		for k := range dst.segs[base:] {
			dst.segs[int(base)+k].src = s
		}
	}
	for i, f := range b.first[1 : n+1] {
		dst.first[dst.n+1+i] = base + f
	}
	copy(dst.flow[dst.n:], b.flow[:n])
	copy(dst.meta[dst.n:], b.meta[:n])
	dst.n += n
	dst.asked |= b.asked
	return n
}

func (b *Burst) fits(dst *Burst, segments int) bool {
	return dst.n < len(dst.flow) && segments <= cap(dst.segs)-len(dst.segs)
}

// move appends packet i, with segments from to to, to dst. Without room for its Sources it changes
// nothing but those.
func (b *Burst) move(dst *Burst, i int, from, to uint32) bool {
	start := len(dst.segs)
	if b.reserver != dst.reserver {
		if dst.n > 0 {
			return false
		}
		dst.Builder().Reserve(b.reserver, 0)
	}
	for _, g := range b.segs[from:to] {
		s, ok := dst.source(b.sources[g.src])
		if !ok {
			dst.segs = dst.segs[:start]
			return false
		}
		g.src = s
		dst.segs = append(dst.segs, g)
	}
	if invariants.Enabled && dst.n == 0 {
		dst.debug.fill(dst)
	}
	if b.reserved > 0 && from < to { // a packet that was taken has passed its room on already
		b.reserved--
		dst.reserved++
	}
	k := dst.n
	dst.n++
	dst.first[dst.n] = uint32(len(dst.segs))
	dst.flow[k], dst.meta[k] = b.flow[i], b.meta[i]
	dst.asked |= b.meta[i].flags & Requests
	return true
}

// Truncate releases the packets from n on.
func (b *Burst) Truncate(n int) {
	if n >= b.n {
		return
	}
	if n <= 0 {
		b.Release()
		return
	}
	b.reclaim(b.segs[b.first[n]:])
	b.segs = b.segs[:b.first[n]]
	b.n = n
	if over := b.reserved - b.Live(); over > 0 {
		b.reserver.Unreserve(over)
		b.reserved -= over
	}
}

// TruncateLive releases all packets behind the first n that have segments.
func (d *Builder) TruncateLive(n int) {
	b := d.Burst()

	i := 0
	for ; i < b.n && n > 0; i++ {
		if b.first[i] != b.first[i+1] {
			n--
		}
	}
	b.Truncate(i)
}

// ReleasePart gives the memory of packets from to to-1 back at once. They stay in b in their places
// and with their lengths, but their bytes must not be looked at any more. It is for a queue that
// sends a burst piece by piece.
func (d *Builder) ReleasePart(from, to int) {
	b := d.Burst()

	if from >= to {
		return
	}
	b.check(from)
	b.check(to - 1)
	segs := b.segs[b.first[from]:b.first[to]]
	b.reclaim(segs)
	for k := range segs {
		segs[k].handle = NoHandle
	}
}

// ForgetPart says that the memory of packets from to to-1 has a new owner: the caller gives it
// back. They stay in b in their places and with their lengths, as after ReleasePart.
func (d *Builder) ForgetPart(from, to int) {
	b := d.Burst()

	if from >= to {
		return
	}
	b.check(from)
	b.check(to - 1)
	segs := b.segs[b.first[from]:b.first[to]]
	for k := range segs {
		segs[k].handle = NoHandle
	}
}

// Reserver gave room for packets that are to be sent, and takes it back when they are released
// instead. Unreserve is called by any goroutine and must not block.
type Reserver interface {
	Unreserve(packets int)
}

// Reserve notes that r has kept room for that many packets of b, which Release gives back. Packets
// keep their room when they move to another burst; bursts of two reservers do not mix.
func (d *Builder) Reserve(r Reserver, packets int) {
	b := d.Burst()

	if b.reserver != r && b.reserved > 0 {
		b.reserver.Unreserve(b.reserved)
		b.reserved = 0
	}
	b.reserver = r
	b.reserved += packets
}

// Reserved is the number of packets for which r has kept room; 0 if another Reserver has.
func (d *Builder) Reserved(r Reserver) int {
	b := d.Burst()

	if b.reserver != r {
		return 0
	}
	return b.reserved
}

// Unreserve takes the room that was kept over: the caller uses it now.
func (d *Builder) Unreserve() {
	b := d.Burst()

	b.reserver, b.reserved = nil, 0
}

// Live is the number of packets that have segments: all but those that Take has taken.
func (b *Burst) Live() int { return b.Builder().LivePart(0, b.n) }

// LivePart is Live of packets from to to-1.
func (d *Builder) LivePart(from, to int) int {
	b := d.Burst()

	n := 0
	for i := from; i < to; i++ {
		if b.first[i] != b.first[i+1] {
			n++
		}
	}
	return n
}

// SegmentCount is the number of segments of all packets.
func (b *Burst) SegmentCount() int { return len(b.segs) }
