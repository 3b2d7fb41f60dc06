package rawqp

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/flow"
)

// ends are two ports of the stand-in's, a queue that sends on the first, and what arrives at the
// second.
type ends struct {
	t    testing.TB
	f    *stand
	a, b *Port
	tx   engine.TxQueue
	out  *burst.Burst
}

func newEnds(t testing.TB, script string, o Options, spec engine.PortSpec) *ends {
	f := onStand(t, "raw on; "+script)
	spec.Address = "fake1"
	e := &ends{t: t, f: f, a: f.port(t, engine.PortSpec{Address: "fake0", MTU: spec.MTU, Options: o}),
		b: f.port(t, spec), out: burst.NewSegmented(64, 1024)}
	t.Cleanup(e.out.Release)
	e.tx = e.sender(engine.TxSpec{Pools: []*mem.Pool{pool(t, 2048, 64)}})
	return e
}

func (e *ends) sender(spec engine.TxSpec) engine.TxQueue {
	q, err := e.a.AddTxQueue(spec)
	if err != nil {
		e.t.Fatal(err)
	}
	return q
}

func (e *ends) rx(spec engine.RxSpec) *rxQueue {
	e.t.Helper()
	if spec.Pools == nil {
		spec.Pools = []*mem.Pool{pool(e.t, 2048, 64)}
	}
	if spec.Depth == 0 {
		spec.Depth = 16
	}
	q, err := e.b.AddRxQueue(spec)
	if err != nil {
		e.t.Fatal(err)
	}
	return q.(*rxQueue)
}

// pool is packet memory, all of which is back when the test ends.
func pool(t testing.TB, size, n int) *mem.Pool {
	t.Helper()
	p, err := mem.NewPool(mem.PoolOptions{Name: t.Name(), SlotSize: size, Slots: n})
	if err != nil {
		t.Fatal(err)
	}
	f, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	f.pools = append(f.pools, p)
	return p
}

// send sends frames and waits until the device has done with them.
func (e *ends) send(frames ...[]byte) {
	e.t.Helper()
	for _, f := range frames {
		if n, err := e.tx.Alloc(e.out, 1, len(f)); n != 1 {
			e.t.Fatal(err)
		}
		for k, at := 0, 0; at < len(f); k++ {
			at += copy(e.out.Bytes(0, k), f[at:])
		}
		if err := e.tx.Send(e.out); err != nil {
			e.t.Fatal(err)
		}
	}
	if err := e.tx.Drain(e.t.Context()); err != nil {
		e.t.Fatal(err)
	}
}

// take is what has arrived at a queue.
func (e *ends) take(q *rxQueue) *burst.Burst {
	e.t.Helper()
	b := burst.NewSegmented(64, 1024)
	e.t.Cleanup(b.Release)
	for {
		n, err := q.TryRecv(b)
		if err != nil {
			e.t.Fatal(err)
		}
		if n == 0 {
			return b
		}
	}
}

// wants demands frames of a queue, in order.
func (e *ends) wants(q *rxQueue, frames ...[]byte) *burst.Burst {
	e.t.Helper()
	b := e.take(q)
	if b.Len() != len(frames) {
		e.t.Fatalf("%d frames came to queue %d, expected %d", b.Len(), q.ID(), len(frames))
	}
	for i, f := range frames {
		got := make([]byte, b.PacketLen(i))
		b.CopyTo(got, i)
		if !bytes.Equal(got, f) {
			e.t.Fatalf("frame %d is\n%x, expected\n%x", i, got, f)
		}
	}
	return b
}

func (e *ends) apply(changes ...flow.Change) {
	e.t.Helper()
	if _, err := e.b.Rules().Apply(changes...); err != nil {
		e.t.Fatal(err)
	}
}

func rule(t testing.TB, s string) flow.Rule {
	t.Helper()
	r, err := flow.ParseRule(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// udp is a frame of UDP over IPv4 with right checksums.
func udp(t testing.TB, dst uint16, payload int) []byte {
	t.Helper()
	return frame(t, packet.ProtoUDP, dst, payload)
}

func frame(t testing.TB, proto packet.Proto, dst uint16, payload int) []byte {
	t.Helper()
	head := 8
	if proto == packet.ProtoTCP {
		head = 20
	}
	n := 20 + head + payload
	f := append(bytes.Repeat([]byte{2}, 12), 8, 0)
	f = append(f, 0x45, 0, byte(n>>8), byte(n), 0, 0, 0x40, 0, 64, byte(proto), 0, 0, 10, 0, 0, 1, 10, 0, 0, 2)
	l4 := make([]byte, head+payload)
	l4[0], l4[1], l4[2], l4[3] = 9, 9, byte(dst>>8), byte(dst)
	if proto == packet.ProtoTCP {
		l4[12] = 0x50
	} else {
		l4[4], l4[5] = byte((head+payload)>>8), byte(head+payload)
	}
	for i := range payload {
		l4[head+i] = byte(i)
	}
	sum(f[24:26], f[14:34])
	at := map[packet.Proto]int{packet.ProtoUDP: 6, packet.ProtoTCP: 16}[proto]
	sum(l4[at:at+2], f[26:34], []byte{0, byte(proto), byte(len(l4) >> 8), byte(len(l4))}, l4)
	return append(f, l4...)
}

// sum writes an Internet checksum (RFC 1071) over parts of even length, but for the last.
func sum(to []byte, parts ...[]byte) {
	s := uint32(0)
	for _, p := range parts {
		for i, b := range p {
			s += uint32(b) << (8 * (1 - i%2))
		}
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	to[0], to[1] = byte(^s>>8), byte(^s)
}

// A range of ports becomes values under masks that match exactly its numbers.
func TestSplitRange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lo := rapid.Uint16().Draw(t, "lo")
		r := flow.Range{Lo: lo, Hi: rapid.Uint16Range(lo, 0xffff).Draw(t, "hi")}
		parts := split(r)
		if len(parts) > 30 {
			t.Fatalf("%v takes %d parts", r, len(parts))
		}
		for n := range 1 << 16 {
			hits := 0
			for _, p := range parts {
				if uint16(n)&p.mask == p.val {
					hits++
				}
			}
			if want := r.Contains(uint16(n)); hits > 1 || (hits == 1) != want {
				t.Fatalf("%d is matched %d times, by %v", n, hits, r)
			}
		}
	})
}

// An isolated port gets what its rules say, by rules of the card, and the kernel all else.
func TestIsolated(t *testing.T) {
	e := newEnds(t, "", Options{}, engine.PortSpec{Isolated: true})
	q, other := e.rx(engine.RxSpec{ID: engine.Queue(0)}), e.rx(engine.RxSpec{ID: engine.Queue(1)})
	e.send(udp(t, 5000, 40))
	e.apply(flow.Add(rule(t, "udp dst 5000-5010 ip src 10.0.0.0/8 -> queue 1")),
		flow.Add(rule(t, "tcp dst 80 -> drop")))
	var inside [][]byte
	for port := uint16(4998); port < 5014; port++ {
		f := udp(t, port, int(port-4990))
		if e.send(f); port >= 5000 && port <= 5010 {
			inside = append(inside, f)
		}
	}
	e.send(frame(t, packet.ProtoTCP, 80, 10))
	b := e.wants(other, inside...)
	for i := range inside {
		if b.Segment(i, 0).Region != other.Spec().Pools[0].Region() {
			t.Fatal("a frame was received into the memory of another queue")
		}
	}
	e.wants(q)
	if n := e.f.count(t, "raw_kernel"); n != 6 {
		t.Errorf("%d frames were left to the kernel, expected 6", n)
	}
	var s engine.PortStats
	if e.b.Stats(&s); s.Drops[engine.DropRule] != 1 || s.Drops.Total() != 1 {
		t.Errorf("drops: %v", &s.Drops)
	}
	for _, bad := range []string{"ip len 100 -> queue 1", "vlan untagged -> queue 0",
		"udp dst 1-65534 src 1-65534 -> queue 0"} {
		r, err := flow.ParseRule(bad)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.b.Rules().Apply(flow.Add(r)); err == nil {
			t.Errorf("%s: no error on a port that is isolated", bad)
		}
	}
	flex := rule(t, "udp dst 5 -> queue 1")
	flex.Match.Flex = []flow.Flex{{Value: 1, Mask: 0xffffffff}}
	if _, err := e.b.Rules().Apply(flow.Add(flex)); err == nil {
		t.Error("flex words: no error on a port that is isolated")
	}
	if n := len(e.b.Rules().List()); n != 2 {
		t.Errorf("%d rules", n)
	}
}

// What the card cannot match, this process does, and hands the frame over with the memory that it
// is in.
func TestHandOver(t *testing.T) {
	e := newEnds(t, "", Options{}, engine.PortSpec{})
	first, second := e.rx(engine.RxSpec{ID: engine.Queue(0)}), e.rx(engine.RxSpec{ID: engine.Queue(1)})
	e.apply(flow.Add(rule(t, "ip len 100 -> queue 1")), flow.Add(rule(t, "udp dst 7 -> queue 1")))
	by, far, rest := udp(t, 9, 72), udp(t, 7, 10), udp(t, 9, 73)
	e.send(by, far, rest)
	w := engine.NewWaker()
	if second.Arm(w) != true {
		t.Error("a queue for which there is something is not ready")
	}
	b := e.wants(second, by, far)
	if b.Segment(0, 0).Region != first.Spec().Pools[0].Region() ||
		b.Segment(1, 0).Region != second.Spec().Pools[0].Region() {
		t.Error("the first frame lies in the first queue's memory, the second one in the other's: that is not so")
	}
	e.wants(first, rest)
}

// The device wakes a queue that sleeps, and so does a queue that takes its frames off the device.
func TestSleep(t *testing.T) {
	e := newEnds(t, "", Options{}, engine.PortSpec{})
	first, second := e.rx(engine.RxSpec{ID: engine.Queue(0)}), e.rx(engine.RxSpec{ID: engine.Queue(1)})
	e.apply(flow.Add(rule(t, "ip len 100 -> queue 1")))
	for range 20 {
		a, b := engine.NewWaker(), engine.NewWaker()
		if first.Arm(a) || second.Arm(b) {
			t.Fatal("ready, and nothing has come")
		}
		f := udp(t, 9, 72)
		e.send(f)
		<-b.C()
		e.wants(second, f)
	}
}

// The owner that takes a frame of another queue off the device wakes that one's owner, also where
// the device's event was taken by then.
func TestHandOverWakes(t *testing.T) {
	e := newEnds(t, "", Options{}, engine.PortSpec{})
	first, second := e.rx(engine.RxSpec{ID: engine.Queue(0)}), e.rx(engine.RxSpec{ID: engine.Queue(1)})
	e.apply(flow.Add(rule(t, "ip len 100 -> queue 1")))
	w := sleeps(t, second)
	f := udp(t, 9, 72)
	e.send(f)
	e.wants(first)
	<-w.C()
	e.wants(second, f)
}

// Headers end behind those of TCP or UDP, wherever the card has cut.
func TestSplit(t *testing.T) {
	e := newEnds(t, "", Options{}, engine.PortSpec{})
	q := e.rx(engine.RxSpec{Pools: []*mem.Pool{pool(t, 128, 64), pool(t, 2048, 64)}})
	tagged := udp(t, 5, 300)
	tagged = append(append(append([]byte(nil), tagged[:12]...), 0x81, 0, 0, 7), tagged[12:]...)
	arp := append(append(bytes.Repeat([]byte{255}, 12), 8, 6), bytes.Repeat([]byte{3}, 46)...)
	for _, c := range []struct {
		name  string
		frame []byte
		head  int
	}{{"UDP", udp(t, 5, 300), 42}, {"TCP", frame(t, packet.ProtoTCP, 5, 1200), 54}, {"VLAN", tagged, 46},
		{"ARP", arp, 14}, {"empty", frame(t, packet.ProtoTCP, 5, 0), 54}} {
		e.send(c.frame)
		b := e.wants(q, c.frame)
		if got := len(b.Bytes(0, 0)); got != c.head || b.Role(0, 0) != burst.Header {
			t.Errorf("%s: a header of %d bytes, expected %d", c.name, got, c.head)
		}
		if k := b.Segments(0); k == 2 != (len(c.frame) > c.head) {
			t.Errorf("%s: %d segments", c.name, k)
		}
		b.Release()
	}
}

// Long frames take several slots, when they are sent and when they are received.
func TestJumbo(t *testing.T) {
	e := newEnds(t, "mode wire", Options{}, engine.PortSpec{MTU: 9000})
	q := e.rx(engine.RxSpec{Pools: []*mem.Pool{pool(t, 2048, 160)}})
	e.tx = e.sender(engine.TxSpec{Pools: []*mem.Pool{pool(t, 1024, 64)}})
	small, large := udp(t, 1, 100), udp(t, 1, 8972)
	e.send(small, large, small)
	if b := e.wants(q, small, large, small); b.Segments(0) != 1 || b.Segments(1) != 5 {
		t.Errorf("%d and %d segments", b.Segments(0), b.Segments(1))
	}
	other := e.rx(engine.RxSpec{ID: engine.Queue(1), Pools: []*mem.Pool{pool(t, 2048, 160)}})
	e.apply(flow.Add(rule(t, "ip len 9000 -> queue 1")))
	many := slices.Repeat([][]byte{large}, 16) // as many as the queue is deep
	for _, f := range many {
		e.send(f)
	}
	e.wants(q)
	e.wants(other, many...)
	if _, err := e.b.AddRxQueue(engine.RxSpec{ID: engine.Queue(3), Depth: 4,
		Pools: []*mem.Pool{pool(t, 64, 8)}}); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("slots that cannot hold a frame: %v", err)
	}
}

// The card writes checksums, and checks them.
func TestChecksums(t *testing.T) {
	e := newEnds(t, "", Options{Checksum: true}, engine.PortSpec{})
	q := e.rx(engine.RxSpec{})
	good := udp(t, 5, 77)
	bad := bytes.Clone(good)
	bad[24], bad[40] = bad[24]+1, bad[40]+1
	e.send(bad)
	if b := e.wants(q, good); b.Flags(0)&burst.ChecksumGood == 0 {
		t.Error("the checksums were not found good")
	}
	e2 := newEnds2(t, e)
	e2.send(bad)
	if b := e2.wants(q, bad); b.Flags(0)&burst.ChecksumGood != 0 {
		t.Error("bad checksums were found good")
	}
}

// newEnds2 is the same with a sender that writes no checksums.
func newEnds2(t testing.TB, e *ends) *ends {
	c := *e
	c.a = e.f.port(t, engine.PortSpec{Address: "fake0"})
	c.tx = c.sender(engine.TxSpec{Pools: []*mem.Pool{pool(t, 2048, 64)}})
	return &c
}

// Times are the device's where the first queue asks for them.
func TestTimes(t *testing.T) {
	for _, script := range []string{"", "absent wallclock"} {
		t.Run(script, func(t *testing.T) { times(t, script) })
	}
	e := newEnds(t, "absent ex", Options{}, engine.PortSpec{})
	if _, err := e.b.AddRxQueue(engine.RxSpec{HardwareTime: true, Depth: 4,
		Pools: []*mem.Pool{pool(t, 2048, 8)}}); !errors.Is(err, engine.ErrUnsupported) {
		t.Errorf("a device without times: %v", err)
	}
}

func times(t *testing.T, script string) {
	e := newEnds(t, script, Options{}, engine.PortSpec{})
	q := e.rx(engine.RxSpec{HardwareTime: true})
	f := udp(t, 5, 77)
	e.send(f)
	if b := e.wants(q, f); b.Flags(0)&burst.HardwareTime == 0 {
		t.Errorf("%q: the time is not the device's", script)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	e.rx(engine.RxSpec{ID: engine.Queue(0), Timestamps: true})
	if _, err := e.b.AddRxQueue(engine.RxSpec{ID: engine.Queue(1), Depth: 4, HardwareTime: true,
		Pools: []*mem.Pool{pool(t, 2048, 8)}}); !errors.Is(err, engine.ErrUnsupported) {
		t.Errorf("times of the card beside a queue without: %v", err)
	}
}
