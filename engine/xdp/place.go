package xdp

import (
	"slices"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/xdp/prog"
	"github.com/penstock-io/penstock/internal/xsk"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// piece is a segment to be, and the pool that its slot was taken from; -1 for a chunk of the
// kernel's.
type piece struct {
	src  *burst.Source
	pool int
	seg  burst.Segment
}

// placeChain adds a packet of several chunks that are all filled from the same place on, as the
// kernel fills them, where it put them. It is false, and nothing has happened, when there is more
// to think about. The caller holds n.mu.
func (q *rxQueue) placeChain(n *nicQueue, b *burst.Burst, d []xsk.Desc) bool {
	m := n.memory
	table, shift, inside, mine := m.table, m.shift, m.chunk-1, n.tag|filled
	off := d[0].Addr & inside
	room := m.chunk - off
	rows := b.Builder().Chain(m.source, len(d), burst.Segment{Cap: uint32(room), Headroom: uint16(off)})
	if rows.Len() < len(d) {
		return false
	}
	for k := range d {
		a, length := d[k].Addr, uint64(d[k].Len)
		at := a >> shift
		if at >= uint64(len(table)) || table[at]&(queueMask|stateMask) != mine || a&inside != off || length == 0 ||
			length > room {
			return false
		}
		rows.Set(k, table[at].delivered().handle(at), a, d[k].Len)
	}
	for k := range d {
		at := d[k].Addr >> shift
		table[at] = table[at].delivered()
	}
	b.Builder().AddChain(len(d))
	if a := d[0].Addr; q.port.meta.Load() {
		if t, ok := prog.TakeMeta(m.bytes[a-off : a]); ok {
			q.note(b, b.Len()-1, &t)
		}
	}
	n.out -= len(d)
	return true
}

// placeMore is place for packets that are not one segment of one chunk: jumbo frames, header/data
// split, and packets that the queue wants in other memory than where the kernel put them.
func (q *rxQueue) placeMore(n *nicQueue, b *burst.Burst, d []xsk.Desc) (added int, room bool) {
	drop := func(why engine.Drop) (int, bool) {
		for i := range d {
			if n.received(&d[i]) {
				n.reuse(d[i].Addr)
			}
		}
		q.Drop(why, 1)
		return 0, true
	}
	total := 0
	for i := range d {
		if !n.received(&d[i]) {
			return drop(engine.DropUnattributed)
		}
		total += int(d[i].Len)
	}
	if total == 0 { // no piece of it has bytes
		return drop(engine.DropBadFrame)
	}
	head := 0
	if q.pools[1] != nil {
		head = q.headLen(n, d, total)
	}
	segments := q.count(d, total, head)
	if segments > b.SegmentRoom() && b.Len() > 0 {
		return 0, false
	}
	if segments > min(b.SegmentRoom(), burst.MaxSegments) || q.pools[1] != nil && !q.views() &&
		head > q.pools[0].SlotSize() {
		return drop(engine.DropTooLong)
	}
	if !q.cut(n, d, total, head) {
		return drop(engine.DropNoBuffers)
	}
	if !q.add(b) {
		q.putBack()
		if b.Len() > 0 { // its packets have too many sources
			return 0, false
		}
		return drop(engine.DropTooLong)
	}
	if a := d[0].Addr; q.port.meta.Load() {
		if t, ok := prog.TakeMeta(n.memory.bytes[a&^(n.memory.chunk-1) : a]); ok {
			q.note(b, b.Len()-1, &t)
		}
	}
	q.mark(n, d, head)
	return 1, true
}

// views reports whether header and payload are two views of one chunk.
func (q *rxQueue) views() bool { return q.whole && q.pools[0] == q.pools[1] }

// headLen is the length of the header segment.
func (q *rxQueue) headLen(n *nicQueue, d []xsk.Desc, total int) int {
	at := q.Spec().SplitAt
	if at == 0 {
		frame := n.memory.bytes[d[0].Addr : d[0].Addr+uint64(d[0].Len)]
		if total > len(frame) { // the parser wants to see its length
			if len(q.scratch) < total {
				q.scratch = make([]byte, max(total, 1<<16)) // once
			}
			copy(q.scratch, frame)
			frame = q.scratch[:total]
		}
		var l packet.Layers
		packet.Parse(frame, &l)
		at = int(l.Payload)
	}
	if q.views() {
		total = int(d[0].Len)
	}
	return min(at, total)
}

// count is the number of segments that a packet becomes.
func (q *rxQueue) count(d []xsk.Desc, total, head int) (n int) {
	if head > 0 {
		n, total = 1, total-head
	}
	if !q.whole {
		size := q.pools[0].SlotSize()
		if q.pools[1] != nil {
			size = q.pools[1].SlotSize()
		}
		return n + (total+size-1)/size
	}
	for i := range d {
		if k := int(d[i].Len); k > head {
			n, head = n+1, 0
		} else {
			head -= k
		}
	}
	return n
}

// cut makes the segments of a packet in q.pieces, and copies what is to be copied. It is false when
// there are not enough slots, and none is taken then.
func (q *rxQueue) cut(n *nicQueue, d []xsk.Desc, total, head int) bool {
	q.pieces = q.pieces[:0]
	from := reader{n.memory.bytes, d, 0}
	copied := 0
	take := func(s, length int, role burst.Role) bool {
		slot, err := q.caches[s].Get()
		if err != nil {
			q.putBack()
			return false
		}
		h := slot.Handle()
		off := q.pools[s].Offset(h)
		from.read(q.bytes[s][off : off+uint64(length)])
		copied += length
		q.pieces = append(q.pieces, piece{q.srcs[s], s,
			burst.Segment{Handle: h, Off: off, Len: uint32(length), Cap: uint32(q.pools[s].SlotSize()), Role: role}})
		return true
	}
	role, data := burst.Frame, 0
	if q.pools[1] != nil {
		role, data = burst.Payload, 1
	}
	m := n.memory
	if head > 0 && q.views() {
		// The payload carries the chunk; a header without payload carries it itself.
		g := burst.Segment{Handle: burst.NoHandle, Off: d[0].Addr, Len: uint32(head),
			Headroom: uint16(d[0].Addr & (m.chunk - 1)), Role: burst.Header}
		if head == int(d[0].Len) {
			g.Handle = m.handle(d[0].Addr)
		}
		q.pieces = append(q.pieces, piece{m.source, -1, g})
	} else if head > 0 && !take(0, head, burst.Header) {
		return false
	}
	if !q.whole {
		for left := total - head; left > 0; {
			k := min(left, q.pools[data].SlotSize())
			if !take(data, k, role) {
				return false
			}
			left -= k
		}
		q.Copied(copied)
		return true
	}
	skip := head
	for i := range d {
		if k := int(d[i].Len); k <= skip {
			skip -= k
			continue
		}
		a := d[i].Addr + uint64(skip)
		g := burst.Segment{Handle: m.handle(a), Off: a, Len: d[i].Len - uint32(skip),
			Cap: uint32(m.chunk - a&(m.chunk-1)), Role: role}
		if len(q.pieces) == 0 {
			g.Headroom = uint16(a & (m.chunk - 1))
		}
		q.pieces = append(q.pieces, piece{m.source, -1, g})
		skip = 0
	}
	q.Copied(copied)
	return true
}

// putBack gives the slots of q.pieces back, the last one first.
func (q *rxQueue) putBack() {
	for _, g := range slices.Backward(q.pieces) {
		if g.pool >= 0 {
			_ = q.caches[g.pool].Put(q.pools[g.pool].Slot(g.seg.Handle))
		}
	}
}

// add adds the packet of q.pieces to b. It is false when there is no room, and b is as it was.
func (q *rxQueue) add(b *burst.Burst) bool {
	i := b.Builder().Add(q.pieces[0].src, q.pieces[0].seg)
	if i < 0 {
		return false
	}
	for k := 1; k < len(q.pieces); k++ {
		if !b.Builder().AddSegment(q.pieces[k].src, q.pieces[k].seg) {
			b.Builder().ForgetPart(i, i+1)
			b.Truncate(i)
			return false
		}
	}
	return true
}

// mark says where the chunks of a packet that was added are now.
func (q *rxQueue) mark(n *nicQueue, d []xsk.Desc, head int) {
	m := n.memory
	for i := range d {
		k := int(d[i].Len)
		if !q.whole || k <= head && !q.views() {
			n.reuse(d[i].Addr)
		} else {
			e := &m.table[d[i].Addr>>m.shift]
			*e = e.delivered()
			n.out--
		}
		head -= min(head, k)
	}
}

// reader reads the bytes of a packet, one piece after the other.
type reader struct {
	bytes []byte
	d     []xsk.Desc
	off   int // in the first of d
}

func (r *reader) read(to []byte) {
	for len(to) > 0 && len(r.d) > 0 {
		a := r.d[0].Addr
		k := copy(to, r.bytes[a+uint64(r.off):a+uint64(r.d[0].Len)])
		to = to[k:]
		if r.off += k; r.off == int(r.d[0].Len) {
			r.d, r.off = r.d[1:], 0
		}
	}
}
