package packet

import "encoding/binary"

// Partial is where a checksum lies that the sender of a frame has left to a network card, and that
// no card has computed. Linux calls it CHECKSUM_PARTIAL: the field of TCP or UDP holds the folded
// sum of the pseudo header (ChecksumOffload).
type Partial struct {
	start, field, end int // what the checksum covers, and its field, as offsets in the frame
	proto             Proto
}

// FindPartial looks for such a checksum in a whole frame: in its outer headers, which l receives,
// then in those inside a VXLAN or GRE tunnel. A computed checksum looks the same by chance in one
// of 65,536 frames; to compute it again does not change it.
func FindPartial(frame []byte, l *Layers) (p Partial, ok bool) {
	if Parse(frame, l) != OK {
		return p, false
	}
	if p, ok = l.partial(frame); ok {
		return p, true
	}
	var inner Layers
	if ParseTunnel(frame, l, &inner) != OK {
		return p, false
	}
	return inner.partial(frame)
}

// partial is FindPartial for one parsed packet.
func (l *Layers) partial(frame []byte) (p Partial, ok bool) {
	if !l.HasPorts || l.IsFragment() {
		return p, false
	}
	p = Partial{int(l.L4), int(l.L4) + 6, int(l.End), l.Proto}
	if l.Proto == ProtoTCP {
		p.field = p.start + 16
	}
	sum := PseudoSum(l.Src(frame), l.Dst(frame), l.Proto, uint32(p.end-p.start)).Fold()
	return p, binary.BigEndian.Uint16(frame[p.field:]) == sum
}

// Complete computes the checksum in the frame in which FindPartial found it.
func (p Partial) Complete(frame []byte) {
	sum := Checksum(frame[p.start:p.end])
	if p.proto == ProtoUDP {
		sum = notZero(sum)
	}
	binary.BigEndian.PutUint16(frame[p.field:], sum)
}
