package app

import (
	"encoding/binary"

	"github.com/penstock-io/penstock/packet"
)

// heads is where the headers of a frame lie, as far as its first bytes say.
type heads struct {
	l3, l4  int // offsets; l4 is 0 where there is no header to be read: no IP, a later fragment, an unknown extension
	version int // of IP; 0: none
	proto   packet.Proto
}

// look finds the headers in the first bytes of a frame. Unlike packet.Parse it does not ask for the
// rest to be there: headers may lie in memory of their own. It trusts no length, and every offset
// that it gives is inside.
func look(b []byte) (h heads, ok bool) {
	if len(b) < packet.EthernetLen {
		return h, false
	}
	t := packet.Ethernet(b).Type()
	at := packet.EthernetLen
	for range 2 {
		if !t.IsTag() {
			break
		}
		if len(b)-at < packet.VLANLen {
			return h, false
		}
		t = packet.VLAN(b[at:]).Type()
		at += packet.VLANLen
	}
	h.l3 = at
	switch t {
	case packet.EtherTypeIPv4:
		if len(b)-at < packet.IPv4Len || b[at]>>4 != 4 {
			return h, false
		}
		ip := packet.IPv4(b[at:])
		if ip.HeaderLen() < packet.IPv4Len || ip.HeaderLen() > len(ip) {
			return h, false
		}
		h.version, h.proto = 4, ip.Proto()
		if ip.FragmentOffset() == 0 {
			h.l4 = at + ip.HeaderLen()
		}
	case packet.EtherTypeIPv6:
		if len(b)-at < packet.IPv6Len || b[at]>>4 != 6 {
			return h, false
		}
		h.version = 6
		rest, proto := b[at+packet.IPv6Len:], packet.IPv6(b[at:]).NextHeader()
		for range packet.MaxExtensions {
			ext, after, next, why := packet.NextExtension(rest, proto)
			if why != packet.OK {
				h.proto = proto
				return h, true // addresses are known, what is behind is not
			}
			if ext == nil {
				break
			}
			if proto == packet.ProtoFragment && ext.FragmentOffset() != 0 {
				h.proto = next
				return h, true
			}
			rest, proto = after, next
		}
		h.proto, h.l4 = proto, len(b)-len(rest)
	}
	return h, true
}

// turn makes a frame its own answer: addresses and ports change places, which leaves every checksum
// right. A request of ping becomes its answer. It reports why that cannot be done; then the frame
// is as it was.
func turn(f []byte) (Drop, bool) {
	h, ok := look(f)
	if !ok {
		return DropNoAnswer, false
	}
	if f[0]&1 != 0 {
		return DropGroup, false
	}
	swap(f[0:6], f[6:12])
	switch h.version {
	case 4:
		swap(f[h.l3+12:h.l3+16], f[h.l3+16:h.l3+20])
	case 6:
		swap(f[h.l3+8:h.l3+24], f[h.l3+24:h.l3+40])
	}
	if h.l4 == 0 || len(f)-h.l4 < 4 {
		return 0, true
	}
	l4 := f[h.l4:]
	switch h.proto {
	case packet.ProtoUDP, packet.ProtoTCP:
		swap(l4[0:2], l4[2:4])
	case packet.ProtoICMP:
		answer(l4, h.version == 4, packet.ICMPEchoRequest, packet.ICMPEchoReply)
	case packet.ProtoICMPv6:
		answer(l4, h.version == 6, packet.ICMPv6EchoRequest, packet.ICMPv6EchoReply)
	}
	return 0, true
}

// answer turns a request of ping into its answer.
func answer(m []byte, fits bool, request, reply packet.ICMPType) {
	if !fits || m[0] != byte(request) || m[1] != 0 {
		return
	}
	sum := packet.UpdateChecksum(binary.BigEndian.Uint16(m[2:]), uint16(request)<<8, uint16(reply)<<8)
	m[0] = byte(reply)
	binary.BigEndian.PutUint16(m[2:], sum)
}

func swap(a, b []byte) {
	for i := range a {
		a[i], b[i] = b[i], a[i]
	}
}
