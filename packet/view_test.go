//go:build invariants || race

package packet

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"pgregory.net/rapid"
)

func TestEthernetHeader(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := checker{t}
		h := EthernetHeader{drawMAC(t, "dst"), drawMAC(t, "src"), EtherTypeVLAN}
		tag := VLANHeader{TCI(rapid.Uint16().Draw(t, "tci")), EtherTypeECPRI}
		b := append(dirty(18), 1, 2, 3)
		n, err := h.Fill(b)
		c.same("ethernet", [2]any{n, err}, [2]any{h.Len(), nil})
		n, err = tag.Fill(b[n:])
		c.same("tag", [2]any{n, err}, [2]any{tag.Len(), nil})
		e, v := Ethernet(b), VLAN(b[14:])
		compare := func() {
			t.Helper()
			c.same("valid", e.Valid() && v.Valid(), true)
			c.same("ethernet", EthernetHeader{e.Dst(), e.Src(), e.Type()}, h)
			c.same("tag", VLANHeader{v.TCI(), v.Type()}, tag)
			c.same("payload", len(e.Payload()) == 7 && string(v.Payload()) == "\x01\x02\x03", true)
			var g layers.Ethernet
			var d layers.Dot1Q
			c.same("gopacket", [2]any{g.DecodeFromBytes(b, gopacket.NilDecodeFeedback),
				d.DecodeFromBytes(g.Payload, gopacket.NilDecodeFeedback)}, [2]any{nil, nil})
			c.same("gopacket", EthernetHeader{MAC(g.DstMAC), MAC(g.SrcMAC), EtherType(g.EthernetType)}, h)
			c.same("gopacket", [4]any{d.VLANIdentifier, d.Priority, d.DropEligible, EtherType(d.Type)},
				[4]any{tag.TCI.ID(), tag.TCI.Priority(), tag.TCI.DropEligible(), tag.Type})
			c.same("TCI", MakeTCI(tag.TCI.ID(), tag.TCI.Priority(), tag.TCI.DropEligible()), tag.TCI)
		}
		compare()
		h.Dst, h.Src, h.Type, tag.TCI, tag.Type = drawMAC(t, "dst2"), drawMAC(t, "src2"), EtherTypeQinQ, ^tag.TCI,
			EtherTypePTP
		e.SetDst(h.Dst)
		e.SetSrc(h.Src)
		e.SetType(h.Type)
		v.SetTCI(tag.TCI)
		v.SetType(tag.Type)
		compare()
	})
}

func TestARP(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := checker{t}
		h := ARPHeader{ARPReply, drawMAC(t, "smac"), drawAddr(t, true, "sip"), drawMAC(t, "tmac"),
			drawAddr(t, true, "tip")}
		a := ARP(append(dirty(ARPLen), 0, 0))
		n, err := h.Fill(a)
		c.same("fill", [2]any{n, err}, [2]any{h.Len(), nil})
		c.same("valid", a.Valid(), true)
		compare := func() {
			t.Helper()
			c.same("fields", ARPHeader{a.Op(), a.SenderMAC(), a.SenderIP(), a.TargetMAC(), a.TargetIP()}, h)
			var g layers.ARP
			c.same("gopacket", g.DecodeFromBytes(a, gopacket.NilDecodeFeedback), nil)
			c.same("gopacket", ARPHeader{ARPOp(g.Operation), MAC(g.SourceHwAddress),
				netip.AddrFrom4([4]byte(g.SourceProtAddress)), MAC(g.DstHwAddress),
				netip.AddrFrom4([4]byte(g.DstProtAddress))}, h)
			c.same("gopacket kinds", [4]int{int(g.AddrType), int(g.Protocol), int(g.HwAddressSize),
				int(g.ProtAddressSize)}, [4]int{1, 0x0800, 6, 4})
		}
		compare()
		mac := drawMAC(t, "mac")
		h = ARPHeader{ARPReply, mac, h.TargetIP, h.SenderMAC, h.SenderIP}
		a.SetOp(ARPRequest)
		a.Answer(mac)
		compare()
	})
	a4, a6 := netip.MustParseAddr("1.2.3.4"), netip.MustParseAddr("fd00::1")
	b := make([]byte, ARPLen)
	h := ARPHeader{SenderIP: a4, TargetIP: a4}
	if _, err := h.Fill(b); err != nil || ARP(b).Op() != ARPRequest {
		t.Errorf("a request by default: %v", err)
	}
	for i := range 6 {
		broken := ARP(bytes.Clone(b))
		broken[i]++
		if broken.Valid() {
			t.Errorf("valid with byte %d wrong", i)
		}
	}
	if _, err := h.Fill(b[:27]); !errors.Is(err, ErrRoom) || ARP(b[:27]).Valid() {
		t.Error(err)
	}
	h.TargetIP = a6
	if _, err := h.Fill(b); !errors.Is(err, ErrAddress) {
		t.Error(err)
	}
}

func TestICMP(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := checker{t}
		id, seq := rapid.Uint16().Draw(t, "id"), rapid.Uint16().Draw(t, "seq")
		payload := drawBytes(t, 33, "payload")
		h := ICMPHeader{ICMPEchoRequest, 0, EchoRest(id, seq)}
		m := ICMP(append(dirty(8), payload...))
		n, err := h.Fill(m)
		c.same("fill", [2]any{n, err}, [2]any{h.Len(), nil})
		m.FillChecksum()
		c.same("fields", [6]any{m.Valid(), m.ChecksumOK(), m.Type(), m.Code(), m.ID(), m.Seq()},
			[6]any{true, true, ICMPEchoRequest, uint8(0), id, seq})
		c.same("rest", m.Rest(), h.Rest)
		c.same("payload", string(m.Payload()), string(payload))
		var g layers.ICMPv4
		c.same("gopacket", g.DecodeFromBytes(m, gopacket.NilDecodeFeedback), nil)
		_, sum := g.VerifyChecksum()
		c.same("gopacket", [5]any{g.TypeCode.Type(), g.TypeCode.Code(), g.Id, g.Seq, sum.Valid},
			[5]any{uint8(8), uint8(0), id, seq, true})
		m.SetType(ICMPEchoReply)
		m.SetCode(3)
		m.SetID(seq)
		m.SetSeq(id)
		c.same("set", [4]any{m.Type(), m.Code(), m.ID(), m.Seq()}, [4]any{ICMPEchoReply, uint8(3), seq, id})
		m.SetRest(h.Rest)
		c.same("set", [2]any{m.ID(), m.Seq()}, [2]any{id, seq})

		src, dst := drawAddr(t, false, "src"), drawAddr(t, false, "dst")
		h6 := ICMPv6Header{ICMPv6EchoRequest, 0, EchoRest(id, seq)}
		m6 := ICMPv6(append(dirty(8), payload...))
		n, err = h6.Fill(m6)
		c.same("fill", [2]any{n, err}, [2]any{h6.Len(), nil})
		m6.FillChecksum(src, dst)
		c.same("fields", [6]any{m6.Valid(), m6.ChecksumOK(src, dst), m6.Type(), m6.Code(), m6.ID(), m6.Seq()},
			[6]any{true, true, ICMPv6EchoRequest, uint8(0), id, seq})
		c.same("payload", string(m6.Payload()[4:]), string(payload))
		var g6 layers.ICMPv6
		c.same("gopacket", g6.DecodeFromBytes(m6, gopacket.NilDecodeFeedback), nil)
		g6.SetNetworkLayerForChecksum(&layers.IPv6{Version: 6, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()})
		_, sum = g6.VerifyChecksum()
		c.same("gopacket", [3]any{g6.TypeCode.Type(), g6.TypeCode.Code(), sum.Valid},
			[3]any{uint8(128), uint8(0), true})
		m6.SetType(ICMPv6PacketTooBig)
		m6.SetCode(1)
		m6.SetRest(1280)
		c.same("set", [3]any{m6.Type(), m6.Code(), m6.Rest()}, [3]any{ICMPv6PacketTooBig, uint8(1), uint32(1280)})
		c.same("changed", m6.ChecksumOK(src, dst), false)
	})
	if short := ICMPv6(make([]byte, 4)); !short.Valid() || short.Rest() != 0 || short.ID() != 0 || ICMP(short).Valid() {
		t.Error("a message of 4 bytes")
	}
}

func TestNeighbor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := checker{t}
		h := NeighborHeader{Advertise: rapid.Bool().Draw(t, "advertise"), Src: netip.MustParseAddr("fe80::1"),
			Dst:    drawAddr(t, false, "dst"),
			Target: netip.MustParseAddr("fd00::5"), LinkAddr: drawMAC(t, "mac"),
			Router: rapid.Bool().Draw(t, "router"), Solicited: rapid.Bool().Draw(t, "solicited"),
			Override: rapid.Bool().Draw(t, "override")}
		b := dirty(h.Len())
		n, err := h.Fill(b)
		c.same("fill", [2]any{n, err}, [2]any{NeighborLen, nil})
		m := Neighbor(b)
		c.same("valid", m.Valid() && ICMPv6(m).ChecksumOK(h.Src, h.Dst), true)
		mac, ok := m.LinkAddr()
		c.same("fields", [4]any{m.Solicitation(), m.Target(), mac, ok},
			[4]any{!h.Advertise, h.Target, h.LinkAddr, true})
		c.same("flags", [3]bool{m.Router(), m.Solicited(), m.Override()},
			[3]bool{h.Advertise && h.Router, h.Advertise && h.Solicited, h.Advertise && h.Override})
		// gopacket reads it in its packet.
		pkt := append(dirty(IPv6Len), b...)
		ip := IPv6Header{Src: h.Src, Dst: h.Dst, NextHeader: ProtoICMPv6, HopLimit: 255}
		ip.Fill(pkt, len(b))
		p := gopacket.NewPacket(pkt, layers.LayerTypeIPv6, gopacket.NoCopy)
		verifies(t, p)
		var opts layers.ICMPv6Options
		if h.Advertise {
			a := p.Layer(layers.LayerTypeICMPv6NeighborAdvertisement).(*layers.ICMPv6NeighborAdvertisement)
			c.same("gopacket", [4]any{a.Router(), a.Solicited(), a.Override(),
				netip.AddrFrom16([16]byte(a.TargetAddress))}, [4]any{h.Router, h.Solicited, h.Override, h.Target})
			opts = a.Options
		} else {
			s := p.Layer(layers.LayerTypeICMPv6NeighborSolicitation).(*layers.ICMPv6NeighborSolicitation)
			c.same("gopacket", netip.AddrFrom16([16]byte(s.TargetAddress)), h.Target)
			opts = s.Options
		}
		kind := layers.ICMPv6OptSourceAddress
		if h.Advertise {
			kind = layers.ICMPv6OptTargetAddress
		}
		c.same("gopacket option", [3]any{len(opts), opts[0].Type, MAC(opts[0].Data)}, [3]any{1, kind, h.LinkAddr})
	})
	h := NeighborHeader{Src: netip.MustParseAddr("fe80::1"), Dst: netip.MustParseAddr("ff02::1"),
		Target: netip.MustParseAddr("fe80::2")}
	b := make([]byte, NeighborLen)
	if _, err := h.Fill(b); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what string
		at   int
		v    byte
		n    int
	}{{"type", 0, 134, 32}, {"code", 1, 1, 32}, {"multicast target", 8, 0xff, 32}, {"option of no length", 25, 0, 32},
		{"option too long", 25, 2, 32}, {"cut option", 0, 135, 31},
		{"cut", 0, 135, 23}} {
		m := bytes.Clone(b)
		m[c.at] = c.v
		if Neighbor(m[:c.n]).Valid() {
			t.Errorf("%s: valid", c.what)
		}
	}
	if m := Neighbor(b[:24]); !m.Valid() {
		t.Error("a message without options is invalid")
	} else if _, ok := m.LinkAddr(); ok {
		t.Error("a link address from nowhere")
	}
	for _, src := range []string{"::", "1.2.3.4"} {
		h.Src = netip.MustParseAddr(src)
		if _, err := h.Fill(b); !errors.Is(err, ErrAddress) {
			t.Error(src, err)
		}
	}
	for _, c := range []struct{ ip, group, mac string }{
		{"fd00::12:3456", "ff02::1:ff12:3456", "33:33:ff:12:34:56"},
		{"1.2.3.4", "", ""},
		{"", "239.129.2.3", "01:00:5e:01:02:03"},
		{"", "255.255.255.255", "ff:ff:ff:ff:ff:ff"},
	} {
		var group netip.Addr
		if c.group != "" {
			group = netip.MustParseAddr(c.group)
		}
		if c.ip != "" {
			if got := SolicitedNode(netip.MustParseAddr(c.ip)); got != group {
				t.Errorf("SolicitedNode(%s) = %s, want %s", c.ip, got, group)
			}
		}
		if mac, ok := MulticastMAC(group); ok != (c.mac != "") || ok && mac.String() != c.mac {
			t.Errorf("MulticastMAC(%s) = %s, %v, want %s", group, mac, ok, c.mac)
		}
	}
	for _, a := range []string{"10.0.0.1", "fd00::1", "::ffff:239.1.1.1"} {
		if mac, ok := MulticastMAC(netip.MustParseAddr(a)); ok {
			t.Errorf("MulticastMAC(%s) = %s", a, mac)
		}
	}
}

// TestECPRI: the layout of eCPRI 2.0, by hand (gopacket does not know it).
func TestECPRI(t *testing.T) {
	for _, c := range []struct {
		h      ECPRIHeader
		n      int
		header string
	}{
		{ECPRIHeader{Type: ECPRIData, ID: 0x1234, Seq: 0x5678}, 8, "1000000c12345678"},
		{ECPRIHeader{Type: ECPRIBits, ID: 1, Seq: 2, Concatenated: true}, 8, "1101000c00010002"},
		{ECPRIHeader{Type: ECPRIControl, ID: 0xffff, Seq: 0}, 0, "10020004ffff0000"},
		{ECPRIHeader{Type: ECPRIGeneric, ID: 0x12345678, Seq: 0x9abcdef0}, 4, "1003000c123456789abcdef0"},
		{ECPRIHeader{Type: ECPRIDelay}, 20, "10050014"},
		{ECPRIHeader{Type: 64}, 1, "10400001"},
	} {
		want := unhex(t, c.header)
		b := append(dirty(len(want)), make([]byte, c.n+8)...)
		n, err := c.h.Fill(b, c.n)
		if err != nil || n != c.h.Len() || !bytes.Equal(b[:n], want) {
			t.Errorf("%+v: %x, %v; want %x", c.h, b[:n], err, want)
			continue
		}
		e := ECPRI(b)
		if !e.Valid() || e.Revision() != 1 || e.Type() != c.h.Type || e.Concatenated() != c.h.Concatenated ||
			len(e.Payload()) != n-ECPRILen+c.n {
			t.Errorf("%+v: read as %x", c.h, b)
		}
		id, hasID := e.ID()
		seq, hasSeq := e.Seq()
		_, hasPC := e.PCID()
		rtc, hasRTC := e.RTCID()
		has := c.h.Type <= ECPRIGeneric
		if hasID != has || hasSeq != has || has && (id != c.h.ID || seq != c.h.Seq) ||
			hasPC != (has && c.h.Type != ECPRIControl) || hasRTC != (c.h.Type == ECPRIControl) ||
			hasRTC && uint32(rtc) != c.h.ID {
			t.Errorf("%+v: id %d %v, seq %d %v, %v %v", c.h, id, hasID, seq, hasSeq, hasPC, hasRTC)
		}
		if e.SetID(7) != has || e.SetSeq(8) != has {
			t.Errorf("%+v: setters", c.h)
		}
		if id, _ := e.ID(); has && id != 7 {
			t.Errorf("%+v: id %d", c.h, id)
		}
		if seq, _ := e.Seq(); has && seq != 8 {
			t.Errorf("%+v: seq %d", c.h, seq)
		}
		next := e.Next()
		if (next != nil) != c.h.Concatenated || next != nil && len(b)-len(next) != (n+c.n+3)&^3 {
			t.Errorf("%+v: next at %d", c.h, len(b)-len(next))
		}
		for cut := range n {
			if ECPRI(b[:cut]).Valid() {
				t.Errorf("%+v: valid with %d bytes", c.h, cut)
			}
		}
		e.SetPayloadLen(uint16(len(b)))
		if e.Valid() {
			t.Errorf("%+v: valid with a payload behind the end", c.h)
		}
		e.SetPayloadLen(3)
		if e.Valid() == has {
			t.Errorf("%+v: a payload of 3 bytes: %v", c.h, e.Valid())
		}
		e.SetType(ECPRIEvent)
		e.SetConcatenated(false)
		if !e.Valid() || e.Type() != ECPRIEvent || e.Next() != nil {
			t.Errorf("%+v: setters", c.h)
		}
		b[0] = 0x20
		if e.Valid() {
			t.Error("valid with revision 2")
		}
	}
	for _, c := range []struct {
		h       ECPRIHeader
		room, n int
		want    error
	}{
		{ECPRIHeader{}, 7, 0, ErrRoom},
		{ECPRIHeader{}, 8, 65532, ErrLength},
		{ECPRIHeader{}, 8, 65531, nil},
		{ECPRIHeader{}, 8, -1, ErrLength},
		{ECPRIHeader{ID: 1 << 16}, 8, 0, ErrField},
		{ECPRIHeader{Seq: 1 << 16}, 8, 0, ErrField},
	} {
		if _, err := c.h.Fill(make([]byte, c.room), c.n); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v, want %v", c.h, err, c.want)
		}
	}
	// Over Ethernet and over UDP the message is what Layers calls payload.
	var l Layers
	frame := seeds(t)["ecpri"]
	if why := Parse(frame, &l); why != OK || l.EtherType != EtherTypeECPRI || !ECPRI(frame[l.Payload:l.End]).Valid() {
		t.Errorf("%v %+v", why, l)
	}
}

func TestVXLANAndGRE(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := checker{t}
		vh := VXLANHeader{VNI: rapid.Uint32Max(1<<24-1).Draw(t, "vni")}
		payload := drawBytes(t, 30, "payload")
		v := VXLAN(append(dirty(8), payload...))
		n, err := vh.Fill(v)
		c.same("fill", [2]any{n, err}, [2]any{vh.Len(), nil})
		var gv layers.VXLAN
		c.same("gopacket", gv.DecodeFromBytes(v, gopacket.NilDecodeFeedback), nil)
		c.same("gopacket", [4]any{gv.VNI, gv.ValidIDFlag, gv.GBPExtension, gv.GBPGroupPolicyID},
			[4]any{vh.VNI, true, false, uint16(0)})
		c.same("view", [4]any{v.Valid(), v.VNI(), v.Flags(), string(v.Payload())},
			[4]any{true, vh.VNI, uint8(8), string(payload)})
		v.SetVNI(vh.VNI ^ 0xffffff)
		c.same("set", v.VNI(), vh.VNI^0xffffff)
		v.SetFlags(0)
		c.same("invalid", v.Valid(), false)

		h := GREHeader{Protocol: EtherType(rapid.Uint16().Draw(t, "proto")), HasChecksum: rapid.Bool().Draw(t, "c"),
			HasKey:      rapid.Bool().Draw(t, "k"),
			HasSequence: rapid.Bool().Draw(t, "s")}
		if h.HasKey {
			h.Key = rapid.Uint32().Draw(t, "key")
		}
		if h.HasSequence {
			h.Sequence = rapid.Uint32().Draw(t, "sequence")
		}
		g := GRE(append(dirty(h.Len()), payload...))
		n, err = h.Fill(g)
		c.same("fill", [2]any{n, err}, [2]any{h.Len(), nil})
		g.FillChecksum()
		compare := func() {
			t.Helper()
			key, hasKey := g.Key()
			seq, hasSeq := g.Sequence()
			sum, hasSum := g.Checksum()
			c.same("view", GREHeader{g.Protocol(), g.HasChecksum(), g.HasKey(), key, g.HasSequence(), seq}, h)
			c.same("has", [3]bool{hasSum, hasKey, hasSeq}, [3]bool{h.HasChecksum, h.HasKey, h.HasSequence})
			c.same("valid", [4]any{g.Valid(), g.ChecksumOK(), g.HeaderLen(), string(g.Payload())},
				[4]any{true, true, h.Len(), string(payload)})
			c.same("nvgre", [2]uint32{g.VSID(), uint32(g.FlowID())}, [2]uint32{h.Key >> 8, h.Key & 255})
			c.same("NVGREKey", NVGREKey(g.VSID(), g.FlowID()), h.Key)
			var gg layers.GRE
			c.same("gopacket", gg.DecodeFromBytes(g, gopacket.NilDecodeFeedback), nil)
			c.same("gopacket", GREHeader{EtherType(gg.Protocol), gg.ChecksumPresent, gg.KeyPresent, gg.Key,
				gg.SeqPresent, gg.Seq}, h)
			c.same("gopacket", [2]any{gg.Checksum, string(gg.Payload)}, [2]any{sum, string(payload)})
		}
		compare()
		if h.HasChecksum {
			g[len(g)-1] ^= 0x10
			c.same("damage", g.ChecksumOK(), false)
			g[len(g)-1] ^= 0x10
		}
		h.Protocol, h.Key, h.Sequence = EtherTypeIPv6, 0, 0
		g.SetProtocol(EtherTypeIPv6)
		c.same("set key", g.SetKey(0), h.HasKey)
		c.same("set sequence", g.SetSequence(0), h.HasSequence)
		g.FillChecksum()
		compare()
		// The serializer's bytes are ours.
		buf := gopacket.NewSerializeBuffer()
		err = gopacket.SerializeLayers(buf, gopacket.SerializeOptions{ComputeChecksums: true},
			&layers.GRE{Protocol: layers.EthernetTypeIPv6, ChecksumPresent: h.HasChecksum, KeyPresent: h.HasKey,
				SeqPresent: h.HasSequence}, gopacket.Payload(payload))
		c.same("serialize", err, nil)
		c.same("serialized", string(buf.Bytes()), string(g))
	})
	if _, err := (&VXLANHeader{VNI: 1 << 24}).Fill(make([]byte, 8)); !errors.Is(err, ErrField) {
		t.Error(err)
	}
}

// TestShortBuffers: no builder writes into a buffer that is too short.
func TestShortBuffers(t *testing.T) {
	a4, a6 := netip.MustParseAddr("1.2.3.4"), netip.MustParseAddr("fd00::1")
	for _, h := range []interface {
		Len() int
		Fill([]byte) (int, error)
	}{&EthernetHeader{}, &VLANHeader{}, &ARPHeader{SenderIP: a4, TargetIP: a4}, &TCPHeader{Options: make([]byte, 8)},
		&ICMPHeader{}, &ICMPv6Header{}, &VXLANHeader{},
		&GREHeader{HasKey: true}, &FragmentHeader{}, &NeighborHeader{Src: a6, Dst: a6, Target: a6}} {
		b := dirty(h.Len() + 1)
		if n, err := h.Fill(b[:h.Len()-1]); n != 0 || !errors.Is(err, ErrRoom) || !bytes.Equal(b, dirty(len(b))) {
			t.Errorf("%T: %d, %v", h, n, err)
		}
		if n, err := h.Fill(b[:h.Len()]); n != h.Len() || err != nil || b[n] != 0xa5 {
			t.Errorf("%T: %d, %v", h, n, err)
		}
	}
	for _, h := range []interface {
		Len() int
		Fill([]byte, int) (int, error)
	}{&IPv4Header{Src: a4, Dst: a4}, &IPv6Header{Src: a6, Dst: a6}, &UDPHeader{}, &ECPRIHeader{}} {
		b := dirty(h.Len() + 1)
		if n, err := h.Fill(b[:h.Len()-1], 0); n != 0 || !errors.Is(err, ErrRoom) || !bytes.Equal(b, dirty(len(b))) {
			t.Errorf("%T: %d, %v", h, n, err)
		}
		if n, err := h.Fill(b[:h.Len()], 0); n != h.Len() || err != nil || b[n] != 0xa5 {
			t.Errorf("%T: %d, %v", h, n, err)
		}
		if _, err := h.Fill(b, 1<<16); !errors.Is(err, ErrLength) {
			t.Errorf("%T: %v", h, err)
		}
	}
}
