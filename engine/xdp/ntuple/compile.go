package ntuple

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/penstock-io/penstock/internal/ethtool"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
)

// Entry is an n-tuple rule that stands for a rule, or a part of it.
type Entry struct {
	Rule int              // index in the rules that were compiled
	Spec ethtool.FlowSpec // with AnyLocation: Install chooses places
}

// Limits are what a card can take.
type Limits struct {
	Queues  int // receive queues 0 to Queues-1 exist; 0: not known here
	Entries int // places in the table; 0: not known here
}

// MaxPerRule is how many entries one rule may take. A range of ports takes up to 30, two of them
// their product.
const MaxPerRule = 128

// Capabilities is what n-tuple rules can do, for flow.Check. Compile refuses more: combinations
// that no n-tuple rule has.
var Capabilities = flow.Capabilities{
	Engine: "n-tuple rules",
	Fields: flow.Fields(flow.FieldEthSrc, flow.FieldEthDst, flow.FieldEtherType, flow.FieldVLAN, flow.FieldProto,
		flow.FieldSrc, flow.FieldDst,
		flow.FieldSrcPort, flow.FieldDstPort),
	Ranges:     flow.Fields(flow.FieldSrcPort, flow.FieldDstPort),
	Prefixes:   true,
	IPv6:       true,
	Actions:    flow.ActionKinds(flow.ToQueue, flow.Drop),
	Priorities: true,
}

// Compile turns a set of rules, which flow.Validate has no errors about, into entries in the order
// of precedence. The error is flow.Problems: all that does not fit, and then there are no entries.
func Compile(rules []flow.Rule, l Limits) ([]Entry, error) {
	can := Capabilities
	can.Queues = l.Queues
	problems := flow.Check(rules, &can)
	order := make([]int, len(rules))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(rules[b].Priority, rules[a].Priority) })
	var out []Entry
	for _, i := range order {
		r := &rules[i]
		no := func(field, format string, args ...any) {
			problems = append(problems, flow.Problem{Kind: flow.Unsupported, Rule: i, Name: r.Name, Other: -1,
				Field: field,
				Text:  can.Engine + ": " + fmt.Sprintf(format, args...)})
		}
		if slices.ContainsFunc(problems, func(p flow.Problem) bool { return p.Rule == i }) {
			continue
		}
		specs := compile(r, no)
		if len(specs) > MaxPerRule {
			no("rule", "it takes %d entries, more than %d: make its ranges of ports smaller, or begin and end them "+
				"at powers of two", len(specs), MaxPerRule)
			continue
		}
		for _, s := range specs {
			out = append(out, Entry{i, s})
		}
	}
	if l.Entries > 0 && len(out) > l.Entries && len(problems) == 0 {
		last := out[l.Entries].Rule
		problems = append(problems, flow.Problem{Kind: flow.Unsupported, Rule: last, Name: rules[last].Name, Other: -1,
			Field: "rules",
			Text: fmt.Sprintf("%s: the set takes %d entries, and the card has room for %d", can.Engine, len(out),
				l.Entries)})
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return out, nil
}

// compile is the entries of one rule.
func compile(r *flow.Rule, no func(field, format string, args ...any)) []ethtool.FlowSpec {
	m := &r.Match
	var base ethtool.FlowSpec
	base.Location = ethtool.AnyLocation
	if len(r.Actions) != 1 {
		no("actions", "expected one, queue or drop")
		return nil
	}
	switch a := &r.Actions[0]; a.Kind {
	case flow.ToQueue:
		base.Queue = uint64(a.Queue)
	case flow.Drop:
		base.Drop = true
	default:
		no("actions", "expected queue or drop")
		return nil
	}
	if m.EthDst.Set {
		base.Value.DstMAC, base.Mask.DstMAC = [6]byte(m.EthDst.Value), allMAC
	}
	if v := m.VLAN; v.Set {
		switch v.Value {
		case flow.Untagged:
			no("vlan", "cannot ask that there is no tag")
			return nil
		case 0:
			no("vlan", "cannot match identifier 0: cards take a frame without a tag for one")
			return nil
		}
		base.Value.VLAN, base.Mask.VLAN = uint16(v.Value), flow.MaxVLAN
	}
	ip := m.Proto.Set || m.Src.IsValid() || m.Dst.IsValid() || m.SrcPort.Set || m.DstPort.Set
	if !ip {
		return ether(m, base, no)
	}
	if m.EthSrc.Set {
		no("eth src", "cannot match it together with fields of IP: leave one of them away")
		return nil
	}
	var out []ethtool.FlowSpec
	for _, four := range []bool{true, false} {
		if !m.HasFamily(four) {
			continue
		}
		out = append(out, overIP(m, base, four, no)...)
	}
	if out == nil {
		no("match", "no packet can have all of it: %v", m)
	}
	return out
}

var allMAC = [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

func ether(m *flow.Match, s ethtool.FlowSpec, no func(field, format string, args ...any)) []ethtool.FlowSpec {
	s.Type = ethtool.FlowEther
	if m.EthSrc.Set {
		s.Value.SrcMAC, s.Mask.SrcMAC = [6]byte(m.EthSrc.Value), allMAC
	}
	if m.EtherType.Set {
		s.Value.EtherType, s.Mask.EtherType = uint16(m.EtherType.Value), 0xffff
	}
	if s.Mask == (ethtool.FlowKey{}) {
		no("match", "cannot match every packet: the card's table of RSS says where the rest goes (\"ethtool -X\")")
		return nil
	}
	return []ethtool.FlowSpec{s}
}

func overIP(m *flow.Match, s ethtool.FlowSpec, four bool,
	no func(field, format string, args ...any)) (out []ethtool.FlowSpec) {
	address := func(p netip.Prefix, v, mask *[16]byte) {
		if !p.IsValid() {
			return
		}
		copy(v[:], p.Masked().Addr().AsSlice())
		for bit := range p.Bits() {
			mask[bit/8] |= 0x80 >> (bit % 8)
		}
	}
	address(m.Src, &s.Value.Src, &s.Mask.Src)
	address(m.Dst, &s.Value.Dst, &s.Mask.Dst)
	s.Type = ethtool.FlowIP6
	if four {
		s.Type = ethtool.FlowIP4
	}
	if !m.SrcPort.Set && !m.DstPort.Set {
		// Also of UDP and TCP: an entry of their types would see no later fragments, which have a
		// protocol but no ports.
		if m.Proto.Set {
			s.Value.Proto, s.Mask.Proto = uint8(m.Proto.Value), 0xff
		}
		return []ethtool.FlowSpec{s}
	}
	switch {
	case m.Proto == flow.Some(packet.ProtoUDP) && four:
		s.Type = ethtool.FlowUDP4
	case m.Proto == flow.Some(packet.ProtoUDP):
		s.Type = ethtool.FlowUDP6
	case m.Proto == flow.Some(packet.ProtoTCP) && four:
		s.Type = ethtool.FlowTCP4
	case m.Proto == flow.Some(packet.ProtoTCP):
		s.Type = ethtool.FlowTCP6
	default:
		no("ip proto", "ports are those of udp or tcp: say which")
		return nil
	}
	for _, src := range flow.Blocks(m.SrcPort) {
		for _, dst := range flow.Blocks(m.DstPort) {
			s.Value.SrcPort, s.Mask.SrcPort = src.Value, src.Mask
			s.Value.DstPort, s.Mask.DstPort = dst.Value, dst.Mask
			out = append(out, s)
		}
	}
	return out
}
