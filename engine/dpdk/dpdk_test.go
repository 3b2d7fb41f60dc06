//go:build dpdk

package dpdk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/enginetest"
	"github.com/penstock-io/penstock/internal/cdpdk"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// eal is what all tests of this process start EAL with.
var eal = EAL{Huge: HugeOff}

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(endEAL{m},
		goleak.IgnoreAnyFunction("github.com/penstock-io/penstock/internal/cdpdk.Start.func1"))
}

// endEAL ends EAL behind the tests.
type endEAL struct{ m *testing.M }

func (e endEAL) Run() int {
	code := e.m.Run()
	if err := cdpdk.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

var names atomic.Int64

// openPort opens a port.
func openPort(t testing.TB, spec engine.PortSpec, o Options) *Port {
	t.Helper()
	o.EAL = eal
	spec.Options = o
	p, err := New().OpenPort(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p.(*Port)
}

// veth opens ports on both ends of a veth pair by a driver over the kernel, which sends nothing of
// its own on it: without IPv6.
func veth(t testing.TB, driver, args string, o Options, queues int) enginetest.Pair {
	t.Helper()
	n := netns.New(t, netns.Topology{Neighbours: true})
	var ports [2]*Port
	for i, h := range n.Hosts[:2] {
		if _, err := h.Output(t.Context(), "sysctl", "-q", "-w", "net.ipv6.conf.all.disable_ipv6=1",
			"net.ipv6.conf.default.disable_ipv6=1"); err != nil {
			t.Fatal(err)
		}
		if err := h.Do(func() error {
			ports[i] = openPort(t, engine.PortSpec{Name: h.Name, RxQueues: queues, TxQueues: queues,
				Address: fmt.Sprintf("dpdk://%s%d,iface=%s%s", driver, names.Add(1), h.Link().Name, args)}, o)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	return enginetest.Pair{A: ports[0], B: ports[1]}
}

func TestNull(t *testing.T) {
	enginetest.Run(t, enginetest.Harness{
		Open: func(t testing.TB) enginetest.Pair {
			a := openPort(t, engine.PortSpec{Address: fmt.Sprintf("dpdk://net_null%d", names.Add(1))}, Options{})
			b := openPort(t, engine.PortSpec{Address: fmt.Sprintf("dpdk://net_null%d", names.Add(1))}, Options{})
			return enginetest.Pair{A: a, B: b}
		},
		Alone: true, MinPacket: 64, MaxPacket: 64,
	})
}

func TestAFPacket(t *testing.T) {
	enginetest.Run(t, enginetest.Harness{
		Open: func(t testing.TB) enginetest.Pair {
			return veth(t, "net_af_packet", ",framesz=1920,framecnt=256,blocksz=61440", Options{}, 0)
		},
		MinPacket: 14, MaxPacket: 1514, Boundaries: []int{60}, Noise: true, Silent: true, Buffered: 4096,
	})
}

// exchange sends packets of size bytes from a to b, which numbers tell apart, and checks each that
// arrives. It returns how many did, after it has called before and closed its queues. Over cards
// others go before them, until one arrives: a card loses what it gets before its link is up.
func exchange(t *testing.T, a, b *Port, rx engine.RxSpec, packets, size int, before ...func()) int {
	t.Helper()
	pool, err := mem.NewPool(mem.PoolOptions{Name: "send", SlotSize: 2048, Slots: 1024})
	if err != nil {
		t.Fatal(err)
	}
	in, err := b.AddRxQueue(rx)
	if err != nil {
		t.Fatal(err)
	}
	out, err := a.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{pool}, Depth: 256})
	if err != nil {
		t.Fatal(err)
	}
	f := packet.UDPFrame{SrcMAC: packet.MAC{2, 0, 0, 0, 0, 1}, DstMAC: packet.MAC{2, 0, 0, 0, 0, 2},
		Src: netip.MustParseAddrPort("192.0.2.1:9"), Dst: netip.MustParseAddrPort("192.0.2.2:9")}
	send, recv := burst.New(32), burst.New(64)
	const early = 1<<32 - 1 // the number of those that go before
	sent, got, next, ready, asked := 0, 0, uint32(0), a.info.Bus == "vdev", time.Time{}
	take := func() {
		if _, err := in.TryRecv(recv); err != nil {
			t.Fatal(err)
		}
		for i := range recv.Len() {
			p := recv.Bytes(i, 0)
			if len(p) != size || p[12] != 8 || p[23] != 17 {
				continue // the kernel's
			}
			n := binary.BigEndian.Uint32(p[42:])
			if n == early {
				ready = true
				continue
			}
			if n < next || n >= uint32(sent) {
				t.Fatalf("packet %d of %d after %d", n, sent, next)
			}
			for k, c := range p[46:] {
				if c != byte(int(n)+k) {
					t.Fatalf("packet %d: byte %d is wrong", n, 46+k)
				}
			}
			next = n + 1
			got++
		}
		recv.Release()
	}
	for end := time.Now().Add(time.Minute); sent < packets && time.Now().Before(end); {
		most := min(32, packets-sent)
		if !ready {
			if take(); time.Since(asked) < 10*time.Millisecond {
				// an emulator keeps what comes early, and hands it over later, out of order
				continue
			}
			most, asked = 1, time.Now()
		} else if a.info.Bus != "vdev" && sent-got >= 64 { // and of what finds its ring full it swaps two
			take()
			continue
		}
		n, _ := out.Alloc(send, most, size)
		for i := range n {
			p := send.Bytes(i, 0)
			if _, err := f.Fill(p, size-f.HeaderLen()); err != nil {
				t.Fatal(err)
			}
			binary.BigEndian.PutUint32(p[42:], early)
			if ready {
				binary.BigEndian.PutUint32(p[42:], uint32(sent+i))
				for k := range p[46:] {
					p[46+k] = byte(sent + i + k)
				}
			}
		}
		if ready {
			sent += n
		}
		if err := out.Send(send); err != nil {
			t.Fatal(err)
		}
		take()
	}
	for quiet, last := time.Now(), got; got < sent && time.Since(quiet) < 2*time.Second; take() {
		if got != last {
			quiet, last = time.Now(), got
		}
	}
	if sent < packets {
		t.Fatalf("%d packets of %d were sent in a minute", sent, packets)
	}
	for _, f := range before {
		f()
	}
	if err := errors.Join(out.Close(), in.Close()); err != nil {
		t.Fatal(err)
	}
	return got
}

// pool makes memory to receive into.
func pool(t *testing.T) *mem.Pool {
	t.Helper()
	p, err := mem.NewPool(mem.PoolOptions{Name: "receive", SlotSize: 2048, Slots: 4096})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if n := p.Stats().InUse; n != 0 {
			t.Errorf("%d slots are missing", n)
		}
	})
	return p
}

// TestRing: net_ring hands over the sender's mbufs, which are copied into the receiver's slots.
func TestRing(t *testing.T) {
	p := openPort(t, engine.PortSpec{Address: fmt.Sprintf("dpdk://net_ring%d", names.Add(1)), RxQueues: 1, TxQueues: 1},
		Options{})
	const packets, size = 100_000, 200
	if n := exchange(t, p, p, engine.RxSpec{Pools: []*mem.Pool{pool(t)}}, packets, size); n != packets {
		t.Errorf("%d packets of %d arrived", n, packets)
	}
	var s engine.PortStats
	p.Stats(&s)
	if s.Rx.Copied != packets*size || s.Tx.Packets != packets {
		t.Errorf("%d bytes copied, %d packets sent: %+v", s.Rx.Copied, s.Tx.Packets, s)
	}
}

// TestInPlace: what af_packet receives lies in the slots of the pool.
func TestInPlace(t *testing.T) {
	pair := veth(t, "net_af_packet", ",framesz=1920,framecnt=256,blocksz=61440", Options{}, 0)
	b := pair.B.(*Port)
	if n := exchange(t, pair.A.(*Port), b, engine.RxSpec{Pools: []*mem.Pool{pool(t)}}, 2000, 600); n < 1000 {
		t.Errorf("%d packets of 2000 arrived", n)
	}
	var s engine.PortStats
	if b.Stats(&s); s.Rx.Copied != 0 {
		t.Errorf("%d bytes were copied", s.Rx.Copied)
	}
}

// TestLent: net_af_xdp receives into memory of DPDK, which a queue without pools lends, and a queue
// with pools copies from.
func TestLent(t *testing.T) {
	for _, copied := range []bool{false, true} {
		pair := veth(t, "net_af_xdp", "", Options{}, 0)
		b := pair.B.(*Port)
		spec := engine.RxSpec{}
		if copied {
			spec.Pools = []*mem.Pool{pool(t)}
		}
		if n := exchange(t, pair.A.(*Port), b, spec, 20_000, 600); n < 10_000 {
			// the kernel drops what its queue has no room for
			t.Errorf("%d packets of 20000 arrived", n)
		}
		var s engine.PortStats
		if b.Stats(&s); (s.Rx.Copied != 0) != copied {
			t.Errorf("%d bytes were copied", s.Rx.Copied)
		}
	}
}

// TestProgram: a port that is closed takes its XDP program off an interface that is in another
// namespace than the thread that closes it.
func TestProgram(t *testing.T) {
	h := netns.New(t, netns.Topology{Neighbours: true}).Hosts[1]
	var p *Port
	if err := h.Do(func() error {
		p = openPort(t, engine.PortSpec{RxQueues: 1,
			Address: fmt.Sprintf("dpdk://net_af_xdp%d,iface=%s", names.Add(1), h.Link().Name)}, Options{})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.AddRxQueue(engine.RxSpec{}); err != nil {
		t.Fatal(err)
	}
	for _, open := range []bool{true, false} {
		out, err := h.Output(t.Context(), "ip", "link", "show", h.Link().Name)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(out, []byte("xdp")) != open {
			t.Errorf("the port is open: %v; the interface: %s", open, out)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOtherArguments: DPDK is started once.
func TestOtherArguments(t *testing.T) {
	openPort(t, engine.PortSpec{Address: fmt.Sprintf("dpdk://net_null%d", names.Add(1))}, Options{})
	_, err := New().OpenPort(t.Context(), engine.PortSpec{Address: "dpdk://net_null999",
		Options: Options{EAL: EAL{Huge: HugeOff, Cores: []int{0}}}})
	if !errors.Is(err, engine.ErrInUse) {
		t.Errorf("a port with other arguments: %v", err)
	}
	_, err = New().OpenPort(t.Context(), engine.PortSpec{Address: "dpdk://net_nothing0", Options: Options{EAL: eal}})
	if !errors.Is(err, engine.ErrUnavailable) || !strings.Contains(err.Error(), "net_nothing0") {
		t.Errorf("a device that is not there: %v", err)
	}
}

// TestMany receives 10^8 packets into slots and sends them on from there; in the end each slot and
// each header is back.
func TestMany(t *testing.T) {
	packets := 100_000_000
	if testing.Short() || testenv.Race || testenv.Invariants {
		packets /= 1000
	}
	into := pool(t)
	p := openPort(t, engine.PortSpec{Address: fmt.Sprintf("dpdk://net_null%d", names.Add(1)), RxQueues: 1, TxQueues: 1},
		Options{})
	in, err := p.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{into}})
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{into}})
	if err != nil {
		t.Fatal(err)
	}
	b := burst.New(64)
	got, sent := 0, 0
	for got < packets {
		n, err := in.TryRecv(b)
		if err != nil {
			t.Fatal(err)
		}
		got += n
		if n, err = out.Forward(b); err != nil {
			t.Fatal(err)
		}
		sent += n
		if err := out.Send(b); err != nil {
			t.Fatal(err)
		}
	}
	var s engine.PortStats
	if p.Stats(&s); s.Rx.Packets != uint64(got) || s.Tx.Packets != uint64(sent) || s.Rx.Copied+s.Tx.Copied != 0 ||
		sent != got {
		t.Errorf("%d packets received, %d sent: %+v", got, sent, s)
	}
}
