package packet

import "encoding/binary"

// VXLAN is a view of a VXLAN header (RFC 7348), the payload of UDP to port 4789; an Ethernet frame
// follows it.
type VXLAN []byte

// Valid reports whether the header is complete and its I flag is set. After that no method panics.
func (v VXLAN) Valid() bool { return len(v) >= VXLANLen && v[0]&0x08 != 0 }

// Flags returns the first byte: 0x08 says that the network identifier is valid, the other bits are
// reserved.
func (v VXLAN) Flags() uint8 { return v[0] }

// VNI returns the network identifier, 24 bits.
func (v VXLAN) VNI() uint32 { return binary.BigEndian.Uint32(v[4:]) >> 8 }

// Payload returns the Ethernet frame.
func (v VXLAN) Payload() []byte { return v[VXLANLen:] }

// SetFlags sets the first byte.
func (v VXLAN) SetFlags(f uint8) { v[0] = f }

// SetVNI sets the network identifier; bits above 24 are dropped.
func (v VXLAN) SetVNI(id uint32) {
	binary.BigEndian.PutUint32(v[4:], id<<8|uint32(v[7]))
}

// VXLANHeader is the content of a VXLAN header.
type VXLANHeader struct {
	VNI uint32 // at most 24 bits
}

// Len returns 8.
func (h *VXLANHeader) Len() int { return VXLANLen }

// Fill writes the header at the beginning of b and returns its length. Errors: ErrRoom, ErrField.
func (h *VXLANHeader) Fill(b []byte) (int, error) {
	if len(b) < VXLANLen {
		return 0, ErrRoom
	}
	if h.VNI >= 1<<24 {
		return 0, ErrField
	}
	binary.BigEndian.PutUint32(b, 0x08<<24)
	binary.BigEndian.PutUint32(b[4:], h.VNI<<8)
	return VXLANLen, nil
}
