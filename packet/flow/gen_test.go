package flow_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
	"pgregory.net/rapid"
)

// Rules of the property tests draw their values from small pools, so that they meet, cover and just
// miss each other.

func sometimes(t *rapid.T, percent int, what string) bool {
	return rapid.IntRange(0, 99).Draw(t, what) < percent
}

var edges = []uint16{0, 1, 2, 79, 80, 81, 255, 256, 4789, 32767, 32768, 65534, 65535}

func drawRange(t *rapid.T, what string) flow.Opt[flow.Range] {
	a, b := rapid.SampledFrom(edges).Draw(t, what), rapid.SampledFrom(edges).Draw(t, what)
	if sometimes(t, 40, what) {
		b = a
	}
	return flow.Some(flow.Range{Lo: min(a, b), Hi: max(a, b)})
}

func drawPrefix(t *rapid.T, four bool, what string) netip.Prefix {
	a := rapid.SampledFrom([]string{"0.0.0.0", "10.0.0.0", "10.0.0.1", "10.1.2.3", "10.1.2.255", "127.255.255.255",
		"128.0.0.0", "255.255.255.255"}).Draw(t, what)
	bits := rapid.SampledFrom([]int{0, 1, 7, 8, 15, 16, 17, 24, 31, 32}).Draw(t, what)
	if !four {
		a = rapid.SampledFrom([]string{"::", "::1", "::ffff:0:0:1", "2001:db8::", "2001:db8::1", "2001:db8:0:1::",
			"2001:db8:ffff::", "ff02::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"}).Draw(t, what)
		bits = rapid.SampledFrom([]int{0, 1, 16, 32, 33, 63, 64, 65, 127, 128}).Draw(t, what)
	}
	return netip.PrefixFrom(netip.MustParseAddr(a), bits).Masked()
}

var macs = []packet.MAC{{2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 2}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, {}}

// drawMatch draws a match that may contradict itself.
func drawMatch(t *rapid.T) flow.Match {
	var m flow.Match
	if sometimes(t, 15, "eth src?") {
		m.EthSrc = flow.Some(rapid.SampledFrom(macs).Draw(t, "eth src"))
	}
	if sometimes(t, 15, "eth dst?") {
		m.EthDst = flow.Some(rapid.SampledFrom(macs).Draw(t, "eth dst"))
	}
	if sometimes(t, 10, "eth type?") {
		m.EtherType = flow.Some(rapid.SampledFrom([]packet.EtherType{0x0800, 0x0806, 0x86dd, 0xaefe, 0x88f7, 0}).Draw(t,
			"eth type"))
	}
	if sometimes(t, 15, "vlan?") {
		m.VLAN = flow.Some(rapid.SampledFrom([]flow.VLAN{0, 1, 2, 4095, flow.Untagged}).Draw(t, "vlan"))
	}
	if sometimes(t, 10, "inner?") {
		m.InnerVLAN = flow.Some(rapid.SampledFrom([]flow.VLAN{0, 1, 2, 4095, flow.Untagged}).Draw(t, "inner"))
	}
	four := !sometimes(t, 30, "six")
	if sometimes(t, 35, "src?") {
		m.Src = drawPrefix(t, four, "src")
	}
	if sometimes(t, 35, "dst?") {
		m.Dst = drawPrefix(t, four, "dst")
	}
	if sometimes(t, 60, "proto?") {
		m.Proto = flow.Some(rapid.SampledFrom([]packet.Proto{17, 17, 17, 6, 6, 1, 132, 255}).Draw(t, "proto"))
	}
	if sometimes(t, 15, "len?") {
		m.Length = drawRange(t, "len")
	}
	if m.Proto.Set && (m.Proto.Value == 17 || m.Proto.Value == 6) {
		if sometimes(t, 40, "src port?") {
			m.SrcPort = drawRange(t, "src port")
		}
		if sometimes(t, 50, "dst port?") {
			m.DstPort = drawRange(t, "dst port")
		}
	}
	for n := rapid.SampledFrom([]int{0, 0, 0, 0, 0, 1, 1, 2, 4}).Draw(t, "flex"); n > 0; n-- {
		f := flow.Flex{
			Offset: rapid.SampledFrom([]uint16{0, 1, 4, 6, 28, 252}).Draw(t, "offset"),
			Mask: rapid.SampledFrom([]uint32{0xffffffff, 0xffff0000, 0xff, 0x80000000, 1, 0xf0f0f0f0}).Draw(t,
				"mask"),
		}
		f.Value = rapid.SampledFrom([]uint32{0, 1, 0xffffffff, 0x80000001, 0x12345678}).Draw(t, "value") & f.Mask
		m.Flex = append(m.Flex, f)
	}
	if sometimes(t, 10, "ecpri?") {
		m.ECPRI.Type = flow.Some(rapid.SampledFrom([]uint8{0, 1, 2, 5}).Draw(t, "ecpri type"))
		if sometimes(t, 50, "ecpri id?") {
			id := flow.Some(rapid.SampledFrom([]uint16{0, 7, 65535}).Draw(t, "ecpri id"))
			if m.ECPRI.Type.Value == 2 {
				m.ECPRI.RTCID = id
			} else {
				m.ECPRI.PCID = id
			}
		}
	}
	return m
}

func drawActions(t *rapid.T) []flow.Action {
	var list []flow.Action
	for n := rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "transformations"); n > 0; n-- {
		switch rapid.IntRange(0, 3).Draw(t, "transformation") {
		case 0:
			list = append(list, flow.Action{Kind: flow.PopVLAN})
		case 1:
			list = append(list, flow.Action{Kind: flow.PushVLAN, Tag: flow.Tag{
				ID:   rapid.Uint16Range(0, 4095).Draw(t, "id"),
				PCP:  rapid.Uint8Range(0, 7).Draw(t, "pcp"),
				DEI:  rapid.Bool().Draw(t, "dei"),
				TPID: rapid.SampledFrom([]packet.EtherType{0, 0x8100, 0x88a8}).Draw(t, "tpid")}})
		case 2:
			list = append(list, flow.Action{Kind: flow.Decap,
				Tunnel: flow.Tunnel{Type: flow.TunnelType(rapid.IntRange(1, 3).Draw(t, "decap"))}})
		case 3:
			list = append(list, flow.Action{Kind: flow.Encap, Tunnel: drawTunnel(t)})
		}
	}
	if len(list) > 0 || sometimes(t, 60, "queue?") {
		if sometimes(t, 30, "rss?") {
			return append(list, flow.Spread(rapid.SliceOfN(rapid.Uint16Range(0, 9), 2, 9).Draw(t, "queues")...))
		}
		return append(list, flow.Queue(rapid.Uint16().Draw(t, "queue")))
	}
	return append(list, flow.Action{Kind: rapid.SampledFrom([]flow.ActionKind{flow.Drop, flow.ToKernel}).Draw(t,
		"verdict")})
}

func drawTunnel(t *rapid.T) flow.Tunnel {
	x := flow.Tunnel{
		Type:   flow.TunnelType(rapid.IntRange(1, 3).Draw(t, "tunnel")),
		EthSrc: packet.MAC{2, 1, 2, 3, 4, 5},
		EthDst: packet.MAC{2, 1, 2, 3, 4, 6},
		Src:    netip.MustParseAddr("192.0.2.1"),
		Dst:    netip.MustParseAddr("192.0.2.2"),
		TTL:    rapid.Uint8().Draw(t, "ttl"),
		TOS:    rapid.Uint8().Draw(t, "tos"),
	}
	if sometimes(t, 30, "outer ipv6") {
		x.Src, x.Dst = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
	}
	switch x.Type {
	case flow.VXLAN:
		x.VNI = rapid.Uint32Range(0, 1<<24-1).Draw(t, "vni")
		x.SrcPort, x.DstPort = rapid.Uint16().Draw(t, "udp src"), rapid.Uint16().Draw(t, "udp dst")
	case flow.NVGRE:
		x.VNI = rapid.Uint32Range(0, 1<<24-1).Draw(t, "tni")
		x.FlowID = rapid.Uint8().Draw(t, "flow id")
	case flow.GRE:
		x.Protocol = rapid.SampledFrom([]packet.EtherType{0, 0x0800, 0x6558}).Draw(t, "gre proto")
	}
	return x
}

// drawRules draws up to most rules, each of which is valid by itself.
func drawRules(t *rapid.T, most int) []flow.Rule {
	n := rapid.IntRange(1, most).Draw(t, "rules")
	var rules []flow.Rule
	for i := range n {
		r := flow.Rule{
			Priority: rapid.SampledFrom([]int32{0, 0, 1, 2, -1, 1 << 30}).Draw(t, "priority"),
			Match:    drawMatch(t),
			Actions:  drawActions(t),
		}
		if sometimes(t, 50, "id?") {
			r.ID = uint32(i + 1)
		}
		if sometimes(t, 20, "mark?") {
			r.Mark = flow.Some(rapid.SampledFrom([]uint32{0, 1, 77, flow.MaxRuleID}).Draw(t, "mark"))
		}
		if sometimes(t, 30, "name?") {
			r.Name = fmt.Sprintf("%s%d", rapid.SampledFrom([]string{"a", "b c", "\"", "->", "ä", "x,y"}).Draw(t,
				"name"), i)
		}
		if flow.Validate([]flow.Rule{r}).Err() == nil {
			rules = append(rules, r)
		}
	}
	return rules
}

func drawRand(t *rapid.T) *rand.Rand { return rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1)) }
