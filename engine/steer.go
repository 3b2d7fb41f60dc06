package engine

import (
	"encoding/binary"
	"slices"
	"sync/atomic"

	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
)

// Steerer steers frames to the receive queues of a port in software, by the port's table:
// classification, counts of rules, what becomes of frames that no rule accepts. One goroutine at a
// time uses it, as a rule under the lock of the device's ring; the counts may be read by any.
type Steerer struct {
	table    *flow.Table
	isolated bool
	cache    *flow.Cache
	counters *flow.Counters
	snap     *flow.Snapshot

	// Layers are those of the frame that was steered last.
	Layers packet.Layers

	fates *SteerCounts

	// Of a version, the actions of its rules, and its rules by ID; and where frames are changed.
	version uint64
	actions [][]flow.Action
	ids     map[uint32]int
	scratch []byte
}

// SteerCounts are the packets of a port that reached no queue. The Steerers of a port share them.
type SteerCounts struct {
	Kernel atomic.Uint64 // left to the kernel, by rule or by isolation
	drops  [NumDrops]atomic.Uint64
}

// Drop counts n packets. Any goroutine may call it.
func (c *SteerCounts) Drop(why Drop, n int) {
	if n > 0 {
		c.drops[why].Add(uint64(n))
	}
}

// AddTo adds the counts to those of the port.
func (c *SteerCounts) AddTo(s *PortStats) {
	s.Kernel += c.Kernel.Load()
	for i := range c.drops {
		s.Drops[i] += c.drops[i].Load()
	}
}

// NewSteerer makes a Steerer. isolated is PortSpec.Isolated: a frame that no rule accepts is the
// kernel's then, and otherwise for the port's first queue.
func NewSteerer(table *flow.Table, isolated bool, counts *SteerCounts) *Steerer {
	return &Steerer{table: table, isolated: isolated, counters: table.NewCounters(), fates: counts}
}

// Close ends its part in the counts of rules.
func (s *Steerer) Close() { s.counters.Close() }

// Begin takes the version of the table for the frames that come next, and reports whether frames
// have to be classified at all: without rules and isolation all are for the first queue.
func (s *Steerer) Begin() (classify bool) {
	s.snap = s.table.Snapshot()
	rules := s.snap.Classifier().Len() > 0
	if rules && s.cache == nil {
		s.cache, _ = flow.NewCache(flow.MinCacheSize << 4)
	}
	return rules || s.isolated
}

// Snapshot is the version of the table that Begin took.
func (s *Steerer) Snapshot() *flow.Snapshot { return s.snap }

// Classify decides on a frame by the version of Begin. It counts nothing, and leaves the frame's
// Layers.
func (s *Steerer) Classify(frame []byte) flow.Decision { return s.ClassifyCut(frame, len(frame)) }

// ClassifyCut is Classify of a frame that had wire bytes, and of which the device may have cut off
// the end.
func (s *Steerer) ClassifyCut(frame []byte, wire int) flow.Decision {
	s.parse(frame, len(frame) < wire)
	if s.cache != nil {
		return s.cache.Classify(s.snap.Classifier(), frame, &s.Layers)
	}
	return s.snap.Classifier().Classify(frame, &s.Layers)
}

// parse reads the headers of a frame; what is malformed has fewer layers. The lengths in one that
// was cut off are those of the whole frame, so for the time of reading they say how much is here.
func (s *Steerer) parse(frame []byte, cut bool) {
	l := &s.Layers
	why := packet.Parse(frame, l)
	if !cut {
		return
	}
	ipAt, ip := 0, uint16(0)
	switch l3 := int(l.L3); why {
	case packet.TruncatedIPv4:
		ipAt, ip = l3+2, uint16(len(frame)-l3)
	case packet.TruncatedIPv6:
		ipAt, ip = l3+4, uint16(len(frame)-l3-packet.IPv6Len)
	default:
		return
	}
	was := binary.BigEndian.Uint16(frame[ipAt:])
	binary.BigEndian.PutUint16(frame[ipAt:], ip)
	if why = packet.Parse(frame, l); why == packet.TruncatedUDP {
		at := int(l.L4) + 4
		udp := binary.BigEndian.Uint16(frame[at:])
		binary.BigEndian.PutUint16(frame[at:], uint16(len(frame)-int(l.L4)))
		packet.Parse(frame, l)
		binary.BigEndian.PutUint16(frame[at:], udp)
	}
	binary.BigEndian.PutUint16(frame[ipAt:], was)
	l.IPLen += uint32(was - ip)
}

// ByID is the decision of the rule with an ID in the version of Begin, for a frame that a device
// has classified. It is false where that version has no such rule: rules have changed since.
func (s *Steerer) ByID(id uint32) (flow.Decision, bool) {
	s.look()
	i, ok := s.ids[id]
	if !ok {
		return flow.Decision{}, false
	}
	return s.snap.Classifier().Decision(i), true
}

// look keeps what is asked for often of the rules of the version of Begin.
func (s *Steerer) look() {
	if s.actions != nil && s.snap.Version() == s.version {
		return
	}
	s.version = s.snap.Version()
	s.actions, s.ids = make([][]flow.Action, s.snap.Classifier().Len()), map[uint32]int{}
	for i := range s.actions {
		r := s.snap.Classifier().Rule(i)
		s.actions[i], s.ids[r.ID] = r.Actions, i
	}
}

// Count counts a frame of that many bytes for the rule that decided.
func (s *Steerer) Count(d flow.Decision, bytes int) { s.counters.Count(s.snap, d, bytes) }

// First is the place of the queue that gets what no rule decides, see Queue.
const First = -1

// Queue says where a decision sends a frame: to the queue with the id, to the port's first one
// (First), or to none, when ok is false and the fate of the frame is counted.
func (s *Steerer) Queue(d flow.Decision) (id int, ok bool) {
	switch d.Verdict {
	case flow.Deliver:
		return int(d.Queue), true
	case flow.Discard:
		s.fates.Drop(DropRule, 1)
	case flow.Kernel:
		s.fates.Kernel.Add(1)
	default:
		if !s.isolated {
			return First, true
		}
		s.fates.Kernel.Add(1)
	}
	return 0, false
}

// scratchRoom is the headroom of the frame that is changed: more than flow.Headroom is for any
// rule.
const scratchRoom = 1024

// Transform does what rule i of the version of Begin says to a whole frame that was classified
// last, in memory of the Steerer, where the result holds until the next call. It is nil where that
// cannot be done.
func (s *Steerer) Transform(i int32, frame []byte) []byte {
	s.look()
	s.scratch = append(slices.Grow(s.scratch[:0], scratchRoom+len(frame))[:scratchRoom], frame...)
	out, why := flow.Transform(s.actions[i], s.scratch, scratchRoom, &s.Layers)
	if why != flow.Applied {
		return nil
	}
	return out
}
