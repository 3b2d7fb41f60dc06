//go:build invariants || race

package packet

// The tests in files with this build constraint compare us with gopacket. They run in the builds of
// CI that check invariants and races, and not in the plain one, because go test -fuzz instruments
// everything that the test binary links, and gopacket makes each execution of each fuzz target
// about twice as slow. To fuzz against it: go test -tags invariants -fuzz FuzzParse.

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

func init() { secondOpinion = compare }

// compare compares what Parse and ParseTunnel said about a frame with gopacket.
func compare(t testing.TB, frame []byte, got *Layers, why Reason) {
	t.Helper()
	want, depth, v := expect(bytes.Clone(frame))
	if v == agree && why != OK || v == refuse && why == OK {
		t.Fatalf("%x\nParse: %v %+v\noracle: verdict %d, %+v", frame, why, *got, v, want)
	}
	if got.upTo(depth) != want.upTo(depth) {
		t.Fatalf("%x\nParse:  %v %+v\noracle: %+v (depth %d)", frame, why, *got, want, depth)
	}
	if why != OK || got.Tunnel == TunnelNone {
		return
	}
	body := frame[got.Payload:got.End]
	var vni uint32
	var contents int
	switch got.Tunnel {
	case TunnelVXLAN:
		var vx layers.VXLAN
		if err := vx.DecodeFromBytes(body, gopacket.NilDecodeFeedback); err != nil || !vx.ValidIDFlag {
			t.Fatalf("VXLAN that gopacket refuses: %x: %v", frame, err)
		}
		vni, contents = vx.VNI, len(vx.Contents)
	default:
		var g layers.GRE
		if body[1]&0x80 != 0 {
			return
		}
		if err := g.DecodeFromBytes(body, gopacket.NilDecodeFeedback); err != nil || g.Version != 0 ||
			g.RoutingPresent {
			t.Fatalf("GRE that gopacket refuses: %x: %v", frame, err)
		}
		vni, contents = g.Key, len(g.Contents)
		if nvgre := g.Protocol == layers.EthernetTypeTransparentEthernetBridging && g.KeyPresent &&
			!g.ChecksumPresent && !g.SeqPresent; nvgre {
			vni >>= 8
		}
	}
	if got.VNI != vni || int(got.Inner) != int(got.Payload)+contents {
		t.Fatalf("%x\nVNI %d, inner at %d; want %d, %d", frame, got.VNI, got.Inner, vni, int(got.Payload)+contents)
	}
}

// verdict is what the oracle says about a frame.
type verdict int

const (
	agree  verdict = iota // Parse must answer OK
	refuse                // Parse must refuse
	open                  // gopacket cannot tell: only the fields up to depth are compared
)

// expect says what Parse should find in a frame, by gopacket, and how deep: 2 up to the EtherType,
// 3 up to the IP header, 4 all.
//
// Deliberate differences, where Parse is the stricter:
//   - a total length of 0 in IPv4 (segmentation offload) and a length of 0 in UDP (jumbograms) are
//     refused;
//   - gopacket marks a packet shorter than its length fields as truncated and goes on; Parse
//     refuses it;
//   - the IP version must agree with the EtherType;
//   - no more than MaxExtensions extension headers and two tags.
//
// Where Parse goes on and gopacket does not:
//   - options of IPv4, TCP and extension headers are not looked into: gopacket refuses malformed
//     ones;
//   - a first fragment is read up to its ports, an atomic IPv6 fragment (RFC 6946) is no fragment;
//   - IPv6 without payload, mobility, HIP and shim6 headers, 0x9100 tags;
//   - GRE in gopacket has an acknowledgement number where RFC 2784 has a bit to be ignored.
func expect(frame []byte) (want Layers, depth int, v verdict) {
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.DecodeOptions{NoCopy: true})
	ls := p.Layers()
	at := 0
	next := func() gopacket.Layer {
		if len(ls) == 0 {
			return nil
		}
		l := ls[0]
		ls = ls[1:]
		return l
	}
	eth, ok := next().(*layers.Ethernet)
	if !ok {
		return want, 0, refuse
	}
	want.HasL2 = true
	want.End = uint32(len(frame))
	at = EthernetLen
	typ := EtherType(eth.EthernetType)
	if eth.EthernetType == layers.EthernetTypeLLC {
		typ = EtherType(eth.Length)
	}
	for (typ == EtherTypeVLAN || typ == EtherTypeQinQ) && want.NumTags < 2 {
		d, ok := next().(*layers.Dot1Q)
		if !ok {
			return want, 0, refuse
		}
		want.Tags[want.NumTags] = MakeTCI(d.VLANIdentifier, d.Priority, d.DropEligible)
		want.NumTags++
		typ = EtherType(d.Type)
		at += VLANLen
	}
	if typ == EtherTypeQinQ1 && want.NumTags < 2 {
		return want, 0, open
	}
	want.EtherType = typ
	want.L3, want.Payload = uint16(at), uint16(at)
	rest := frame[at:]
	var proto Proto
	switch typ {
	case EtherTypeIPv4:
		ip, ok := next().(*layers.IPv4)
		if !ok || !decodes(new(layers.IPv4), rest) {
			if len(rest) >= IPv4Len && blankOptions(rest, IPv4Len, int(rest[0]&15)*4) {
				return expect(frame)
			}
			return want, 2, refuse
		}
		raw := int(binary.BigEndian.Uint16(rest[2:]))
		if ip.Version != 4 || raw == 0 || raw > len(rest) {
			return want, 2, refuse
		}
		want.IPVersion, want.IPLen, want.End = 4, uint32(ip.Length), uint32(at+int(ip.Length))
		want.FragOffset, want.MoreFragments = ip.FragOffset*8, ip.Flags&layers.IPv4MoreFragments != 0
		proto = Proto(ip.Protocol)
		at += int(ip.IHL) * 4
	case EtherTypeIPv6:
		ip, ok := next().(*layers.IPv6)
		if !ok || ip.Version != 6 || int(ip.Length)+IPv6Len > len(rest) {
			return want, 2, refuse
		}
		want.IPVersion, want.IPLen, want.End = 6, uint32(ip.Length)+IPv6Len, uint32(at+IPv6Len+int(ip.Length))
		proto = Proto(ip.NextHeader)
		at += IPv6Len
		if ip.Length == 0 {
			return want, 3, open
		}
		for n := 0; ; n++ {
			var h Proto
			liked := true
			left := int(want.End) - at
			if proto == ProtoMobility || proto == ProtoHIP || proto == ProtoShim6 {
				return want, 3, open
			}
			if proto != ProtoHopByHop && proto != ProtoRouting && proto != ProtoFragment && proto != ProtoDestOpts &&
				proto != ProtoAH {
				break
			}
			if n == MaxExtensions || left < 8 {
				return want, 3, refuse
			}
			size := (int(frame[at+1]) + 1) * 8
			switch l := next().(type) {
			case *layers.IPv6HopByHop:
				h, liked = Proto(l.NextHeader), decodes(new(layers.IPv6HopByHop), frame[at:want.End])
			case *layers.IPv6Routing:
				h = Proto(l.NextHeader)
			case *layers.IPv6Destination:
				h, liked = Proto(l.NextHeader), decodes(new(layers.IPv6Destination), frame[at:want.End])
			case *layers.IPSecAH:
				h, size = Proto(l.NextHeader), l.ActualLength
			case *layers.IPv6Fragment:
				h, size = Proto(l.NextHeader), 8
				want.FragOffset, want.MoreFragments = l.FragmentOffset*8, l.MoreFragments
				if want.FragOffset == 0 {
					want.MoreFragments = false // compared by depth 4 only
					return want, 3, open
				}
			default:
				if proto == ProtoAH {
					size = (int(frame[at+1]) + 2) * 4
				}
				if size > left || proto == ProtoAH && size < 12 {
					return want, 3, refuse
				}
				return want, 3, open // options that gopacket does not like
			}
			if size > left { // behind hop-by-hop options gopacket reads past the payload length
				return want, 3, refuse
			}
			if !liked {
				return want, 3, open
			}
			proto = h
			at += size
			if want.FragOffset != 0 {
				break
			}
		}
	default:
		return want, 4, agree
	}
	want.Proto, want.L4, want.Payload = proto, uint16(at), uint16(at)
	if want.FragOffset != 0 {
		return want, 4, agree
	}
	if want.MoreFragments {
		return want, 3, open
	}
	rest = frame[at:want.End]
	switch proto {
	case ProtoUDP:
		u, ok := next().(*layers.UDP)
		if !ok || !decodes(new(layers.UDP), rest) || u.Length == 0 || int(u.Length) > len(rest) {
			return want, 3, refuse
		}
		want.SrcPort, want.DstPort, want.HasPorts = uint16(u.SrcPort), uint16(u.DstPort), true
		want.Payload += uint16(len(u.Contents))
		want.End = uint32(want.L4) + uint32(u.Length)
	case ProtoTCP:
		c, ok := next().(*layers.TCP)
		if !ok || !decodes(new(layers.TCP), rest) {
			if len(rest) >= TCPLen && blankOptions(rest, TCPLen, int(rest[12]>>4)*4) {
				return expect(frame)
			}
			return want, 3, refuse
		}
		want.SrcPort, want.DstPort, want.HasPorts = uint16(c.SrcPort), uint16(c.DstPort), true
		want.Payload += uint16(len(c.Contents))
	case ProtoICMP:
		m, ok := next().(*layers.ICMPv4)
		if !ok {
			return want, 3, refuse
		}
		want.Payload += uint16(len(m.Contents))
	case ProtoICMPv6:
		m, ok := next().(*layers.ICMPv6)
		if !ok {
			return want, 3, refuse
		}
		want.Payload += uint16(len(m.Contents))
	}
	return want, 4, agree
}

// decodes reports whether gopacket is content with a layer: a packet lists layers whose decoding
// failed as well.
func decodes(l interface {
	DecodeFromBytes([]byte, gopacket.DecodeFeedback) error
}, b []byte) bool {
	return l.DecodeFromBytes(b, gopacket.NilDecodeFeedback) == nil
}

// blankOptions overwrites options with no-operations, and reports whether that changed anything.
func blankOptions(b []byte, from, to int) bool {
	changed := false
	for i := from; i < to && to <= len(b); i++ {
		changed = changed || b[i] != 1
		b[i] = 1
	}
	return changed
}

// upTo returns the fields of the layers up to a depth.
func (l Layers) upTo(depth int) Layers {
	out := Layers{}
	if depth >= 2 {
		out.L2, out.L3, out.EtherType, out.Tags, out.NumTags, out.HasL2 = l.L2, l.L3, l.EtherType, l.Tags, l.NumTags,
			l.HasL2
	}
	if depth >= 3 {
		out.IPVersion, out.IPLen = l.IPVersion, l.IPLen
	}
	if depth >= 4 {
		l.Tunnel, l.Inner, l.VNI = 0, 0, 0
		return l
	}
	return out
}

// peerSeeds are frames of every kind, built by gopacket.
func peerSeeds(t testing.TB) map[string][]byte {
	t.Helper()
	eth := func(typ layers.EthernetType) *layers.Ethernet {
		return &layers.Ethernet{DstMAC: []byte{2, 0, 0, 0, 0, 1}, SrcMAC: []byte{2, 0, 0, 0, 0, 2}, EthernetType: typ}
	}
	v4 := func(proto layers.IPProtocol) *layers.IPv4 {
		return &layers.IPv4{Version: 4, TTL: 64, Protocol: proto, SrcIP: []byte{10, 0, 0, 1},
			DstIP: []byte{10, 0, 0, 2}}
	}
	v6 := func(proto layers.IPProtocol) *layers.IPv6 {
		return &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto,
			SrcIP: netip.MustParseAddr("fd00::1").AsSlice(), DstIP: netip.MustParseAddr("fd00::2").AsSlice()}
	}
	udp := func(dst layers.UDPPort) *layers.UDP { return &layers.UDP{SrcPort: 1000, DstPort: dst} }
	tcp := &layers.TCP{SrcPort: 1, DstPort: 2, Seq: 3, SYN: true, Window: 100,
		Options: []layers.TCPOption{{OptionType: layers.TCPOptionKindMSS, OptionLength: 4,
			OptionData: []byte{5, 0xb4}}}}
	payload := gopacket.Payload("payload of a packet, long enough")
	ser := func(ls ...gopacket.SerializableLayer) []byte {
		t.Helper()
		buf := gopacket.NewSerializeBuffer()
		if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true}, ls...); err != nil {
			t.Fatal(err)
		}
		return bytes.Clone(buf.Bytes())
	}
	const ip4, ip6, q = layers.EthernetTypeIPv4, layers.EthernetTypeIPv6, layers.EthernetTypeDot1Q
	frag := v4(layers.IPProtocolUDP)
	frag.FragOffset = 100
	first := v4(layers.IPProtocolUDP)
	first.Flags = layers.IPv4MoreFragments
	opts := v4(layers.IPProtocolUDP)
	opts.Options = []layers.IPv4Option{{OptionType: 7, OptionLength: 7, OptionData: []byte{4, 0, 0, 0, 0}}}
	inner := ser(eth(ip4), v4(layers.IPProtocolUDP), udp(9), payload)
	ext := func(first layers.IPProtocol, b ...byte) []byte { return ser(eth(ip6), v6(first), gopacket.Payload(b)) }
	udpBytes := append([]byte{0, 1, 0, 2, 0, 12, 0, 0}, "data"...)
	hop := func(next byte) []byte { return []byte{next, 0, 1, 4, 0, 0, 0, 0} }
	return map[string][]byte{
		"udp4": inner,
		"udp6": ser(eth(ip6), v6(layers.IPProtocolUDP), udp(9), payload),
		"tcp4": ser(eth(ip4), v4(layers.IPProtocolTCP), tcp, payload),
		"tcp6": ser(eth(ip6), v6(layers.IPProtocolTCP), tcp, payload),
		"icmp": ser(eth(ip4), v4(layers.IPProtocolICMPv4),
			&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: 7, Seq: 8}, payload),
		"icmp6": ser(eth(ip6), v6(layers.IPProtocolICMPv6),
			&layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(128, 0)}, payload),
		"vlan": ser(eth(q), &layers.Dot1Q{VLANIdentifier: 7, Priority: 5, Type: ip4}, v4(layers.IPProtocolUDP),
			udp(9), payload),
		"qinq": ser(eth(layers.EthernetTypeQinQ), &layers.Dot1Q{VLANIdentifier: 7, Type: q},
			&layers.Dot1Q{VLANIdentifier: 9, DropEligible: true, Type: ip6}, v6(layers.IPProtocolUDP), udp(9), payload),
		"three tags": ser(eth(q), &layers.Dot1Q{Type: q}, &layers.Dot1Q{Type: q}, &layers.Dot1Q{Type: ip4},
			v4(layers.IPProtocolUDP), udp(9), payload),
		"fragment": ser(eth(ip4), frag, payload),
		"first":    ser(eth(ip4), first, udp(9), payload),
		"options":  ser(eth(ip4), opts, udp(9), payload),
		"arp": ser(eth(layers.EthernetTypeARP), &layers.ARP{AddrType: 1, Protocol: ip4, HwAddressSize: 6,
			ProtAddressSize: 4, Operation: 1, SourceHwAddress: make([]byte, 6), SourceProtAddress: make([]byte, 4),
			DstHwAddress: make([]byte, 6), DstProtAddress: make([]byte, 4)}),
		"padding": append(ser(eth(ip4), v4(layers.IPProtocolUDP), udp(9)), make([]byte, 18)...),
		"vxlan": ser(eth(ip4), v4(layers.IPProtocolUDP), udp(4789),
			&layers.VXLAN{ValidIDFlag: true, VNI: 0x123456}, gopacket.Payload(inner)),
		"vxlan6": ser(eth(ip6), v6(layers.IPProtocolUDP), udp(4789), &layers.VXLAN{ValidIDFlag: true, VNI: 1},
			gopacket.Payload(inner)),
		"gre": ser(eth(ip4), v4(layers.IPProtocolGRE), &layers.GRE{Protocol: ip4}, v4(layers.IPProtocolTCP),
			tcp, payload),
		"gre all": ser(eth(ip4), v4(layers.IPProtocolGRE), &layers.GRE{Protocol: ip6, KeyPresent: true, Key: 99,
			SeqPresent: true, Seq: 3, ChecksumPresent: true}, v6(layers.IPProtocolUDP), udp(1), payload),
		"gre teb": ser(eth(ip4), v4(layers.IPProtocolGRE), &layers.GRE{Protocol: 0x6558}, gopacket.Payload(inner)),
		"nvgre": ser(eth(ip4), v4(layers.IPProtocolGRE),
			&layers.GRE{Protocol: 0x6558, KeyPresent: true, Key: 0x12345678}, gopacket.Payload(inner)),
		"hop":          ext(0, append(hop(17), udpBytes...)...),
		"dest hop":     ext(60, append(append(hop(43), 17, 0, 0, 0, 0, 0, 0, 0), udpBytes...)...),
		"frag6":        ext(44, append([]byte{17, 0, 0x10, 1, 0, 0, 0, 9}, udpBytes...)...),
		"first6":       ext(44, append([]byte{17, 0, 0, 1, 0, 0, 0, 9}, udpBytes...)...),
		"atomic6":      ext(44, append([]byte{17, 0, 0, 0, 0, 0, 0, 9}, udpBytes...)...),
		"ah6":          ext(51, append([]byte{17, 2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 9, 9, 9, 9}, udpBytes...)...),
		"many":         ext(60, append(bytes.Repeat(hop(60), 9), udpBytes...)...),
		"eight":        ext(60, append(append(bytes.Repeat(hop(60), 7), hop(17)...), udpBytes...)...),
		"nothing6":     ext(59, 1, 2, 3),
		"llc":          append(append(bytes.Repeat([]byte{2}, 12), 0, 8), 0xaa, 0xaa, 3, 0, 0, 0, 0, 0),
		"ecpri":        append(append(bytes.Repeat([]byte{2}, 12), 0xae, 0xfe), 0x10, 0, 0, 8, 0, 5, 0, 1, 1, 2, 3, 4),
		"esp":          ser(eth(ip4), v4(layers.IPProtocolESP), payload),
		"short length": func() []byte { b := bytes.Clone(inner); binary.BigEndian.PutUint16(b[38:], 12); return b }(),
	}
}

func TestParseAgreesWithOracle(t *testing.T) {
	agreed := 0
	for name, frame := range peerSeeds(t) {
		t.Run(name, func(t *testing.T) {
			damage(t, frame)
			if _, depth, v := expect(bytes.Clone(frame)); v == agree && depth == 4 {
				agreed++
			}
		})
	}
	if agreed < 20 {
		t.Errorf("the oracle understood only %d frames to the end", agreed)
	}
}
