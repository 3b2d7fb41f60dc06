package packet

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
)

// seeds are frames of every kind.
func seeds(t testing.TB) map[string][]byte {
	t.Helper()
	v4, w4 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	v6, w6 := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
	payload := []byte("payload of a packet, long enough")
	must := func(n int, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	eth := func(typ EtherType, body ...[]byte) []byte {
		b := make([]byte, EthernetLen)
		h := EthernetHeader{MAC{2, 0, 0, 0, 0, 1}, MAC{2, 0, 0, 0, 0, 2}, typ}
		must(h.Fill(b))
		return append(b, bytes.Join(body, nil)...)
	}
	tag := func(typ EtherType, tci TCI, body []byte) []byte {
		b := make([]byte, VLANLen)
		must((&VLANHeader{tci, typ}).Fill(b))
		return append(b, body...)
	}
	ip4 := func(h IPv4Header, body ...[]byte) []byte {
		h.Src, h.Dst = v4, w4
		b, p := make([]byte, h.Len()), bytes.Join(body, nil)
		must(h.Fill(b, len(p)))
		return append(b, p...)
	}
	ip6 := func(next Proto, body ...[]byte) []byte {
		b, p := make([]byte, IPv6Len), bytes.Join(body, nil)
		must((&IPv6Header{Src: v6, Dst: w6, NextHeader: next}).Fill(b, len(p)))
		return append(b, p...)
	}
	udp := func(dst uint16, body ...[]byte) []byte {
		b, p := make([]byte, UDPLen), bytes.Join(body, nil)
		must((&UDPHeader{1000, dst}).Fill(b, len(p)))
		return append(b, p...)
	}
	tcp := make([]byte, 24)
	must((&TCPHeader{SrcPort: 1, DstPort: 2, Seq: 3, Flags: TCPSyn, Window: 100,
		Options: []byte{2, 4, 5, 0xb4}}).Fill(tcp))
	gre := func(h GREHeader, body []byte) []byte {
		b := make([]byte, h.Len())
		must(h.Fill(b))
		b = append(b, body...)
		GRE(b).FillChecksum()
		return b
	}
	icmp, icmp6, arp, ecpri, vx := make([]byte, 8), make([]byte, 8), make([]byte, ARPLen), make([]byte, 8),
		make([]byte, 8)
	must((&ICMPHeader{Type: ICMPEchoRequest}).Fill(icmp))
	must((&ICMPv6Header{Type: ICMPv6EchoRequest}).Fill(icmp6))
	must((&ARPHeader{SenderIP: v4, TargetIP: w4}).Fill(arp))
	must((&ECPRIHeader{Type: ECPRIData, ID: 5, Seq: 1}).Fill(ecpri, 4))
	must((&VXLANHeader{0x123456}).Fill(vx))
	const e4, e6, q = EtherTypeIPv4, EtherTypeIPv6, EtherTypeVLAN
	u := IPv4Header{Proto: ProtoUDP}
	g := IPv4Header{Proto: ProtoGRE}
	inner := eth(e4, ip4(u, udp(9, payload)))
	small := udp(2, []byte("data"))
	hop := func(next byte) []byte { return []byte{next, 0, 1, 4, 0, 0, 0, 0} }
	short := bytes.Clone(inner)
	binary.BigEndian.PutUint16(short[38:], 12)
	return map[string][]byte{
		"udp4":       inner,
		"udp6":       eth(e6, ip6(ProtoUDP, udp(9, payload))),
		"tcp4":       eth(e4, ip4(IPv4Header{Proto: ProtoTCP}, tcp, payload)),
		"tcp6":       eth(e6, ip6(ProtoTCP, tcp, payload)),
		"icmp":       eth(e4, ip4(IPv4Header{Proto: ProtoICMP}, icmp, payload)),
		"icmp6":      eth(e6, ip6(ProtoICMPv6, icmp6, payload)),
		"vlan":       eth(q, tag(e4, MakeTCI(7, 5, false), ip4(u, udp(9, payload)))),
		"qinq":       eth(EtherTypeQinQ, tag(q, 7, tag(e6, MakeTCI(9, 0, true), ip6(ProtoUDP, udp(9, payload))))),
		"three tags": eth(q, tag(q, 1, tag(q, 2, tag(e4, 3, ip4(u, udp(9, payload)))))),
		"old qinq":   eth(EtherTypeQinQ1, tag(e4, 7, ip4(u, udp(9, payload)))),
		"fragment":   eth(e4, ip4(IPv4Header{Proto: ProtoUDP, FragmentOffset: 800}, payload)),
		"first":      eth(e4, ip4(IPv4Header{Proto: ProtoUDP, MoreFragments: true}, udp(9, payload))),
		"options": eth(e4, ip4(IPv4Header{Proto: ProtoUDP, Options: []byte{7, 7, 4, 0, 0, 0, 0, 0}},
			udp(9, payload))),
		"arp":     eth(EtherTypeARP, arp),
		"padding": eth(e4, ip4(u, udp(9)), make([]byte, 18)),
		"vxlan":   eth(e4, ip4(u, udp(PortVXLAN, vx, inner))),
		"vxlan6":  eth(e6, ip6(ProtoUDP, udp(PortVXLAN, vx, inner))),
		"gre":     eth(e4, ip4(g, gre(GREHeader{Protocol: e4}, ip4(IPv4Header{Proto: ProtoTCP}, tcp, payload)))),
		"gre all": eth(e4, ip4(g, gre(GREHeader{Protocol: e6, HasChecksum: true, HasKey: true, Key: 99,
			HasSequence: true, Sequence: 3}, ip6(ProtoUDP, udp(1, payload))))),
		"gre teb": eth(e4, ip4(g, gre(GREHeader{Protocol: EtherTypeTEB}, inner))),
		"gre arp": eth(e4, ip4(g, gre(GREHeader{Protocol: EtherTypeARP}, arp))),
		"gre6": eth(e6, ip6(ProtoGRE, gre(GREHeader{Protocol: e6, HasKey: true, Key: 1},
			ip6(ProtoUDP, udp(1, payload))))),
		"nvgre":        eth(e4, ip4(g, gre(GREHeader{Protocol: EtherTypeTEB, HasKey: true, Key: 0x12345678}, inner))),
		"hop":          eth(e6, ip6(ProtoHopByHop, hop(17), small)),
		"dest hop":     eth(e6, ip6(ProtoDestOpts, hop(43), []byte{17, 0, 0, 0, 0, 0, 0, 0}, small)),
		"frag6":        eth(e6, ip6(ProtoFragment, []byte{17, 0, 0x10, 1, 0, 0, 0, 9}, small)),
		"first6":       eth(e6, ip6(ProtoFragment, []byte{17, 0, 0, 1, 0, 0, 0, 9}, small)),
		"atomic6":      eth(e6, ip6(ProtoFragment, []byte{17, 0, 0, 0, 0, 0, 0, 9}, small)),
		"ah6":          eth(e6, ip6(ProtoAH, []byte{17, 2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 9, 9, 9, 9}, small)),
		"many":         eth(e6, ip6(ProtoDestOpts, bytes.Repeat(hop(60), 9), small)),
		"eight":        eth(e6, ip6(ProtoDestOpts, bytes.Repeat(hop(60), 7), hop(17), small)),
		"nine":         eth(e6, ip6(ProtoDestOpts, bytes.Repeat(hop(60), 8), hop(17), small)),
		"mobility":     eth(e6, ip6(ProtoMobility, hop(17), small)),
		"nothing6":     eth(e6, ip6(ProtoNoNext, []byte{1, 2, 3})),
		"empty6":       eth(e6, ip6(ProtoNoNext)),
		"llc":          eth(8, []byte{0xaa, 0xaa, 3, 0, 0, 0, 0, 0}),
		"ecpri":        eth(EtherTypeECPRI, ecpri, payload[:4]),
		"ecpri udp":    eth(e4, ip4(u, udp(5000, ecpri, payload[:4]))),
		"esp":          eth(e4, ip4(IPv4Header{Proto: ProtoESP}, payload)),
		"short length": short,
	}
}

// TestParse: every seed, cut short at every length, with every byte of its headers replaced.
func TestParse(t *testing.T) {
	for name, frame := range seeds(t) {
		t.Run(name, func(t *testing.T) {
			damage(t, frame)
		})
	}
}

// damage checks a frame cut short at every length, and with every byte of its headers replaced.
func damage(t *testing.T, frame []byte) {
	t.Helper()
	for n := range len(frame) + 1 {
		checkParse(t, frame[:n:n])
	}
	for i := range min(len(frame), 110) {
		for _, v := range []byte{0, 1, 0x0f, 0x45, 0x60, 0x7f, 0x80, 0xff, frame[i] + 1, frame[i] - 1} {
			b := bytes.Clone(frame)
			b[i] = v
			checkParse(t, b)
		}
	}
}

// dirty is a buffer that is not zero, so that a builder that leaves a byte out is seen.
func dirty(n int) []byte { return bytes.Repeat([]byte{0xa5}, n) }

// benchFrame is a frame with room for 1400 bytes of payload and its headers.
func benchFrame() (UDPFrame, []byte) {
	f := UDPFrame{SrcMAC: MAC{2, 1}, DstMAC: MAC{2, 2}, Src: netip.MustParseAddrPort("10.0.0.1:1000"),
		Dst: netip.MustParseAddrPort("10.0.0.2:2000")}
	return f, make([]byte, f.HeaderLen()+1400)
}
