package cm

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strconv"
)

// Address families of the kernel, and the lengths of their socket addresses in bytes.
const (
	familyIPv4, lengthIPv4 = 2, 16
	familyIPv6, lengthIPv6 = 10, 28
)

// sockaddr is a as the kernel's socket address (man 7 ip, man 7 ipv6): nil for the zero AddrPort.
func sockaddr(a netip.AddrPort) ([]byte, error) {
	ip := a.Addr()
	switch {
	case !ip.IsValid():
		return nil, nil
	case ip.Is4():
		b := make([]byte, lengthIPv4)
		binary.NativeEndian.PutUint16(b, familyIPv4)
		binary.BigEndian.PutUint16(b[2:], a.Port())
		copy(b[4:], ip.AsSlice())
		return b, nil
	}
	scope, err := scopeOf(ip)
	if err != nil {
		return nil, err
	}
	b := make([]byte, lengthIPv6)
	binary.NativeEndian.PutUint16(b, familyIPv6)
	binary.BigEndian.PutUint16(b[2:], a.Port())
	copy(b[8:], ip.AsSlice())
	binary.NativeEndian.PutUint32(b[24:], scope)
	return b, nil
}

// scopeOf is the index of the interface that the zone of an address names; 0 without a zone.
func scopeOf(ip netip.Addr) (uint32, error) {
	zone := ip.Zone()
	if zone == "" {
		return 0, nil
	}
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n), nil
	}
	i, err := net.InterfaceByName(zone)
	if err != nil {
		return 0, fmt.Errorf("cm: address %s: expected a zone that is the name or the number of an interface: %w", ip,
			err)
	}
	return uint32(i.Index), nil
}

// addrPort reads a socket address; what is neither IPv4 nor IPv6 is the zero AddrPort. A zone is
// the number of the interface.
func addrPort(b []byte) netip.AddrPort {
	if len(b) < 2 {
		return netip.AddrPort{}
	}
	switch family := binary.NativeEndian.Uint16(b); {
	case family == familyIPv4 && len(b) >= lengthIPv4:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:]))
	case family == familyIPv6 && len(b) >= lengthIPv6:
		ip := netip.AddrFrom16([16]byte(b[8:24]))
		if scope := binary.NativeEndian.Uint32(b[24:]); scope != 0 {
			ip = ip.WithZone(strconv.FormatUint(uint64(scope), 10))
		}
		return netip.AddrPortFrom(ip, binary.BigEndian.Uint16(b[2:]))
	}
	return netip.AddrPort{}
}
