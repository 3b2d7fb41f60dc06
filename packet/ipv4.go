package packet

import (
	"encoding/binary"
	"net/netip"
)

// IPv4 is a view of an IPv4 packet (RFC 791) that begins at its header. Bytes may follow behind its
// total length.
type IPv4 []byte

// Valid reports whether the header with its options is complete, of version 4, and its total length
// holds the header and lies within the slice. After that no method panics.
func (p IPv4) Valid() bool {
	if len(p) < IPv4Len || p[0]>>4 != 4 {
		return false
	}
	header, total := p.HeaderLen(), p.TotalLen()
	return header >= IPv4Len && total >= header && total <= len(p)
}

// HeaderLen returns the length of the header with its options in bytes, as its field says.
func (p IPv4) HeaderLen() int { return int(p[0]&15) * 4 }

// TotalLen returns the length of the packet in bytes, header included, as its field says.
func (p IPv4) TotalLen() int { return int(binary.BigEndian.Uint16(p[2:])) }

// TOS returns the type of service: six bits of DSCP, two of ECN.
func (p IPv4) TOS() uint8 { return p[1] }

// ID returns the identification of the datagram whose fragments belong together.
func (p IPv4) ID() uint16 { return binary.BigEndian.Uint16(p[4:]) }

// DontFragment returns the DF flag.
func (p IPv4) DontFragment() bool { return p[6]&0x40 != 0 }

// MoreFragments returns the MF flag.
func (p IPv4) MoreFragments() bool { return p[6]&0x20 != 0 }

// FragmentOffset returns where this fragment begins in its datagram, in bytes.
func (p IPv4) FragmentOffset() uint16 { return binary.BigEndian.Uint16(p[6:]) << 3 }

// TTL returns the time to live.
func (p IPv4) TTL() uint8 { return p[8] }

// Proto returns the protocol of the payload.
func (p IPv4) Proto() Proto { return Proto(p[9]) }

// Checksum returns the checksum field.
func (p IPv4) Checksum() uint16 { return binary.BigEndian.Uint16(p[10:]) }

// Src returns the source address.
func (p IPv4) Src() netip.Addr { return netip.AddrFrom4([4]byte(p[12:16])) }

// Dst returns the destination address.
func (p IPv4) Dst() netip.Addr { return netip.AddrFrom4([4]byte(p[16:20])) }

// Options returns the options with their padding; empty without.
func (p IPv4) Options() []byte { return p[IPv4Len:p.HeaderLen()] }

// Payload returns the bytes between the header and the total length.
func (p IPv4) Payload() []byte { return p[p.HeaderLen():p.TotalLen()] }

// ChecksumOK reports whether the header checksum is right.
func (p IPv4) ChecksumOK() bool { return Checksum(p[:p.HeaderLen()]) == 0 }

// FillChecksum computes the header checksum.
func (p IPv4) FillChecksum() {
	p.setChecksum(0)
	p.setChecksum(Checksum(p[:p.HeaderLen()]))
}

func (p IPv4) setChecksum(v uint16) { binary.BigEndian.PutUint16(p[10:], v) }

// set16 changes the word at an even offset, and the checksum with it.
func (p IPv4) set16(at int, v uint16) {
	old := binary.BigEndian.Uint16(p[at:])
	binary.BigEndian.PutUint16(p[at:], v)
	p.setChecksum(UpdateChecksum(p.Checksum(), old, v))
}

// The setters below change the header checksum with the field (RFC 1624): a right one stays right,
// a wrong one stays wrong. They do not change transport checksums.

// SetTOS sets the type of service.
func (p IPv4) SetTOS(v uint8) { p.set16(0, uint16(p[0])<<8|uint16(v)) }

// SetTotalLen sets the length of the packet in bytes, header included.
func (p IPv4) SetTotalLen(v uint16) { p.set16(2, v) }

// SetID sets the identification.
func (p IPv4) SetID(v uint16) { p.set16(4, v) }

// SetFragment sets the flags and the offset in bytes, whose lower three bits are dropped.
func (p IPv4) SetFragment(dont, more bool, offset uint16) {
	v := offset >> 3
	if dont {
		v |= 0x4000
	}
	if more {
		v |= 0x2000
	}
	p.set16(6, v)
}

// SetTTL sets the time to live.
func (p IPv4) SetTTL(v uint8) { p.set16(8, uint16(v)<<8|uint16(p[9])) }

// SetProto sets the protocol.
func (p IPv4) SetProto(v Proto) { p.set16(8, uint16(p[8])<<8|uint16(v)) }

// SetSrc sets the source address, which must be IPv4; the zero address otherwise.
func (p IPv4) SetSrc(a netip.Addr) { p.setAddr(12, a) }

// SetDst sets the destination address, which must be IPv4; the zero address otherwise.
func (p IPv4) SetDst(a netip.Addr) { p.setAddr(16, a) }

func (p IPv4) setAddr(at int, a netip.Addr) {
	var v [4]byte
	if a.Is4() {
		v = a.As4()
	}
	old := binary.BigEndian.Uint32(p[at:])
	copy(p[at:], v[:])
	p.setChecksum(UpdateChecksum32(p.Checksum(), old, binary.BigEndian.Uint32(v[:])))
}

// IPv4Header is the content of an IPv4 header.
type IPv4Header struct {
	Src, Dst netip.Addr
	Proto    Proto
	TTL      uint8 // 0: 64
	TOS      uint8
	ID       uint16 // of no meaning unless the packet is, or may be cut into, fragments (RFC 6864)

	MayFragment    bool   // routers may cut the packet; otherwise don't-fragment is set, except in fragments
	MoreFragments  bool   // more fragments of the datagram follow
	FragmentOffset uint16 // in bytes, a multiple of 8
	Options        []byte // as on the wire, a multiple of 4 bytes, at most 40
}

// Len returns the length of the header with its options.
func (h *IPv4Header) Len() int { return IPv4Len + len(h.Options) }

// Fill writes the header with its checksum at the beginning of b and returns its length. payload is
// the number of bytes that follow this header in the packet. Errors: ErrRoom, ErrLength,
// ErrAddress, ErrOptions, ErrField.
func (h *IPv4Header) Fill(b []byte, payload int) (int, error) {
	n := h.Len()
	switch {
	case len(h.Options) > 40 || len(h.Options)%4 != 0:
		return 0, ErrOptions
	case len(b) < n:
		return 0, ErrRoom
	case payload < 0 || payload > 0xffff-n:
		return 0, ErrLength
	case !h.Src.Is4() || !h.Dst.Is4():
		return 0, ErrAddress
	case h.FragmentOffset%8 != 0:
		return 0, ErrField
	}
	p := IPv4(b[:n])
	frag := h.FragmentOffset >> 3
	if h.MoreFragments {
		frag |= 0x2000
	}
	if !h.MayFragment && frag == 0 {
		frag |= 0x4000
	}
	p[0] = 4<<4 | byte(n/4)
	p[1] = h.TOS
	binary.BigEndian.PutUint16(p[2:], uint16(n+payload))
	binary.BigEndian.PutUint16(p[4:], h.ID)
	binary.BigEndian.PutUint16(p[6:], frag)
	p[8] = hopLimit(h.TTL)
	p[9] = byte(h.Proto)
	p.setChecksum(0)
	src, dst := h.Src.As4(), h.Dst.As4()
	copy(p[12:16], src[:])
	copy(p[16:20], dst[:])
	copy(p[IPv4Len:], h.Options)
	p.setChecksum(Checksum(p))
	return n, nil
}

// hopLimit is what a TTL or hop limit of zero in a builder means.
func hopLimit(v uint8) uint8 {
	if v == 0 {
		return 64
	}
	return v
}
