package engine

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/mem"
)

// TxSlots makes packets to send out of the pools of a transmit queue: what TxQueue.Alloc does in every engine that sends from pools.
// With one pool a packet is one segment, behind the headroom; with two it is a header, as long as a slot allows, and a payload.
// Any goroutine may use it.
type TxSlots struct {
	pools    []*mem.Pool
	srcs     []*burst.Source
	headroom int
	most     int // bytes that Alloc gives at most

	full, noBuffers atomic.Uint64
}

// NewTxSlots takes one pool or two, with a Source for each, and the bytes that stay free before each packet, less than the slots of the
// first pool have. most is the length of the longest packet, 0 for what the slots hold.
func NewTxSlots(pools []*mem.Pool, srcs []*burst.Source, headroom, most int) *TxSlots {
	s := &TxSlots{pools: slices.Clone(pools), srcs: slices.Clone(srcs), headroom: headroom}
	if s.most = pools[len(pools)-1].SlotSize(); len(pools) == 1 {
		s.most -= headroom
	}
	if most > 0 {
		s.most = min(s.most, most)
	}
	return s
}

// Alloc fills b with up to n packets of length bytes, for which it takes descriptors of o, and returns how many. It is ErrFull when there
// were fewer descriptors, ErrNoBuffers when there were fewer slots, both counted; ErrInvalid when b is not empty or has not the room, or
// when the packets would be too long; ErrNil.
func (s *TxSlots) Alloc(o *Outbox, b *burst.Burst, n, length int) (int, error) {
	switch {
	case b == nil:
		return 0, ErrNil
	case b.Len() > 0 || n < 0 || n > b.Cap():
		return 0, fmt.Errorf("%w: Alloc of %d packets into a burst that holds %d of %d: expected an empty one with room", ErrInvalid, n, b.Len(), b.Cap())
	case n*len(s.pools) > b.SegmentRoom():
		return 0, fmt.Errorf("%w: Alloc of %d packets of two segments each into a burst with room for %d segments: make it with burst.NewSegmented",
			ErrInvalid, n, b.SegmentRoom())
	case length < 0 || length > s.most:
		return 0, fmt.Errorf("%w: Alloc of packets of %d bytes: expected 0 to %d (pool %q has slots of %d)", ErrInvalid, length, s.most,
			s.pools[len(s.pools)-1].Name(), s.pools[len(s.pools)-1].SlotSize())
	}
	got := o.Reserve(n)
	have := s.fill(b, got, length)
	if have > 0 {
		b.Reserve(o, have)
	}
	switch {
	case have < got:
		o.Unreserve(got - have)
		s.noBuffers.Add(1)
		return have, ErrNoBuffers
	case got < n:
		s.full.Add(1)
		return have, ErrFull
	}
	return have, nil
}

// fill adds n packets to b, or as many as there are slots for.
func (s *TxSlots) fill(b *burst.Burst, n, length int) (have int) {
	var slots, data [64]mem.Handle
	size := uint32(s.pools[0].SlotSize() - s.headroom)
	g := burst.Segment{Off: uint64(s.headroom), Len: uint32(length), Cap: size, Headroom: uint16(s.headroom)}
	for have < n {
		want := min(n-have, len(slots))
		k := s.pools[0].GetBatch(slots[:want])
		if len(s.pools) == 1 {
			b.AddSlots(s.srcs[0], s.pools[0], slots[:k], nil, g)
		} else {
			k = s.split(b, slots[:k], data[:k], length)
		}
		if have += k; k < want {
			break
		}
	}
	return have
}

// split adds packets with headers in slots, and payloads in slots of the second pool, for which data has room.
func (s *TxSlots) split(b *burst.Burst, slots, data []mem.Handle, length int) int {
	n := s.pools[1].GetBatch(data)
	if n < len(slots) {
		s.pools[0].PutBatch(slots[n:])
	}
	size := uint32(s.pools[0].SlotSize() - s.headroom)
	for i, h := range slots[:n] {
		b.Add(s.srcs[0], burst.Segment{Handle: h, Off: s.pools[0].Offset(h) + uint64(s.headroom), Len: size, Cap: size, Headroom: uint16(s.headroom),
			Role: burst.Header})
		b.AddSegment(s.srcs[1], burst.Segment{Handle: data[i], Off: s.pools[1].Offset(data[i]), Len: uint32(length),
			Cap: uint32(s.pools[1].SlotSize()), Role: burst.Payload})
	}
	return n
}

// CountFull counts a Forward that found too few descriptors.
func (s *TxSlots) CountFull() { s.full.Add(1) }

// AddStats adds to t how often there were too few descriptors, or slots.
func (s *TxSlots) AddStats(t *TxStats) {
	t.Full += s.full.Load()
	t.NoBuffers += s.noBuffers.Load()
}
