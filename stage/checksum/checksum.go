// Package checksum is a stage that verifies checksums that neither the card nor the kernel has
// verified.
//
// Frames whose checksums the network card or the kernel has verified (burst.ChecksumGood) pass, and
// so do frames of this machine whose checksum is not computed yet (burst.ChecksumPartial): there is
// nothing to verify. Of the others it computes the sums of the IPv4 header and of UDP, TCP, ICMP
// and ICMPv6, and drops those that are wrong as engine.DropBadChecksum, and those that are cut off
// or malformed as engine.DropBadFrame. It passes what has no checksum: other protocols, UDP over
// IPv4 without one, and the payload of fragments. The rest stays in its order.
//
//	q, err := port.AddRxQueue(spec)
//	s, err := checksum.New(q, engine.StageSpec{Queue: "rx", Port: port.Capabilities()})
//	rx := engine.NewRx(s, engine.Batching{Packets: 64, Timeout: time.Millisecond})
//
// In a configuration file it is `stages: [{type: checksum}]` of a receive queue; `checksum?all`
// verifies all frames.
package checksum

import (
	"fmt"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// Kind is the stage for files.
var Kind = engine.StageKind{Name: "checksum",
	Doc: "verifies checksums that neither the network card nor the kernel has verified", Check: check, Open: New,
	New: func() any { return new(Options) },
	Options: []engine.Option{{Key: "all", Type: engine.Bool, Default: "false", Field: "All",
		Doc: "Verifies also what the network card or the kernel says that it has verified."}},
}

// Options are the options of a stage, given as engine.StageSpec.Options.
type Options struct {
	All bool // also frames with burst.ChecksumGood
}

func check(spec engine.StageSpec) error {
	if !spec.Port.Frames {
		return fmt.Errorf("checksum: queue %q has no frames: the kernel or the adapter has verified what comes: %w",
			spec.Queue, engine.ErrUnsupported)
	}
	return nil
}

type stage struct {
	from  engine.Receiver
	queue string
	o     Options

	// packets behind the first bad one that are right, and those that are not; empty between calls
	rest, bad *burst.Burst
	whole     []byte // a packet of several segments
	layers    packet.Layers
	failed    error // from then on

	packets, bytes, copied metrics.Counter
	drops                  engine.DropCounters
}

// New makes the stage. The error is that of a queue without frames, or of Options.
func New(from engine.Receiver, spec engine.StageSpec) (engine.Stage, error) {
	if err := check(spec); err != nil {
		return nil, err
	}
	o, err := engine.Given[Options](spec.Options)
	if err != nil {
		return nil, fmt.Errorf("checksum: queue %q: %w", spec.Queue, err)
	}
	return &stage{from: from, queue: spec.Queue, o: o}, nil
}

// TryRecv implements engine.Receiver.
func (s *stage) TryRecv(b *burst.Burst) (int, error) {
	switch {
	case b == nil:
		return 0, engine.ErrNil
	case s.failed != nil:
		return 0, s.failed
	}
	had := b.Len()
	_, err := s.from.TryRecv(b)
	s.sift(b, had)
	n := b.Len() - had
	for i := had; i < b.Len(); i++ {
		s.bytes.Add(uint64(b.PacketLen(i)))
	}
	s.packets.Add(uint64(n))
	if n == 0 && s.failed != nil {
		return 0, s.failed
	}
	return n, err
}

// sift drops the packets of b from at on that are wrong.
func (s *stage) sift(b *burst.Burst, at int) {
	first := -1 // of those
	for i := at; i < b.Len(); i++ {
		why := engine.NumDrops
		if s.o.All || b.Flags(i)&(burst.ChecksumGood|burst.ChecksumPartial) == 0 {
			why = s.verify(b, i)
		}
		if first < 0 && why != engine.NumDrops {
			first = i
			if n := b.Cap(); s.rest == nil || s.rest.Cap() < n {
				segments := b.SegmentCount() + b.SegmentRoom()
				s.rest, s.bad = burst.NewSegmented(n, segments), burst.NewSegmented(n, segments)
			}
		}
		switch {
		case why != engine.NumDrops:
			s.drops.Inc(why)
			b.Take(s.bad, i)
		case first >= 0:
			b.Take(s.rest, i)
		}
	}
	if first >= 0 {
		b.Truncate(first)
		s.rest.MoveTo(b)
		s.bad.Release()
	}
}

// verify says why packet i is to be dropped; engine.NumDrops: it is right.
func (s *stage) verify(b *burst.Burst, i int) engine.Drop {
	if s.failed != nil {
		return engine.DropRefused
	}
	f := b.Bytes(i, 0)
	if b.Segments(i) > 1 {
		s.whole = s.whole[:0]
		for k := range b.Segments(i) {
			part := b.Bytes(i, k)
			if part == nil && b.Segment(i, k).Len > 0 {
				s.whole = nil
				break
			}
			s.whole = append(s.whole, part...)
		}
		f = s.whole
		s.copied.Add(uint64(len(f)))
	}
	if f == nil {
		s.failed = fmt.Errorf("checksum: queue %q: a packet is in memory of an accelerator, and the processor "+
			"verifies it: receive into host_pinned memory: %w", s.queue, engine.ErrUnsupported)
		return engine.DropRefused
	}
	if packet.Parse(f, &s.layers) != packet.OK {
		return engine.DropBadFrame
	}
	if b.Flags(i)&burst.ChecksumPartial != 0 { // there is one to be computed
		if _, ok := packet.FindPartial(f, &s.layers); ok {
			return engine.NumDrops
		}
	}
	if !right(f, &s.layers) {
		return engine.DropBadChecksum
	}
	return engine.NumDrops
}

// right reports whether all checksums of a frame are right.
func right(f []byte, l *packet.Layers) bool {
	if l.IPVersion == 0 {
		return true
	}
	if l.IPVersion == 4 && !packet.IPv4(f[l.L3:]).ChecksumOK() {
		return false
	}
	if l.IsFragment() {
		return true
	}
	p := f[l.L4:l.End]
	switch l.Proto {
	case packet.ProtoUDP:
		return packet.UDP(p).ChecksumOK(l.Src(f), l.Dst(f))
	case packet.ProtoTCP:
		return packet.TCP(p).ChecksumOK(l.Src(f), l.Dst(f))
	case packet.ProtoICMP:
		return packet.ICMP(p).ChecksumOK()
	case packet.ProtoICMPv6:
		return packet.ICMPv6(p).ChecksumOK(l.Src(f), l.Dst(f))
	}
	return true
}

// Arm implements engine.Receiver.
func (s *stage) Arm(w *engine.Waker) (ready bool) {
	if s.failed != nil {
		return true
	}
	if s.from.Arm(w) {
		w.Wake() // all that is there may be wrong
	}
	return false
}

// Stats implements engine.Stage.
func (s *stage) Stats(out *engine.RxStats) {
	*out = engine.RxStats{Packets: s.packets.Load(), Bytes: s.bytes.Load(), Copied: s.copied.Load()}
	s.drops.AddTo(&out.Drops)
}

// Close implements engine.Stage. It keeps nothing.
func (s *stage) Close() error { return nil }
