package packet

import "net/netip"

// UDPFrame holds the headers of UDP datagrams in Ethernet frames between two sockets, over IPv4 or
// IPv6. Set it up once, then Fill frame after frame.
type UDPFrame struct {
	SrcMAC, DstMAC MAC
	Tagged         bool // a VLAN tag with Tag follows the Ethernet addresses
	Tag            TCI
	Src, Dst       netip.AddrPort // both IPv4 or both IPv6
	TTL            uint8          // or hop limit; 0: 64
	TOS            uint8          // or traffic class
	Checksum       ChecksumMode   // of UDP. ChecksumAuto and ChecksumFull need the payload in the frame before Fill
}

// HeaderLen returns the length of all headers: 42 for IPv4, 62 for IPv6, and 4 more with a tag. The
// payload begins there.
func (f *UDPFrame) HeaderLen() int {
	n := EthernetLen + UDPLen + IPv6Len
	if f.Src.Addr().Is4() {
		n = EthernetLen + UDPLen + IPv4Len
	}
	if f.Tagged {
		n += VLANLen
	}
	return n
}

// Fill writes Ethernet, VLAN, IP and UDP headers with their lengths and checksums at the beginning
// of frame and returns HeaderLen. payload is the number of bytes that follow these headers in the
// packet. They may lie elsewhere (in another segment, in the memory of an accelerator) unless the
// checksum is computed here. Errors: ErrRoom, ErrLength, ErrAddress, ErrChecksum, and ErrField for
// ChecksumNone over IPv6, which receivers must drop.
func (f *UDPFrame) Fill(frame []byte, payload int) (int, error) {
	n := f.HeaderLen()
	src, dst := f.Src.Addr(), f.Dst.Addr()
	full := f.Checksum == ChecksumFull || f.Checksum == ChecksumAuto
	switch {
	case len(frame) < n:
		return 0, ErrRoom
	case payload < 0:
		return 0, ErrLength
	case full && len(frame)-n < payload:
		return 0, ErrChecksum
	case f.Checksum > ChecksumOffload || f.Checksum == ChecksumNone && !src.Is4():
		return 0, ErrField
	}
	eth := EthernetHeader{Dst: f.DstMAC, Src: f.SrcMAC, Type: EtherTypeIPv6}
	if src.Is4() {
		eth.Type = EtherTypeIPv4
	}
	at := EthernetLen
	if f.Tagged {
		tag := VLANHeader{TCI: f.Tag, Type: eth.Type}
		eth.Type = EtherTypeVLAN
		tag.Fill(frame[at:])
		at += VLANLen
	}
	size, err := fillIP(frame[at:], src, dst, ProtoUDP, f.TTL, f.TOS, UDPLen+payload)
	if err != nil {
		return 0, err
	}
	eth.Fill(frame)
	at += size
	udp := UDPHeader{SrcPort: f.Src.Port(), DstPort: f.Dst.Port()}
	if _, err := udp.Fill(frame[at:], payload); err != nil {
		return 0, err
	}
	switch {
	case full:
		UDP(frame[at:]).FillChecksum(src, dst)
	case f.Checksum == ChecksumOffload:
		UDP(frame[at:]).FillPseudo(src, dst)
	}
	return n, nil
}

// fillIP writes the IP header of the addresses' family.
func fillIP(b []byte, src, dst netip.Addr, proto Proto, ttl, tos uint8, payload int) (int, error) {
	if src.Is4() {
		h := IPv4Header{Src: src, Dst: dst, Proto: proto, TTL: ttl, TOS: tos}
		return h.Fill(b, payload)
	}
	h := IPv6Header{Src: src, Dst: dst, NextHeader: proto, HopLimit: ttl, TrafficClass: tos}
	return h.Fill(b, payload)
}
