package xdp

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/internal/xsk"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// BenchmarkThere sends bursts of 64 packets from one port to another over a veth pair and receives
// them, in one goroutine: most of the time is the kernel's, which copies each packet twice. With
// back they are forwarded and received again where they came from.
func BenchmarkThere(b *testing.B) {
	for _, size := range []int{64, 1400, 8900} {
		for _, back := range []bool{false, true} {
			b.Run(fmt.Sprintf("size=%d/back=%v", size, back), func(b *testing.B) { benchThere(b, size, back) })
		}
	}
}

func benchThere(t *testing.B, size int, back bool) {
	l, slot := netns.LinkSpec{}, 2048
	if size > 1500 {
		l.MTU, slot = 9000, 4096
	}
	n := hosts(t, l)
	a, b := open(t, n.Hosts[0], engine.PortSpec{}), open(t, n.Hosts[1], engine.PortSpec{})
	const slots = 2048
	var regions [2]*mem.Region
	var pools [2][2]*mem.Pool
	for i := range regions {
		var err error
		if regions[i], err = mem.Alloc(mem.Options{Size: 2 * slots * slot}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { regions[i].Close() })
		for k := range pools[i] {
			pools[i][k] = carve(t, regions[i], k*slots*slot, slot, slots)
		}
	}
	rx := func(p *Port, i int) *rxQueue { return addRx(t, p, engine.RxSpec{Depth: 512, Pools: pools[i][:1]}) }
	tx := func(p *Port, i int) *txQueue { return addTx(t, p, engine.TxSpec{Depth: 512, Pools: pools[i][1:]}) }
	from, there, echo, here := tx(a, 0), rx(b, 1), tx(b, 1), rx(a, 0)
	frame := udp(t, 7, size, 1)
	x := burst.NewSegmented(64, 256)
	take := func(q *rxQueue, n int, use func()) {
		for got := 0; got < n; {
			k, err := q.TryRecv(x)
			if err != nil {
				t.Fatal(err)
			}
			if k > 0 {
				use()
			}
			got += k
		}
	}
	t.SetBytes(int64(size))
	t.ReportAllocs()
	t.ResetTimer()
	for left := t.N; left > 0; {
		n, err := from.Alloc(x, min(left, 64), size)
		if n == 0 {
			if err != engine.ErrFull && err != engine.ErrNoBuffers {
				t.Fatal(err)
			}
			continue
		}
		for i := range n {
			copy(x.Bytes(i, 0), frame[:42])
		}
		if err := from.Send(x); err != nil {
			t.Fatal(err)
		}
		if !back {
			take(there, n, x.Release)
		} else {
			take(there, n, func() {
				for i := range x.Len() { // the packets are for us now
					f := x.Bytes(i, 0)
					f[5], f[11] = f[11], f[5]
				}
				if _, err := echo.Forward(x); err != nil {
					t.Fatal(err)
				}
				if err := echo.Send(x); err != nil {
					t.Fatal(err)
				}
			})
			take(here, n, x.Release)
		}
		left -= n
	}
	t.StopTimer()
	var s engine.PortStats
	for _, p := range []*Port{a, b} {
		if p.Stats(&s); s.Tx.Drops.Total()+s.Rx.Drops.Total()+s.Drops.Total()+s.Tx.Copied+s.Rx.Copied > 0 {
			t.Errorf("%+v", s)
		}
	}
}

// BenchmarkPlace is what a received packet costs in this process, without the kernel and the rings:
// it is delivered in a burst, and released.
func BenchmarkPlace(b *testing.B) {
	g := newQueueRig(b, 2048)
	g.port.o.Ring = 2048
	q := g.port.newRx(engine.RxSpec{Depth: 64, Pools: []*mem.Pool{g.home}})
	q.whole = true
	const batch = 32
	x := burst.New(batch)
	in := &rxSocket{nq: g.n}
	for k := range batch {
		h, err := g.home.Get()
		if err != nil {
			b.Fatal(err)
		}
		in.descs[k] = xsk.Desc{Addr: g.n.fill(h.Handle()) + 256, Len: 64}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	b.ReportAllocs()
	b.ResetTimer()
	begin, err := sys.ThreadCPU()
	if err != nil {
		b.Fatal(err)
	}
	for i := 0; i < b.N; i += batch {
		in.at, in.n = 0, batch
		if q.placeRun(g.n, x, in) != batch {
			b.Fatal("no packets")
		}
		x.Release()
		for _, h := range g.n.returns.take() { // as recycle does
			if e := &g.m.table[uint32(h)]; *e == lentAs(h) {
				*e -= lent - filled
				g.n.out++
			}
		}
	}
	end, _ := sys.ThreadCPU()
	b.StopTimer()
	b.ReportMetric(float64(end-begin)/float64(b.N), "cpu-ns/op") // which a busy machine does not change
	if g.n.out != batch {
		b.Errorf("%d chunks of %d are back", g.n.out, batch)
	}
	for _, d := range in.descs[:batch] {
		g.leaves(d.Addr)
	}
}
