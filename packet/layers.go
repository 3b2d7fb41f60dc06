package packet

import (
	"encoding/binary"
	"net/netip"
)

// MaxExtensions is how many IPv6 extension headers Parse walks before it gives up with
// LongExtensions. RFC 8200 section 4.1 names seven at most that have an order.
const MaxExtensions = 8

// Tunnel is a kind of encapsulation.
type Tunnel uint8

// The tunnels that ParseTunnel, Encap and Decap know.
const (
	TunnelNone  Tunnel = iota
	TunnelVXLAN        // RFC 7348: Ethernet in UDP, port 4789
	TunnelGRE          // RFC 2784, 2890: IPv4, IPv6 or Ethernet in GRE
	TunnelNVGRE        // RFC 7637: Ethernet in GRE, the key is a 24-bit subnet and an 8-bit flow
)

func (t Tunnel) String() string {
	switch t {
	case TunnelNone:
		return "none"
	case TunnelVXLAN:
		return "vxlan"
	case TunnelGRE:
		return "gre"
	case TunnelNVGRE:
		return "nvgre"
	}
	return "unknown"
}

// Layers is where the layers of one frame lie, and the fields that steering reads. Parse fills it;
// reuse it from frame to frame. Offsets count bytes from the first byte of the slice given to
// Parse, ParseIP or ParseTunnel. A field of a layer that the frame does not have is 0; after an
// answer other than OK the fields of the layers before the fault are set.
type Layers struct {
	L2      uint16 // Ethernet header (0, except for the inner frame of a tunnel)
	L3      uint16 // first byte behind EtherType and tags: the IP header, or the payload of another EtherType
	L4      uint16 // header of TCP, UDP, ICMP and so on; for a later fragment its first byte of data
	Payload uint16 // first byte behind the innermost header that was read
	End     uint32 // one past the last byte of payload; padding of the frame lies behind it

	IPLen      uint32    // length of the IP packet from L3, headers included; 0: not IP
	EtherType  EtherType // behind the tags; more than two tags: the type of the third
	FragOffset uint16    // of this fragment in its datagram, in bytes
	SrcPort    uint16    // of TCP and UDP, when HasPorts
	DstPort    uint16
	Tags       [2]TCI // VLAN tags, outer first; NumTags are valid
	NumTags    uint8
	IPVersion  uint8 // 4, 6, or 0: not IP
	Proto      Proto // behind the extension headers; valid when IPVersion is not 0

	HasL2         bool // false when parsing began at an IP header
	HasPorts      bool // TCP or UDP header present: not in later fragments
	MoreFragments bool

	Tunnel Tunnel // set by ParseTunnel, as are the next two
	Inner  uint16 // offset of the tunnel's payload: an Ethernet frame, or an IP packet in GRE
	VNI    uint32 // VXLAN network identifier, NVGRE virtual subnet, or GRE key (0 without)
}

// IsFragment reports whether the frame carries a part of a datagram. A first part can have ports,
// later ones cannot.
func (l *Layers) IsFragment() bool { return l.MoreFragments || l.FragOffset != 0 }

// Outer returns the outer VLAN tag, or 0 and false.
func (l *Layers) Outer() (TCI, bool) { return l.Tags[0], l.NumTags > 0 }

// Src returns the IP source address in frame, the slice that was parsed; the zero Addr when it is
// not IP.
func (l *Layers) Src(frame []byte) netip.Addr {
	switch l.IPVersion {
	case 4:
		return IPv4(frame[l.L3:]).Src()
	case 6:
		return IPv6(frame[l.L3:]).Src()
	}
	return netip.Addr{}
}

// Dst returns the IP destination address in frame, the slice that was parsed; the zero Addr when it
// is not IP.
func (l *Layers) Dst(frame []byte) netip.Addr {
	switch l.IPVersion {
	case 4:
		return IPv4(frame[l.L3:]).Dst()
	case 6:
		return IPv6(frame[l.L3:]).Dst()
	}
	return netip.Addr{}
}

// Parse reads the headers of an Ethernet frame up to the payload of TCP, UDP or ICMP into l,
// overwriting what was there. It takes a bounded number of steps for any bytes, allocates nothing
// and keeps no reference to frame.
//
// It checks what later code relies on: every offset up to End lies inside frame, header lengths and
// total lengths agree. It does not verify checksums (network cards do; see ChecksumOK of the
// views). Frames of an EtherType or IP protocol that it does not know are OK: L3 or L4 equals
// Payload. Bytes behind the IP packet are padding and are ignored. A third VLAN tag is such an
// unknown payload. IPv6 jumbograms (RFC 2675) are not supported: they end as ShortUDP, ShortTCP or
// ShortExtension. Inside an ESP header nothing can be read: Proto is ProtoESP and Payload its first
// byte.
func Parse(frame []byte, l *Layers) Reason {
	*l = Layers{HasL2: true}
	return l.ethernet(frame, 0)
}

// ParseIP is Parse for bytes that begin with an IPv4 or IPv6 header.
func ParseIP(packet []byte, l *Layers) Reason {
	*l = Layers{}
	return l.ip(packet, 0)
}

func (l *Layers) ip(b []byte, at int) Reason {
	if at >= len(b) {
		return NotIP
	}
	l.End = uint32(len(b))
	l.L3, l.Payload = uint16(at), uint16(at)
	switch b[at] >> 4 {
	case 4:
		l.EtherType = EtherTypeIPv4
		return l.ipv4(b, at)
	case 6:
		l.EtherType = EtherTypeIPv6
		return l.ipv6(b, at)
	}
	return NotIP
}

func (l *Layers) ethernet(b []byte, at int) Reason {
	if len(b)-at < EthernetLen {
		return ShortEthernet
	}
	l.L2 = uint16(at)
	l.End = uint32(len(b))
	t := EtherType(binary.BigEndian.Uint16(b[at+12:]))
	at += EthernetLen
	for t.IsTag() && int(l.NumTags) < len(l.Tags) {
		if len(b)-at < VLANLen {
			return ShortVLAN
		}
		l.Tags[l.NumTags&1] = TCI(binary.BigEndian.Uint16(b[at:]))
		l.NumTags++
		t = EtherType(binary.BigEndian.Uint16(b[at+2:]))
		at += VLANLen
	}
	l.EtherType = t
	l.L3, l.Payload = uint16(at), uint16(at)
	switch t {
	case EtherTypeIPv4:
		return l.ipv4(b, at)
	case EtherTypeIPv6:
		return l.ipv6(b, at)
	}
	return OK
}

func (l *Layers) ipv4(b []byte, at int) Reason {
	if len(b)-at < IPv4Len {
		return ShortIPv4
	}
	h := b[at : at+IPv4Len]
	if h[0]>>4 != 4 {
		return BadIPv4Version
	}
	header, total := int(h[0]&15)*4, int(binary.BigEndian.Uint16(h[2:]))
	switch {
	case header < IPv4Len:
		return BadIPv4Header
	case header > len(b)-at:
		return ShortIPv4
	case total < header:
		return BadIPv4Length
	case total > len(b)-at:
		return TruncatedIPv4
	}
	frag := binary.BigEndian.Uint16(h[6:])
	l.IPVersion = 4
	l.Proto = Proto(h[9])
	l.IPLen = uint32(total)
	l.End = uint32(at + total)
	l.FragOffset = frag << 3
	l.MoreFragments = frag&0x2000 != 0
	return l.transport(b[:at+total], at+header)
}

func (l *Layers) ipv6(b []byte, at int) Reason {
	if len(b)-at < IPv6Len {
		return ShortIPv6
	}
	h := b[at : at+IPv6Len]
	if h[0]>>4 != 6 {
		return BadIPv6Version
	}
	total := IPv6Len + int(binary.BigEndian.Uint16(h[4:]))
	if total > len(b)-at {
		return TruncatedIPv6
	}
	l.IPVersion = 6
	l.Proto = Proto(h[6])
	l.IPLen = uint32(total)
	l.End = uint32(at + total)
	b, at = b[:at+total], at+IPv6Len
	for n := 0; l.Proto.IsExtension(); n++ {
		if n == MaxExtensions {
			return LongExtensions
		}
		size := extensionLen(l.Proto, b[at:])
		if size == 0 {
			return ShortExtension
		}
		next := Proto(b[at])
		if l.Proto == ProtoFragment {
			frag := binary.BigEndian.Uint16(b[at+2:])
			l.FragOffset, l.MoreFragments = frag&^7, frag&1 != 0
		}
		l.Proto = next
		at += size
		l.Payload = uint16(at)
		if l.FragOffset != 0 {
			break // what follows is data, not a header
		}
	}
	return l.transport(b, at)
}

// transport reads the header behind IP. b ends where the IP packet ends.
func (l *Layers) transport(b []byte, at int) Reason {
	l.L4, l.Payload = uint16(at), uint16(at)
	if l.FragOffset != 0 {
		return OK
	}
	h := b[at:]
	switch l.Proto {
	case ProtoUDP:
		if len(h) < UDPLen {
			return ShortUDP
		}
		switch n := int(binary.BigEndian.Uint16(h[4:])); {
		case n < UDPLen:
			return BadUDPLength
		case n <= len(h):
			l.End = uint32(at + n)
		case !l.MoreFragments: // the length is that of the whole datagram
			return TruncatedUDP
		}
		l.SrcPort, l.DstPort = binary.BigEndian.Uint16(h), binary.BigEndian.Uint16(h[2:])
		l.HasPorts = true
		l.Payload = uint16(at + UDPLen)
	case ProtoTCP:
		if len(h) < TCPLen {
			return ShortTCP
		}
		n := int(h[12]>>4) * 4
		if n < TCPLen {
			return BadTCPHeader
		}
		if n > len(h) {
			return ShortTCP
		}
		l.SrcPort, l.DstPort = binary.BigEndian.Uint16(h), binary.BigEndian.Uint16(h[2:])
		l.HasPorts = true
		l.Payload = uint16(at + n)
	case ProtoICMP:
		if len(h) < ICMPLen {
			return ShortICMP
		}
		l.Payload = uint16(at + ICMPLen)
	case ProtoICMPv6:
		if len(h) < ICMPv6Len {
			return ShortICMP
		}
		l.Payload = uint16(at + ICMPv6Len)
	}
	return OK
}
