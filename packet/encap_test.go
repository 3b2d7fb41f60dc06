package packet

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// readTunnel, where the build has it, checks lengths and checksums of an outer frame with gopacket
// (build_test.go).
var readTunnel func(t *rapid.T, frame []byte, e *Encap, inner []byte)

func drawMAC(t *rapid.T, name string) MAC {
	return MAC(rapid.SliceOfN(rapid.Byte(), 6, 6).Draw(t, name))
}

func drawAddr(t *rapid.T, is4 bool, name string) netip.Addr {
	if is4 {
		return netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, name)))
	}
	return netip.AddrFrom16([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, name)))
}

func drawEncap(t *rapid.T) *Encap {
	is4 := rapid.Bool().Draw(t, "outer is IPv4")
	e := &Encap{
		Kind:   rapid.SampledFrom([]Tunnel{TunnelVXLAN, TunnelGRE, TunnelNVGRE}).Draw(t, "kind"),
		SrcMAC: drawMAC(t, "srcMAC"), DstMAC: drawMAC(t, "dstMAC"), Src: drawAddr(t, is4, "src"),
		Dst: drawAddr(t, is4, "dst"),
		TTL: rapid.Byte().Draw(t, "ttl"), TOS: rapid.Byte().Draw(t, "tos"),
	}
	switch e.Kind {
	case TunnelVXLAN:
		e.VNI = rapid.Uint32Max(1<<24-1).Draw(t, "vni")
		e.SrcPort = rapid.SampledFrom([]uint16{0, 1234}).Draw(t, "srcPort")
		e.Checksum = rapid.SampledFrom([]ChecksumMode{ChecksumAuto, ChecksumFull, ChecksumNone}).Draw(t, "mode")
	case TunnelNVGRE:
		e.VNI = rapid.Uint32Max(1<<24-1).Draw(t, "vsid")
		e.FlowID = rapid.Byte().Draw(t, "flow")
	case TunnelGRE:
		if e.HasKey = rapid.Bool().Draw(t, "has key"); e.HasKey {
			e.Key = rapid.Uint32().Draw(t, "key")
		}
	}
	return e
}

// TestEncapRoundTrip: a frame goes through every tunnel unchanged.
func TestEncapRoundTrip(t *testing.T) {
	all := seeds(t)
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	rapid.Check(t, func(t *rapid.T) {
		e := drawEncap(t)
		frame := all[rapid.SampledFrom(names).Draw(t, "frame")]
		over := e.Overhead()
		spare := rapid.IntRange(0, 5).Draw(t, "spare")
		buf := append(dirty(over+spare), frame...)
		out, err := e.Push(buf, over+spare)
		if err != nil {
			t.Fatal(err)
		}
		if len(out) != over+len(frame) || &out[0] != &buf[spare] || !bytes.Equal(buf[:spare], dirty(spare)) ||
			!bytes.Equal(out[over:], frame) {
			t.Fatalf("%x\nin %x", out, buf)
		}
		if readTunnel != nil {
			readTunnel(t, out, e, frame)
		}
		var outer, inner, alone Layers
		if why := Parse(out, &outer); why != OK || int(outer.End) != len(out) {
			t.Fatalf("outer: %v %+v", why, outer)
		}
		wide := IPv6Len - IPv4Len
		if e.Src.Is4() {
			wide = 0
		}
		if e.Kind == TunnelVXLAN {
			u := UDP(out[outer.L4:])
			if over != 50+wide || u.SrcPort() < 49152 && e.SrcPort == 0 || e.SrcPort != 0 && u.SrcPort() != e.SrcPort {
				t.Fatalf("VXLAN: overhead %d, source port %d", over, u.SrcPort())
			}
			has := e.Checksum == ChecksumFull || e.Checksum == ChecksumAuto && !e.Src.Is4()
			if (u.Checksum() != 0) != has || has && !u.ChecksumOK(e.Src, e.Dst) {
				t.Fatalf("VXLAN: checksum %04x", u.Checksum())
			}
		} else if want := map[Tunnel]int{TunnelGRE: 38, TunnelNVGRE: 42}[e.Kind] + wide; over != want &&
			!(e.HasKey && over == want+4) {
			t.Fatalf("overhead %d, want %d", over, want)
		}
		want := Parse(frame, &alone)
		got, why := Decap(out, &outer, &inner)
		if why != want {
			t.Fatalf("Decap: %v, want %v", why, want)
		}
		if why != OK {
			return
		}
		if !bytes.Equal(got, frame) || inner != alone {
			t.Fatalf("%x %+v\nwant %x %+v", got, inner, frame, alone)
		}
		kind, vni := e.Kind, e.VNI
		if kind == TunnelGRE {
			vni = e.Key
			if e.HasKey { // GRE with a key around Ethernet is NVGRE on the wire
				kind, vni = TunnelNVGRE, e.Key>>8
			}
		}
		if outer.Tunnel != kind || outer.VNI != vni || int(outer.Inner) != over {
			t.Fatalf("tunnel %v %d at %d, want %v %d at %d", outer.Tunnel, outer.VNI, outer.Inner, kind, vni, over)
		}
		if outer.Src(out) != e.Src || outer.Dst(out) != e.Dst || Ethernet(out).Src() != e.SrcMAC ||
			Ethernet(out).Dst() != e.DstMAC {
			t.Fatal("outer addresses")
		}
	})
}

// TestEncapIP: GRE that carries IP packets drops the Ethernet header with its tags and padding, and
// Decap makes a new one.
func TestEncapIP(t *testing.T) {
	all := seeds(t)
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for _, name := range []string{"udp4", "tcp6", "vlan", "qinq", "padding", "short length"} {
		for _, outerAddr := range []netip.Addr{v4, v6} {
			for _, key := range []bool{false, true} {
				frame := all[name]
				var l Layers
				if why := Parse(frame, &l); why != OK {
					t.Fatal(name, why)
				}
				ip := frame[l.L3 : uint32(l.L3)+l.IPLen]
				e := Encap{Kind: TunnelGRE, Protocol: l.EtherType, Src: outerAddr, Dst: outerAddr, SrcMAC: MAC{2, 1},
					DstMAC: MAC{2, 2}, HasKey: key, Key: 42}
				room := e.Overhead() - int(l.L3)
				buf := append(make([]byte, room), frame...)
				out, err := e.Push(buf, room)
				if err != nil {
					t.Fatal(name, err)
				}
				if len(out) != e.Overhead()+len(ip) || &out[0] != &buf[0] || !bytes.Equal(out[e.Overhead():], ip) {
					t.Fatalf("%s: %x", name, out)
				}
				var outer, inner, alone Layers
				if why := Parse(out, &outer); why != OK || outer.Proto != ProtoGRE || int(outer.End) != len(out) {
					t.Fatalf("%s: %v %+v", name, why, outer)
				}
				if outer.IPVersion == 4 && !IPv4(out[outer.L3:]).ChecksumOK() {
					t.Errorf("%s: outer checksum", name)
				}
				whole := bytes.Clone(out)
				got, why := Decap(out, &outer, &inner)
				if why != OK || !bytes.Equal(got[EthernetLen:], ip) || Ethernet(got).Src() != e.SrcMAC ||
					Ethernet(got).Dst() != e.DstMAC || Ethernet(got).Type() != l.EtherType {
					t.Fatalf("%s: %v %x", name, why, got)
				}
				if outer.Tunnel != TunnelGRE || key != (outer.VNI == 42) {
					t.Errorf("%s: %v %d", name, outer.Tunnel, outer.VNI)
				}
				if Parse(got, &alone) != OK || alone != inner {
					t.Errorf("%s: %+v, want %+v", name, inner, alone)
				}
				// One byte less headroom: refused, and nothing is written.
				buf = append(make([]byte, room-1), frame...)
				if _, err := e.Push(buf, room-1); !errors.Is(err, ErrHeadroom) || !bytes.Equal(buf[room-1:], frame) {
					t.Errorf("%s: %v", name, err)
				}
				// Without an Ethernet header outside there is none inside.
				if why := ParseIP(whole[EthernetLen:], &outer); why != OK {
					t.Fatal(name, why)
				}
				if got, why := Decap(whole[EthernetLen:], &outer, &inner); why != OK || !bytes.Equal(got, ip) ||
					inner.HasL2 || inner.L3 != 0 {
					t.Errorf("%s: %v %x %+v", name, why, got, inner)
				}
			}
		}
	}
}

func TestEncapErrors(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	s := seeds(t)
	for _, c := range []struct {
		what  string
		e     Encap
		frame []byte
		room  int
		want  error
	}{
		{"no kind", Encap{Src: v4, Dst: v4}, s["udp4"], 100, ErrField},
		{"unknown kind", Encap{Kind: 9, Src: v4, Dst: v4}, s["udp4"], 100, ErrField},
		{"VNI", Encap{Kind: TunnelVXLAN, VNI: 1 << 24, Src: v4, Dst: v4}, s["udp4"], 100, ErrField},
		{"VSID", Encap{Kind: TunnelNVGRE, VNI: 1 << 24, Src: v4, Dst: v4}, s["udp4"], 100, ErrField},
		{"mode", Encap{Kind: TunnelVXLAN, Checksum: 9, Src: v4, Dst: v4}, s["udp4"], 100, ErrField},
		{"protocol", Encap{Kind: TunnelVXLAN, Protocol: EtherTypeIPv4, Src: v4, Dst: v4}, s["udp4"], 100, ErrField},
		{"protocol", Encap{Kind: TunnelGRE, Protocol: EtherTypeARP, Src: v4, Dst: v4}, s["udp4"], 100, ErrField},
		{"families", Encap{Kind: TunnelGRE, Src: v4, Dst: v6}, s["udp4"], 100, ErrAddress},
		{"families", Encap{Kind: TunnelGRE, Src: v6, Dst: v4}, s["udp4"], 100, ErrAddress},
		{"no addresses", Encap{Kind: TunnelGRE}, s["udp4"], 100, ErrAddress},
		{"headroom", Encap{Kind: TunnelVXLAN, Src: v4, Dst: v4}, s["udp4"], 49, ErrHeadroom},
		{"headroom", Encap{Kind: TunnelVXLAN, Src: v6, Dst: v6}, s["udp4"], 69, ErrHeadroom},
		{"headroom", Encap{Kind: TunnelGRE, Src: v4, Dst: v4}, s["udp4"], 37, ErrHeadroom},
		{"headroom", Encap{Kind: TunnelNVGRE, Src: v4, Dst: v4}, s["udp4"], 41, ErrHeadroom},
		{"largest", Encap{Kind: TunnelVXLAN, Src: v4, Dst: v4}, make([]byte, 65535-36), 50, nil},
		{"too long", Encap{Kind: TunnelVXLAN, Src: v4, Dst: v4}, make([]byte, 65536-36), 50, ErrLength},
		{"largest", Encap{Kind: TunnelVXLAN, Src: v6, Dst: v6}, make([]byte, 65535-16), 70, nil},
		{"too long", Encap{Kind: TunnelVXLAN, Src: v6, Dst: v6}, make([]byte, 65536-16), 70, ErrLength},
		{"other protocol", Encap{Kind: TunnelGRE, Protocol: EtherTypeIPv6, Src: v4, Dst: v4}, s["udp4"], 100, ErrTunnel},
		{"damaged", Encap{Kind: TunnelGRE, Protocol: EtherTypeIPv4, Src: v4, Dst: v4}, s["udp4"][:40], 100, ErrMalformed},
	} {
		buf := append(make([]byte, c.room), c.frame...)
		_, err := c.e.Push(buf, c.room)
		if !errors.Is(err, c.want) || err != nil && !bytes.Equal(buf[c.room:], c.frame) {
			t.Errorf("%s: %v, want %v", c.what, err, c.want)
		}
	}
	e := Encap{Kind: TunnelGRE, Src: v4, Dst: v4}
	for _, off := range []int{-1, 101} {
		if _, err := e.Push(make([]byte, 100), off); !errors.Is(err, ErrHeadroom) {
			t.Errorf("off %d: %v", off, err)
		}
	}
	// A wrong checksum of GRE, and tunnels that are none.
	frame := bytes.Clone(s["gre all"])
	frame[len(frame)-1] ^= 1
	var l, inner Layers
	Parse(frame, &l)
	if _, why := Decap(frame, &l, &inner); why != TunnelChecksum {
		t.Errorf("damaged GRE: %v", why)
	}
	Parse(s["udp4"], &l)
	if _, why := Decap(s["udp4"], &l, &inner); why != NoTunnel {
		t.Errorf("no tunnel: %v", why)
	}
}

func TestVLAN(t *testing.T) {
	for name, frame := range seeds(t) {
		buf := append(dirty(9), frame...)
		tag := MakeTCI(77, 3, true)
		out, err := PushVLAN(buf, 9, 0, tag)
		if err != nil || len(out) != len(frame)+4 || &out[0] != &buf[5] || !bytes.Equal(buf[:5], dirty(5)) {
			t.Fatalf("%s: %v", name, err)
		}
		var before, after Layers
		Parse(frame, &before)
		Parse(out, &after)
		if got, ok := after.Outer(); !ok || got != tag || before.NumTags == 0 &&
			(after.EtherType != before.EtherType || after.L3 != before.L3+4 || after.End != before.End+4) {
			t.Errorf("%s: %+v, before %+v", name, after, before)
		}
		out, err = PushVLAN(buf, 5, EtherTypeQinQ, 5)
		if err != nil || Ethernet(out).Type() != EtherTypeQinQ || Ethernet(out).Src() != Ethernet(frame).Src() ||
			Ethernet(out).Dst() != Ethernet(frame).Dst() {
			t.Fatalf("%s: %v %x", name, err, out)
		}
		out, tpid, got, err := PopVLAN(out)
		if err != nil || tpid != EtherTypeQinQ || got != 5 {
			t.Fatalf("%s: %v %v %v", name, tpid, got, err)
		}
		out, tpid, got, err = PopVLAN(out)
		if err != nil || tpid != EtherTypeVLAN || got != tag || !bytes.Equal(out, frame) {
			t.Fatalf("%s: %v %v %v\n%x\n%x", name, tpid, got, err, out, frame)
		}
		if before.NumTags == 0 {
			if _, _, _, err := PopVLAN(frame); !errors.Is(err, ErrNoTag) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	frame := seeds(t)["udp4"]
	for _, c := range []struct {
		buf  []byte
		off  int
		tpid EtherType
		want error
	}{{frame, 3, 0, ErrHeadroom}, {frame, len(frame) + 1, 0, ErrHeadroom}, {frame[:17], 4, 0, ErrMalformed},
		{frame, 4, EtherTypeIPv4, ErrField}} {
		if _, err := PushVLAN(c.buf, c.off, c.tpid, 1); !errors.Is(err, c.want) {
			t.Errorf("%v, want %v", err, c.want)
		}
	}
	for _, b := range [][]byte{frame[:13], seeds(t)["vlan"][:17]} {
		if _, _, _, err := PopVLAN(b); !errors.Is(err, ErrMalformed) {
			t.Error(err)
		}
	}
}

// TestFlowHash: one flow, one hash; other flows, other hashes; fragments of a datagram stay
// together.
func TestFlowHash(t *testing.T) {
	var l Layers
	hash := func(frame []byte) uint32 {
		if why := Parse(frame, &l); why != OK {
			t.Fatal(why)
		}
		return FlowHash(frame, &l)
	}
	s := seeds(t)
	if hash(s["udp4"]) != hash(s["short length"]) || hash(s["udp4"]) == hash(s["tcp4"]) ||
		hash(s["udp6"]) == hash(s["tcp6"]) {
		t.Error("flows")
	}
	if hash(s["first"]) != hash(s["fragment"]) {
		t.Error("fragments of one datagram have two hashes")
	}
	f := UDPFrame{Src: netip.MustParseAddrPort("10.0.0.1:1000"), Dst: netip.MustParseAddrPort("10.0.0.2:2000")}
	for _, is6 := range []bool{false, true} {
		if is6 {
			f.Src, f.Dst = netip.MustParseAddrPort("[fd00::1]:1"), netip.MustParseAddrPort("[fd00::2]:2")
		}
		var buckets [64]int
		frame := make([]byte, f.HeaderLen())
		const flows = 64 * 200
		for i := range flows {
			f.Src = netip.AddrPortFrom(f.Src.Addr(), uint16(i))
			if _, err := f.Fill(frame, 0); err != nil {
				t.Fatal(err)
			}
			buckets[hash(frame)&63]++
		}
		for i, n := range buckets {
			if n < 120 || n > 290 { // 200 expected, a standard deviation of 14
				t.Errorf("bucket %d has %d of %d flows", i, n, flows)
			}
		}
	}
	// ARP and the like: by the Ethernet addresses.
	other := bytes.Clone(s["arp"])
	other[11]++
	if hash(other) == hash(s["arp"]) {
		t.Error("Ethernet addresses do not count")
	}
}
