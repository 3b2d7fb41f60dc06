package packet

import "errors"

// Reason says why bytes are not a packet that this package can read. OK means that they are.
// Reasons are small consecutive numbers below NumReasons, so a receiver can keep one counter for
// each.
//
// "Short" means that the bytes end inside a header, "Truncated" that a header announces more bytes
// than there are, and "Bad" that a field contradicts its specification.
type Reason uint8

// The reasons, from the outside of a frame to its inside.
const (
	OK             Reason = iota
	ShortEthernet         // fewer than 14 bytes
	ShortVLAN             // ends inside a VLAN tag
	ShortIPv4             // ends inside the IPv4 header or its options
	BadIPv4Version        // EtherType IPv4, version not 4
	BadIPv4Header         // header length below 20 bytes
	BadIPv4Length         // total length smaller than the header
	TruncatedIPv4         // total length larger than the frame
	ShortIPv6             // ends inside the IPv6 header
	BadIPv6Version        // EtherType IPv6, version not 6
	TruncatedIPv6         // payload length larger than the frame
	ShortExtension        // ends inside an IPv6 extension header
	LongExtensions        // more than MaxExtensions IPv6 extension headers
	ShortUDP              // ends inside the UDP header
	BadUDPLength          // UDP length below 8
	TruncatedUDP          // UDP length larger than the IP packet
	ShortTCP              // ends inside the TCP header or its options
	BadTCPHeader          // data offset below 20 bytes
	ShortICMP             // ends inside the ICMP or ICMPv6 header
	NotIP                 // ParseIP: neither version 4 nor 6
	NoTunnel              // ParseTunnel: the packet carries no tunnel that it knows
	ShortTunnel           // ends inside the tunnel header
	BadTunnel             // tunnel header with a version or flags that cannot be read
	TunnelChecksum        // Decap: the checksum of GRE is wrong
	NumReasons     = int(iota)
)

var reasons = [NumReasons]string{
	OK:             "ok",
	ShortEthernet:  "short_ethernet",
	ShortVLAN:      "short_vlan",
	ShortIPv4:      "short_ipv4",
	BadIPv4Version: "bad_ipv4_version",
	BadIPv4Header:  "bad_ipv4_header_length",
	BadIPv4Length:  "bad_ipv4_total_length",
	TruncatedIPv4:  "truncated_ipv4",
	ShortIPv6:      "short_ipv6",
	BadIPv6Version: "bad_ipv6_version",
	TruncatedIPv6:  "truncated_ipv6",
	ShortExtension: "short_ipv6_extension",
	LongExtensions: "too_many_ipv6_extensions",
	ShortUDP:       "short_udp",
	BadUDPLength:   "bad_udp_length",
	TruncatedUDP:   "truncated_udp",
	ShortTCP:       "short_tcp",
	BadTCPHeader:   "bad_tcp_data_offset",
	ShortICMP:      "short_icmp",
	NotIP:          "not_ip",
	NoTunnel:       "no_tunnel",
	ShortTunnel:    "short_tunnel",
	BadTunnel:      "bad_tunnel",
	TunnelChecksum: "bad_tunnel_checksum",
}

// String is a name in lower case with underscores, fit for the label of a counter.
func (r Reason) String() string {
	if int(r) < NumReasons {
		return reasons[r]
	}
	return "unknown"
}

// Err returns nil for OK, and otherwise an error that wraps ErrMalformed. It allocates nothing.
func (r Reason) Err() error {
	if r == OK {
		return nil
	}
	return malformed(r)
}

// malformed is a Reason that is not OK, as an error. Go keeps values of one byte in a table, so
// making it an interface is free.
type malformed Reason

func (m malformed) Error() string { return "packet: malformed packet: " + Reason(m).String() }
func (m malformed) Unwrap() error { return ErrMalformed }

// The errors of this package. All are fixed values: a failing call allocates as little as one that
// succeeds.
var (
	// ErrMalformed is wrapped by the errors of Reason.Err.
	ErrMalformed = errors.New("packet: malformed packet")
	ErrRoom      = errors.New("packet: the buffer is too short for the header: give it at least the builder's Len bytes")
	ErrLength    = errors.New("packet: the payload is too long for the length field, or negative: at most 65,535 " +
		"bytes with the headers it counts")
	ErrAddress = errors.New("packet: source and destination must both be IPv4 (not IPv4 in IPv6), or both IPv6, as " +
		"the header demands")
	ErrField    = errors.New("packet: a field is out of range: see the comment of each field of the builder")
	ErrOptions  = errors.New("packet: options must be at most 40 bytes and a multiple of 4; pad them with zeros")
	ErrChecksum = errors.New("packet: the checksum covers the payload, which is not in the buffer: choose " +
		"ChecksumNone or ChecksumOffload")
	ErrHeadroom = errors.New("packet: not enough headroom before the frame: leave Overhead bytes free in front of it")
	ErrTunnel   = errors.New("packet: the tunnel cannot carry this frame: GRE with an IP protocol needs an Ethernet " +
		"frame of that type")
	ErrNoTag = errors.New("packet: the frame has no VLAN tag to remove")
)
