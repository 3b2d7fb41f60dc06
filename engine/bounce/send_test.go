package bounce_test

import (
	"errors"
	"runtime"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/bounce"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// What lies in device memory is sent from there, in order and as it is: packets of the device, of
// the host, of both, and those that bounce buffers received.
func TestSend(t *testing.T) {
	c := newCard(t, false)
	l := newLine(t, bounce.Options{Bursts: 2, Packets: 8})
	device, heads := c.pool(t, "device", 2048, 256),
		newPool(t, mem.PoolOptions{Name: "heads", SlotSize: 64, Slots: 256})
	back, err := l.a.AddRxQueue(engine.RxSpec{Depth: 1024,
		Pools: []*mem.Pool{newPool(t, mem.PoolOptions{Name: "back", SlotSize: 2112, Slots: 1024})}})
	if err != nil {
		t.Fatal(err)
	}
	rx := engine.NewRx(back, engine.Batching{})
	write := func(s mem.Span, b []byte) {
		t.Helper()
		to, err := gpumem.Span(s)
		if err != nil {
			t.Fatal(err)
		}
		stream, err := c.Context().NewStream(gpu.StreamOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(stream.Write(to, b), stream.Close()); err != nil {
			t.Fatal(err)
		}
	}
	for _, pools := range [][]*mem.Pool{{device}, {heads, device}} {
		tx, err := l.b.AddTxQueue(engine.TxSpec{Depth: 64, Pools: pools})
		if err != nil {
			t.Fatal(err)
		}
		l.sent, l.got = 0, 0
		for range 10 {
			for range 3 {
				n, err := tx.Alloc(l.out, 20, 1990)
				if n != 20 || err != nil {
					t.Fatal(n, err)
				}
				for i := range n {
					p := packet(l.sent)
					if len(pools) == 2 {
						l.out.SetLen(i, 0, copy(l.out.Bytes(i, 0), p[:42]))
						p = p[42:]
					}
					k := len(pools) - 1
					if l.out.Bytes(i, k) != nil || !l.out.SetLen(i, k, len(p)) {
						t.Fatal("the payload is not in device memory")
					}
					write(mem.Span{Region: l.out.Segment(i, k).Region, Off: l.out.Segment(i, k).Off,
						Len: uint64(len(p))}, p)
					l.sent++
				}
				if err := tx.Send(l.out); err != nil {
					t.Fatal(err)
				}
			}
			l.take(rx, 60)
		}
		if err := tx.Drain(t.Context()); err != nil { // a packet may be here before its sender has counted it
			t.Fatal(err)
		}
		var s engine.TxStats
		if tx.Stats(&s); s.Packets != 600 || s.Copied != s.Bytes || s.Queued != 0 || s.Drops.Total() != 0 ||
			s.Full != 0 {
			t.Errorf("%+v", s)
		}
		if n, err := tx.Alloc(l.out, 1, 1990); n != 1 || err != nil { // given back with its descriptor
			t.Error(n, err)
		}
		l.out.Release()
		if err := tx.Close(); err != nil {
			t.Error(err)
		}
		if n := device.Stats().InUse + heads.Stats().InUse; n != 0 {
			t.Errorf("%d slots are out", n)
		}
	}
	// What was received by way of bounce buffers goes back out.
	q := l.rx(heads, device)
	tx, err := l.b.AddForwarder(engine.TxSpec{Depth: 256, Pools: []*mem.Pool{heads}}, []*mem.Pool{heads, device})
	if err != nil {
		t.Fatal(err)
	}
	plain, err := l.b.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{heads}})
	if err != nil {
		t.Fatal(err)
	}
	l.sent, l.got = 0, 0
	staged := engine.NewRx(q, engine.Batching{})
	for range 10 {
		l.send(50)
		for moved := 0; moved < 50; {
			if err := staged.Recv(t.Context(), l.in); err != nil {
				t.Fatal(err)
			}
			moved += l.in.Len()
			if n, err := tx.Forward(l.in); n != l.in.Len() || err != nil {
				t.Fatal(n, err)
			}
			if err := tx.Send(l.in); err != nil {
				t.Fatal(err)
			}
		}
		l.take(rx, 50)
	}
	// A queue without bounce buffers refuses, and gives the packets back.
	l.send(4)
	if err := staged.Recv(t.Context(), l.in); err != nil {
		t.Fatal(err)
	}
	if n, err := plain.Forward(l.in); n != 0 || !errors.Is(err, engine.ErrUnsupported) || l.in.Len() != 0 {
		t.Errorf("%d, %v", n, err)
	}
}

// A burst with a part in memory of another device, which the port cannot copy, is dropped.
func TestSendForeign(t *testing.T) {
	l := newLine(t, bounce.Options{})
	own, other := newCard(t, false).pool(t, "own", 2048, 16), newCard(t, false).pool(t, "other", 2048, 16)
	tx, err := l.b.AddTxQueue(engine.TxSpec{Depth: 64, Pools: []*mem.Pool{own}})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := tx.Alloc(l.out, 1, 100); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	var slot [1]mem.Handle
	other.GetBatch(slot[:])
	l.out.Builder().AddSegment(burst.PoolSource(other),
		burst.Segment{Handle: slot[0], Off: other.Offset(slot[0]), Len: 100})
	if err := tx.Send(l.out); err != nil {
		t.Error(err)
	}
	var s engine.TxStats
	if tx.Stats(&s); s.Drops[engine.DropRefused] != 1 || s.Queued != 0 {
		t.Errorf("%+v", s)
	}
	if n := own.Stats().InUse + other.Stats().InUse; n != 0 {
		t.Errorf("%d slots are out", n)
	}
	if err := tx.Close(); err != nil {
		t.Error(err)
	}
}

// A transmit queue whose device is lost drops what it has, counts it, and says so.
func TestSendLost(t *testing.T) {
	c := newCard(t, false)
	l := newLine(t, bounce.Options{})
	device := c.pool(t, "device", 2048, 64)
	tx, err := l.b.AddTxQueue(engine.TxSpec{Depth: 64, Pools: []*mem.Pool{device}})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := tx.Alloc(l.out, 20, 100); n != 20 || err != nil {
		t.Fatal(n, err)
	}
	fault(t, c.Context())
	if err := tx.Send(l.out); err != nil {
		t.Error(err)
	}
	if err := tx.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	var s engine.TxStats
	if tx.Stats(&s); s.Drops[engine.DropDown] != 20 || s.Packets != 0 || s.Queued != 0 {
		t.Errorf("%+v", s)
	}
	if _, err := tx.Alloc(l.out, 1, 100); !errors.Is(err, gpu.ErrDeviceLost) {
		t.Errorf("%v", err)
	}
	if n := device.Stats().InUse; n != 0 {
		t.Errorf("%d slots are out", n)
	}
}

// round sends 64 packets to the device and back: four kinds of work, none of which allocates.
func (l *line) round(q engine.RxQueue, tx engine.TxQueue, back engine.RxQueue) {
	n, err := l.tx.Alloc(l.out, 64, 1500)
	if n != 64 || err != nil {
		l.t.Fatal(n, err)
	}
	l.tx.Send(l.out)
	for moved := 0; moved < 64; {
		n, err := q.TryRecv(l.in)
		if err != nil {
			l.t.Fatal(err)
		}
		if n == 0 {
			runtime.Gosched()
			continue
		}
		moved += n
		if tx == nil {
			l.in.Release()
			continue
		}
		tx.Forward(l.in)
		tx.Send(l.in)
	}
	for got := 0; tx != nil && got < 64; {
		n, err := back.TryRecv(l.in)
		if err != nil {
			l.t.Fatal(err)
		}
		if got += n; n == 0 {
			runtime.Gosched()
		}
		l.in.Release()
	}
}

// loop is a line with queues for rounds; with send also back.
func newLoop(t testing.TB, c *card, send bool) func() {
	l := newLine(t, bounce.Options{})
	body := c.pool(t, "body", 2048, 1024)
	q := l.rx(body)
	var tx engine.TxQueue
	var back engine.RxQueue
	if send {
		var err error
		if tx, err = l.b.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{body}}); err != nil {
			t.Fatal(err)
		}
		if back, err = l.a.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{newPool(t,
			mem.PoolOptions{Name: "back", SlotSize: 2048, Slots: 1024})}}); err != nil {
			t.Fatal(err)
		}
	}
	return func() { l.round(q, tx, back) }
}

func TestNothingIsAllocated(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithRace|testenv.WithInvariants, "these builds allocate")
	round := newLoop(t, newCard(t, false), true)
	for range 100 {
		round()
	}
	if n := testing.AllocsPerRun(200, round); n >= 1 {
		t.Errorf("%v allocations for 64 packets there and back", n)
	}
}

// BenchmarkReceive brings bursts of 64 packets of 1500 bytes into memory of the runtime host; an op
// is a packet. BenchmarkThereAndBack sends them from there as well.
func BenchmarkReceive(b *testing.B) { benchmark(b, false) }

func BenchmarkThereAndBack(b *testing.B) { benchmark(b, true) }

func benchmark(b *testing.B, send bool) {
	round := newLoop(b, newCard(b, false), send)
	for range 100 {
		round()
	}
	b.SetBytes(1500)
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i += 64 {
		round()
	}
}
