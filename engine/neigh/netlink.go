package neigh

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/packet"
)

// Numbers of rtnetlink (linux/netlink.h, linux/rtnetlink.h, linux/neighbour.h).
const (
	nlError, nlDone = 2, 3

	rtmNewLink, rtmDelLink, rtmGetLink    = 16, 17, 18
	rtmNewAddr, rtmGetAddr                = 20, 22
	rtmNewRoute, rtmGetRoute              = 24, 26
	rtmNewNeigh, rtmDelNeigh, rtmGetNeigh = 28, 29, 30

	flagRequest, flagAck, flagCreate, flagDump = 1, 4, 0x400, 0x300

	familyIPv4, familyIPv6 = 2, 10

	linkUp, linkLowerUp = 1, 1 << 16

	stateReachable, stateStale, stateDelay, stateProbe = 0x02, 0x04, 0x08, 0x10
	stateFailed, stateNoARP, statePermanent            = 0x20, 0x40, 0x80
	stateValid                                         = stateReachable | stateStale | stateDelay | stateProbe | stateNoARP | statePermanent
	neighborUse                                        = 1 // NTF_USE: resolve it now

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
	Failed    bool // nobody answered
}

// Prefix is an address of an interface.
type Prefix struct {
	Interface int
	Prefix    netip.Prefix
}

// native is the byte order of netlink.
var native = binary.NativeEndian

// message is one netlink message.
type message struct {
	kind uint16
	seq  uint32
	body []byte
}

// nextMessage cuts the first message from b. It is false at the end, and when what is left is malformed.
func nextMessage(b []byte) (m message, rest []byte, ok bool) {
	if len(b) < 16 {
		return m, nil, false
	}
	n := native.Uint32(b)
	if n < 16 || uint64(n) > uint64(len(b)) {
		return m, nil, false
	}
	m = message{native.Uint16(b[4:]), native.Uint32(b[8:]), b[16:n]}
	return m, b[min((uint64(n)+3)&^3, uint64(len(b))):], true
}

// nextAttribute cuts the first attribute from b.
func nextAttribute(b []byte) (kind uint16, value, rest []byte, ok bool) {
	if len(b) < 4 {
		return 0, nil, nil, false
	}
	n := native.Uint16(b)
	if n < 4 || int(n) > len(b) {
		return 0, nil, nil, false
	}
	return native.Uint16(b[2:]) & 0x3fff, b[4:n], b[min((int(n)+3)&^3, len(b)):], true
}

// request begins a message; end completes it.
func request(b []byte, kind, flags uint16, seq uint32) []byte {
	b = append(b, make([]byte, 16)...)
	m := b[len(b)-16:]
	native.PutUint16(m[4:], kind)
	native.PutUint16(m[6:], flags|flagRequest)
	native.PutUint32(m[8:], seq)
	return b
}

// attribute appends an attribute.
func attribute(b []byte, kind uint16, value []byte) []byte {
	b = native.AppendUint16(b, uint16(4+len(value)))
	b = native.AppendUint16(b, kind)
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// end writes the length of a message that is alone in b.
func end(b []byte) []byte {
	native.PutUint32(b, uint32(len(b)))
	return b
}

// kernelError is what a message of type nlError says: nil for an acknowledgement.
func kernelError(body []byte) error {
	if len(body) < 4 {
		return errNetlink
	}
	if e := int32(native.Uint32(body)); e < 0 && e > -4096 {
		return sys.Errno(-e)
	} else if e != 0 {
		return errNetlink
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

func parseLink(m message) (l Link, ok bool) {
	if m.kind != rtmNewLink && m.kind != rtmDelLink || len(m.body) < 16 {
		return l, false
	}
	l.Index = int(int32(native.Uint32(m.body[4:])))
	flags := native.Uint32(m.body[8:])
	l.Up = flags&linkUp != 0 && flags&linkLowerUp != 0
	l.Gone = m.kind == rtmDelLink && m.body[0] == 0 // other families say that it left a bridge
	if m.kind == rtmDelLink && !l.Gone {
		return l, false
	}
	for kind, v, rest, ok := nextAttribute(m.body[16:]); ok; kind, v, rest, ok = nextAttribute(rest) {
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

func parseAddr(m message) (p Prefix, ok bool) {
	if m.kind != rtmNewAddr || len(m.body) < 8 {
		return p, false
	}
	p.Interface = int(native.Uint32(m.body[4:]))
	var a, local netip.Addr
	for kind, v, rest, ok := nextAttribute(m.body[8:]); ok; kind, v, rest, ok = nextAttribute(rest) {
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
	p.Prefix = netip.PrefixFrom(a, int(m.body[1]))
	return p, p.Prefix.IsValid()
}

func parseRoute(m message) (r Route, ok bool) {
	if m.kind != rtmNewRoute || len(m.body) < 12 {
		return r, false
	}
	switch m.body[7] {
	case typeUnicast, typeAnycast:
	case typeLocal:
		r.Local = true
	case typeBroadcast, typeMulticast:
		r.Multicast = true
	default: // unreachable, prohibited, a black hole
		return r, false
	}
	for kind, v, rest, ok := nextAttribute(m.body[12:]); ok; kind, v, rest, ok = nextAttribute(rest) {
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

func parseNeighbor(m message) (n Neighbor, ok bool) {
	if m.kind != rtmNewNeigh && m.kind != rtmDelNeigh || len(m.body) < 12 {
		return n, false
	}
	n.Interface = int(int32(native.Uint32(m.body[4:])))
	state := native.Uint16(m.body[8:])
	for kind, v, rest, ok := nextAttribute(m.body[12:]); ok; kind, v, rest, ok = nextAttribute(rest) {
		switch {
		case kind == 1:
			n.Addr = address(v)
		case kind == 2 && len(v) == 6:
			n.MAC = packet.MAC(v)
			n.Valid = state&stateValid != 0
		}
	}
	n.Failed = state&stateFailed != 0
	if m.kind == rtmDelNeigh {
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
	b := append(request(nil, rtmGetLink, 0, seq), make([]byte, 16)...)
	return end(attribute(b, 3, append([]byte(name), 0)))
}

func addrRequest(seq uint32) []byte {
	return end(append(request(nil, rtmGetAddr, flagDump, seq), make([]byte, 8)...))
}

func routeRequest(seq uint32, dst netip.Addr, oif int) []byte {
	b := append(request(nil, rtmGetRoute, 0, seq), family(dst), byte(dst.BitLen()), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	b = attribute(b, 1, dst.AsSlice())
	if oif > 0 {
		b = attribute(b, 4, native.AppendUint32(nil, uint32(oif)))
	}
	return end(b)
}

// neighborRequest asks for an entry, or, with use, makes the kernel resolve it.
func neighborRequest(seq uint32, oif int, a netip.Addr, use bool) []byte {
	kind, flags, ntf := uint16(rtmGetNeigh), uint16(0), byte(0)
	if use {
		kind, flags, ntf = rtmNewNeigh, flagAck|flagCreate, neighborUse
	}
	b := request(nil, kind, flags, seq)
	b = append(b, family(a), 0, 0, 0)
	b = native.AppendUint32(b, uint32(oif))
	b = append(b, 0, 0, ntf, 0)
	return end(attribute(b, 1, a.AsSlice()))
}

func (l Link) String() string { return fmt.Sprintf("%s (%d)", l.Name, l.Index) }
