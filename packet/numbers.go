package packet

import "strconv"

// EtherType is the type of what follows an Ethernet header or VLAN tag (IEEE 802 numbers). A value
// below 0x0600 is the length of an IEEE 802.3 frame instead.
type EtherType uint16

// The EtherTypes that this package knows.
const (
	EtherTypeIPv4  EtherType = 0x0800
	EtherTypeARP   EtherType = 0x0806
	EtherTypeTEB   EtherType = 0x6558 // transparent Ethernet bridging: an Ethernet frame in GRE (RFC 1701, 7637)
	EtherTypeVLAN  EtherType = 0x8100 // IEEE 802.1Q customer tag
	EtherTypeIPv6  EtherType = 0x86dd
	EtherTypeQinQ  EtherType = 0x88a8 // IEEE 802.1ad service tag
	EtherTypeQinQ1 EtherType = 0x9100 // service tag of switches older than 802.1ad
	EtherTypePTP   EtherType = 0x88f7
	EtherTypeECPRI EtherType = 0xaefe
)

// IsTag reports whether a VLAN tag follows.
func (t EtherType) IsTag() bool {
	return t == EtherTypeVLAN || t == EtherTypeQinQ || t == EtherTypeQinQ1
}

func (t EtherType) String() string {
	switch t {
	case EtherTypeIPv4:
		return "IPv4"
	case EtherTypeARP:
		return "ARP"
	case EtherTypeTEB:
		return "TEB"
	case EtherTypeVLAN:
		return "VLAN"
	case EtherTypeIPv6:
		return "IPv6"
	case EtherTypeQinQ, EtherTypeQinQ1:
		return "QinQ"
	case EtherTypePTP:
		return "PTP"
	case EtherTypeECPRI:
		return "eCPRI"
	}
	return "0x" + strconv.FormatUint(uint64(t), 16)
}

// Proto is the number of an IP protocol, or of an IPv6 extension header (IANA protocol numbers).
type Proto uint8

// The IP protocols and extension headers that this package knows.
const (
	ProtoHopByHop Proto = 0
	ProtoICMP     Proto = 1
	ProtoIPv4     Proto = 4 // IPv4 in IP
	ProtoTCP      Proto = 6
	ProtoUDP      Proto = 17
	ProtoIPv6     Proto = 41 // IPv6 in IP
	ProtoRouting  Proto = 43
	ProtoFragment Proto = 44
	ProtoGRE      Proto = 47
	ProtoESP      Proto = 50
	ProtoAH       Proto = 51
	ProtoICMPv6   Proto = 58
	ProtoNoNext   Proto = 59 // IPv6: nothing follows
	ProtoDestOpts Proto = 60
	ProtoSCTP     Proto = 132
	ProtoMobility Proto = 135
	ProtoHIP      Proto = 139
	ProtoShim6    Proto = 140
)

func (p Proto) String() string {
	switch p {
	case ProtoHopByHop:
		return "HopByHop"
	case ProtoICMP:
		return "ICMP"
	case ProtoIPv4:
		return "IPv4"
	case ProtoTCP:
		return "TCP"
	case ProtoUDP:
		return "UDP"
	case ProtoIPv6:
		return "IPv6"
	case ProtoRouting:
		return "Routing"
	case ProtoFragment:
		return "Fragment"
	case ProtoGRE:
		return "GRE"
	case ProtoESP:
		return "ESP"
	case ProtoAH:
		return "AH"
	case ProtoICMPv6:
		return "ICMPv6"
	case ProtoNoNext:
		return "NoNext"
	case ProtoDestOpts:
		return "DestOpts"
	case ProtoSCTP:
		return "SCTP"
	case ProtoMobility:
		return "Mobility"
	case ProtoHIP:
		return "HIP"
	case ProtoShim6:
		return "Shim6"
	}
	return strconv.Itoa(int(p))
}

// Lengths of fixed headers in bytes.
const (
	EthernetLen = 14
	VLANLen     = 4 // one tag
	ARPLen      = 28
	IPv4Len     = 20 // without options
	IPv6Len     = 40 // without extension headers
	UDPLen      = 8
	TCPLen      = 20 // without options
	ICMPLen     = 8
	ICMPv6Len   = 4 // type, code, checksum
	ECPRILen    = 4 // common header
	VXLANLen    = 8
	GRELen      = 4 // without optional fields
	NVGRELen    = 8
)

// Well-known UDP ports.
const (
	PortVXLAN = 4789
)
