package ethtool

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
)

// FlowType is the kind of packets that an n-tuple rule, or a choice of hash fields, is about
// (linux/ethtool.h).
type FlowType uint32

// The types that this package knows. The others of the kernel's can be listed and deleted.
const (
	FlowTCP4  FlowType = 0x01
	FlowUDP4  FlowType = 0x02
	FlowTCP6  FlowType = 0x05
	FlowUDP6  FlowType = 0x06
	FlowIP4   FlowType = 0x0d // any protocol over IPv4, which the rule may name
	FlowIP6   FlowType = 0x0e
	FlowEther FlowType = 0x12

	flowExt    = 0x80000000
	flowMACExt = 0x40000000
	flowRSS    = 0x20000000
	flowFlags  = flowExt | flowMACExt | flowRSS
)

func (t FlowType) String() string {
	switch t {
	case FlowTCP4:
		return "tcp4"
	case FlowUDP4:
		return "udp4"
	case FlowTCP6:
		return "tcp6"
	case FlowUDP6:
		return "udp6"
	case FlowIP4:
		return "ip4"
	case FlowIP6:
		return "ip6"
	case FlowEther:
		return "ether"
	}
	return fmt.Sprintf("type %#x", uint32(t))
}

// FlowKey is the fields of a packet that n-tuple rules see. Which of them count depends on the
// FlowType: ports with TCP and UDP, the protocol with FlowIP4 and FlowIP6, Ethernet's type and
// source with FlowEther; the destination MAC and the VLAN with all.
type FlowKey struct {
	DstMAC, SrcMAC   [6]byte
	EtherType        uint16
	Src, Dst         [16]byte // IPv4: in the first four bytes
	SrcPort, DstPort uint16
	Proto            uint8
	TOS              uint8     // traffic class in IPv6
	L4               uint32    // with FlowIP4 and FlowIP6: the first four bytes behind the IP header
	VLANType         uint16    // of the tag: 0x8100
	VLAN             uint16    // the tag: 3 bits of priority, 1 bit, 12 bits of identifier
	Data             [2]uint32 // that the driver gives a meaning of its own
}

// FlowSpec is an n-tuple rule of a network card (struct ethtool_rx_flow_spec). It accepts a packet
// of its Type if packet&Mask == Value&Mask in every field. The lowest location wins.
type FlowSpec struct {
	Type        FlowType
	Value, Mask FlowKey
	Queue       uint64 // receive queue; the bits above 32 name a virtual function, 0: none
	Drop        bool   // instead of Queue
	Wake        bool   // wake-on-LAN, instead of Queue
	Context     uint32 // RSS context that Queue is added to; 0: none
	Location    uint32 // place in the card's table; InsertRule chooses one for AnyLocation
}

// AnyLocation leaves the choice of a place to InsertRule.
const AnyLocation = 0xffffffff

// Offsets of struct ethtool_rx_flow_spec: each union of 52 bytes is followed by 20 of struct
// ethtool_flow_ext. They are the same on all 64-bit machines.
const (
	specValue    = 4
	specValueExt = 56
	specMask     = 76
	specMaskExt  = 128
	specCookie   = 152
	specLocation = 160
	specLen      = 168

	cookieDrop = 0xffffffffffffffff
	cookieWake = 0xfffffffffffffffe
)

// put writes k into a union and its extension, as the type lays them out.
func (k *FlowKey) put(t FlowType, u, ext []byte) {
	be := binary.BigEndian
	switch t {
	case FlowTCP4, FlowUDP4:
		copy(u[0:4], k.Src[:4])
		copy(u[4:8], k.Dst[:4])
		be.PutUint16(u[8:], k.SrcPort)
		be.PutUint16(u[10:], k.DstPort)
		u[12] = k.TOS
	case FlowTCP6, FlowUDP6:
		copy(u[0:16], k.Src[:])
		copy(u[16:32], k.Dst[:])
		be.PutUint16(u[32:], k.SrcPort)
		be.PutUint16(u[34:], k.DstPort)
		u[36] = k.TOS
	case FlowIP4:
		copy(u[0:4], k.Src[:4])
		copy(u[4:8], k.Dst[:4])
		be.PutUint32(u[8:], k.L4)
		u[12], u[14] = k.TOS, k.Proto
	case FlowIP6:
		copy(u[0:16], k.Src[:])
		copy(u[16:32], k.Dst[:])
		be.PutUint32(u[32:], k.L4)
		u[36], u[37] = k.TOS, k.Proto
	case FlowEther:
		copy(u[0:6], k.DstMAC[:])
		copy(u[6:12], k.SrcMAC[:])
		be.PutUint16(u[12:], k.EtherType)
	}
	if t != FlowEther {
		copy(ext[2:8], k.DstMAC[:])
	}
	be.PutUint16(ext[8:], k.VLANType)
	be.PutUint16(ext[10:], k.VLAN)
	be.PutUint32(ext[12:], k.Data[0])
	be.PutUint32(ext[16:], k.Data[1])
}

// get is the reverse of put.
func (k *FlowKey) get(t FlowType, u, ext []byte) {
	be := binary.BigEndian
	switch t {
	case FlowTCP4, FlowUDP4:
		copy(k.Src[:4], u[0:])
		copy(k.Dst[:4], u[4:])
		k.SrcPort, k.DstPort, k.TOS = be.Uint16(u[8:]), be.Uint16(u[10:]), u[12]
	case FlowTCP6, FlowUDP6:
		copy(k.Src[:], u[0:])
		copy(k.Dst[:], u[16:])
		k.SrcPort, k.DstPort, k.TOS = be.Uint16(u[32:]), be.Uint16(u[34:]), u[36]
	case FlowIP4:
		copy(k.Src[:4], u[0:])
		copy(k.Dst[:4], u[4:])
		k.L4, k.TOS, k.Proto = be.Uint32(u[8:]), u[12], u[14]
	case FlowIP6:
		copy(k.Src[:], u[0:])
		copy(k.Dst[:], u[16:])
		k.L4, k.TOS, k.Proto = be.Uint32(u[32:]), u[36], u[37]
	case FlowEther:
		copy(k.DstMAC[:], u[0:])
		copy(k.SrcMAC[:], u[6:])
		k.EtherType = be.Uint16(u[12:])
	}
	if t != FlowEther {
		copy(k.DstMAC[:], ext[2:])
	}
	k.VLANType, k.VLAN = be.Uint16(ext[8:]), be.Uint16(ext[10:])
	k.Data = [2]uint32{be.Uint32(ext[12:]), be.Uint32(ext[16:])}
}

// ipVersion4 is ip_ver of struct ethtool_usrip4_spec (ETH_RX_NFC_IP4), which drivers expect
// unmasked.
const ipVersion4 = 1

// encode writes the structure into b of specLen bytes.
func (s *FlowSpec) encode(b []byte) {
	clear(b[:specLen])
	s.Value.put(s.Type, b[specValue:specValueExt], b[specValueExt:specMask])
	s.Mask.put(s.Type, b[specMask:specMaskExt], b[specMaskExt:])
	t := uint32(s.Type)
	if m := &s.Mask; m.VLANType != 0 || m.VLAN != 0 || m.Data != [2]uint32{} {
		t |= flowExt
	}
	if s.Type != FlowEther && s.Mask.DstMAC != [6]byte{} {
		t |= flowMACExt
	}
	if s.Context != 0 {
		t |= flowRSS
	}
	if s.Type == FlowIP4 {
		b[specValue+13] = ipVersion4
	}
	native.PutUint32(b, t)
	cookie := s.Queue
	switch {
	case s.Drop:
		cookie = cookieDrop
	case s.Wake:
		cookie = cookieWake
	}
	native.PutUint64(b[specCookie:], cookie)
	native.PutUint32(b[specLocation:], s.Location)
}

// decodeSpec reads the structure from b of specLen bytes. Fields whose flag is missing do not
// count.
func decodeSpec(b []byte) (s FlowSpec) {
	t := native.Uint32(b)
	s.Type = FlowType(t &^ flowFlags)
	s.Value.get(s.Type, b[specValue:specValueExt], b[specValueExt:specMask])
	s.Mask.get(s.Type, b[specMask:specMaskExt], b[specMaskExt:])
	for _, k := range []*FlowKey{&s.Value, &s.Mask} {
		if t&flowExt == 0 {
			k.VLANType, k.VLAN, k.Data = 0, 0, [2]uint32{}
		}
		if t&flowMACExt == 0 && s.Type != FlowEther {
			k.DstMAC = [6]byte{}
		}
	}
	s.Queue = native.Uint64(b[specCookie:])
	switch s.Queue {
	case cookieDrop:
		s.Queue, s.Drop = 0, true
	case cookieWake:
		s.Queue, s.Wake = 0, true
	}
	s.Location = native.Uint32(b[specLocation:])
	return s
}

// FlowMeaning is what a rule says of packets, in a form that can be compared and be the key of a
// map.
type FlowMeaning [specLen + 4]byte

// Meaning is what the rule says of packets, wherever it is in the table. Bits outside of the masks
// do not count.
func (s FlowSpec) Meaning() (m FlowMeaning) {
	s.Location = 0
	s.encode(m[:specLen])
	for i := specValue; i < specMask; i++ {
		m[i] &= m[i+specMask-specValue]
	}
	native.PutUint32(m[specLen:], s.Context)
	return m
}

// Same reports whether both rules say the same of packets; see Meaning.
func (s FlowSpec) Same(o FlowSpec) bool { return s.Meaning() == o.Meaning() }

// String is the rule in words, such as "3: udp4 dst-port 5000 vlan 7 -> queue 2".
func (s FlowSpec) String() string {
	var b strings.Builder
	if s.Location != AnyLocation {
		fmt.Fprintf(&b, "%d: ", s.Location)
	}
	b.WriteString(s.Type.String())
	masked := func(name string, v, m []byte, show func([]byte) string) {
		all, none := true, true
		for _, x := range m {
			all, none = all && x == 0xff, none && x == 0
		}
		switch {
		case all:
			fmt.Fprintf(&b, " %s %s", name, show(v))
		case !none:
			fmt.Fprintf(&b, " %s %s&%x", name, show(v), m)
		}
	}
	mac := func(v []byte) string {
		return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", v[0], v[1], v[2], v[3], v[4], v[5])
	}
	addr := func(v []byte) string { a, _ := netip.AddrFromSlice(v); return a.String() }
	number := func(v []byte) string { return fmt.Sprint(binary.BigEndian.Uint16(v)) }
	hex := func(v []byte) string { return fmt.Sprintf("0x%x", v) }
	word := func(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }
	v, m := &s.Value, &s.Mask
	masked("dst-mac", v.DstMAC[:], m.DstMAC[:], mac)
	masked("src-mac", v.SrcMAC[:], m.SrcMAC[:], mac)
	masked("ether-type", word(v.EtherType), word(m.EtherType), hex)
	n := 16
	if s.Type == FlowTCP4 || s.Type == FlowUDP4 || s.Type == FlowIP4 {
		n = 4
	}
	masked("src", v.Src[:n], m.Src[:n], addr)
	masked("dst", v.Dst[:n], m.Dst[:n], addr)
	masked("proto", []byte{v.Proto}, []byte{m.Proto}, func(v []byte) string { return fmt.Sprint(v[0]) })
	masked("tos", []byte{v.TOS}, []byte{m.TOS}, hex)
	masked("src-port", word(v.SrcPort), word(m.SrcPort), number)
	masked("dst-port", word(v.DstPort), word(m.DstPort), number)
	masked("l4", binary.BigEndian.AppendUint32(nil, v.L4), binary.BigEndian.AppendUint32(nil, m.L4), hex)
	masked("vlan-type", word(v.VLANType), word(m.VLANType), hex)
	if m.VLAN == 0xfff {
		fmt.Fprintf(&b, " vlan %d", v.VLAN&0xfff)
	} else {
		masked("vlan-tag", word(v.VLAN), word(m.VLAN), hex)
	}
	for i := range v.Data {
		masked(fmt.Sprintf("data%d", i), binary.BigEndian.AppendUint32(nil, v.Data[i]),
			binary.BigEndian.AppendUint32(nil, m.Data[i]), hex)
	}
	switch {
	case s.Drop:
		b.WriteString(" -> drop")
	case s.Wake:
		b.WriteString(" -> wake")
	default:
		fmt.Fprintf(&b, " -> queue %d", s.Queue)
	}
	if s.Context != 0 {
		fmt.Fprintf(&b, " of context %d", s.Context)
	}
	return b.String()
}
