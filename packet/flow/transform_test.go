package flow_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
	"github.com/penstock-io/penstock/packet/flow/flowtest"
	"pgregory.net/rapid"
)

const outer = "eth-src 02:00:00:00:00:01 eth-dst 02:00:00:00:00:02 ip-src 10.9.0.1 ip-dst 10.9.0.2"

func actionsOf(t testing.TB, text string) []flow.Action {
	t.Helper()
	r, err := flow.ParseRule("any -> " + text + ", queue 0")
	if err != nil {
		t.Fatal(err)
	}
	if err := flow.Validate([]flow.Rule{r}).Err(); err != nil {
		t.Fatal(err)
	}
	return r.Actions
}

// inBuffer puts a frame into a buffer with headroom, parsed.
func inBuffer(frame []byte, headroom int, l *packet.Layers) []byte {
	buf := append(bytes.Repeat([]byte{0xaa}, headroom), frame...)
	packet.Parse(frame, l)
	return buf
}

func TestTransformSizes(t *testing.T) {
	frame, _ := frameFor(t, "vlan untagged ip src 10.0.0.0/8 udp dst 5")
	for _, c := range []struct {
		actions string
		grows   int
		match   string // of the result
	}{
		{"vlan-push 100 pcp 5 dei 1", 4, "vlan 100 udp dst 5"},
		{"vlan-push 100, vlan-push 7 tpid 0x88a8", 8, "vlan 7 inner-vlan 100 udp dst 5"},
		{"vlan-push 100, vlan-pop", 0, "vlan untagged udp dst 5"},
		{"vxlan-encap vni 77 udp-src 4000 " + outer, 50, "ip src 10.9.0.1 dst 10.9.0.2 udp src 4000 dst 4789 flex 0 0x08000000 flex 4 19712"},
		{"vxlan-encap vni 77 " + outer, 50, "ip src 10.9.0.1 udp src 49152-65535 dst 4789"},
		{"vxlan-encap udp-dst 9 eth-src 02:00:00:00:00:01 eth-dst 02:00:00:00:00:02 ip-src ::1 ip-dst ::2", 70, "ip src ::1 dst ::2 udp dst 9"},
		{"nvgre-encap vni 77 flow-id 3 " + outer, 42, "ip src 10.9.0.1 proto 47"},
		{"gre-encap proto 0x6558 " + outer, 38, "ip src 10.9.0.1 proto 47"},
		{"vxlan-encap vni 77 " + outer + ", vxlan-decap", 0, "vlan untagged udp dst 5"},
		{"nvgre-encap vni 77 " + outer + ", nvgre-decap", 0, "vlan untagged udp dst 5"},
		{"gre-encap proto 0x6558 " + outer + ", gre-decap", 0, "udp dst 5"},
		{"vlan-push 3, vxlan-encap vni 77 " + outer + ", vlan-push 9", 58, "vlan 9 ip src 10.9.0.1 udp dst 4789"},
	} {
		actions := actionsOf(t, c.actions)
		var l packet.Layers
		headroom := flow.Headroom(actions)
		buf := inBuffer(frame, headroom, &l)
		out, why := flow.Transform(actions, buf, headroom, &l)
		if why != flow.Applied {
			t.Errorf("%s: %v", c.actions, why)
			continue
		}
		if len(out)-len(frame) != c.grows {
			t.Errorf("%s: grows by %d, expected %d", c.actions, len(out)-len(frame), c.grows)
		}
		var again packet.Layers
		if why := packet.Parse(out, &again); why != packet.OK || again != l {
			t.Errorf("%s: %v\nlayers %+v\nparse  %+v", c.actions, why, l, again)
		}
		m, err := flow.ParseMatch(c.match)
		if err != nil {
			t.Fatal(err)
		}
		if !flowtest.Matches(&m, out, &l) {
			t.Errorf("%s: %x is not %s", c.actions, out, c.match)
		}
		if c.grows == 0 && !bytes.Equal(out, frame) {
			t.Errorf("%s: there and back is\n%x\nnot\n%x", c.actions, out, frame)
		}
		if headroom > 0 {
			buf = inBuffer(frame, headroom-1, &l)
			if out, why := flow.Transform(actions, buf, headroom-1, &l); c.grows == headroom && why != flow.NoHeadroom {
				t.Errorf("%s: with a byte too few: %v, %d bytes", c.actions, why, len(out))
			}
		}
	}
}

func TestTransformRefusals(t *testing.T) {
	udp, _ := frameFor(t, "vlan untagged ip src 10.0.0.0/8 udp dst 5")
	vxlan, _ := frameFor(t, "vlan untagged ip src 10.0.0.0/8 udp dst 4789 flex 0 0x08000000 flex 4 0 flex 16 0x08004500")
	bad, _ := frameFor(t, "vlan untagged ip src 10.0.0.0/8 udp dst 4789 flex 0 0")
	arp, _ := frameFor(t, "vlan untagged eth type 0x0806")
	for _, c := range []struct {
		actions string
		frame   []byte
		want    flow.Refusal
	}{
		{"vlan-pop", udp, flow.NoTag},
		{"vxlan-decap", udp, flow.NoTunnel},
		{"gre-decap", vxlan, flow.NoTunnel},
		{"vxlan-decap", bad, flow.NoTunnel},
		{"gre-encap " + outer, arp, flow.NotIP},
		{"gre-encap proto 0x86dd " + outer, udp, flow.NotIP},
		{"vlan-push 5", udp[:10], flow.Malformed},
		{"vlan-pop", udp[:10], flow.Malformed},
		{"vxlan-encap " + outer, make([]byte, 65520), flow.TooLong},
	} {
		var l packet.Layers
		buf := inBuffer(c.frame, 100, &l)
		if _, why := flow.Transform(actionsOf(t, c.actions), buf, 100, &l); why != c.want {
			if c.frame != nil && len(c.frame) == len(bad) && why == flow.BadInner {
				// a malformed tunnel header may be called either
				continue
			}
			t.Errorf("%s: %v, expected %v", c.actions, why, c.want)
		}
	}
	var l packet.Layers
	if _, why := flow.Transform([]flow.Action{{Kind: 99}}, make([]byte, 64), 0, &l); why != flow.BadAction {
		t.Error(why)
	}
	for _, off := range []int{-1, 65} {
		if _, why := flow.Transform(nil, make([]byte, 64), off, &l); why != flow.NoHeadroom {
			t.Error(why)
		}
	}
	for r := range flow.NumRefusals + 1 {
		if (r.String() == "unknown") != (r == flow.NumRefusals) {
			t.Error(r)
		}
	}
}

// Any actions on any frame: no panic, nothing behind the frame is written, and the layers are those
// of the result.
func TestTransformAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		actions := drawActions(t)
		r := drawRand(t)
		frames := flowtest.NewTraffic(nil, flowtest.TrafficOptions{Seed: r.Uint64(), Flows: 4}).Flows
		for _, f := range frames {
			headroom := rapid.IntRange(0, 160).Draw(t, "headroom")
			var l packet.Layers
			buf := append(inBuffer(f, headroom, &l), 1, 2, 3, 4)
			out, why := flow.Transform(actions, buf[:headroom+len(f)], headroom, &l)
			if !bytes.Equal(buf[headroom+len(f):], []byte{1, 2, 3, 4}) {
				t.Fatalf("%v wrote behind the frame", actions)
			}
			if why == flow.NoHeadroom && headroom >= flow.Headroom(actions) {
				t.Fatalf("%d bytes of headroom were not enough", headroom)
			}
			if why != flow.Applied {
				continue
			}
			var again packet.Layers
			packet.Parse(out, &again)
			if len(actions) > 1 && again != l {
				t.Fatalf("%+v\nlayers %+v\nparse  %+v", actions, l, again)
			}
		}
	})
}

func TestTransformDoesNotAllocate(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithRace, "the race detector allocates")
	frame, _ := frameFor(t, "vlan untagged ip src 10.0.0.0/8 udp dst 5")
	actions := actionsOf(t, "vlan-push 3, vxlan-encap vni 7 "+outer+", vxlan-decap, vlan-pop")
	buf := make([]byte, 100+len(frame))
	var l packet.Layers
	if n := testing.AllocsPerRun(20, func() {
		copy(buf[100:], frame)
		packet.Parse(frame, &l)
		if _, why := flow.Transform(actions, buf, 100, &l); why != flow.Applied {
			panic(why)
		}
		if _, why := flow.Transform(actions[3:], buf, 100, &l); why != flow.NoTag {
			panic(why)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkTransform(b *testing.B) {
	frame, _ := frameFor(b, "vlan untagged ip src 10.0.0.0/8 udp dst 5")
	for _, text := range []string{"vlan-push 3", "vxlan-encap vni 7 " + outer} {
		actions := actionsOf(b, text)
		b.Run(fmt.Sprint(actions[0].Kind), func(b *testing.B) {
			buf := make([]byte, 100+len(frame))
			copy(buf[100:], frame)
			var l packet.Layers
			b.ReportAllocs()
			for b.Loop() {
				copy(buf[100:], frame[:12])
				if _, why := flow.Transform(actions, buf, 100, &l); why != flow.Applied {
					b.Fatal(why)
				}
			}
		})
	}
}
