package replay

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/penstock-io/penstock/packet"
)

// ends are the addresses and ports of a frame.
type ends struct {
	srcMAC, dstMAC, src, dst string
	srcPort, dstPort         uint16
}

// build makes a frame by gopacket, which computes the checksums.
func build(t testing.TB, e ends, transport string, tags int, odd bool) []byte {
	t.Helper()
	mac := func(s string) net.HardwareAddr {
		m, err := net.ParseMAC(s)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	v6 := strings.Contains(e.src, ":")
	eth := &layers.Ethernet{SrcMAC: mac(e.srcMAC), DstMAC: mac(e.dstMAC), EthernetType: layers.EthernetTypeIPv4}
	if v6 {
		eth.EthernetType = layers.EthernetTypeIPv6
	}
	all := []gopacket.SerializableLayer{eth}
	inner := eth.EthernetType
	for range tags {
		all = append(all, &layers.Dot1Q{VLANIdentifier: 7, Type: inner})
		eth.EthernetType = layers.EthernetTypeDot1Q
	}
	if tags == 2 {
		all[1].(*layers.Dot1Q).Type = layers.EthernetTypeDot1Q
	}
	var ip gopacket.NetworkLayer
	proto := map[string]layers.IPProtocol{"tcp": layers.IPProtocolTCP, "udp": layers.IPProtocolUDP,
		"none":  layers.IPProtocolUDP,
		"icmp6": layers.IPProtocolICMPv6, "icmp": layers.IPProtocolICMPv4, "sctp": 132}[transport]
	if v6 {
		x := &layers.IPv6{Version: 6, NextHeader: proto, HopLimit: 9, SrcIP: net.ParseIP(e.src),
			DstIP: net.ParseIP(e.dst)}
		all, ip = append(all, x), x
	} else {
		x := &layers.IPv4{Version: 4, TTL: 9, Protocol: proto, SrcIP: net.ParseIP(e.src), DstIP: net.ParseIP(e.dst)}
		all, ip = append(all, x), x
	}
	switch transport {
	case "tcp":
		x := &layers.TCP{SrcPort: layers.TCPPort(e.srcPort), DstPort: layers.TCPPort(e.dstPort), ACK: true,
			Seq: 1 << 30}
		x.SetNetworkLayerForChecksum(ip)
		all = append(all, x)
	case "udp", "none":
		x := &layers.UDP{SrcPort: layers.UDPPort(e.srcPort), DstPort: layers.UDPPort(e.dstPort)}
		x.SetNetworkLayerForChecksum(ip)
		all = append(all, x)
	case "icmp6":
		x := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(128, 0)}
		x.SetNetworkLayerForChecksum(ip)
		all = append(all, x)
	case "icmp":
		all = append(all, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0)})
	}
	payload := []byte("what the frame carries")
	if odd {
		payload = payload[1:]
	}
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		append(all, gopacket.Payload(payload))...); err != nil {
		t.Fatal(err)
	}
	p := bytes.Clone(b.Bytes())
	if transport == "none" {
		var l packet.Layers
		packet.Parse(p, &l)
		packet.UDP(p[l.L4:]).SetChecksum(0)
	}
	return p
}

// A rewritten frame is the one that would have been built with the new addresses and ports.
func TestRewrite(t *testing.T) {
	r, err := ParseRewrite("eth-src=02:00:00:00:00:0a,eth-dst=02:00:00:00:00:0b,ip=10.0.0.1:192.168.255.254,ip=10.0.0.2:10.0.0.1," +
		"ip=[fd00::1]:[2001:db8:ffff::9],ip=[fd00::2]:[fd00::1],port=1000:2000,port=2000:65535")
	if err != nil {
		t.Fatal(err)
	}
	const a, b, c, d = "02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:0a", "02:00:00:00:00:0b"
	for _, transport := range []string{"tcp", "udp", "none", "icmp6", "icmp", "sctp"} {
		for tags := range 3 {
			for _, odd := range []bool{false, true} {
				for _, x := range [][2]ends{
					{{a, b, "10.0.0.1", "10.0.0.2", 1000, 2000}, {c, d, "192.168.255.254", "10.0.0.1", 2000, 65535}},
					{{a, b, "10.0.0.2", "10.0.0.3", 2000, 3000}, {c, d, "10.0.0.1", "10.0.0.3", 65535, 3000}},
					{{a, b, "fd00::1", "fd00::2", 1000, 2000}, {c, d, "2001:db8:ffff::9", "fd00::1", 2000, 65535}},
				} {
					if v6 := strings.Contains(x[0].src, ":"); v6 && transport == "icmp" || !v6 && transport == "icmp6" {
						continue
					}
					got, want := build(t, x[0], transport, tags, odd), build(t, x[1], transport, tags, odd)
					if !r.apply(got) || !bytes.Equal(got, want) {
						t.Errorf("%s, %d tags, %v:\n%x, expected\n%x", transport, tags, x[0], got, want)
					}
				}
			}
		}
	}
}

// A fragment is changed as far as it goes, and what cannot be read keeps all but its Ethernet
// addresses.
func TestRewriteParts(t *testing.T) {
	r, err := ParseRewrite("ip=10.0.0.1:10.9.8.7,port=1000:2000")
	if err != nil {
		t.Fatal(err)
	}
	from := ends{"02:00:00:00:00:01", "02:00:00:00:00:02", "10.0.0.1", "10.0.0.2", 1000, 3}
	to := ends{"02:00:00:00:00:01", "02:00:00:00:00:02", "10.9.8.7", "10.0.0.2", 2000, 3}
	for _, flags := range []uint16{0x2000, 1} {
		// the first fragment, and a later one, which has data where ports would be
		fragment := func(e ends) []byte {
			p := build(t, e, "udp", 0, false)
			h := packet.IPv4(p[14:])
			p[20], p[21] = byte(flags>>8), byte(flags)
			h.FillChecksum()
			return p
		}
		got, want := fragment(from), fragment(to)
		if flags == 1 {
			copy(want[34:], got[34:])
		}
		if !r.apply(got) || !bytes.Equal(got, want) {
			t.Errorf("fragment %x:\n%x, expected\n%x", flags, got, want)
		}
	}
	// A checksum of UDP that would be 0 is 0xffff.
	p := build(t, from, "udp", 0, false)
	u, zero := packet.UDP(p[34:]), uint16(0)
	for packet.UpdateChecksum(u.Checksum(), 3, zero) != 0 {
		zero++
	}
	if r, err = ParseRewrite(fmt.Sprintf("port=3:%d", zero)); err != nil || !r.apply(p) || u.Checksum() != 0xffff {
		t.Errorf("%x, %v", p, err)
	}
	both, _ := ParseRewrite("eth-dst=02:00:00:00:00:0b,ip=10.0.0.1:10.9.8.7")
	p = build(t, from, "tcp", 0, false)
	for n := range len(p) {
		got := bytes.Clone(p[:n])
		if both.apply(got) {
			t.Errorf("%d bytes of %d were rewritten", n, len(p))
		}
		if n >= 14 && (got[5] != 0xb || !bytes.Equal(got[14:], p[14:n])) {
			t.Errorf("%d bytes: %x", n, got)
		}
	}
	for text, want := range map[string]string{"eth-dts=1": "eth-dst?", "ip=1.2.3.4": "two addresses",
		"ip=1.2.3.4:[::1]": "two addresses",
		"ip=[::1]:1.2.3.4": "two addresses", "port=1": "two ports", "port=1:65536": "two ports",
		"eth-src=1": `"eth-src=1"`,
		"":          "expected eth-src"} {
		if _, err := ParseRewrite(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzRewrite(f *testing.F) {
	r, err := ParseRewrite("eth-src=02:00:00:00:00:0a,ip=10.0.0.1:192.168.255.254,ip=[fd00::1]:[2001:db8:ffff::9],port=1000:2000")
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range []ends{{"02:00:00:00:00:01", "02:00:00:00:00:02", "10.0.0.1", "10.0.0.2", 1000, 3},
		{"02:00:00:00:00:01", "02:00:00:00:00:02", "fd00::1", "fd00::2", 1000, 3}} {
		for _, transport := range []string{"tcp", "udp", "icmp6"} {
			f.Add(build(f, e, transport, 1, true))
		}
	}
	// Nothing becomes longer, and a frame whose checksums were right has right ones.
	f.Fuzz(func(t *testing.T, b []byte) {
		var l packet.Layers
		right := func() bool {
			if packet.Parse(b, &l) != packet.OK || l.IsFragment() || !l.HasPorts || l.IPVersion == 4 &&
				!packet.IPv4(b[l.L3:]).ChecksumOK() {
				return false
			}
			u := b[l.L4:l.End]
			if l.Proto == packet.ProtoTCP {
				return packet.TCP(u).ChecksumOK(l.Src(b), l.Dst(b))
			}
			return packet.UDP(u).ChecksumOK(l.Src(b), l.Dst(b))
		}
		was := right()
		r.apply(b)
		if was && !right() {
			t.Errorf("a checksum is wrong: %x", b)
		}
	})
}
