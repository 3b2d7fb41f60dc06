package app

import (
	"context"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit bounds waiting against hanging; no test depends on it.
func limit(t testing.TB) context.Context {
	t.Helper()
	c, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return c
}

// until yields until f is true.
func until(t testing.TB, what string, f func() bool) {
	t.Helper()
	for c := limit(t); !f(); runtime.Gosched() {
		if c.Err() != nil {
			t.Fatalf("timed out waiting for %s", what)
		}
	}
}

func newPool(t testing.TB, slots int) *mem.Pool {
	t.Helper()
	p, err := mem.NewPool(mem.PoolOptions{Name: t.Name(), SlotSize: 2048, Slots: slots})
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

// end is a port with a queue in each direction.
type end struct {
	port engine.Port
	rx   engine.RxQueue
	tx   engine.TxQueue
	pool *mem.Pool
}

func open(t testing.TB, e engine.Engine, spec engine.PortSpec, depth int) *end {
	t.Helper()
	return openWith(t, e, spec, depth, newPool(t, 4*depth), func(f func() error) error { return f() })
}

func openWith(t testing.TB, e engine.Engine, spec engine.PortSpec, depth int, pool *mem.Pool,
	in func(func() error) error) *end {
	t.Helper()
	x := &end{pool: pool}
	err := in(func() (err error) {
		if x.port, err = e.OpenPort(limit(t), spec); err != nil {
			return err
		}
		if x.rx, err = x.port.AddRxQueue(engine.RxSpec{Depth: depth, Pools: []*mem.Pool{pool}}); err != nil {
			return err
		}
		x.tx, err = x.port.AddTxQueue(engine.TxSpec{Depth: depth, Pools: []*mem.Pool{pool}})
		return err
	})
	if x.port != nil {
		t.Cleanup(func() { x.port.Close() })
	}
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// send sends packets, and waits for descriptors and memory.
func (e *end) send(t testing.TB, conn uint32, packets ...[]byte) {
	t.Helper()
	b := burst.New(1)
	for _, p := range packets {
		until(t, "a descriptor", func() bool { n, _ := e.tx.Alloc(b, 1, len(p)); return n == 1 })
		copy(b.Bytes(0, 0), p)
		b.SetConn(0, conn)
		if err := e.tx.Send(b); err != nil {
			t.Fatal(err)
		}
	}
}

// receive receives n packets.
func (e *end) receive(t testing.TB, n int) (out [][]byte) {
	t.Helper()
	b := burst.New(64)
	rx := engine.NewRx(e.rx, engine.Batching{})
	for c := limit(t); len(out) < n; {
		if err := rx.Recv(c, b); err != nil {
			t.Fatalf("after %d of %d packets: %v", len(out), n, err)
		}
		for i := range b.Len() {
			p := make([]byte, b.PacketLen(i))
			b.CopyTo(p, i)
			out = append(out, p)
		}
		b.Release()
	}
	return out
}

// start runs an application until the test ends, or until stop, which returns its last snapshot.
func start(t testing.TB, o Options) (a *App, stop func() Snapshot) {
	t.Helper()
	o.Core = -1
	if o.Name == "" {
		o.Name = "test"
	}
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	c, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(c) }()
	stopped := false
	stop = func() Snapshot {
		if !stopped {
			stopped = true
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			s := a.Snapshot()
			if s.Packets != s.Sent+s.Taken+s.Drops.Total() {
				t.Errorf("the counts do not add up: %+v", s)
			}
			if err := a.Close(limit(t)); err != nil {
				t.Error(err)
			}
		}
		return a.Snapshot()
	}
	t.Cleanup(func() { stop() })
	return a, stop
}

// rx receives from a queue without waiting for batches.
func rx(e *end) Receiver { return engine.NewRx(e.rx, engine.Batching{}) }
