package rteflow

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
	"github.com/penstock-io/penstock/packet/flow/flowtest"
)

var update = flag.Bool("update", false, "rewrite the golden file")

// number has queues 0 to 15 in reverse.
func number(id uint16) (uint16, bool) { return 15 - id, id < 16 }

// TestGolden compares what becomes of rules with testdata/rules.golden: a rule, and below it what
// testpmd would be told.
func TestGolden(t *testing.T) {
	text, err := os.ReadFile("testdata/rules.txt")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			fmt.Fprintln(&out, line)
			continue
		}
		o := Options{Queue: number}
		var rules []flow.Rule
		for part := range strings.SplitSeq(line, ";") {
			switch part = strings.TrimSpace(part); part {
			case "prefixes":
				o.Limit = func(int) Limit { return NoRanges }
			case "steer":
				o.Limit = func(int) Limit { return NoWhole }
			case "tagged":
				o.Tagged = true
			default:
				r, err := flow.ParseRule(part)
				if err != nil {
					t.Fatalf("%s: %v", part, err)
				}
				r.ID = uint32(len(rules) + 1)
				rules = append(rules, r)
			}
		}
		fmt.Fprintln(&out, line)
		for _, c := range Compile(rules, o) {
			fmt.Fprintf(&out, "\t%s\n", strings.ReplaceAll(c.String(), "\n", "\n\t"))
		}
	}
	const golden = "testdata/rules.golden"
	if *update {
		if err := os.WriteFile(golden, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if out.String() != string(want) {
		t.Errorf("it has changed: go test ./engine/dpdk/rteflow -update\n%s", out.String())
	}
}

// device carries patterns out on frames. One that looks far skips tags and extension headers that a
// pattern does not name, and finds the ports of first fragments.
type device struct{ far bool }

// takes reports whether a pattern takes a frame.
func (d device) takes(frame []byte, pattern []Item) bool {
	at, next := 0, Ethernet
	for _, want := range pattern {
		if want.Header == Raw {
			at += int(want.Offset)
			if at+4 > len(frame) || !asked(want, frame[at:]) {
				return false
			}
			at += 4
			continue
		}
		for d.far && next == VLAN && want.Header != VLAN && len(frame) >= at+4 {
			next = tagged(frame[at+2:])
			at += 4
		}
		if next != want.Header || len(frame) < at+Sizes[want.Header] || !asked(want, frame[at:]) {
			return false
		}
		h := frame[at:]
		at += Sizes[want.Header]
		switch want.Header {
		case Ethernet, VLAN:
			next = tagged(h[Sizes[want.Header]-2:])
			if want.Tags == NoTags && next == VLAN {
				return false
			}
		case IPv4:
			next = l4(h[9])
			if part := binary.BigEndian.Uint16(h[6:]); part&0x1fff != 0 || part&0x2000 != 0 && !d.far {
				next = numHeaders
			}
			at += int(h[0]&15)*4 - 20
		case IPv6:
			p := h[6]
			for d.far && (p == 60 || p == 0) && len(frame) >= at+8 {
				p = frame[at]
				at += 8 + int(frame[at+1])*8
			}
			next = l4(p)
		case TCP:
			at += int(h[12]>>4)*4 - 20
		case UDP:
			if next = numHeaders; binary.BigEndian.Uint16(h[2:]) == 4789 {
				next = VXLAN
			}
		}
	}
	return true
}

func tagged(b []byte) Header {
	switch packet.EtherType(binary.BigEndian.Uint16(b)) {
	case packet.EtherTypeVLAN, packet.EtherTypeQinQ:
		return VLAN
	case packet.EtherTypeIPv4:
		return IPv4
	case packet.EtherTypeIPv6:
		return IPv6
	}
	return numHeaders
}

func l4(p byte) Header {
	switch packet.Proto(p) {
	case packet.ProtoUDP:
		return UDP
	case packet.ProtoTCP:
		return TCP
	case packet.ProtoGRE:
		return NVGRE
	}
	return numHeaders
}

// asked reports whether the bytes of a header are what an item asks for.
func asked(i Item, h []byte) bool {
	for _, f := range append([]field{{"all", 0, len(i.Spec)}}, fields[i.Header]...) {
		if i.Last != nil && f.name == "all" || i.Mask == nil {
			continue
		}
		var v, lo, hi, mask []byte = h[f.at : f.at+f.size], i.Spec[f.at : f.at+f.size], i.Spec[f.at : f.at+f.size],
			i.Mask[f.at : f.at+f.size]
		if i.Last != nil {
			hi = i.Last[f.at : f.at+f.size]
		}
		masked := make([]byte, f.size)
		for k := range v {
			masked[k] = v[k] & mask[k]
		}
		if bytes.Compare(masked, lo) < 0 || bytes.Compare(masked, hi) > 0 {
			return false
		}
	}
	return true
}

// winners are the rules of which one gets the frame: those of the best priority of all that take
// it.
func (d device) winners(frame []byte, rules []Compiled) (out []Compiled) {
	for _, c := range rules {
		if c.Do() == nil {
			continue
		}
		for _, p := range c.Patterns {
			if !d.takes(frame, p) {
				continue
			}
			if len(out) > 0 && c.Priority < out[0].Priority {
				out = nil
			}
			if len(out) == 0 || c.Priority == out[0].Priority {
				out = append(out, c)
			}
			break
		}
	}
	return out
}

// disturb makes a frame harder for devices: a tag, an extension header, or a first fragment.
func disturb(r *rand.Rand, frame []byte) []byte {
	var l packet.Layers
	if packet.Parse(frame, &l) != packet.OK || r.IntN(3) > 0 {
		return frame
	}
	frame = bytes.Clone(frame)
	if l.NumTags == 0 && r.IntN(2) == 0 {
		return append(frame[:12:12], append([]byte{0x81, 0, 0, 5}, frame[12:]...)...)
	}
	at := int(l.L3)
	switch l.IPVersion {
	case 4:
		if !l.IsFragment() {
			binary.BigEndian.PutUint16(frame[at+6:], 0x2000)
		}
	case 6:
		options := []byte{frame[at+6], 0, 1, 4, 0, 0, 0, 0}
		frame[at+6] = byte(packet.ProtoDestOpts)
		binary.BigEndian.PutUint16(frame[at+4:], binary.BigEndian.Uint16(frame[at+4:])+8)
		frame = append(frame[:at+40:at+40], append(options, frame[at+40:]...)...)
	}
	return frame
}

// TestWholeIsExact: a packet that a device takes for a rule that is Whole is that rule's, whatever
// the device does not see, and however it looks. What is steered arrives where software sends it.
func TestWholeIsExact(t *testing.T) {
	whole, steered, missed := 0, 0, 0
	for seed := range uint64(60) {
		rules := flowtest.Rules(seed, 3+int(seed))
		for i := range len(rules) * int(seed%3) / 2 { // weaker ones behind some, which meet them
			w := rules[i].Clone()
			w.ID, w.Name, w.Priority = uint32(len(rules)+1), "", -1
			w.Match.Flex = nil
			if i%3 > 0 {
				w.Match.SrcPort, w.Match.DstPort = flow.Opt[flow.Range]{}, flow.Opt[flow.Range]{}
			}
			switch i % 4 {
			case 0:
				w.Match.VLAN = flow.Some(flow.VLAN(5))
			case 1:
				w.Match.VLAN = flow.Some(flow.Untagged)
			}
			if flow.Validate(append(rules[:len(rules):len(rules)], w)).Err() == nil {
				rules = append(rules, w)
			}
		}
		c, err := flow.Compile(rules)
		if err != nil {
			t.Fatal(err)
		}
		r := flowtest.NewRand(seed)
		traffic := flowtest.NewTraffic(rules, flowtest.TrafficOptions{Seed: seed, Flows: 400, Packets: 400})
		limited := func(rule int) Limit { return Limit(uint64(rule)*(seed+3)%7) % 4 }
		for _, o := range []Options{{Queue: number}, {Queue: number, Tagged: true}, {Queue: number, Limit: limited}} {
			compiled := Compile(rules, o)
			for _, frame := range traffic.Flows {
				frame = disturb(r, frame)
				var l packet.Layers
				packet.Parse(frame, &l)
				want := c.Classify(frame, &l)
				for _, far := range []bool{false, true} {
					won := device{far}.winners(frame, compiled)
					if len(won) == 0 && want.Verdict == flow.Deliver {
						missed++
					}
					for _, w := range won {
						switch {
						case w.Whole != nil && int32(w.Rule) != want.Rule:
							t.Fatalf("seed %d: a device (far: %v) takes %x for rule %d, which is that of %d\n%v\n%v",
								seed, far, frame, w.Rule, want.Rule, w, rules[w.Rule])
						case w.Whole != nil:
							whole++
						default:
							steered++
						}
					}
				}
			}
		}
	}
	t.Logf("%d packets decided by devices, %d steered, %d left to software", whole, steered, missed)
	if whole < 1000 || steered < 100 {
		t.Errorf("devices decided %d packets and steered %d: too few to show anything", whole, steered)
	}
}

// TestTagged: with the patterns for isolation no packet is missed that has at most one tag, no
// extension header and is no fragment.
func TestTagged(t *testing.T) {
	seen := 0
	for seed := range uint64(40) {
		rules := flowtest.Rules(seed, 30)
		c, err := flow.Compile(rules)
		if err != nil {
			t.Fatal(err)
		}
		compiled := Compile(rules, Options{Queue: number, Tagged: true})
		has := map[int32]bool{}
		for _, x := range compiled {
			has[int32(x.Rule)] = len(x.Patterns) > 0 && x.Do() != nil
		}
		for _, frame := range flowtest.NewTraffic(rules,
			flowtest.TrafficOptions{Seed: seed, Flows: 300, Packets: 1}).Flows {
			var l packet.Layers
			if packet.Parse(frame, &l) != packet.OK || l.NumTags > 1 || l.IsFragment() {
				continue
			}
			d := c.Classify(frame, &l)
			if d.Verdict == flow.Unmatched || d.Verdict == flow.Kernel || !has[d.Rule] {
				continue
			}
			seen++
			if len(device{}.winners(frame, compiled)) == 0 {
				t.Fatalf("seed %d: no pattern takes %x of rule %d: %v", seed, frame, d.Rule, rules[d.Rule])
			}
		}
	}
	if seen < 1000 {
		t.Errorf("%d packets", seen)
	}
}
