package afpacket

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/neigh"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	testpeers "github.com/penstock-io/penstock/internal/lab/testenv/peers"
	"github.com/penstock-io/penstock/internal/peers"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/flow"
)

func newPool(t testing.TB, size, n int) *mem.Pool {
	t.Helper()
	p, err := mem.NewPool(mem.PoolOptions{Name: "test", SlotSize: size, Slots: n})
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

func addRx(t testing.TB, p *Port, spec engine.RxSpec) engine.RxQueue {
	t.Helper()
	q, err := p.AddRxQueue(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { q.Close() }) // before its pool
	return q
}

func addTx(t testing.TB, p *Port, spec engine.TxSpec) engine.TxQueue {
	t.Helper()
	q, err := p.AddTxQueue(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { q.Close() })
	return q
}

func send(t testing.TB, q engine.TxQueue, frames ...[]byte) {
	t.Helper()
	b := burst.New(1)
	for _, f := range frames {
		until(t, "a descriptor", func() bool { n, _ := q.Alloc(b, 1, len(f)); return n == 1 })
		copy(b.Bytes(0, 0), f)
		if err := q.Send(b); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// receive receives n packets, calls see for each, and returns their bytes.
func receive(t testing.TB, q engine.RxQueue, n int, see func(b *burst.Burst, i int)) (out [][]byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	rx, b := engine.NewRx(q, engine.Batching{}), burst.NewSegmented(32, 64)
	for len(out) < n {
		if err := rx.Recv(ctx, b); err != nil {
			t.Fatalf("%v after %d of %d packets", err, len(out), n)
		}
		for i := range b.Len() {
			f := make([]byte, b.PacketLen(i))
			b.CopyTo(f, i)
			out = append(out, f)
			if see != nil {
				see(b, i)
			}
		}
		b.Release()
	}
	if len(out) > n {
		t.Fatalf("%d packets, expected %d", len(out), n)
	}
	return out
}

// udp makes a frame from host 0 to host 1 with that many bytes of payload, with a VLAN tag unless
// it is 0.
func udp(t testing.TB, port uint16, payload int, vlan uint16) []byte {
	t.Helper()
	f := packet.UDPFrame{SrcMAC: packet.MAC{2, 0x77, 0, 0, 0, 0}, DstMAC: packet.MAC{2, 0x77, 0, 0, 0, 1},
		Tagged: vlan != 0, Tag: packet.MakeTCI(vlan, 3, false),
		Src: netip.MustParseAddrPort("198.18.0.1:9"), Dst: netip.AddrPortFrom(netip.MustParseAddr("198.18.0.2"), port)}
	b := make([]byte, f.HeaderLen()+payload)
	for i := range payload {
		b[f.HeaderLen()+i] = byte(i)
	}
	if _, err := f.Fill(b, payload); err != nil {
		t.Fatal(err)
	}
	return b
}

func rule(t testing.TB, text string) flow.Change {
	t.Helper()
	r, err := flow.ParseRule(text)
	if err != nil {
		t.Fatal(err)
	}
	return flow.Add(r)
}

// Tags that the kernel takes off are in the frame again, one or two of them, and rules see them; an
// isolated port leaves the rest to the kernel.
func TestVLANAndIsolation(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	a := open(t, n.Hosts[0], "eth0", Options{Filter: noIPv6})
	var p engine.Port
	if err := n.Hosts[1].Do(func() (err error) {
		p, err = New().OpenPort(t.Context(), engine.PortSpec{Address: "eth0", Isolated: true,
			Options: &Options{Filter: noIPv6}})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	pool := newPool(t, 2048, 512)
	tx := addTx(t, a, engine.TxSpec{Pools: []*mem.Pool{pool}})
	q0 := addRx(t, p.(*Port), engine.RxSpec{Pools: []*mem.Pool{pool}})
	q1 := addRx(t, p.(*Port), engine.RxSpec{ID: engine.Queue(1), Options: RxOptions{}})
	res, err := p.Rules().Apply(rule(t, "vlan 100 -> queue 1"), rule(t, "udp dst 7 -> queue 0"),
		rule(t, "udp dst 8 -> drop"), rule(t, "udp dst 9 -> queue 5"))
	if err != nil {
		t.Fatal(err)
	}
	plain, tagged, twice := udp(t, 7, 100, 0), udp(t, 7, 100, 100), udp(t, 7, 100, 100)
	twice = append(bytes.Clone(twice[:12]), append([]byte{0x88, 0xa8, 0, 100}, twice[12:]...)...)
	send(t, tx, plain, tagged, twice, udp(t, 8, 100, 0), udp(t, 9, 100, 0), udp(t, 10, 100, 0), udp(t, 7, 100, 101))
	flowID := func(id uint32) func(b *burst.Burst, i int) {
		return func(b *burst.Burst, i int) {
			if b.Flow(i) != id || b.WireLen(i) != b.PacketLen(i) {
				t.Errorf("flow %d, %d of %d bytes", b.Flow(i), b.PacketLen(i), b.WireLen(i))
			}
		}
	}
	got := receive(t, q1, 2, flowID(res.IDs[0]))
	if !bytes.Equal(got[0], tagged) || !bytes.Equal(got[1], twice) {
		t.Errorf("tagged frames came as\n% x\n% x", got[0][:24], got[1][:24])
	}
	if got := receive(t, q0, 2, flowID(res.IDs[1])); !bytes.Equal(got[0], plain) ||
		!bytes.Equal(got[1], udp(t, 7, 100, 101)) {
		t.Error("untagged frame")
	}
	var s engine.PortStats
	p.Stats(&s)
	if s.Kernel != 1 || s.Drops[engine.DropRule] != 1 || s.Drops[engine.DropNoQueue] != 1 || s.Rx.Packets != 4 ||
		s.Drops.Total() != 2 {
		t.Errorf("%+v", s)
	}
	if st := p.Rules().Stats(); st.Rules[0].Packets != 2 || st.Rules[1].Packets != 2 {
		t.Errorf("%+v", st)
	}
	if l := p.Rules().List(); len(l) != 4 || l[0].ID != res.IDs[0] {
		t.Errorf("%v", l)
	}
	if _, err := p.Rules().Apply(rule(t, "udp dst 7 -> queue 64")); err == nil {
		t.Error("a rule for a queue that cannot be")
	}
}

// Rules are in force when Apply returns: a goroutine that deals out packets by the rules from
// before is done by then.
func TestRulesInForce(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	p := open(t, n.Hosts[1], n.Hosts[1].Link().Name, Options{})
	done := make(chan error)
	p.sockets[0].mu.Lock() // as one that deals out
	go func() {
		_, err := p.Rules().Apply(rule(t, "udp dst 7 -> drop"))
		done <- err
	}()
	select {
	case err := <-done:
		p.sockets[0].mu.Unlock()
		t.Fatalf("Apply returned before: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	p.sockets[0].mu.Unlock()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A tagged frame that finds no room for its two segments stays in the ring as it is.
func TestNoRoomForSegments(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	a, b := open(t, n.Hosts[0], "eth0", Options{Filter: noIPv6}), open(t, n.Hosts[1], "eth0", Options{Filter: noIPv6})
	pool, heads := newPool(t, 2048, 256), newPool(t, 128, 64)
	tx := addTx(t, a, engine.TxSpec{Pools: []*mem.Pool{pool}})
	q := addRx(t, b, engine.RxSpec{Pools: []*mem.Pool{heads, pool}})
	f := udp(t, 1, 100, 77)
	send(t, tx, f)
	until(t, "the frame", func() bool { return b.sockets[0].ready() })
	small := burst.New(2)
	slot := make([]mem.Handle, 1)
	if pool.GetBatch(slot) != 1 {
		t.Fatal("no slot")
	}
	// an empty burst that has no room drops the frame
	small.Builder().AddSlots(burst.PoolSource(pool), pool, slot, nil, burst.Segment{Len: 60})
	for range 3 {
		if k, err := q.TryRecv(small); k != 0 || err != nil {
			t.Fatalf("%d packets in a burst without room, %v", k, err)
		}
	}
	small.Release()
	if got := receive(t, q, 1, nil); !bytes.Equal(got[0], f) {
		t.Errorf("it came as % x", got[0][:24])
	}
}

// A tag is taken off, and a tunnel put around a frame and taken off again, in memory of the pool
// and of the ring.
func TestTransform(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	a, b := open(t, n.Hosts[0], "eth0", Options{Filter: noIPv6}), open(t, n.Hosts[1], "eth0", Options{Filter: noIPv6})
	pool := newPool(t, 2048, 256)
	tx := addTx(t, a, engine.TxSpec{Pools: []*mem.Pool{pool}})
	outer := "eth-src 02:00:00:00:00:01 eth-dst 02:00:00:00:00:02 ip-src 192.0.2.1 ip-dst 192.0.2.2"
	if _, err := b.Rules().Apply(rule(t, "vlan 100 -> vlan-pop, queue 0"),
		rule(t, "udp dst 7 -> vxlan-encap "+outer+" vni 5, queue 0"),
		rule(t, "udp dst 8 -> vxlan-encap "+outer+" vni 5, vxlan-decap, vlan-push 9, queue 0"),
		rule(t, "udp dst 9 -> vlan-pop, queue 0")); err != nil {
		t.Fatal(err)
	}
	for _, spec := range []engine.RxSpec{{Pools: []*mem.Pool{pool}}, {}} {
		q := addRx(t, b, spec)
		for _, size := range []int{1, 100, 1472} {
			plain := udp(t, 7, size, 0)
			send(t, tx, udp(t, 7, size, 100), plain, udp(t, 8, size, 0), udp(t, 9, size, 0))
			got := receive(t, q, 3, func(b *burst.Burst, i int) {
				if b.WireLen(i) != b.PacketLen(i) {
					t.Errorf("%d of %d bytes", b.PacketLen(i), b.WireLen(i))
				}
			})
			if !bytes.Equal(got[0], plain) {
				t.Errorf("%d bytes: without its tag: % x", size, got[0][:30])
			}
			var l, in packet.Layers
			if packet.Parse(got[1], &l); packet.ParseTunnel(got[1], &l, &in) != packet.OK ||
				l.Tunnel != packet.TunnelVXLAN || l.VNI != 5 || !bytes.Equal(got[1][l.Inner:l.End], plain) {
				t.Errorf("%d bytes: in a tunnel: % x", size, got[1])
			}
			if packet.Parse(got[2], &l); l.NumTags != 1 || l.Tags[0].ID() != 9 || l.DstPort != 8 {
				t.Errorf("%d bytes: with a tag: % x", size, got[2])
			}
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var s engine.PortStats
	if b.Stats(&s); s.Drops[engine.DropTransform] != 6 || s.Drops.Total() != 6 {
		t.Errorf("%v", &s.Drops)
	}
}

// Whatever comes, each frame is delivered as it is or counted; what does not fit into the ring is
// cut off or dropped.
func TestGarbage(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	a := open(t, n.Hosts[0], "eth0", Options{Filter: noIPv6})
	b := open(t, n.Hosts[1], "eth0", Options{Filter: noIPv6, FrameSize: 1024})
	if _, err := b.Rules().Apply(rule(t, "ip src 10.0.0.0/8 -> queue 0"),
		rule(t, "udp dst 1-9 flex 4 0x1/0xff -> queue 0"), rule(t, "ecpri type 2 -> queue 0")); err != nil {
		t.Fatal(err)
	}
	pool, heads := newPool(t, 2048, 512), newPool(t, 256, 256)
	tx := addTx(t, a, engine.TxSpec{Pools: []*mem.Pool{pool}})
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, spec := range []engine.RxSpec{
		{Pools: []*mem.Pool{pool}},
		{Pools: []*mem.Pool{heads, pool}},
		{Pools: []*mem.Pool{pool}, Options: RxOptions{KeepTruncated: true}},
		{},
	} {
		keep := spec.Options != nil
		q := addRx(t, b, spec)
		for range 300 {
			f := udp(t, uint16(rnd.IntN(12)), rnd.IntN(1400), uint16(rnd.IntN(3)))
			for range rnd.IntN(4) {
				if i := 12 + rnd.IntN(40); rnd.IntN(2) == 0 {
					f[i] ^= byte(1 << rnd.IntN(8))
				} else {
					binary.BigEndian.PutUint16(f[12:], uint16(rnd.IntN(1<<16)))
				}
			}
			f = f[:14+rnd.IntN(len(f)-13)]
			if binary.BigEndian.Uint16(f[12:]) == 0x86dd {
				f[12] = 8
			}
			if bytes.Equal(f[12:14], []byte{0x81, 0}) && len(f) < 18 || bytes.Equal(f[12:14], []byte{0x88, 0xa8}) &&
				len(f) < 18 {
				continue // the kernel drops a tag that is cut off
			}
			var before engine.RxStats
			q.Stats(&before)
			send(t, tx, f)
			got := [][]byte(nil)
			until(t, "a frame or a drop", func() bool {
				x := burst.NewSegmented(4, 8)
				if k, err := q.TryRecv(x); err != nil {
					t.Fatal(err)
				} else if k > 0 {
					if cut := x.Flags(0)&burst.Truncated != 0; cut != (x.WireLen(0) != x.PacketLen(0)) || cut && !keep {
						t.Fatalf("%d of %d bytes, cut off: %v", x.PacketLen(0), x.WireLen(0), cut)
					}
					if x.WireLen(0) != len(f) {
						t.Fatalf("a frame of %d bytes had %d on the wire", len(f), x.WireLen(0))
					}
					g := make([]byte, x.PacketLen(0))
					x.CopyTo(g, 0)
					got = append(got, g)
					x.Release()
					return true
				}
				var s engine.RxStats
				q.Stats(&s)
				return s.Drops[engine.DropTooLong] > before.Drops[engine.DropTooLong]
			})
			if len(got) == 1 && !bytes.HasPrefix(f, got[0]) || len(got) == 0 &&
				(len(f) < 900 && len(spec.Pools) != 2 || keep) {
				t.Fatalf("a frame of %d bytes came as %d", len(f), len(got))
			}
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Frames that the application keeps are missing in the ring, which the kernel counts; nothing spins
// meanwhile, and when they are back packets arrive again.
func TestBorrowed(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	a := open(t, n.Hosts[0], "eth0", Options{Filter: noIPv6})
	b := open(t, n.Hosts[1], "eth0", Options{Filter: noIPv6, Frames: 64})
	tx := addTx(t, a, engine.TxSpec{Pools: []*mem.Pool{newPool(t, 2048, 1024)}})
	q := addRx(t, b, engine.RxSpec{})
	ring := int(b.sockets[0].ring.Frames())
	for range 3 {
		held := burst.New(4 * ring)
		var before, s engine.RxStats
		q.Stats(&before)
		for range 2 * ring {
			send(t, tx, udp(t, 1, 50, 0))
			if _, err := q.TryRecv(held); err != nil {
				t.Fatal(err)
			}
		}
		until(t, "all packets", func() bool {
			if _, err := q.TryRecv(held); err != nil {
				t.Fatal(err)
			}
			q.Stats(&s)
			return held.Len()+int(s.Drops.Total()-before.Drops.Total()) == 2*ring
		})
		if lost := s.Drops[engine.DropKernel] - before.Drops[engine.DropKernel]; held.Len() != ring ||
			lost != uint64(ring) || s.Copied != 0 {
			t.Errorf("%d held and %d lost of %d, %d bytes copied", held.Len(), lost, 2*ring, s.Copied)
		}
		if q.Arm(engine.NewWaker()) {
			t.Error("ready, with nothing there")
		}
		held.Release()
		send(t, tx, udp(t, 2, 60, 0))
		receive(t, q, 1, nil)
	}
	// The ring outlives its port while frames are out.
	f := udp(t, 3, 70, 0)
	send(t, tx, f)
	x := burst.New(1)
	until(t, "a packet", func() bool { k, _ := q.TryRecv(x); return k == 1 })
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(x.Bytes(0, 0), f) {
		t.Error("the bytes have changed")
	}
	region := x.Segment(0, 0).Region
	if !region.Closed() || region.Leases() != 1 {
		t.Errorf("closed %v, %d leases", region.Closed(), region.Leases())
	}
	x.Release()
	if region.Leases() != 0 {
		t.Errorf("%d leases when all is back", region.Leases())
	}
}

// The interface's MTU changes, and then it goes away.
func TestRemoved(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	h := n.Hosts[0]
	p := open(t, h, "eth0", Options{})
	pool := newPool(t, 2048, 64)
	tx, q := addTx(t, p, engine.TxSpec{Pools: []*mem.Pool{pool}}), addRx(t, p, engine.RxSpec{Pools: []*mem.Pool{pool}})
	if _, err := h.Output(t.Context(), "ip", "link", "set", "eth0", "mtu", "1000"); err != nil {
		t.Fatal(err)
	}
	until(t, "the MTU", func() bool { return p.Info().MTU == 1000 && p.Capabilities().MaxPacket == 1014 })
	send(t, tx, udp(t, 1, 1300, 0))
	var s engine.TxStats
	if tx.Stats(&s); s.Drops[engine.DropTooLong] != 1 || s.Drops.Total() != 1 {
		t.Errorf("%+v", s)
	}
	errs := make(chan error, 1)
	go func() {
		rx, b := engine.NewRx(q, engine.Batching{}), burst.New(8)
		for {
			if err := rx.Recv(context.Background(), b); err != nil {
				errs <- err
				return
			}
			b.Release()
		}
	}()
	if _, err := h.Output(t.Context(), "ip", "link", "del", "eth0"); err != nil {
		t.Fatal(err)
	}
	if err := <-errs; !errors.Is(err, ErrRemoved) || !errors.Is(err, engine.ErrDown) {
		t.Error(err)
	}
	send(t, tx, udp(t, 1, 100, 0))
	if tx.Stats(&s); s.Drops[engine.DropDown] != 1 {
		t.Errorf("%v", &s.Drops)
	}
	if _, err := p.AddTxQueue(engine.TxSpec{ID: engine.Queue(1), Pools: []*mem.Pool{pool}}); !errors.Is(err,
		ErrRemoved) {
		t.Error(err)
	}
	if p.Info().Up {
		t.Error("up")
	}
}

// Packets of several flows are shared by several sockets: each comes once, those of one flow to one
// queue.
func TestFanout(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	for _, mode := range []Fanout{FanoutHash, FanoutCPU, FanoutRollover} {
		a := open(t, n.Hosts[0], "eth0", Options{Filter: noIPv6})
		b := open(t, n.Hosts[1], "eth0", Options{Filter: noIPv6, Fanout: mode, Sockets: 4})
		pool := newPool(t, 2048, 2048)
		tx := addTx(t, a, engine.TxSpec{Pools: []*mem.Pool{pool}})
		qs := []engine.RxQueue{addRx(t, b, engine.RxSpec{Pools: []*mem.Pool{pool}}),
			addRx(t, b, engine.RxSpec{ID: engine.Queue(1), Pools: []*mem.Pool{pool}})}
		where, got := map[uint16]int{}, 0
		for i := range 320 {
			send(t, tx, udp(t, uint16(1+i%32), 100, 0))
		}
		used := map[int]bool{}
		x := burst.New(64)
		until(t, "all packets", func() bool {
			for k, q := range qs {
				if _, err := q.TryRecv(x); err != nil {
					t.Fatal(err)
				}
				for i := range x.Len() {
					got++
					port := binary.BigEndian.Uint16(x.Bytes(i, 0)[36:])
					if at, ok := where[port]; ok && at != k && mode == FanoutHash {
						t.Fatalf("flow %d came to queues %d and %d", port, at, k)
					}
					where[port], used[k] = k, true
				}
				x.Release()
			}
			return got >= 320
		})
		if got != 320 || mode == FanoutHash && len(used) != 2 {
			t.Errorf("mode %d: %d packets on %d queues", mode, got, len(used))
		}
		// With one queue less, the other has all sockets.
		if err := qs[1].Close(); err != nil {
			t.Fatal(err)
		}
		for i := range 32 {
			send(t, tx, udp(t, uint16(1+i), 100, 0))
		}
		receive(t, qs[0], 32, nil)
		a.Close()
		b.Close()
	}
}

// A port without CAP_NET_RAW says so.
func TestCapability(t *testing.T) {
	if os.Getenv("AFPACKET_TEST_CAPABILITY") != "" {
		err := New().Available()
		if _, err2 := New().OpenPort(t.Context(), engine.PortSpec{Address: "lo"}); !errors.Is(err, ErrCapability) ||
			!errors.Is(err2, ErrCapability) || !errors.Is(err, engine.ErrUnavailable) {
			t.Fatalf("%v; %v", err, err2)
		}
		fmt.Println("REFUSED")
		return
	}
	if err := New().Available(); err != nil {
		testenv.Missing(t, "CAP_NET_RAW", err)
	}
	tool, err := testenv.Tool("setpriv", "util-linux")
	if err != nil {
		testenv.Missing(t, "setpriv", err)
	}
	cmd := exec.CommandContext(t.Context(), tool, "--bounding-set=-net_raw", "--inh-caps=-all", os.Args[0],
		"-test.run=^TestCapability$")
	cmd.Env = append(os.Environ(), "AFPACKET_TEST_CAPABILITY=1")
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("REFUSED")) {
		t.Errorf("%v: %s", err, out)
	}
}

func TestBadSpecs(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	h := n.Hosts[0]
	for _, c := range []struct {
		spec engine.PortSpec
		want error
	}{
		{engine.PortSpec{Address: "nothere"}, engine.ErrNotFound},
		{engine.PortSpec{Address: "eth0", MTU: 9000}, engine.ErrInvalid},
		{engine.PortSpec{Address: "eth0", Options: 7}, engine.ErrInvalid},
		{engine.PortSpec{Address: "eth0", Options: Options{FrameSize: 100}}, engine.ErrInvalid},
		{engine.PortSpec{Address: "eth0", Options: Options{Sockets: 3}}, engine.ErrInvalid},
	} {
		h.Do(func() error {
			if _, err := New().OpenPort(t.Context(), c.spec); !errors.Is(err, c.want) {
				t.Errorf("%+v: %v", c.spec, err)
			}
			return nil
		})
	}
	p, pool := open(t, h, "eth0", Options{}), newPool(t, 512, 8)
	for _, s := range []engine.RxSpec{{Depth: 5000}, {SplitAt: 5, Pools: []*mem.Pool{pool}}, {Pools: []*mem.Pool{nil}},
		{ID: engine.Queue(64)}, {Options: 1}} {
		if _, err := p.AddRxQueue(s); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%+v: %v", s, err)
		}
	}
	if _, err := p.AddRxQueue(engine.RxSpec{Conn: 1}); !errors.Is(err, engine.ErrUnsupported) {
		t.Errorf("a connection: %v", err)
	}
	for _, s := range []engine.TxSpec{{}, {Headroom: 512, Pools: []*mem.Pool{pool}},
		{Options: 1, Pools: []*mem.Pool{pool}}} {
		if _, err := p.AddTxQueue(s); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

// The source address is written on the way, and a rate is kept to: nothing is lost by it.
func TestSourceAndRate(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	a, b := open(t, n.Hosts[0], "eth0", Options{Filter: noIPv6, QdiscBypass: true, SendBuffer: 1 << 16}),
		open(t, n.Hosts[1], "eth0", Options{Filter: noIPv6})
	pool := newPool(t, 2048, 512)
	tx := addTx(t, a, engine.TxSpec{Pools: []*mem.Pool{pool}, SourceMAC: true, Rate: 50e6})
	q := addRx(t, b, engine.RxSpec{Pools: []*mem.Pool{pool}})
	f := udp(t, 1, 1000, 0)
	copy(f[6:], make([]byte, 6))
	for range 50 {
		send(t, tx, f)
	}
	for _, g := range receive(t, q, 50, nil) {
		if packet.Ethernet(g).Src() != a.Info().MAC {
			t.Fatal(packet.Ethernet(g).Src())
		}
	}
}

// What tcpreplay sends arrives byte for byte.
func TestAgainstTCPReplay(t *testing.T) {
	testpeers.Need(t, "tcpreplay")
	n := hosts(t, netns.LinkSpec{})
	b := open(t, n.Hosts[1], "eth0", Options{Filter: noIPv6})
	q := addRx(t, b, engine.RxSpec{Pools: []*mem.Pool{newPool(t, 2048, 2048)}, Timestamps: true})
	const count = 200
	file := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
	file = append(file, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0)
	var sent [][]byte
	for i := range count {
		f := udp(t, uint16(i+1), 20+i*7, uint16(i%3))
		sent = append(sent, f)
		file = binary.LittleEndian.AppendUint32(file, 1)
		file = binary.LittleEndian.AppendUint32(file, uint32(i))
		file = binary.LittleEndian.AppendUint32(file, uint32(len(f)))
		file = binary.LittleEndian.AppendUint32(file, uint32(len(f)))
		file = append(file, f...)
	}
	path := filepath.Join(t.TempDir(), "frames.pcap")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	var ns *os.File
	if err := n.Hosts[0].Do(func() (err error) {
		ns, err = os.Open("/proc/thread-self/ns/net")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	r, err := peers.TCPReplay(t.Context(), peers.Replay{File: path, Interface: "eth0", PacketsPerSecond: 5000,
		Network: ns})
	if err != nil || r.Successful != count {
		t.Fatalf("%+v, %v", r, err)
	}
	for i, g := range receive(t, q, count, func(b *burst.Burst, i int) {
		if _, ok := b.Time(i); !ok {
			t.Error("no time")
		}
	}) {
		if !bytes.Equal(g, sent[i]) {
			t.Fatalf("packet %d: sent % x\ncame % x", i, sent[i][:20], g[:min(20, len(g))])
		}
	}
	var s engine.PortStats
	if b.Stats(&s); s.Rx.Drops.Total()+s.Drops.Total() != 0 {
		t.Errorf("%+v", s)
	}
}

// A port with addresses of its own finds the kernel's at the other end, and that finds the port's.
func TestNeighbours(t *testing.T) {
	n := netns.New(t, netns.Topology{})
	a, b := n.Hosts[0], n.Hosts[1]
	p := open(t, a, "eth0", Options{})
	pool := newPool(t, 2048, 256)
	own4, own6 := netip.MustParseAddr("10.77.0.50"), netip.MustParseAddr("fd77::50")
	mac := packet.MAC{2, 0x50, 0, 0, 0, 1} // not the interface's, so that the kernel there cannot be taken for the port
	r, err := neigh.NewResolver(neigh.MachineOptions{MAC: mac, Addrs: []netip.Addr{own4, own6}, Answer: true},
		addRx(t, p, engine.RxSpec{Pools: []*mem.Pool{pool}}), addTx(t, p, engine.TxSpec{Pools: []*mem.Pool{pool}}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	for _, dst := range []netip.Addr{b.Link().IPv4, b.Link().IPv6} {
		if got, err := r.Resolve(ctx, dst); err != nil || got != packet.MAC(b.Link().MAC) {
			t.Errorf("%v is at %v, %v", dst, got, err)
		}
	}
	if _, err := b.Output(ctx, "ip", "addr", "add", "fe80::b/64", "dev", "eth0", "nodad"); err != nil {
		t.Fatal(err)
	}
	var k *neigh.Kernel
	if err := b.Do(func() (err error) { k, err = neigh.OpenKernel(); return err }); err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	for _, own := range []netip.Addr{own4, own6} {
		if h, err := k.Resolve(ctx, own, 0); err != nil || h.MAC != mac {
			t.Errorf("the kernel has %v at %v, %v", own, h.MAC, err)
		}
	}
	short, stop := context.WithTimeout(ctx, 50*time.Millisecond)
	defer stop()
	if _, err := r.Resolve(short, netip.MustParseAddr("10.77.0.99")); !errors.Is(err, neigh.ErrNoAnswer) ||
		!errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody: %v", err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
