package sim

import (
	"fmt"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// pool makes a pool that is closed, with everything back, when the test ends.
func pool(t testing.TB, name string, size, slots int) *mem.Pool {
	t.Helper()
	p, err := mem.NewPool(mem.PoolOptions{Name: name, SlotSize: size, Slots: slots})
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

// line is a way from one port to another with the queues that it takes.
type line struct {
	net *Network
	tx  engine.TxQueue
	rx  engine.RxQueue
	b   *burst.Burst
	len int
}

func newLine(t testing.TB, shared bool, length int) *line {
	t.Helper()
	l := &line{b: burst.New(64), len: length}
	from := pool(t, "tx", 2048, 1024)
	to := from
	if !shared {
		to = pool(t, "rx", 2048, 1024)
	}
	l.net = network(t, Options{})
	if _, err := l.net.Link("a", "b"); err != nil {
		t.Fatal(err)
	}
	l.tx = addTx(t, open(t, l.net, "a"), engine.TxSpec{Pools: []*mem.Pool{from}})
	l.rx = addRx(t, open(t, l.net, "b"), engine.RxSpec{Pools: []*mem.Pool{to}})
	return l
}

func addTx(t testing.TB, p engine.Port, spec engine.TxSpec) engine.TxQueue {
	t.Helper()
	q, err := p.AddTxQueue(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { q.Close() }) // before its pool
	return q
}

func addRx(t testing.TB, p engine.Port, spec engine.RxSpec) engine.RxQueue {
	t.Helper()
	q, err := p.AddRxQueue(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { q.Close() }) // before its pool
	return q
}

// round takes 64 packets all the way.
func (l *line) round(t testing.TB) {
	if n, err := l.tx.Alloc(l.b, 64, l.len); n != 64 || err != nil {
		t.Fatal(n, err)
	}
	if err := l.tx.Send(l.b); err != nil {
		t.Fatal(err)
	}
	if n, err := l.rx.TryRecv(l.b); n != 64 || err != nil {
		t.Fatal(n, err)
	}
	l.b.Release()
}

// BenchmarkHandOff is Alloc, Send, TryRecv and Release of bursts of 64 packets on one core, per
// packet: with one pool for both queues, where nothing is copied.
func BenchmarkHandOff(b *testing.B) { benchmarkLane(b, true, 64) }

// BenchmarkCopy is the same with a pool for each queue.
func BenchmarkCopy(b *testing.B) {
	for _, n := range []int{64, 1500} {
		b.Run(fmt.Sprintf("%dB", n), func(b *testing.B) { benchmarkLane(b, false, n) })
	}
}

func benchmarkLane(b *testing.B, shared bool, length int) {
	l := newLine(b, shared, length)
	for range 100 {
		l.round(b)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i += 64 {
		l.round(b)
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e6, "Mpkt/s")
}
