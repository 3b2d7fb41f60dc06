package flow

import (
	"encoding/binary"
	"net/netip"

	"github.com/penstock-io/penstock/packet"
)

// A space is a set of packets as rules see them: the product of one span per field and a condition
// on bits of the payload. It answers the questions of validation: is a match empty, do two matches
// meet and in which packet, does one cover another.

// span is the values of one field from lo to hi; if absent is set, also the packets that do not
// have the field.
type span struct {
	lo, hi u128
	absent bool
}

// numSpans leaves flex out: it is not an interval.
const numSpans = int(FieldFlex)

// bounds of the fields; addresses are IPv6, with IPv4 at the end of ::ffff:0:0/96, which the
// EtherType keeps apart from IPv6.
func limit(f Field) u128 {
	switch f {
	case FieldEthSrc, FieldEthDst:
		return u128{0, 1<<48 - 1}
	case FieldVLAN, FieldInnerVLAN:
		return u128{0, untagged}
	case FieldProto, FieldECPRIType:
		return u128{0, 255}
	case FieldSrc, FieldDst:
		return u128{^uint64(0), ^uint64(0)}
	}
	return u128{0, 0xffff}
}

func (s span) empty() bool { return s.hi.less(s.lo) && !s.absent }

// none reports that no value is left, though packets without the field may be.
func (s span) none() bool { return s.hi.less(s.lo) }

func (s span) covers(o span) bool {
	if o.absent && !s.absent {
		return false
	}
	return o.none() || !o.lo.less(s.lo) && !s.hi.less(o.hi)
}

func (s span) and(o span) span {
	if s.lo.less(o.lo) {
		s.lo = o.lo
	}
	if o.hi.less(s.hi) {
		s.hi = o.hi
	}
	s.absent = s.absent && o.absent
	return s
}

// known is what a match asks of one byte of the payload: under mask it is value.
type known struct {
	at          uint16
	value, mask byte
}

type space struct {
	spans [numSpans]span
	known []known // masks not 0, each byte once
	need  int     // bytes of payload that flex words need to be there; 0: no flex
}

func everything() (s space) {
	for f := range s.spans {
		s.spans[f] = span{hi: limit(Field(f)), absent: true}
	}
	for _, f := range []Field{FieldEtherType, FieldVLAN, FieldInnerVLAN} {
		// every packet has these, be it that it is untagged
		s.exists(f)
	}
	return s
}

// require restricts a field to values from lo to hi.
func (s *space) require(f Field, lo, hi uint64) {
	s.spans[f] = s.spans[f].and(span{lo: u128{0, lo}, hi: u128{0, hi}})
}

func (s *space) exists(f Field) { s.spans[f].absent = false }

// explicit returns the space of what m says in so many words. ok is false when its flex words
// contradict each other.
func explicit(m *Match) (s space, ok bool) {
	s = everything()
	one := func(f Field, v uint64) { s.require(f, v, v) }
	if m.EthSrc.Set {
		one(FieldEthSrc, macValue(m.EthSrc.Value))
	}
	if m.EthDst.Set {
		one(FieldEthDst, macValue(m.EthDst.Value))
	}
	if m.EtherType.Set {
		one(FieldEtherType, uint64(m.EtherType.Value))
	}
	vlan := func(f Field, v Opt[VLAN]) {
		if v.Set {
			one(f, min(uint64(v.Value), untagged))
		}
	}
	vlan(FieldVLAN, m.VLAN)
	vlan(FieldInnerVLAN, m.InnerVLAN)
	if m.Proto.Set {
		one(FieldProto, uint64(m.Proto.Value))
	}
	for _, p := range []struct {
		f Field
		p netip.Prefix
	}{{FieldSrc, m.Src}, {FieldDst, m.Dst}} {
		if !p.p.IsValid() {
			continue
		}
		s.spans[p.f] = s.spans[p.f].and(prefixSpan(p.p))
		t := packet.EtherTypeIPv6
		if p.p.Addr().Is4() {
			t = packet.EtherTypeIPv4
		}
		one(FieldEtherType, uint64(t))
	}
	for _, r := range []struct {
		f Field
		r Opt[Range]
	}{{FieldLength, m.Length}, {FieldSrcPort, m.SrcPort}, {FieldDstPort, m.DstPort}} {
		if r.r.Set {
			s.require(r.f, uint64(r.r.Value.Lo), uint64(r.r.Value.Hi))
		}
	}
	if m.ECPRI.Type.Set {
		one(FieldECPRIType, uint64(m.ECPRI.Type.Value))
	}
	for _, id := range []Opt[uint16]{m.ECPRI.PCID, m.ECPRI.RTCID} {
		if id.Set {
			one(FieldECPRIID, uint64(id.Value))
		}
	}
	if m.ECPRI.Set() && !(m.Proto.Set && m.Proto.Value == packet.ProtoUDP) {
		one(FieldEtherType, uint64(packet.EtherTypeECPRI))
	}
	for _, f := range m.Flex {
		if !s.flex(f) {
			return s, false
		}
	}
	return s, true
}

func prefixSpan(p netip.Prefix) span {
	a := p.Masked().Addr().As16()
	lo := u128{binary.BigEndian.Uint64(a[:]), binary.BigEndian.Uint64(a[8:])}
	n := p.Bits()
	if p.Addr().Is4() {
		n += 96
	}
	hi := lo
	if n <= 64 {
		hi.lo = ^uint64(0)
		hi.hi |= ^uint64(0) >> n // a shift by 64 gives 0
	} else {
		hi.lo |= ^uint64(0) >> (n - 64)
	}
	return span{lo: lo, hi: hi}
}

// flex adds the condition of one word, and reports whether it agrees with those before.
func (s *space) flex(f Flex) bool {
	s.need = max(s.need, int(f.Offset)+4)
	for i := range 4 {
		shift := 24 - 8*i
		if !s.know(known{f.Offset + uint16(i), byte(f.Value >> shift), byte(f.Mask >> shift)}) {
			return false
		}
	}
	return true
}

func (s *space) know(k known) bool {
	k.value &= k.mask
	if k.mask == 0 {
		return true
	}
	for i := range s.known {
		o := &s.known[i]
		if o.at != k.at {
			continue
		}
		if (o.value^k.value)&o.mask&k.mask != 0 {
			return false
		}
		o.value |= k.value
		o.mask |= k.mask
		return true
	}
	s.known = append(s.known, k)
	return true
}

// tighten adds what the fields imply of each other in every packet that Parse accepts, so that each
// span is as small as an interval can be. It reports whether a packet is left.
func (s *space) tighten() bool {
	t := &s.spans[FieldEtherType]
	proto := &s.spans[FieldProto]
	ports := s.need > 0 || !s.spans[FieldSrcPort].absent || !s.spans[FieldDstPort].absent
	for _, f := range []Field{FieldSrcPort, FieldDstPort} {
		if ports {
			s.exists(f)
		}
	}
	for _, f := range []Field{FieldEthSrc, FieldEthDst} { // one has both
		if !s.spans[f].absent {
			s.exists(FieldEthSrc)
			s.exists(FieldEthDst)
		}
	}
	// A second tag implies a first; no tag, no second.
	inner, outer := &s.spans[FieldInnerVLAN], &s.spans[FieldVLAN]
	if inner.hi.lo < untagged {
		outer.hi.lo = min(outer.hi.lo, untagged-1)
	}
	if outer.lo.lo == untagged {
		inner.lo.lo = untagged
	}
	ecpri := !s.spans[FieldECPRIType].absent || !s.spans[FieldECPRIID].absent
	if !s.spans[FieldECPRIID].absent {
		s.exists(FieldECPRIType)
		ty := &s.spans[FieldECPRIType]
		ty.hi.lo = min(ty.hi.lo, ecpriControl)
	}
	if ecpri && !within(*t, uint64(packet.EtherTypeECPRI)) { // over UDP then
		*proto = proto.and(span{lo: u128{0, uint64(packet.ProtoUDP)}, hi: u128{0, uint64(packet.ProtoUDP)}})
		s.exists(FieldSrcPort)
		s.exists(FieldDstPort)
		ports = true
	}
	if ports {
		if within(*proto, uint64(packet.ProtoTCP)) || within(*proto, uint64(packet.ProtoUDP)) {
			lo, hi := uint64(packet.ProtoTCP), uint64(packet.ProtoUDP)
			if !within(*proto, lo) {
				lo = hi
			}
			if !within(*proto, hi) {
				hi = lo
			}
			*proto = proto.and(span{lo: u128{0, lo}, hi: u128{0, hi}})
		} else {
			return false
		}
	}
	ip := ports || !proto.absent || !s.spans[FieldSrc].absent || !s.spans[FieldDst].absent ||
		!s.spans[FieldLength].absent
	if ip {
		for _, f := range []Field{FieldProto, FieldSrc, FieldDst, FieldLength} {
			s.exists(f)
		}
		// IP means one of two EtherTypes, and IPv4 has addresses of its own.
		addrs := [2]*span{&s.spans[FieldSrc], &s.spans[FieldDst]}
		four := within(*t, uint64(packet.EtherTypeIPv4)) && !addrs[0].and(mapped).none() && !addrs[1].and(mapped).none()
		six := within(*t, uint64(packet.EtherTypeIPv6))
		lo, hi := uint64(packet.EtherTypeIPv4), uint64(packet.EtherTypeIPv6)
		switch {
		case !four && !six:
			return false
		case !six:
			hi = lo
			*addrs[0], *addrs[1] = addrs[0].and(mapped), addrs[1].and(mapped)
		case !four:
			lo = hi
		}
		*t = span{lo: u128{0, lo}, hi: u128{0, hi}}
		shortest := uint64(packet.IPv4Len)
		if !four {
			shortest = packet.IPv6Len
		}
		if ports {
			add := uint64(packet.UDPLen)
			if !within(*proto, uint64(packet.ProtoUDP)) {
				add = packet.TCPLen
			}
			payload := s.need
			if ecpri {
				payload = max(payload, ecpriHeader)
				if !s.spans[FieldECPRIID].absent {
					payload = max(payload, ecpriID)
				}
				if !s.ecpriBytes() {
					return false
				}
			}
			shortest += add + uint64(payload)
		}
		n := &s.spans[FieldLength]
		n.lo.lo = max(n.lo.lo, shortest)
	}
	for f := range s.spans {
		if s.spans[f].empty() {
			return false
		}
	}
	return true
}

// ecpriBytes tells what the fields of eCPRI say about the bytes of a UDP payload, and reports
// whether flex words agree.
func (s *space) ecpriBytes() bool {
	ty, id := s.spans[FieldECPRIType], s.spans[FieldECPRIID]
	if ty.lo == ty.hi && !s.know(known{ecpriTypeAt, byte(ty.lo.lo), 0xff}) {
		return false
	}
	return id.absent || id.lo != id.hi ||
		s.know(known{ecpriHeader, byte(id.lo.lo >> 8), 0xff}) && s.know(known{ecpriHeader + 1, byte(id.lo.lo), 0xff})
}

// mapped holds the IPv4 addresses.
var mapped = prefixSpan(netip.PrefixFrom(netip.AddrFrom16([16]byte{10: 0xff, 11: 0xff}), 96))

func within(s span, v uint64) bool { return !(u128{0, v}).less(s.lo) && !s.hi.less(u128{0, v}) }
