package rdma

import (
	"fmt"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// pool makes a pool that is closed when the test ends, by when nothing of it may be out.
func pool(t testing.TB, size, slots int) *mem.Pool {
	t.Helper()
	p, err := mem.NewPool(mem.PoolOptions{Name: fmt.Sprintf("pool of %d", size), SlotSize: size, Slots: slots})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		until(t, "slots to come back", func() bool { return p.Stats().InUse == 0 })
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func rx(t testing.TB, p *Port, spec engine.RxSpec) engine.RxQueue {
	t.Helper()
	if spec.Pools == nil {
		spec.Pools = []*mem.Pool{pool(t, 2048, 256)}
	}
	q, err := p.AddRxQueue(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { q.Close() })
	return q
}

func tx(t testing.TB, p *Port, spec engine.TxSpec) engine.TxQueue {
	t.Helper()
	if spec.Pools == nil {
		spec.Pools = []*mem.Pool{pool(t, 2048, 256)}
	}
	q, err := p.AddTxQueue(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { q.Close() })
	return q
}

// put sends packets with these texts to a connection.
func put(t testing.TB, q engine.TxQueue, conn uint32, texts ...string) {
	t.Helper()
	b := burst.New(1)
	for _, s := range texts {
		until(t, "a descriptor", func() bool { n, _ := q.Alloc(b, 1, len(s)); return n == 1 })
		copy(b.Bytes(0, 0), s)
		b.SetConn(0, conn)
		if err := q.Send(b); err != nil {
			t.Fatal(err)
		}
	}
}

// got receives n packets and returns "connection text" of each.
func got(t testing.TB, q engine.RxQueue, n int) (out []string) {
	t.Helper()
	r := engine.NewRx(q, engine.Batching{})
	b := burst.NewSegmented(32, 256)
	for len(out) < n {
		if err := r.Recv(within(t), b); err != nil {
			t.Fatalf("after %d of %d packets: %v", len(out), n, err)
		}
		for i := range b.Len() {
			data := make([]byte, b.PacketLen(i))
			b.CopyTo(data, i)
			out = append(out, fmt.Sprintf("%d %s", b.Conn(i), data))
		}
		b.Release()
	}
	return out
}

// TestHandOver closes a receive queue and makes another one, again and again: nothing that is sent
// later is lost.
func TestHandOver(t *testing.T) {
	for _, mode := range []string{"mode post", "mode wire", "mode wire; delay 50us; seed 7"} {
		t.Run(mode, func(t *testing.T) {
			s, c, _ := onFake(t, mode).pair(t, Options{}, Options{})
			out := tx(t, c, engine.TxSpec{})
			for i := range 20 {
				q := rx(t, s, engine.RxSpec{Depth: 16})
				for k := range i % 3 {
					put(t, out, 0, fmt.Sprint(i, k))
					got(t, q, 1)
				}
				if err := q.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
