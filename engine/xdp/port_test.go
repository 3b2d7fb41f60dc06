package xdp

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// Two ports that share a Memory forward from one to the other without a copy, and every slot comes
// back.
func TestSharedMemory(t *testing.T) {
	// host 1 forwards between eth0 and eth1, whose other ends host 0 has.
	n := netns.New(t, netns.Topology{Rails: 2, Neighbours: true})
	r, err := mem.Alloc(mem.Options{Name: "shared", Size: 2 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	pools := []*mem.Pool{carve(t, r, 0, 2048, 512), carve(t, r, 1<<20, 2048, 512)}
	m, err := NewMemory(MemoryOptions{Region: r})
	if err != nil {
		t.Fatal(err)
	}
	var in, out [2]*Port
	for i, dev := range []string{"eth0", "eth1"} {
		in[i] = open(t, n.Hosts[1], engine.PortSpec{Address: dev, Options: Options{Memory: m}})
		out[i] = open(t, n.Hosts[0], engine.PortSpec{Address: dev})
	}
	if err := m.Close(); err != nil { // the ports keep it
		t.Fatal(err)
	}
	rx, tx := addRx(t, in[0], engine.RxSpec{Depth: 256, Pools: pools[:1]}),
		addTx(t, in[1], engine.TxSpec{Pools: pools[1:]})
	mine := newPool(t, 2048, 1024)
	first, last := addTx(t, out[0], engine.TxSpec{Pools: []*mem.Pool{mine}}),
		addRx(t, out[1], engine.RxSpec{Pools: []*mem.Pool{mine}})
	b := burst.New(64)
	const rounds, each = 200, 16
	for i := range rounds {
		var want [][]byte
		for k := range each {
			want = append(want, udp(t, 7, 60+i+k, uint32(i*each+k)))
		}
		send(t, first, want...)
		forwarded := 0
		until(t, "packets to forward", func() bool {
			k, err := rx.TryRecv(b)
			if err != nil {
				t.Fatal(err)
			}
			if k > 0 {
				if got, err := tx.Forward(b); got != k || err != nil {
					t.Fatalf("Forward of %d: %d, %v", k, got, err)
				}
				if err := tx.Send(b); err != nil {
					t.Fatal(err)
				}
			}
			forwarded += k
			return forwarded == each
		})
		for k, f := range receive(t, last, each, nil) {
			if !bytes.Equal(f, want[k]) {
				t.Fatalf("packet %d of round %d is not the one that was sent", k, i)
			}
		}
	}
	if err := tx.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	var rs engine.RxStats
	var ts engine.TxStats
	rx.Stats(&rs)
	tx.Stats(&ts)
	if rs.Copied != 0 || ts.Copied != 0 || ts.Packets != rounds*each || ts.Forwarded != rounds*each ||
		rs.Drops.Total()+ts.Drops.Total() != 0 {
		t.Errorf("%+v\n%+v", rs, ts)
	}
	for _, p := range in {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := m.hold(); !errors.Is(err, engine.ErrClosed) {
		t.Errorf("the Memory is there after its last port: %v", err)
	}
}

// With one pool twice, header and payload are views of where the kernel put the frame, and go out
// again from there.
func TestViews(t *testing.T) {
	n := hosts(t, netns.LinkSpec{MTU: 3000})
	a, b := open(t, n.Hosts[0], engine.PortSpec{}), open(t, n.Hosts[1], engine.PortSpec{})
	pool, back := newPool(t, 2048, 512), newPool(t, 2048, 512)
	tx, rx := addTx(t, a, engine.TxSpec{Pools: []*mem.Pool{back}}), addRx(t, a, engine.RxSpec{Pools: []*mem.Pool{back}})
	q := addRx(t, b, engine.RxSpec{Pools: []*mem.Pool{pool, pool}})
	echo := addTx(t, b, engine.TxSpec{Pools: []*mem.Pool{pool}})
	x := burst.NewSegmented(8, 32)
	for _, size := range []int{46, 100, 1514, 1792, 1793, 3000} {
		f := udp(t, 7, size, 1)
		send(t, tx, f)
		until(t, "it", func() bool { k, _ := q.TryRecv(x); return k == 1 })
		if x.Role(0, 0) != burst.Header || x.Role(0, 1) != burst.Payload || len(x.Bytes(0, 0)) != 42 ||
			x.PacketLen(0) != size {
			t.Fatalf("%d bytes: %d segments, a %v of %d bytes", size, x.Segments(0), x.Role(0, 0), len(x.Bytes(0, 0)))
		}
		if h, d := x.Segment(0, 0), x.Segment(0, 1); h.Off+h.Len != d.Off {
			t.Fatalf("%d bytes: header at %d, payload at %d", size, h.Off, d.Off)
		}
		if _, err := echo.Forward(x); err != nil {
			t.Fatal(err)
		}
		if err := echo.Send(x); err != nil {
			t.Fatal(err)
		}
		if got := receive(t, rx, 1, nil); !bytes.Equal(got[0], f) {
			t.Fatalf("%d bytes came back as %d", size, len(got[0]))
		}
	}
	// A packet that ends with its headers is one segment that carries the slot.
	f := udp(t, 7, 42, 1)
	send(t, tx, f)
	until(t, "it", func() bool { k, _ := q.TryRecv(x); return k == 1 })
	if x.Segments(0) != 1 || x.PacketLen(0) != 42 {
		t.Errorf("%d segments, %d bytes", x.Segments(0), x.PacketLen(0))
	}
	x.Release()
	if err := echo.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	var rs engine.RxStats
	var ts engine.TxStats
	q.Stats(&rs)
	echo.Stats(&ts)
	if rs.Copied != 0 || ts.Copied != 0 || ts.Packets != 6 {
		t.Errorf("%+v\n%+v", rs, ts)
	}
}

// The queue whose slots the kernel has is closed while another one receives: the port restarts,
// and each packet is received or counted.
func TestHomeGoes(t *testing.T) {
	n := hosts(t, netns.LinkSpec{Queues: 2})
	a, b := open(t, n.Hosts[0], engine.PortSpec{}), open(t, n.Hosts[1], engine.PortSpec{})
	mine := newPool(t, 2048, 1024)
	tx := addTx(t, a, engine.TxSpec{Pools: []*mem.Pool{mine}})
	back := addRx(t, a, engine.RxSpec{Pools: []*mem.Pool{mine}})
	if _, err := b.Rules().Apply(rule(t, "udp dst 7 -> queue 1")); err != nil {
		t.Fatal(err)
	}
	other := newPool(t, 2048, 1024)
	stay := addRx(t, b, engine.RxSpec{ID: engine.Queue(1), Pools: []*mem.Pool{other}})
	echo := addTx(t, b, engine.TxSpec{Pools: []*mem.Pool{other}})
	// With ID 1 there first, its pool is the home. Closing queue 0 changes nothing; closing and
	// adding 1 again does.
	sent, got := 0, 0
	for round := range 6 {
		home := newPool(t, 2048, 512)
		q := addRx(t, b, engine.RxSpec{ID: engine.Queue(0), Pools: []*mem.Pool{home}})
		if round%2 == 1 { // now queue 0 is the one whose slots the kernel has
			if err := stay.Close(); err != nil {
				t.Fatal(err)
			}
			stay = addRx(t, b, engine.RxSpec{ID: engine.Queue(1), Pools: []*mem.Pool{other}})
			if stay.whole || !q.whole {
				t.Fatalf("round %d: in place: %v and %v", round, stay.whole, q.whole)
			}
		}
		for range 20 {
			send(t, tx, udp(t, 7, 100, uint32(sent)))
			sent++
		}
		waits := 20
		if round%2 == 0 { // what waits is not lost
			receive(t, stay, 20, nil)
			got, waits = got+20, 0
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
		if s := home.Stats(); s.InUse != 0 {
			t.Fatalf("round %d: the queue is closed, and %d of its slots are out", round, s.InUse)
		}
		receive(t, stay, waits, nil)
		got += waits
		send(t, tx, udp(t, 7, 100, uint32(sent)))
		receive(t, stay, 1, nil)
		sent, got = sent+1, got+1
		send(t, echo, udp(t, 7, 200, 1))
		receive(t, back, 1, nil)
	}
	var s engine.PortStats
	b.Stats(&s)
	if s.Rx.Packets != uint64(got) || s.Rx.Drops.Total()+s.Drops.Total() != uint64(sent-got) || sent != got {
		t.Errorf("%d packets were sent, %d received: %+v", sent, got, s)
	}
}

// Without chains, frames that do not fit into a slot are refused before they come.
func TestNoChains(t *testing.T) {
	n := hosts(t, netns.LinkSpec{MTU: 3400})
	one := Options{NoChains: true}
	a, b := open(t, n.Hosts[0], engine.PortSpec{Options: one}), open(t, n.Hosts[1], engine.PortSpec{Options: one})
	if a.Capabilities().Chains {
		t.Error("chains")
	}
	if _, err := b.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{newPool(t, 2048, 128)}}); !errors.Is(err,
		engine.ErrUnsupported) {
		t.Errorf("slots of 2048 bytes for frames of 3414: %v", err)
	}
	q, tx := addRx(t, b, engine.RxSpec{Pools: []*mem.Pool{newPool(t, 4096, 128)}}),
		addTx(t, a, engine.TxSpec{Pools: []*mem.Pool{newPool(t, 4096, 128)}})
	for _, size := range []int{60, 3414} {
		f := udp(t, 7, size, 1)
		send(t, tx, f)
		if got := receive(t, q, 1, nil); !bytes.Equal(got[0], f) {
			t.Errorf("%d bytes came as %d", size, len(got[0]))
		}
	}
	// What is made of several pieces is sent in one.
	x, extra := burst.NewSegmented(1, 4), newPool(t, 4096, 8)
	if _, err := tx.Alloc(x, 1, 60); err != nil {
		t.Fatal(err)
	}
	f := udp(t, 7, 160, 1)
	copy(x.Bytes(0, 0), f)
	h, err := extra.Get()
	if err != nil {
		t.Fatal(err)
	}
	x.Builder().AddSegment(burst.PoolSource(extra),
		burst.Segment{Handle: h.Handle(), Off: extra.Offset(h.Handle()), Len: 100})
	copy(x.Bytes(0, 1), f[60:])
	if err := tx.Send(x); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, q, 1, nil); !bytes.Equal(got[0], f) {
		t.Errorf("a chain came as % x", got[0])
	}
}

// Whatever comes, each frame is delivered as it was sent or counted.
func TestGarbage(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	a, b := open(t, n.Hosts[0], engine.PortSpec{}), open(t, n.Hosts[1], engine.PortSpec{})
	if _, err := b.Rules().Apply(rule(t, "ip src 10.0.0.0/8 -> queue 0"),
		rule(t, "udp dst 1-9 flex 4 0x1/0xff -> queue 0"), rule(t, "ecpri type 2 -> queue 0"),
		rule(t, "vlan 5 -> drop")); err != nil {
		t.Fatal(err)
	}
	pool := newPool(t, 2048, 512)
	tx := addTx(t, a, engine.TxSpec{Pools: []*mem.Pool{pool}})
	heads, data := newPool(t, 256, 256), newPool(t, 2048, 512)
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, spec := range []engine.RxSpec{
		{Pools: []*mem.Pool{data}}, {Pools: []*mem.Pool{heads, data}}, {Pools: []*mem.Pool{data, data}}, {Pools: []*mem.Pool{newPool(t, 100, 512)}},
	} {
		q := addRx(t, b, spec)
		x := burst.NewSegmented(4, 64)
		for range 300 {
			f := udp(t, uint16(rnd.IntN(12)), 60+rnd.IntN(1400), 0)
			for range rnd.IntN(5) {
				f[12+rnd.IntN(48)] = byte(rnd.IntN(256))
			}
			if rnd.IntN(3) == 0 {
				f = append(append(f[:12:12], 0x81, 0, 0, byte(rnd.IntN(8))), f[12:]...)
			}
			f = f[:14+rnd.IntN(len(f)-13)]
			var before, after engine.PortStats
			b.Stats(&before)
			send(t, tx, f)
			until(t, "a frame or a count", func() bool {
				if k, err := q.TryRecv(x); err != nil {
					t.Fatal(err)
				} else if k > 0 {
					g := make([]byte, x.PacketLen(0))
					if x.CopyTo(g, 0); !bytes.Equal(g, f) {
						t.Fatalf("% x came as % x", f, g)
					}
					x.Release()
					return true
				}
				b.Stats(&after)
				return after.Drops.Total()+after.Rx.Drops.Total()+after.Kernel > before.Drops.Total()+
					before.Rx.Drops.Total()+before.Kernel
			})
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var s engine.PortStats
	b.Stats(&s)
	if s.Drops[engine.DropRule] == 0 || s.Rx.Packets == 0 ||
		s.Drops[engine.DropUnattributed]+s.Rx.Drops[engine.DropUnattributed] > 0 {
		t.Errorf("%+v", s)
	}
}

// What a pool, a queue or a port cannot be is an error that says so, and nothing is left behind.
func TestRefusals(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	p := open(t, n.Hosts[0], engine.PortSpec{Options: &Options{Spare: -1}})
	good, odd, far := newPool(t, 2048, 128), newPool(t, 1000, 128), newPool(t, 2048, 128)
	pools := func(p ...*mem.Pool) []*mem.Pool { return p }
	refused := func(what string, err, as error) {
		t.Helper()
		if !errors.Is(err, as) {
			t.Errorf("%s: %v, expected %v", what, err, as)
		}
	}
	rx := func(s engine.RxSpec) error {
		q, err := p.AddRxQueue(s)
		if err == nil {
			q.Close()
		}
		return err
	}
	tx := func(s engine.TxSpec) error {
		q, err := p.AddTxQueue(s)
		if err == nil {
			q.Close()
		}
		return err
	}
	refused("slots of 1000 bytes without spare chunks", rx(engine.RxSpec{Pools: pools(odd)}), engine.ErrUnsupported)
	addTx(t, p, engine.TxSpec{Pools: pools(good)})
	refused("a pool elsewhere without spare chunks", rx(engine.RxSpec{Pools: pools(far)}), engine.ErrUnsupported)
	refused("the same for sending", tx(engine.TxSpec{ID: engine.Queue(1), Pools: pools(far)}), engine.ErrUnsupported)
	refused("a connection", rx(engine.RxSpec{Pools: pools(good), Conn: 1}), engine.ErrUnsupported)
	refused("receive times", rx(engine.RxSpec{Pools: pools(good), Timestamps: true}), engine.ErrUnsupported)
	for what, s := range map[string]engine.RxSpec{
		"no pool": {}, "three pools": {Pools: pools(good, good, good)}, "a nil pool": {Pools: pools(nil)},
		"depth":   {Pools: pools(good), Depth: 4096},
		"options": {Pools: pools(good), Options: 1}, "a split without two pools": {Pools: pools(good), SplitAt: 5},
		"a split behind the slot": {Pools: pools(good, good), SplitAt: 3000},
		"a number":                {Pools: pools(good), ID: engine.Queue(maxQueues)},
	} {
		refused(what, rx(s), engine.ErrInvalid)
	}
	for what, s := range map[string]engine.TxSpec{
		"no pool": {}, "depth": {Pools: pools(good), Depth: -1}, "headroom": {Pools: pools(good), Headroom: 2048},
		"options":  {Pools: pools(good), Options: 1},
		"a number": {Pools: pools(good), ID: engine.Queue(-9)},
	} {
		refused(what, tx(s), engine.ErrInvalid)
	}
	if err := rx(engine.RxSpec{Pools: pools(good)}); err != nil {
		t.Error(err)
	}
	for what, o := range map[string]any{
		"no options": 5, "ring": Options{Ring: 100}, "queue": Options{Queues: []int{1}},
		"twice": Options{Queues: []int{0, 0}}, "bind": Options{Bind: 9},
		"busy": Options{BusyPoll: -1}, "wait": Options{Wait: -1}, "below 0": Options{Queues: []int{-1}},
	} {
		err := n.Hosts[1].Do(func() error {
			p, err := New().OpenPort(t.Context(), engine.PortSpec{Address: "eth0", Options: o})
			if err == nil {
				p.Close()
			}
			return err
		})
		refused(what, err, engine.ErrInvalid)
	}
	for what, o := range map[string]MemoryOptions{"chunk": {Chunk: 8192}, "nothing": {Spare: -1}} {
		m, err := NewMemory(o)
		refused(what, err, engine.ErrInvalid)
		if m != nil {
			t.Errorf("%s: a Memory", what)
		}
	}
	closed, err := mem.Alloc(mem.Options{Size: 4096})
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	if _, err := NewMemory(MemoryOptions{Region: closed}); !errors.Is(err, mem.ErrClosed) {
		t.Errorf("a closed region: %v", err)
	}
	if err := n.Hosts[1].Do(func() error {
		_, err := New().OpenPort(t.Context(), engine.PortSpec{Address: "eth9"})
		return err
	}); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("no such interface: %v", err)
	}
	if err := n.Hosts[1].Do(func() error {
		_, err := New().OpenPort(t.Context(), engine.PortSpec{Address: "eth0", MTU: 9000})
		return err
	}); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("an MTU that the interface has not: %v", err)
	}
}

// The NIC is asked for its receive times: a veth has the question and no answer. Rules change all
// the same. A kernel without the question refuses, and says so.
func TestHardwareTime(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	a, b := open(t, n.Hosts[0], engine.PortSpec{}),
		open(t, n.Hosts[1], engine.PortSpec{Options: Options{HardwareTime: true}})
	pool, mine := newPool(t, 2048, 256), newPool(t, 2048, 256)
	if c := b.Capabilities(); !c.HardwareTime {
		if _, err := b.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{pool}, HardwareTime: true}); !errors.Is(err,
			engine.ErrUnsupported) {
			t.Errorf("times that the NIC has not: %v", err)
		}
		if !slices.ContainsFunc(c.Notes, func(n string) bool { return strings.Contains(n, "receive time") }) {
			t.Errorf("why there are none is not said: %q", c.Notes)
		}
		return
	}
	tx, q := addTx(t, a, engine.TxSpec{Pools: []*mem.Pool{mine}}),
		addRx(t, b, engine.RxSpec{Pools: []*mem.Pool{pool}, HardwareTime: true})
	res, err := b.Rules().Apply(rule(t, "udp dst 7 -> queue 0"))
	if err != nil {
		t.Fatal(err)
	}
	send(t, tx, udp(t, 7, 100, 1))
	receive(t, q, 1, func(b *burst.Burst, i int) {
		ns, ok := b.Time(i)
		if b.Flow(i) != res.IDs[0] || ok != (ns != 0) || ok != (b.Flags(i)&burst.HardwareTime != 0) {
			t.Errorf("flow %d, time %d %v", b.Flow(i), ns, ok)
		}
	})
	if st := b.Rules().Stats(); len(st.Rules) != 2 || st.Rules[1].Packets != 1 {
		t.Errorf("%+v", st)
	}
}

// An isolated port leaves the rest to the kernel, and so does one without receive queues.
func TestIsolated(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	a, b := open(t, n.Hosts[0], engine.PortSpec{}), open(t, n.Hosts[1], engine.PortSpec{Isolated: true})
	tx := addTx(t, a, engine.TxSpec{Pools: []*mem.Pool{newPool(t, 2048, 256)}})
	q := addRx(t, b, engine.RxSpec{ID: engine.Queue(3), Pools: []*mem.Pool{newPool(t, 2048, 256)}})
	if _, err := b.Rules().Apply(rule(t, "udp dst 7 -> queue 3"), rule(t, "udp dst 8 -> drop"),
		rule(t, "udp dst 9 -> queue 5")); err != nil {
		t.Fatal(err)
	}
	kernel := func(p *Port) engine.PortStats {
		var s engine.PortStats
		p.Stats(&s)
		return s
	}
	before := kernel(b)
	send(t, tx, udp(t, 7, 100, 1), udp(t, 8, 100, 1), udp(t, 9, 100, 1), udp(t, 10, 100, 1), udp(t, 7, 200, 2))
	if got := receive(t, q, 2, nil); len(got[0]) != 100 || len(got[1]) != 200 {
		t.Error("other packets")
	}
	until(t, "the others to be counted", func() bool {
		s := kernel(b)
		return s.Kernel > before.Kernel && s.Drops[engine.DropRule] == 1 && s.Drops[engine.DropNoQueue] == 1
	})
	if _, err := b.Rules().Apply(rule(t, "vlan 5 -> vlan-pop, queue 0")); err == nil || len(b.Rules().List()) != 4 {
		t.Errorf("a rule that the program has not: %v, %d rules", err, len(b.Rules().List()))
	}
	if _, err := b.Rules().Apply(rule(t, "udp dst 7 -> queue 32")); err == nil {
		t.Error("a rule for a queue that cannot be")
	}
	// The other port has no receive queue.
	back := addTx(t, b, engine.TxSpec{Pools: []*mem.Pool{newPool(t, 2048, 256)}})
	before = kernel(a)
	send(t, back, udp(t, 7, 100, 1))
	until(t, "the kernel to get it", func() bool { return kernel(a).Kernel > before.Kernel })
}
