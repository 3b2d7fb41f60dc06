package rteflow

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
)

// MaxPatterns is how many patterns one rule may take.
const MaxPatterns = 32

// Options are what a translation depends on besides the rules.
type Options struct {
	// Queue is the number of the device's queue for one that a rule names, false where there is
	// none now.
	Queue func(id uint16) (uint16, bool)
	// Limit is what a rule, by its index, must do without. Without it none has to.
	Limit func(rule int) Limit
	// Tagged has rules that do not name a VLAN take frames with one tag by patterns of their own. A
	// device without isolation leaves those to software.
	Tagged bool
}

// Limit is what a device has refused of a rule.
type Limit uint8

// The limits, each with those before it.
const (
	Unlimited Limit = iota
	NoRanges        // ranges of ports as one pattern, with Item.Last: they are split into prefixes
	NoWhole         // what a rule does besides its queue
	Nothing         // the rule
)

// blind is what a device does not see of packets: those that it may miss by a pattern, and those
// that it may take by one.
type blind uint8

const (
	inTags blind = 1 << iota // behind tags that the pattern does not name
	deep                     // behind extension headers of IPv6, and in fragments
	// what has no tunnel, or none that the device knows: each pattern without a tunnel may take
	// such
	bare
	all = inTags | deep | bare
)

// rule is one on its way.
type rule struct {
	*flow.Rule
	c      Compiled
	misses blind // packets of the rule that its patterns may miss
	sees   blind // packets that its patterns take and those of other rules may miss
	limit  Limit
}

// Compile translates a set of rules, which flow.Validate has no errors about. The result is in the
// order of precedence, one for each rule.
func Compile(rules []flow.Rule, o Options) []Compiled {
	order := make([]*rule, len(rules))
	for i := range rules {
		order[i] = &rule{Rule: &rules[i], c: Compiled{Rule: i, ID: rules[i].ID}}
		if o.Limit != nil {
			order[i].limit = o.Limit(i)
		}
	}
	slices.SortStableFunc(order, func(a, b *rule) int { return cmp.Compare(b.Priority, a.Priority) })
	out := make([]Compiled, len(order))
	for k, r := range order {
		if r.limit == Nothing {
			r.no("the device refuses it")
		} else {
			r.patterns(o)
		}
		if len(r.c.Patterns) > 0 {
			r.actions(o)
			r.tunnel()
		} else {
			r.misses = all
		}
		for _, before := range order[:k] {
			if !flow.Apart(&before.Match, &r.Match) {
				r.under(before)
			}
		}
		out[k] = r.c
	}
	return out
}

// under takes account of a rule of higher precedence that shares packets with r.
func (r *rule) under(before *rule) {
	if len(before.c.Patterns) > 0 {
		r.c.Priority = max(r.c.Priority, before.c.Priority+1)
	}
	taken := len(before.c.Patterns) > 0 && before.c.Do() != nil
	if r.c.Whole != nil && (!taken || before.misses&r.sees != 0) {
		r.no("packets of rule %s, which comes first, could be taken for its own", Name(before.Rule))
		r.c.Whole = nil
	}
}

// Name is the rule's for messages: its ID where it has none.
func Name(r *flow.Rule) string {
	if r.Name != "" {
		return fmt.Sprintf("%q", r.Name)
	}
	return fmt.Sprint(r.ID)
}

// no notes why the rule cannot be Whole. The first reason counts.
func (r *rule) no(format string, args ...any) {
	if r.c.Why == "" {
		r.c.Why = fmt.Sprintf(format, args...)
	}
}

// actions translates what the rule does.
func (r *rule) actions(o Options) {
	last := &r.Actions[len(r.Actions)-1]
	var end []Action
	switch last.Kind {
	case flow.ToQueue:
		if n, ok := o.Queue(last.Queue); ok {
			end = []Action{{Kind: Queue, Queues: []uint16{n}}}
		}
	case flow.RSS:
		a := Action{Kind: RSS}
		for _, q := range last.Queues {
			if n, ok := o.Queue(q); ok {
				a.Queues = append(a.Queues, n)
			}
		}
		if len(a.Queues) == len(last.Queues) {
			end = []Action{a}
		}
	case flow.Drop:
		end = []Action{{Kind: Count}, {Kind: Drop}}
	case flow.ToKernel:
		r.no("only software leaves packets to the kernel")
		return
	}
	if end == nil {
		r.no("it names a queue that is not there")
		return
	}
	if last.Kind != flow.Drop {
		r.c.Steer = end
	}
	if r.limit >= NoWhole {
		r.no("the device refuses what it does")
	}
	if r.c.Why != "" { // or the patterns are not exact
		return
	}
	var whole []Action
	if last.Kind != flow.Drop {
		whole = append(whole, Action{Kind: Mark, Value: r.ID})
	}
	for i := range r.Actions[:len(r.Actions)-1] {
		a := r.transform(&r.Actions[i])
		if a == nil {
			return
		}
		whole = append(whole, a...)
	}
	r.c.Whole = append(whole, end...)
}

// tunnel has the patterns of a rule that takes off a tunnel ask for it: drivers want that.
func (r *rule) tunnel() {
	ask := numHeaders
	for _, a := range r.c.Whole {
		switch a.Kind {
		case DecapVXLAN:
			ask = VXLAN
		case DecapNVGRE:
			ask = NVGRE
		}
	}
	if ask == numHeaders {
		return
	}
	for _, p := range r.c.Patterns {
		last := p[len(p)-1].Header
		if last != IPv4 && last != IPv6 && (last != UDP || ask != VXLAN) {
			r.no("it does not name the headers in front of its tunnel")
			r.c.Whole = nil
			return
		}
	}
	for i, p := range r.c.Patterns {
		if ask == VXLAN && p[len(p)-1].Header != UDP {
			p = append(p, Item{Header: UDP})
		}
		r.c.Patterns[i] = append(p, Item{Header: ask})
	}
	r.misses |= bare
}

// transform translates a change of the packet; nil where only software makes it.
func (r *rule) transform(a *flow.Action) []Action {
	switch {
	case a.Kind == flow.PopVLAN:
		return []Action{{Kind: PopVLAN}}
	case a.Kind == flow.PushVLAN && !a.Tag.DEI:
		tpid := a.Tag.TPID
		if tpid == 0 {
			tpid = packet.EtherTypeVLAN
		}
		return []Action{{Kind: PushVLAN, Value: uint32(tpid)}, {Kind: SetVLAN, Value: uint32(a.Tag.ID)},
			{Kind: SetPCP, Value: uint32(a.Tag.PCP)}}
	case a.Kind == flow.Decap && a.Tunnel.Type == flow.VXLAN:
		return []Action{{Kind: DecapVXLAN}}
	case a.Kind == flow.Decap && a.Tunnel.Type == flow.NVGRE:
		return []Action{{Kind: DecapNVGRE}}
	}
	r.no("%v is software's", a.Kind)
	return nil
}

// patterns translates the match.
func (r *rule) patterns(o Options) {
	m := &r.Match
	switch {
	case m.Length.Set:
		r.no("lengths are matched in software")
		return
	case m.ECPRI.Set():
		r.no("eCPRI is matched in software")
		return
	}
	words := slices.Clone(m.Flex)
	slices.SortFunc(words, func(a, b flow.Flex) int { return cmp.Compare(a.Offset, b.Offset) })
	for i := range words[min(1, len(words)):] {
		if words[i+1].Offset < words[i].Offset+4 {
			r.no("flex words that overlap are matched in software")
			return
		}
	}
	ports := m.SrcPort.Set || m.DstPort.Set || len(words) > 0
	ip := ports || m.Proto.Set || m.Src.IsValid() || m.Dst.IsValid()
	inner := m.InnerVLAN.Set && m.InnerVLAN.Value != flow.Untagged
	if m.VLAN != flow.Some(flow.Untagged) {
		r.sees = inTags
		if !inner && !(m.VLAN.Set && m.InnerVLAN.Set) {
			r.misses = inTags
		}
	}
	if !m.VLAN.Set && m.InnerVLAN == flow.Some(flow.Untagged) {
		r.no("a device may take a frame with two tags for one without")
	}
	r.sees |= bare
	var tails [][]Item
	if ip {
		for _, four := range []bool{true, false} {
			if m.HasFamily(four) {
				tails = append(tails, r.overIP(four, ports, words)...)
			}
		}
		if len(tails) == 0 {
			return
		}
	} else {
		r.sees |= deep
		tails = [][]Item{nil}
	}
	for _, head := range r.heads(o) {
		for _, tail := range tails {
			r.c.Patterns = append(r.c.Patterns, append(slices.Clone(head), tail...))
		}
	}
	if len(r.c.Patterns) > MaxPatterns {
		r.no("it takes %d patterns, more than %d", len(r.c.Patterns), MaxPatterns)
		r.c.Patterns = nil
	}
}

// heads are the items of Ethernet and of tags.
func (r *rule) heads(o Options) [][]Item {
	m := &r.Match
	eth := Item{Header: Ethernet}
	if m.EthDst.Set {
		eth.ask(0, m.EthDst.Value[:])
	}
	if m.EthSrc.Set {
		eth.ask(6, m.EthSrc.Value[:])
	}
	// typed has the last item ask for the EtherType behind all tags.
	typed := func(items ...Item) []Item {
		if m.EtherType.Set {
			at := &items[len(items)-1]
			at.ask(Sizes[at.Header]-2, binary.BigEndian.AppendUint16(nil, uint16(m.EtherType.Value)))
		}
		return items
	}
	tag := func(v flow.Opt[flow.VLAN]) Item {
		i := Item{Header: VLAN}
		if v.Set {
			i.Spec, i.Mask = make([]byte, 4), make([]byte, 4)
			binary.BigEndian.PutUint16(i.Spec, uint16(v.Value))
			binary.BigEndian.PutUint16(i.Mask, flow.MaxVLAN)
		}
		return i
	}
	copied := func() Item {
		return Item{Header: Ethernet, Spec: slices.Clone(eth.Spec), Mask: slices.Clone(eth.Mask)}
	}
	inner := m.InnerVLAN.Set && m.InnerVLAN.Value != flow.Untagged
	switch {
	case m.VLAN.Set && m.VLAN.Value == flow.Untagged:
		eth.Tags = NoTags
		return [][]Item{typed(eth)}
	case inner:
		return [][]Item{typed(eth, tag(m.VLAN), tag(m.InnerVLAN))}
	case m.VLAN.Set:
		t := tag(m.VLAN)
		if m.InnerVLAN.Set {
			t.Tags = NoTags
		}
		return [][]Item{typed(eth, t)}
	case o.Tagged:
		return [][]Item{typed(copied()), typed(eth, tag(m.VLAN))}
	}
	return [][]Item{typed(eth)}
}

// overIP are the items of IP, of ports and of the payload.
func (r *rule) overIP(four, ports bool, words []flow.Flex) (out [][]Item) {
	m := &r.Match
	ip, proto, src, dst := Item{Header: IPv6}, 6, 8, 24
	if four {
		ip, proto, src, dst = Item{Header: IPv4}, 9, 12, 16
	}
	ip.prefix(src, m.Src)
	ip.prefix(dst, m.Dst)
	if !four && (m.Proto.Set || ports) {
		r.misses |= deep
	}
	if !ports {
		if m.Proto.Set {
			if !four && m.Proto.Value.IsExtension() {
				return nil // such a packet has another protocol behind it
			}
			ip.ask(proto, []byte{byte(m.Proto.Value)})
		}
		r.sees |= deep
		return [][]Item{{ip}}
	}
	r.misses |= deep
	l4s := []Header{UDP, TCP}
	switch {
	case m.Proto == flow.Some(packet.ProtoUDP):
		l4s = l4s[:1]
	case m.Proto == flow.Some(packet.ProtoTCP):
		l4s = l4s[1:]
	}
	if len(words) > 0 {
		r.no("a device may find flex words in the padding behind a short packet")
	}
	for _, l4 := range l4s {
		for _, s := range spans(m.SrcPort, r.limit < NoRanges) {
			for _, d := range spans(m.DstPort, r.limit < NoRanges) {
				i := Item{Header: l4}
				i.ports(0, s)
				i.ports(2, d)
				out = append(out, append([]Item{ip, i}, raw(words)...))
			}
		}
	}
	return out
}

// span is a range of ports: those n of which n&mask is in lo to hi.
type span struct{ lo, hi, mask uint16 }

func spans(of flow.Opt[flow.Range], ranges bool) (out []span) {
	if ranges && of.Set {
		return []span{{of.Value.Lo, of.Value.Hi, 0xffff}}
	}
	for _, b := range flow.Blocks(of) {
		out = append(out, span{b.Value, b.Value, b.Mask})
	}
	return out
}

func raw(words []flow.Flex) (out []Item) {
	end := uint16(0)
	for _, w := range words {
		out = append(out, Item{Header: Raw, Offset: w.Offset - end, Spec: binary.BigEndian.AppendUint32(nil, w.Value),
			Mask: binary.BigEndian.AppendUint32(nil, w.Mask)})
		end = w.Offset + 4
	}
	return out
}

// room makes Spec and Mask as long as the header.
func (i *Item) room() {
	if i.Spec == nil {
		i.Spec, i.Mask = make([]byte, Sizes[i.Header]), make([]byte, Sizes[i.Header])
	}
}

// ask asks for bytes at a place of the header.
func (i *Item) ask(at int, want []byte) {
	i.room()
	copy(i.Spec[at:], want)
	for k := range want {
		i.Mask[at+k] = 0xff
	}
}

// prefix asks for an address.
func (i *Item) prefix(at int, p netip.Prefix) {
	if !p.IsValid() {
		return
	}
	i.room()
	copy(i.Spec[at:], p.Masked().Addr().AsSlice())
	for bit := range p.Bits() {
		i.Mask[at+bit/8] |= 0x80 >> (bit % 8)
	}
}

// ports asks for ports.
func (i *Item) ports(at int, s span) {
	if s.mask == 0 {
		return
	}
	i.room()
	binary.BigEndian.PutUint16(i.Spec[at:], s.lo)
	binary.BigEndian.PutUint16(i.Mask[at:], s.mask)
	if s.hi == s.lo && i.Last == nil {
		return
	}
	if i.Last == nil {
		i.Last = slices.Clone(i.Spec)
	}
	binary.BigEndian.PutUint16(i.Last[at:], s.hi)
}
