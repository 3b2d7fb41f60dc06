package packet

import (
	"encoding/binary"
	"net/netip"
)

// ICMPType is the type of an ICMP or ICMPv6 message; the two have different numbers.
type ICMPType uint8

// Types of ICMP (RFC 792).
const (
	ICMPEchoReply    ICMPType = 0
	ICMPUnreachable  ICMPType = 3
	ICMPRedirect     ICMPType = 5
	ICMPEchoRequest  ICMPType = 8
	ICMPTimeExceeded ICMPType = 11
)

// Types of ICMPv6 (RFC 4443, 4861).
const (
	ICMPv6Unreachable           ICMPType = 1
	ICMPv6PacketTooBig          ICMPType = 2
	ICMPv6TimeExceeded          ICMPType = 3
	ICMPv6EchoRequest           ICMPType = 128
	ICMPv6EchoReply             ICMPType = 129
	ICMPv6RouterSolicitation    ICMPType = 133
	ICMPv6RouterAdvertisement   ICMPType = 134
	ICMPv6NeighborSolicitation  ICMPType = 135
	ICMPv6NeighborAdvertisement ICMPType = 136
)

// ICMP is a view of an ICMP message (RFC 792) that ends where the IP packet ends.
type ICMP []byte

// Valid reports whether the header is complete, so that no method panics.
func (m ICMP) Valid() bool { return len(m) >= ICMPLen }

// Type returns the type.
func (m ICMP) Type() ICMPType { return ICMPType(m[0]) }

// Code returns the code, whose meaning depends on the type.
func (m ICMP) Code() uint8 { return m[1] }

// Checksum returns the checksum field.
func (m ICMP) Checksum() uint16 { return binary.BigEndian.Uint16(m[2:]) }

// Rest returns the second word of the header, whose meaning depends on the type.
func (m ICMP) Rest() uint32 { return binary.BigEndian.Uint32(m[4:]) }

// ID returns the identifier of an echo message.
func (m ICMP) ID() uint16 { return binary.BigEndian.Uint16(m[4:]) }

// Seq returns the sequence number of an echo message.
func (m ICMP) Seq() uint16 { return binary.BigEndian.Uint16(m[6:]) }

// Payload returns what follows the header.
func (m ICMP) Payload() []byte { return m[ICMPLen:] }

// SetType sets the type. Setters leave the checksum as it is.
func (m ICMP) SetType(t ICMPType) { m[0] = byte(t) }

// SetCode sets the code.
func (m ICMP) SetCode(v uint8) { m[1] = v }

// SetRest sets the second word of the header.
func (m ICMP) SetRest(v uint32) { binary.BigEndian.PutUint32(m[4:], v) }

// SetID sets the identifier of an echo message.
func (m ICMP) SetID(v uint16) { binary.BigEndian.PutUint16(m[4:], v) }

// SetSeq sets the sequence number of an echo message.
func (m ICMP) SetSeq(v uint16) { binary.BigEndian.PutUint16(m[6:], v) }

// SetChecksum sets the checksum field.
func (m ICMP) SetChecksum(v uint16) { binary.BigEndian.PutUint16(m[2:], v) }

// ChecksumOK reports whether the checksum is right.
func (m ICMP) ChecksumOK() bool { return Checksum(m) == 0 }

// FillChecksum computes the checksum.
func (m ICMP) FillChecksum() {
	m.SetChecksum(0)
	m.SetChecksum(Checksum(m))
}

// ICMPHeader is the header of an ICMP message.
type ICMPHeader struct {
	Type ICMPType
	Code uint8
	Rest uint32 // second word; for an echo, EchoRest(id, seq)
}

// EchoRest returns the second word of an echo message of ICMP, and the first behind the header of
// ICMPv6.
func EchoRest(id, seq uint16) uint32 { return uint32(id)<<16 | uint32(seq) }

// Len returns 8.
func (h *ICMPHeader) Len() int { return ICMPLen }

// Fill writes the header at the beginning of b, with the checksum 0, and returns its length.
// ICMP.FillChecksum adds the checksum when the payload is there. Errors: ErrRoom.
func (h *ICMPHeader) Fill(b []byte) (int, error) {
	if len(b) < ICMPLen {
		return 0, ErrRoom
	}
	m := ICMP(b)
	m[0], m[1] = byte(h.Type), h.Code
	m.SetChecksum(0)
	m.SetRest(h.Rest)
	return ICMPLen, nil
}

// ICMPv6 is a view of an ICMPv6 message (RFC 4443) that ends where the IP packet ends. For
// neighbour discovery see Neighbor.
type ICMPv6 []byte

// Valid reports whether the common header is complete. Rest, ID and Seq need four bytes more, as
// most messages have: they return 0 otherwise. After that no getter panics.
func (m ICMPv6) Valid() bool { return len(m) >= ICMPv6Len }

// Type returns the type.
func (m ICMPv6) Type() ICMPType { return ICMPType(m[0]) }

// Code returns the code, whose meaning depends on the type.
func (m ICMPv6) Code() uint8 { return m[1] }

// Checksum returns the checksum field.
func (m ICMPv6) Checksum() uint16 { return binary.BigEndian.Uint16(m[2:]) }

// Rest returns the word behind the header, whose meaning depends on the type (the MTU of
// ICMPv6PacketTooBig); 0 when it is missing.
func (m ICMPv6) Rest() uint32 {
	if len(m) < 8 {
		return 0
	}
	return binary.BigEndian.Uint32(m[4:])
}

// ID returns the identifier of an echo message.
func (m ICMPv6) ID() uint16 { return uint16(m.Rest() >> 16) }

// Seq returns the sequence number of an echo message.
func (m ICMPv6) Seq() uint16 { return uint16(m.Rest()) }

// Payload returns what follows the common header.
func (m ICMPv6) Payload() []byte { return m[ICMPv6Len:] }

// SetType sets the type. Setters leave the checksum as it is.
func (m ICMPv6) SetType(t ICMPType) { m[0] = byte(t) }

// SetCode sets the code.
func (m ICMPv6) SetCode(v uint8) { m[1] = v }

// SetRest sets the word behind the header. The message must be 8 bytes long at least.
func (m ICMPv6) SetRest(v uint32) { binary.BigEndian.PutUint32(m[4:], v) }

// SetChecksum sets the checksum field.
func (m ICMPv6) SetChecksum(v uint16) { binary.BigEndian.PutUint16(m[2:], v) }

// ChecksumOK reports whether the checksum is right for a message between the two addresses.
func (m ICMPv6) ChecksumOK(src, dst netip.Addr) bool {
	return PseudoSum(src, dst, ProtoICMPv6, uint32(len(m))).Add(m).Checksum() == 0
}

// FillChecksum computes the checksum of a message between the two addresses.
func (m ICMPv6) FillChecksum(src, dst netip.Addr) {
	m.SetChecksum(0)
	m.SetChecksum(PseudoSum(src, dst, ProtoICMPv6, uint32(len(m))).Add(m).Checksum())
}

// ICMPv6Header is the header of an ICMPv6 message with the word that follows it in all messages of
// RFC 4443.
type ICMPv6Header struct {
	Type ICMPType
	Code uint8
	Rest uint32 // for an echo, EchoRest(id, seq)
}

// Len returns 8.
func (h *ICMPv6Header) Len() int { return ICMPv6Len + 4 }

// Fill writes header and word at the beginning of b, with the checksum 0, and returns their length.
// ICMPv6.FillChecksum adds the checksum when the payload is there. Errors: ErrRoom.
func (h *ICMPv6Header) Fill(b []byte) (int, error) {
	if len(b) < h.Len() {
		return 0, ErrRoom
	}
	m := ICMPv6(b)
	m[0], m[1] = byte(h.Type), h.Code
	m.SetChecksum(0)
	m.SetRest(h.Rest)
	return h.Len(), nil
}
