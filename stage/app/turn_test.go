package app

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/penstock-io/penstock/packet"
)

var macs = [2]packet.MAC{{2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 2}}

// udpFrame is a frame with that payload from one address to another.
func udpFrame(t testing.TB, src, dst string, payload []byte) []byte {
	t.Helper()
	h := packet.UDPFrame{SrcMAC: macs[0], DstMAC: macs[1], Src: netip.MustParseAddrPort(src),
		Dst: netip.MustParseAddrPort(dst)}
	f := make([]byte, h.HeaderLen()+len(payload))
	copy(f[h.HeaderLen():], payload)
	if _, err := h.Fill(f, len(payload)); err != nil {
		t.Fatal(err)
	}
	return f
}

// An answer goes where its question came from, with right checksums, and two turns are none.
func TestTurn(t *testing.T) {
	for _, at := range [][2]string{{"10.0.0.1:7", "10.0.0.2:8"}, {"[fd00::1]:7", "[fd00::2]:8"}} {
		f := udpFrame(t, at[0], at[1], []byte("a question"))
		was := bytes.Clone(f)
		if drop, ok := turn(f); !ok {
			t.Fatal(drop)
		}
		want := udpFrame(t, at[1], at[0], []byte("a question"))
		packet.Ethernet(want).SetSrc(macs[1])
		packet.Ethernet(want).SetDst(macs[0])
		if !bytes.Equal(f, want) {
			t.Errorf("%x\nexpected %x", f, want)
		}
		if turn(f); !bytes.Equal(f, was) {
			t.Error("two turns changed the frame")
		}
	}
	group := udpFrame(t, "10.0.0.1:7", "10.0.0.2:8", nil)
	group[0] |= 1
	if drop, ok := turn(group); ok || drop != DropGroup {
		t.Error(drop, ok)
	}
	if drop, ok := turn(group[:13]); ok || drop != DropNoAnswer {
		t.Error(drop, ok)
	}
}

// A request of ping is answered as the kernel would.
func TestTurnPing(t *testing.T) {
	v4 := []packet.IPv4Header{{Proto: packet.ProtoICMP, Src: netip.MustParseAddr("10.0.0.1"),
		Dst: netip.MustParseAddr("10.0.0.2")}}[0]
	body := []byte("0123456789")
	f := make([]byte, packet.EthernetLen+v4.Len()+packet.ICMPLen+len(body))
	e := packet.EthernetHeader{Src: macs[0], Dst: macs[1], Type: packet.EtherTypeIPv4}
	at, err := e.Fill(f)
	if err != nil {
		t.Fatal(err)
	}
	n, err := v4.Fill(f[at:], packet.ICMPLen+len(body))
	if err != nil {
		t.Fatal(err)
	}
	m := packet.ICMP(f[at+n:])
	m.SetType(packet.ICMPEchoRequest)
	m.SetRest(packet.EchoRest(7, 9))
	copy(m.Payload(), body)
	m.FillChecksum()
	if _, ok := turn(f); !ok {
		t.Fatal("refused")
	}
	if m.Type() != packet.ICMPEchoReply || !m.ChecksumOK() || m.ID() != 7 || m.Seq() != 9 ||
		!bytes.Equal(m.Payload(), body) {
		t.Errorf("%x", f)
	}
	ip := packet.IPv4(f[at:])
	if !ip.ChecksumOK() || ip.Src() != v4.Dst || ip.Dst() != v4.Src {
		t.Errorf("%v to %v", ip.Src(), ip.Dst())
	}
	if turn(f); m.Type() != packet.ICMPEchoReply {
		t.Error("an answer became a question")
	}
}

// What is found in any bytes is what the parser of the packages finds, wherever that is content
// with them.
func FuzzLook(f *testing.F) {
	f.Add(udpFrame(f, "10.0.0.1:7", "10.0.0.2:8", []byte("payload")))
	f.Add(udpFrame(f, "[fd00::1]:7", "[fd00::2]:8", []byte("payload")))
	f.Add([]byte{12: 0x81, 13: 0, 16: 8, 17: 0, 18: 0x45, 60: 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<16-1 {
			return
		}
		h, ok := look(b)
		var l packet.Layers
		why := packet.Parse(b, &l)
		if why == packet.OK {
			l4 := int(l.L4)
			if l.IPVersion == 0 || l.FragOffset != 0 {
				l4 = 0
			}
			if !ok || h.l3 != int(l.L3) || h.version != int(l.IPVersion) || h.l4 != l4 || l.IPVersion != 0 &&
				h.proto != l.Proto {
				t.Fatalf("%+v, %v; the parser says %+v", h, ok, l)
			}
			off, n, is := udpPayload(b, len(b))
			whole := l.Proto == packet.ProtoUDP && l.IPVersion != 0 && l.FragOffset == 0 && !l.MoreFragments &&
				int(l.End) > int(l.Payload)
			if whole && (!is || off != int(l.Payload) || n != int(l.End)-int(l.Payload)) {
				t.Fatalf("payload %d+%d, %v; the parser says %d to %d", off, n, is, l.Payload, l.End)
			}
		}
		if off, n, is := udpPayload(b, len(b)); is && (off < 0 || n <= 0 || off+n > len(b)) {
			t.Fatalf("a payload outside: %d+%d of %d", off, n, len(b))
		}
		was := bytes.Clone(b)
		if _, ok := turn(b); !ok && !bytes.Equal(b, was) {
			t.Fatal("a frame that was refused has changed")
		}
	})
}
