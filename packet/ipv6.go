package packet

import (
	"encoding/binary"
	"net/netip"
)

// IPv6 is a view of an IPv6 packet (RFC 8200) that begins at its header. Bytes may follow behind
// its payload length.
type IPv6 []byte

// Valid reports whether the fixed header is complete, of version 6, and its payload length lies
// within the slice. After that no method panics.
func (p IPv6) Valid() bool {
	return len(p) >= IPv6Len && p[0]>>4 == 6 && IPv6Len+p.PayloadLen() <= len(p)
}

// PayloadLen returns the number of bytes behind the fixed header (extension headers included), as
// its field says.
func (p IPv6) PayloadLen() int { return int(binary.BigEndian.Uint16(p[4:])) }

// TrafficClass returns six bits of DSCP and two of ECN.
func (p IPv6) TrafficClass() uint8 { return p[0]<<4 | p[1]>>4 }

// FlowLabel returns the 20-bit flow label.
func (p IPv6) FlowLabel() uint32 { return binary.BigEndian.Uint32(p) & 0xfffff }

// NextHeader returns the type of what follows the fixed header, which can be an extension header.
func (p IPv6) NextHeader() Proto { return Proto(p[6]) }

// HopLimit returns the hop limit.
func (p IPv6) HopLimit() uint8 { return p[7] }

// Src returns the source address.
func (p IPv6) Src() netip.Addr { return netip.AddrFrom16([16]byte(p[8:24])) }

// Dst returns the destination address.
func (p IPv6) Dst() netip.Addr { return netip.AddrFrom16([16]byte(p[24:40])) }

// Payload returns the bytes behind the fixed header, extension headers first.
func (p IPv6) Payload() []byte { return p[IPv6Len : IPv6Len+p.PayloadLen()] }

// SetPayloadLen sets the number of bytes behind the fixed header.
func (p IPv6) SetPayloadLen(v uint16) { binary.BigEndian.PutUint16(p[4:], v) }

// SetTrafficClass sets DSCP and ECN.
func (p IPv6) SetTrafficClass(v uint8) {
	p[0] = p[0]&0xf0 | v>>4
	p[1] = p[1]&0x0f | v<<4
}

// SetFlowLabel sets the flow label; bits above 20 are dropped.
func (p IPv6) SetFlowLabel(v uint32) {
	binary.BigEndian.PutUint32(p, binary.BigEndian.Uint32(p)&^0xfffff|v&0xfffff)
}

// SetNextHeader sets the type of what follows the fixed header.
func (p IPv6) SetNextHeader(v Proto) { p[6] = byte(v) }

// SetHopLimit sets the hop limit.
func (p IPv6) SetHopLimit(v uint8) { p[7] = v }

// SetSrc sets the source address; an IPv4 address is written in its IPv6 form.
func (p IPv6) SetSrc(a netip.Addr) { v := a.As16(); copy(p[8:24], v[:]) }

// SetDst sets the destination address; an IPv4 address is written in its IPv6 form.
func (p IPv6) SetDst(a netip.Addr) { v := a.As16(); copy(p[24:40], v[:]) }

// IPv6Header is the content of an IPv6 header.
type IPv6Header struct {
	Src, Dst     netip.Addr
	NextHeader   Proto
	HopLimit     uint8 // 0: 64
	TrafficClass uint8
	FlowLabel    uint32 // at most 20 bits
}

// Len returns 40.
func (h *IPv6Header) Len() int { return IPv6Len }

// Fill writes the header at the beginning of b and returns its length. payload is the number of
// bytes that follow this header in the packet, extension headers included. Errors: ErrRoom,
// ErrLength, ErrAddress, ErrField.
func (h *IPv6Header) Fill(b []byte, payload int) (int, error) {
	switch {
	case len(b) < IPv6Len:
		return 0, ErrRoom
	case payload < 0 || payload > 0xffff:
		return 0, ErrLength
	case !h.Src.Is6() || !h.Dst.Is6():
		return 0, ErrAddress
	case h.FlowLabel > 0xfffff:
		return 0, ErrField
	}
	p := IPv6(b)
	binary.BigEndian.PutUint32(p, 6<<28|uint32(h.TrafficClass)<<20|h.FlowLabel)
	binary.BigEndian.PutUint16(p[4:], uint16(payload))
	p[6], p[7] = byte(h.NextHeader), hopLimit(h.HopLimit)
	p.SetSrc(h.Src)
	p.SetDst(h.Dst)
	return IPv6Len, nil
}

// IsExtension reports whether an IPv6 header of this type is followed by another one, at a place
// that can be computed.
func (p Proto) IsExtension() bool {
	switch p {
	case ProtoHopByHop, ProtoRouting, ProtoFragment, ProtoAH, ProtoDestOpts, ProtoMobility, ProtoHIP, ProtoShim6:
		return true
	}
	return false
}

// extensionLen returns the length of the extension header of type p at the beginning of b, or 0
// when b, or the length in the header, ends inside it.
func extensionLen(p Proto, b []byte) int {
	if len(b) < 8 {
		return 0
	}
	var n int
	switch p {
	case ProtoFragment:
		n = 8
	case ProtoAH:
		n = (int(b[1]) + 2) * 4 // RFC 4302 section 2.2: in words of 4 bytes, less 2
		if n < 12 {
			return 0 // ends before its sequence number does
		}
	default:
		n = (int(b[1]) + 1) * 8
	}
	if n > len(b) {
		return 0
	}
	return n
}

// Extension is a view of one IPv6 extension header: hop-by-hop options, routing, fragment,
// authentication, destination options.
type Extension []byte

// NextHeader returns the type of the header behind this one.
func (e Extension) NextHeader() Proto { return Proto(e[0]) }

// FragmentOffset returns, for a fragment header, where the fragment begins in its datagram, in
// bytes.
func (e Extension) FragmentOffset() uint16 { return binary.BigEndian.Uint16(e[2:]) &^ 7 }

// MoreFragments returns, for a fragment header, whether more fragments follow.
func (e Extension) MoreFragments() bool { return e[3]&1 != 0 }

// FragmentID returns, for a fragment header, the identification of the datagram.
func (e Extension) FragmentID() uint32 { return binary.BigEndian.Uint32(e[4:]) }

// NextExtension cuts the first extension header from b, which begins with a header of type proto:
// the payload of an IPv6 packet and its NextHeader. It returns the header, its type, and what
// follows with its type. OK with an empty header means that proto is no extension header. Loop at
// most MaxExtensions times:
//
//	rest, proto := ip.Payload(), ip.NextHeader()
//	for range packet.MaxExtensions {
//		ext, after, next, why := packet.NextExtension(rest, proto)
//		if why != packet.OK || ext == nil {
//			break // proto is the upper protocol, or of a header that is cut off
//		}
//		rest, proto = after, next
//	}
//
// What follows a fragment header is no header but data when FragmentOffset is not 0.
func NextExtension(b []byte, proto Proto) (ext Extension, rest []byte, next Proto, why Reason) {
	if !proto.IsExtension() {
		return nil, b, proto, OK
	}
	n := extensionLen(proto, b)
	if n == 0 {
		return nil, b, proto, ShortExtension
	}
	return Extension(b[:n]), b[n:], Proto(b[0]), OK
}

// FragmentHeader is the content of an IPv6 fragment header.
type FragmentHeader struct {
	NextHeader    Proto
	Offset        uint16 // in bytes, a multiple of 8
	MoreFragments bool
	ID            uint32
}

// Len returns 8.
func (h *FragmentHeader) Len() int { return 8 }

// Fill writes the header at the beginning of b and returns its length. Errors: ErrRoom, ErrField.
func (h *FragmentHeader) Fill(b []byte) (int, error) {
	if len(b) < 8 {
		return 0, ErrRoom
	}
	if h.Offset%8 != 0 {
		return 0, ErrField
	}
	v := h.Offset
	if h.MoreFragments {
		v |= 1
	}
	b[0], b[1] = byte(h.NextHeader), 0
	binary.BigEndian.PutUint16(b[2:], v)
	binary.BigEndian.PutUint32(b[4:], h.ID)
	return 8, nil
}

// FillOptions writes a hop-by-hop or destination options header (they look alike) around options,
// encoded as RFC 8200 section 4.2 says, pads it to a multiple of 8 bytes and returns its length.
// Errors: ErrRoom, ErrLength.
func FillOptions(b []byte, next Proto, options []byte) (int, error) {
	n := (2 + len(options) + 7) &^ 7
	if n > 2048 {
		return 0, ErrLength
	}
	if len(b) < n {
		return 0, ErrRoom
	}
	b[0], b[1] = byte(next), byte(n/8-1)
	pad := b[2+copy(b[2:n], options) : n]
	clear(pad) // one byte: Pad1, which is zero
	if len(pad) > 1 {
		pad[0], pad[1] = 1, byte(len(pad)-2) // PadN
	}
	return n, nil
}
