package prog

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cilium/ebpf"
	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
	"github.com/penstock-io/penstock/packet/flow/flowtest"
)

// fataler is a test of the package testing or of rapid.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// answer is what the program says about a frame.
type answer struct {
	action uint32
	meta   Meta
	has    bool
}

// run runs the program in force on a frame, without a device. There are no sockets, so that what is
// delivered ends as a drop with a Meta.
func run(t fataler, p *Program, frame []byte) answer {
	t.Helper()
	out := make([]byte, len(frame)+MetaSize+64)
	o := ebpf.RunOptions{Data: frame, DataOut: out, Repeat: 1}
	action, err := p.now.program.Run(&o)
	if err != nil {
		t.Fatalf("run on %d bytes: %v", len(frame), err)
	}
	a := answer{action: action}
	if extra := len(o.DataOut) - len(frame); extra == MetaSize {
		a.meta, a.has = TakeMeta(o.DataOut[:MetaSize])
	}
	return a
}

func (a answer) String() string {
	return fmt.Sprintf("action %d, meta %v %+v", a.action, a.has, a.meta)
}

// check compares what the program says about a frame with what flow.Classifier says.
func check(t fataler, p *Program, s *flow.Classifier, isolation flow.Isolation, frame []byte) (d flow.Decision,
	l packet.Layers, why packet.Reason) {
	t.Helper()
	why = packet.Parse(frame, &l)
	d = s.Classify(frame, &l)
	if d.Rule < 0 {
		d.Verdict, d.Queue = isolation.Unmatched, isolation.Queue
		if d.Verdict == flow.Unmatched {
			d.Verdict = flow.Kernel
		}
	}
	got := run(t, p, frame)
	want := answer{action: xdpDrop}
	switch d.Verdict {
	case flow.Kernel:
		want.action = xdpPass
	case flow.Deliver:
		if int(d.Queue) < p.spec.Slots {
			want.has = true
			want.meta = Meta{Rule: d.ID, Queue: d.Queue}
		}
	}
	if got != want {
		t.Fatalf("frame %x (%v %+v)\nthe program says %v\nthe classifier  %v (%+v)", frame, why, l, got, want, d)
	}
	return d, l, why
}

func load1(t testing.TB, s Spec) *Program {
	t.Helper()
	if s.Queues == 0 {
		s.Queues = 2
	}
	if s.Slots == 0 {
		s.Slots = 8
	}
	s.Interface = max(s.Interface, 1)
	p, err := Load(s)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func TestSmallest(t *testing.T) {
	r, err := flow.ParseRule("name video udp dst 5000-5010 ip src 10.0.0.0/8 -> queue 3")
	if err != nil {
		t.Fatal(err)
	}
	r.ID = 77
	rules := []flow.Rule{r}
	p := load1(t, Spec{Rules: rules, Metadata: true})
	c, _ := flow.Compile(rules)
	rng := flowtest.NewRand(1)
	for range 200 {
		m, _ := flowtest.Meeting(rng, &r.Match)
		check(t, p, c, flow.Isolation{}, m.Frame())
		m = flowtest.Missing(rng, m, &r.Match)
		check(t, p, c, flow.Isolation{}, m.Frame())
	}
	t.Logf("%+v", p.Info())
}

// TestOracle: on any frame the program says what flow.Classifier says.
func TestOracle(t *testing.T) {
	delivered, malformed, far := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		frags := rapid.Bool().Draw(t, "frags")
		rules := drawRules(t, rapid.SampledFrom([]int{1, 3, 20, 150}).Draw(t, "most"))
		iso := rapid.SampledFrom([]flow.Isolation{{}, {Unmatched: flow.Kernel}, {Unmatched: flow.Discard},
			{Unmatched: flow.Deliver, Queue: 3}, {Unmatched: flow.Deliver, Queue: 9}}).Draw(t, "isolation")
		c, err := flow.Compile(rules)
		if err != nil {
			t.Fatal(err)
		}
		p, err := Load(Spec{Interface: 1, Queues: 1, Slots: 8, Rules: rules, Isolation: iso, Metadata: true,
			Frags: frags})
		if err != nil {
			t.Fatalf("%+v", err)
		}
		defer p.Close()
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "frames"), 8))
		n := uint64(60)
		for range n {
			frame := drawFrame(r, rules, frags)
			d, l, why := check(t, p, c, iso, frame)
			if d.Rule >= 0 && d.Verdict == flow.Deliver {
				delivered++
			}
			if why != packet.OK {
				malformed++
			}
			if l.Payload > 3520 {
				far++
			}
		}
		var counts Counts
		if err := p.Counters(&counts); err != nil {
			t.Fatal(err)
		}
		if counts.Faults.Packets != 0 || counts.ends() != n || counts.Unmatched.Packets+sum(counts.Rules) != n {
			t.Fatalf("of %d packets: %+v", n, counts)
		}
	})
	if !t.Failed() && (delivered == 0 || malformed == 0 || far == 0 && !testing.Short()) {
		// a short run may draw no such headers
		t.Errorf("the frames were too good: %d delivered by a rule, %d malformed, %d with headers beyond the "+
			"first buffer", delivered, malformed, far)
	}
}

func sum(of []flow.Count) (n uint64) {
	for _, c := range of {
		n += c.Packets
	}
	return n
}

func TestMixes(t *testing.T) {
	for _, n := range []int{0, 1, 16, 100, 256, 1000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			rules := flowtest.Rules(uint64(n), n)
			p := load1(t, Spec{Rules: rules, Metadata: true, Slots: 5})
			c, err := flow.Compile(rules)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%+v", p.Info())
			rng := flowtest.NewRand(uint64(n))
			for range 2000 {
				var f flowtest.Packet
				if n > 0 {
					m := &rules[rng.IntN(n)].Match
					f, _ = flowtest.Meeting(rng, m)
					if rng.IntN(2) == 0 {
						f = flowtest.Missing(rng, f, m)
					}
				} else {
					f = flowtest.Random(rng)
				}
				frame := f.Frame()
				if rng.IntN(4) == 0 {
					damage(rng, &frame)
				}
				check(t, p, c, flow.Isolation{}, frame)
			}
		})
	}
}

// damage changes some bytes of the headers, or cuts the frame.
func damage(r *rand.Rand, frame *[]byte) {
	f := *frame
	for range 1 + r.IntN(3) {
		at := 12 + r.IntN(min(len(f), 80)-12)
		switch r.IntN(4) {
		case 0:
			f[at] ^= 1 << r.IntN(8)
		case 1:
			f[at] = byte(r.Uint32())
		case 2:
			binary.BigEndian.PutUint16(f[min(at, len(f)-2):], uint16(r.IntN(300)))
		case 3:
			*frame = f[:14+r.IntN(len(f)-13)]
			return
		}
	}
}
