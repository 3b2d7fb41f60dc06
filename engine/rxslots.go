package engine

import (
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// RxSlots copies packets from memory of a device or the kernel into slots of a receive queue's
// pools: whole packets into one pool, headers and payloads into two. It keeps a few free slots of
// each pool in a cache, and is used by one goroutine at a time. Counts go to the queue's front.
type RxSlots struct {
	front   *RxFront
	split   bool
	splitAt int
	pools   [2]slotCache
	copied  metrics.Counter // bytes
}

type slotCache struct {
	pool  *mem.Pool
	cache *mem.Cache
	src   *burst.Source
	bytes []byte // of the pool's region
}

// NewRxSlots makes one for the pools of a queue that was started, before other goroutines use the
// queue. Close it when the queue ends.
func NewRxSlots(front *RxFront) *RxSlots {
	spec := front.Spec()
	s := &RxSlots{front: front, split: len(spec.Pools) == 2, splitAt: spec.SplitAt}
	for i, pool := range spec.Pools {
		s.pools[i] = slotCache{pool, pool.Cache(), burst.PoolSource(pool), pool.Region().All().Bytes()}
	}
	front.slots = append(front.slots, s)
	return s
}

// Close gives the free slots back.
func (s *RxSlots) Close() {
	for i := range s.pools {
		if c := s.pools[i].cache; c != nil {
			c.Close()
		}
	}
}

// Put adds a copy of a packet to b and returns its index there. It is NoRoom when b has none, and
// nothing has happened; PutDropped when the packet was dropped, and counted: as DropNoBuffers, or
// as DropTooLong where it is longer than its slots. With cut such a packet is cut off instead, and
// marked as burst.Truncated.
func (s *RxSlots) Put(b *burst.Burst, p []byte, cut bool) int {
	if b.Room() < 1 {
		return NoRoom
	}
	head, rest, role := p, []byte(nil), burst.Frame
	if s.split {
		at := s.splitAt
		if at == 0 {
			var l packet.Layers
			packet.Parse(p, &l) // what is malformed has fewer layers
			at = int(l.Payload)
		}
		at = min(at, len(p))
		head, rest, role = p[:at], p[at:], burst.Header
		if len(rest) > 0 && b.SegmentRoom() < 2 {
			return NoRoom
		}
	}
	var flags burst.Flags
	if len(head) > s.pools[0].pool.SlotSize() || s.split && len(rest) > s.pools[1].pool.SlotSize() {
		if !cut {
			s.front.Drop(DropTooLong, 1)
			return PutDropped
		}
		flags = burst.Truncated
	}
	i, ok := s.add(b, 0, head, role, -1)
	if !ok || i < 0 {
		return s.refused(ok)
	}
	if len(rest) > 0 {
		k, ok := s.add(b, 1, rest, burst.Payload, i)
		if !ok || k < 0 {
			b.Truncate(i) // with the slot of its header
			return s.refused(ok)
		}
	}
	if flags == 0 {
		s.copied.Add(uint64(len(p)))
	} else {
		s.copied.Add(uint64(b.PacketLen(i)))
		b.Builder().SetReceived(i, len(p), flags, 0)
	}
	return i
}

// PutSplit adds a packet whose header is copied into a slot of the first pool, and whose rest lies
// already in memory that the caller passes on; nil where the packet is all header. It returns what
// Put does; the rest stays the caller's where that is negative.
func (s *RxSlots) PutSplit(b *burst.Burst, head []byte, src *burst.Source, rest *burst.Segment) int {
	if b.Room() < 1 || rest != nil && b.SegmentRoom() < 2 {
		return NoRoom
	}
	i, ok := s.add(b, 0, head, burst.Header, -1)
	if !ok || i < 0 {
		return s.refused(ok)
	}
	if rest != nil && !b.Builder().AddSegment(src, *rest) {
		b.Truncate(i)
		return NoRoom
	}
	s.copied.Add(uint64(len(head)))
	return i
}

// refused says why add added nothing.
func (s *RxSlots) refused(slot bool) int {
	if slot {
		return NoRoom
	}
	s.front.Drop(DropNoBuffers, 1)
	return PutDropped
}

// What Put returns in place of an index.
const (
	NoRoom     = -1
	PutDropped = -2
)

// add copies p into a slot of pool k, as a packet of its own, or as the next segment of packet to.
// slot is false when the pool has none; i is negative when b has too many sources.
func (s *RxSlots) add(b *burst.Burst, k int, p []byte, role burst.Role, to int) (i int, slot bool) {
	c := &s.pools[k]
	h, err := c.cache.Get()
	if err != nil {
		return -1, false
	}
	size := c.pool.SlotSize()
	off := c.pool.Offset(h.Handle())
	n := copy(c.bytes[off:off+uint64(size)], p)
	g := burst.Segment{Handle: h.Handle(), Off: off, Len: uint32(n), Cap: uint32(size), Role: role}
	if to < 0 {
		i = b.Builder().Add(c.src, g)
	} else if i = to; !b.Builder().AddSegment(c.src, g) {
		i = -1
	}
	if i < 0 {
		_ = c.cache.Put(h)
	}
	return i, true
}
