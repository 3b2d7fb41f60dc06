package packet

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

// rssVectors are those of Microsoft, "Verifying the RSS hash calculation".
var rssVectors = []struct {
	dst, src     string // with ports
	ports, plain uint32
}{
	{"161.142.100.80:1766", "66.9.149.187:2794", 0x51ccc178, 0x323e8fc2},
	{"65.69.140.83:4739", "199.92.111.2:14230", 0xc626b0ea, 0xd718262a},
	{"12.22.207.184:38024", "24.19.198.95:12898", 0x5c2b394a, 0xd2d0a5de},
	{"209.142.163.6:2217", "38.27.205.30:48228", 0xafc7327f, 0x82989176},
	{"202.188.127.2:1303", "153.39.163.191:44251", 0x10e828a2, 0x5d1809c5},
	{"[3ffe:2501:200:3::1]:1766", "[3ffe:2501:200:1fff::7]:2794", 0x40207d3d, 0x2cc18cd5},
	{"[ff02::1]:4739", "[3ffe:501:8::260:97ff:fe40:efab]:14230", 0xdde51bbf, 0x0f0c461c},
	{"[fe80::200:f8ff:fe21:67cf]:38024", "[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251", 0x02d1feef, 0x4b61e985},
}

func TestToeplitzVectors(t *testing.T) {
	h := NewToeplitz(&MicrosoftKey)
	for _, v := range rssVectors {
		src, dst := netip.MustParseAddrPort(v.src), netip.MustParseAddrPort(v.dst)
		data := append(src.Addr().AsSlice(), dst.Addr().AsSlice()...)
		n := len(data)
		data = binary.BigEndian.AppendUint16(data, src.Port())
		data = binary.BigEndian.AppendUint16(data, dst.Port())
		for _, c := range []struct {
			data []byte
			want uint32
		}{{data, v.ports}, {data[:n], v.plain}} {
			if got := ToeplitzBits(&MicrosoftKey, c.data); got != c.want {
				t.Errorf("ToeplitzBits %s %s (%d bytes): %08x, want %08x", v.src, v.dst, len(c.data), got, c.want)
			}
			if got := h.Bytes(c.data); got != c.want {
				t.Errorf("Bytes %s %s (%d bytes): %08x, want %08x", v.src, v.dst, len(c.data), got, c.want)
			}
		}
		var ports, plain uint32
		if src.Addr().Is4() {
			s, d := binary.BigEndian.Uint32(data), binary.BigEndian.Uint32(data[4:])
			ports, plain = h.IPv4Ports(s, d, src.Port(), dst.Port()), h.IPv4(s, d)
		} else {
			s, d := src.Addr().As16(), dst.Addr().As16()
			ports, plain = h.IPv6Ports(&s, &d, src.Port(), dst.Port()), h.IPv6(&s, &d)
		}
		if ports != v.ports || plain != v.plain {
			t.Errorf("%s %s: %08x %08x, want %08x %08x", v.src, v.dst, ports, plain, v.ports, v.plain)
		}
	}
}

// TestToeplitzFrame: the hash of a frame is that of its addresses and ports, of its addresses where
// there are no ports in every packet of the datagram, and 0 for other frames.
func TestToeplitzFrame(t *testing.T) {
	h := NewToeplitz(&MicrosoftKey)
	var l Layers
	for _, v := range rssVectors {
		f := UDPFrame{Src: netip.MustParseAddrPort(v.src), Dst: netip.MustParseAddrPort(v.dst), Tagged: true}
		frame := make([]byte, f.HeaderLen())
		if _, err := f.Fill(frame, 0); err != nil {
			t.Fatal(err)
		}
		if why := Parse(frame, &l); why != OK || h.Frame(frame, &l) != v.ports {
			t.Errorf("%s: %v, %08x, want %08x", v.src, why, h.Frame(frame, &l), v.ports)
		}
		if l.IPVersion == 4 {
			ip := IPv4(frame[l.L3:])
			ip.SetFragment(false, true, 0)
			if why := Parse(frame, &l); why != OK || !l.HasPorts || h.Frame(frame, &l) != v.plain {
				t.Errorf("%s, first fragment: %v, %08x, want %08x", v.src, why, h.Frame(frame, &l), v.plain)
			}
			ip.SetFragment(false, false, 8)
		} else {
			IPv6(frame[l.L3:]).SetNextHeader(ProtoNoNext)
		}
		if why := Parse(frame, &l); why != OK || h.Frame(frame, &l) != v.plain {
			t.Errorf("%s, without ports: %v, %08x, want %08x", v.src, why, h.Frame(frame, &l), v.plain)
		}
	}
	arp := seeds(t)["arp"]
	if Parse(arp, &l); h.Frame(arp, &l) != 0 {
		t.Error("ARP has a hash")
	}
}

// TestToeplitzTables: the tables agree with the definition for any key and any input.
func TestToeplitzTables(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := RSSKey(rapid.SliceOfN(rapid.Byte(), 40, 40).Draw(t, "key"))
		data := rapid.SliceOfN(rapid.Byte(), 0, 44).Draw(t, "data")
		h := NewToeplitz(&key)
		want := ToeplitzBits(&key, data)
		if got := h.Bytes(data); got != want {
			t.Fatalf("Bytes: %08x, want %08x", got, want)
		}
		full := append(data, make([]byte, maxHashed)...)[:maxHashed]
		u := binary.BigEndian.Uint32
		u2 := binary.BigEndian.Uint16
		if got, want := h.IPv4(u(full), u(full[4:])), ToeplitzBits(&key, full[:8]); got != want {
			t.Fatalf("IPv4: %08x, want %08x", got, want)
		}
		if got, want := h.IPv4Ports(u(full), u(full[4:]), u2(full[8:]), u2(full[10:])),
			ToeplitzBits(&key, full[:12]); got != want {
			t.Fatalf("IPv4Ports: %08x, want %08x", got, want)
		}
		src, dst := [16]byte(full), [16]byte(full[16:])
		if got, want := h.IPv6(&src, &dst), ToeplitzBits(&key, full[:32]); got != want {
			t.Fatalf("IPv6: %08x, want %08x", got, want)
		}
		if got, want := h.IPv6Ports(&src, &dst, u2(full[32:]), u2(full[34:])), ToeplitzBits(&key, full); got != want {
			t.Fatalf("IPv6Ports: %08x, want %08x", got, want)
		}
	})
}
