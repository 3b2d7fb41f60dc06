package flow

import (
	"fmt"
	"net/netip"
	"slices"
	"unicode/utf8"

	"github.com/penstock-io/penstock/packet"
)

// Bounds of a Rule.
const (
	MaxActions = 8
	MaxName    = 255 // bytes
)

// Validate returns everything that is wrong with a set of rules, in order: what is out of range or
// contradicts itself, IDs and names given twice, and, as warnings, rules of one priority that can
// meet in a packet and disagree about it (with such a packet), and rules that no packet reaches.
//
// A rule covered by one other rule, or by several together, is found whatever fields are involved,
// as long as the difference stays a few dozen pieces; a set of flex words that only together cover
// another is not found. Time grows with the square of the number of rules: about a fifth of a
// second for 1,000.
func Validate(rules []Rule) Problems {
	p := checkAll(rules)
	meet(rules, &p)
	p.sort()
	return p
}

// checkAll looks at each rule by itself, and at IDs and names.
func checkAll(rules []Rule) Problems {
	var p Problems
	ids, names := map[uint32]int{}, map[string]int{}
	for i := range rules {
		r := &rules[i]
		rep := report{&p, i, r.Name}
		r.check(rep)
		if r.ID != 0 {
			if first, ok := ids[r.ID]; ok {
				rep.pair(Duplicate, first, "id", "%d is the id of rule %d already: give each rule its own, or 0", r.ID,
					first)
			} else {
				ids[r.ID] = i
			}
		}
		if r.Name != "" {
			if first, ok := names[r.Name]; ok {
				rep.pair(Duplicate, first, "name", "rule %d has this name already: give each rule its own, or none",
					first)
			} else {
				names[r.Name] = i
			}
		}
	}
	p.sort()
	return p
}

func (r *Rule) check(p report) {
	if r.ID > MaxRuleID {
		p.add(Invalid, "id", "%d is out of range: expected 0 to %d, for packets carry it in 24 bits", r.ID, MaxRuleID)
	}
	if r.Mark.Set && r.Mark.Value > MaxRuleID {
		p.add(Invalid, "mark", "%d is out of range: expected 0 to %d, for packets carry it in 24 bits", r.Mark.Value,
			MaxRuleID)
	}
	if len(r.Name) > MaxName || !utf8.ValidString(r.Name) {
		p.add(Invalid, "name", "%d bytes: expected at most %d, valid UTF-8", len(r.Name), MaxName)
	}
	before := len(*p.Problems)
	r.Match.check(p)
	if s, ok := explicit(&r.Match); (!ok || !s.tighten()) && len(*p.Problems) == before {
		// The checks by field name the usual contradictions; this is all the others.
		p.add(Contradiction, "match", "no packet can have all of it: %v", &r.Match)
	}
	r.checkActions(p)
}

func (m *Match) check(p report) {
	if m.EtherType.Set && m.EtherType.Value.IsTag() {
		p.add(Invalid, "eth type", "0x%04x is a VLAN tag, and the type is read behind the tags: use vlan",
			uint16(m.EtherType.Value))
	}
	vlan := func(name string, v Opt[VLAN]) {
		if v.Set && v.Value > MaxVLAN && v.Value != Untagged {
			p.add(Invalid, name, "%d is out of range: expected 0 to %d, or untagged", uint16(v.Value), MaxVLAN)
		}
	}
	vlan("vlan", m.VLAN)
	vlan("inner-vlan", m.InnerVLAN)
	if m.VLAN.Set && m.VLAN.Value == Untagged && m.InnerVLAN.Set && m.InnerVLAN.Value != Untagged {
		p.add(Contradiction, "inner-vlan",
			"an untagged frame has no inner tag: give the outer vlan, or leave vlan away")
	}
	m.checkIP(p)
	m.checkPorts(p)
	m.checkFlex(p)
	m.checkECPRI(p)
}

func (m *Match) checkIP(p report) {
	prefix := func(name string, x netip.Prefix) {
		switch {
		case x == netip.Prefix{}:
		case !x.IsValid():
			p.add(Invalid, name, "not a prefix: expected such as 10.0.0.0/8 or 2001:db8::/32")
		case x.Addr().Is4In6():
			p.add(Invalid, name, "%v is IPv4 written as IPv6: write it as IPv4", x)
		case x != x.Masked():
			p.add(Invalid, name, "%v has bits behind the prefix: write %v, or %v/%d for one host", x, x.Masked(),
				x.Addr(), x.Addr().BitLen())
		}
	}
	prefix("ip src", m.Src)
	prefix("ip dst", m.Dst)
	if m.Src.IsValid() && m.Dst.IsValid() && m.Src.Addr().Is4() != m.Dst.Addr().Is4() {
		p.add(Contradiction, "ip dst", "%v and %v are of different IP versions: make two rules", m.Src, m.Dst)
	}
	m.checkRange(p, "ip len", m.Length)
	if !m.EtherType.Set {
		return
	}
	t := m.EtherType.Value
	for _, x := range []netip.Prefix{m.Src, m.Dst} {
		if want := etherTypeOf(x); x.IsValid() && t != want {
			p.add(Contradiction, "eth type", "0x%04x, but %v needs 0x%04x: leave eth type away", uint16(t), x,
				uint16(want))
			return
		}
	}
	if (m.Proto.Set || m.Length.Set || m.SrcPort.Set || m.DstPort.Set) && t != packet.EtherTypeIPv4 &&
		t != packet.EtherTypeIPv6 {
		if t == packet.EtherTypeECPRI && m.Proto.Set {
			p.add(Contradiction, "eth type",
				"eCPRI directly in Ethernet has no IP or ports: leave eth type away for eCPRI over UDP, or udp for "+
					"plain Ethernet")
			return
		}
		p.add(Contradiction, "eth type",
			"0x%04x is not IP, but the match asks for fields of IP: leave one of them away", uint16(t))
	}
}

func etherTypeOf(x netip.Prefix) packet.EtherType {
	if x.Addr().Is4() {
		return packet.EtherTypeIPv4
	}
	return packet.EtherTypeIPv6
}

func (m *Match) checkRange(p report, name string, r Opt[Range]) {
	if r.Set && r.Value.Lo > r.Value.Hi {
		p.add(Invalid, name, "%v begins above its end: write %d-%d", r.Value, r.Value.Hi, r.Value.Lo)
	}
}

// hasPorts reports whether the protocol that m asks for has ports.
func (m *Match) hasPorts() bool {
	return m.Proto.Set && (m.Proto.Value == packet.ProtoUDP || m.Proto.Value == packet.ProtoTCP)
}

func (m *Match) checkPorts(p report) {
	name := "port"
	if m.hasPorts() {
		name = map[packet.Proto]string{packet.ProtoUDP: "udp", packet.ProtoTCP: "tcp"}[m.Proto.Value]
	}
	m.checkRange(p, name+" src", m.SrcPort)
	m.checkRange(p, name+" dst", m.DstPort)
	if !m.SrcPort.Set && !m.DstPort.Set || m.hasPorts() {
		return
	}
	if m.Proto.Set {
		p.add(Contradiction, "port", "IP protocol %d has no ports: use udp or tcp, or leave the ports away",
			uint8(m.Proto.Value))
		return
	}
	p.add(Invalid, "port", "a port without a protocol: say udp or tcp")
}

func (m *Match) checkFlex(p report) {
	if len(m.Flex) > MaxFlexWords {
		p.add(Invalid, "flex", "%d words: expected at most %d", len(m.Flex), MaxFlexWords)
	}
	for i, f := range m.Flex {
		name := fmt.Sprintf("flex %d", i+1)
		if f.Offset > MaxFlexOffset {
			p.add(Invalid, name, "offset %d is out of range: expected 0 to %d", f.Offset, MaxFlexOffset)
		}
		if f.Mask == 0 {
			p.add(Invalid, name, "mask 0 accepts every value: expected at least one bit, 0xffffffff for the whole word")
		} else if f.Value&^f.Mask != 0 {
			p.add(Invalid, name, "value 0x%x has bits outside its mask 0x%x, which never match: write 0x%x", f.Value,
				f.Mask, f.Value&f.Mask)
		}
	}
	if len(m.Flex) > 0 && m.Proto.Set && !m.hasPorts() {
		p.add(Contradiction, "flex", "IP protocol %d has no payload to look into: use udp or tcp", uint8(m.Proto.Value))
	}
}

func (m *Match) checkECPRI(p report) {
	e := &m.ECPRI
	if !e.Set() {
		return
	}
	id := func(name string, set bool, types string, ok func(uint8) bool) {
		switch {
		case !set:
		case !e.Type.Set:
			p.add(Invalid, name, "an identifier without a message type: add ecpri type %s", types)
		case !ok(e.Type.Value):
			p.add(Contradiction, name, "messages of type %d do not have it: expected ecpri type %s", e.Type.Value,
				types)
		}
	}
	id("ecpri pc_id", e.PCID.Set, "0 or 1", func(t uint8) bool { return t == ecpriIQ || t == ecpriBits })
	id("ecpri rtc_id", e.RTCID.Set, "2", func(t uint8) bool { return t == ecpriControl })
	if e.PCID.Set && e.RTCID.Set {
		p.add(Contradiction, "ecpri rtc_id", "a message has a pc_id or an rtc_id: keep one")
	}
	udp := m.Proto.Set && m.Proto.Value == packet.ProtoUDP
	switch {
	case udp:
	case m.Proto.Set, m.SrcPort.Set, m.DstPort.Set, m.Src.IsValid(), m.Dst.IsValid(), m.Length.Set, len(m.Flex) > 0:
		p.add(Contradiction, "ecpri",
			"eCPRI in plain Ethernet has no IP, ports or payload words: add udp for eCPRI over UDP, or leave those away")
	case m.EtherType.Set && m.EtherType.Value != packet.EtherTypeECPRI:
		p.add(Contradiction, "ecpri", "needs eth type 0xaefe, not 0x%04x: leave eth type away",
			uint16(m.EtherType.Value))
	}
}

func (r *Rule) checkActions(p report) {
	n := len(r.Actions)
	if n == 0 {
		p.add(Invalid, "actions", "none: end with queue, rss, drop or kernel")
		return
	}
	if n > MaxActions {
		p.add(Invalid, "actions", "%d actions: expected at most %d", n, MaxActions)
	}
	ended := false
	for i := range r.Actions {
		a := &r.Actions[i]
		field := fmt.Sprintf("action %d", i+1)
		rep := func(k ProblemKind, format string, args ...any) { p.add(k, field, format, args...) }
		if last := i == n-1; a.Kind.Terminal() && ended {
			rep(Invalid, "%v behind an action that ends the list: a packet goes to one place, so keep one of them",
				a.Kind)
		} else if a.Kind.Terminal() && !last {
			ended = true
			if !slices.ContainsFunc(r.Actions[i+1:], func(o Action) bool { return o.Kind.Terminal() }) {
				rep(Invalid, "%v ends the list, but more follows: move it to the end", a.Kind)
			}
		} else if !a.Kind.Terminal() && last && !ended {
			rep(Invalid, "the list ends with %v, which does not say where the packet goes: add queue or rss", a.Kind)
		} else if last && n > 1 && (a.Kind == Drop || a.Kind == ToKernel) {
			rep(Invalid, "%v after transformations: they must end in queue or rss", a.Kind)
		}
		a.check(rep)
		r.fits(a, rep)
	}
}

// fits finds transformations that no packet of the match can have.
func (r *Rule) fits(a *Action, rep func(ProblemKind, string, ...any)) {
	if len(r.Actions) == 0 || a != &r.Actions[0] {
		return // later ones see what the ones before have made
	}
	switch m := &r.Match; a.Kind {
	case PopVLAN:
		if m.VLAN.Set && m.VLAN.Value == Untagged {
			rep(Contradiction, "vlan-pop, but the match asks for untagged frames: leave one of them away")
		}
	case Decap:
		want := packet.ProtoGRE
		if a.Tunnel.Type == VXLAN {
			want = packet.ProtoUDP
		}
		if m.Proto.Set && m.Proto.Value != want || m.EtherType.Set && m.ECPRI.Set() {
			rep(Contradiction, "%v is carried by IP protocol %d, but the match asks for another: change the match",
				a.Tunnel.Type, uint8(want))
		}
	}
}

func (a *Action) check(rep func(ProblemKind, string, ...any)) {
	if a.Kind == 0 || int(a.Kind) >= len(actionNames) {
		rep(Invalid, "kind %d is not known: expected queue, rss, drop, kernel, vlan-pop, vlan-push, decap or encap",
			uint8(a.Kind))
		return
	}
	if a.Kind != ToQueue && a.Queue != 0 {
		rep(Invalid, "%v has no queue: expected 0", a.Kind)
	}
	if a.Kind != RSS && len(a.Queues) > 0 {
		rep(Invalid, "%v has no queues: use rss for several", a.Kind)
	}
	if a.Kind != PushVLAN && a.Tag != (Tag{}) {
		rep(Invalid, "%v has no tag: use vlan-push", a.Kind)
	}
	if a.Kind != Decap && a.Kind != Encap && a.Tunnel != (Tunnel{}) {
		rep(Invalid, "%v has no tunnel: use encap or decap", a.Kind)
	}
	switch a.Kind {
	case RSS:
		if n := len(a.Queues); n < 2 || n > IndirectionEntries {
			rep(Invalid, "rss over %d queues: expected 2 to %d; use queue for one", n, IndirectionEntries)
		}
	case PushVLAN:
		a.Tag.check(rep)
	case Decap:
		if a.Tunnel.Type < VXLAN || a.Tunnel.Type > NVGRE {
			rep(Invalid, "tunnel type %d: expected vxlan, gre or nvgre", uint8(a.Tunnel.Type))
		} else if a.Tunnel != (Tunnel{Type: a.Tunnel.Type}) {
			rep(Invalid, "decap uses only the type of the tunnel: leave the other fields away, and put conditions "+
				"into the match")
		}
	case Encap:
		a.Tunnel.check(rep)
	}
}

func (t *Tag) check(rep func(ProblemKind, string, ...any)) {
	if t.ID > MaxVLAN {
		rep(Invalid, "vlan id %d is out of range: expected 0 to %d", t.ID, MaxVLAN)
	}
	if t.PCP > 7 {
		rep(Invalid, "pcp %d is out of range: expected 0 to 7", t.PCP)
	}
	if t.TPID != 0 && !t.TPID.IsTag() {
		rep(Invalid, "tpid 0x%04x is not a VLAN tag: expected 0x8100, 0x88a8 or 0x9100", uint16(t.TPID))
	}
}

func (t *Tunnel) check(rep func(ProblemKind, string, ...any)) {
	if t.Type < VXLAN || t.Type > NVGRE {
		rep(Invalid, "tunnel type %d: expected vxlan, gre or nvgre", uint8(t.Type))
		return
	}
	if t.EthSrc.IsZero() || t.EthSrc.IsMulticast() {
		rep(Invalid, "outer eth-src %v: expected the address of one interface", t.EthSrc)
	}
	if t.EthDst.IsZero() {
		rep(Invalid, "outer eth-dst is missing: give the address of the next hop")
	}
	switch {
	case !t.Src.IsValid() || !t.Dst.IsValid():
		rep(Invalid, "outer ip-src and ip-dst: expected both")
	case t.Src.Is4In6() || t.Dst.Is4In6() || t.Src.Zone() != "" || t.Dst.Zone() != "":
		rep(Invalid, "outer addresses %v and %v: expected plain IPv4, or IPv6 without a zone", t.Src, t.Dst)
	case t.Src.Is4() != t.Dst.Is4():
		rep(Contradiction, "outer addresses %v and %v are of different IP versions", t.Src, t.Dst)
	}
	switch {
	case t.Type == GRE && t.VNI != 0:
		rep(Invalid, "gre has no vni: remove it")
	case t.VNI >= 1<<24:
		rep(Invalid, "vni %d is out of range: expected 0 to %d", t.VNI, 1<<24-1)
	}
	if t.Type != VXLAN && (t.SrcPort != 0 || t.DstPort != 0) {
		rep(Invalid, "%v has no UDP ports: leave udp-src and udp-dst away", t.Type)
	}
	if t.Type != NVGRE && t.FlowID != 0 {
		rep(Invalid, "%v has no flow-id: remove it", t.Type)
	}
	switch t.Protocol {
	case 0, packet.EtherTypeIPv4, packet.EtherTypeIPv6, packet.EtherTypeTEB:
	default:
		rep(Invalid, "gre proto 0x%04x: expected 0x0800, 0x86dd or 0x6558", uint16(t.Protocol))
	}
	if t.Type != GRE && t.Protocol != 0 {
		rep(Invalid, "%v has no proto: remove it", t.Type)
	}
}
