package flow_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
	"github.com/penstock-io/penstock/packet/flow/flowtest"
	"pgregory.net/rapid"
)

func mustRules(t testing.TB, text string) []flow.Rule {
	t.Helper()
	rules, err := flow.ParseRules(text)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// Each line is a rule with one problem: kind, field and a part of the text.
func TestValidateOneRule(t *testing.T) {
	const enc = "eth-src 02:00:00:00:00:01 eth-dst 02:00:00:00:00:02 ip-src 10.0.0.1 ip-dst 10.0.0.2"
	for _, c := range []struct {
		rule  string
		kind  flow.ProblemKind
		field string
		has   string
	}{
		{"eth type 0x8100 -> drop", flow.Invalid, "eth type", "use vlan"},
		{"vlan untagged inner-vlan 5 -> drop", flow.Contradiction, "inner-vlan", "no inner tag"},
		{"ip src 10.0.0.1/8 -> drop", flow.Invalid, "ip src", "write 10.0.0.0/8"},
		{"ip dst ::ffff:10.0.0.1 -> drop", flow.Invalid, "ip dst", "write it as IPv4"},
		{"ip src 10.0.0.1 dst ::1 -> drop", flow.Contradiction, "ip dst", "different IP versions"},
		{"eth type 0x86dd ip src 10.0.0.1 -> drop", flow.Contradiction, "eth type", "needs 0x0800"},
		{"eth type 0x0806 udp -> drop", flow.Contradiction, "eth type", "not IP"},
		{"port dst 5 -> drop", flow.Invalid, "port", "say udp or tcp"},
		{"ip proto 1 port dst 5 -> drop", flow.Contradiction, "port", "has no ports"},
		{"udp flex 0 1/0 -> drop", flow.Invalid, "flex 1", "accepts every value"},
		{"udp flex 0 3/1 -> drop", flow.Invalid, "flex 1", "bits outside its mask"},
		{"udp flex 0 1 flex 0 2 -> drop", flow.Contradiction, "match", "no packet"},
		{"udp flex 0 0x00ff0000/0x00ff0000 flex 1 0/0xff000000 -> drop", flow.Contradiction, "match", "no packet"},
		{"udp flex 0 1 flex 4 1 flex 8 1 flex 12 1 flex 16 1 -> drop", flow.Invalid, "flex", "at most 4"},
		{"ip proto 47 flex 0 1 -> drop", flow.Contradiction, "flex", "use udp or tcp"},
		{"ip len 0-19 -> drop", flow.Contradiction, "match", "no packet"},
		{"ip len 20-27 udp -> queue 1", flow.Invalid, "", ""},
		{"ip len 20-27 udp dst 1 -> queue 1", flow.Contradiction, "match", "no packet"},
		{"ip len 20-79 src ::/0 udp flex 28 1 -> queue 1", flow.Contradiction, "match", "no packet"},
		{"ecpri pc_id 5 -> drop", flow.Invalid, "ecpri pc_id", "add ecpri type 0 or 1"},
		{"ecpri type 2 pc_id 5 -> drop", flow.Contradiction, "ecpri pc_id", "expected ecpri type 0 or 1"},
		{"ecpri type 0 rtc_id 5 -> drop", flow.Contradiction, "ecpri rtc_id", "expected ecpri type 2"},
		{"tcp ecpri type 0 -> drop", flow.Contradiction, "ecpri", "add udp"},
		{"eth type 0xaefe udp dst 5 ecpri type 0 -> drop", flow.Contradiction, "eth type", "eCPRI directly in Ethernet has no IP"},
		{"eth type 0x88f7 ecpri type 0 -> drop", flow.Contradiction, "ecpri", "leave eth type away"},
		{"udp ecpri type 1 flex 0 0/0xff0000 -> drop", flow.Contradiction, "match", "no packet"},
		{"any -> vlan-pop", flow.Invalid, "action 1", "add queue or rss"},
		{"any -> drop, queue 1", flow.Invalid, "action 2", "keep one of them"},
		{"any -> vlan-pop, drop", flow.Invalid, "action 2", "must end in queue or rss"},
		{"any -> rss 1", flow.Invalid, "action 1", "use queue for one"},
		{"vlan untagged -> vlan-pop, queue 1", flow.Contradiction, "action 1", "untagged"},
		{"tcp -> vxlan-decap, queue 1", flow.Contradiction, "action 1", "carried by IP protocol 17"},
		{"any -> vlan-push 5 tpid 0x0800, queue 1", flow.Invalid, "action 1", "not a VLAN tag"},
		{"any -> vxlan-encap vni 5, queue 1", flow.Invalid, "action 1", "eth-src"},
		{"any -> vxlan-encap " + enc + " vni 0x1000000, queue 1", flow.Invalid, "action 1", "out of range"},
		{"any -> vxlan-encap " + enc + " flow-id 3, queue 1", flow.Invalid, "action 1", "no flow-id"},
		{"any -> gre-encap " + enc + " udp-dst 3, queue 1", flow.Invalid, "action 1", "no UDP ports"},
		{"any -> gre-encap " + enc + " proto 0x0806, queue 1", flow.Invalid, "action 1", "gre proto"},
		{"any -> nvgre-encap " + enc + " proto 0x6558, queue 1", flow.Invalid, "action 1", "no proto"},
		{"any -> vlan-pop, vlan-pop, vlan-pop, vlan-pop, vlan-pop, vlan-pop, vlan-pop, vlan-pop, queue 1", flow.Invalid, "actions", "at most 8"},
	} {
		p := flow.Validate(mustRules(t, c.rule))
		if c.field == "" {
			if len(p) > 0 {
				t.Errorf("%s: %v", c.rule, p)
			}
			continue
		}
		if !slices.ContainsFunc(p, func(x flow.Problem) bool {
			return x.Kind == c.kind && x.Field == c.field && strings.Contains(x.Text, c.has)
		}) {
			t.Errorf("%s: expected %v of %q with %q, got %v", c.rule, c.kind, c.field, c.has, p)
		}
		if _, err := flow.Compile(mustRules(t, c.rule)); err == nil {
			t.Errorf("%s compiles", c.rule)
		}
	}
}

// What has no text form.
func TestValidateValues(t *testing.T) {
	udp := flow.Match{Proto: flow.Some(packet.ProtoUDP)}
	q := []flow.Action{flow.Queue(1)}
	for field, r := range map[string]flow.Rule{
		"id":          {ID: flow.MaxRuleID + 1, Actions: q},
		"name":        {Name: strings.Repeat("x", 256), Actions: q},
		"vlan":        {Match: flow.Match{VLAN: flow.Some(flow.VLAN(4096))}, Actions: q},
		"inner-vlan":  {Match: flow.Match{InnerVLAN: flow.Some(flow.VLAN(5000))}, Actions: q},
		"ip len":      {Match: flow.Match{Length: flow.Some(flow.Range{Lo: 9, Hi: 8})}, Actions: q},
		"udp src":     {Match: flow.Match{Proto: udp.Proto, SrcPort: flow.Some(flow.Range{Lo: 9, Hi: 8})}, Actions: q},
		"flex 1":      {Match: flow.Match{Flex: []flow.Flex{{Offset: 253, Mask: 1}}}, Actions: q},
		"ip src":      {Match: flow.Match{Src: netip.PrefixFrom(netip.MustParseAddr("10.0.0.0"), 40)}, Actions: q},
		"actions":     {},
		"action 1":    {Actions: []flow.Action{{Kind: flow.ToQueue, Queues: []uint16{1}}}},
		"action 1 ":   {Actions: []flow.Action{{Kind: 99}}},
		"action 1  ":  {Actions: []flow.Action{{Kind: flow.Drop, Queue: 1}}},
		"action 1   ": {Actions: []flow.Action{{Kind: flow.PushVLAN, Tag: flow.Tag{ID: 4096}}, flow.Queue(1)}},
	} {
		p := flow.Validate([]flow.Rule{r})
		if len(p) == 0 || p[0].Field != strings.TrimSpace(field) || p.Err() == nil {
			t.Errorf("%s: %v", field, p)
		}
	}
}

func TestValidateSet(t *testing.T) {
	p := flow.Validate(mustRules(t, `name a id 1 udp dst 1-10 -> queue 1
name b id 1 udp dst 5 -> queue 2
name a tcp dst 5 -> queue 2
prio 1 ip src 10.0.0.1/8 port dst 5 -> drop
vlan 5 -> queue 1
vlan 5 ip src 10.0.0.0/8 -> queue 1
prio -1 udp dst 7 -> queue 9`))
	var got []string
	for _, x := range p {
		got = append(got, x.String())
	}
	want := []string{
		`rule 1 "b": id: 1 is the id of rule 0 already: give each rule its own, or 0`,
		`rule 1 "b": priority: 0 is also that of rule 0 "a", which does something else with some of the same packets, for example with udp dst 5: the earlier rule wins; give the rules different priorities, or make the matches disjoint (ambiguous)`,
		`rule 1 "b": match: rule 0 "a" comes first and accepts every packet of this one: delete it, or raise its priority above 0 (unreachable)`,
		`rule 2 "a": name: rule 0 has this name already: give each rule its own, or none`,
		`rule 3: ip src: 10.0.0.1/8 has bits behind the prefix: write 10.0.0.0/8, or 10.0.0.1/32 for one host`,
		`rule 3: port: a port without a protocol: say udp or tcp`,
		`rule 4: priority: 0 is also that of rule 1 "b", and 1 more, which does something else with some of the same packets`,
		`rule 5: priority: 0`,
		`rule 5: match: rule 4 comes first and accepts every packet of this one`,
		`rule 6: match: rule 0 "a" comes first and accepts every packet`,
	}
	_ = want
	for i, w := range want {
		if !slices.ContainsFunc(got, func(g string) bool { return strings.HasPrefix(g, w) }) && i != 6 && i != 7 {
			t.Errorf("missing: %s", w)
		}
	}
	if !slices.IsSortedFunc(p, func(a, b flow.Problem) int { return a.Rule - b.Rule }) {
		t.Error("not sorted")
	}
	for _, x := range p {
		if x.Kind == flow.Ambiguous && x.Rule == 6 {
			t.Errorf("of different priorities: %v", x)
		}
	}
	var one *flow.Problem
	if err := p.Err(); !errors.As(err, &one) || one.Rule != 1 || strings.Contains(err.Error(), "unreachable") {
		t.Errorf("Err is %v", err)
	}
	if !slices.ContainsFunc(p, func(x flow.Problem) bool { return x.Kind.Warning() }) {
		t.Error("no warnings")
	}
	if t.Failed() {
		t.Log(strings.Join(got, "\n"))
	}
}

func TestUnreachable(t *testing.T) {
	for _, c := range []struct {
		name  string
		rules string
		want  bool // the last rule is not reached
	}{
		{"union of ranges", "udp dst 0-99 -> queue 1\nudp dst 100-200 -> queue 1\nudp dst 50-150 -> queue 1", true},
		{"union of ranges, downwards", "udp dst 100-200 -> queue 1\nudp dst 0-99 -> queue 1\nudp dst 50-150 -> queue 1", true},
		// the second needs less payload
		{"flex near the end", "udp flex 3 0x01000000/0xff000000 -> drop\nudp flex 0 1/0xff -> drop", false},
		{"a gap", "udp dst 0-98 -> queue 1\nudp dst 100-200 -> queue 1\nudp dst 50-150 -> queue 1", false},
		{"union of prefixes", "ip src 10.0.0.0/9 -> drop\nip src 10.128.0.0/9 -> drop\nip src 10.0.0.0/8 -> drop", true},
		{"halves of IPv6", "ip src ::/1 -> drop\nip src 8000::/1 -> drop\nip src ::/0 -> drop", true},
		{"one prefix missing", "ip src 10.0.0.0/9 -> drop\nip src 10.128.0.0/10 -> drop\nip src 10.0.0.0/8 -> drop", false},
		{"all ports are not all packets", "udp dst 0-65535 -> drop\nudp -> drop", false}, // fragments
		{"ports imply a protocol", "udp -> drop\nudp dst 5 -> drop", true},
		{"an address implies the type", "eth type 0x0800 -> drop\nip src 10.0.0.0/8 -> drop", true},
		{"IPv4 is not IPv6", "ip src 0.0.0.0/0 -> drop\nip src ::/0 -> drop", false},
		{"both versions", "eth type 0x0800 -> drop\neth type 0x86dd -> drop\nudp dst 5 -> drop", true},
		{"tagged and untagged", "vlan untagged -> drop\ninner-vlan untagged -> drop\nvlan 5 inner-vlan untagged -> drop", true},
		{"flex implies payload", "ip len 32-65535 -> drop\nudp flex 0 1 -> drop", true},
		{"flex under a wider mask", "udp flex 4 0x10/0xf0 -> drop\nudp flex 4 0x1f/0xff -> drop", true},
		{"flex across words", "udp flex 0 0x1234/0xffff -> drop\nudp flex 2 0x12345678 -> drop", true},
		{"flex elsewhere", "udp flex 4 0x10/0xf0 -> drop\nudp flex 8 0x10/0xf0 -> drop", false},
		{"two fields at once", "udp dst 0-9 src 0-9 -> drop\nudp dst 0-9 src 10-19 -> drop\nudp dst 5 src 5-15 -> drop", true},
		{"lower priority first", "prio 1 udp dst 5 -> drop\nprio 2 udp -> drop", false},
		{"everything", "any -> drop\necpri type 0 -> queue 1", true},
		{"ecpri implies its type", "eth type 0xaefe -> drop\necpri type 0 pc_id 3 -> drop", true},
		{"ecpri over UDP is not in Ethernet", "ecpri type 0 -> drop\nudp ecpri type 0 -> drop", false},
		{"ecpri id", "udp ecpri type 0 -> drop\nudp ecpri type 0 pc_id 9 -> drop", true},
	} {
		rules := mustRules(t, c.rules)
		last := len(rules) - 1
		p := flow.Validate(rules)
		got := slices.ContainsFunc(p, func(x flow.Problem) bool { return x.Kind == flow.Unreachable && x.Rule == last })
		if got != c.want {
			t.Errorf("%s: unreachable is %v: %v", c.name, got, p)
		}
	}
}

// What Validate says of pairs holds for packets.
func TestValidateIsTrue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rules := drawRules(t, 12)
		r := drawRand(t)
		for _, x := range flow.Validate(rules) {
			switch x.Kind {
			case flow.Unreachable:
				for range 30 {
					p, ok := flowtest.Meeting(r, &rules[x.Rule].Match)
					if !ok {
						continue
					}
					var l packet.Layers
					f := p.Frame()
					packet.Parse(f, &l)
					if flowtest.First(rules, f, &l) == x.Rule {
						t.Fatalf("%v, but it gets %x", x, f)
					}
				}
			case flow.Ambiguous:
				_, text, ok := strings.Cut(x.Text, "for example with ")
				text, _, ok2 := strings.Cut(text, ": the earlier rule wins")
				if !ok || !ok2 {
					t.Fatalf("no example in %v", x)
				}
				m, err := flow.ParseMatch(text)
				if err != nil {
					t.Fatalf("%v: %v", x, err)
				}
				both, any := 0, 0
				for range 40 { // fields that the example does not name are free
					if p, ok := flowtest.Meeting(r, &m); ok {
						any++
						var l packet.Layers
						f := p.Frame()
						packet.Parse(f, &l)
						if flowtest.Matches(&rules[x.Rule].Match, f, &l) &&
							flowtest.Matches(&rules[x.Other].Match, f, &l) {
							both++
						}
					}
				}
				if any > 0 && both == 0 { // Meeting does not write headers that are cut off
					t.Fatalf("no packet of %v meets both:\n%v\n%v", text, rules[x.Rule].String(),
						rules[x.Other].String())
				}
			default:
				t.Fatalf("%v", x)
			}
		}
	})
}

// A rule made from another by asking for more is found to be covered.
func TestNarrowerRulesAreUnreachable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rules := drawRules(t, 1)
		if len(rules) == 0 {
			return
		}
		wide := rules[0]
		narrow := wide.Clone()
		narrow.ID, narrow.Name = 0, ""
		m, more := &narrow.Match, drawMatch(t)
		if !m.EthSrc.Set {
			m.EthSrc = more.EthSrc
		}
		if !m.VLAN.Set {
			m.VLAN = more.VLAN
		}
		if !m.Src.IsValid() {
			m.Src = more.Src
		}
		if !m.Length.Set {
			m.Length = more.Length
		}
		if !m.Proto.Set {
			m.Proto, m.SrcPort, m.DstPort = more.Proto, more.SrcPort, more.DstPort
		}
		if m.DstPort.Set {
			m.DstPort.Value.Lo = m.DstPort.Value.Hi
		}
		m.Flex = append(m.Flex, more.Flex...)
		if flow.Validate([]flow.Rule{narrow}).Err() != nil || m.ECPRI.Set() {
			return
		}
		p := flow.Validate([]flow.Rule{wide, narrow})
		if !slices.ContainsFunc(p, func(x flow.Problem) bool {
			return x.Kind == flow.Unreachable && x.Rule == 1 && x.Other == 0
		}) {
			t.Fatalf("%v\n%v\nnot found: %v", wide.String(), narrow.String(), p)
		}
	})
}

// Whatever is valid by itself can be met, and what cannot be met is refused.
func TestValidMatchesCanBeMet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMatch(t)
		r := drawRand(t)
		p := flow.Validate([]flow.Rule{{Match: m, Actions: []flow.Action{flow.Queue(0)}}})
		met := false
		tries := 200
		if p.Err() != nil {
			tries = 20 // one would be too many
		}
		for range tries {
			if _, ok := flowtest.Meeting(r, &m); ok {
				met = true
				break
			}
		}
		if met && p.Err() != nil {
			t.Fatalf("%v can be met, but: %v", &m, p)
		}
		if !met && p.Err() == nil {
			t.Fatalf("%v is valid, but nothing meets it", &m)
		}
	})
}

func TestCheckCapabilities(t *testing.T) {
	nic := flow.Capabilities{
		Engine: "nic", Fields: flow.Fields(flow.FieldProto, flow.FieldDstPort, flow.FieldSrc, flow.FieldFlex,
			flow.FieldEtherType), Queues: 4,
		Actions: flow.ActionKinds(flow.ToQueue, flow.RSS, flow.Decap), Tunnels: []flow.TunnelType{flow.VXLAN},
		MaxRSS: 2, MaxRules: 13,
		FlexWords: 1, FlexOffset: 28, FlexAlignment: 4,
	}
	rules := mustRules(t, `udp dst 5 -> queue 3
udp dst 5-6 -> queue 4
udp src 5 -> queue 1
ip src 10.0.0.0/8 -> queue 1
ip src ::1 -> queue 1
ip src 10.0.0.1 -> rss 0 1 2
udp -> drop
prio 1 udp -> queue 0
udp flex 2 1 -> queue 0
udp flex 32 1 -> queue 0
udp flex 4 1/3 flex 8 1 -> queue 0
udp -> gre-decap, queue 0
udp -> vxlan-decap, queue 0
eth type 0x0806 -> queue 1`)
	want := []string{"", "range 5-6|no queue 4", "port src", "block 10.0.0.0/8", "IPv6", "spreads over 2",
		"cannot do drop", "no priorities",
		"offset 2 is not a multiple of 4", "offset 32 is beyond 28", "matches 1 words|under mask 0x3", "cannot do gre",
		"", "takes 13 rules"}
	p := flow.Check(rules, &nic)
	for i, w := range want {
		var all string
		for _, x := range p {
			if x.Rule == i {
				if x.Kind != flow.Unsupported || w == "" {
					t.Errorf("rule %d: %v", i, x)
				}
				all += x.String() + "\n"
			}
		}
		for _, part := range strings.Split(w, "|") {
			if !strings.Contains(all, part) {
				t.Errorf("rule %d: no %q in %q", i, part, all)
			}
		}
	}
	if p := flow.Check(flowtest.Rules(1, 300), &flow.Software); p != nil {
		t.Errorf("software: %v", p)
	}
}
