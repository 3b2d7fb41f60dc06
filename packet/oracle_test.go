package packet

import (
	"encoding/binary"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// verdict is what the oracle says about a frame.
type verdict int

const (
	agree  verdict = iota // Parse must answer OK
	refuse                // Parse must refuse
	open                  // gopacket cannot tell: only the fields up to depth are compared
)

// expect says what Parse should find in a frame, by gopacket, and how deep: 2 up to the EtherType, 3 up to the IP header, 4 all.
//
// Deliberate differences, where Parse is the stricter:
//   - a total length of 0 in IPv4 (segmentation offload) and a length of 0 in UDP (jumbograms) are refused;
//   - gopacket marks a packet shorter than its length fields as truncated and goes on; Parse refuses it;
//   - the IP version must agree with the EtherType;
//   - no more than MaxExtensions extension headers and two tags.
//
// Where Parse goes on and gopacket does not:
//   - options of IPv4, TCP and extension headers are not looked into: gopacket refuses malformed ones;
//   - a first fragment is read up to its ports, an atomic IPv6 fragment (RFC 6946) is no fragment;
//   - IPv6 without payload, mobility, HIP and shim6 headers, 0x9100 tags;
//   - GRE in gopacket has an acknowledgement number where RFC 2784 has a bit to be ignored.
func expect(frame []byte) (want Layers, depth int, v verdict) {
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.DecodeOptions{NoCopy: true})
	ls := p.Layers()
	at := 0
	next := func() gopacket.Layer {
		if len(ls) == 0 {
			return nil
		}
		l := ls[0]
		ls = ls[1:]
		return l
	}
	eth, ok := next().(*layers.Ethernet)
	if !ok {
		return want, 0, refuse
	}
	want.HasL2 = true
	want.End = uint32(len(frame))
	at = EthernetLen
	typ := EtherType(eth.EthernetType)
	if eth.EthernetType == layers.EthernetTypeLLC {
		typ = EtherType(eth.Length)
	}
	for (typ == EtherTypeVLAN || typ == EtherTypeQinQ) && want.NumTags < 2 {
		d, ok := next().(*layers.Dot1Q)
		if !ok {
			return want, 0, refuse
		}
		want.Tags[want.NumTags] = MakeTCI(d.VLANIdentifier, d.Priority, d.DropEligible)
		want.NumTags++
		typ = EtherType(d.Type)
		at += VLANLen
	}
	if typ == EtherTypeQinQ1 && want.NumTags < 2 {
		return want, 0, open
	}
	want.EtherType = typ
	want.L3, want.Payload = uint16(at), uint16(at)
	rest := frame[at:]
	var proto Proto
	switch typ {
	case EtherTypeIPv4:
		ip, ok := next().(*layers.IPv4)
		if !ok || !decodes(new(layers.IPv4), rest) {
			if len(rest) >= IPv4Len && blankOptions(rest, IPv4Len, int(rest[0]&15)*4) {
				return expect(frame)
			}
			return want, 2, refuse
		}
		raw := int(binary.BigEndian.Uint16(rest[2:]))
		if ip.Version != 4 || raw == 0 || raw > len(rest) {
			return want, 2, refuse
		}
		want.IPVersion, want.IPLen, want.End = 4, uint32(ip.Length), uint32(at+int(ip.Length))
		want.FragOffset, want.MoreFragments = ip.FragOffset*8, ip.Flags&layers.IPv4MoreFragments != 0
		proto = Proto(ip.Protocol)
		at += int(ip.IHL) * 4
	case EtherTypeIPv6:
		ip, ok := next().(*layers.IPv6)
		if !ok || ip.Version != 6 || int(ip.Length)+IPv6Len > len(rest) {
			return want, 2, refuse
		}
		want.IPVersion, want.IPLen, want.End = 6, uint32(ip.Length)+IPv6Len, uint32(at+IPv6Len+int(ip.Length))
		proto = Proto(ip.NextHeader)
		at += IPv6Len
		if ip.Length == 0 {
			return want, 3, open
		}
		for n := 0; ; n++ {
			var h Proto
			liked := true
			left := int(want.End) - at
			if proto == ProtoMobility || proto == ProtoHIP || proto == ProtoShim6 {
				return want, 3, open
			}
			if proto != ProtoHopByHop && proto != ProtoRouting && proto != ProtoFragment && proto != ProtoDestOpts && proto != ProtoAH {
				break
			}
			if n == MaxExtensions || left < 8 {
				return want, 3, refuse
			}
			size := (int(frame[at+1]) + 1) * 8
			switch l := next().(type) {
			case *layers.IPv6HopByHop:
				h, liked = Proto(l.NextHeader), decodes(new(layers.IPv6HopByHop), frame[at:want.End])
			case *layers.IPv6Routing:
				h = Proto(l.NextHeader)
			case *layers.IPv6Destination:
				h, liked = Proto(l.NextHeader), decodes(new(layers.IPv6Destination), frame[at:want.End])
			case *layers.IPSecAH:
				h, size = Proto(l.NextHeader), l.ActualLength
			case *layers.IPv6Fragment:
				h, size = Proto(l.NextHeader), 8
				want.FragOffset, want.MoreFragments = l.FragmentOffset*8, l.MoreFragments
				if want.FragOffset == 0 {
					want.MoreFragments = false // compared by depth 4 only
					return want, 3, open
				}
			default:
				if proto == ProtoAH {
					size = (int(frame[at+1]) + 2) * 4
				}
				if size > left || proto == ProtoAH && size < 12 {
					return want, 3, refuse
				}
				return want, 3, open // options that gopacket does not like
			}
			if size > left { // behind hop-by-hop options gopacket reads past the payload length
				return want, 3, refuse
			}
			if !liked {
				return want, 3, open
			}
			proto = h
			at += size
			if want.FragOffset != 0 {
				break
			}
		}
	default:
		return want, 4, agree
	}
	want.Proto, want.L4, want.Payload = proto, uint16(at), uint16(at)
	if want.FragOffset != 0 {
		return want, 4, agree
	}
	if want.MoreFragments {
		return want, 3, open
	}
	rest = frame[at:want.End]
	switch proto {
	case ProtoUDP:
		u, ok := next().(*layers.UDP)
		if !ok || !decodes(new(layers.UDP), rest) || u.Length == 0 || int(u.Length) > len(rest) {
			return want, 3, refuse
		}
		want.SrcPort, want.DstPort, want.HasPorts = uint16(u.SrcPort), uint16(u.DstPort), true
		want.Payload += uint16(len(u.Contents))
		want.End = uint32(want.L4) + uint32(u.Length)
	case ProtoTCP:
		c, ok := next().(*layers.TCP)
		if !ok || !decodes(new(layers.TCP), rest) {
			if len(rest) >= TCPLen && blankOptions(rest, TCPLen, int(rest[12]>>4)*4) {
				return expect(frame)
			}
			return want, 3, refuse
		}
		want.SrcPort, want.DstPort, want.HasPorts = uint16(c.SrcPort), uint16(c.DstPort), true
		want.Payload += uint16(len(c.Contents))
	case ProtoICMP:
		m, ok := next().(*layers.ICMPv4)
		if !ok {
			return want, 3, refuse
		}
		want.Payload += uint16(len(m.Contents))
	case ProtoICMPv6:
		m, ok := next().(*layers.ICMPv6)
		if !ok {
			return want, 3, refuse
		}
		want.Payload += uint16(len(m.Contents))
	}
	return want, 4, agree
}

// decodes reports whether gopacket is content with a layer: a packet lists layers whose decoding failed as well.
func decodes(l interface {
	DecodeFromBytes([]byte, gopacket.DecodeFeedback) error
}, b []byte) bool {
	return l.DecodeFromBytes(b, gopacket.NilDecodeFeedback) == nil
}

// blankOptions overwrites options with no-operations, and reports whether that changed anything.
func blankOptions(b []byte, from, to int) bool {
	changed := false
	for i := from; i < to && to <= len(b); i++ {
		changed = changed || b[i] != 1
		b[i] = 1
	}
	return changed
}

// upTo returns the fields of the layers up to a depth.
func (l Layers) upTo(depth int) Layers {
	out := Layers{}
	if depth >= 2 {
		out.L2, out.L3, out.EtherType, out.Tags, out.NumTags, out.HasL2 = l.L2, l.L3, l.EtherType, l.Tags, l.NumTags, l.HasL2
	}
	if depth >= 3 {
		out.IPVersion, out.IPLen = l.IPVersion, l.IPLen
	}
	if depth >= 4 {
		l.Tunnel, l.Inner, l.VNI = 0, 0, 0
		return l
	}
	return out
}
