package packet

import "encoding/binary"

// ParseTunnel looks into the tunnel that a parsed packet carries: VXLAN when the UDP destination
// port is 4789, NVGRE or GRE when the protocol is GRE. It sets Tunnel, Inner and VNI of outer,
// which Parse or ParseIP filled from the same bytes, and reads the packet inside into inner, with
// offsets that count from the first byte of frame too. inner must not be outer.
//
// Ethernet in GRE with a key and nothing else optional is NVGRE; nothing on the wire tells the two
// apart. Of plain GRE, VNI is the key.
//
// NoTunnel means that there is none (fragments do not count: they would have to be reassembled
// first). The reasons of the packet inside are those of Parse. A tunnel inside the tunnel is
// payload; call ParseTunnel again for it.
func ParseTunnel(frame []byte, outer, inner *Layers) Reason {
	outer.Tunnel, outer.Inner, outer.VNI = TunnelNone, 0, 0
	*inner = Layers{}
	if outer.IsFragment() || outer.IPVersion == 0 || int(outer.End) > len(frame) {
		return NoTunnel
	}
	b, at := frame[:outer.End], int(outer.Payload)
	switch {
	case outer.Proto == ProtoUDP && outer.HasPorts && outer.DstPort == PortVXLAN:
		if len(b)-at < VXLANLen {
			return ShortTunnel
		}
		if b[at]&0x08 == 0 {
			return BadTunnel // RFC 7348 section 5: the I flag must be set
		}
		outer.Tunnel = TunnelVXLAN
		outer.VNI = binary.BigEndian.Uint32(b[at+4:]) >> 8
		at += VXLANLen
	case outer.Proto == ProtoGRE:
		return parseGRE(b, at, outer, inner)
	default:
		return NoTunnel
	}
	outer.Inner = uint16(at)
	inner.HasL2 = true
	return inner.ethernet(b, at)
}

func parseGRE(b []byte, at int, outer, inner *Layers) Reason {
	h := GRE(b[at:])
	if len(h) < GRELen || len(h) < h.HeaderLen() {
		return ShortTunnel
	}
	if !h.Valid() || h.Protocol().IsTag() {
		return BadTunnel // PPTP, the source routes of RFC 1701, or a VLAN tag outside of an Ethernet frame
	}
	outer.Tunnel = TunnelGRE
	outer.VNI, _ = h.Key()
	t := h.Protocol()
	if t == EtherTypeTEB && h[0]&0xb0 == 0x20 { // key, no checksum, no sequence number: RFC 7637 section 3.2
		outer.Tunnel = TunnelNVGRE
		outer.VNI >>= 8
	}
	at += h.HeaderLen()
	outer.Inner = uint16(at)
	switch t {
	case EtherTypeTEB:
		inner.HasL2 = true
		return inner.ethernet(b, at)
	case EtherTypeIPv4:
		inner.EtherType, inner.End = t, uint32(len(b))
		inner.L3, inner.Payload = uint16(at), uint16(at)
		return inner.ipv4(b, at)
	case EtherTypeIPv6:
		inner.EtherType, inner.End = t, uint32(len(b))
		inner.L3, inner.Payload = uint16(at), uint16(at)
		return inner.ipv6(b, at)
	}
	// Another protocol: its bytes are the payload.
	inner.EtherType, inner.End = t, uint32(len(b))
	inner.L3, inner.Payload = uint16(at), uint16(at)
	return OK
}
