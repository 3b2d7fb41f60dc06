package engine

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// TxSlots makes packets to send out of the pools of a transmit queue: what TxQueue.Alloc does in
// every engine that sends from pools. With one pool a packet is one segment, behind the headroom;
// with two it is a header, as long as a slot allows, and a payload. Any goroutine may use it.
type TxSlots struct {
	pools    []*mem.Pool
	srcs     []*burst.Source
	headroom int
	most     int // bytes that Alloc gives at most
	chain    int // segments that one packet may have, with one pool; 0: one

	full, noBuffers atomic.Uint64
}

// CheckTx checks what an engine's port is asked for in a transmit queue against what the port can
// do, fills in the Depth where it is 0, and returns a Source for each pool. Options are the
// engine's own to check (pace.Of takes those of package pace): it clears them, or CheckTx refuses
// them. The error is as of CheckRx.
func CheckTx(spec *TxSpec, can *Capabilities) (srcs []*burst.Source, err error) {
	if err := can.checkTx(spec, poolSpecs(spec.Pools)); err != nil {
		return nil, err
	}
	if err := can.reach(spec.Pools); err != nil {
		return nil, err
	}
	for _, pool := range spec.Pools {
		srcs = append(srcs, burst.PoolSource(pool))
	}
	return srcs, nil
}

func (c *Capabilities) checkTx(spec *TxSpec, memory []PoolSpec) *SettingError {
	if spec.Depth == 0 {
		spec.Depth = defaultTxDepth
	}
	switch n := len(memory); {
	case spec.Options != nil:
		return noOptions(spec.Options)
	case spec.Depth < 1 || spec.Depth > maxTxDepth:
		return &SettingError{Path: "depth", Wrong: fmt.Sprintf("depth %d is out of range", spec.Depth),
			Expected: fmt.Sprintf("1 to %d packets", maxTxDepth)}
	case spec.Rate > 0 && !c.Pacing:
		return cannot("rate", fmt.Sprintf("a rate of %d bit/s: the port limits no rates", spec.Rate),
			"without a rate packets leave as they are sent")
	case spec.SendAt && !c.SendAt:
		return cannot("tx.accurate_send", "the port does not send at given times", "")
	case spec.SourceMAC && !c.Frames:
		return cannot("offloads", "SourceMAC (tx_eth_src) is for frames, and the port sends payloads", "")
	case memory == nil:
		return nil
	case n < 1 || n > 2 || slices.Contains(memory, PoolSpec{}):
		return &SettingError{Path: "memory_regions", Wrong: fmt.Sprintf("%d pools, or a nil one", n),
			Expected: "one, or two for a header and a payload"}
	case spec.Headroom < 0 || spec.Headroom >= memory[0].SlotSize || spec.Headroom > 1<<16-1:
		return &SettingError{Path: "headroom", Wrong: fmt.Sprintf("headroom of %d bytes in slots of %d", spec.Headroom,
			memory[0].SlotSize), Expected: "less than a slot",
			Hint: fmt.Sprintf("longer slots of %s (buf_size) have room for it", memory[0].Name)}
	}
	for _, p := range memory {
		if err := c.takes(p); err != nil {
			return err
		}
	}
	return nil
}

// The number of descriptors of a transmit queue: TxSpec.Depth.
const (
	defaultTxDepth = 1024
	maxTxDepth     = 1 << 20
)

// NewTxSlots takes one pool or two, with a Source for each, and the bytes that stay free before
// each packet, less than the slots of the first pool have. most is the length of the longest
// packet, 0 for what the slots hold.
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

// Chain has Alloc make packets that are longer than a slot as chains of up to so many segments,
// each in a slot of the one pool, and up to most bytes long. Call it before the first Alloc. With
// two pools it does nothing.
func (s *TxSlots) Chain(segments, most int) {
	if len(s.pools) > 1 || segments < 2 {
		return
	}
	s.chain = min(segments, burst.MaxSegments)
	s.most = min(most, s.chain*s.pools[0].SlotSize()-s.headroom)
}

// pieces is the number of segments of a packet of that many bytes.
func (s *TxSlots) pieces(length int) int {
	size := s.pools[0].SlotSize()
	if s.chain == 0 || length+s.headroom <= size {
		return len(s.pools)
	}
	return (length + s.headroom + size - 1) / size
}

// Alloc fills b with up to n packets of length bytes, for which it takes descriptors of o, and
// returns how many. It is ErrFull when there were fewer descriptors, ErrNoBuffers when there were
// fewer slots, both counted; ErrInvalid when b is not empty or has not the room, or when the
// packets would be too long; ErrNil.
func (s *TxSlots) Alloc(o *Outbox, b *burst.Burst, n, length int) (int, error) {
	switch {
	case b == nil:
		return 0, ErrNil
	case b.Len() > 0 || n < 0 || n > b.Cap():
		return 0, fmt.Errorf("%w: Alloc of %d packets into a burst that holds %d of %d: expected an empty one with room", ErrInvalid, n, b.Len(), b.Cap())
	case length < 0 || length > s.most:
		return 0, fmt.Errorf("%w: Alloc of packets of %d bytes: expected 0 to %d (pool %q has slots of %d)", ErrInvalid,
			length, s.most,
			s.pools[len(s.pools)-1].Name(), s.pools[len(s.pools)-1].SlotSize())
	case n*s.pieces(length) > b.SegmentRoom():
		return 0, fmt.Errorf("%w: Alloc of %d packets of %d segments each into a burst with room for %d segments: "+
			"make it with burst.NewSegmented",
			ErrInvalid, n, s.pieces(length), b.SegmentRoom())
	}
	got := o.Reserve(n)
	have := s.fill(b, got, length)
	if have > 0 {
		b.Builder().Reserve(o, have)
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
	if k := s.pieces(length); k > len(s.pools) {
		return s.fillChains(b, n, k, length)
	}
	var slots, data [64]mem.Handle
	size := uint32(s.pools[0].SlotSize() - s.headroom)
	g := burst.Segment{Off: uint64(s.headroom), Len: uint32(length), Cap: size, Headroom: uint16(s.headroom)}
	for have < n {
		want := min(n-have, len(slots))
		k := s.pools[0].GetBatch(slots[:want])
		if len(s.pools) == 1 {
			b.Builder().AddSlots(s.srcs[0], s.pools[0], slots[:k], nil, g)
		} else {
			k = s.split(b, slots[:k], data[:k], length)
		}
		if have += k; k < want {
			break
		}
	}
	return have
}

// fillChains adds n packets of k segments each, or as many as there are slots for.
func (s *TxSlots) fillChains(b *burst.Burst, n, k, length int) (have int) {
	var slots [burst.MaxSegments]mem.Handle
	p, size := s.pools[0], s.pools[0].SlotSize()
	for ; have < n; have++ {
		if got := p.GetBatch(slots[:k]); got < k {
			p.PutBatch(slots[:got])
			break
		}
		left, head := length, s.headroom
		for i, h := range slots[:k] {
			room := size - head
			g := burst.Segment{Handle: h, Off: p.Offset(h) + uint64(head), Len: uint32(min(left, room)),
				Cap: uint32(room), Headroom: uint16(head)}
			if i == 0 {
				b.Builder().Add(s.srcs[0], g)
			} else {
				b.Builder().AddSegment(s.srcs[0], g)
			}
			left, head = left-int(g.Len), 0
		}
	}
	return have
}

// split adds packets with headers in slots, and payloads in slots of the second pool, for which
// data has room.
func (s *TxSlots) split(b *burst.Burst, slots, data []mem.Handle, length int) int {
	n := s.pools[1].GetBatch(data)
	if n < len(slots) {
		s.pools[0].PutBatch(slots[n:])
	}
	size := uint32(s.pools[0].SlotSize() - s.headroom)
	for i, h := range slots[:n] {
		b.Builder().Add(s.srcs[0], burst.Segment{Handle: h, Off: s.pools[0].Offset(h) + uint64(s.headroom), Len: size,
			Cap: size, Headroom: uint16(s.headroom),
			Role: burst.Header})
		b.Builder().AddSegment(s.srcs[1], burst.Segment{Handle: data[i], Off: s.pools[1].Offset(data[i]),
			Len: uint32(length),
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
