package neigh

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/penstock-io/penstock/internal/netlink"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/packet"
)

// Numbers of rtnetlink (linux/rtnetlink.h, linux/neighbour.h).
const (
	rtmNewLink, rtmDelLink, rtmGetLink    = 16, 17, 18
	rtmNewAddr, rtmGetAddr                = 20, 22
	rtmNewRoute, rtmGetRoute              = 24, 26
	rtmNewNeigh, rtmDelNeigh, rtmGetNeigh = 28, 29, 30

	flagAck, flagCreate, flagDump = 4, 0x400, 0x300

	familyIPv4, familyIPv6 = 2, 10

	linkUp, linkLowerUp = 1, 1 << 16

	stateReachable, stateStale, stateDelay, stateProbe = 0x02, 0x04, 0x08, 0x10
	stateFailed, stateNoARP, statePermanent            = 0x20, 0x40, 0x80
	stateValid                                         = stateReachable | stateStale | stateDelay | stateProbe |
		stateNoARP | statePermanent
	neighborUse = 1 // NTF_USE: resolve it now

	typeUnicast, typeLocal, typeBroadcast, typeAnycast, typeMulticast = 1, 2, 3, 4, 5
)

// errNetlink says that the kernel's answer is not understood.
var errNetlink = errors.New("neigh: malformed netlink message")

// Link is a network interface.
type Link struct {
	Index int
	Name  string
	MAC   packet.MAC // zero where it has none of six bytes
	MTU   int        // bytes, L3 and up
	Up    bool       // switched on, and its cable is plugged in
	Gone  bool       // it was removed
}

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

// Prefix is an address of an interface.
type Prefix struct {
	Interface int
	Prefix    netip.Prefix
}

// native is the byte order of netlink.
var native = binary.NativeEndian

// kernelError is what a message of kind Error says: nil for an acknowledgement.
func kernelError(m netlink.Message) error {
	switch e, ok := m.Errno(); {
	case !ok:
		return errNetlink
	case e != 0:
		return sys.Errno(e)
	}
	return nil
}

// address reads an address of 4 or 16 bytes; the zero Addr otherwise.
func address(b []byte) netip.Addr {
	if len(b) != 4 && len(b) != 16 {
		return netip.Addr{}
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func parseLink(m netlink.Message) (l Link, ok bool) {
	if m.Kind != rtmNewLink && m.Kind != rtmDelLink || len(m.Body) < 16 {
		return l, false
	}
	l.Index = int(int32(native.Uint32(m.Body[4:])))
	flags := native.Uint32(m.Body[8:])
	l.Up = flags&linkUp != 0 && flags&linkLowerUp != 0
	l.Gone = m.Kind == rtmDelLink && m.Body[0] == 0 // other families say that it left a bridge
	if m.Kind == rtmDelLink && !l.Gone {
		return l, false
	}
	for kind, v := range netlink.Attributes(m.Body[16:]) {
		switch {
		case kind == 1 && len(v) == 6:
			l.MAC = packet.MAC(v)
		case kind == 3 && len(v) > 1:
			l.Name = string(v[:len(v)-1])
		case kind == 4 && len(v) == 4:
			l.MTU = int(native.Uint32(v))
		}
	}
	return l, true
}

func parseAddr(m netlink.Message) (p Prefix, ok bool) {
	if m.Kind != rtmNewAddr || len(m.Body) < 8 {
		return p, false
	}
	p.Interface = int(native.Uint32(m.Body[4:]))
	var a, local netip.Addr
	for kind, v := range netlink.Attributes(m.Body[8:]) {
		switch kind {
		case 1:
			a = address(v)
		case 2:
			local = address(v)
		}
	}
	if local.IsValid() { // of a point-to-point link, the other one is the peer's
		a = local
	}
	p.Prefix = netip.PrefixFrom(a, int(m.Body[1]))
	return p, p.Prefix.IsValid()
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

func linkRequest(seq uint32, name string) []byte {
	b := append(netlink.Begin(nil, rtmGetLink, 0, seq), make([]byte, 16)...)
	return netlink.End(netlink.AppendAttribute(b, 3, append([]byte(name), 0)))
}

func linkAtRequest(seq uint32, index int) []byte {
	b := append(netlink.Begin(nil, rtmGetLink, 0, seq), make([]byte, 16)...)
	native.PutUint32(b[len(b)-12:], uint32(index))
	return netlink.End(b)
}

func addrRequest(seq uint32) []byte {
	return netlink.End(append(netlink.Begin(nil, rtmGetAddr, flagDump, seq), make([]byte, 8)...))
}

func routeRequest(seq uint32, dst netip.Addr, oif int) []byte {
	b := append(netlink.Begin(nil, rtmGetRoute, 0, seq), family(dst), byte(dst.BitLen()), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	b = netlink.AppendAttribute(b, 1, dst.AsSlice())
	if oif > 0 {
		b = netlink.AppendAttribute(b, 4, native.AppendUint32(nil, uint32(oif)))
	}
	return netlink.End(b)
}

// neighborRequest asks for an entry, or, with use, makes the kernel resolve it.
func neighborRequest(seq uint32, oif int, a netip.Addr, use bool) []byte {
	kind, flags, ntf := uint16(rtmGetNeigh), uint16(0), byte(0)
	if use {
		kind, flags, ntf = rtmNewNeigh, flagAck|flagCreate, neighborUse
	}
	b := netlink.Begin(nil, kind, flags, seq)
	b = append(b, family(a), 0, 0, 0)
	b = native.AppendUint32(b, uint32(oif))
	b = append(b, 0, 0, ntf, 0)
	return netlink.End(netlink.AppendAttribute(b, 1, a.AsSlice()))
}

func (l Link) String() string { return fmt.Sprintf("%s (%d)", l.Name, l.Index) }
