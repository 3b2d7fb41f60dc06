package packet

import (
	"encoding/binary"
	"net/netip"
)

// UDP is a view of a UDP datagram (RFC 768) that begins at its header. Bytes may follow behind its
// length.
type UDP []byte

// Valid reports whether the header is complete and its length field holds the header and lies
// within the slice. After that no method panics.
func (u UDP) Valid() bool { return len(u) >= UDPLen && u.Length() >= UDPLen && u.Length() <= len(u) }

// SrcPort returns the source port.
func (u UDP) SrcPort() uint16 { return binary.BigEndian.Uint16(u) }

// DstPort returns the destination port.
func (u UDP) DstPort() uint16 { return binary.BigEndian.Uint16(u[2:]) }

// Length returns the length of the datagram in bytes, header included, as its field says.
func (u UDP) Length() int { return int(binary.BigEndian.Uint16(u[4:])) }

// Checksum returns the checksum field; 0 means that the sender computed none.
func (u UDP) Checksum() uint16 { return binary.BigEndian.Uint16(u[6:]) }

// Payload returns the bytes between the header and the length.
func (u UDP) Payload() []byte { return u[UDPLen:u.Length()] }

// SetSrcPort sets the source port. The checksum stays as it is.
func (u UDP) SetSrcPort(v uint16) { binary.BigEndian.PutUint16(u, v) }

// SetDstPort sets the destination port. The checksum stays as it is.
func (u UDP) SetDstPort(v uint16) { binary.BigEndian.PutUint16(u[2:], v) }

// SetLength sets the length of the datagram in bytes, header included. The checksum stays as it is.
func (u UDP) SetLength(v uint16) { binary.BigEndian.PutUint16(u[4:], v) }

// SetChecksum sets the checksum field. See FillChecksum, and UpdateUDPChecksum for a changed field.
func (u UDP) SetChecksum(v uint16) { binary.BigEndian.PutUint16(u[6:], v) }

// ChecksumOK reports whether the checksum is right for a datagram between the two addresses. A
// missing checksum is right over IPv4 and wrong over IPv6 (RFC 8200 section 8.1); tunnels over IPv6
// that allow it look at Checksum first.
func (u UDP) ChecksumOK(src, dst netip.Addr) bool {
	if u.Checksum() == 0 {
		return src.Is4()
	}
	n := u.Length()
	return PseudoSum(src, dst, ProtoUDP, uint32(n)).Add(u[:n]).Checksum() == 0
}

// FillChecksum computes the checksum of a datagram between the two addresses. A sum of 0 is written
// as 0xffff, which is the same number in one's complement, because 0 says that there is no
// checksum.
func (u UDP) FillChecksum(src, dst netip.Addr) {
	n := u.Length()
	u.SetChecksum(0)
	u.SetChecksum(notZero(PseudoSum(src, dst, ProtoUDP, uint32(n)).Add(u[:n]).Checksum()))
}

// FillPseudo writes the folded sum of the pseudo header into the checksum field, where a network
// card or the kernel finishes it (ChecksumOffload).
func (u UDP) FillPseudo(src, dst netip.Addr) {
	u.SetChecksum(PseudoSum(src, dst, ProtoUDP, uint32(u.Length())).Fold())
}

// notZero is the rule of RFC 768 for a computed checksum.
func notZero(v uint16) uint16 {
	if v == 0 {
		return 0xffff
	}
	return v
}

// UpdateUDPChecksum is UpdateChecksum for UDP: no checksum stays no checksum, and a computed one
// never becomes 0.
func UpdateUDPChecksum(checksum, old, new uint16) uint16 {
	if checksum == 0 {
		return 0
	}
	return notZero(UpdateChecksum(checksum, old, new))
}

// UDPHeader is the content of a UDP header.
type UDPHeader struct {
	SrcPort, DstPort uint16
}

// Len returns 8.
func (h *UDPHeader) Len() int { return UDPLen }

// Fill writes the header at the beginning of b, without a checksum (0), and returns its length.
// payload is the number of bytes that follow this header in the datagram. UDP.FillChecksum adds the
// checksum when the payload is there. Errors: ErrRoom, ErrLength.
func (h *UDPHeader) Fill(b []byte, payload int) (int, error) {
	if len(b) < UDPLen {
		return 0, ErrRoom
	}
	if payload < 0 || payload > 0xffff-UDPLen {
		return 0, ErrLength
	}
	u := UDP(b)
	u.SetSrcPort(h.SrcPort)
	u.SetDstPort(h.DstPort)
	u.SetLength(uint16(UDPLen + payload))
	u.SetChecksum(0)
	return UDPLen, nil
}
