package packet

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// PushVLAN puts a VLAN tag into the frame that is buf[off:], in front of tags that it has. The
// addresses move into the headroom, so the new frame, which is returned, is buf[off-4:]. tpid is
// EtherTypeVLAN or EtherTypeQinQ; 0 means EtherTypeVLAN. Errors: ErrHeadroom, ErrField, and
// ShortEthernet as an error; the frame is unchanged then.
func PushVLAN(buf []byte, off int, tpid EtherType, tag TCI) ([]byte, error) {
	if tpid == 0 {
		tpid = EtherTypeVLAN
	}
	switch {
	case off < VLANLen || off > len(buf):
		return nil, ErrHeadroom
	case len(buf)-off < EthernetLen:
		return nil, ShortEthernet.Err()
	case !tpid.IsTag():
		return nil, ErrField
	}
	frame := buf[off-VLANLen:]
	copy(frame, frame[VLANLen:VLANLen+12])
	binary.BigEndian.PutUint16(frame[12:], uint16(tpid))
	binary.BigEndian.PutUint16(frame[14:], uint16(tag))
	return frame, nil
}

// PopVLAN removes the outer tag. The addresses move 4 bytes towards the payload; the new frame is
// frame[4:]. It returns the tag and its tag protocol identifier as well. Errors: ErrNoTag, and
// ShortEthernet and ShortVLAN as errors; the frame is unchanged then.
func PopVLAN(frame []byte) (rest []byte, tpid EtherType, tag TCI, err error) {
	if len(frame) < EthernetLen {
		return nil, 0, 0, ShortEthernet.Err()
	}
	tpid = Ethernet(frame).Type()
	if !tpid.IsTag() {
		return nil, 0, 0, ErrNoTag
	}
	if len(frame) < EthernetLen+VLANLen {
		return nil, 0, 0, ShortVLAN.Err()
	}
	tag = VLAN(frame[EthernetLen:]).TCI()
	copy(frame[VLANLen:], frame[:12])
	return frame[VLANLen:], tpid, tag, nil
}

// Encap is a tunnel that frames are put into: the headers of VXLAN, GRE or NVGRE over IPv4 or IPv6.
// Set it up once; Push does not change it.
type Encap struct {
	Kind           Tunnel
	SrcMAC, DstMAC MAC        // of the outer frame
	Src, Dst       netip.Addr // both IPv4 or both IPv6
	TTL            uint8      // or hop limit; 0: 64
	TOS            uint8      // or traffic class
	VNI            uint32     // VXLAN: network; NVGRE: subnet; 24 bits

	// VXLAN; 0: 49152 to 65535 by FlowHash of the frame, so that routers spread flows (RFC 7348
	// section 5)
	SrcPort  uint16
	DstPort  uint16       // VXLAN; 0: 4789
	Checksum ChecksumMode // of UDP (VXLAN)

	FlowID uint8 // NVGRE

	// GRE. 0 or EtherTypeTEB: the whole frame; EtherTypeIPv4, EtherTypeIPv6: the IP packet without
	// Ethernet header
	Protocol EtherType
	HasKey   bool   // GRE
	Key      uint32 // GRE
}

// Overhead returns the length of the headers that Push writes, and so the headroom that is always
// enough. Over IPv4 that is 50 for VXLAN, 42 for NVGRE, 38 for GRE and 42 for GRE with a key; over
// IPv6 20 more. GRE with an IP protocol drops the 14 bytes of the Ethernet header inside, and its
// tags, so the frame grows by less.
func (e *Encap) Overhead() int {
	n := EthernetLen + IPv6Len
	if e.Src.Is4() {
		n = EthernetLen + IPv4Len
	}
	switch e.Kind {
	case TunnelVXLAN:
		n += UDPLen + VXLANLen
	case TunnelNVGRE:
		n += NVGRELen
	case TunnelGRE:
		n += GRELen
		if e.HasKey {
			n += 4
		}
	}
	return n
}

// Check reports what is wrong with the fields: ErrField, ErrAddress or nil. Push checks as well.
func (e *Encap) Check() error {
	switch e.Kind {
	case TunnelVXLAN, TunnelNVGRE:
		if e.VNI >= 1<<24 || e.Protocol != 0 && e.Protocol != EtherTypeTEB || e.Checksum > ChecksumOffload {
			return ErrField
		}
	case TunnelGRE:
		if e.Protocol != 0 && e.Protocol != EtherTypeTEB && !e.carriesIP() {
			return ErrField
		}
	default:
		return ErrField
	}
	if !(e.Src.Is4() && e.Dst.Is4() || e.Src.Is6() && e.Dst.Is6()) {
		return ErrAddress
	}
	return nil
}

func (e *Encap) carriesIP() bool {
	return e.Kind == TunnelGRE && (e.Protocol == EtherTypeIPv4 || e.Protocol == EtherTypeIPv6)
}

// Push puts the frame that is buf[off:] into the tunnel. It writes the outer headers, with lengths
// and checksums, into the headroom and returns the new frame, which ends where buf ends; it begins
// Overhead bytes before off, or later for GRE with an IP protocol. The outer packet has
// don't-fragment set. Padding of the frame inside is carried along, except for GRE with an IP
// protocol. Errors: those of Check, ErrHeadroom, ErrLength, ErrTunnel, and a Reason as an error
// when GRE with an IP protocol gets a frame that cannot be read; the frame is unchanged then.
func (e *Encap) Push(buf []byte, off int) ([]byte, error) {
	if err := e.Check(); err != nil {
		return nil, err
	}
	if off < 0 || off > len(buf) {
		return nil, ErrHeadroom
	}
	var l Layers
	if e.carriesIP() {
		if why := Parse(buf[off:], &l); why != OK {
			return nil, why.Err()
		}
		if l.EtherType != e.Protocol {
			return nil, ErrTunnel
		}
		buf = buf[:off+int(l.L3)+int(l.IPLen)]
		off += int(l.L3)
	}
	over, inner := e.Overhead(), len(buf)-off
	if off < over {
		return nil, ErrHeadroom
	}
	ipLen := IPv6Len
	limit := 0xffff
	if e.Src.Is4() {
		ipLen = IPv4Len
		limit = 0xffff - IPv4Len
	}
	behind := over - EthernetLen - ipLen + inner // bytes behind the outer IP header
	if behind > limit {
		return nil, ErrLength
	}
	srcPort := e.SrcPort
	if e.Kind == TunnelVXLAN && srcPort == 0 {
		Parse(buf[off:], &l) // what can be read of a damaged frame is enough
		srcPort = 49152 | uint16(FlowHash(buf[off:], &l))&0x3fff
	}
	frame := buf[off-over:]
	eth := EthernetHeader{Dst: e.DstMAC, Src: e.SrcMAC, Type: EtherTypeIPv6}
	if e.Src.Is4() {
		eth.Type = EtherTypeIPv4
	}
	eth.Fill(frame)
	proto := ProtoGRE
	if e.Kind == TunnelVXLAN {
		proto = ProtoUDP
	}
	if _, err := fillIP(frame[EthernetLen:], e.Src, e.Dst, proto, e.TTL, e.TOS, behind); err != nil {
		return nil, err
	}
	body := frame[EthernetLen+ipLen:]
	switch e.Kind {
	case TunnelVXLAN:
		e.fillVXLAN(body, srcPort)
	case TunnelNVGRE:
		h := GREHeader{Protocol: EtherTypeTEB, HasKey: true, Key: NVGREKey(e.VNI, e.FlowID)}
		h.Fill(body)
	case TunnelGRE:
		h := GREHeader{Protocol: e.Protocol, HasKey: e.HasKey, Key: e.Key}
		if h.Protocol == 0 {
			h.Protocol = EtherTypeTEB
		}
		h.Fill(body)
	}
	return frame, nil
}

// fillVXLAN writes UDP and VXLAN headers. body ends where the frame ends.
func (e *Encap) fillVXLAN(body []byte, srcPort uint16) {
	udp := UDPHeader{SrcPort: srcPort, DstPort: e.DstPort}
	if udp.DstPort == 0 {
		udp.DstPort = PortVXLAN
	}
	udp.Fill(body, len(body)-UDPLen)
	vx := VXLANHeader{VNI: e.VNI}
	vx.Fill(body[UDPLen:])
	switch {
	case e.Checksum == ChecksumFull, e.Checksum == ChecksumAuto && !e.Src.Is4():
		UDP(body).FillChecksum(e.Src, e.Dst)
	case e.Checksum == ChecksumOffload:
		UDP(body).FillPseudo(e.Src, e.Dst)
	}
}

// Decap takes a frame, which Parse or ParseIP read into outer, out of its tunnel. It returns the
// frame inside, whose layers are in inner, with offsets from the first byte of that frame. An IP
// packet in GRE gets an Ethernet header with the addresses of the outer frame, written over the
// outer headers, which are lost; in a packet without Ethernet (ParseIP) it stays an IP packet. The
// VNI or key is in outer; whether it is the right one is for the caller to check, as are addresses.
//
// Answers other than OK are those of ParseTunnel, and TunnelChecksum; the frame is unchanged then.
func Decap(frame []byte, outer, inner *Layers) ([]byte, Reason) {
	if why := ParseTunnel(frame, outer, inner); why != OK {
		return nil, why
	}
	at := int(outer.Inner)
	if outer.Proto == ProtoGRE && !GRE(frame[outer.Payload:outer.End]).ChecksumOK() {
		return nil, TunnelChecksum
	}
	end := int(outer.End)
	if !inner.HasL2 && outer.HasL2 {
		at -= EthernetLen // there is room: Ethernet, IP and GRE headers take 38 bytes
		copy(frame[at:], frame[outer.L2:int(outer.L2)+12])
		Ethernet(frame[at:]).SetType(inner.EtherType)
		inner.HasL2, inner.L2 = true, uint16(at)
	}
	inner.shift(at)
	return frame[at:end], OK
}

// shift makes the offsets count from a later byte.
func (l *Layers) shift(by int) {
	n := uint16(by)
	if l.HasL2 {
		l.L2 -= n
	}
	l.L3 -= n
	l.Payload -= n
	if l.L4 != 0 {
		l.L4 -= n
	}
	l.End -= uint32(by)
}

// FlowHash returns a number that is the same for all packets of a flow (addresses, protocol and
// ports; of fragments without ports; of other EtherTypes the Ethernet addresses), and well spread
// over flows. It does not change between processes or machines, differs between the directions, and
// is not meant to resist an attacker. frame is the slice that was parsed into l.
func FlowHash(frame []byte, l *Layers) uint32 {
	const k0, k1 = 0x9e3779b97f4a7c15, 0xd6e8feb86659fd93
	h := uint64(l.Proto)<<16 | uint64(l.EtherType)
	if l.HasPorts && !l.IsFragment() {
		h ^= uint64(l.SrcPort)<<48 | uint64(l.DstPort)<<32
	}
	switch a := frame[l.L3:]; l.IPVersion {
	case 4:
		return uint32(mix(h^k0, binary.BigEndian.Uint64(a[12:])^k1))
	case 6:
		h = mix(h^binary.BigEndian.Uint64(a[8:]), binary.BigEndian.Uint64(a[16:])^k0)
		return uint32(mix(h^binary.BigEndian.Uint64(a[24:]), binary.BigEndian.Uint64(a[32:])^k1))
	}
	if l.HasL2 && len(frame)-int(l.L2) >= EthernetLen {
		a := frame[l.L2:]
		h = mix(h^binary.BigEndian.Uint64(a), uint64(binary.BigEndian.Uint32(a[8:]))^k0)
	}
	return uint32(mix(h^k0, k1))
}

// mix folds the 128-bit product of two numbers.
func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}
