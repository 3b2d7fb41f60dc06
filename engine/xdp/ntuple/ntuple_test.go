package ntuple

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/ethtool"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
	"github.com/penstock-io/penstock/packet/flow/flowtest"
	"pgregory.net/rapid"
)

// seen is what a card reads out of a frame, byte by byte: behind at most two VLAN tags, IPv4 with
// options or IPv6 with a fragment header.
type seen struct {
	key     ethtool.FlowKey
	version int
	tagged  bool
	ports   bool
}

func read(frame []byte) (s seen) {
	be := binary.BigEndian
	copy(s.key.DstMAC[:], frame[0:6])
	copy(s.key.SrcMAC[:], frame[6:12])
	at := 12
	typ := be.Uint16(frame[at:])
	for tags := 0; (typ == 0x8100 || typ == 0x88a8) && tags < 2; tags++ {
		if tags == 0 {
			s.tagged, s.key.VLANType, s.key.VLAN = true, typ, be.Uint16(frame[at+2:])
		}
		at += 4
		typ = be.Uint16(frame[at:])
	}
	s.key.EtherType = typ
	at += 2
	fragment := false
	switch typ {
	case 0x0800:
		s.version, s.key.Proto, s.key.TOS = 4, frame[at+9], frame[at+1]
		copy(s.key.Src[:4], frame[at+12:])
		copy(s.key.Dst[:4], frame[at+16:])
		fragment = be.Uint16(frame[at+6:])&0x1fff != 0
		at += int(frame[at]&15) * 4
	case 0x86dd:
		s.version, s.key.Proto = 6, frame[at+6]
		copy(s.key.Src[:], frame[at+8:])
		copy(s.key.Dst[:], frame[at+24:])
		at += 40
		if s.key.Proto == 44 {
			s.key.Proto, fragment = frame[at], be.Uint16(frame[at+2:])&^7 != 0
			at += 8
		}
	default:
		return s
	}
	if !fragment && (s.key.Proto == 6 || s.key.Proto == 17) {
		s.ports, s.key.SrcPort, s.key.DstPort = true, be.Uint16(frame[at:]), be.Uint16(frame[at+2:])
	}
	return s
}

// accepts is what a card does with an entry, as linux/ethtool.h says: the type, then value and mask
// of each field.
func accepts(f *ethtool.FlowSpec, s seen) bool {
	switch f.Type {
	case ethtool.FlowTCP4, ethtool.FlowUDP4, ethtool.FlowTCP6, ethtool.FlowUDP6:
		version, proto := 4, uint8(6)
		if f.Type == ethtool.FlowTCP6 || f.Type == ethtool.FlowUDP6 {
			version = 6
		}
		if f.Type == ethtool.FlowUDP4 || f.Type == ethtool.FlowUDP6 {
			proto = 17
		}
		if s.version != version || s.key.Proto != proto || !s.ports {
			return false
		}
	case ethtool.FlowIP4:
		if s.version != 4 {
			return false
		}
	case ethtool.FlowIP6:
		if s.version != 6 {
			return false
		}
	}
	if f.Mask.VLAN != 0 && !s.tagged {
		return false
	}
	// The fields as the kernel's structure has them: what is outside of a type's union does not
	// count.
	want := *f
	want.Value, want.Location, want.Queue, want.Drop = s.key, 0, 0, false
	have := *f
	have.Location, have.Queue, have.Drop = 0, 0, false
	return want.Same(have)
}

// supported is the rules of a set that Compile takes, with the actions that it takes.
func supported(rules []flow.Rule) (out []flow.Rule) {
	for i, r := range rules {
		r = r.Clone()
		r.Actions = []flow.Action{flow.Queue(uint16(i % 8))}
		if i%7 == 0 {
			r.Actions = []flow.Action{{Kind: flow.Drop}}
		}
		if _, err := Compile([]flow.Rule{r}, Limits{}); err == nil {
			out = append(out, r)
		}
	}
	return out
}

// anyRules is rules of every shape that fits, close to each other.
func anyRules(r *rand.Rand, n int) []flow.Rule {
	rules := make([]flow.Rule, n)
	for i := range rules {
		m := &rules[i].Match
		rules[i].ID, rules[i].Name, rules[i].Priority = uint32(i+1), fmt.Sprintf("r%d", i), int32(r.IntN(5))
		if r.IntN(3) == 0 {
			m.EthDst = flow.Some(packet.MAC{2, 0, 0, 0, 0, byte(r.IntN(3))})
		}
		if r.IntN(4) == 0 {
			m.VLAN = flow.Some(flow.VLAN(r.IntN(3)))
		}
		if r.IntN(4) == 0 {
			m.EthSrc = flow.Some(packet.MAC{2, 0, 0, 0, 1, byte(r.IntN(3))})
			if r.IntN(2) == 0 {
				m.EtherType = flow.Some([]packet.EtherType{packet.EtherTypeIPv4, packet.EtherTypeARP}[r.IntN(2)])
			}
			continue
		}
		four := r.IntN(2) == 0
		a := netip.MustParseAddr("2001:db8::")
		if four {
			a = netip.MustParseAddr("10.0.0.0")
		}
		prefix := func() netip.Prefix {
			if r.IntN(2) == 0 {
				return netip.Prefix{}
			}
			b := a.AsSlice()
			b[3] |= byte(r.IntN(4))
			x, _ := netip.AddrFromSlice(b)
			p, _ := x.Prefix(r.IntN(x.BitLen() + 1))
			return p
		}
		m.Src, m.Dst = prefix(), prefix()
		if r.IntN(3) > 0 {
			m.Proto = flow.Some([]packet.Proto{packet.ProtoUDP, packet.ProtoTCP, 47}[r.IntN(3)])
		}
		if m.Proto.Set && m.Proto.Value != 47 {
			ports := func() (o flow.Opt[flow.Range]) {
				if r.IntN(2) == 0 {
					lo := r.IntN(65536)
					o = flow.Some(flow.Range{Lo: uint16(lo), Hi: uint16(min(65535, lo+r.IntN(1<<r.IntN(17))))})
				}
				return o
			}
			m.SrcPort, m.DstPort = ports(), ports()
		}
		if r.IntN(8) == 0 {
			m.EtherType = flow.Some([]packet.EtherType{packet.EtherTypeIPv4, packet.EtherTypeIPv6}[r.IntN(2)])
		}
	}
	return rules
}

// A card with the entries does with every packet what the classifier does with the rules.
func TestSamePacketsMatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		r := flowtest.NewRand(seed)
		rules := anyRules(r, 24)
		if rapid.Bool().Draw(t, "usual") {
			rules = flowtest.Rules(seed, 60)
		}
		rules = supported(rules)
		for len(rules) < 4 {
			rules = supported(anyRules(r, 24))
		}
		c, err := flow.Compile(rules)
		if err != nil {
			t.Fatal(err)
		}
		entries, err := Compile(rules, Limits{Queues: 8})
		if err != nil {
			t.Fatal(err)
		}
		met := 0
		for _, frame := range flowtest.NewTraffic(rules, flowtest.TrafficOptions{Seed: seed, Flows: 300}).Flows {
			var l packet.Layers
			if packet.Parse(frame, &l) != packet.OK {
				continue
			}
			d := c.Classify(frame, &l)
			s := read(frame)
			at := slices.IndexFunc(entries, func(e Entry) bool { return accepts(&e.Spec, s) })
			if at < 0 {
				if d.Verdict != flow.Unmatched {
					t.Fatalf("the card takes no notice of %x, for which there is %v", frame, &rules[d.Rule])
				}
				continue
			}
			met++
			e := entries[at]
			if int(d.Rule) != e.Rule || e.Spec.Drop != (d.Verdict == flow.Discard) || !e.Spec.Drop &&
				uint16(e.Spec.Queue) != d.Queue {
				t.Fatalf("the card has %v for %x, the classifier %+v", e.Spec, frame, d)
			}
			// Whatever meets in a packet is known to be able to.
			for i := at + 1; i < len(entries); i++ {
				if accepts(&entries[i].Spec, s) && !meet(&e.Spec, &entries[i].Spec) {
					t.Fatalf("%v and %v meet in %x", e.Spec, entries[i].Spec, frame)
				}
			}
		}
		if met == 0 {
			t.Fatal("no packet met a rule")
		}
	})
}

func TestCompileExamples(t *testing.T) {
	for _, x := range []struct{ rule, want string }{
		{"udp dst 5000 -> queue 3", "udp4 dst-port 5000 -> queue 3|udp6 dst-port 5000 -> queue 3"},
		{"udp dst 5000-5003 ip dst 10.0.0.0/8 -> queue 3", "udp4 dst 10.0.0.0&ff000000 dst-port 5000&fffc -> queue 3"},
		{"tcp dst 80 ip src 2001:db8::1 vlan 7 -> drop", "tcp6 src 2001:db8::1 dst-port 80 vlan 7 -> drop"},
		{"ip proto 47 ip src 10.0.0.1 -> queue 0", "ip4 src 10.0.0.1 proto 47 -> queue 0"},
		{"eth dst 02:00:00:00:00:01 eth type 2048 udp -> queue 1", "ip4 dst-mac 02:00:00:00:00:01 proto 17 -> queue 1"},
		{"eth type 0x88f7 -> queue 2", "ether ether-type 0x88f7 -> queue 2"},
		{"eth src 02:00:00:00:00:01 vlan 4095 -> queue 2", "ether src-mac 02:00:00:00:00:01 vlan 4095 -> queue 2"},
	} {
		r, err := flow.ParseRule(x.rule)
		if err != nil {
			t.Errorf("%s: %v", x.rule, err)
			continue
		}
		entries, err := Compile([]flow.Rule{r}, Limits{})
		var got []string
		for _, e := range entries {
			got = append(got, e.Spec.String())
		}
		if err != nil || strings.Join(got, "|") != x.want {
			t.Errorf("%s: %s, %v; expected %s", x.rule, strings.Join(got, "|"), err, x.want)
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, x := range []struct{ rules, want string }{
		{"vlan untagged udp dst 1 -> queue 0", "that there is no tag"},
		{"vlan 0 udp dst 1 -> queue 0", "identifier 0"},
		{"inner-vlan 5 udp dst 1 -> queue 0", "inner-vlan"},
		{"udp dst 1 ip len 100 -> queue 0", "ip len"},
		{"udp dst 1 -> kernel", "cannot do kernel"},
		{"udp dst 1 -> rss 0-1", "cannot do rss"},
		{"udp dst 1 -> vlan-pop, queue 0", "vlan-pop"},
		{"udp dst 1 -> queue 8", "has no queue 8"},
		{"eth src 02:00:00:00:00:01 udp dst 1 -> queue 0", "together with fields of IP"},
		{"any -> queue 0", "every packet"},
		{"udp src 1-65534 udp dst 1-65534 ip src 10.0.0.0/8 -> queue 0", "takes 900 entries"},
	} {
		rules, err := flow.ParseRules(x.rules)
		if err != nil {
			t.Errorf("%s: %v", x.rules, err)
			continue
		}
		rules = append([]flow.Rule{{Name: "good", Match: flow.Match{EtherType: flow.Some(packet.EtherTypeARP)},
			Actions: []flow.Action{flow.Queue(1)}}}, rules...)
		entries, err := Compile(rules, Limits{Queues: 8})
		var p flow.Problems
		if !errors.As(err, &p) || entries != nil || p[0].Kind != flow.Unsupported || p[0].Rule != 1 ||
			!strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v, %v", x.rules, entries, err)
		}
	}
	rules, err := flow.ParseRules("udp dst 5000 -> queue 1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Compile(rules, Limits{Entries: 1}); err == nil || !strings.Contains(err.Error(), "takes 2 entries") {
		t.Error(err)
	}
}

// table is a card's table of rules.
type table struct {
	size    int
	chooses bool
	rules   map[uint32]ethtool.FlowSpec
	fails   int // the n-th insertion fails
}

func (c *table) RuleTable() (ethtool.RuleTable, error) {
	return ethtool.RuleTable{Rules: len(c.rules), Size: c.size, Chooses: c.chooses}, nil
}

func (c *table) Rules() (out []ethtool.FlowSpec, err error) {
	for at, s := range c.rules {
		s.Location = at
		out = append(out, s)
	}
	return out, nil
}

func (c *table) InsertRule(s ethtool.FlowSpec) (ethtool.FlowSpec, error) {
	if c.fails--; c.fails == 0 {
		return s, ethtool.ErrRefused
	}
	if s.Location == ethtool.AnyLocation {
		for s.Location = 0; c.rules[s.Location] != (ethtool.FlowSpec{}); s.Location++ {
		}
	}
	c.rules[s.Location] = s
	return s, nil
}

func (c *table) DeleteRule(at uint32) error {
	if _, ok := c.rules[at]; !ok {
		return ethtool.ErrRefused
	}
	delete(c.rules, at)
	return nil
}

func entriesOf(t *testing.T, text string) []Entry {
	t.Helper()
	rules, err := flow.ParseRules(text)
	if err != nil {
		t.Fatal(err)
	}
	out, err := Compile(rules, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func specsOf(entries []Entry) (out []ethtool.FlowSpec) {
	for _, e := range entries {
		out = append(out, e.Spec)
	}
	return out
}

func TestTable(t *testing.T) {
	other := ethtool.FlowSpec{Type: ethtool.FlowTCP4, Value: ethtool.FlowKey{DstPort: 22},
		Mask: ethtool.FlowKey{DstPort: 0xffff}, Queue: 7, Location: 6}
	c := &table{size: 8, rules: map[uint32]ethtool.FlowSpec{6: other}}
	specs := specsOf(entriesOf(t,
		"prio 2 udp dst 5000 ip dst 10.0.0.1 -> queue 1\nprio 1 udp dst 5000 ip dst 10.0.0.0/8 -> queue 2\nudp dst "+
			"5000 ip dst 10.0.0.0/7 -> drop"))
	open := func() *Table {
		t.Helper()
		x, err := OpenTable(c)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	x := open()
	if x.Room() != 7 || !x.Has(other) || len(x.Rules()) != 1 {
		t.Errorf("room for %d, rules %v", x.Room(), x.Rules())
	}
	in, err := x.Insert(specs, nil)
	if err != nil || len(c.rules) != 4 || x.Room() != 4 {
		t.Fatal(err, c.rules)
	}
	var at []uint32
	for i, s := range in {
		at = append(at, s.Location)
		if !s.Same(specs[i]) || !x.Has(s) {
			t.Errorf("%v", s)
		}
	}
	if !slices.Equal(at, []uint32{4, 5, 7}) {
		t.Errorf("places %v", at)
	}
	// One more, inserted later, stands before them.
	first := specsOf(entriesOf(t, "tcp dst 80 ip dst 10.0.0.1 -> queue 1"))
	if in, err := x.Insert(first, nil); err != nil || in[0].Location != 3 {
		t.Error(in, err)
	}
	// The next process finds them.
	x = open()
	elsewhere := in[1]
	if elsewhere.Location = 4; !x.Has(in[1]) || x.Has(elsewhere) || x.Chooses() {
		t.Errorf("%v", x.Rules())
	}
	// Another program replaces one of them by another rule.
	c.rules[5] = other
	x = open()
	for _, s := range in {
		if err := x.Delete(s); err != nil {
			t.Error(err)
		}
	}
	if len(c.rules) != 3 || c.rules[5] != other || x.Room() != 5 {
		t.Error(c.rules)
	}
	delete(c.rules, 5)
	delete(c.rules, 3)
	x = open()
	c.fails = 3
	if _, err := x.Insert(specs, nil); !errors.Is(err, ethtool.ErrRefused) || len(c.rules) != 1 || x.Room() != 7 {
		t.Error(err, c.rules)
	}
	c.size = 3
	c.rules = map[uint32]ethtool.FlowSpec{0: other}
	if _, err := open().Insert(specs, nil); !errors.Is(err, ethtool.ErrFull) || len(c.rules) != 1 {
		t.Error(err)
	}
	c.size, c.rules = 0, map[uint32]ethtool.FlowSpec{}
	if _, err := OpenTable(c); !errors.Is(err, ethtool.ErrNotSupported) {
		t.Error(err)
	}
	c.chooses = true
	if x = open(); x.Room() != -1 {
		t.Error(x.Room())
	}
	if _, err := x.Insert(specs, nil); !errors.Is(err, ErrOrder) {
		t.Error(err)
	}
	if _, err := x.Insert(specs[1:2], specs[:1]); !errors.Is(err, ErrOrder) || len(c.rules) != 0 {
		t.Error(err)
	}
	apart := specsOf(entriesOf(t,
		"udp dst 5000 -> queue 1\nudp dst 5001 -> queue 2\ntcp dst 5000 -> queue 3\nip proto 47 -> queue 4"))
	if in, err := x.Insert(apart, nil); err != nil || len(c.rules) != 8 || in[0].Location == ethtool.AnyLocation {
		t.Error(err, c.rules)
	}
	if in, err := x.Insert(nil, nil); err != nil || len(in) != 0 {
		t.Error(err)
	}
}
