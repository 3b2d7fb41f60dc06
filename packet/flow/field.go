package flow

import (
	"encoding/binary"

	"github.com/penstock-io/penstock/packet"
)

// Field is one thing of a packet that rules look at.
type Field uint8

// The fields, in the words of the text form.
const (
	FieldEthSrc Field = iota
	FieldEthDst
	FieldEtherType
	FieldVLAN
	FieldInnerVLAN
	FieldProto
	FieldSrc
	FieldDst
	FieldLength
	FieldSrcPort
	FieldDstPort
	FieldECPRIType
	FieldECPRIID
	FieldFlex
	numFields
)

var fieldNames = [numFields]string{"eth src", "eth dst", "eth type", "vlan", "inner-vlan", "ip proto", "ip src",
	"ip dst", "ip len",
	"port src", "port dst", "ecpri type", "ecpri id", "flex"}

func (f Field) String() string {
	if f < numFields {
		return fieldNames[f]
	}
	return "unknown"
}

// untagged is the value of a VLAN field of a frame without that tag; identifiers are below it.
const untagged = MaxVLAN + 1

// eCPRI: where the fields of the common header and the identifier lie (eCPRI specification 2.0,
// figures 8 and 12).
const (
	ecpriTypeAt = 1
	ecpriHeader = 4
	ecpriID     = 6 // bytes up to the end of a 16-bit identifier

	ecpriIQ, ecpriBits, ecpriControl = 0, 1, 2 // message types with a 16-bit identifier
)

// small returns the value of a field of at most 16 bits, and whether the packet has it.
func small(f Field, frame []byte, l *packet.Layers) (uint16, bool) {
	switch f {
	case FieldSrcPort:
		return l.SrcPort, l.HasPorts
	case FieldDstPort:
		return l.DstPort, l.HasPorts
	case FieldProto:
		return uint16(l.Proto), l.IPVersion != 0
	case FieldLength:
		return uint16(min(l.IPLen, 0xffff)), l.IPVersion != 0
	case FieldEtherType:
		return uint16(l.EtherType), true
	case FieldVLAN:
		if l.NumTags > 0 {
			return l.Tags[0].ID(), true
		}
		return untagged, true
	case FieldInnerVLAN:
		if l.NumTags > 1 {
			return l.Tags[1].ID(), true
		}
		return untagged, true
	case FieldECPRIType:
		at, n := ecpriAt(l)
		if n < ecpriHeader {
			return 0, false
		}
		return uint16(frame[at+ecpriTypeAt]), true
	case FieldECPRIID:
		at, n := ecpriAt(l)
		if n < ecpriID || frame[at+ecpriTypeAt] > ecpriControl {
			return 0, false
		}
		return binary.BigEndian.Uint16(frame[at+ecpriHeader:]), true
	}
	return 0, false
}

// ecpriAt returns where an eCPRI message begins and how many bytes it can have; 0 when the packet
// has none.
func ecpriAt(l *packet.Layers) (at, n int) {
	switch {
	case l.EtherType == packet.EtherTypeECPRI:
		return int(l.L3), int(l.End) - int(l.L3)
	case l.HasPorts && l.Proto == packet.ProtoUDP:
		return int(l.Payload), int(l.End) - int(l.Payload)
	}
	return 0, 0
}

// mac returns an Ethernet address as a number.
func mac(f Field, frame []byte, l *packet.Layers) (uint64, bool) {
	at := int(l.L2)
	if !l.HasL2 || len(frame)-at < packet.EthernetLen { // shorter: Parse has found it malformed
		return 0, false
	}
	if f == FieldEthDst {
		return binary.BigEndian.Uint64(frame[at:]) >> 16, true
	}
	return binary.BigEndian.Uint64(frame[at+4:]) & (1<<48 - 1), true
}

func macValue(m packet.MAC) uint64 {
	return uint64(m[0])<<40 | uint64(m[1])<<32 | uint64(binary.BigEndian.Uint32(m[2:]))
}

// addr4 and addr6 return an address of a packet whose IPVersion is 4 or 6.
func addr4(f Field, frame []byte, l *packet.Layers) uint32 {
	h := frame[l.L3:][:packet.IPv4Len]
	if f == FieldSrc {
		return binary.BigEndian.Uint32(h[12:])
	}
	return binary.BigEndian.Uint32(h[16:])
}

func addr6(f Field, frame []byte, l *packet.Layers) u128 {
	h := frame[l.L3:][:packet.IPv6Len]
	if f == FieldSrc {
		return u128{binary.BigEndian.Uint64(h[8:]), binary.BigEndian.Uint64(h[16:])}
	}
	return u128{binary.BigEndian.Uint64(h[24:]), binary.BigEndian.Uint64(h[32:])}
}

// flexWord returns the word at an offset of the payload of TCP or UDP.
func flexWord(offset uint16, frame []byte, l *packet.Layers) (uint32, bool) {
	at := int(l.Payload) + int(offset)
	if !l.HasPorts || at+4 > int(l.End) {
		return 0, false
	}
	return binary.BigEndian.Uint32(frame[at:]), true
}

// u128 is an unsigned number of 128 bits: an IPv6 address, or any smaller field.
type u128 struct{ hi, lo uint64 }

func (a u128) less(b u128) bool { return a.hi < b.hi || a.hi == b.hi && a.lo < b.lo }

// next returns a+1, and false when that does not fit.
func (a u128) next() (u128, bool) {
	a.lo++
	if a.lo == 0 {
		a.hi++
	}
	return a, a != u128{}
}

// prev returns a-1; a must not be 0.
func (a u128) prev() u128 {
	if a.lo == 0 {
		a.hi--
	}
	a.lo--
	return a
}
