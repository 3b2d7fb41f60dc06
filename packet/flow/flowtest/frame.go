package flowtest

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"

	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
)

// Packet is the fields of a frame that rules can see. Frame writes it.
type Packet struct {
	EthSrc, EthDst packet.MAC
	Tags           []uint16 // VLAN identifiers, outer first; at most two
	EtherType      packet.EtherType
	Src, Dst       netip.Addr // set when EtherType is that of IPv4 or IPv6
	Proto          packet.Proto
	Later          bool // a later fragment: no ports
	SrcPort        uint16
	DstPort        uint16
	Payload        []byte // behind UDP or TCP, else behind IP, else behind Ethernet
}

// Frame writes p as an Ethernet frame of at least 60 bytes. Checksums are 0: no rule sees them.
func (p *Packet) Frame() []byte {
	b := make([]byte, 0, 128+len(p.Payload))
	b = append(append(b, p.EthDst[:]...), p.EthSrc[:]...)
	for i, id := range p.Tags {
		tpid := packet.EtherTypeVLAN
		if i == 0 && len(p.Tags) == 2 {
			tpid = packet.EtherTypeQinQ
		}
		b = binary.BigEndian.AppendUint16(b, uint16(tpid))
		b = binary.BigEndian.AppendUint16(b, id|0x6000)
	}
	b = binary.BigEndian.AppendUint16(b, uint16(p.EtherType))
	switch p.EtherType {
	case packet.EtherTypeIPv4, packet.EtherTypeIPv6:
		b = p.ip(b)
	default:
		b = append(b, p.Payload...)
	}
	for len(b) < 60 {
		b = append(b, 0xee) // padding, which nothing may read
	}
	return b
}

func (p *Packet) ip(b []byte) []byte {
	var l4 []byte
	switch {
	case p.Later:
	case p.Proto == packet.ProtoUDP:
		l4 = binary.BigEndian.AppendUint16(l4, p.SrcPort)
		l4 = binary.BigEndian.AppendUint16(l4, p.DstPort)
		l4 = binary.BigEndian.AppendUint16(l4, uint16(packet.UDPLen+len(p.Payload)))
		l4 = append(l4, 0, 0)
	case p.Proto == packet.ProtoTCP:
		l4 = binary.BigEndian.AppendUint16(l4, p.SrcPort)
		l4 = binary.BigEndian.AppendUint16(l4, p.DstPort)
		l4 = append(l4, 0, 0, 0, 1, 0, 0, 0, 2, 5<<4, 0x10, 0xff, 0xff, 0, 0, 0, 0)
	}
	l4 = append(l4, p.Payload...)
	if p.EtherType == packet.EtherTypeIPv4 {
		src, dst := p.Src.As4(), p.Dst.As4()
		b = append(b, 0x45, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(packet.IPv4Len+len(l4)))
		fragment := uint16(0x4000)
		if p.Later {
			fragment = 185
		}
		b = binary.BigEndian.AppendUint16(b, 7)
		b = binary.BigEndian.AppendUint16(b, fragment)
		b = append(b, 64, byte(p.Proto), 0, 0)
		b = append(append(b, src[:]...), dst[:]...)
		return append(b, l4...)
	}
	src, dst := p.Src.As16(), p.Dst.As16()
	next := p.Proto
	if p.Later {
		l4 = append([]byte{byte(p.Proto), 0, 5, 0xc8, 0, 0, 0, 9}, l4...)
		next = packet.ProtoFragment
	}
	b = append(b, 0x60, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(len(l4)))
	b = append(b, byte(next), 64)
	b = append(append(b, src[:]...), dst[:]...)
	return append(b, l4...)
}

// Meeting returns a packet that m accepts, other fields by chance; often its values lie at the edge
// of what m accepts. ok is false when it found none, as with a match that Validate would refuse.
func Meeting(r *rand.Rand, m *flow.Match) (p Packet, ok bool) {
	p = Random(r)
	four := r.IntN(4) > 0
	for _, x := range []netip.Prefix{m.Src, m.Dst} {
		if x.IsValid() {
			four = x.Addr().Is4()
		}
	}
	ip := m.Src.IsValid() || m.Dst.IsValid() || m.Proto.Set || m.Length.Set || len(m.Flex) > 0
	switch {
	case m.EtherType.Set:
		p.EtherType = m.EtherType.Value
	case m.ECPRI.Set() && !m.Proto.Set:
		p.EtherType = packet.EtherTypeECPRI
	case ip && four:
		p.EtherType = packet.EtherTypeIPv4
	case ip:
		p.EtherType = packet.EtherTypeIPv6
	}
	for _, x := range []netip.Prefix{m.Src, m.Dst} {
		if x.IsValid() && x.Addr().Is4() != (p.EtherType == packet.EtherTypeIPv4) {
			return p, false
		}
	}
	four = p.EtherType != packet.EtherTypeIPv6
	p.Src, p.Dst = inside(r, m.Src, four), inside(r, m.Dst, four)
	if m.EthSrc.Set {
		p.EthSrc = m.EthSrc.Value
	}
	if m.EthDst.Set {
		p.EthDst = m.EthDst.Value
	}
	p.Tags = tags(r, m)
	p.Proto = packet.ProtoUDP
	if m.Proto.Set {
		p.Proto = m.Proto.Value
	} else if r.IntN(3) == 0 {
		p.Proto = packet.ProtoTCP
	}
	p.Later = false
	p.SrcPort, p.DstPort = pick(r, m.SrcPort), pick(r, m.DstPort)
	p.payload(r, m)
	frame := p.Frame()
	var l packet.Layers
	return p, packet.Parse(frame, &l) == packet.OK && Matches(m, frame, &l)
}

// payload gives p the bytes and the length that m asks for.
func (p *Packet) payload(r *rand.Rand, m *flow.Match) {
	headers := packet.IPv4Len
	if p.EtherType == packet.EtherTypeIPv6 {
		headers = packet.IPv6Len
	}
	switch p.Proto {
	case packet.ProtoUDP:
		headers += packet.UDPLen
	case packet.ProtoTCP:
		headers += packet.TCPLen
	}
	n := 8 + r.IntN(64)
	for _, f := range m.Flex {
		n = max(n, int(f.Offset)+4)
	}
	if m.Length.Set {
		n = max(int(pick(r, m.Length))-headers, 0)
	}
	p.Payload = make([]byte, n)
	for i := range p.Payload {
		p.Payload[i] = byte(r.Uint32())
	}
	if e := m.ECPRI; e.Set() && n >= 6 {
		p.Payload[0] = 0x10
		p.Payload[1] = e.Type.Value
		for _, id := range []flow.Opt[uint16]{e.PCID, e.RTCID} {
			if id.Set {
				binary.BigEndian.PutUint16(p.Payload[4:], id.Value)
			}
		}
	}
	for _, f := range m.Flex {
		if int(f.Offset)+4 <= n {
			w := p.Payload[f.Offset:]
			binary.BigEndian.PutUint32(w, binary.BigEndian.Uint32(w)&^f.Mask|f.Value)
		}
	}
}

func tags(r *rand.Rand, m *flow.Match) []uint16 {
	outer, inner := m.VLAN, m.InnerVLAN
	if outer.Set && outer.Value == flow.Untagged {
		return nil
	}
	id := func(v flow.Opt[flow.VLAN]) uint16 {
		if v.Set {
			return uint16(v.Value)
		}
		return uint16(r.IntN(flow.MaxVLAN + 1))
	}
	switch {
	case inner.Set && inner.Value != flow.Untagged:
		return []uint16{id(outer), uint16(inner.Value)}
	case outer.Set && !inner.Set && r.IntN(2) == 0:
		return []uint16{id(outer), id(inner)}
	case outer.Set:
		return []uint16{id(outer)}
	}
	return nil
}

// pick chooses a number of the range, often one of its ends.
func pick(r *rand.Rand, of flow.Opt[flow.Range]) uint16 {
	x := of.Value
	if !of.Set {
		x = flow.Range{Hi: 0xffff}
	}
	switch r.IntN(4) {
	case 0:
		return x.Lo
	case 1:
		return x.Hi
	}
	return uint16(int(x.Lo) + r.IntN(int(x.Hi)-int(x.Lo)+1))
}

// inside chooses an address of the prefix, often one of its ends; any of the family when there is
// no prefix.
func inside(r *rand.Rand, p netip.Prefix, four bool) netip.Addr {
	if !p.IsValid() {
		p = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		if four {
			p = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		}
	}
	b := p.Masked().Addr().AsSlice()
	fill := func() byte { return byte(r.Uint32()) }
	switch r.IntN(4) {
	case 0:
		fill = func() byte { return 0 }
	case 1:
		fill = func() byte { return 0xff }
	}
	for i := range b {
		free := min(max(8*(i+1)-p.Bits(), 0), 8)
		b[i] |= fill() & byte(1<<free-1)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// Missing changes one field of p to a value next to what m accepts, or takes away what m needs; the
// result may still meet m.
func Missing(r *rand.Rand, p Packet, m *flow.Match) Packet {
	step := func(v uint16) uint16 { return v + uint16(1-2*r.IntN(2)) }
	beside := func(o flow.Opt[flow.Range], v *uint16) {
		if o.Set {
			*v = o.Value.Lo - 1
			if r.IntN(2) == 0 {
				*v = o.Value.Hi + 1
			}
		} else {
			*v = step(*v)
		}
	}
	outside := func(x netip.Prefix, a *netip.Addr) {
		if !x.IsValid() || x.Bits() == 0 {
			return
		}
		b := a.AsSlice()
		bit := x.Bits() - 1 // the last bit that counts
		b[bit/8] ^= 0x80 >> (bit % 8)
		*a, _ = netip.AddrFromSlice(b)
	}
	switch r.IntN(12) {
	case 0:
		beside(m.SrcPort, &p.SrcPort)
	case 1:
		beside(m.DstPort, &p.DstPort)
	case 2:
		outside(m.Src, &p.Src)
	case 3:
		outside(m.Dst, &p.Dst)
	case 4:
		p.Later = true
	case 5:
		p.Payload = append(append([]byte{}, p.Payload...), 1)
	case 6:
		if len(p.Payload) > 0 {
			p.Payload = p.Payload[:len(p.Payload)-1]
		}
	case 7:
		p.Payload = append([]byte{}, p.Payload...)
		at, bit := r.IntN(len(p.Payload)+1), r.IntN(8)
		if len(m.Flex) > 0 { // a bit of a word that counts
			f := m.Flex[r.IntN(len(m.Flex))]
			for n := r.IntN(32); ; n++ {
				if f.Mask<<(n%32)>>31 != 0 || f.Mask == 0 {
					at, bit = int(f.Offset)+n%32/8, 7-n%8
					break
				}
			}
		}
		if at < len(p.Payload) {
			p.Payload[at] ^= 1 << bit
		}
	case 8:
		p.EthSrc[5] ^= 1
	case 9:
		p.EthDst[0] ^= 2
	case 10:
		p.Tags = nil
	case 11:
		p.Tags = []uint16{uint16(r.IntN(4)), uint16(r.IntN(4))}
	}
	return p
}

// Random returns a packet that has nothing to do with any rule.
func Random(r *rand.Rand) Packet {
	p := Packet{EtherType: packet.EtherTypeIPv4, Proto: packet.ProtoUDP}
	for i := range p.EthSrc {
		p.EthSrc[i], p.EthDst[i] = byte(r.Uint32()), byte(r.Uint32())
	}
	p.EthSrc[0] &= 0xfe
	four := true
	switch r.IntN(8) {
	case 0, 1:
		p.EtherType, four = packet.EtherTypeIPv6, false
	case 2:
		p.EtherType = packet.EtherTypeARP
	case 3:
		p.EtherType = packet.EtherTypeECPRI
	}
	p.Src, p.Dst = inside(r, netip.Prefix{}, four), inside(r, netip.Prefix{}, four)
	switch r.IntN(4) {
	case 0:
		p.Proto = packet.ProtoTCP
	case 1:
		p.Proto = packet.Proto(r.IntN(256))
		if p.Proto != packet.ProtoUDP && p.Proto != packet.ProtoTCP {
			p.Proto = packet.Proto(100 + r.IntN(32)) // none that has a header to be read
		}
	}
	p.SrcPort, p.DstPort = uint16(r.Uint32()), uint16(r.Uint32())
	if r.IntN(4) == 0 {
		p.Tags = append(p.Tags, uint16(r.IntN(4096)))
		if r.IntN(2) == 0 {
			p.Tags = append(p.Tags, uint16(r.IntN(4096)))
		}
	}
	p.Payload = make([]byte, r.IntN(64))
	for i := range p.Payload {
		p.Payload[i] = byte(r.Uint32())
	}
	p.Later = r.IntN(16) == 0
	return p
}
