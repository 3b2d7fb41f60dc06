package null

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/enginetest"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, address string) engine.Port {
	t.Helper()
	p, err := New().OpenPort(t.Context(), engine.PortSpec{Address: address})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func newPool(t testing.TB, size, slots int) *mem.Pool {
	t.Helper()
	p, err := mem.NewPool(mem.PoolOptions{SlotSize: size, Slots: slots})
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

// receiver opens a port with a receive queue, closed before its pool.
func receiver(t testing.TB, address string, pool *mem.Pool) (engine.Port, engine.RxQueue) {
	t.Helper()
	p := open(t, address)
	t.Cleanup(func() { p.Close() })
	q, err := p.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{pool}})
	if err != nil {
		t.Fatal(err)
	}
	return p, q
}

func TestConformance(t *testing.T) {
	enginetest.Run(t, enginetest.Harness{Alone: true, Open: func(t testing.TB) enginetest.Pair {
		return enginetest.Pair{A: open(t, "null://"), B: open(t, "null://?size=1024")}
	}})
}

// Packets are UDP frames of the port's size, each in a slot of the pool.
func TestPackets(t *testing.T) {
	pool := newPool(t, 2048, 100)
	p, q := receiver(t, "null://?size=1500", pool)
	b := burst.New(128)
	if n, err := q.TryRecv(b); n != 100 || err != nil || pool.Stats().InUse != 100 {
		t.Fatalf("%d packets of 100 slots, %v", n, err)
	}
	for i := range b.Len() {
		var l packet.Layers
		f := b.Bytes(i, 0)
		packet.Parse(f, &l)
		if len(f) != 1500 || l.DstPort != 9 && !testenv.Invariants || b.SegmentCap(i, 0) != 2048 {
			// invariants: what is released is overwritten
			t.Fatalf("packet %d has %d bytes: % x", i, len(f), f[:min(64, len(f))])
		}
	}
	// Sent, they come back to the pool.
	tx, err := p.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{newPool(t, 64, 4)}, SourceMAC: true})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := tx.Forward(b); n != 100 || err != nil {
		t.Fatal(n, err)
	}
	if err := tx.Send(b); err != nil || pool.Stats().InUse != 0 {
		t.Fatalf("%v; %d slots are out", err, pool.Stats().InUse)
	}
	var s engine.PortStats
	if p.Stats(&s); s.Rx.Packets != 100 || s.Rx.Bytes != 150000 || s.Tx.Packets != 100 || s.Tx.Bytes != 150000 ||
		s.Tx.Forwarded != 100 || s.Tx.Copied != 0 {
		t.Errorf("%+v", s)
	}
	p.Close()
}

// A queue whose pool is empty looks again by itself: there is no descriptor that could wake its
// owner.
func TestEmptyPool(t *testing.T) {
	pool := newPool(t, 64, 8)
	_, q := receiver(t, "null://", pool)
	b, more := burst.New(16), burst.New(16)
	if n, err := q.TryRecv(b); n != 8 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := q.TryRecv(more); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	w := engine.NewWaker()
	if q.Arm(w) {
		t.Error("ready without memory")
	}
	<-w.C()
	b.Release()
	rx := engine.NewRx(q, engine.Batching{Packets: 8, Timeout: time.Minute})
	if err := rx.Recv(t.Context(), b); err != nil || b.Len() != 8 {
		t.Errorf("%d packets, %v", b.Len(), err)
	}
	if n, err := q.Discard(); n != 0 || err != nil {
		t.Errorf("%d packets that were not made are thrown away, %v", n, err)
	}
	b.Release()
}

func TestRefused(t *testing.T) {
	for _, s := range []engine.PortSpec{{Address: "eth0"}, {Address: "null://host"}, {Address: "null://?size=41"},
		{Address: "null://?size=x"}, {Address: "null://?sise=64"},
		{Address: "null://", Options: 7}} {
		if _, err := New().OpenPort(t.Context(), s); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%+v: %v", s, err)
		}
	}
	if _, err := New().OpenPort(t.Context(), engine.PortSpec{Address: "null://", Isolated: true}); !errors.Is(err,
		engine.ErrUnsupported) {
		t.Error(err)
	}
	p := open(t, "null://?size=1000")
	defer p.Close()
	if _, err := p.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{newPool(t, 999, 4)}}); !errors.Is(err,
		engine.ErrInvalid) {
		t.Error(err)
	}
}

// docs/write-an-engine.md shows the source as it is.
func TestDocument(t *testing.T) {
	read := func(names ...string) (text string) {
		for _, name := range names {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			text += string(b)
		}
		return text
	}
	source := read("null.go", "spec.go", "queues.go", "null_test.go")
	blocks := strings.Split(read("../../docs/write-an-engine.md"), "```")
	if len(blocks) < 20 {
		t.Fatalf("%d parts", len(blocks))
	}
	for i := 1; i < len(blocks); i += 2 {
		if code := strings.TrimPrefix(blocks[i], "go\n"); !strings.Contains(source, code) {
			t.Errorf("this is not in the source:\n%s", code)
		}
	}
}
