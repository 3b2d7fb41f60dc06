package flowtest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
)

// NewRand returns the generator that a seed stands for in this package.
func NewRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15)) }

// Rules returns n rules, of the mix that the classifier is measured on: of every twenty, seven
// connections by exact addresses and ports, five services in CIDR blocks, two port ranges between
// blocks, two of IPv6, two that look into the payload (a word whole or under a mask), one of VLAN
// and length, and one of eCPRI or Ethernet addresses. Special rules have higher priorities than
// general ones. The set has no errors; like real ones it has a few rules that others hide.
func Rules(seed uint64, n int) []flow.Rule {
	r := NewRand(seed)
	rules := make([]flow.Rule, n)
	for i := range rules {
		kind := i % 20
		rules[i] = flow.Rule{
			ID:       uint32(i + 1),
			Name:     fmt.Sprintf("rule-%d", i),
			Priority: int32(generality[kind]*n + n - i),
			Match:    matchOf(r, kind),
			Actions:  actions(r),
		}
	}
	r.Shuffle(n, func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
	return rules
}

// generality orders the kinds of matchOf: connections first, ranges last.
var generality = [20]int{9, 9, 9, 9, 9, 9, 9, 3, 3, 3, 2, 2, 1, 1, 6, 5, 8, 8, 4, 7}

func matchOf(r *rand.Rand, kind int) flow.Match {
	var m flow.Match
	m.Proto = flow.Some(packet.ProtoUDP)
	if r.IntN(3) == 0 {
		m.Proto = flow.Some(packet.ProtoTCP)
	}
	port := func() flow.Opt[flow.Range] { return flow.Some(flow.One(uint16(1024 + r.IntN(60000)))) }
	ports := func(width int) flow.Opt[flow.Range] {
		lo := 1024 + r.IntN(60000-width)
		return flow.Some(flow.Range{Lo: uint16(lo), Hi: uint16(lo + r.IntN(width))})
	}
	switch kind {
	case 0, 1, 2, 3, 4, 5, 6: // a connection
		m.Src, m.Dst = four(r, 32), four(r, 32)
		m.SrcPort, m.DstPort = port(), port()
	case 7, 8, 9, 10, 11: // a service in a block
		m.Dst, m.DstPort = four(r, 12+r.IntN(17)), port()
		if kind > 9 {
			m.DstPort = ports(16)
		}
	case 12, 13: // a range between blocks
		m.Src, m.Dst = four(r, 8+r.IntN(9)), four(r, 8+r.IntN(9))
		m.DstPort = ports(2000)
	case 14, 15: // IPv6
		m.Dst = six(r, 32+8*r.IntN(13))
		if kind == 15 {
			m.Src, m.DstPort = six(r, 32+r.IntN(33)), ports(100)
		}
	case 16, 17: // a stream inside a port
		m.Proto = flow.Some(packet.ProtoUDP)
		m.DstPort = flow.Some(flow.Range{Lo: 4000, Hi: 4015})
		f := flow.Flex{Offset: uint16(4 * r.IntN(3)), Value: r.Uint32(), Mask: 0xffffffff}
		if kind == 17 {
			f.Mask = 0xffff0000
			f.Value &= f.Mask
		}
		m.Flex = []flow.Flex{f}
	case 18:
		m.VLAN = flow.Some(flow.VLAN(1 + r.IntN(200)))
		lo := 64 + r.IntN(700)
		m.Length = flow.Some(flow.Range{Lo: uint16(lo), Hi: uint16(lo + r.IntN(700))})
	case 19:
		m = flow.Match{}
		if r.IntN(2) == 0 {
			m.ECPRI.Type = flow.Some(uint8(0))
			m.ECPRI.PCID = flow.Some(uint16(r.IntN(4096)))
		} else {
			m.EthDst = flow.Some(packet.MAC{2, 0, 0, 0, byte(r.IntN(4)), byte(r.IntN(256))})
		}
	}
	return m
}

// four returns a prefix of a few networks, as a site has them.
func four(r *rand.Rand, bits int) netip.Prefix {
	nets := [...][2]byte{{10, 0}, {10, 1}, {10, 20}, {172, 16}, {192, 168}, {100, 64}, {198, 18}, {203, 0}}
	n := nets[r.IntN(len(nets))]
	if bits < 16 {
		n[1] = byte(r.IntN(256))
	}
	p, _ := netip.AddrFrom4([4]byte{n[0], n[1], byte(r.IntN(256)), byte(r.IntN(256))}).Prefix(bits)
	return p
}

func six(r *rand.Rand, bits int) netip.Prefix {
	a := [16]byte{0x20, 0x01, 0x0d, 0xb8}
	for i := 4; i < 16; i++ {
		a[i] = byte(r.IntN(256))
	}
	p, _ := netip.AddrFrom16(a).Prefix(bits)
	return p
}

func actions(r *rand.Rand) []flow.Action {
	switch r.IntN(10) {
	case 0:
		return []flow.Action{{Kind: flow.Drop}}
	case 1:
		return []flow.Action{{Kind: flow.ToKernel}}
	case 2:
		return []flow.Action{flow.Spread(0, 1, 2, 3)}
	}
	return []flow.Action{flow.Queue(uint16(r.IntN(16)))}
}

// TrafficOptions says what traffic is like.
type TrafficOptions struct {
	Seed    uint64
	Flows   int     // different frames
	Packets int     // length of the sequence
	Skew    float64 // exponent of Zipf's law over the flows, above 1; 0: every flow equally often
}

// Traffic is a sequence of packets. Packets of one flow are one slice: do not write into them.
type Traffic struct {
	Flows  [][]byte // one frame per flow; the first are the most frequent
	Frames [][]byte // the sequence
	Bytes  int      // sum of the lengths of Frames
}

// NewTraffic makes traffic for a set of rules: of ten flows, eight meet a rule each (chosen
// evenly), one has a field next to what its rule accepts, and one is anything. Every frame is one
// that packet.Parse accepts.
func NewTraffic(rules []flow.Rule, o TrafficOptions) *Traffic {
	r := NewRand(o.Seed)
	t := &Traffic{}
	var l packet.Layers
	var slab []byte
	for len(t.Flows) < o.Flows {
		p := Random(r)
		if i := r.IntN(10); i < 9 && len(rules) > 0 {
			m := &rules[r.IntN(len(rules))].Match
			p, _ = Meeting(r, m)
			if i == 8 {
				p = Missing(r, p, m)
			}
		}
		if f := p.Frame(); packet.Parse(f, &l) == packet.OK {
			t.Flows = append(t.Flows, pack(&slab, f))
		}
	}
	next := func() uint64 { return r.Uint64N(uint64(o.Flows)) }
	if o.Skew > 1 {
		next = rand.NewZipf(r, o.Skew, 1, uint64(o.Flows-1)).Uint64
	}
	for range o.Packets {
		f := t.Flows[next()]
		t.Frames = append(t.Frames, f)
		t.Bytes += len(f)
	}
	return t
}

// pack copies f to the next 64-byte boundary of the slab, so that frames lie as close as in the
// slots of a small ring: the time of a benchmark should not be that of waiting for frames.
func pack(slab *[]byte, f []byte) []byte {
	const line = 64
	n := (len(f) + line - 1) / line * line
	if len(*slab) < n {
		*slab = make([]byte, max(n, 1<<20))
	}
	out := (*slab)[:len(f):len(f)]
	*slab = (*slab)[n:]
	copy(out, f)
	return out
}
