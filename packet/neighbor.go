package packet

import "net/netip"

// NeighborLen is the length of a neighbour message with one link-layer address option, as Fill
// writes it.
const NeighborLen = 32

const neighborFixed = 24 // ICMPv6 header, flags, target

// Neighbor is a view of a neighbour solicitation or advertisement (RFC 4861 sections 4.3 and 4.4):
// an ICMPv6 message that ends where the IP packet ends.
type Neighbor []byte

// Valid reports whether this is one of the two messages, complete, with options that fill the rest
// exactly, about a target that is no group (RFC 4861 section 7.1). The receiver also checks that
// the hop limit is 255 and ICMPv6.ChecksumOK. After that no method panics.
func (m Neighbor) Valid() bool {
	if len(m) < neighborFixed || m[1] != 0 || m.Target().IsMulticast() {
		return false
	}
	if t := ICMPv6(m).Type(); t != ICMPv6NeighborSolicitation && t != ICMPv6NeighborAdvertisement {
		return false
	}
	opts := m[neighborFixed:]
	for len(opts) >= 8 {
		n := int(opts[1]) * 8
		if n == 0 || n > len(opts) {
			return false
		}
		opts = opts[n:]
	}
	return len(opts) == 0
}

// Solicitation reports whether the message asks; otherwise it is an advertisement.
func (m Neighbor) Solicitation() bool { return ICMPv6(m).Type() == ICMPv6NeighborSolicitation }

// Target returns the address that is asked for, or told about.
func (m Neighbor) Target() netip.Addr { return netip.AddrFrom16([16]byte(m[8:24])) }

// Router returns the R flag of an advertisement: the sender is a router.
func (m Neighbor) Router() bool { return m[4]&0x80 != 0 }

// Solicited returns the S flag of an advertisement: it answers a solicitation.
func (m Neighbor) Solicited() bool { return m[4]&0x40 != 0 }

// Override returns the O flag of an advertisement: caches shall be overwritten.
func (m Neighbor) Override() bool { return m[4]&0x20 != 0 }

// LinkAddr returns the Ethernet address of the sender of a solicitation, or of the target of an
// advertisement, and whether the message tells it (options of type 1 and 2). The message must be
// valid.
func (m Neighbor) LinkAddr() (MAC, bool) {
	kind := byte(2)
	if m.Solicitation() {
		kind = 1
	}
	for opts := m[neighborFixed:]; len(opts) >= 8; opts = opts[int(opts[1])*8:] {
		if opts[1] == 0 || int(opts[1])*8 > len(opts) {
			break
		}
		if opts[0] == kind && opts[1] == 1 {
			return MAC(opts[2:8]), true
		}
	}
	return MAC{}, false
}

// SetTarget sets the target.
func (m Neighbor) SetTarget(a netip.Addr) { v := a.As16(); copy(m[8:24], v[:]) }

// SetFlags sets the flags of an advertisement.
func (m Neighbor) SetFlags(router, solicited, override bool) {
	m[4] = 0
	for i, set := range [...]bool{router, solicited, override} {
		if set {
			m[4] |= 0x80 >> i
		}
	}
}

// NeighborHeader is the content of a neighbour solicitation or advertisement.
type NeighborHeader struct {
	Advertise bool       // an advertisement; otherwise a solicitation
	Src, Dst  netip.Addr // of the IPv6 packet around it, for the checksum; Src is not the unspecified address
	Target    netip.Addr
	LinkAddr  MAC // of the sender

	Router, Solicited, Override bool // flags of an advertisement
}

// Len returns NeighborLen.
func (h *NeighborHeader) Len() int { return NeighborLen }

// Fill writes the message with its checksum at the beginning of b and returns its length. The IPv6
// header in front of it must have the hop limit 255. Errors: ErrRoom, ErrAddress.
func (h *NeighborHeader) Fill(b []byte) (int, error) {
	if len(b) < NeighborLen {
		return 0, ErrRoom
	}
	if !h.Src.Is6() || h.Src.IsUnspecified() || !h.Dst.Is6() || !h.Target.Is6() {
		return 0, ErrAddress
	}
	m := Neighbor(b[:NeighborLen])
	clear(m)
	kind, option := ICMPv6NeighborSolicitation, byte(1)
	if h.Advertise {
		kind, option = ICMPv6NeighborAdvertisement, 2
		m.SetFlags(h.Router, h.Solicited, h.Override)
	}
	m[0] = byte(kind)
	m.SetTarget(h.Target)
	m[24], m[25] = option, 1
	copy(m[26:], h.LinkAddr[:])
	ICMPv6(m).FillChecksum(h.Src, h.Dst)
	return NeighborLen, nil
}

// SolicitedNode returns the group that the owner of an IPv6 address listens to, the destination of
// solicitations for it (RFC 4291 section 2.7.1). For other addresses it returns the zero Addr.
func SolicitedNode(a netip.Addr) netip.Addr {
	if !a.Is6() {
		return netip.Addr{}
	}
	v := a.As16()
	return netip.AddrFrom16([16]byte{0: 0xff, 1: 0x02, 11: 0x01, 12: 0xff, 13: v[13], 14: v[14], 15: v[15]})
}

// MulticastMAC returns the Ethernet group of an IP group (RFC 1112 section 6.4, RFC 2464 section 7)
// and the broadcast address for 255.255.255.255. False: the address is neither.
func MulticastMAC(a netip.Addr) (MAC, bool) {
	switch {
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return BroadcastMAC, true
	case !a.IsMulticast():
		return MAC{}, false
	case a.Is4():
		v := a.As4()
		return MAC{0x01, 0x00, 0x5e, v[1] & 0x7f, v[2], v[3]}, true
	case a.Is4In6():
		return MAC{}, false
	}
	v := a.As16()
	return MAC{0x33, 0x33, v[12], v[13], v[14], v[15]}, true
}
