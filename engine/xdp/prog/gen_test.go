package prog

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
	"github.com/penstock-io/penstock/packet/flow/flowtest"
)

// Rules and frames draw their values from the same small pools, so that they meet and just miss
// each other.

var (
	poolPorts = []uint16{0, 1, 79, 80, 81, 4000, 4001, 65534, 65535}
	poolMACs  = []packet.MAC{{2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 2}, {2, 0, 1, 0, 0, 1},
		{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}
	poolFour = []string{"10.0.0.1", "10.0.0.2", "10.0.1.1", "10.1.0.1", "192.168.0.255", "255.255.255.255", "0.0.0.0"}
	poolSix  = []string{"2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "2001:db9::", "::", "fe80::1:0:0:1",
		"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"}
	poolTypes = []packet.EtherType{0x0800, 0x86dd, 0xaefe, 0x0806, 0, 0x05dc}
	poolWords = []uint32{0, 1, 0x01020304, 0xffffffff, 0x80000001, 0x11223344}
)

func one[T any](r *rand.Rand, of []T) T { return of[r.IntN(len(of))] }

// drawRules draws up to most rules that are valid by themselves.
func drawRules(t *rapid.T, most int) []flow.Rule {
	r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "rules"), 7))
	chance := func(percent int) bool { return r.IntN(100) < percent }
	span := func() flow.Opt[flow.Range] {
		a, b := one(r, poolPorts), one(r, poolPorts)
		if chance(40) {
			b = a
		}
		return flow.Some(flow.Range{Lo: min(a, b), Hi: max(a, b)})
	}
	block := func(six bool) netip.Prefix {
		a := netip.MustParseAddr(one(r, poolFour))
		bits := one(r, []int{0, 1, 8, 15, 16, 17, 24, 31, 32})
		if six {
			a = netip.MustParseAddr(one(r, poolSix))
			bits = one(r, []int{0, 1, 16, 32, 33, 48, 63, 64, 65, 127, 128})
		}
		return netip.PrefixFrom(a, bits).Masked()
	}
	var rules []flow.Rule
	for n := rapid.IntRange(0, most).Draw(t, "count"); len(rules) < n; {
		var m flow.Match
		if chance(15) {
			m.EthSrc = flow.Some(one(r, poolMACs))
		}
		if chance(15) {
			m.EthDst = flow.Some(one(r, poolMACs))
		}
		if chance(10) {
			m.EtherType = flow.Some(one(r, poolTypes))
		}
		if chance(12) {
			m.VLAN = flow.Some(one(r, []flow.VLAN{0, 1, 4095, flow.Untagged}))
		}
		if chance(8) {
			m.InnerVLAN = flow.Some(one(r, []flow.VLAN{0, 1, 4095, flow.Untagged}))
		}
		six := chance(40)
		if chance(35) {
			m.Src = block(six)
		}
		if chance(35) {
			m.Dst = block(six)
		}
		if chance(55) {
			m.Proto = flow.Some(one(r, []packet.Proto{17, 17, 17, 6, 6, 1, 58, 51, 50, 0, 255}))
		}
		if chance(12) {
			m.Length = flow.Some(one(r, []flow.Range{{Lo: 0, Hi: 60}, {Lo: 46, Hi: 46}, {Lo: 61, Hi: 1500},
				{Lo: 65535, Hi: 65535}}))
		}
		if m.Proto.Set && (m.Proto.Value == 17 || m.Proto.Value == 6) {
			if chance(40) {
				m.SrcPort = span()
			}
			if chance(50) {
				m.DstPort = span()
			}
		}
		for k := one(r, []int{0, 0, 0, 0, 1, 1, 2, 4}); k > 0; k-- {
			f := flow.Flex{Offset: one(r, []uint16{0, 1, 4, 30, 252}),
				Mask: one(r, []uint32{0xffffffff, 0xffff0000, 0xff, 0x80000000, 0xf0f0f0f0})}
			f.Value = one(r, poolWords) & f.Mask
			m.Flex = append(m.Flex, f)
		}
		if chance(10) {
			m.ECPRI.Type = flow.Some(one(r, []uint8{0, 1, 2, 5}))
			if id := flow.Some(one(r, []uint16{0, 7, 65535})); chance(50) {
				if m.ECPRI.Type.Value == 2 {
					m.ECPRI.RTCID = id
				} else {
					m.ECPRI.PCID = id
				}
			}
		}
		x := flow.Rule{Priority: int32(r.IntN(3)), Match: m, Actions: []flow.Action{drawAction(r)}}
		if chance(60) {
			x.ID = uint32(len(rules) + 1)
			if len(rules)%3 == 0 {
				x.Mark = flow.Some(uint32(1000 + len(rules)%5))
			}
		}
		if flow.Validate([]flow.Rule{x}).Err() == nil {
			rules = append(rules, x)
		}
	}
	return rules
}

func drawAction(r *rand.Rand) flow.Action {
	switch r.IntN(6) {
	case 0:
		return flow.Action{Kind: flow.Drop}
	case 1:
		return flow.Action{Kind: flow.ToKernel}
	case 2:
		queues := make([]uint16, 2+r.IntN(5))
		for i := range queues {
			queues[i] = uint16(r.IntN(10))
		}
		return flow.Spread(queues...)
	}
	return flow.Queue(uint16(r.IntN(10)))
}

// drawFrame draws a frame: near to one of the rules, built from headers that do not quite fit
// together, damaged or cut off, or long.
func drawFrame(r *rand.Rand, rules []flow.Rule, frags bool) []byte {
	var frame []byte
	switch k := r.IntN(10); {
	case k < 3 && len(rules) > 0:
		m := &rules[r.IntN(len(rules))].Match
		p, _ := flowtest.Meeting(r, m)
		if r.IntN(2) == 0 {
			p = flowtest.Missing(r, p, m)
		}
		frame = p.Frame()
	case k < 4:
		p := flowtest.Random(r)
		frame = p.Frame()
	default:
		frame = hostile(r, frags)
	}
	if r.IntN(4) == 0 {
		damage(r, &frame)
	}
	if limit := 3500; !frags && len(frame) > limit {
		frame = frame[:limit]
	}
	return frame
}

// hostile stacks headers whose lengths are mostly right.
func hostile(r *rand.Rand, long bool) []byte {
	off := func(n int) int { // mostly n
		switch r.IntN(12) {
		case 0:
			return n + 1
		case 1:
			return max(n-1, 0)
		case 2:
			return r.IntN(2 * (n + 1))
		}
		return n
	}
	src, dst := one(r, poolMACs), one(r, poolMACs)
	b := append(append([]byte{}, dst[:]...), src[:]...)
	for range one(r, []int{0, 0, 0, 1, 2, 3}) {
		b = binary.BigEndian.AppendUint16(b, one(r, []uint16{0x8100, 0x88a8, 0x9100}))
		b = binary.BigEndian.AppendUint16(b, one(r, []uint16{0, 1, 0xffff, 0x6001}))
	}
	l4, proto := layer4(r, off)
	switch r.IntN(8) {
	case 0:
		b = binary.BigEndian.AppendUint16(b, uint16(one(r, poolTypes)))
		return append(b, l4...)
	case 1, 2, 3:
		return v4(r, off, b, l4, proto)
	}
	return v6(r, off, b, l4, proto, long)
}

func layer4(r *rand.Rand, off func(int) int) (b []byte, proto byte) {
	payload := make([]byte, one(r, []int{0, 3, 4, 8, 40, 256}))
	for i := 0; i+4 <= len(payload); i += 4 {
		binary.BigEndian.PutUint32(payload[i:], one(r, poolWords))
	}
	if len(payload) > 6 && r.IntN(2) == 0 {
		payload[1] = one(r, []byte{0, 1, 2, 5})
		binary.BigEndian.PutUint16(payload[4:], one(r, []uint16{0, 7, 65535}))
	}
	proto = one(r, []byte{17, 17, 6, 6, 1, 58, 50, 99})
	b = binary.BigEndian.AppendUint16(b, one(r, poolPorts))
	b = binary.BigEndian.AppendUint16(b, one(r, poolPorts))
	switch proto {
	case 17:
		b = binary.BigEndian.AppendUint16(b, uint16(off(8+len(payload))))
		b = append(b, 0, 0)
	case 6:
		words := r.IntN(4)
		b = append(b, 0, 0, 0, 1, 0, 0, 0, 2, byte(off(5+words))<<4, 0x10, 1, 1, 0, 0, 0, 0)
		b = append(b, make([]byte, 4*words)...)
	}
	return append(b, payload...), proto
}

func v4(r *rand.Rand, off func(int) int, b, l4 []byte, proto byte) []byte {
	words := one(r, []int{0, 0, 0, 1, 10})
	frag := one(r, []uint16{0, 0, 0, 0x4000, 0x2000, 185, 0x2000 | 7, 0x1fff, 0x1000})
	b = append(b, 8, 0, 0x40|byte(off(5+words))&15, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(off(20+4*words+len(l4))))
	b = append(b, 0, 7)
	b = binary.BigEndian.AppendUint16(b, frag)
	b = append(b, 64, proto, 0, 0)
	for range 2 {
		a := netip.MustParseAddr(one(r, poolFour)).As4()
		b = append(b, a[:]...)
	}
	b = append(b, make([]byte, 4*words)...)
	b = append(b, l4...)
	return append(b, make([]byte, one(r, []int{0, 0, 6, 40}))...)
}

func v6(r *rand.Rand, off func(int) int, b, l4 []byte, proto byte, long bool) []byte {
	types := []byte{0, 43, 44, 51, 60, 135, 139, 140}
	n := one(r, []int{0, 0, 0, 1, 2, 3, 8, 9})
	chain := make([]byte, n)
	for i := range chain {
		chain[i] = one(r, types)
	}
	var ext []byte
	for i, t := range chain {
		next := proto
		if i+1 < n {
			next = chain[i+1]
		}
		switch t {
		case 44:
			ext = append(ext, next, 0)
			ext = binary.BigEndian.AppendUint16(ext, one(r, []uint16{0, 0, 1, 8, 9, 6, 0xfff8}))
			ext = append(ext, 0, 0, 0, 9)
		case 51:
			words := one(r, []int{3, 3, 4, 6})
			ext = append(ext, next, byte(off(words-2)), 0, 0)
			ext = append(ext, make([]byte, 4*words-4)...)
		default:
			units := one(r, []int{1, 1, 2, 5})
			if long && r.IntN(3) == 0 {
				units = one(r, []int{100, 256})
			}
			ext = append(ext, next, byte(off(units-1)), 1, byte(8*units-4))
			ext = append(ext, make([]byte, 8*units-4)...)
		}
	}
	first := proto
	if n > 0 {
		first = chain[0]
	}
	b = append(b, 0x86, 0xdd, one(r, []byte{0x60, 0x60, 0x60, 0x60, 0x60, 0x60, 0x60, 0x40}), 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(off(len(ext)+len(l4))))
	b = append(b, first, 64)
	for range 2 {
		a := netip.MustParseAddr(one(r, poolSix)).As16()
		b = append(b, a[:]...)
	}
	return append(append(append(b, ext...), l4...), make([]byte, one(r, []int{0, 0, 6, 40}))...)
}
