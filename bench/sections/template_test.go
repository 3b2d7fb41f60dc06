package sections

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/penstock-io/penstock/bench/stream"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/flow"
)

func pool(t *testing.T, size int) *mem.Pool {
	t.Helper()
	p, err := mem.NewPool(mem.PoolOptions{Name: "test", SlotSize: size, Slots: 64})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// slots is a burst of one packet with a segment in each pool.
func slots(t *testing.T, roles []burst.Role, pools ...*mem.Pool) *burst.Burst {
	t.Helper()
	b := burst.NewSegmented(1, len(pools))
	for i, p := range pools {
		slot, err := p.Get()
		if err != nil {
			t.Fatal(err)
		}
		h := slot.Handle()
		g := burst.Segment{Handle: h, Off: p.Offset(h), Len: uint32(p.SlotSize()), Cap: uint32(p.SlotSize()),
			Role: roles[i]}
		if i == 0 {
			b.Builder().Add(burst.PoolSource(p), g)
		} else {
			b.Builder().AddSegment(burst.PoolSource(p), g)
		}
	}
	return b
}

func sender4() *Sender {
	return &Sender{Place: Place{Path: "bench_tx[0]"}, Batch: 1, Header: 64, Payload: 100,
		EthDst: packet.MAC{2, 0, 0, 0, 0, 2}, Src: netip.MustParseAddr("10.0.0.1"),
		Dst:      netip.MustParseAddr("10.0.0.2"),
		SrcPorts: flow.Range{Lo: 4096, Hi: 4098}, DstPorts: flow.Range{Lo: 5000, Hi: 5001}, Sequence: 4,
		Start: 1<<32 - 2, Number: 8}
}

var mac = packet.MAC{2, 0, 0, 0, 0, 1}

// Packets are what a receiver of DAQIRI expects: the headers with lengths over all that follows,
// both ranges of ports gone through packet by packet, the sequence number in its place and over its
// end, the payload otherwise as it was.
func TestTemplate(t *testing.T) {
	s := sender4()
	x, err := newTemplate(s, mac)
	if err != nil {
		t.Fatal(err)
	}
	p := pool(t, 164)
	for n := range uint64(8) {
		b := slots(t, []burst.Role{burst.Frame}, p)
		x.write(b, 0, n, &stream.Header{Run: 7, Stream: 3, Seq: uint32(n)})
		f := b.Bytes(0, 0)
		var l packet.Layers
		if why := packet.Parse(f, &l); why != packet.OK {
			t.Fatal(why)
		}
		u := packet.UDP(f[l.L4:])
		if len(f) != 164 || l.EtherType != packet.EtherTypeIPv4 || int(l.IPLen) != 150 ||
			u.SrcPort() != 4096+uint16(n%3) || u.DstPort() != 5000+uint16(n%2) || u.Length() != 130 {
			t.Fatalf("packet %d: %d bytes, IP %d, ports %d %d, UDP %d", n, len(f), l.IPLen, u.SrcPort(), u.DstPort(),
				u.Length())
		}
		if ip := packet.IPv4(f[14:]); packet.Checksum(ip[:20]) != 0 {
			t.Error("the checksum of the IP header is wrong")
		}
		if src := packet.Ethernet(f).Src(); src != mac {
			t.Error(src)
		}
		if got := binary.BigEndian.Uint32(f[64+4:]); got != uint32(1<<32-2+n) {
			t.Errorf("packet %d has the number %d", n, got)
		}
		var h stream.Header
		if h.Parse(f[64+8:]) != stream.Intact || h.Seq != uint32(n) || h.Run != 7 || h.Stream != 3 {
			t.Errorf("packet %d: %+v", n, h)
		}
		want := pattern(100)
		if string(f[64:68]) != string(want[:4]) ||
			string(f[64+8+stream.HeaderLen:]) != string(want[8+stream.HeaderLen:]) {
			t.Error("the payload is not the pattern")
		}
		b.Release()
	}
}

// With two regions headers and payload are in memory of their own; a chain of two parts of one
// packet is filled one after the other.
func TestTemplateSplit(t *testing.T) {
	s := sender4()
	x, err := newTemplate(s, mac)
	if err != nil {
		t.Fatal(err)
	}
	whole := pool(t, 164)
	b := slots(t, []burst.Role{burst.Frame}, whole)
	x.write(b, 0, 0, &stream.Header{})
	want := string(b.Bytes(0, 0))
	b.Release()
	heads := pool(t, 80)
	data := pool(t, 100)
	b = slots(t, []burst.Role{burst.Header, burst.Payload}, heads, data)
	x.write(b, 0, 0, &stream.Header{})
	if string(b.Bytes(0, 0)) != want[:64] || string(b.Bytes(0, 1)) != want[64:] {
		t.Error("headers and payload are not where they belong")
	}
	b.Release()
	first := pool(t, 96)
	second := pool(t, 68)
	b = slots(t, []burst.Role{burst.Frame, burst.Frame}, first, second)
	x.write(b, 0, 0, &stream.Header{})
	if string(b.Bytes(0, 0))+string(b.Bytes(0, 1)) != want {
		t.Error("the parts of a chain are not the packet")
	}
	b.Release()
}

// Over IPv6 each packet has the checksum of its own bytes.
func TestTemplateIPv6(t *testing.T) {
	s := sender4()
	s.Src, s.Dst = netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
	x, err := newTemplate(s, mac)
	if err != nil {
		t.Fatal(err)
	}
	p := pool(t, 164)
	for n := range uint64(3) {
		b := slots(t, []burst.Role{burst.Frame}, p)
		x.write(b, 0, n, &stream.Header{Seq: uint32(n)})
		f := b.Bytes(0, 0)
		var l packet.Layers
		if why := packet.Parse(f, &l); why != packet.OK || l.EtherType != packet.EtherTypeIPv6 {
			t.Fatal(why, l.EtherType)
		}
		u := packet.UDP(f[l.L4:])
		if got := u.Checksum(); got == 0 {
			t.Error("there is no checksum")
		}
		if sum := packet.PseudoSum(s.Src, s.Dst, packet.ProtoUDP, uint32(len(u))).Add(u).Checksum(); sum != 0 {
			t.Errorf("packet %d: the checksum is wrong by %04x", n, sum)
		}
		b.Release()
	}
}

// Tags and tunnels are those of the first rule that matches; what it makes is undone by the same on
// the way in.
func TestTemplateTransforms(t *testing.T) {
	for text, over := range map[string]int{
		"udp src 4096-4098 -> vlan-push 100, queue 0": 4,
		"any -> vxlan-encap eth-src 02:00:00:00:00:01 eth-dst 02:00:00:00:00:02 ip-src 192.0.2.1 ip-dst 192.0.2.2 " +
			"vni 7, queue 0": 50,
		"any -> gre-encap eth-src 02:00:00:00:00:01 eth-dst 02:00:00:00:00:02 ip-src 192.0.2.1 ip-dst 192.0.2.2, " +
			"queue 0": 24,
		"udp src 1 -> vlan-push 100, queue 0": 0,
	} {
		r, err := flow.ParseRule(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		r.Actions = r.Actions[:len(r.Actions)-1]
		s := sender4()
		s.rules = []flow.Rule{r}
		x, err := newTemplate(s, mac)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if len(x.heads) != 6 || x.head != 64+over || len(x.frame) != 164+over || x.number != 64+over+8 {
			t.Errorf("%s: %d bytes of headers, %d in all, number at %d", text, x.head, len(x.frame), x.number)
		}
		var l packet.Layers
		if why := packet.Parse(x.frame, &l); why != packet.OK {
			t.Errorf("%s: %v", text, why)
		}
	}
	// What would be of other lengths from packet to packet is refused.
	r, err := flow.ParseRule("udp src 4096 -> vlan-push 100, queue 0")
	if err != nil {
		t.Fatal(err)
	}
	s := sender4()
	r.Actions = r.Actions[:1]
	s.rules = []flow.Rule{r}
	if _, err := newTemplate(s, mac); err == nil {
		t.Error("packets of two lengths are taken")
	}
}
