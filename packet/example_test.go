package packet_test

import (
	"fmt"
	"net/netip"

	"github.com/penstock-io/penstock/packet"
)

// A datagram is built in place and read again.
func Example() {
	frame := make([]byte, 128)
	h := packet.UDPFrame{
		SrcMAC: packet.MAC{2, 0, 0, 0, 0, 1},
		DstMAC: packet.MAC{2, 0, 0, 0, 0, 2},
		Src:    netip.MustParseAddrPort("10.0.0.1:4000"),
		Dst:    netip.MustParseAddrPort("10.0.0.2:5000"),
	}
	n := copy(frame[h.HeaderLen():], "hello") // the payload first: the checksum covers it
	at, err := h.Fill(frame, n)
	if err != nil {
		fmt.Println(err)
		return
	}
	frame = frame[:at+n]

	var l packet.Layers // reused from frame to frame
	if why := packet.Parse(frame, &l); why != packet.OK {
		fmt.Println("dropped:", why)
		return
	}
	fmt.Println(l.Src(frame), l.SrcPort, l.Dst(frame), l.DstPort, l.Proto, string(frame[l.Payload:l.End]))
	fmt.Println(packet.Parse(frame[:20], &l))
	// Output:
	// 10.0.0.1 4000 10.0.0.2 5000 UDP hello
	// short_ipv4
}

// A frame is put into VXLAN within its buffer, and taken out again.
func ExampleEncap() {
	tunnel := packet.Encap{Kind: packet.TunnelVXLAN, VNI: 42, Src: netip.MustParseAddr("192.0.2.1"),
		Dst: netip.MustParseAddr("192.0.2.2")}
	buf := make([]byte, tunnel.Overhead()+60) // headroom, then the frame
	copy(buf[tunnel.Overhead():], "\x02\x00\x00\x00\x00\x02\x02\x00\x00\x00\x00\x01\x88\xb5experiment")

	frame, err := tunnel.Push(buf, tunnel.Overhead())
	if err != nil {
		fmt.Println(err)
		return
	}
	var outer, inner packet.Layers
	fmt.Println(len(frame), packet.Parse(frame, &outer))
	frame, why := packet.Decap(frame, &outer, &inner)
	fmt.Println(len(frame), why, outer.Tunnel, outer.VNI, inner.EtherType)
	// Output:
	// 110 ok
	// 60 ok vxlan 42 0x88b5
}

// Queues are chosen as a network card chooses them.
func ExampleToeplitz() {
	hash := packet.NewToeplitz(&packet.MicrosoftKey)
	const queues = 4
	h := hash.IPv4Ports(0x420995bb, 0xa18e6450, 2794, 1766) // 66.9.149.187:2794 to 161.142.100.80:1766
	fmt.Printf("%#x queue %d\n", h, h%queues)
	// Output: 0x51ccc178 queue 0
}
