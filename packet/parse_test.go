package packet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// checkParse compares Parse with the oracle, and what it says with the views.
func checkParse(t testing.TB, frame []byte) {
	t.Helper()
	var got Layers
	why := Parse(frame, &got)
	want, depth, v := expect(bytes.Clone(frame))
	if v == agree && why != OK || v == refuse && why == OK {
		t.Fatalf("%x\nParse: %v %+v\noracle: verdict %d, %+v", frame, why, got, v, want)
	}
	if got.upTo(depth) != want.upTo(depth) {
		t.Fatalf("%x\nParse:  %v %+v\noracle: %+v (depth %d)", frame, why, got, want, depth)
	}
	checkLayers(t, frame, &got, why)
	checkTunnel(t, frame, &got, why)
}

// checkLayers: whatever Parse answers, the offsets are in order and the views can be used.
func checkLayers(t testing.TB, frame []byte, l *Layers, why Reason) {
	t.Helper()
	fail := func(what string) {
		t.Helper()
		t.Fatalf("%s: %x\n%v %+v", what, frame, why, *l)
	}
	if int(l.End) > len(frame) || uint32(l.Payload) > l.End || l.L3 > l.Payload || l.L4 > l.Payload || l.L4 != 0 && l.L4 < l.L3 {
		fail("offsets")
	}
	FlowHash(frame, l)
	if l.IPVersion == 4 && !IPv4(frame[l.L3:]).Valid() || l.IPVersion == 6 && !IPv6(frame[l.L3:]).Valid() {
		fail("IP not valid")
	}
	if l.Src(frame).IsValid() != (l.IPVersion != 0) || l.Dst(frame).IsValid() != (l.IPVersion != 0) {
		fail("addresses")
	}
	if why != OK {
		if why.Err() == nil || !errors.Is(why.Err(), ErrMalformed) || why.String() == "" {
			fail("reason")
		}
		return
	}
	body := frame[l.L4:l.End]
	ports := uint32(0)
	switch {
	case l.IPVersion == 0 || l.FragOffset != 0:
	case l.Proto == ProtoUDP:
		if !l.MoreFragments && (!UDP(body).Valid() || UDP(body).Length() != len(body)) {
			fail("UDP not valid")
		}
		ports = uint32(UDP(body).SrcPort())<<16 | uint32(UDP(body).DstPort())
	case l.Proto == ProtoTCP:
		if !TCP(body).Valid() || TCP(body).HeaderLen() != int(l.Payload-l.L4) {
			fail("TCP not valid")
		}
		ports = uint32(TCP(body).SrcPort())<<16 | uint32(TCP(body).DstPort())
	}
	if l.HasPorts != (ports != 0) && ports != 0 || ports != uint32(l.SrcPort)<<16|uint32(l.DstPort) {
		fail("ports")
	}
	if l.IPVersion != 6 {
		return
	}
	ip := IPv6(frame[l.L3:])
	rest, proto := ip.Payload(), ip.NextHeader()
	for range MaxExtensions {
		ext, after, next, why := NextExtension(rest, proto)
		if why != OK {
			fail("NextExtension")
		}
		if ext == nil {
			break
		}
		later := proto == ProtoFragment && ext.FragmentOffset() != 0
		rest, proto = after, next
		if later {
			break
		}
	}
	if proto != l.Proto || len(rest) != int(l.L3)+int(l.IPLen)-int(l.L4) {
		fail("NextExtension and Parse disagree")
	}
}

// checkTunnel compares ParseTunnel and Decap with gopacket and with Parse of what is inside.
func checkTunnel(t testing.TB, frame []byte, outer *Layers, why Reason) {
	t.Helper()
	if why != OK {
		return
	}
	var inner Layers
	answer := ParseTunnel(frame, outer, &inner)
	if int(inner.End) > len(frame) || uint32(inner.Payload) > inner.End || inner.L3 > inner.Payload {
		t.Fatalf("inner offsets: %x\n%v %+v", frame, answer, inner)
	}
	if outer.Tunnel == TunnelNone {
		return
	}
	body := frame[outer.Payload:outer.End]
	var vni uint32
	var contents int
	ethernet := true
	switch outer.Tunnel {
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
		if err := g.DecodeFromBytes(body, gopacket.NilDecodeFeedback); err != nil || g.Version != 0 || g.RoutingPresent {
			t.Fatalf("GRE that gopacket refuses: %x: %v", frame, err)
		}
		vni, contents = g.Key, len(g.Contents)
		ethernet = g.Protocol == layers.EthernetTypeTransparentEthernetBridging
		if outer.Tunnel == TunnelNVGRE {
			vni >>= 8
			if !ethernet {
				t.Fatal("NVGRE without Ethernet")
			}
		}
		if !ethernet && inner.EtherType != EtherType(g.Protocol) {
			t.Fatalf("GRE protocol: %v, want %v", inner.EtherType, g.Protocol)
		}
	}
	if outer.VNI != vni || int(outer.Inner) != int(outer.Payload)+contents {
		t.Fatalf("%x\nVNI %d, inner at %d; want %d, %d", frame, outer.VNI, outer.Inner, vni, int(outer.Payload)+contents)
	}
	// What is inside must be what Parse says about it when it is a frame of its own.
	own := bytes.Clone(frame[outer.Inner:outer.End])
	if !ethernet {
		own = append(make([]byte, EthernetLen), own...)
		copy(own, frame[:12])
		Ethernet(own).SetType(inner.EtherType)
	}
	var alone, taken Layers
	if w := Parse(own, &alone); w != answer {
		t.Fatalf("%x\ninside: %v, alone: %v", frame, answer, w)
	}
	again := *outer
	out, w := Decap(bytes.Clone(frame), &again, &taken)
	if w == TunnelChecksum && !GRE(body).ChecksumOK() {
		return
	}
	if w != answer || w == OK && (!bytes.Equal(out, own) || taken != alone) {
		t.Fatalf("%x\nDecap: %v %x %+v\nalone: %v %x %+v", frame, w, out, taken, answer, own, alone)
	}
}

// seeds are frames of every kind, built by gopacket.
func seeds(t testing.TB) map[string][]byte {
	t.Helper()
	eth := func(typ layers.EthernetType) *layers.Ethernet {
		return &layers.Ethernet{DstMAC: []byte{2, 0, 0, 0, 0, 1}, SrcMAC: []byte{2, 0, 0, 0, 0, 2}, EthernetType: typ}
	}
	v4 := func(proto layers.IPProtocol) *layers.IPv4 {
		return &layers.IPv4{Version: 4, TTL: 64, Protocol: proto, SrcIP: []byte{10, 0, 0, 1}, DstIP: []byte{10, 0, 0, 2}}
	}
	v6 := func(proto layers.IPProtocol) *layers.IPv6 {
		return &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto, SrcIP: netip.MustParseAddr("fd00::1").AsSlice(), DstIP: netip.MustParseAddr("fd00::2").AsSlice()}
	}
	udp := func(dst layers.UDPPort) *layers.UDP { return &layers.UDP{SrcPort: 1000, DstPort: dst} }
	tcp := &layers.TCP{SrcPort: 1, DstPort: 2, Seq: 3, SYN: true, Window: 100, Options: []layers.TCPOption{{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{5, 0xb4}}}}
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
		"udp4":         inner,
		"udp6":         ser(eth(ip6), v6(layers.IPProtocolUDP), udp(9), payload),
		"tcp4":         ser(eth(ip4), v4(layers.IPProtocolTCP), tcp, payload),
		"tcp6":         ser(eth(ip6), v6(layers.IPProtocolTCP), tcp, payload),
		"icmp":         ser(eth(ip4), v4(layers.IPProtocolICMPv4), &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: 7, Seq: 8}, payload),
		"icmp6":        ser(eth(ip6), v6(layers.IPProtocolICMPv6), &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(128, 0)}, payload),
		"vlan":         ser(eth(q), &layers.Dot1Q{VLANIdentifier: 7, Priority: 5, Type: ip4}, v4(layers.IPProtocolUDP), udp(9), payload),
		"qinq":         ser(eth(layers.EthernetTypeQinQ), &layers.Dot1Q{VLANIdentifier: 7, Type: q}, &layers.Dot1Q{VLANIdentifier: 9, DropEligible: true, Type: ip6}, v6(layers.IPProtocolUDP), udp(9), payload),
		"three tags":   ser(eth(q), &layers.Dot1Q{Type: q}, &layers.Dot1Q{Type: q}, &layers.Dot1Q{Type: ip4}, v4(layers.IPProtocolUDP), udp(9), payload),
		"fragment":     ser(eth(ip4), frag, payload),
		"first":        ser(eth(ip4), first, udp(9), payload),
		"options":      ser(eth(ip4), opts, udp(9), payload),
		"arp":          ser(eth(layers.EthernetTypeARP), &layers.ARP{AddrType: 1, Protocol: ip4, HwAddressSize: 6, ProtAddressSize: 4, Operation: 1, SourceHwAddress: make([]byte, 6), SourceProtAddress: make([]byte, 4), DstHwAddress: make([]byte, 6), DstProtAddress: make([]byte, 4)}),
		"padding":      append(ser(eth(ip4), v4(layers.IPProtocolUDP), udp(9)), make([]byte, 18)...),
		"vxlan":        ser(eth(ip4), v4(layers.IPProtocolUDP), udp(4789), &layers.VXLAN{ValidIDFlag: true, VNI: 0x123456}, gopacket.Payload(inner)),
		"vxlan6":       ser(eth(ip6), v6(layers.IPProtocolUDP), udp(4789), &layers.VXLAN{ValidIDFlag: true, VNI: 1}, gopacket.Payload(inner)),
		"gre":          ser(eth(ip4), v4(layers.IPProtocolGRE), &layers.GRE{Protocol: ip4}, v4(layers.IPProtocolTCP), tcp, payload),
		"gre all":      ser(eth(ip4), v4(layers.IPProtocolGRE), &layers.GRE{Protocol: ip6, KeyPresent: true, Key: 99, SeqPresent: true, Seq: 3, ChecksumPresent: true}, v6(layers.IPProtocolUDP), udp(1), payload),
		"gre teb":      ser(eth(ip4), v4(layers.IPProtocolGRE), &layers.GRE{Protocol: 0x6558}, gopacket.Payload(inner)),
		"nvgre":        ser(eth(ip4), v4(layers.IPProtocolGRE), &layers.GRE{Protocol: 0x6558, KeyPresent: true, Key: 0x12345678}, gopacket.Payload(inner)),
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
	for name, frame := range seeds(t) {
		t.Run(name, func(t *testing.T) {
			for n := range len(frame) + 1 { // cut short at every length
				checkParse(t, frame[:n:n])
			}
			// Every byte of the headers replaced.
			for i := 0; i < min(len(frame), 110); i++ {
				for _, v := range []byte{0, 1, 0x0f, 0x45, 0x60, 0x7f, 0x80, 0xff, frame[i] + 1, frame[i] - 1} {
					b := bytes.Clone(frame)
					b[i] = v
					checkParse(t, b)
				}
			}
			if _, depth, v := expect(bytes.Clone(frame)); v == agree && depth == 4 {
				agreed++
			}
		})
	}
	if agreed < 20 {
		t.Errorf("the oracle understood only %d frames to the end", agreed)
	}
}

func FuzzParse(f *testing.F) {
	for _, frame := range seeds(f) {
		f.Add(frame)
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		checkParse(t, frame)
		var l Layers
		if why := ParseIP(frame, &l); why == OK {
			checkLayers(t, frame, &l, why)
			checkIPTunnel(t, frame, &l)
		}
	})
}

// checkIPTunnel: without an outer Ethernet header, Decap gives frames or IP packets that Parse or ParseIP read alike.
func checkIPTunnel(t testing.TB, pkt []byte, outer *Layers) {
	t.Helper()
	var inner, alone Layers
	out, why := Decap(bytes.Clone(pkt), outer, &inner)
	if why != OK {
		return
	}
	if inner.HasL2 {
		why = Parse(out, &alone)
	} else if inner.IPVersion != 0 {
		why = ParseIP(out, &alone)
	} else {
		return
	}
	if why != OK || inner != alone {
		t.Fatalf("%x\nDecap: %x %+v\nalone: %v %+v", pkt, out, inner, why, alone)
	}
}

// TestReasons: each kind of damage has its own reason.
func TestReasons(t *testing.T) {
	s := seeds(t)
	set := func(name string, at int, v ...byte) []byte {
		b := bytes.Clone(s[name])
		copy(b[at:], v)
		return b
	}
	for _, c := range []struct {
		frame []byte
		want  Reason
	}{
		{nil, ShortEthernet},
		{s["udp4"][:13], ShortEthernet},
		{s["vlan"][:17], ShortVLAN},
		{s["qinq"][:20], ShortVLAN},
		{s["udp4"][:33], ShortIPv4},
		{set("udp4", 14, 0x4f)[:50], ShortIPv4},
		{set("udp4", 14, 0x65), BadIPv4Version},
		{set("udp4", 14, 0x44), BadIPv4Header},
		{set("udp4", 16, 0, 19), BadIPv4Length},
		{set("udp4", 16, 0, 0), BadIPv4Length},
		{s["udp4"][:60], TruncatedIPv4},
		{s["udp6"][:53], ShortIPv6},
		{set("udp6", 14, 0x40), BadIPv6Version},
		{s["udp6"][:70], TruncatedIPv6},
		{set("hop", 55, 200), ShortExtension},
		{set("ah6", 55, 0), ShortExtension},
		{s["many"], LongExtensions},
		{s["eight"], OK},
		{set("udp4", 16, 0, 27), ShortUDP},
		{set("udp4", 38, 0, 7), BadUDPLength},
		{set("udp4", 38, 0, 0), BadUDPLength},
		{set("udp4", 38, 0, 200), TruncatedUDP},
		{set("first", 38, 0, 200), OK},
		{set("tcp4", 16, 0, 39), ShortTCP},
		{set("tcp4", 46, 0xf0)[:76], TruncatedIPv4},
		{set("tcp4", 46, 0x40), BadTCPHeader},
		{set("icmp", 16, 0, 27), ShortICMP},
		{set("icmp6", 18, 0, 3), ShortICMP},
		{s["esp"], OK},
		{s["three tags"], OK},
		{s["llc"], OK},
	} {
		var l Layers
		if got := Parse(c.frame, &l); got != c.want {
			t.Errorf("%x: %v, want %v", c.frame, got, c.want)
		}
	}
	for _, c := range []struct {
		frame []byte
		want  Reason
	}{
		{s["udp4"], NoTunnel},
		{s["arp"], NoTunnel},
		{s["fragment"], NoTunnel},
		{s["vxlan"], OK},
		{set("vxlan", 42, 0), BadTunnel},
		{set("vxlan", 38, 0, 15), ShortTunnel},
		{set("vxlan", 38, 0, 20), ShortEthernet},
		{s["gre all"], OK},
		{set("gre", 34, 0x40), BadTunnel},
		{set("gre", 35, 1), BadTunnel},
		{set("gre", 36, 0x81, 0), BadTunnel},
		{set("gre all", 16, 0, 30), ShortTunnel},
		{s["nvgre"], OK},
	} {
		var l, inner Layers
		if why := Parse(c.frame, &l); why != OK {
			t.Fatalf("%x: %v", c.frame, why)
		}
		if got := ParseTunnel(c.frame, &l, &inner); got != c.want {
			t.Errorf("%x: %v, want %v", c.frame, got, c.want)
		}
	}
	seen := map[string]bool{}
	for r := range Reason(NumReasons) {
		if seen[r.String()] || r.String() == "" {
			t.Errorf("reason %d has no name of its own", r)
		}
		seen[r.String()] = true
	}
	if OK.Err() != nil || Reason(250).String() != "unknown" {
		t.Error("OK or a reason that does not exist")
	}
	var l Layers
	for _, b := range [][]byte{nil, {0x50}, {0}} {
		if why := ParseIP(b, &l); why != NotIP {
			t.Errorf("ParseIP %x: %v", b, why)
		}
	}
}
