package xdp

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/enginetest"
	"github.com/penstock-io/penstock/internal/ethtool"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/guest"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// TestGuestNics goes over emulated cards with their kernel drivers, instead of a veth pair: e1000e
// and vmxnet3, joined by a cable, and two virtio cards; and another virtio card, which spreads
// packets by a table.
func TestGuestNics(t *testing.T) {
	if dev := os.Getenv("PENSTOCK_XDP_CARD"); dev != "" {
		holdCard(dev)
		return
	}
	testenv.Once(t)
	t.Parallel() // this process waits for another one
	p := guest.Nics
	p.Modules = append([]string{"e1000e", "vmxnet3", "virtio_pci", "virtio_net"}, p.Modules...)
	p.NICs = append(p.NICs[:2:2], guest.NIC{Name: "nic2", Model: "virtio-net-pci", Hub: 2},
		guest.NIC{Name: "nic3", Model: "virtio-net-pci", Hub: 2},
		guest.NIC{Name: "nic4", Model: "virtio-net-pci", Queues: 4, Options: "rss=on,hash=on"})
	if guest.Enter(t, guest.Spec{Profile: p, Timeout: 8 * time.Minute}) {
		return
	}
	t.Run("RSS", tableOfCard)
	for _, c := range []struct{ a, b string }{{"nic0", "nic1"}, {"nic2", "nic3"}} {
		t.Run(c.a+" "+c.b, func(t *testing.T) {
			for _, dev := range []string{c.a, c.b} {
				// No other host sends: no IPv6 on the cards.
				if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+dev+"/disable_ipv6", []byte("1"), 0); err != nil {
					t.Log(err)
				}
				if out, err := exec.Command("ip", "link", "set", dev, "up").CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
			opened := func(t testing.TB, dev string) *Port {
				t.Helper()
				p, err := New().OpenPort(context.Background(),
					engine.PortSpec{Address: dev, Options: Options{Wait: time.Minute}})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { p.Close() })
				until(t, dev+" to come up", func() bool { return p.Info().Up })
				return p.(*Port)
			}
			h := enginetest.Harness{Noise: true, MinPacket: 60, Window: 8, Patience: 2 * time.Minute,
				Open: func(t testing.TB) enginetest.Pair {
					return enginetest.Pair{A: opened(t, c.a), B: opened(t, c.b)}
				}}
			for seed := range uint64(3) {
				enginetest.Execute(t, h, enginetest.NewProgram(seed, 12))
			}
			huge(t, opened, c.a, c.b)
			x := opened(t, c.b)
			defer x.Close()
			i := x.prog.Info()
			t.Logf("%s: %v mode, %d queues; %v", c.b, i.Mode, len(x.o.Queues), x.Capabilities().Notes)
			if fmt.Sprint(x.Rules().List()) != "[]" {
				t.Error("rules of a port before")
			}
			// The drivers have no n-tuple rules: the port says so, where the card has several
			// queues.
			if _, err := x.Rules().Apply(rule(t, "name one udp dst 7 ip dst 198.18.0.2 -> queue 0")); err != nil {
				t.Fatal(err)
			}
			said := strings.Join(x.Capabilities().Notes, "\n")
			if several := len(x.o.Queues) > 1; several != strings.Contains(said, `in software only: rule "one": `) ||
				x.report.Load().Steered != 0 {
				t.Errorf("%s", said)
			}
		})
	}
}

// tableOfCard has a port with one of the two queues of a card: its table of RSS is set to that, and
// put back, also after a kill.
func tableOfCard(t *testing.T) {
	const dev = "nic4"
	if out, err := exec.Command("ip", "link", "set", dev, "up").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	d, err := ethtool.Open(dev)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	table := func() []uint32 {
		t.Helper()
		r, err := d.RSS()
		if err != nil {
			t.Fatal(err)
		}
		return r.Table
	}
	before := table()
	have, err := filepath.Glob("/sys/class/net/" + dev + "/queues/rx-*")
	if err != nil || len(have) < 2 {
		testenv.Missing(t, "tap devices with several queues for the guest's cards",
			fmt.Errorf("the card has queues %v, %v", have, err))
	}
	ours := func(table []uint32) bool {
		return len(table) > 0 && !slices.ContainsFunc(table, func(q uint32) bool { return q != 1 })
	}
	if len(before) == 0 || ours(before) || slices.Contains(before, 2) {
		t.Fatalf("the card's table: %v", before)
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestGuestNics$")
	cmd.Env = append(os.Environ(), "PENSTOCK_XDP_CARD="+dev)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "ready\n" {
		t.Errorf("the child said %q, %v", line, err)
	}
	if now := table(); !ours(now) {
		t.Errorf("while it runs the table is %v", now)
	}
	cmd.Process.Kill()
	cmd.Wait()
	if now := table(); !ours(now) {
		t.Errorf("the card forgets by itself: %v", now)
	}
	p, err := New().OpenPort(context.Background(),
		engine.PortSpec{Address: dev, Options: Options{Queues: []int{1}, Wait: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if now := table(); !slices.Equal(now, before) {
		t.Errorf("the next port has found %v, and left %v", before, now)
	}
	addRx(t, p.(*Port), engine.RxSpec{Depth: 64, Pools: []*mem.Pool{newPool(t, 2048, 256)}})
	if _, err := p.Rules().Apply(rule(t, "name one udp dst 7 ip dst 198.18.0.2 -> queue 0")); err != nil {
		t.Fatal(err)
	}
	said := strings.Join(p.Capabilities().Notes, "\n")
	for _, want := range []string{"an earlier process left", "RSS is set to queues [1]",
		`in software only: rule "one": `} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in\n%s", want, said)
		}
	}
	if now := table(); !ours(now) {
		t.Errorf("with a receive queue the table is %v", now)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if now := table(); !slices.Equal(now, before) {
		t.Errorf("closed: %v, it was %v", now, before)
	}
	t.Logf("%d entries\n%s", len(before), said)
}

// holdCard opens a port with the second queue of a card, and waits to be killed.
func holdCard(dev string) {
	pool, err := mem.NewPool(mem.PoolOptions{SlotSize: 2048, Slots: 256})
	if err == nil {
		var p engine.Port
		if p, err = New().OpenPort(context.Background(),
			engine.PortSpec{Address: dev, Options: Options{Queues: []int{1}, Wait: time.Minute}}); err == nil {
			_, err = p.AddRxQueue(engine.RxSpec{Depth: 64, Pools: []*mem.Pool{pool}})
		}
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("ready")
	bufio.NewReader(os.Stdin).ReadString('\n')
}

// huge sends and receives in huge pages, with spare chunks in base pages behind them.
func huge(t *testing.T, opened func(t testing.TB, dev string) *Port, from, to string) {
	t.Helper()
	r, err := mem.Alloc(mem.Options{Name: "huge", Size: 4 << 20, Kind: mem.Huge})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	a, b := opened(t, from), opened(t, to)
	defer a.Close()
	defer b.Close()
	pools := []*mem.Pool{carve(t, r, 0, 2048, 256), carve(t, r, 2<<20, 2048, 256)}
	other := newPool(t, 512, 512)
	q, tx, copies := addRx(t, b, engine.RxSpec{Depth: 64, Pools: pools[:1]}), addTx(t, a,
		engine.TxSpec{Pools: pools[1:]}), addTx(t, a, engine.TxSpec{ID: engine.Queue(1), Pools: []*mem.Pool{other}})
	if b.memory.note+a.memory.note != "" || b.memory.region != r || a.memory.region != r {
		t.Errorf("%q %q", b.memory.note, a.memory.note)
	}
	for i := range 50 {
		for _, s := range []*txQueue{tx, copies} {
			f, mac := udp(t, 7, 60+7*i, uint32(i)), b.Info().MAC
			copy(f, mac[:]) // cards take no others
			send(t, s, f)
			for { // the kernel may say something in between
				if got := receive(t, q, 1, nil); bytes.Equal(got[0], f) {
					break
				}
			}
		}
	}
	var x, y engine.TxStats
	tx.Stats(&x)
	copies.Stats(&y)
	if x.Copied != 0 || y.Copied != y.Bytes || x.Packets != 50 || y.Packets != 50 {
		t.Errorf("%+v\n%+v", x, y)
	}
}

// TestGuestZeroCopy has cards that write into the slots and read from them themselves: virtio with
// a recent kernel.
func TestGuestZeroCopy(t *testing.T) {
	testenv.Once(t)
	t.Parallel() // this process waits for another one
	p := guest.Nics
	p.Name, p.Recent, p.Modules, p.NICs = "nics+zerocopy", true, []string{"virtio_pci", "virtio_net"}, nil
	for i := range 2 {
		p.NICs = append(p.NICs, guest.NIC{Name: fmt.Sprintf("nic%d", i), Model: "virtio-net-pci", Hub: 1,
			Options: "disable-legacy=on,iommu_platform=on,ats=on,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off,guest_csum=off"})
	}
	if guest.Enter(t, guest.Spec{Profile: p, Timeout: 8 * time.Minute}) {
		return
	}
	var ports [2]*Port
	for i := range ports {
		dev := fmt.Sprintf("nic%d", i)
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+dev+"/disable_ipv6", []byte("1"), 0)
		// The addresses of udp: a card takes no others.
		if out, err := exec.Command("ip", "link", "set", dev, "address", fmt.Sprintf("02:77:00:00:00:0%d", i),
			"up").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	opened := func(i int) *Port {
		x, err := New().OpenPort(context.Background(),
			engine.PortSpec{Address: fmt.Sprintf("nic%d", i), Options: Options{Wait: time.Minute}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { x.Close() })
		until(t, "the link", func() bool { return x.Info().Up })
		return x.(*Port)
	}
	for i := range ports {
		ports[i] = opened(i)
	}
	a, b := ports[0], ports[1]
	mine, pool := newPool(t, 2048, 512), newPool(t, 2048, 512)
	tx, back := addTx(t, a, engine.TxSpec{Depth: 64, Pools: []*mem.Pool{mine}}),
		addRx(t, a, engine.RxSpec{Depth: 64, Pools: []*mem.Pool{mine}})
	mac := b.Info().MAC
	for round := range 6 {
		q := addRx(t, b, engine.RxSpec{Depth: 64, Pools: []*mem.Pool{pool}})
		echo := addTx(t, b, engine.TxSpec{Depth: 64, Pools: []*mem.Pool{pool}})
		for _, n := range []*nicQueue{a.nqs[0], b.nqs[0]} {
			if card, why := n.queue.ZeroCopy(); !card {
				t.Fatalf("no zero-copy: %v; %v", why, a.Capabilities().Notes)
			}
		}
		if a.Capabilities().ExactDrops {
			t.Error("drops of the card are not known here")
		}
		x := burst.New(16)
		for i := range 100 {
			f := udp(t, 7, 60+14*i, uint32(i))
			copy(f, mac[:])
			from := a.link.MAC()
			copy(f[6:], from[:])
			// There and back, from where it lies. A card may lose one now and then.
			until(t, "a packet to come back", func() bool {
				send(t, tx, f)
				for range 1000 {
					k, err := q.TryRecv(x)
					if err != nil {
						t.Fatal(err)
					}
					for i := range k {
						p := x.Bytes(i, 0)
						if bytes.Equal(p[6:12], f[6:12]) && !bytes.Equal(p[:60], f[:60]) && len(p) == len(f) {
							t.Fatalf("% x came as % x", f[:60], p[:60])
						}
						copy(p, p[6:12])
						copy(p[6:], mac[:])
					}
					if k > 0 {
						echo.Forward(x)
						echo.Send(x)
					}
					for {
						if k, err = back.TryRecv(x); err != nil {
							t.Fatal(err)
						}
						ok := false
						for i := range k {
							p := x.Bytes(i, 0)
							ok = ok || len(p) == len(f) && bytes.Equal(p[12:], f[12:])
						}
						x.Release()
						if ok {
							return true
						}
						if k == 0 {
							break
						}
					}
					runtime.Gosched()
				}
				return false
			})
		}
		var s engine.TxStats
		if echo.Stats(&s); s.Copied != 0 || s.Packets == 0 {
			t.Errorf("round %d: %+v", round, s)
		}
		// It is closed while packets come: the card writes into no slot that is back in its pool.
		stop := make(chan struct{})
		sent := flood(t, tx, stop)
		until(t, "the flood", func() bool { k, _ := q.TryRecv(x); x.Release(); return k > 0 })
		if round%2 == 0 {
			if err := q.Close(); err != nil {
				t.Fatal(err)
			}
			if err := echo.Close(); err != nil {
				t.Fatal(err)
			}
		} else {
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			b = opened(1)
		}
		all := make([]mem.Handle, pool.Slots())
		if k := pool.GetBatch(all); k != len(all) {
			t.Fatalf("round %d: %d of %d slots are back", round, k, len(all))
		}
		for _, h := range all {
			p := pool.Slot(h).Bytes()
			for i := range p {
				p[i] = 0x5a
			}
		}
		var from, to engine.TxStats
		tx.Stats(&from)
		until(t, "more packets", func() bool { tx.Stats(&to); return to.Packets > from.Packets+500 })
		close(stop)
		sent()
		if err := tx.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, h := range all {
			for i, x := range pool.Slot(h).Bytes() {
				if x != 0x5a {
					t.Fatalf("round %d: byte %d of a slot was written after its queue was closed", round, i)
				}
			}
		}
		pool.PutBatch(all)
	}
}
