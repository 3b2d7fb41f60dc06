package flow

import (
	"fmt"
	"strings"
)

// FieldSet is a set of fields.
type FieldSet uint32

// Fields returns the set of the given fields.
func Fields(fields ...Field) (s FieldSet) {
	for _, f := range fields {
		s |= 1 << f
	}
	return s
}

// AllFields is every field there is.
const AllFields FieldSet = 1<<numFields - 1

// Has reports whether f is in the set.
func (s FieldSet) Has(f Field) bool { return s>>f&1 != 0 }

func (s FieldSet) String() string {
	var names []string
	for f := range numFields {
		if s.Has(f) {
			names = append(names, f.String())
		}
	}
	return strings.Join(names, ", ")
}

// ActionSet is a set of kinds of actions.
type ActionSet uint16

// ActionKinds returns the set of the given kinds.
func ActionKinds(kinds ...ActionKind) (s ActionSet) {
	for _, k := range kinds {
		s |= 1 << k
	}
	return s
}

// AllActions is every kind of action there is.
const AllActions ActionSet = 1<<(Encap+1) - 2

// Has reports whether k is in the set.
func (s ActionSet) Has(k ActionKind) bool { return s>>k&1 != 0 }

func (s ActionSet) String() string {
	var names []string
	for k := ToQueue; k <= Encap; k++ {
		if s.Has(k) {
			names = append(names, k.String())
		}
	}
	return strings.Join(names, ", ")
}

// Capabilities is what an engine can do with rules. The zero value can do nothing but accept
// everything into queue 0.
type Capabilities struct {
	Engine   string    // its name, for messages
	Fields   FieldSet  // that a match may ask for
	Ranges   FieldSet  // of these, the ones that may be a range of more than one number (ports, length)
	Prefixes bool      // addresses may be a CIDR block of more than one host
	IPv6     bool      // addresses may be IPv6
	Actions  ActionSet //

	Tunnels    []TunnelType // of decap and encap
	OuterIPv6  bool         // of encap
	Priorities bool         // rules may have different priorities

	MaxRules      int    // 0: no limit of its own
	Queues        int    // queues 0 to Queues-1 exist; 0: not known here, any is accepted
	MaxRSS        int    // queues of one rss; 0: IndirectionEntries
	FlexWords     int    // of one match; 0: MaxFlexWords
	FlexOffset    uint16 // highest offset of a flex word
	FlexAlignment uint16 // of the offset; 0 or 1: any
	FlexMasks     bool   // masks other than 0xffffffff
}

// Software is what this package does itself, in Classifier and Transform.
var Software = Capabilities{
	Engine:     "software",
	Fields:     AllFields,
	Ranges:     AllFields,
	Prefixes:   true,
	IPv6:       true,
	Actions:    AllActions,
	Tunnels:    []TunnelType{VXLAN, GRE, NVGRE},
	OuterIPv6:  true,
	Priorities: true,
	FlexOffset: MaxFlexOffset,
	FlexMasks:  true,
}

// Fields returns which fields m asks for.
func (m *Match) Fields() (s FieldSet) {
	for f := range numFields {
		asks := false
		switch f {
		case FieldEthSrc, FieldEthDst:
			asks = m.mac(f).Set
		case FieldSrc, FieldDst:
			asks = m.prefix(f).IsValid()
		case FieldFlex:
			asks = len(m.Flex) > 0
		case FieldEtherType:
			asks = m.EtherType.Set
		default:
			_, _, asks = m.small(f)
		}
		if asks {
			s |= 1 << f
		}
	}
	return s
}

// Check returns, for each rule of the set that an engine with these capabilities cannot carry out,
// why not. It does not look for what Validate looks for.
func Check(rules []Rule, can *Capabilities) Problems {
	var p Problems
	for i := range rules {
		r := &rules[i]
		rep := report{&p, i, r.Name}
		no := func(field, format string, args ...any) {
			rep.add(Unsupported, field, "%s: %s", can.engine(), fmt.Sprintf(format, args...))
		}
		if can.MaxRules > 0 && i >= can.MaxRules {
			no("rules", "takes %d rules: join rules into ranges, or leave %d away", can.MaxRules,
				len(rules)-can.MaxRules)
		}
		if !can.Priorities && r.Priority != rules[0].Priority {
			no("priority", "has no priorities: give all rules the same, and make matches disjoint")
		}
		can.match(&r.Match, no)
		for k := range r.Actions {
			field := fmt.Sprintf("action %d", k+1)
			can.action(&r.Actions[k], func(format string, args ...any) { no(field, format, args...) })
		}
	}
	p.sort()
	return p
}

func (can *Capabilities) engine() string {
	if can.Engine == "" {
		return "the engine"
	}
	return can.Engine
}

func (can *Capabilities) match(m *Match, no func(string, string, ...any)) {
	asks := m.Fields()
	for f := range numFields {
		if asks.Has(f) && !can.Fields.Has(f) {
			no(f.String(), "cannot match it: it matches %v", can.Fields)
		}
	}
	for _, f := range []Field{FieldLength, FieldSrcPort, FieldDstPort} {
		if lo, hi, ok := m.small(f); ok && lo != hi && can.Fields.Has(f) && !can.Ranges.Has(f) {
			no(f.String(), "cannot match the range %v: make a rule for each number", Range{lo, hi})
		}
	}
	for _, f := range []Field{FieldSrc, FieldDst} {
		x := m.prefix(f)
		if !x.IsValid() || !can.Fields.Has(f) {
			continue
		}
		if !can.IPv6 && !x.Addr().Is4() {
			no(f.String(), "cannot match IPv6 addresses")
		} else if !can.Prefixes && !x.IsSingleIP() {
			no(f.String(), "cannot match the block %v: make a rule for each host", x)
		}
	}
	if !can.Fields.Has(FieldFlex) {
		return
	}
	if can.FlexWords > 0 && len(m.Flex) > can.FlexWords {
		no("flex", "matches %d words, not %d", can.FlexWords, len(m.Flex))
	}
	for _, f := range m.Flex {
		if f.Offset > can.FlexOffset {
			no("flex", "offset %d is beyond %d", f.Offset, can.FlexOffset)
		} else if can.FlexAlignment > 1 && f.Offset%can.FlexAlignment != 0 {
			no("flex", "offset %d is not a multiple of %d", f.Offset, can.FlexAlignment)
		}
		if f.Mask != 0xffffffff && !can.FlexMasks {
			no("flex", "cannot match under mask 0x%x: ask for the whole word", f.Mask)
		}
	}
}

func (can *Capabilities) action(a *Action, no func(string, ...any)) {
	if !can.Actions.Has(a.Kind) && !(a.Kind == ToQueue && can.Actions == 0) {
		no("cannot do %v: it can do %v", a.Kind, can.Actions)
		return
	}
	queue := func(q uint16) {
		if can.Queues > 0 && int(q) >= can.Queues {
			no("has no queue %d: it has 0 to %d", q, can.Queues-1)
		}
	}
	switch a.Kind {
	case ToQueue:
		queue(a.Queue)
	case RSS:
		for _, q := range a.Queues {
			queue(q)
		}
		if can.MaxRSS > 0 && len(a.Queues) > can.MaxRSS {
			no("spreads over %d queues, not %d", can.MaxRSS, len(a.Queues))
		}
	case Decap, Encap:
		known := false
		for _, t := range can.Tunnels {
			known = known || t == a.Tunnel.Type
		}
		if !known {
			no("cannot do %v tunnels", a.Tunnel.Type)
		}
		if a.Kind == Encap && !can.OuterIPv6 && a.Tunnel.Src.Is6() {
			no("cannot write an outer IPv6 header")
		}
	}
}
