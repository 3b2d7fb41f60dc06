package packet

import (
	"encoding/binary"
	"net/netip"
)

// TCPFlags are the control bits of a TCP header.
type TCPFlags uint16

// The control bits (RFC 9293 section 3.1; AE is RFC 9768).
const (
	TCPFin TCPFlags = 1 << iota
	TCPSyn
	TCPRst
	TCPPsh
	TCPAck
	TCPUrg
	TCPEce
	TCPCwr
	TCPAe
)

// TCP is a view of a TCP segment (RFC 9293) that begins at its header and ends where the segment
// ends: TCP has no length field, so cut it at the end of the IP packet (Layers.End, IPv4.Payload).
type TCP []byte

// Valid reports whether the header with its options is complete. After that no method panics.
func (t TCP) Valid() bool {
	return len(t) >= TCPLen && t.HeaderLen() >= TCPLen && t.HeaderLen() <= len(t)
}

// SrcPort returns the source port.
func (t TCP) SrcPort() uint16 { return binary.BigEndian.Uint16(t) }

// DstPort returns the destination port.
func (t TCP) DstPort() uint16 { return binary.BigEndian.Uint16(t[2:]) }

// Seq returns the sequence number.
func (t TCP) Seq() uint32 { return binary.BigEndian.Uint32(t[4:]) }

// Ack returns the acknowledgement number.
func (t TCP) Ack() uint32 { return binary.BigEndian.Uint32(t[8:]) }

// HeaderLen returns the length of the header with its options in bytes, as the data offset says.
func (t TCP) HeaderLen() int { return int(t[12]>>4) * 4 }

// Flags returns the control bits.
func (t TCP) Flags() TCPFlags { return TCPFlags(binary.BigEndian.Uint16(t[12:]) & 0x1ff) }

// Window returns the receive window, not scaled.
func (t TCP) Window() uint16 { return binary.BigEndian.Uint16(t[14:]) }

// Checksum returns the checksum field.
func (t TCP) Checksum() uint16 { return binary.BigEndian.Uint16(t[16:]) }

// Urgent returns the urgent pointer.
func (t TCP) Urgent() uint16 { return binary.BigEndian.Uint16(t[18:]) }

// Options returns the options with their padding; empty without.
func (t TCP) Options() []byte { return t[TCPLen:t.HeaderLen()] }

// Payload returns what follows the header.
func (t TCP) Payload() []byte { return t[t.HeaderLen():] }

// The setters below leave the checksum as it is: see FillChecksum and UpdateChecksum.

// SetSrcPort sets the source port.
func (t TCP) SetSrcPort(v uint16) { binary.BigEndian.PutUint16(t, v) }

// SetDstPort sets the destination port.
func (t TCP) SetDstPort(v uint16) { binary.BigEndian.PutUint16(t[2:], v) }

// SetSeq sets the sequence number.
func (t TCP) SetSeq(v uint32) { binary.BigEndian.PutUint32(t[4:], v) }

// SetAck sets the acknowledgement number.
func (t TCP) SetAck(v uint32) { binary.BigEndian.PutUint32(t[8:], v) }

// SetFlags sets the control bits.
func (t TCP) SetFlags(v TCPFlags) {
	binary.BigEndian.PutUint16(t[12:], binary.BigEndian.Uint16(t[12:])&^0x1ff|uint16(v)&0x1ff)
}

// SetWindow sets the receive window.
func (t TCP) SetWindow(v uint16) { binary.BigEndian.PutUint16(t[14:], v) }

// SetChecksum sets the checksum field.
func (t TCP) SetChecksum(v uint16) { binary.BigEndian.PutUint16(t[16:], v) }

// SetUrgent sets the urgent pointer.
func (t TCP) SetUrgent(v uint16) { binary.BigEndian.PutUint16(t[18:], v) }

// ChecksumOK reports whether the checksum is right for a segment between the two addresses.
func (t TCP) ChecksumOK(src, dst netip.Addr) bool {
	return PseudoSum(src, dst, ProtoTCP, uint32(len(t))).Add(t).Checksum() == 0
}

// FillChecksum computes the checksum of a segment between the two addresses.
func (t TCP) FillChecksum(src, dst netip.Addr) {
	t.SetChecksum(0)
	t.SetChecksum(PseudoSum(src, dst, ProtoTCP, uint32(len(t))).Add(t).Checksum())
}

// TCPHeader is the content of a TCP header.
type TCPHeader struct {
	SrcPort, DstPort uint16
	Seq, Ack         uint32
	Flags            TCPFlags
	Window, Urgent   uint16
	Options          []byte // as on the wire, a multiple of 4 bytes, at most 40
}

// Len returns the length of the header with its options.
func (h *TCPHeader) Len() int { return TCPLen + len(h.Options) }

// Fill writes the header at the beginning of b, with the checksum 0, and returns its length.
// TCP.FillChecksum adds the checksum when the payload is there. Errors: ErrRoom, ErrOptions,
// ErrField.
func (h *TCPHeader) Fill(b []byte) (int, error) {
	n := h.Len()
	switch {
	case len(h.Options) > 40 || len(h.Options)%4 != 0:
		return 0, ErrOptions
	case len(b) < n:
		return 0, ErrRoom
	case h.Flags > 0x1ff:
		return 0, ErrField
	}
	t := TCP(b[:n])
	t.SetSrcPort(h.SrcPort)
	t.SetDstPort(h.DstPort)
	t.SetSeq(h.Seq)
	t.SetAck(h.Ack)
	binary.BigEndian.PutUint16(t[12:], uint16(n/4)<<12|uint16(h.Flags))
	t.SetWindow(h.Window)
	t.SetChecksum(0)
	t.SetUrgent(h.Urgent)
	copy(t[TCPLen:], h.Options)
	return n, nil
}
