package packet

import "encoding/binary"

// Ethernet is a view of an Ethernet II frame, which begins with the destination address (preamble
// and frame check sequence are not in memory).
type Ethernet []byte

// Valid reports whether the header is complete, so that no method panics.
func (e Ethernet) Valid() bool { return len(e) >= EthernetLen }

// Dst returns the destination address.
func (e Ethernet) Dst() MAC { return MAC(e[0:6]) }

// Src returns the source address.
func (e Ethernet) Src() MAC { return MAC(e[6:12]) }

// Type returns the EtherType, which can be that of a VLAN tag.
func (e Ethernet) Type() EtherType { return EtherType(binary.BigEndian.Uint16(e[12:])) }

// Payload returns what follows the header: a VLAN tag or the packet, with padding.
func (e Ethernet) Payload() []byte { return e[EthernetLen:] }

// SetDst sets the destination address.
func (e Ethernet) SetDst(m MAC) { copy(e[0:6], m[:]) }

// SetSrc sets the source address.
func (e Ethernet) SetSrc(m MAC) { copy(e[6:12], m[:]) }

// SetType sets the EtherType.
func (e Ethernet) SetType(t EtherType) { binary.BigEndian.PutUint16(e[12:], uint16(t)) }

// EthernetHeader is the content of an Ethernet header.
type EthernetHeader struct {
	Dst, Src MAC
	Type     EtherType
}

// Len returns 14.
func (h *EthernetHeader) Len() int { return EthernetLen }

// Fill writes the header at the beginning of b and returns its length. Errors: ErrRoom.
func (h *EthernetHeader) Fill(b []byte) (int, error) {
	if len(b) < EthernetLen {
		return 0, ErrRoom
	}
	e := Ethernet(b)
	e.SetDst(h.Dst)
	e.SetSrc(h.Src)
	e.SetType(h.Type)
	return EthernetLen, nil
}

// TCI is the tag control information of a VLAN tag (IEEE 802.1Q): 3 bits of priority, 1 bit of drop
// eligibility, 12 bits of VLAN identifier.
type TCI uint16

// MakeTCI puts a tag together. Bits of id above 12 and of priority above 3 are dropped.
func MakeTCI(id uint16, priority uint8, dropEligible bool) TCI {
	t := TCI(id&0x0fff) | TCI(priority&7)<<13
	if dropEligible {
		t |= 0x1000
	}
	return t
}

// ID returns the VLAN identifier, 0 to 4095; 0 means that the tag carries a priority only.
func (t TCI) ID() uint16 { return uint16(t & 0x0fff) }

// Priority returns the priority code point, 0 to 7.
func (t TCI) Priority() uint8 { return uint8(t >> 13) }

// DropEligible returns the drop eligible indicator.
func (t TCI) DropEligible() bool { return t&0x1000 != 0 }

// VLAN is a view of a VLAN tag behind its tag protocol identifier: the tag control information,
// then the next EtherType. It is the payload of an Ethernet header, or of a tag, whose type
// satisfies IsTag.
type VLAN []byte

// Valid reports whether the tag is complete, so that no method panics.
func (v VLAN) Valid() bool { return len(v) >= VLANLen }

// TCI returns the tag control information.
func (v VLAN) TCI() TCI { return TCI(binary.BigEndian.Uint16(v)) }

// Type returns the EtherType of what follows the tag.
func (v VLAN) Type() EtherType { return EtherType(binary.BigEndian.Uint16(v[2:])) }

// Payload returns what follows the tag.
func (v VLAN) Payload() []byte { return v[VLANLen:] }

// SetTCI sets the tag control information.
func (v VLAN) SetTCI(t TCI) { binary.BigEndian.PutUint16(v, uint16(t)) }

// SetType sets the EtherType of what follows the tag.
func (v VLAN) SetType(t EtherType) { binary.BigEndian.PutUint16(v[2:], uint16(t)) }

// VLANHeader is the content of a VLAN tag. The EtherType before it says which kind of tag it is.
type VLANHeader struct {
	TCI  TCI
	Type EtherType // of what follows
}

// Len returns 4.
func (h *VLANHeader) Len() int { return VLANLen }

// Fill writes the tag at the beginning of b, which is where the Ethernet header ends, and returns
// its length. Errors: ErrRoom.
func (h *VLANHeader) Fill(b []byte) (int, error) {
	if len(b) < VLANLen {
		return 0, ErrRoom
	}
	VLAN(b).SetTCI(h.TCI)
	VLAN(b).SetType(h.Type)
	return VLANLen, nil
}
