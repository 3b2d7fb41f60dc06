package socket

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// newPool makes a pool that must be whole again at the end.
func newPool(t testing.TB, size, slots int) *mem.Pool {
	t.Helper()
	p, err := mem.NewPool(mem.PoolOptions{Name: t.Name(), SlotSize: size, Slots: slots})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		eventually(t, "memory to come back", func() bool { return p.Stats().InUse == 0 })
		if s := p.Stats(); s.Rejected > 0 {
			t.Errorf("%d slots were released twice", s.Rejected)
		}
		p.Close()
	})
	return p
}

// eventually waits for something of which no event tells.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for limit := time.Now().Add(time.Minute); !done(); <-tick.C {
		if time.Now().After(limit) {
			t.Fatalf("waited a minute for %s", what)
		}
	}
}

// reader receives on a new queue of a port.
type reader struct {
	t  testing.TB
	q  engine.RxQueue
	rx *engine.Rx
	b  *burst.Burst
}

func newReader(t testing.TB, p engine.Port, spec engine.RxSpec) *reader {
	t.Helper()
	if spec.Pools == nil {
		spec.Pools = []*mem.Pool{newPool(t, 2048, 512)}
	}
	q, err := p.AddRxQueue(spec)
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{t, q, engine.NewRx(q, engine.Batching{}), burst.NewSegmented(64, 64)}
	t.Cleanup(func() {
		r.b.Release()
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// more waits for packets, which are in b until the next call.
func (r *reader) more() *burst.Burst {
	r.t.Helper()
	r.b.Release()
	if err := r.rx.Recv(within(r.t), r.b); err != nil {
		r.t.Fatal(err)
	}
	return r.b
}

// none demands that nothing is there.
func (r *reader) none() {
	r.t.Helper()
	r.b.Release()
	if n, err := r.q.TryRecv(r.b); n != 0 || err != nil {
		r.t.Fatalf("%d packets and %v where nothing should be; the first: %q", n, err, r.b.Bytes(0, 0))
	}
}

func (r *reader) drops() engine.Drops {
	var s engine.RxStats
	r.q.Stats(&s)
	return s.Drops
}

// writer sends on a new queue of a port.
type writer struct {
	t testing.TB
	q engine.TxQueue
	b *burst.Burst
}

func newWriter(t testing.TB, p engine.Port, spec engine.TxSpec) *writer {
	t.Helper()
	if spec.Pools == nil {
		spec.Pools = []*mem.Pool{newPool(t, 2048, 512)}
	}
	q, err := p.AddTxQueue(spec)
	if err != nil {
		t.Fatal(err)
	}
	w := &writer{t, q, burst.NewSegmented(64, 64)}
	t.Cleanup(func() {
		w.b.Release()
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// send sends packets to a connection.
func (w *writer) send(conn uint32, packets ...string) {
	w.t.Helper()
	for len(packets) > 0 {
		most := 0
		k := min(len(packets), w.b.Cap())
		for _, p := range packets[:k] {
			most = max(most, len(p))
		}
		n, err := w.q.Alloc(w.b, k, most)
		if n == 0 && err != nil && err != engine.ErrFull && err != engine.ErrNoBuffers {
			w.t.Fatal(err)
		}
		for i := range n {
			w.b.SetLen(i, 0, copy(w.b.Bytes(i, 0), packets[i]))
			w.b.SetConn(i, conn)
		}
		if err := w.q.Send(w.b); err != nil {
			w.t.Fatal(err)
		}
		if packets = packets[n:]; n == 0 {
			if err := w.q.Drain(within(w.t)); err != nil {
				w.t.Fatal(err)
			}
		}
	}
}

func (w *writer) stats() engine.TxStats {
	var s engine.TxStats
	w.q.Stats(&s)
	return s
}

// drained are the figures when all has left or was dropped.
func (w *writer) drained() engine.TxStats {
	w.t.Helper()
	if err := w.q.Drain(within(w.t)); err != nil {
		w.t.Fatal(err)
	}
	return w.stats()
}

// numbered is a packet of size bytes that carries a number, and bytes that follow from it.
func numbered(n uint64, size int) string {
	b := make([]byte, max(size, 8))
	binary.BigEndian.PutUint64(b, n)
	for i := 8; i < len(b); i++ {
		b[i] = byte(n>>(i%8)) ^ byte(i)
	}
	return string(b)
}

// number is that of a packet, which must be numbered.
func number(t testing.TB, p []byte) uint64 {
	t.Helper()
	if len(p) < 8 {
		t.Fatalf("a packet of %d bytes", len(p))
	}
	n := binary.BigEndian.Uint64(p)
	if string(p) != numbered(n, len(p)) {
		t.Fatalf("packet %d has changed", n)
	}
	return n
}
