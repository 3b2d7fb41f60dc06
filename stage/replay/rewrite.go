package replay

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/internal/input"
	"github.com/penstock-io/penstock/packet"
)

// A Rewrite changes addresses and ports of Ethernet frames, and with them the checksums of IPv4,
// TCP, UDP and ICMPv6 by the difference (RFC 1624): one that was wrong stays wrong, and a UDP
// checksum of 0, which is none, stays 0. Of a fragment it changes what the fragment holds. It does
// not look into tunnels, ARP and the payload.
type Rewrite struct {
	src, dst *packet.MAC
	ips      map[netip.Addr]netip.Addr
	ports    map[uint16]uint16
}

// ParseRewrite reads a comma-separated list of eth-src=MAC, eth-dst=MAC, ip=A:B and port=A:B: B
// takes the place of A as source and as destination. Addresses of IPv6 are in brackets.
func ParseRewrite(text string) (*Rewrite, error) {
	r := &Rewrite{ips: map[netip.Addr]netip.Addr{}, ports: map[uint16]uint16{}}
	for item := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(item, "=")
		var err error
		switch key {
		case "eth-src", "eth-dst":
			var m packet.MAC
			m, err = packet.ParseMAC(value)
			if key == "eth-src" {
				r.src = &m
			} else {
				r.dst = &m
			}
		case "ip":
			err = r.ip(value)
		case "port":
			a, b, _ := strings.Cut(value, ":")
			from, e := strconv.ParseUint(a, 10, 16)
			to, e2 := strconv.ParseUint(b, 10, 16)
			if e != nil || e2 != nil {
				err = fmt.Errorf("expected two ports, such as 80:8080")
			}
			r.ports[uint16(from)] = uint16(to)
		default:
			keys := []string{"eth-src", "eth-dst", "ip", "port"}
			err = fmt.Errorf("expected %s", strings.Join(keys, ", "))
			if near := input.Nearest(key, keys); near != "" {
				err = fmt.Errorf("%w: did you mean %s?", err, near)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%q: %w", item, err)
		}
	}
	return r, nil
}

func (r *Rewrite) ip(value string) error {
	a, b, found := strings.Cut(value, ":")
	if strings.HasPrefix(value, "[") {
		a, b, found = strings.Cut(value[1:], "]:[")
		b = strings.TrimSuffix(b, "]")
	}
	from, err := netip.ParseAddr(a)
	to, err2 := netip.ParseAddr(b)
	if !found || err != nil || err2 != nil || from.Is4() != to.Is4() || from.Zone()+to.Zone() != "" {
		return fmt.Errorf("expected two addresses of one family, such as 10.0.0.1:10.0.0.2 or [fd00::1]:[fd00::2]")
	}
	r.ips[from] = to
	return nil
}

// apply changes a frame. It reports whether it could read the headers; if not, it changes the
// Ethernet addresses alone.
func (r *Rewrite) apply(b []byte) bool {
	if len(b) < packet.EthernetLen {
		return false
	}
	if e := packet.Ethernet(b); r.dst != nil {
		e.SetDst(*r.dst)
	}
	if e := packet.Ethernet(b); r.src != nil {
		e.SetSrc(*r.src)
	}
	if len(r.ips)+len(r.ports) == 0 {
		return true
	}
	var l packet.Layers
	if packet.Parse(b, &l) != packet.OK {
		return false
	}
	var sums [][]byte // the fields of checksums over the addresses: of the header of IPv4, and of what it carries
	udp := false
	switch first := l.FragOffset == 0; {
	case l.HasPorts && l.Proto == packet.ProtoTCP:
		sums = append(sums, b[l.L4+16:l.L4+18])
	case l.HasPorts:
		sums, udp = append(sums, b[l.L4+6:l.L4+8]), true
	case l.Proto == packet.ProtoICMPv6 && first && int(l.Payload) >= int(l.L4)+packet.ICMPv6Len:
		sums = append(sums, b[l.L4+2:l.L4+4])
	}
	set := func(field, to []byte, sums [][]byte) {
		for _, s := range sums {
			c := binary.BigEndian.Uint16(s)
			if udp && c == 0 {
				continue
			}
			if c = packet.UpdateChecksumBytes(c, field, to); c == 0 && udp {
				c = 0xffff
			}
			binary.BigEndian.PutUint16(s, c)
		}
		copy(field, to)
	}
	if l.HasPorts {
		for _, f := range [][]byte{b[l.L4 : l.L4+2], b[l.L4+2 : l.L4+4]} {
			if to, ok := r.ports[binary.BigEndian.Uint16(f)]; ok {
				set(f, binary.BigEndian.AppendUint16(nil, to), sums)
			}
		}
	}
	at, size := int(l.L3)+12, 4
	if l.IPVersion == 6 {
		at, size = int(l.L3)+8, 16
	}
	for i := 0; l.IPVersion != 0 && i < 2; i, at = i+1, at+size {
		f := b[at : at+size]
		from, _ := netip.AddrFromSlice(f)
		to, ok := r.ips[from]
		if !ok {
			continue
		}
		if l.IPVersion == 4 {
			h := b[l.L3+10 : l.L3+12]
			binary.BigEndian.PutUint16(h, packet.UpdateChecksumBytes(binary.BigEndian.Uint16(h), f, to.AsSlice()))
		}
		set(f, to.AsSlice(), sums)
	}
	return true
}
