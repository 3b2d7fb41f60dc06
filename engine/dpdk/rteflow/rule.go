package rteflow

import (
	"fmt"
	"strings"
)

// Header is the kind of an item: a protocol's header (RTE_FLOW_ITEM_TYPE_*).
type Header uint8

// The headers, and bytes of the payload.
const (
	Ethernet Header = iota
	VLAN
	IPv4
	IPv6
	UDP
	TCP
	Raw
	VXLAN
	NVGRE
	numHeaders
)

var headerNames = [numHeaders]string{"eth", "vlan", "ipv4", "ipv6", "udp", "tcp", "raw", "vxlan", "nvgre"}

// Sizes are the bytes of the headers as items have them. That of a VLAN tag has its TCI and the
// EtherType behind it.
var Sizes = [numHeaders]int{Ethernet: 14, VLAN: 4, IPv4: 20, IPv6: 40, UDP: 8, TCP: 20, Raw: 4, VXLAN: 8, NVGRE: 8}

// Tags is what an item of Ethernet or of a VLAN asks of tags behind it.
type Tags uint8

// The demands.
const (
	AnyTags Tags = iota
	NoTags       // has_vlan or has_more_vlan is 0
)

// Item asks for a header behind that of the item before.
type Item struct {
	Header Header
	// Spec are the bytes of the header, in the order of the wire, of which those bits count that
	// are set in Mask. Last, where it is there, is the end of a range that begins at Spec. Without
	// Spec any header of its kind will do.
	Spec, Last, Mask []byte
	Tags             Tags
	Offset           uint16 // of Raw: bytes between the item before and these
}

// ActionKind says what an Action does (RTE_FLOW_ACTION_TYPE_*).
type ActionKind uint8

// The kinds.
const (
	Mark ActionKind = iota
	Count
	Queue
	RSS
	Drop
	PopVLAN
	PushVLAN
	SetVLAN // identifier
	SetPCP
	DecapVXLAN
	DecapNVGRE
)

// Action is one step of what a device does with a packet.
type Action struct {
	Kind   ActionKind
	Value  uint32   // mark, EtherType of a tag, identifier, priority
	Queues []uint16 // numbers of the device: of Queue one
}

// String is the item in the words of testpmd.
func (i Item) String() string {
	var b strings.Builder
	b.WriteString(headerNames[i.Header])
	switch {
	case i.Tags == NoTags && i.Header == Ethernet:
		b.WriteString(" has_vlan spec 0 has_vlan mask 1")
	case i.Tags == NoTags:
		b.WriteString(" has_more_vlan spec 0 has_more_vlan mask 1")
	}
	if i.Header == Raw {
		fmt.Fprintf(&b, " relative is 1 offset is %d pattern_hex spec %x pattern_hex mask %x", i.Offset, i.Spec, i.Mask)
		return b.String()
	}
	for _, f := range fields[i.Header] {
		f.write(&b, i)
	}
	return b.String()
}

// field is a part of a header that has a name.
type field struct {
	name     string
	at, size int
}

var fields = [numHeaders][]field{
	Ethernet: {{"dst", 0, 6}, {"src", 6, 6}, {"type", 12, 2}},
	VLAN:     {{"tci", 0, 2}, {"inner_type", 2, 2}},
	IPv4:     {{"proto", 9, 1}, {"src", 12, 4}, {"dst", 16, 4}},
	IPv6:     {{"proto", 6, 1}, {"src", 8, 16}, {"dst", 24, 16}},
	UDP:      {{"src", 0, 2}, {"dst", 2, 2}},
	TCP:      {{"src", 0, 2}, {"dst", 2, 2}},
}

func (f field) write(b *strings.Builder, i Item) {
	if i.Mask == nil || strings.Trim(string(i.Mask[f.at:f.at+f.size]), "\x00") == "" {
		return
	}
	for _, x := range []struct {
		word  string
		bytes []byte
	}{{"spec", i.Spec}, {"last", i.Last}, {"mask", i.Mask}} {
		if x.bytes != nil {
			fmt.Fprintf(b, " %s %s 0x%x", f.name, x.word, x.bytes[f.at:f.at+f.size])
		}
	}
}

// String is the action in the words of testpmd.
func (a Action) String() string {
	switch a.Kind {
	case Mark:
		return fmt.Sprintf("mark id %d", a.Value)
	case Count:
		return "count"
	case Queue:
		return fmt.Sprintf("queue index %d", a.Queues[0])
	case RSS:
		return "rss queues " + strings.Trim(fmt.Sprint(a.Queues), "[]") + " end"
	case Drop:
		return "drop"
	case PopVLAN:
		return "of_pop_vlan"
	case PushVLAN:
		return fmt.Sprintf("of_push_vlan ethertype %#x", a.Value)
	case SetVLAN:
		return fmt.Sprintf("of_set_vlan_vid vlan_vid %d", a.Value)
	case SetPCP:
		return fmt.Sprintf("of_set_vlan_pcp vlan_pcp %d", a.Value)
	case DecapVXLAN:
		return "vxlan_decap"
	case DecapNVGRE:
		return "nvgre_decap"
	}
	return "unknown"
}

// Compiled is what becomes of a rule.
type Compiled struct {
	Rule     int    // its index
	ID       uint32 // and its ID
	Priority uint32 // 0 is the highest
	// Patterns are the packets that the device takes: those of any of them. There are none where it
	// can take none.
	Patterns [][]Item
	Whole    []Action // all that the rule says; nil where software has to look at its packets
	Steer    []Action // only where its packets go; nil for a rule that delivers none
	Why      string   // what keeps the rule from being Whole
}

// Do is what the device does with packets of the rule: all that the rule says, or only where they
// go; nil where it takes none.
func (c *Compiled) Do() []Action {
	if c.Whole != nil {
		return c.Whole
	}
	return c.Steer
}

// String is the rule in the words of testpmd, a line for each pattern.
func (c Compiled) String() string {
	actions := c.Do()
	if len(c.Patterns) == 0 || actions == nil {
		return "software: " + c.Why
	}
	var b strings.Builder
	for k, p := range c.Patterns {
		if k > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "priority %d pattern", c.Priority)
		for _, i := range p {
			fmt.Fprintf(&b, " %v /", i)
		}
		b.WriteString(" end actions")
		for _, a := range actions {
			fmt.Fprintf(&b, " %v /", a)
		}
		b.WriteString(" end")
	}
	if c.Whole == nil {
		fmt.Fprintf(&b, "\nsoftware classifies: %s", c.Why)
	}
	return b.String()
}
