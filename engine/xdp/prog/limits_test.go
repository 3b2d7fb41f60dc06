package prog

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/xsk"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
	"github.com/penstock-io/penstock/packet/flow/flowtest"
)

// FuzzProgram gives the program any frame, and asks it and flow.Classifier about it.
func FuzzProgram(f *testing.F) {
	rules := append(flowtest.Rules(5, 60), parseRules(f,
		"udp dst 5000-5005 ip src 10.0.0.0/8 -> rss 0 1 2", "ip src 2001:db8::/32 -> queue 4",
		"vlan 5 inner-vlan 6 eth dst 02:00:00:00:00:01 -> drop",
		"udp flex 3 0x01020304 -> queue 1", "ecpri type 0 pc_id 7 -> queue 2", "udp ecpri type 2 rtc_id 7 -> queue 3",
		"ip len 60-100 -> queue 5",
		"tcp src 80 ip dst 2001:db8::1 -> kernel", "eth type 0x0806 -> kernel", "ip proto 51 -> queue 6")...)
	for i := range rules {
		rules[i].ID = uint32(i + 1)
	}
	iso := flow.Isolation{Unmatched: flow.Deliver, Queue: 7}
	c, err := flow.Compile(rules)
	if err != nil {
		f.Fatal(err)
	}
	p := load1(f, Spec{Rules: rules, Isolation: iso, Metadata: true, Frags: true})
	r := flowtest.NewRand(4)
	for range 200 {
		f.Add(drawFrame(r, rules, true))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < packet.EthernetLen || len(frame) > 60_000 {
			return // no driver gives such a frame, and neither does BPF_PROG_TEST_RUN
		}
		check(t, p, c, iso, frame)
	})
}

func TestSpecs(t *testing.T) {
	good := Spec{Interface: 1, Queues: 1, Slots: 1}
	for _, c := range []struct {
		change func(s *Spec)
		want   error
		text   string
	}{
		{func(s *Spec) { s.Interface = 0 }, ErrSpec, "interface 0"},
		{func(s *Spec) { s.Queues = 0 }, ErrSpec, "0 NIC queues"},
		{func(s *Spec) { s.Slots = MaxSlots + 1 }, ErrSpec, "at most 4096 slots"},
		{func(s *Spec) { s.Queues, s.Slots = 1024, 2048 }, ErrSpec, "1048576 sockets"},
		{func(s *Spec) { s.Isolation = flow.Isolation{Unmatched: 9} }, ErrSpec, "isolation"},
		{func(s *Spec) { s.Isolation = flow.Isolation{Queue: 1} }, ErrSpec, "isolation"},
		{func(s *Spec) { s.Rules = flowtest.Rules(1, MaxRules+1) }, ErrTooLarge, "1025 rules: expected at most 1024"},
		{func(s *Spec) { s.Rules = make([]flow.Rule, 1) }, nil, "actions"},
		{func(s *Spec) { s.Rules = parseRules(t, "udp -> vlan-push 5, queue 0") }, nil, "XDP program: cannot do vlan-push"},
		{func(s *Spec) { s.Rules = words(600) }, ErrTooLarge, "flex words"},
	} {
		s := good
		c.change(&s)
		p, err := Load(s)
		if err == nil {
			p.Close()
		}
		var problems flow.Problems
		if err == nil || c.want != nil && !errors.Is(err, c.want) || c.want == nil && !errors.As(err, &problems) ||
			!strings.Contains(err.Error(), c.text) {
			t.Errorf("%v: expected %q in it", err, c.text)
		}
	}
	p := load1(t, good)
	for _, k := range [][2]int{{-1, 0}, {1, 0}, {0, -1}, {0, 1}} {
		if err := p.Set(k[0], k[1], 0); !errors.Is(err, ErrSpec) {
			t.Errorf("a socket at %v: %v", k, err)
		}
		if err := p.Unset(k[0], k[1]); !errors.Is(err, ErrSpec) {
			t.Errorf("no socket at %v: %v", k, err)
		}
	}
	if err := p.Set(0, 0, 0); err == nil || errors.Is(err, ErrSpec) {
		t.Errorf("a descriptor that is no AF_XDP socket: %v", err)
	}
	if err := p.Unset(0, 0); err != nil {
		t.Errorf("to take away what is not there: %v", err)
	}
}

// words are rules that look at four words of the payload each, all at different places and under
// odd masks.
func words(n int) (rules []flow.Rule) {
	for i := range n {
		r := flow.Rule{Match: flow.Match{Proto: flow.Some(packet.ProtoUDP)},
			Actions: []flow.Action{flow.Queue(uint16(i % 8))}}
		for k := range 4 {
			mask := uint32(0x01010101) << (i % 8)
			r.Match.Flex = append(r.Match.Flex, flow.Flex{Offset: uint16(i%70 + 60*k), Mask: mask,
				Value: mask & (uint32(i) * 0x9e3779b9)})
		}
		rules = append(rules, r)
	}
	return rules
}

// TestLarge: sets at the limit load and agree with flow.Classifier.
func TestLarge(t *testing.T) {
	prefixes := func(n int) (rules []flow.Rule) {
		for i := range n {
			a := netip.AddrFrom16([16]byte{0x20, 1, byte(i >> 8), byte(i), 14: byte(i * 7), 15: byte(i)})
			r := flow.Rule{Match: flow.Match{Dst: netip.PrefixFrom(a, 32+i%97).Masked(),
				Proto: flow.Some(packet.ProtoTCP)}, Actions: []flow.Action{flow.Queue(uint16(i % 8))}}
			r.Match.SrcPort = flow.Some(flow.Range{Lo: uint16(i), Hi: uint16(i + 1000)})
			rules = append(rules, r)
		}
		return rules
	}
	for name, rules := range map[string][]flow.Rule{"mix": flowtest.Rules(9, MaxRules), "prefixes": prefixes(MaxRules),
		"words": words(60)} {
		t.Run(name, func(t *testing.T) {
			c, err := flow.Compile(rules)
			if err != nil {
				t.Fatal(err)
			}
			p := load1(t, Spec{Rules: rules, Metadata: true, Frags: true})
			r := flowtest.NewRand(1)
			hits := 0
			for range 3000 {
				if d, _, _ := check(t, p, c, flow.Isolation{}, drawFrame(r, rules, true)); d.Rule >= 0 {
					hits++
				}
			}
			if hits < 100 {
				t.Errorf("only %d frames met a rule", hits)
			}
			t.Logf("%d instructions, %d hits", p.Info().Instructions, hits)
		})
	}
}

// TestEdges: frames at the edge of what packet.Parse takes, which chance seldom makes.
func TestEdges(t *testing.T) {
	rules := parseRules(t, "ip len 65535 -> queue 2", "ip len 40-41 -> drop", "ip len 45-47 -> drop",
		"ip len 65534 -> drop", "udp dst 5000 -> rss 0 1 2 3 4 5 6 7",
		"tcp dst 5000 -> queue 1", "ip proto 0 -> queue 3", "ip proto 44 -> queue 4", "ip proto 17 -> queue 5")
	c, err := flow.Compile(rules)
	if err != nil {
		t.Fatal(err)
	}
	p := load1(t, Spec{Rules: rules, Metadata: true, Frags: true})
	src, dst := parse("2001:db8::1").As16(), parse("2001:db8::2").As16()
	six := func(first byte, rest ...byte) []byte {
		b := append([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60, 0, 0, 0}, byte(len(rest)>>8),
			byte(len(rest)), first, 64)
		return append(append(append(b, src[:]...), dst[:]...), rest...)
	}
	datagram := func(length, payload int) []byte {
		return append([]byte{0x12, 0x34, 5000 >> 8, 5000 & 255, byte(length >> 8), byte(length), 0, 0},
			make([]byte, payload)...)
	}
	segment := func(words, length int) []byte {
		b := append([]byte{0x12, 0x34, 5000 >> 8, 5000 & 255}, make([]byte, 60)...)
		b[12] = byte(words << 4)
		return b[:length]
	}
	fragment := func(next byte, at uint16) []byte { return []byte{next, 0, byte(at >> 8), byte(at), 0, 0, 0, 9} }
	var frames [][]byte
	for _, n := range []int{0, 6, 7, 8, 9, 100, 101, 65535} {
		frames = append(frames, six(17, datagram(n, 92)...))
		for _, at := range []uint16{0, 1, 2, 6, 7, 8, 9} {
			frames = append(frames, six(44, append(fragment(17, at), datagram(n, 92)...)...),
				six(44, append(fragment(44, 1), append(fragment(17, at), datagram(n, 92)...)...)...))
		}
	}
	for _, words := range []int{0, 4, 5, 6, 15} {
		for _, n := range []int{0, 4, 15, 16, 19, 20, 21, 23, 24, 59, 60, 64} {
			frames = append(frames, six(6, segment(words, n)...))
		}
	}
	for n := range 12 { // headers in a row, of 8 bytes each
		var chain []byte
		for k := range n {
			next := byte(60)
			if k == n-1 {
				next = 17
			}
			chain = append(chain, next, 0, 1, 4, 0, 0, 0, 0)
		}
		first := byte(60)
		if n == 0 {
			first = 17
		}
		frames = append(frames, six(first, append(chain, datagram(20, 12)...)...))
	}
	for _, n := range []int{65485, 65486, 65494, 65495, 65496, 65527} { // longer than fits into a field of 16 bits
		frames = append(frames, six(17, datagram(8+n, n)...))
	}
	long := 0
	for _, f := range frames {
		if len(f) > 65535+packet.EthernetLen {
			long++
		}
		check(t, p, c, flow.Isolation{}, f)
	}
	if long == 0 {
		t.Error("no frame is longer than 65,535 bytes")
	}
}

// TestEveryTruncation: a frame that ends anywhere, or has an odd byte anywhere in its headers, is
// what flow.Classifier says of it.
func TestEveryTruncation(t *testing.T) {
	rules := parseRules(t, "udp dst 5000 -> queue 1", "tcp dst 80 -> queue 2", "vlan 5 -> queue 3",
		"ip src 2001:db8::/32 -> queue 4", "eth type 0xaefe -> queue 5", "udp flex 0 0x01020304 -> queue 6",
		"ip src 10.0.0.0/8 -> queue 7")
	iso := flow.Isolation{Unmatched: flow.Deliver}
	c, err := flow.Compile(rules)
	if err != nil {
		t.Fatal(err)
	}
	p := load1(t, Spec{Rules: rules, Isolation: iso, Metadata: true, Frags: true})
	mac := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}
	join := func(parts ...[]byte) (out []byte) {
		for _, x := range parts {
			out = append(out, x...)
		}
		return out
	}
	tag := func(typ uint16, id byte) []byte { return []byte{byte(typ >> 8), byte(typ), 0, id} }
	datagram := []byte{0x12, 0x34, 5000 >> 8, 5000 & 255, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8}
	segment := join([]byte{0x12, 0x34, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x70, 0x10, 1, 1, 0, 0, 0, 0}, make([]byte, 12))
	four := func(proto byte, frag uint16, options int, rest []byte) []byte {
		n := 20 + options + len(rest)
		return join([]byte{8, 0, 0x40 | byte(5+options/4), 0, byte(n >> 8), byte(n), 0, 7, byte(frag >> 8), byte(frag),
			64, proto, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2}, make([]byte, options), rest)
	}
	six := func(first byte, rest []byte) []byte {
		src, dst := netip.MustParseAddr("2001:db8::1").As16(), netip.MustParseAddr("2001:db8::2").As16()
		return join([]byte{0x86, 0xdd, 0x60, 0, 0, 0, byte(len(rest) >> 8), byte(len(rest)), first, 64}, src[:], dst[:],
			rest)
	}
	option := func(next byte) []byte { return []byte{next, 0, 1, 4, 0, 0, 0, 0} }
	fragment := func(next byte) []byte { return []byte{next, 0, 0, 1, 0, 0, 0, 9} }
	for i, frame := range [][]byte{
		join(mac, four(17, 0, 0, datagram)),
		join(mac, four(6, 0x2000, 40, segment)),
		join(mac, tag(0x8100, 5), four(17, 0, 4, datagram)),
		// more tags than the parser looks behind
		join(mac, tag(0x88a8, 5), tag(0x8100, 6), tag(0x8100, 7), six(17, datagram)),
		join(mac, tag(0x9100, 5), tag(0x8100, 5), six(6, segment)),
		join(mac, six(0, join(option(60), option(43), option(44), fragment(60), option(17), datagram))),
		// authentication, with words of four bytes
		join(mac, six(51, join([]byte{17, 4, 0, 0}, make([]byte, 20), datagram))),
		join(mac, []byte{0xae, 0xfe, 0x10, 2, 0, 8, 0, 7, 0, 0, 0, 0, 0, 0}),
	} {
		for n := packet.EthernetLen; n <= len(frame); n++ {
			check(t, p, c, iso, frame[:n])
		}
		for at := 12; at < len(frame); at++ {
			for _, x := range []byte{0, 1, 0x0f, 0x40, 0x7f, 0x80, 0xff} {
				odd := slices.Clone(frame)
				if odd[at] == x {
					continue
				}
				odd[at] = x
				check(t, p, c, iso, odd)
			}
		}
		// Shorter than an Ethernet header is nothing that a device gives to a program; nor does the
		// kernel here.
		for n := range packet.EthernetLen {
			if _, err := p.now.program.Run(&ebpf.RunOptions{Data: frame[:n], Repeat: 1}); err == nil {
				t.Errorf("frame %d: the kernel runs programs on %d bytes: the program is to be tested on them", i, n)
			}
		}
	}
	var n Counts
	if err := p.Counters(&n); err != nil || n.Faults.Packets != 0 {
		t.Errorf("%+v, %v", n, err)
	}
}

// TestMeta: what is in front of a frame is read once.
func TestMeta(t *testing.T) {
	if _, ok := TakeMeta(make([]byte, MetaSize-1)); ok {
		t.Error("a Meta in too few bytes")
	}
	b := make([]byte, 100)
	if m, ok := TakeMeta(b); ok || m != (Meta{}) {
		t.Errorf("a Meta in zeros: %+v", m)
	}
	p := load1(t, Spec{Rules: parseRules(t, "udp -> queue 5"), Metadata: true})
	a := run(t, p, udp(1, 2))
	if !a.has || a.meta != (Meta{Rule: 1, Queue: 5}) {
		t.Fatalf("%v", a)
	}
	at := b[len(b)-MetaSize:]
	binary.NativeEndian.PutUint32(at[metaMagicAt:], metaMagic)
	binary.NativeEndian.PutUint32(at[metaRuleAt:], 77)
	binary.NativeEndian.PutUint32(at[metaHashAt:], 0xfedcba98)
	binary.NativeEndian.PutUint16(at[metaQueueAt:], 9)
	binary.NativeEndian.PutUint16(at[metaFlagsAt:], metaHash|metaTime)
	binary.NativeEndian.PutUint64(at[metaTimeAt:], 1<<60)
	saved := append([]byte(nil), b...)
	if m, ok := TakeMeta(b); !ok || m != (Meta{Rule: 77, Queue: 9, Hash: 0xfedcba98, Time: 1 << 60, HasHash: true,
		HasTime: true}) {
		t.Errorf("%v %+v", ok, m)
	}
	if _, ok := TakeMeta(b); ok {
		t.Error("a Meta is there twice")
	}
	if n := testing.AllocsPerRun(100, func() { copy(b, saved); TakeMeta(b) }); n != 0 {
		t.Errorf("TakeMeta allocates %v times", n)
	}
}

// TestSockets: a socket that is taken away gets nothing more, and each NIC queue has its own.
func TestSockets(t *testing.T) {
	c := lay(t, netns.LinkSpec{})
	c.load(Spec{Queues: 2, Slots: 4, Metadata: true, Isolation: flow.Isolation{Unmatched: flow.Deliver, Queue: 2}},
		Native)
	c.open(2)
	var sent uint64
	many := func() Counts {
		for range 10 {
			c.send(udp(1, 20))
			sent++
		}
		return c.await(sent)
	}
	if n := many(); n.Redirected.Packets != 10 || c.n != 10 || n.Unmatched.Packets != 10 {
		t.Errorf("with a socket: %d, %+v", c.n, n)
	}
	if err := c.p.Unset(0, 2); err != nil {
		t.Fatal(err)
	}
	if n := many(); n.NoSocket.Packets != 10 || c.n != 10 {
		t.Errorf("without the socket: %d, %+v", c.n, n)
	}
	if err := c.p.Set(1, 2, c.socks[2].FD()); err != nil { // at another NIC queue than where it is bound
		t.Fatal(err)
	}
	if n := many(); n.NoSocket.Packets != 20 || c.n != 10 {
		t.Errorf("a socket at another queue: %d, %+v", c.n, n)
	}
	if err := c.p.Set(0, 2, c.socks[2].FD()); err != nil {
		t.Fatal(err)
	}
	if n := many(); n.Redirected.Packets != 20 || c.n != 20 {
		t.Errorf("with the socket again: %d, %+v", c.n, n)
	}
}

// TestUncounted: without rules only what finds no socket is counted, and everything else arrives at
// the socket of its NIC queue and logical queue; from the first rule on all is counted.
func TestUncounted(t *testing.T) {
	all := flow.Isolation{Unmatched: flow.Deliver, Queue: 2}
	for _, frags := range []bool{false, true} {
		c := lay(t, netns.LinkSpec{})
		c.load(Spec{Queues: 1, Slots: 5, Metadata: true, Sparse: true, Uncounted: true, Frags: frags, Isolation: all},
			Native)
		c.open(1, 2)
		slots := map[int]int{}
		told := 0
		c.took = func(slot int, _ Meta, has bool, _ []byte) {
			slots[slot]++
			if has {
				told++
			}
		}
		many := func(port uint16, lost uint64) Counts { // lost: since the beginning
			t.Helper()
			want := c.n + 10 - int(lost-c.counts().NoSocket.Packets)
			for range 10 {
				c.send(udp(port, 20))
			}
			await(t, "the packets", func() bool { c.take(); return c.n == want && c.counts().NoSocket.Packets == lost })
			return c.counts()
		}
		if n := many(1, 0); n.ends() != 0 || n.Unmatched.Packets != 0 || slots[2] != 10 || told != 0 {
			t.Errorf("%v, %d told, %+v", slots, told, n)
		}
		if err := c.p.Unset(0, 2); err != nil {
			t.Fatal(err)
		}
		if n := many(1, 10); n.ends() != 10 || n.NoSocket.Bytes != 10*uint64(len(udp(1, 20))) || slots[1] != 0 {
			t.Errorf("without a socket: %v, %+v", slots, n)
		}
		if err := c.p.Set(0, 2, c.socks[2].FD()); err != nil {
			t.Fatal(err)
		}
		if err := c.p.Apply(parseRules(t, "udp dst 5000 -> queue 1"), all); err != nil {
			t.Fatal(err)
		}
		many(1, 10)
		if n := many(5000, 10); n.Redirected.Packets != 20 || n.Unmatched.Packets != 10 || n.Rules[0].Packets != 10 ||
			slots[1] != 10 || slots[2] != 20 || told != 20 {
			t.Errorf("with a rule: %v, %d told, %+v", slots, told, n)
		}
		// Something may be left in front of packets: the program goes on to tell.
		if err := c.p.Apply(nil, all); err != nil {
			t.Fatal(err)
		}
		if n := many(5000, 10); n.Redirected.Packets != 30 || slots[2] != 30 || told != 30 {
			t.Errorf("without rules again: %v, %d told, %+v", slots, told, n)
		}
	}
	// A logical queue that cannot have a socket, and other ends than a socket, are no matter of the
	// short program.
	for _, i := range []flow.Isolation{{Unmatched: flow.Deliver, Queue: 5}, {Unmatched: flow.Discard}, {}} {
		p := load1(t, Spec{Queues: 2, Slots: 5, Metadata: true, Sparse: true, Uncounted: true, Isolation: i})
		run(t, p, udp(1, 20))
		var n Counts
		if err := p.Counters(&n); err != nil {
			t.Fatal(err)
		}
		if n.ends() != 1 || n.Unmatched.Packets != 1 {
			t.Errorf("%+v: %+v", i, n)
		}
	}
}

func ExampleLoad() {
	rules := []flow.Rule{{ID: 1, Match: flow.Match{Proto: flow.Some(packet.ProtoUDP),
		DstPort: flow.Some(flow.One(5000))}, Actions: []flow.Action{flow.Queue(2)}}}
	_, err := Load(Spec{Interface: 0, Queues: 1, Slots: 4, Rules: rules})
	fmt.Println(err)
	// Output: prog: bad specification: interface 0: expected the index of an interface, as net.InterfaceByName gives it
}

// TestQueues: a packet goes to the socket of the NIC queue that it came by.
func TestQueues(t *testing.T) {
	c := lay(t, netns.LinkSpec{Queues: 2})
	c.load(Spec{Queues: 2, Slots: 3, Metadata: true, Isolation: flow.Isolation{Unmatched: flow.Deliver, Queue: 1}},
		Native)
	c.open(1) // of NIC queue 0
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var q *xsk.Queue
	var other *xsk.Socket
	c.do(1, func() (err error) {
		if q, err = c.umem.OpenQueue(ctx, xsk.QueueConfig{Interface: c.index[1], Queue: 1, NeedWakeup: true,
			FillSize: 256, CompletionSize: 64}); err != nil {
			return err
		}
		t.Cleanup(func() { q.Close() })
		if other, err = q.OpenSocket(xsk.SocketConfig{RxSize: 256}); err != nil {
			return err
		}
		t.Cleanup(func() { other.Close() })
		return c.p.Set(1, 1, other.FD())
	})
	addrs := make([]uint64, 256)
	for i := range addrs {
		addrs[i] = uint64((3000 + i) * chunkSize)
	}
	q.Fill().Put(addrs)
	const flows = 64 // the kernel spreads them over the queues
	for k := range flows {
		c.do(0, func() error { return dial(k) })
	}
	var n Counts
	await(t, "the packets", func() bool {
		c.take()
		n = c.counts()
		return n.ends() >= flows && c.n+other.Rx().Ready() >= int(n.Redirected.Packets)
	})
	if second := other.Rx().Ready(); n.NoSocket.Packets != 0 || c.n == 0 || second == 0 ||
		c.n+second != int(n.Redirected.Packets) {
		t.Errorf("%d by queue 0, %d by queue 1: %+v", c.n, second, n)
	}
}
