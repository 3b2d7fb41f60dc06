package engine

import (
	"encoding/hex"
	"testing"

	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// TestTypeOf: the types of frames written out by hand.
func TestTypeOf(t *testing.T) {
	const macs = "020000000002020000000001"
	const ip4 = "4500001c00000000401100000a0000010a000002"
	const udp = "03e803e900080000"
	for _, c := range []struct {
		frame string
		want  burst.Type
		text  string
	}{
		{macs + "0800" + ip4 + udp, burst.L2Ethernet | burst.L3IPv4 | burst.L4UDP, "Ethernet/IPv4/UDP"},
		{macs + "81000005" + "0800" + ip4 + udp, burst.L2VLAN | burst.L3IPv4 | burst.L4UDP, "VLAN/IPv4/UDP"},
		{macs + "88a80005" + "81000006" + "0800" + ip4 + udp, burst.L2QinQ | burst.L3IPv4 | burst.L4UDP, "QinQ/IPv4/UDP"},
		{macs + "0800" + "4500001c00002000401100000a0000010a000002" + udp, burst.L2Ethernet | burst.L3IPv4 | burst.L4Fragment, "Ethernet/IPv4/fragment"},
		{macs + "0800" + "4600001c00000000400600000a0000010a00000201010101" + "01020304", burst.L2Ethernet | burst.L3IPv4Opt, "Ethernet/IPv4 with options"},
		// no next header
		{macs + "86dd" + "6000000000083b40" + "fd000000000000000000000000000001" + "fd000000000000000000000000000002" +
			udp, burst.L2Ethernet | burst.L3IPv6 | burst.L4Other, "Ethernet/IPv6/other"},
		{macs + "86dd" + "6000000000081140" + "fd000000000000000000000000000001" + "fd000000000000000000000000000002" +
			udp, burst.L2Ethernet | burst.L3IPv6 | burst.L4UDP, "Ethernet/IPv6/UDP"},
		{macs + "0806" + "0001", burst.L2Ethernet | burst.L3ARP, "Ethernet/ARP"},
		{"0200", 0, "unknown"},
	} {
		frame, err := hex.DecodeString(c.frame)
		if err != nil {
			t.Fatal(err)
		}
		var l packet.Layers
		packet.Parse(frame, &l)
		if got := TypeOf(&l); got != c.want || got.String() != c.text {
			t.Errorf("%s: %v, want %v", c.frame, got, c.text)
		}
	}
	var l, inner packet.Layers
	vxlan, _ := hex.DecodeString(macs + "0800" + "4500003200000000401100000a0000010a000002" + "03e812b5001e0000" +
		"0800000000000100" + macs + "9000")
	packet.Parse(vxlan, &l)
	packet.ParseTunnel(vxlan, &l, &inner)
	if got := TypeOf(&l); got.Tunnel() != burst.TunnelVXLAN || got.L4() != burst.L4UDP {
		t.Errorf("VXLAN: %v", got)
	}
}
