package packet

import (
	"bytes"
	"errors"
	"testing"
)

// secondOpinion, where the build has it, compares what Parse and ParseTunnel say with gopacket
// (oracle_test.go).
var secondOpinion func(t testing.TB, frame []byte, l *Layers, why Reason)

// checkParse parses a frame and checks everything that must hold for any bytes.
func checkParse(t testing.TB, frame []byte) {
	t.Helper()
	var l Layers
	why := Parse(frame, &l)
	checkLayers(t, frame, &l, why)
	checkTunnel(t, frame, &l, why)
	if secondOpinion != nil {
		secondOpinion(t, frame, &l, why)
	}
}

// checkLayers: whatever Parse answers, the offsets are in order and the views can be used.
func checkLayers(t testing.TB, frame []byte, l *Layers, why Reason) {
	t.Helper()
	fail := func(what string) {
		t.Helper()
		t.Fatalf("%s: %x\n%v %+v", what, frame, why, *l)
	}
	if int(l.End) > len(frame) || uint32(l.Payload) > l.End || l.L3 > l.Payload || l.L4 > l.Payload || l.L4 != 0 &&
		l.L4 < l.L3 {
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

// checkTunnel compares ParseTunnel and Decap with Parse of what is inside.
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
	// What is inside must be what Parse says about it when it is a frame of its own.
	own := bytes.Clone(frame[outer.Inner:outer.End])
	if !inner.HasL2 {
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
	if w == TunnelChecksum && !GRE(frame[outer.Payload:outer.End]).ChecksumOK() {
		return
	}
	if w != answer || w == OK && (!bytes.Equal(out, own) || taken != alone) {
		t.Fatalf("%x\nDecap: %v %x %+v\nalone: %v %x %+v", frame, w, out, taken, answer, own, alone)
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

// checkIPTunnel: without an outer Ethernet header, Decap gives frames or IP packets that Parse or
// ParseIP read alike.
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
		{s["nine"], LongExtensions},
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
