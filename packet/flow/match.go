package flow

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/packet"
)

// Bounds of a Match.
const (
	// MaxFlexOffset is the highest Offset of a Flex, in bytes from the beginning of the payload.
	MaxFlexOffset = 252
	// MaxFlexWords is how many Flex a Match may have.
	MaxFlexWords = 4
)

// Opt is a value that may be absent. The zero Opt is absent; zero values are present when they are
// set: a port is 0 only if the rule says 0. Absent values are left out of JSON (tag omitzero); null
// reads as absent.
type Opt[T comparable] struct {
	Value T
	Set   bool
}

// Some returns a present value.
func Some[T comparable](v T) Opt[T] { return Opt[T]{v, true} }

// IsZero reports absence, for the tag omitzero of encoding/json.
func (o Opt[T]) IsZero() bool { return !o.Set }

// MarshalJSON writes the value, or null when it is absent.
func (o Opt[T]) MarshalJSON() ([]byte, error) {
	if !o.Set {
		return []byte("null"), nil
	}
	return json.Marshal(o.Value)
}

// UnmarshalJSON reads a value; null makes it absent.
func (o *Opt[T]) UnmarshalJSON(b []byte) error {
	*o = Opt[T]{}
	if string(b) == "null" {
		return nil
	}
	if err := json.Unmarshal(b, &o.Value); err != nil {
		return err
	}
	o.Set = true
	return nil
}

// Range is the numbers from Lo to Hi, both included. Its text is "5" or "5-10"; JSON takes a number
// too.
type Range struct{ Lo, Hi uint16 }

// One returns the range of one number.
func One(n uint16) Range { return Range{n, n} }

// Contains reports whether n is in the range.
func (r Range) Contains(n uint16) bool { return r.Lo <= n && n <= r.Hi }

func (r Range) String() string {
	if r.Lo == r.Hi {
		return strconv.Itoa(int(r.Lo))
	}
	return fmt.Sprintf("%d-%d", r.Lo, r.Hi)
}

// MarshalText writes the form of String.
func (r Range) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads "5" or "5-10". Unlike a parser that stops at the first odd character, it
// never makes a part of a number, or a wildcard, of what it does not understand.
func (r *Range) UnmarshalText(b []byte) error {
	lo, hi, isRange := strings.Cut(string(b), "-")
	l, err := number(lo, 0xffff)
	if err != nil {
		return err
	}
	h := l
	if isRange {
		if h, err = number(hi, 0xffff); err != nil {
			return err
		}
	}
	if l > h {
		return fmt.Errorf("range %s begins above its end: write %d-%d", b, h, l)
	}
	*r = Range{uint16(l), uint16(h)}
	return nil
}

// UnmarshalJSON reads a number or a string.
func (r *Range) UnmarshalJSON(b []byte) error { return textOrNumber(b, r.UnmarshalText) }

func textOrNumber(b []byte, text func([]byte) error) error {
	if len(b) > 0 && b[0] == '"' {
		var s string
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
		b = []byte(s)
	}
	return text(b)
}

// number reads a decimal or 0x number of at most limit: digits only, no sign, no underscore.
func number(s string, limit uint64) (uint64, error) {
	digits, base := s, 10
	if len(s) > 2 && (s[:2] == "0x" || s[:2] == "0X") {
		digits, base = s[2:], 16
	}
	n, err := strconv.ParseUint(digits, base, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number: expected 0 to %d", s, limit)
	}
	if n > limit {
		return 0, fmt.Errorf("%s is out of range: expected 0 to %d", s, limit)
	}
	return n, nil
}

// Block is the numbers n with n&Mask == Value.
type Block struct{ Value, Mask uint16 }

// Blocks splits a range into the fewest blocks: each time the largest that begins where the last
// one ended. An absent range is every number.
func Blocks(of Opt[Range]) (out []Block) {
	if !of.Set {
		return []Block{{}}
	}
	for lo, hi := int(of.Value.Lo), int(of.Value.Hi); lo <= hi; {
		size := 1
		for lo&(2*size-1) == 0 && lo+2*size-1 <= hi && size < 1<<16 {
			size *= 2
		}
		out = append(out, Block{uint16(lo), ^uint16(size - 1)})
		lo += size
	}
	return out
}

// VLAN is what a match asks of a VLAN tag: an identifier of 0 to 4095, or that there is no tag.
// Text and JSON are the number or "untagged". A frame with a priority tag has identifier 0; it is
// tagged.
type VLAN uint16

// Untagged is the VLAN of a frame without that tag.
const Untagged VLAN = 0xffff

// MaxVLAN is the highest identifier; 4095 is reserved by IEEE 802.1Q but may be on the wire.
const MaxVLAN = 4095

func (v VLAN) String() string {
	if v == Untagged {
		return "untagged"
	}
	return strconv.Itoa(int(v))
}

// MarshalText writes the form of String.
func (v VLAN) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText reads a number from 0 to 4095 or "untagged".
func (v *VLAN) UnmarshalText(b []byte) error {
	if string(b) == "untagged" {
		*v = Untagged
		return nil
	}
	n, err := number(string(b), MaxVLAN)
	if err != nil {
		return fmt.Errorf("%w, or untagged", err)
	}
	*v = VLAN(n)
	return nil
}

// UnmarshalJSON reads a number or a string.
func (v *VLAN) UnmarshalJSON(b []byte) error { return textOrNumber(b, v.UnmarshalText) }

// Flex asks for bits of the 32-bit word (network byte order) that begins Offset bytes behind the
// TCP or UDP header: word&Mask must be Value. The word must lie wholly inside the payload.
type Flex struct {
	Offset uint16 `json:"offset"` // 0 to MaxFlexOffset, need not be aligned
	Value  uint32 `json:"value"`  // no bit outside Mask
	Mask   uint32 `json:"mask"`   // not 0
}

// ECPRI asks for fields of an eCPRI common header and the identifier behind it (eCPRI specification
// 2.0, 3.1.3 and 3.2.4): of frames of EtherType 0xAEFE, or, in a match that also asks for UDP, of
// the UDP payload.
type ECPRI struct {
	Type  Opt[uint8]  `json:"msg_type,omitzero"`
	PCID  Opt[uint16] `json:"pc_id,omitzero"`  // messages of type 0 (IQ data) and 1 (bit sequence)
	RTCID Opt[uint16] `json:"rtc_id,omitzero"` // messages of type 2 (real-time control)
}

// Set reports whether any field of eCPRI is asked for.
func (e ECPRI) Set() bool { return e.Type.Set || e.PCID.Set || e.RTCID.Set }

// Match is what a rule asks of a packet: all of its present fields. The zero Match accepts every
// packet.
type Match struct {
	EthSrc    Opt[packet.MAC]       `json:"eth_src,omitzero"`
	EthDst    Opt[packet.MAC]       `json:"eth_dst,omitzero"`
	EtherType Opt[packet.EtherType] `json:"eth_type,omitzero"`   // behind all tags
	VLAN      Opt[VLAN]             `json:"vlan,omitzero"`       // outer tag
	InnerVLAN Opt[VLAN]             `json:"inner_vlan,omitzero"` // second tag (QinQ); Untagged: at most one tag

	Src   netip.Prefix      `json:"ip_src,omitzero"`   // IPv4 or IPv6; the zero Prefix is absent
	Dst   netip.Prefix      `json:"ip_dst,omitzero"`   //
	Proto Opt[packet.Proto] `json:"ip_proto,omitzero"` // behind the IPv6 extension headers
	// total bytes of the IP packet, IPv6 header included; longer counts as 65535
	Length Opt[Range] `json:"ip_len,omitzero"`

	SrcPort Opt[Range] `json:"port_src,omitzero"` // of UDP or TCP, which Proto must say
	DstPort Opt[Range] `json:"port_dst,omitzero"` //
	Flex    []Flex     `json:"flex,omitzero"`     // at most MaxFlexWords
	ECPRI   ECPRI      `json:"ecpri,omitzero"`    //
}

// Clone returns a copy that shares nothing with m.
func (m *Match) Clone() Match {
	c := *m
	c.Flex = slices.Clone(m.Flex)
	return c
}

// Equal reports whether both ask for the same, written the same way.
func (m *Match) Equal(o *Match) bool {
	return m.EthSrc == o.EthSrc && m.EthDst == o.EthDst && m.EtherType == o.EtherType && m.VLAN == o.VLAN &&
		m.InnerVLAN == o.InnerVLAN &&
		m.Src == o.Src && m.Dst == o.Dst && m.Proto == o.Proto && m.Length == o.Length &&
		m.SrcPort == o.SrcPort && m.DstPort == o.DstPort && slices.Equal(m.Flex, o.Flex) && m.ECPRI == o.ECPRI
}

// HasFamily reports whether a match about IP accepts packets of IPv4, or else of IPv6.
func (m *Match) HasFamily(four bool) bool {
	for _, p := range []netip.Prefix{m.Src, m.Dst} {
		if p.IsValid() && p.Addr().Is4() != four {
			return false
		}
	}
	if !m.EtherType.Set {
		return true
	}
	if four {
		return m.EtherType.Value == packet.EtherTypeIPv4
	}
	return m.EtherType.Value == packet.EtherTypeIPv6
}
