package engine

import (
	"errors"
	"testing"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// A front asks the device for descriptors when there are too few, and only then; it counts what it
// refuses, and refuses all after Shut.
func TestTxFront(t *testing.T) {
	pool := newPool(t, 32)
	sink := &holdingSink{}
	o, err := NewOutbox(sink, 4, true)
	if err != nil {
		t.Fatal(err)
	}
	var f TxFront
	asked := 0
	f.Start(7, NewTxSlots([]*mem.Pool{pool}, []*burst.Source{burst.PoolSource(pool)}, 0, 0), o, func() {
		asked++
		o.Complete(sink.taken)
		sink.taken = 0
	})
	b, in := burst.New(8), burst.New(8)
	alloc := func(n, want int, why error, asks int) {
		t.Helper()
		if got, err := f.Alloc(b, n, 10); got != want || !errors.Is(err, why) || asked != asks {
			t.Fatalf("Alloc of %d: %d and %v, the device was asked %d times; expected %d, %v and %d", n, got, err,
				asked, want, why, asks)
		}
	}
	received := func(n int) {
		for range n {
			h, err := pool.Get()
			if err != nil {
				t.Fatal(err)
			}
			in.Builder().Add(burst.PoolSource(pool),
				burst.Segment{Handle: h.Handle(), Off: pool.Offset(h.Handle()), Len: 10})
		}
	}
	alloc(4, 4, nil, 0)
	if err := f.Send(b); err != nil {
		t.Fatal(err)
	}
	alloc(3, 3, nil, 1)
	b.Release()
	alloc(6, 4, ErrFull, 2)
	received(2)
	if n, err := f.ForwardReached(in); n != 0 || err != ErrFull || asked != 3 {
		t.Fatal(n, err, asked)
	}
	b.Release()
	received(3)
	if n, err := f.ForwardAny(in); n != 3 || err != nil || asked != 3 {
		t.Fatal(n, err, asked)
	}
	if err := f.Send(in); err != nil {
		t.Fatal(err)
	}
	want := TxStats{Forwarded: 3, Queued: 3, Full: 2}
	var s TxStats
	if f.AddStats(&s); s != want || f.ID() != 7 {
		t.Errorf("%+v, expected %+v", s, want)
	}
	if n, err := f.ForwardReached(nil); n != 0 || err != ErrNil {
		t.Error(n, err)
	}
	f.Shut()
	alloc(1, 0, ErrClosed, 3)
	received(1)
	if n, err := f.ForwardAny(in); n != 0 || err != ErrClosed {
		t.Error(n, err)
	}
	o.Complete(sink.taken)
	if err := f.Drain(t.Context()); err != nil || pool.Stats().InUse != 0 {
		t.Errorf("%v, %d slots are out", err, pool.Stats().InUse)
	}
}

// holdingSink takes everything, and completes nothing.
type holdingSink struct{ taken int }

func (s *holdingSink) Transmit(b *burst.Burst, from, to int) (int, time.Time) {
	s.taken += b.Builder().LivePart(from, to)
	return to, time.Time{}
}

// counting is a queue with a count.
type counting struct{ packets uint64 }

func (c *counting) Stats(s *TxStats) { *s = TxStats{Packets: c.packets} }

// However many queues come and go: the sum over those that are and were and the past is what all
// have counted, also later.
func TestRetireTx(t *testing.T) {
	var open, gone []*counting
	var past TxStats
	check := func(want uint64) {
		t.Helper()
		sum := past
		if SumTx(&sum, open, gone); sum.Packets != want {
			t.Fatalf("%d packets, expected %d, of %d queues that are and %d that were", sum.Packets, want, len(open),
				len(gone))
		}
	}
	total := uint64(0)
	for i := range 3 * keepRetired {
		q, other := &counting{uint64(i)}, &counting{}
		total += uint64(i)
		open = append(open, q, other)
		before := open
		open, gone = RetireTx(q, open, gone, &past)
		if len(open) != i+1 || open[i] != other || before[len(before)-2] != q || len(gone) > keepRetired {
			t.Fatalf("%d are open, %d were", len(open), len(gone))
		}
		check(total)
		open, gone = RetireTx(q, open, gone, &past) // again
		check(total)
		q.packets++ // late
		total++
		check(total)
	}
}

// BenchmarkTxFront is Alloc and Send of 32 packets without a device: by the parts themselves, and
// by a front of them.
func BenchmarkTxFront(b *testing.B) {
	for _, kind := range []string{"parts", "front"} {
		b.Run(kind, func(b *testing.B) {
			pool := newPool(b, 64)
			slots := NewTxSlots([]*mem.Pool{pool}, []*burst.Source{burst.PoolSource(pool)}, 0, 0)
			o, err := NewOutbox(nullSink{}, 64, false)
			if err != nil {
				b.Fatal(err)
			}
			defer o.Close()
			var f TxFront
			f.Start(0, slots, o, func() {})
			alloc, send := f.Alloc, f.Send
			if kind == "parts" {
				alloc = func(x *burst.Burst, n, length int) (int, error) { return slots.Alloc(o, x, n, length) }
				send = o.Send
			}
			x := burst.New(32)
			b.ReportAllocs()
			for b.Loop() {
				if n, err := alloc(x, 32, 10); n != 32 {
					b.Fatal(err)
				}
				if err := send(x); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
