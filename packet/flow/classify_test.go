package flow_test

import (
	"fmt"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
	"github.com/penstock-io/penstock/packet/flow/flowtest"
	"pgregory.net/rapid"
)

// trial compares all ways to classify a frame with the plain matcher.
type trial struct {
	rules []flow.Rule
	c     *flow.Classifier
	cache *flow.Cache
}

func newTrial(t interface{ Fatalf(string, ...any) }, rules []flow.Rule) *trial {
	c, err := flow.Compile(rules)
	if err != nil {
		t.Fatalf("compile: %v", err)
	}
	cache, err := flow.NewCache(flow.MinCacheSize)
	if err != nil {
		t.Fatalf("cache: %v", err)
	}
	return &trial{rules, c, cache}
}

func (x *trial) check(frame []byte) error {
	var l packet.Layers
	packet.Parse(frame, &l) // malformed frames too: what Parse found is there
	want := flowtest.First(x.rules, frame, &l)
	d := x.c.Classify(frame, &l)
	if int(d.Rule) != want {
		return fmt.Errorf("rule %d, expected %d\nframe %x\nlayers %+v\ngot  %v\nwant %v", d.Rule, want, frame, l,
			x.rule(int(d.Rule)), x.rule(want))
	}
	for range 2 { // cold, then warm
		if got := x.cache.Classify(x.c, frame, &l); got != d {
			return fmt.Errorf("cache says %+v (%v), classifier %+v (%v)\nframe %x", got, x.rule(int(got.Rule)), d,
				x.rule(int(d.Rule)), frame)
		}
	}
	return x.consistent(d, frame, &l)
}

func (x *trial) rule(i int) string {
	if i < 0 {
		return "none"
	}
	return x.rules[i].String()
}

// consistent checks what follows from the rule.
func (x *trial) consistent(d flow.Decision, frame []byte, l *packet.Layers) error {
	want := flow.Decision{Rule: d.Rule}
	if d.Rule >= 0 {
		r := &x.rules[d.Rule]
		want.ID, want.Transform = r.Carried(), len(r.Actions) > 1
		switch a := r.Actions[len(r.Actions)-1]; a.Kind {
		case flow.ToQueue:
			want.Verdict, want.Queue = flow.Deliver, a.Queue
		case flow.RSS:
			want.Verdict = flow.Deliver
			hash := packet.ToeplitzBits(&packet.MicrosoftKey, hashInput(frame, l))
			want.Queue = a.Queues[int(hash%128)%len(a.Queues)]
		case flow.Drop:
			want.Verdict = flow.Discard
		case flow.ToKernel:
			want.Verdict = flow.Kernel
		}
	}
	if d != want {
		return fmt.Errorf("decision %+v, expected %+v", d, want)
	}
	return nil
}

// hashInput is what a network card hashes: addresses, and ports where there are any and the packet
// is no fragment.
func hashInput(frame []byte, l *packet.Layers) []byte {
	if l.IPVersion == 0 {
		return nil
	}
	in := append(l.Src(frame).AsSlice(), l.Dst(frame).AsSlice()...)
	if l.HasPorts && !l.IsFragment() {
		in = append(in, byte(l.SrcPort>>8), byte(l.SrcPort), byte(l.DstPort>>8), byte(l.DstPort))
	}
	return in
}

func TestClassifierIsTheLinearMatcher(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rules := drawRules(t, 40)
		x := newTrial(t, rules)
		r := drawRand(t)
		for range 40 {
			p := flowtest.Random(r)
			if len(rules) > 0 && r.IntN(8) > 0 {
				m := &rules[r.IntN(len(rules))].Match
				p, _ = flowtest.Meeting(r, m)
				for range r.IntN(3) {
					p = flowtest.Missing(r, p, m)
				}
			}
			frame := p.Frame()
			if r.IntN(8) == 0 {
				frame = frame[:r.IntN(len(frame)+1)]
			}
			if r.IntN(8) == 0 && len(frame) > 0 {
				frame[r.IntN(len(frame))] ^= 1 << r.IntN(8)
			}
			if err := x.check(frame); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Packets that differ in one thing, one after the other through one cache: what the rules can tell
// apart, the cache can.
func TestCacheTellsApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rules := drawRules(t, 12)
		if len(rules) == 0 {
			return
		}
		x := newTrial(t, rules)
		r := drawRand(t)
		for range 6 {
			m := &rules[r.IntN(len(rules))].Match
			base, _ := flowtest.Meeting(r, m)
			for range 25 {
				p := base
				for range r.IntN(2) {
					p = flowtest.Missing(r, p, m)
				}
				frame := p.Frame()
				switch r.IntN(6) {
				case 0: // cut inside the headers, or the payload
					frame = frame[:14+r.IntN(len(frame)-13)]
				case 1: // another IP version, header length, protocol: what Parse makes of it
					frame[14] ^= 1 << r.IntN(8)
				case 2:
					if at := len(frame) - len(p.Payload) - 3; at > 14 {
						frame[at] ^= 0xff // a length of UDP that is wrong
					}
				}
				var l packet.Layers
				packet.Parse(frame, &l)
				want := x.c.Classify(frame, &l)
				if got := x.cache.Classify(x.c, frame, &l); got != want {
					t.Fatalf("cache says %s, classifier %s\nframe %x", x.rule(int(got.Rule)), x.rule(int(want.Rule)),
						frame)
				}
			}
		}
	})
}

// The IP version counts also where no address does.
func TestCacheTellsVersionsApart(t *testing.T) {
	x := newTrial(t, mustRules(t, "ip src 0.0.0.0/0 -> drop\nip dst ::/0 -> queue 1"))
	for _, match := range []string{"eth type 0x0806", "ip src 10.0.0.1 dst 10.0.0.2 udp src 1 dst 2",
		"ip src ::1 dst ::2 udp src 1 dst 2", "eth type 0x88f7"} {
		for range 2 {
			f, _ := frameFor(t, match)
			if err := x.check(f); err != nil {
				t.Error(match, err)
			}
		}
	}
}

// Sets of many words, of several blocks, and the set of the benchmark.
func TestClassifierLargeSets(t *testing.T) {
	for _, n := range []int{1, 63, 64, 65, 1000, 2048, 2049, 5000} {
		if testenv.Race && n > 1000 {
			continue // the same code, too slow under the detector
		}
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			rules := flowtest.Rules(uint64(n), n)
			if err := flow.Validate(rules[:min(n, 200)]).Err(); err != nil {
				t.Fatal(err)
			}
			x := newTrial(t, rules)
			hits := 0
			for _, f := range flowtest.NewTraffic(rules, flowtest.TrafficOptions{Seed: 5, Flows: 2000}).Flows {
				if err := x.check(f); err != nil {
					t.Fatal(err)
				}
				var l packet.Layers
				packet.Parse(f, &l)
				if x.c.Classify(f, &l).Rule >= 0 {
					hits++
				}
			}
			if hits < 1000 || hits == 2000 {
				t.Errorf("%d of 2000 packets meet a rule: the traffic tests little", hits)
			}
		})
	}
}

// A set with more flex offsets than a search remembers and a cache key holds, and many masks of one
// offset.
func TestClassifierManyFlexOffsets(t *testing.T) {
	r := flowtest.NewRand(3)
	var rules []flow.Rule
	for i := range 300 {
		f := flow.Flex{Offset: uint16(i % 100), Mask: 0xff << (i % 25), Value: 0}
		if i >= 200 {
			f = flow.Flex{Offset: 8, Mask: r.Uint32() | 1}
		}
		f.Value = r.Uint32() & f.Mask
		rules = append(rules, flow.Rule{Priority: int32(i), Match: flow.Match{Flex: []flow.Flex{f}},
			Actions: []flow.Action{flow.Queue(1)}})
	}
	x := newTrial(t, rules)
	tries := 3000
	if testenv.Race {
		tries = 500
	}
	for range tries {
		m := &rules[r.IntN(len(rules))].Match
		p, ok := flowtest.Meeting(r, m)
		if !ok {
			t.Fatalf("no packet for %v", m)
		}
		if err := x.check(p.Frame()); err != nil {
			t.Fatal(err)
		}
		if err := x.check(func() []byte { p := flowtest.Missing(r, p, m); return p.Frame() }()); err != nil {
			t.Fatal(err)
		}
	}
}

// The bug of DAQIRI that must not come back: a range that is not understood, or a port 0, as a
// wildcard.
func TestRangesAreNotWildcards(t *testing.T) {
	zero, err := flow.ParseRule("udp dst 0 -> queue 1")
	if err != nil {
		t.Fatal(err)
	}
	ranged, err := flow.ParseRule("udp dst 1000-1010 -> queue 2")
	if err != nil {
		t.Fatal(err)
	}
	c, err := flow.Compile([]flow.Rule{zero, ranged})
	if err != nil {
		t.Fatal(err)
	}
	for port, want := range map[uint16]int32{0: 0, 1: -1, 999: -1, 1000: 1, 1005: 1, 1010: 1, 1011: -1, 65535: -1} {
		p := flowtest.Random(flowtest.NewRand(1))
		p.EtherType, p.Proto, p.Later, p.DstPort = packet.EtherTypeIPv4, packet.ProtoUDP, false, port
		p.Src, p.Dst = p.Src.Unmap(), p.Dst.Unmap()
		if !p.Src.Is4() {
			t.Fatal("the seed gives IPv6")
		}
		var l packet.Layers
		f := p.Frame()
		packet.Parse(f, &l)
		if d := c.Classify(f, &l); d.Rule != want {
			t.Errorf("port %d: rule %d, expected %d", port, d.Rule, want)
		}
	}
	for _, bad := range []string{"1000-", "-1010", "1000-1010x", "1000:1010", "1010-1000", "", "65536", "0-65536", "+1",
		"1e3", "1_0"} {
		var r flow.Range
		if err := r.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q reads as %v", bad, r)
		}
	}
}

// Packets of no Ethernet (ParseIP) have IP fields, and no addresses of Ethernet.
func TestClassifyBareIP(t *testing.T) {
	rules, err := flow.ParseRules("prio 2 eth dst 02:00:00:00:00:01 -> queue 0\nprio 1 udp dst 1-9 -> queue 1")
	if err != nil {
		t.Fatal(err)
	}
	x := newTrial(t, rules)
	p, ok := flowtest.Meeting(flowtest.NewRand(1), &rules[1].Match)
	if !ok {
		t.Fatal("no packet")
	}
	p.Tags, p.EthDst = nil, packet.MAC{2, 0, 0, 0, 0, 1}
	f := p.Frame()[packet.EthernetLen:]
	var l packet.Layers
	if why := packet.ParseIP(f, &l); why != packet.OK {
		t.Fatal(why)
	}
	for range 2 {
		if d := x.c.Classify(f, &l); d.Rule != 1 {
			t.Errorf("rule %d, expected 1", d.Rule)
		}
		if d := x.cache.Classify(x.c, f, &l); d.Rule != 1 {
			t.Errorf("through the cache: rule %d, expected 1", d.Rule)
		}
	}
}

// One cache for classifiers in turn: nothing of one is seen with another.
func TestCacheFollowsTheClassifier(t *testing.T) {
	var trials []*trial
	cache, err := flow.NewCache(0)
	if err != nil {
		t.Fatal(err)
	}
	rules := flowtest.Rules(9, 100)
	for i := range 6 {
		x := newTrial(t, rules[i*10:i*10+40])
		x.cache = cache
		trials = append(trials, x)
	}
	flows := flowtest.NewTraffic(rules, flowtest.TrafficOptions{Seed: 4, Flows: 300}).Flows
	for i := range 4000 {
		if err := trials[i/7%len(trials)].check(flows[i%len(flows)]); err != nil {
			t.Fatal(err)
		}
	}
	if hits, misses := cache.Stats(); hits == 0 || misses == 0 {
		t.Errorf("%d hits, %d misses", hits, misses)
	}
	for _, bad := range []int{-1, 1, flow.MinCacheSize - 1, flow.MaxCacheSize + 1} {
		if _, err := flow.NewCache(bad); err == nil {
			t.Errorf("a cache of %d bytes", bad)
		}
	}
}

func TestClassifyDoesNotAllocate(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithRace, "the race detector allocates")
	rules := flowtest.Rules(1, 500)
	x := newTrial(t, rules)
	frames := flowtest.NewTraffic(rules, flowtest.TrafficOptions{Seed: 5, Flows: 100}).Flows
	layers := make([]packet.Layers, len(frames))
	for i, f := range frames {
		packet.Parse(f, &layers[i])
	}
	out := make([]flow.Decision, len(frames))
	for name, f := range map[string]func(){
		"Classify": func() {
			for i := range frames {
				out[i] = x.c.Classify(frames[i], &layers[i])
			}
		},
		"Cache.Classify": func() {
			for i := range frames {
				out[i] = x.cache.Classify(x.c, frames[i], &layers[i])
			}
		},
	} {
		if n := testing.AllocsPerRun(20, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

func FuzzClassify(f *testing.F) {
	rules := flowtest.Rules(7, 40) // few, for the plain matcher tries them all
	extra, err := flow.ParseRules(`prio 9000 vlan untagged udp ecpri type 2 rtc_id 7 -> queue 1
prio 9001 inner-vlan 5 -> drop
prio 9002 ip len 65535 -> kernel
prio -5 any -> rss 0-7`)
	if err != nil {
		f.Fatal(err)
	}
	x := newTrial(f, append(rules, extra...))
	for _, frame := range flowtest.NewTraffic(rules, flowtest.TrafficOptions{Seed: 5, Flows: 60}).Flows {
		f.Add(frame)
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		var l packet.Layers
		packet.Parse(frame, &l)
		d := x.c.Classify(frame, &l)
		if int(d.Rule) != flowtest.First(x.rules, frame, &l) || x.cache.Classify(x.c, frame, &l) != d {
			t.Fatal(x.check(frame))
		}
	})
}
