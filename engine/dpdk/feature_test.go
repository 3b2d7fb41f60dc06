//go:build dpdk && invariants

package dpdk

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/afpacket"
	"github.com/penstock-io/penstock/engine/bounce"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/gpu/host"
	"github.com/penstock-io/penstock/internal/cdpdk"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/flow"
)

// recorded opens a port over net_ring that has features which no driver here has. What it sends it
// receives.
func recorded(t *testing.T, has cdpdk.Feature, queues int, o Options) *Port {
	t.Helper()
	cdpdk.Record(cdpdk.NoAction, has)
	t.Cleanup(func() { cdpdk.Refuse(-1, 0) })
	return openPort(t, engine.PortSpec{Address: fmt.Sprintf("dpdk://net_ring%d", names.Add(1)), RxQueues: queues,
		TxQueues: 1}, o)
}

func addRx(t *testing.T, p *Port, spec engine.RxSpec) engine.RxQueue {
	t.Helper()
	q, err := p.AddRxQueue(spec)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func addTx(t *testing.T, p *Port, spec engine.TxSpec) engine.TxQueue {
	t.Helper()
	q, err := p.AddTxQueue(spec)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// fill makes a frame of UDP or TCP of a whole packet's length, with payload that its first byte
// tells.
func fillFrame(t *testing.T, b *burst.Burst, i int, tcp bool, seed byte) {
	t.Helper()
	frame := make([]byte, b.PacketLen(i))
	src, dst := netip.MustParseAddrPort("192.0.2.1:9"), netip.MustParseAddrPort("192.0.2.2:7")
	head := packet.UDPFrame{SrcMAC: packet.MAC{2, 1}, DstMAC: packet.MAC{2, 2}, Src: src, Dst: dst}
	n := head.HeaderLen()
	for k := range frame[n:] {
		frame[n+k] = seed + byte(k)
	}
	if _, err := head.Fill(frame, len(frame)-n); err != nil {
		t.Fatal(err)
	}
	if tcp {
		frame[23] = byte(packet.ProtoTCP)
		clear(frame[38:54])
		frame[46] = 5 << 4
	}
	for k := range b.Segments(i) {
		frame = frame[copy(b.Bytes(i, k), frame):]
	}
}

// send sends packets of a length, each with its number as the seed, and returns their bytes.
func send(t *testing.T, q engine.TxQueue, n, length int, each func(b *burst.Burst, i int)) (sent [][]byte) {
	t.Helper()
	b := burst.NewSegmented(64, 128)
	if got, err := q.Alloc(b, n, length); err != nil || got != n {
		t.Fatalf("Alloc: %d packets, %v", got, err)
	}
	for i := range n {
		fillFrame(t, b, i, false, byte(i))
		if each != nil {
			each(b, i)
		}
		p := make([]byte, length)
		b.CopyTo(p, i)
		sent = append(sent, p)
	}
	if err := q.Send(b); err != nil {
		t.Fatal(err)
	}
	return sent
}

// receive has each packet looked at, until at least n have come.
func receive(t *testing.T, q engine.RxQueue, n int, look func(b *burst.Burst, i, k int)) {
	t.Helper()
	b := burst.NewSegmented(64, 128)
	got := 0
	for end := time.Now().Add(time.Minute); got < n && time.Now().Before(end); {
		if _, err := q.TryRecv(b); err != nil {
			t.Fatal(err)
		}
		for i := range b.Len() {
			look(b, i, got)
			got++
		}
		b.Release()
	}
	if got < n {
		var s engine.RxStats
		q.Stats(&s)
		t.Fatalf("%d packets of %d arrived: %+v", got, n, s)
	}
}

func notes(p *Port) string { return strings.Join(p.Capabilities().Notes, "\n") }

// TestSplit: the device splits headers off, and the data stays where it wrote it. Where it cannot,
// software does, and says why.
func TestSplit(t *testing.T) {
	for _, x := range []struct {
		name string
		has  cdpdk.Feature
		at   int
		why  string
	}{
		{"device", cdpdk.Splits, 42, ""},
		{"no place", cdpdk.Splits, 0, "software splits headers from data: the device splits at a fixed place"},
		{"no device", 0, 42, "copies each packet"},
	} {
		t.Run(x.name, func(t *testing.T) {
			heads, err := mem.NewPool(mem.PoolOptions{Name: "heads", SlotSize: 64, Slots: 1024})
			if err != nil {
				t.Fatal(err)
			}
			data, from := pool(t), pool(t)
			p := recorded(t, x.has, 1, Options{})
			rx := addRx(t, p, engine.RxSpec{Pools: []*mem.Pool{heads, data}, SplitAt: x.at, Depth: 64})
			tx := addTx(t, p, engine.TxSpec{Pools: []*mem.Pool{from}})
			if !strings.Contains(notes(p), x.why) {
				t.Errorf("%q is not said:\n%s", x.why, notes(p))
			}
			total := 0
			for _, length := range []int{1000, 60, 42, 1400} {
				for range 20 { // more than the rings hold
					sent := send(t, tx, 32, length, nil)
					receive(t, rx, 32, func(b *burst.Burst, i, k int) {
						want := sent[k]
						if !bytes.Equal(b.Bytes(i, 0), want[:42]) || b.Role(i, 0) != burst.Header {
							t.Fatalf("header of packet %d: %x, expected %x", k, b.Bytes(i, 0), want[:42])
						}
						if b.Segments(i) != min(2, length-41) || length > 42 &&
							(!bytes.Equal(b.Bytes(i, 1), want[42:]) || b.Role(i, 1) != burst.Payload) {
							t.Fatalf("packet %d of %d bytes in %d segments is not what was sent", k, length,
								b.Segments(i))
						}
						if x.why == "" && length > 42 && b.Segment(i, 1).Off%uint64(data.Stride()) != 0 {
							t.Fatal("the data is not where the device writes it")
						}
						total += length
					})
				}
			}
			want := uint64(total)
			if x.why == "" {
				want = 4 * 20 * 32 * 42
			}
			var s engine.RxStats
			if rx.Stats(&s); s.Copied != want {
				t.Errorf("%d bytes were copied, expected %d of %d", s.Copied, want, total)
			}
			if err := rx.Close(); err != nil {
				t.Error(err)
			}
			if n := heads.Stats().InUse; n != 0 {
				t.Errorf("%d slots of headers are missing", n)
			}
		})
	}
}

// TestTimes: times of the device are those of the machine, for packets that come and those that are
// to leave.
func TestTimes(t *testing.T) {
	into, from := pool(t), pool(t)
	p := recorded(t, cdpdk.Times, 1, Options{})
	if can := p.Capabilities(); !can.HardwareTime || can.SendAtIn != "device" {
		t.Fatalf("%+v", can)
	}
	// the port starts with its last receive queue
	tx := addTx(t, p, engine.TxSpec{Pools: []*mem.Pool{from}, SendAt: true})
	rx := addRx(t, p, engine.RxSpec{Pools: []*mem.Pool{into}, HardwareTime: true})
	const near = 5 * time.Millisecond // the machine is busy: a wrong scale or zero is off by hours
	for round := range 3 {
		at := time.Now().Add(20 * time.Millisecond) // less than the queue hands over ahead
		before := time.Now()
		send(t, tx, 8, 100, func(b *burst.Burst, i int) { b.SetTime(i, at.UnixNano()) })
		last := int64(0)
		receive(t, rx, 8, func(b *burst.Burst, i, k int) {
			ns, ok := b.Time(i)
			if ok = ok && b.Flags(i)&burst.HardwareTime != 0; !ok || ns < before.Add(-near).UnixNano() ||
				ns > time.Now().Add(near).UnixNano() || ns < last {
				t.Errorf("packet %d was received at %v (%v), after %v", k, time.Unix(0, ns), ok, before)
			}
			last = ns
		})
		r := cdpdk.Recorded()
		if d := time.Duration(p.clock.ns(r.Time) - at.UnixNano()); r.Timed != 8*(round+1) || d < -near || d > near {
			t.Errorf("%d packets have times, the last one differs by %v", r.Timed, d)
		}
		old := *p.clock.now.Load()
		old.good = 0 // the port compares the clocks again for the next packet with a time
		p.clock.now.Store(&old)
		if p.clock.ns(r.Time + 1); p.clock.now.Load() == &old {
			t.Error("the clocks were not compared again")
		}
	}
	var s engine.TxStats
	if tx.Stats(&s); s.TimedPackets != 24 || s.Drops.Total() != 0 {
		t.Errorf("%+v", s)
	}
	if r := cdpdk.Recorded(); r.Configured != 1 || r.RxOffloads&cdpdk.RxTime == 0 || r.TxOffloads&cdpdk.TxTime == 0 {
		t.Errorf("%+v", r)
	}

	// A queue that does not ask for times costs none; one that asks later gets them.
	p = recorded(t, cdpdk.Times, 1, Options{})
	addRx(t, p, engine.RxSpec{Pools: []*mem.Pool{into}})
	addTx(t, p, engine.TxSpec{Pools: []*mem.Pool{from}})
	if r := cdpdk.Recorded(); r.RxOffloads&cdpdk.RxTime != 0 || r.TxOffloads&cdpdk.TxTime != 0 {
		t.Errorf("%+v", r)
	}
	addTx(t, p, engine.TxSpec{Pools: []*mem.Pool{from}, SendAt: true})
	if r := cdpdk.Recorded(); r.TxOffloads&cdpdk.TxTime == 0 {
		t.Errorf("%+v", r)
	}

	p = recorded(t, 0, 1, Options{})
	if can := p.Capabilities(); can.HardwareTime || can.SendAtIn != "software" {
		t.Errorf("%+v", can)
	}
	if _, err := p.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{into}, HardwareTime: true}); err == nil {
		t.Error("a queue with times of a device that has none")
	}
}

// TestRate: the device keeps a rate that it can, and software the others.
func TestRate(t *testing.T) {
	into, from := pool(t), pool(t)
	for _, x := range []struct {
		name string
		has  cdpdk.Feature
		rate uint64
		mbps int
	}{{"device", cdpdk.Rates, 8e6, 8}, {"no such rate", cdpdk.Rates, 8_000_001, 0}, {"no device", 0, 8e6, 0}} {
		t.Run(x.name, func(t *testing.T) {
			p := recorded(t, x.has, 1, Options{})
			tx := addTx(t, p, engine.TxSpec{Pools: []*mem.Pool{from}, Rate: x.rate})
			rx := addRx(t, p, engine.RxSpec{Pools: []*mem.Pool{into}})
			start := time.Now()
			send(t, tx, 60, 1000, nil) // a bucket of this rate holds 6
			var s engine.TxStats
			if tx.Stats(&s); x.mbps > 0 && s.Packets != 60 {
				t.Errorf("%d packets of 60 were given to the device", s.Packets)
			}
			receive(t, rx, 60, func(*burst.Burst, int, int) {})
			slow := time.Since(start) >= 50*time.Millisecond // which software takes at least
			if got := cdpdk.Recorded().Mbps; got != x.mbps || !slow && x.mbps == 0 {
				t.Errorf("a limit of %d Mbit/s, slow: %v", got, slow)
			}
			if x.has == cdpdk.Rates && x.mbps > 0 {
				if !strings.Contains(notes(p), "transmit queue 0: the device keeps the rate of 8 Mbit/s") {
					t.Error(notes(p))
				}
				// Its number is free for another queue, without the limit.
				if err := tx.Close(); err != nil {
					t.Fatal(err)
				}
				if addTx(t, p, engine.TxSpec{Pools: []*mem.Pool{from}}); cdpdk.Recorded().Mbps != 0 {
					t.Error("the limit of a closed queue stays")
				}
			}
		})
	}
}

// TestCut: the device segments packets of TCP, software those of UDP and those that others see.
func TestCut(t *testing.T) {
	into, err := mem.NewPool(mem.PoolOptions{Name: "long", SlotSize: 32 << 10, Slots: 64})
	if err != nil {
		t.Fatal(err)
	}
	from := pool(t)
	p := recorded(t, cdpdk.Cuts, 1, Options{})
	if can := p.Capabilities(); can.TxSegmentation != "device" || can.TxChecksum != "device" ||
		!strings.Contains(notes(p), "software the other") {
		t.Fatalf("%+v", can)
	}
	rx := addRx(t, p, engine.RxSpec{Pools: []*mem.Pool{into}, Depth: 16})
	tx := addTx(t, p, engine.TxSpec{Pools: []*mem.Pool{from}})
	for _, x := range []struct {
		name         string
		tcp, shared  bool
		length, size int
		cuts         int
		packets      int
	}{
		{"TCP", true, false, 1254, 300, 1, 1},
		{"long TCP in many slots", true, false, 30054, 1200, 1, 1},
		{"TCP that is short enough", true, false, 254, 300, 0, 1},
		{"UDP", false, false, 1242, 300, 0, 4},
		{"TCP that is shared", true, true, 1254, 300, 0, 4},
	} {
		before := cdpdk.Recorded().Cuts
		b := burst.NewSegmented(64, 256)
		if n, err := tx.Alloc(b, 1, x.length); n != 1 || err != nil {
			t.Fatalf("%s: %d, %v", x.name, n, err)
		}
		fillFrame(t, b, 0, x.tcp, 0)
		out := b
		if x.shared {
			shares := burst.NewShares(64)
			out = burst.NewSegmented(4, 8)
			if !shares.Clone(b, out) {
				t.Fatal("no clone")
			}
			if n, err := tx.Forward(out); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		out.SetSegmentSize(0, x.size)
		if err := tx.Send(out); err != nil {
			t.Fatalf("%s: %v", x.name, err)
		}
		receive(t, rx, x.packets, func(*burst.Burst, int, int) {})
		b.Release()
		r := cdpdk.Recorded()
		if r.Cuts-before != x.cuts || x.cuts > 0 && (r.Cut != x.size || r.Headers != 54) {
			t.Errorf("%s: %d packets for the device to segment, of %d bytes behind %d", x.name, r.Cuts-before, r.Cut,
				r.Headers)
		}
	}
}

// TestHash: the key reaches the device, and its hash the packets; queues end and begin while the
// port runs.
func TestHash(t *testing.T) {
	key := bytes.Repeat([]byte{0x6d, 0x5a}, 20)
	into, from := pool(t), pool(t)
	p := recorded(t, cdpdk.Hashes|cdpdk.Queues, 3, Options{RSSKey: key})
	var rxs []engine.RxQueue
	for range 3 {
		rxs = append(rxs, addRx(t, p, engine.RxSpec{Pools: []*mem.Pool{into}, Depth: 64}))
	}
	tx := addTx(t, p, engine.TxSpec{Pools: []*mem.Pool{from}})
	if r := cdpdk.Recorded(); !bytes.Equal(r.RSSKey, key) || r.Spread != 3 || r.Configured != 1 {
		t.Errorf("%+v", r)
	}
	arrives := func() {
		t.Helper()
		send(t, tx, 8, 100, nil)
		receive(t, rxs[0], 8, func(b *burst.Burst, i, _ int) {
			if h, ok := b.Hash(i); !ok || h != 0x5eed {
				t.Errorf("hash %x, %v", h, ok)
			}
		})
	}
	arrives()
	if _, err := p.Rules().Apply(rule(t, "name some udp dst 99 ip dst 192.0.2.2 -> rss 0 2")); err != nil {
		t.Fatal(err)
	}
	if r := cdpdk.Recorded(); r.RuleKey != 40 || r.Rules != 1 {
		t.Errorf("%+v", r)
	}
	if _, err := p.Rules().Apply(flow.Delete(1)); err != nil {
		t.Fatal(err)
	}

	// The last queue ends and begins again, and the others do not notice; one between them does
	// not.
	if err := rxs[2].Close(); err != nil {
		t.Fatal(err)
	}
	if r := cdpdk.Recorded(); r.Spread != 2 || r.Configured != 1 {
		t.Errorf("without the last queue: %+v", r)
	}
	arrives()
	rxs[2] = addRx(t, p, engine.RxSpec{Pools: []*mem.Pool{into}, Depth: 64})
	if r := cdpdk.Recorded(); r.Spread != 3 || r.Configured != 1 {
		t.Errorf("with the last queue again: %+v", r)
	}
	arrives()
	if err := rxs[1].Close(); err != nil {
		t.Fatal(err)
	}
	if r := cdpdk.Recorded(); r.Spread != 2 || r.Configured != 2 {
		t.Errorf("without the middle queue: %+v", r)
	}
}

// TestSlow: a device that takes one packet of 32 gets all of them, in order.
func TestSlow(t *testing.T) {
	into := pool(t)
	p := recorded(t, cdpdk.Slow, 1, Options{})
	const packets = 2000
	if n := exchange(t, p, p, engine.RxSpec{Pools: []*mem.Pool{into}}, packets, 200); n != packets {
		t.Errorf("%d packets of %d arrived", n, packets)
	}
}

// TestLosses: what the device says that it has lost has a name, also when the port is closed.
func TestLosses(t *testing.T) {
	p := recorded(t, cdpdk.Losses, 1, Options{})
	addRx(t, p, engine.RxSpec{Pools: []*mem.Pool{pool(t)}})
	addTx(t, p, engine.TxSpec{Pools: []*mem.Pool{pool(t)}})
	for _, closed := range []bool{false, true} {
		if closed {
			p.Close()
		}
		var s engine.PortStats
		if p.Stats(&s); s.Drops[engine.DropNIC] != 3 || s.Drops[engine.DropBadFrame] != 5 || s.Drops.Total() != 8 ||
			s.Tx.Drops.Total() != 0 {
			t.Errorf("closed: %v: %+v", closed, s)
		}
	}
}

// TestLink: the link goes down, comes up, and the device is unplugged.
func TestLink(t *testing.T) {
	into := pool(t)
	p := recorded(t, 0, 1, Options{})
	addRx(t, p, engine.RxSpec{Pools: []*mem.Pool{into}})
	w := engine.NewWaker()
	want := func(what string, want engine.LinkState) {
		t.Helper()
		if got := p.LinkState(w); got != want {
			t.Errorf("%s: %+v, expected %+v", what, got, want)
		}
	}
	want("at first", engine.LinkState{Up: true})
	cdpdk.Becomes(cdpdk.Down)
	want("down", engine.LinkState{Changes: 1})
	cdpdk.Becomes(0)
	want("up", engine.LinkState{Up: true, Changes: 2})
	cdpdk.Becomes(cdpdk.Removed)
	want("unplugged", engine.LinkState{Gone: true, Changes: 3})
	cdpdk.Becomes(0)
	want("it stays away", engine.LinkState{Gone: true, Changes: 3})
}

// TestBounce: payload reaches memory of an accelerator that no driver here writes by one copy of
// the accelerator, behind headers that the device, or software, has split off.
func TestBounce(t *testing.T) {
	for _, has := range []cdpdk.Feature{0, cdpdk.Splits} {
		rt, err := host.Open(host.Options{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, err := rt.Devices()[0].Open()
		if err != nil {
			t.Fatal(err)
		}
		from, err := gpumem.New(ctx, gpumem.Options{Opaque: true, Streams: 1})
		if err != nil {
			t.Fatal(err)
		}
		heads, err := mem.NewPool(mem.PoolOptions{Name: "heads", SlotSize: 64, Slots: 1024})
		if err != nil {
			t.Fatal(err)
		}
		data, err := mem.NewPool(mem.PoolOptions{Name: "data", SlotSize: 2048, Slots: 256,
			Memory: mem.Options{Kind: mem.Device, Provider: from}})
		if err != nil {
			t.Fatal(err)
		}
		out := pool(t)
		p := recorded(t, has, 1, Options{})
		staged := bounce.New(p, bounce.Options{})
		rx, err := staged.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{heads, data}, SplitAt: 42, Depth: 64})
		if err != nil {
			t.Fatal(err)
		}
		tx := addTx(t, p, engine.TxSpec{Pools: []*mem.Pool{out}})
		for range 20 {
			sent := send(t, tx, 32, 1000, nil)
			receive(t, rx, 32, func(b *burst.Burst, i, k int) {
				at, err := gpumem.Span(b.Segment(i, 1))
				if err != nil || b.Bytes(i, 1) != nil {
					t.Fatalf("the payload is not in memory of the accelerator: %v", err)
				}
				stream, err := ctx.NewStream(gpu.StreamOptions{})
				if err != nil {
					t.Fatal(err)
				}
				got := make([]byte, 958)
				if err := errors.Join(stream.Read(got, at), stream.Close()); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(b.Bytes(i, 0), sent[k][:42]) || !bytes.Equal(got, sent[k][42:]) {
					t.Fatalf("packet %d is not what was sent", k)
				}
			})
		}
		want := uint64(20 * 32 * (1000 + 958)) // software splits by copying, the accelerator copies the payload
		if has == cdpdk.Splits {
			want = 20 * 32 * 1000
		}
		var s engine.RxStats
		if rx.Stats(&s); s.Copied != want {
			t.Errorf("%d bytes were copied, expected %d", s.Copied, want)
		}
		if err := errors.Join(staged.Close(), heads.Close(), data.Close(), from.Close(), ctx.Close(),
			rt.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestTap exchanges frames with the kernel by net_tap, each in several slots, and a packet of TCP
// that software segments.
func TestTap(t *testing.T) {
	h := netns.New(t, netns.Topology{}).Hosts[0]
	slots := func(name string, size int) *mem.Pool {
		x, err := mem.NewPool(mem.PoolOptions{Name: name, SlotSize: size, Slots: 1024})
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	// behind the 128 bytes that drivers leave free: 576, 704, 234 bytes
	into, from, kernel := slots("short", 704), slots("half", 800), slots("whole", 2048)
	var p, k engine.Port
	if err := h.Do(func() (err error) {
		p = openPort(t, engine.PortSpec{Address: fmt.Sprintf("dpdk://net_tap%d,iface=tap0", names.Add(1)), RxQueues: 1,
			TxQueues: 1}, Options{})
		if out, err := exec.Command("ip", "link", "set", "tap0", "up").CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		k, err = afpacket.New().OpenPort(t.Context(), engine.PortSpec{Address: "tap0"})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	if can := p.Capabilities(); !can.Chains || can.TxSegmentation != "software" {
		t.Fatalf("%+v", can)
	}
	rx, tx := addRx(t, p.(*Port), engine.RxSpec{Pools: []*mem.Pool{into}, Depth: 256}),
		addTx(t, p.(*Port), engine.TxSpec{Pools: []*mem.Pool{from}})
	kout, err := k.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{kernel}})
	if err != nil {
		t.Fatal(err)
	}
	kin, err := k.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{kernel}, Depth: 64})
	if err != nil {
		t.Fatal(err)
	}
	ours := func(b *burst.Burst, i int) bool { // the kernel's neighbour discovery is in between
		p := make([]byte, b.PacketLen(i))
		return b.CopyTo(p, i) > 0 && packet.MAC(p[6:12]) == packet.MAC{2, 1}
	}
	for _, x := range []struct {
		from engine.TxQueue
		to   engine.RxQueue
		segs int
	}{{kout, rx, 3}, {tx, kin, 1}} {
		for range 5 {
			sent := send(t, x.from, 4, 1514, nil)
			for k := 0; k < len(sent); {
				receive(t, x.to, 1, func(b *burst.Burst, i, _ int) {
					if !ours(b, i) {
						return
					}
					got := make([]byte, b.PacketLen(i))
					if b.CopyTo(got, i); !bytes.Equal(got, sent[k]) || b.Segments(i) != x.segs {
						t.Fatalf("packet %d of %d bytes in %d segments is not what was sent", k, len(got),
							b.Segments(i))
					}
					k++
				})
			}
		}
	}
	b := burst.NewSegmented(1, 16)
	if n, err := tx.Alloc(b, 1, 54+1200); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	fillFrame(t, b, 0, true, 0)
	b.SetSegmentSize(0, 300)
	if err := tx.Send(b); err != nil {
		t.Fatal(err)
	}
	for k := 0; k < 4; {
		receive(t, kin, 1, func(b *burst.Burst, i, _ int) {
			if !ours(b, i) {
				return
			}
			var l packet.Layers
			p := b.Bytes(i, 0)
			if why := packet.Parse(p, &l); why != packet.OK || int(l.End)-int(l.Payload) != 300 ||
				!packet.TCP(p[l.L4:l.End]).ChecksumOK(l.Src(p), l.Dst(p)) ||
				packet.TCP(p[l.L4:]).Seq() != uint32(300*k) {
				t.Fatalf("segment %d: %v, %+v", k, why, l)
			}
			k++
		})
	}
}
