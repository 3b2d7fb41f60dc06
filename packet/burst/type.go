package burst

import "strings"

// Type says which headers a received packet begins with, as far as its device read them: one value
// each of the link layer, the network layer, the transport layer and the tunnel, or 0 for a layer
// that the device did not read or does not know. Values of different layers are joined by |, and
// taken apart by L2, L3, L4 and Tunnel.
type Type uint16

// The link layer.
const (
	L2Ethernet Type = iota + 1 // no VLAN tag
	L2VLAN                     // one tag
	L2QinQ                     // two tags
)

// The network layer.
const (
	L3IPv4    Type = (iota + 1) << 4 // a header of 20 bytes
	L3IPv4Opt                        // a header with options
	L3IPv6                           // a header of 40 bytes
	L3IPv6Ext                        // a header with extension headers
	L3ARP
)

// The transport layer.
const (
	L4TCP Type = (iota + 1) << 8
	L4UDP
	L4ICMP // also ICMPv6
	L4SCTP
	L4Fragment // a part of an IP packet, the first part also
	L4Other    // another IP protocol, or none
)

// The tunnel that the packet carries in its payload.
const (
	TunnelVXLAN Type = (iota + 1) << 12
	TunnelGRE
	TunnelNVGRE
)

// L2 is the part of t that says which link layer it is; 0 for unknown.
func (t Type) L2() Type { return t & 0x000f }

// L3 is the part of t that says which network layer it is; 0 for unknown.
func (t Type) L3() Type { return t & 0x00f0 }

// L4 is the part of t that says which transport layer it is; 0 for unknown.
func (t Type) L4() Type { return t & 0x0f00 }

// Tunnel is the part of t that says which tunnel the packet carries; 0 for none or unknown.
func (t Type) Tunnel() Type { return t & 0xf000 }

var typeNames = map[Type]string{
	L2Ethernet: "Ethernet", L2VLAN: "VLAN", L2QinQ: "QinQ",
	L3IPv4: "IPv4", L3IPv4Opt: "IPv4 with options", L3IPv6: "IPv6", L3IPv6Ext: "IPv6 with extensions", L3ARP: "ARP",
	L4TCP: "TCP", L4UDP: "UDP", L4ICMP: "ICMP", L4SCTP: "SCTP", L4Fragment: "fragment", L4Other: "other",
	TunnelVXLAN: "VXLAN", TunnelGRE: "GRE", TunnelNVGRE: "NVGRE",
}

func (t Type) String() string {
	var names []string
	for _, part := range []Type{t.L2(), t.L3(), t.L4(), t.Tunnel()} {
		if part == 0 {
			continue
		}
		name := typeNames[part]
		if name == "" {
			name = "?"
		}
		names = append(names, name)
	}
	if names == nil {
		return "unknown"
	}
	return strings.Join(names, "/")
}
