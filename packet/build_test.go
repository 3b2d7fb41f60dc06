//go:build invariants || race

package packet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"pgregory.net/rapid"
)

func drawBytes(t *rapid.T, most int, name string) []byte {
	return rapid.SliceOfN(rapid.Byte(), 0, most).Draw(t, name)
}

// checker fails a test when a pair of values differs.
type checker struct {
	t interface {
		Helper()
		Fatalf(string, ...any)
	}
}

func (c checker) same(what string, got, want any) {
	c.t.Helper()
	if got != want {
		c.t.Fatalf("%s: %v, want %v", what, got, want)
	}
}

func init() {
	readTunnel = func(t *rapid.T, frame []byte, e *Encap, inner []byte) {
		t.Helper()
		p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.DecodeOptions{NoCopy: true})
		ls := p.Layers()
		c := checker{t}
		ttl := hopLimit(e.TTL)
		switch ip := ls[1].(type) {
		case *layers.IPv4:
			c.same("outer IPv4", [4]any{ip.TTL, ip.TOS, ip.Flags, int(ip.Length)},
				[4]any{ttl, e.TOS, layers.IPv4DontFragment, len(frame) - 14})
			_, sum := ip.VerifyChecksum()
			c.same("outer checksum", sum.Valid, true)
		case *layers.IPv6:
			c.same("outer IPv6", [3]any{ip.HopLimit, ip.TrafficClass, int(ip.Length)},
				[3]any{ttl, e.TOS, len(frame) - 54})
		}
		switch l := ls[2].(type) {
		case *layers.UDP:
			c.same("UDP", [2]int{int(l.DstPort), int(l.Length)}, [2]int{4789, 16 + len(inner)})
			vx := ls[3].(*layers.VXLAN)
			c.same("VXLAN", [3]any{vx.VNI, vx.ValidIDFlag, string(vx.Payload)}, [3]any{e.VNI, true, string(inner)})
		case *layers.GRE:
			key := e.Key
			if e.Kind == TunnelNVGRE {
				key = NVGREKey(e.VNI, e.FlowID)
			}
			c.same("GRE", [4]any{l.Protocol, l.KeyPresent, l.Key, string(l.Payload)},
				[4]any{layers.EthernetTypeTransparentEthernetBridging, e.HasKey || e.Kind == TunnelNVGRE, key,
					string(inner)})
		default:
			t.Fatalf("gopacket sees a %T", l)
		}
	}
}

// verifies is gopacket's opinion on all checksums of a frame.
func verifies(t interface {
	Helper()
	Fatalf(string, ...any)
}, p gopacket.Packet) {
	t.Helper()
	if err := p.ErrorLayer(); err != nil {
		t.Fatalf("gopacket: %v\n%s", err.Error(), p.Dump())
	}
	var network gopacket.NetworkLayer
	for _, l := range p.Layers() {
		if n, ok := l.(gopacket.NetworkLayer); ok {
			network = n
		}
		if u, ok := l.(interface {
			SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
		}); ok {
			u.SetNetworkLayerForChecksum(network)
		}
	}
	err, bad := p.VerifyChecksums()
	if err != nil || len(bad) != 0 {
		t.Fatalf("checksums: %v, %+v\n%s", err, bad, p.Dump())
	}
}

// TestUDPFrame: what UDPFrame builds, gopacket and Parse read, and a length has one meaning.
func TestUDPFrame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		is4 := rapid.Bool().Draw(t, "is4")
		f := UDPFrame{
			SrcMAC: drawMAC(t, "srcMAC"), DstMAC: drawMAC(t, "dstMAC"),
			Tagged: rapid.Bool().Draw(t, "tagged"), Tag: TCI(rapid.Uint16().Draw(t, "tag")),
			// Ports above 20000, because gopacket goes on to read DNS and other protocols that it
			// knows by their port.
			Src: netip.AddrPortFrom(drawAddr(t, is4, "src"), rapid.Uint16Min(20000).Draw(t, "srcPort")),
			Dst: netip.AddrPortFrom(drawAddr(t, is4, "dst"), 5000),
			TTL: rapid.Byte().Draw(t, "ttl"), TOS: rapid.Byte().Draw(t, "tos"),
			Checksum: rapid.SampledFrom([]ChecksumMode{ChecksumAuto, ChecksumFull}).Draw(t, "mode"),
		}
		payload := drawBytes(t, 70, "payload")
		n := f.HeaderLen()
		frame := append(dirty(n), payload...)
		got, err := f.Fill(frame, len(payload))
		if err != nil {
			t.Fatal(err)
		}
		c := checker{t}
		c.same("header length", got, n)
		want := 42
		if !is4 {
			want = 62
		}
		if f.Tagged {
			want += 4
		}
		c.same("HeaderLen", n, want)
		ttl := f.TTL
		if ttl == 0 {
			ttl = 64
		}
		p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.DecodeOptions{NoCopy: true})
		verifies(t, p)
		eth := p.LinkLayer().(*layers.Ethernet)
		c.same("MACs", MAC(eth.SrcMAC) == f.SrcMAC && MAC(eth.DstMAC) == f.DstMAC, true)
		if f.Tagged {
			d := p.Layer(layers.LayerTypeDot1Q).(*layers.Dot1Q)
			c.same("tag", MakeTCI(d.VLANIdentifier, d.Priority, d.DropEligible), f.Tag)
		}
		if is4 {
			ip := p.NetworkLayer().(*layers.IPv4)
			c.same("TTL", ip.TTL, ttl)
			c.same("TOS", ip.TOS, f.TOS)
			c.same("total length", int(ip.Length), 28+len(payload))
			c.same("DF", ip.Flags, layers.IPv4DontFragment)
			c.same("src", netip.AddrFrom4([4]byte(ip.SrcIP)), f.Src.Addr())
			c.same("dst", netip.AddrFrom4([4]byte(ip.DstIP)), f.Dst.Addr())
		} else {
			ip := p.NetworkLayer().(*layers.IPv6)
			c.same("hop limit", ip.HopLimit, ttl)
			c.same("traffic class", ip.TrafficClass, f.TOS)
			c.same("payload length", int(ip.Length), 8+len(payload))
			c.same("src", netip.AddrFrom16([16]byte(ip.SrcIP)), f.Src.Addr())
			c.same("dst", netip.AddrFrom16([16]byte(ip.DstIP)), f.Dst.Addr())
		}
		u := p.TransportLayer().(*layers.UDP)
		c.same("UDP length", int(u.Length), 8+len(payload))
		c.same("source port", uint16(u.SrcPort), f.Src.Port())
		c.same("payload", string(u.Payload), string(payload))

		var l Layers
		c.same("Parse", Parse(frame, &l), OK)
		c.same("payload at", int(l.Payload), n)
		c.same("end", int(l.End), len(frame))
		c.same("Src", l.Src(frame), f.Src.Addr())
		c.same("Dst", l.Dst(frame), f.Dst.Addr())
		c.same("UDP checksum", UDP(frame[l.L4:]).ChecksumOK(f.Src.Addr(), f.Dst.Addr()), true)
		if is4 {
			c.same("IPv4 checksum", IPv4(frame[l.L3:]).ChecksumOK(), true)
		}

		// The payload elsewhere: the same header but for the checksum.
		f.Checksum = ChecksumOffload
		header := dirty(n)
		if _, err := f.Fill(header, len(payload)); err != nil {
			t.Fatal(err)
		}
		c.same("header without payload", string(header[:n-2]), string(frame[:n-2]))
		copy(frame, header)
		sum := Sum(0).Add(frame[l.L4:]).Checksum() // the card's part
		UDP(frame[l.L4:]).SetChecksum(notZero(sum))
		c.same("offloaded", UDP(frame[l.L4:]).ChecksumOK(f.Src.Addr(), f.Dst.Addr()), true)
	})
}

func TestUDPFrameErrors(t *testing.T) {
	v4, v6 := netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("[fd00::1]:1")
	for _, c := range []struct {
		f       UDPFrame
		room, n int
		want    error
	}{
		{UDPFrame{Src: v4, Dst: v4}, 41, 0, ErrRoom},
		{UDPFrame{Src: v4, Dst: v4}, 42, 0, nil},
		{UDPFrame{Src: v4, Dst: v4}, 42, 1, ErrChecksum},
		{UDPFrame{Src: v4, Dst: v4, Checksum: ChecksumNone}, 42, 65507, nil},
		{UDPFrame{Src: v4, Dst: v4, Checksum: ChecksumNone}, 42, 65508, ErrLength},
		{UDPFrame{Src: v4, Dst: v4, Checksum: ChecksumNone}, 42, -1, ErrLength},
		{UDPFrame{Src: v6, Dst: v6, Checksum: ChecksumOffload}, 62, 65527, nil},
		{UDPFrame{Src: v6, Dst: v6, Checksum: ChecksumOffload}, 62, 65528, ErrLength},
		{UDPFrame{Src: v6, Dst: v6, Checksum: ChecksumNone}, 62, 0, ErrField},
		{UDPFrame{Src: v4, Dst: v6}, 100, 0, ErrAddress},
		{UDPFrame{Src: v6, Dst: v4}, 100, 0, ErrAddress},
		{UDPFrame{}, 100, 0, ErrAddress},
		{UDPFrame{Src: v4, Dst: v4, Checksum: 9}, 100, 0, ErrField},
	} {
		b := make([]byte, c.room)
		if _, err := c.f.Fill(b, c.n); !errors.Is(err, c.want) {
			t.Errorf("%+v in %d bytes, payload %d: %v, want %v", c.f, c.room, c.n, err, c.want)
		}
	}
}

// TestIPv4Header: builder, view, gopacket.
func TestIPv4Header(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := checker{t}
		h := IPv4Header{
			Src: drawAddr(t, true, "src"), Dst: drawAddr(t, true, "dst"), Proto: 253,
			TTL: rapid.ByteMin(1).Draw(t, "ttl"),
			TOS: rapid.Byte().Draw(t, "tos"), ID: rapid.Uint16().Draw(t, "id"),
			MayFragment:   rapid.Bool().Draw(t, "may"),
			MoreFragments: rapid.Bool().Draw(t, "more"), FragmentOffset: rapid.Uint16().Draw(t, "offset") &^ 7,
			Options: bytes.Repeat([]byte{1}, rapid.IntRange(0, 10).Draw(t, "options")*4),
		}
		payload := drawBytes(t, 30, "payload")
		b := append(dirty(h.Len()), payload...)
		n, err := h.Fill(b, len(payload))
		c.same("error", err, nil)
		c.same("length", n, h.Len())
		p := IPv4(append(b, 9, 9)) // padding
		c.same("valid", p.Valid() && p.ChecksumOK(), true)
		frag := h.MoreFragments || h.FragmentOffset != 0
		compare := func(p IPv4) {
			t.Helper()
			c.same("src", p.Src(), h.Src)
			c.same("dst", p.Dst(), h.Dst)
			c.same("proto", p.Proto(), h.Proto)
			c.same("ttl", p.TTL(), h.TTL)
			c.same("tos", p.TOS(), h.TOS)
			c.same("id", p.ID(), h.ID)
			c.same("df", p.DontFragment(), !h.MayFragment && !frag)
			c.same("mf", p.MoreFragments(), h.MoreFragments)
			c.same("offset", p.FragmentOffset(), h.FragmentOffset)
			c.same("options", string(p.Options()), string(h.Options))
			c.same("payload", string(p.Payload()), string(payload))
			c.same("total", p.TotalLen(), len(b))
			c.same("checksum", p.ChecksumOK(), true)
			var g layers.IPv4
			c.same("gopacket", g.DecodeFromBytes(p, gopacket.NilDecodeFeedback), nil)
			c.same("gopacket src", netip.AddrFrom4([4]byte(g.SrcIP)), h.Src)
			c.same("gopacket dst", netip.AddrFrom4([4]byte(g.DstIP)), h.Dst)
			c.same("gopacket numbers", [6]int{int(g.TTL), int(g.TOS), int(g.Id), int(g.FragOffset) * 8, int(g.Protocol),
				int(g.Length)},
				[6]int{int(h.TTL), int(h.TOS), int(h.ID), int(h.FragmentOffset), int(h.Proto), len(b)})
			c.same("gopacket payload", string(g.Payload), string(payload))
		}
		compare(p)
		// Each setter changes its field and keeps the checksum right.
		h.Src, h.Dst = drawAddr(t, true, "src2"), drawAddr(t, true, "dst2")
		h.TTL, h.TOS, h.ID, h.Proto = rapid.Byte().Draw(t, "ttl2"), rapid.Byte().Draw(t, "tos2"),
			rapid.Uint16().Draw(t, "id2"), 254
		p.SetSrc(h.Src)
		p.SetDst(h.Dst)
		p.SetTTL(h.TTL)
		p.SetTOS(h.TOS)
		p.SetID(h.ID)
		p.SetProto(h.Proto)
		p.SetFragment(!h.MayFragment && !frag, h.MoreFragments, h.FragmentOffset)
		p.SetTotalLen(uint16(len(b)))
		compare(p)
		p.SetTotalLen(uint16(len(p)))
		c.same("longer", p.ChecksumOK() && p.TotalLen() == len(p), true)
		p.FillChecksum()
		c.same("filled", p.ChecksumOK(), true)
	})
	h := IPv4Header{Src: netip.MustParseAddr("1.2.3.4"), Dst: netip.MustParseAddr("1.2.3.4")}
	b := make([]byte, 100)
	for _, c := range []struct {
		change func(h *IPv4Header)
		room   int
		n      int
		want   error
	}{
		{func(h *IPv4Header) {}, 20, 65515, nil},
		{func(h *IPv4Header) {}, 20, 65516, ErrLength},
		{func(h *IPv4Header) {}, 20, -1, ErrLength},
		{func(h *IPv4Header) {}, 19, 0, ErrRoom},
		{func(h *IPv4Header) { h.Options = make([]byte, 3) }, 100, 0, ErrOptions},
		{func(h *IPv4Header) { h.Options = make([]byte, 44) }, 100, 0, ErrOptions},
		{func(h *IPv4Header) { h.FragmentOffset = 7 }, 20, 0, ErrField},
		{func(h *IPv4Header) { h.Src = netip.Addr{} }, 20, 0, ErrAddress},
		{func(h *IPv4Header) { h.Dst = netip.MustParseAddr("::ffff:1.2.3.4") }, 20, 0, ErrAddress},
	} {
		h := h
		c.change(&h)
		if _, err := h.Fill(b[:c.room], c.n); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v, want %v", h, err, c.want)
		}
	}
}

// TestIPv6Header: builder, view, gopacket, and extension headers.
func TestIPv6Header(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := checker{t}
		h := IPv6Header{Src: drawAddr(t, false, "src"), Dst: drawAddr(t, false, "dst"), NextHeader: ProtoHopByHop,
			HopLimit:     rapid.ByteMin(1).Draw(t, "hops"),
			TrafficClass: rapid.Byte().Draw(t, "class"), FlowLabel: rapid.Uint32().Draw(t, "label") & 0xfffff}
		frag := FragmentHeader{NextHeader: ProtoDestOpts, Offset: rapid.Uint16().Draw(t, "offset") &^ 7,
			MoreFragments: rapid.Bool().Draw(t, "more"), ID: rapid.Uint32().Draw(t, "id")}
		// An option of type 0x1e, which RFC 4727 leaves to experiments.
		value := drawBytes(t, 40, "option")
		option := append([]byte{0x1e, byte(len(value))}, value...)
		ext := dirty(300)
		n, err := FillOptions(ext, ProtoFragment, option)
		c.same("options", err, nil)
		first := n
		n, err = frag.Fill(ext[first:])
		c.same("fragment", err, nil)
		c.same("fragment length", n, frag.Len())
		ext = ext[:first+n]
		payload := drawBytes(t, 30, "payload")
		b := append(dirty(IPv6Len), append(ext, payload...)...)
		n, err = h.Fill(b, len(ext)+len(payload))
		c.same("error", err, nil)
		c.same("length", n, h.Len())
		p := IPv6(append(b, 1))
		c.same("valid", p.Valid(), true)
		compare := func() {
			t.Helper()
			c.same("src", p.Src(), h.Src)
			c.same("dst", p.Dst(), h.Dst)
			c.same("next", p.NextHeader(), h.NextHeader)
			c.same("hops", p.HopLimit(), h.HopLimit)
			c.same("class", p.TrafficClass(), h.TrafficClass)
			c.same("label", p.FlowLabel(), h.FlowLabel)
			c.same("payload length", p.PayloadLen(), len(b)-IPv6Len)
			var g layers.IPv6
			c.same("gopacket", g.DecodeFromBytes(p, gopacket.NilDecodeFeedback), nil)
			c.same("gopacket numbers", [5]int{int(g.Version), int(g.TrafficClass), int(g.FlowLabel), int(g.HopLimit),
				int(g.Length)},
				[5]int{6, int(h.TrafficClass), int(h.FlowLabel), int(h.HopLimit), len(b) - IPv6Len})
			c.same("gopacket src", netip.AddrFrom16([16]byte(g.SrcIP)), h.Src)
			c.same("gopacket dst", netip.AddrFrom16([16]byte(g.DstIP)), h.Dst)
			c.same("gopacket options", string(g.HopByHop.Options[0].OptionData), string(value))
		}
		compare()
		rest, proto := p.Payload(), p.NextHeader()
		hop, rest, proto, why := NextExtension(rest, proto)
		c.same("hop", [2]any{why, proto}, [2]any{OK, ProtoFragment})
		c.same("hop", [2]any{hop.NextHeader(), len(hop)}, [2]any{ProtoFragment, first})
		f, rest, proto, why := NextExtension(rest, proto)
		c.same("fragment", [2]any{why, proto}, [2]any{OK, ProtoDestOpts})
		c.same("fragment header", FragmentHeader{f.NextHeader(), f.FragmentOffset(), f.MoreFragments(), f.FragmentID()},
			frag)
		c.same("rest", string(rest), string(payload))
		h.Src, h.Dst = drawAddr(t, false, "src2"), drawAddr(t, false, "dst2")
		h.TrafficClass, h.FlowLabel, h.HopLimit = rapid.Byte().Draw(t, "class2"),
			rapid.Uint32().Draw(t, "label2")&0xfffff, rapid.Byte().Draw(t, "hops2")
		p.SetSrc(h.Src)
		p.SetDst(h.Dst)
		p.SetTrafficClass(h.TrafficClass)
		p.SetFlowLabel(h.FlowLabel)
		p.SetHopLimit(h.HopLimit)
		p.SetPayloadLen(uint16(len(b) - IPv6Len))
		compare()
		p.SetNextHeader(99)
		c.same("next", p.NextHeader(), Proto(99))
	})
	a := netip.MustParseAddr("fd00::1")
	b := make([]byte, 40)
	for _, c := range []struct {
		h    IPv6Header
		room int
		n    int
		want error
	}{
		{IPv6Header{Src: a, Dst: a}, 40, 65535, nil},
		{IPv6Header{Src: a, Dst: a}, 40, 65536, ErrLength},
		{IPv6Header{Src: a, Dst: a}, 40, -1, ErrLength},
		{IPv6Header{Src: a, Dst: a}, 39, 0, ErrRoom},
		{IPv6Header{Src: a}, 40, 0, ErrAddress},
		{IPv6Header{Src: a, Dst: a, FlowLabel: 1 << 20}, 40, 0, ErrField},
	} {
		if _, err := c.h.Fill(b[:c.room], c.n); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v, want %v", c.h, err, c.want)
		}
	}
	if _, err := FillOptions(make([]byte, 3000), 0, make([]byte, 2047)); !errors.Is(err, ErrLength) {
		t.Error(err)
	}
	if _, err := FillOptions(make([]byte, 7), 0, nil); !errors.Is(err, ErrRoom) {
		t.Error(err)
	}
	if _, err := (&FragmentHeader{}).Fill(make([]byte, 7)); !errors.Is(err, ErrRoom) {
		t.Error(err)
	}
	if _, err := (&FragmentHeader{Offset: 3}).Fill(make([]byte, 8)); !errors.Is(err, ErrField) {
		t.Error(err)
	}
}

// TestTCPHeader: builder, view, gopacket.
func TestTCPHeader(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := checker{t}
		is4 := rapid.Bool().Draw(t, "is4")
		src, dst := drawAddr(t, is4, "src"), drawAddr(t, is4, "dst")
		h := TCPHeader{SrcPort: rapid.Uint16().Draw(t, "srcPort"), DstPort: 6000, Seq: rapid.Uint32().Draw(t, "seq"),
			Ack:   rapid.Uint32().Draw(t, "ack"),
			Flags: TCPFlags(rapid.Uint16Max(0x1ff).Draw(t, "flags")), Window: rapid.Uint16().Draw(t, "window"),
			Urgent:  rapid.Uint16().Draw(t, "urgent"),
			Options: bytes.Repeat([]byte{1}, rapid.IntRange(0, 10).Draw(t, "options")*4)}
		payload := drawBytes(t, 30, "payload")
		b := TCP(append(dirty(h.Len()), payload...))
		n, err := h.Fill(b)
		c.same("error", err, nil)
		c.same("length", n, h.Len())
		b.FillChecksum(src, dst)
		c.same("valid", b.Valid() && b.ChecksumOK(src, dst), true)
		compare := func() {
			t.Helper()
			got := TCPHeader{b.SrcPort(), b.DstPort(), b.Seq(), b.Ack(), b.Flags(), b.Window(), b.Urgent(), nil}
			want := h
			want.Options = nil
			if got.SrcPort != want.SrcPort || got.DstPort != want.DstPort || got.Seq != want.Seq ||
				got.Ack != want.Ack || got.Flags != want.Flags ||
				got.Window != want.Window || got.Urgent != want.Urgent {
				t.Fatalf("%+v, want %+v", got, want)
			}
			c.same("options", string(b.Options()), string(h.Options))
			c.same("payload", string(b.Payload()), string(payload))
			var g layers.TCP
			c.same("gopacket", g.DecodeFromBytes(b, gopacket.NilDecodeFeedback), nil)
			var flags TCPFlags
			for i, set := range []bool{g.FIN, g.SYN, g.RST, g.PSH, g.ACK, g.URG, g.ECE, g.CWR, g.NS} {
				if set {
					flags |= 1 << i
				}
			}
			c.same("gopacket numbers", [8]uint32{uint32(g.SrcPort), uint32(g.DstPort), g.Seq, g.Ack, uint32(flags),
				uint32(g.Window), uint32(g.Urgent), uint32(g.Checksum)},
				[8]uint32{uint32(h.SrcPort), uint32(h.DstPort), h.Seq, h.Ack, uint32(h.Flags), uint32(h.Window),
					uint32(h.Urgent), uint32(b.Checksum())})
			var network gopacket.NetworkLayer = &layers.IPv4{Version: 4, SrcIP: src.AsSlice(), DstIP: dst.AsSlice(),
				Protocol: layers.IPProtocolTCP}
			if !is4 {
				network = &layers.IPv6{Version: 6, SrcIP: src.AsSlice(), DstIP: dst.AsSlice(),
					NextHeader: layers.IPProtocolTCP}
			}
			g.SetNetworkLayerForChecksum(network)
			err, sum := g.VerifyChecksum()
			if err != nil || !sum.Valid {
				t.Fatalf("gopacket: %+v %v", sum, err)
			}
		}
		compare()
		h.SrcPort, h.Seq, h.Ack, h.Flags = rapid.Uint16().Draw(t, "srcPort2"), rapid.Uint32().Draw(t, "seq2"),
			rapid.Uint32().Draw(t, "ack2"), TCPFlags(rapid.Uint16Max(0x1ff).Draw(t, "flags2"))
		h.DstPort, h.Window, h.Urgent = 6001, rapid.Uint16().Draw(t, "window2"), 77
		b.SetSrcPort(h.SrcPort)
		b.SetDstPort(h.DstPort)
		b.SetSeq(h.Seq)
		b.SetAck(h.Ack)
		b.SetFlags(h.Flags)
		b.SetWindow(h.Window)
		b.SetUrgent(h.Urgent)
		b.FillChecksum(src, dst)
		compare()
	})
	for _, c := range []struct {
		h    TCPHeader
		room int
		want error
	}{
		{TCPHeader{}, 19, ErrRoom},
		{TCPHeader{Options: make([]byte, 4)}, 23, ErrRoom},
		{TCPHeader{Options: make([]byte, 2)}, 100, ErrOptions},
		{TCPHeader{Options: make([]byte, 44)}, 100, ErrOptions},
		{TCPHeader{Flags: 0x200}, 100, ErrField},
	} {
		if _, err := c.h.Fill(make([]byte, c.room)); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v, want %v", c.h, err, c.want)
		}
	}
	if TCP(binary.BigEndian.AppendUint64(make([]byte, 11), 0)).Valid() {
		t.Error("19 bytes are not TCP")
	}
}
