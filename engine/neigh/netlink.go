package neigh

import (
	"encoding/binary"
	"net/netip"

	"github.com/penstock-io/penstock/internal/netlink"
	"github.com/penstock-io/penstock/packet"
)

// Numbers of rtnetlink (linux/rtnetlink.h, linux/neighbour.h).
const (
	rtmNewRoute, rtmGetRoute              = 24, 26
	rtmNewNeigh, rtmDelNeigh, rtmGetNeigh = 28, 29, 30

	flagAck, flagCreate = 4, 0x400

	familyIPv4, familyIPv6 = 2, 10

	stateReachable, stateStale, stateDelay, stateProbe = 0x02, 0x04, 0x08, 0x10
	stateFailed, stateNoARP, statePermanent            = 0x20, 0x40, 0x80
	stateValid                                         = stateReachable | stateStale | stateDelay | stateProbe |
		stateNoARP | statePermanent
	neighborUse = 1 // NTF_USE: resolve it now

	typeUnicast, typeLocal, typeBroadcast, typeAnycast, typeMulticast = 1, 2, 3, 4, 5
)

// Route is the way to a destination.
type Route struct {
	Interface int        // number of the interface
	Gateway   netip.Addr // the next hop; the zero Addr: the destination itself is on the link
	Source    netip.Addr // the address to send from; the zero Addr where the kernel names none
	Local     bool       // the destination is this host
	Multicast bool       // or broadcast
}

// Neighbor is an entry of the kernel's table of neighbours.
type Neighbor struct {
	Interface int
	Addr      netip.Addr
	MAC       packet.MAC
	Valid     bool // the MAC may be used
	Failed    bool // no host answered
}

// native is the byte order of netlink.
var native = binary.NativeEndian

// address reads an address of 4 or 16 bytes; the zero Addr otherwise.
func address(b []byte) netip.Addr {
	if len(b) != 4 && len(b) != 16 {
		return netip.Addr{}
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func parseRoute(m netlink.Message) (r Route, ok bool) {
	if m.Kind != rtmNewRoute || len(m.Body) < 12 {
		return r, false
	}
	switch m.Body[7] {
	case typeUnicast, typeAnycast:
	case typeLocal:
		r.Local = true
	case typeBroadcast, typeMulticast:
		r.Multicast = true
	default: // unreachable, prohibited, a black hole
		return r, false
	}
	for kind, v := range netlink.Attributes(m.Body[12:]) {
		switch {
		case kind == 4 && len(v) == 4:
			r.Interface = int(native.Uint32(v))
		case kind == 5:
			r.Gateway = address(v)
		case kind == 7:
			r.Source = address(v)
		case kind == 18 && len(v) > 2: // a gateway of the other family
			r.Gateway = address(v[2:])
		}
	}
	return r, r.Interface > 0
}

func parseNeighbor(m netlink.Message) (n Neighbor, ok bool) {
	if m.Kind != rtmNewNeigh && m.Kind != rtmDelNeigh || len(m.Body) < 12 {
		return n, false
	}
	n.Interface = int(int32(native.Uint32(m.Body[4:])))
	state := native.Uint16(m.Body[8:])
	for kind, v := range netlink.Attributes(m.Body[12:]) {
		switch {
		case kind == 1:
			n.Addr = address(v)
		case kind == 2 && len(v) == 6:
			n.MAC = packet.MAC(v)
			n.Valid = state&stateValid != 0
		}
	}
	n.Failed = state&stateFailed != 0
	if m.Kind == rtmDelNeigh {
		n.Valid = false
	}
	return n, n.Addr.IsValid()
}

func family(a netip.Addr) byte {
	if a.Is4() {
		return familyIPv4
	}
	return familyIPv6
}

func routeRequest(dst netip.Addr, oif int) []byte {
	b := append(netlink.Begin(nil, rtmGetRoute, 0, 0), family(dst), byte(dst.BitLen()), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	b = netlink.AppendAttribute(b, 1, dst.AsSlice())
	if oif > 0 {
		b = netlink.AppendAttribute(b, 4, native.AppendUint32(nil, uint32(oif)))
	}
	return netlink.End(b)
}

// neighborRequest asks for an entry, or, with use, makes the kernel resolve it.
func neighborRequest(oif int, a netip.Addr, use bool) []byte {
	kind, flags, ntf := uint16(rtmGetNeigh), uint16(0), byte(0)
	if use {
		kind, flags, ntf = rtmNewNeigh, flagAck|flagCreate, neighborUse
	}
	b := netlink.Begin(nil, kind, flags, 0)
	b = append(b, family(a), 0, 0, 0)
	b = native.AppendUint32(b, uint32(oif))
	b = append(b, 0, 0, ntf, 0)
	return netlink.End(netlink.AppendAttribute(b, 1, a.AsSlice()))
}
