package engine

import (
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// TypeOf is the packet type of a frame that packet.Parse has read into l, for engines that read
// frames in software. A layer that Parse found malformed is unknown.
func TypeOf(l *packet.Layers) (t burst.Type) {
	if l.HasL2 && l.EtherType != 0 {
		t = burst.L2Ethernet + burst.Type(l.NumTags)
	}
	switch {
	case l.EtherType == packet.EtherTypeARP:
		return t | burst.L3ARP
	case l.L4 == 0 || l.IPVersion == 0:
		return t
	case l.IPVersion == 4 && l.L4-l.L3 == packet.IPv4Len:
		t |= burst.L3IPv4
	case l.IPVersion == 4:
		t |= burst.L3IPv4Opt
	case l.L4-l.L3 == packet.IPv6Len:
		t |= burst.L3IPv6
	default:
		t |= burst.L3IPv6Ext
	}
	switch {
	case l.IsFragment():
		t |= burst.L4Fragment
	case l.Proto == packet.ProtoTCP && l.HasPorts:
		t |= burst.L4TCP
	case l.Proto == packet.ProtoUDP && l.HasPorts:
		t |= burst.L4UDP
	case l.Proto == packet.ProtoTCP || l.Proto == packet.ProtoUDP: // malformed
	case l.Proto == packet.ProtoICMP || l.Proto == packet.ProtoICMPv6:
		t |= burst.L4ICMP
	case l.Proto == packet.ProtoSCTP:
		t |= burst.L4SCTP
	default:
		t |= burst.L4Other
	}
	switch l.Tunnel {
	case packet.TunnelVXLAN:
		t |= burst.TunnelVXLAN
	case packet.TunnelGRE:
		t |= burst.TunnelGRE
	case packet.TunnelNVGRE:
		t |= burst.TunnelNVGRE
	}
	return t
}
