package packet

import (
	"net/netip"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// TestNoAllocation: nothing that runs per packet allocates, whether it succeeds or fails.
func TestNoAllocation(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithRace, "the race detector allocates")
	check := func(name string, f func()) {
		t.Helper()
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations per run", name, n)
		}
	}
	var frames [][]byte
	for _, frame := range seeds(t) {
		frames = append(frames, frame, frame[:len(frame)/2])
	}
	var outer, inner Layers
	h := NewToeplitz(&MicrosoftKey)
	var sink uint32
	check("Parse", func() {
		for _, frame := range frames {
			why := Parse(frame, &outer)
			if why.Err() != nil {
				continue
			}
			ParseTunnel(frame, &outer, &inner)
			sink += h.Frame(frame, &outer) + FlowHash(frame, &outer)
			if outer.Src(frame) == outer.Dst(frame) {
				sink++
			}
		}
	})
	v4, v6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	buf := make([]byte, 600)
	for _, ip := range []netip.Addr{v4, v6} {
		f := UDPFrame{Src: netip.AddrPortFrom(ip, 1), Dst: netip.AddrPortFrom(ip, 2), Tagged: true}
		bad := UDPFrame{Src: f.Src}
		check("UDPFrame", func() {
			f.Fill(buf[100:], 400)
			f.Fill(buf[:10], 400)
			bad.Fill(buf, 1)
		})
		for _, kind := range []Tunnel{TunnelVXLAN, TunnelGRE, TunnelNVGRE} {
			e := Encap{Kind: kind, Src: ip, Dst: ip}
			check("Encap", func() {
				f.Fill(buf[100:], 400)
				out, err := e.Push(buf, 100)
				if err != nil || Parse(out, &outer) != OK {
					t.Fatal(err)
				}
				if _, why := Decap(out, &outer, &inner); why != OK {
					t.Fatal(why)
				}
				e.Push(buf, 3)
			})
		}
	}
	check("VLAN", func() {
		out, _ := PushVLAN(buf, 100, 0, 5)
		PopVLAN(out)
		PushVLAN(buf, 1, 0, 5)
	})
	check("headers", func() {
		(&EthernetHeader{}).Fill(buf)
		(&ARPHeader{SenderIP: v4, TargetIP: v4}).Fill(buf)
		(&IPv4Header{Src: v4, Dst: v4}).Fill(buf, 3)
		ip := IPv4(buf)
		ip.SetTTL(3)
		ip.SetSrc(ip.Dst())
		(&IPv6Header{Src: v6, Dst: v6}).Fill(buf, 3)
		IPv6(buf).SetSrc(IPv6(buf).Dst())
		(&TCPHeader{}).Fill(buf)
		TCP(buf).FillChecksum(v6, v6)
		(&ICMPHeader{}).Fill(buf)
		(&ICMPv6Header{}).Fill(buf)
		(&NeighborHeader{Src: v6, Dst: v6, Target: v6}).Fill(buf)
		Neighbor(buf).LinkAddr()
		(&ECPRIHeader{}).Fill(buf, 3)
		(&VXLANHeader{}).Fill(buf)
		(&GREHeader{HasKey: true}).Fill(buf)
		ARP(buf).Answer(MAC{1})
		MulticastMAC(SolicitedNode(v6))
		if _, err := MAC(buf).AppendText(buf[:0]); err != nil {
			t.Fatal(err)
		}
	})
}
