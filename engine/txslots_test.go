package engine

import (
	"errors"
	"testing"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// TestTxSlotsSplit exhausts descriptors, headers and payloads in turn: nothing of a packet that
// could not be made stays out.
func TestTxSlotsSplit(t *testing.T) {
	heads, data := newPool(t, 6), newPool(t, 4)
	size := heads.SlotSize()
	s := NewTxSlots([]*mem.Pool{heads, data}, []*burst.Source{burst.PoolSource(heads), burst.PoolSource(data)}, 16, 0)
	o, err := NewOutbox(nullSink{}, 5, false)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	b, other := burst.NewSegmented(8, 16), burst.NewSegmented(8, 16)
	check := func(b *burst.Burst, n, want int, why error) {
		t.Helper()
		if got, err := s.Alloc(o, b, n, 20); got != want || !errors.Is(err, why) {
			t.Fatalf("Alloc of %d packets: %d and %v, expected %d and %v", n, got, err, want, why)
		}
	}
	out := func(h, d, free int) {
		t.Helper()
		if heads.Stats().InUse != h || data.Stats().InUse != d || o.Free() != free {
			t.Fatalf("%d headers and %d payloads are out, %d descriptors free; expected %d, %d and %d",
				heads.Stats().InUse, data.Stats().InUse, o.Free(),
				h, d, free)
		}
	}
	check(b, 3, 3, nil)
	out(3, 3, 2)
	if b.Role(0, 0) != burst.Header || b.Headroom(0) != 16 || len(b.Bytes(2, 0)) != size-16 ||
		len(b.Bytes(2, 1)) != 20 || b.SegmentCap(2, 1) != size {
		t.Errorf("a header of %d bytes with %d before it, a payload of %d", len(b.Bytes(2, 0)), b.Headroom(0),
			len(b.Bytes(2, 1)))
	}
	check(other, 3, 1, ErrNoBuffers) // two descriptors, one payload
	out(4, 4, 1)
	other.Release()
	b.Release()
	out(0, 0, 5)
	check(b, 4, 4, nil)
	check(other, 2, 0, ErrNoBuffers)
	out(4, 4, 1)
	b.Release()
	slot, err := data.Get()
	if err != nil {
		t.Fatal(err)
	}
	check(b, 8, 3, ErrNoBuffers)
	b.Release()
	slot.Release()
	check(burst.New(4), 4, 0, ErrInvalid) // no room for two segments each
	check(nil, 1, 0, ErrNil)
	check(b, -1, 0, ErrInvalid)
	if _, err := s.Alloc(o, b, 1, size+1); !errors.Is(err, ErrInvalid) {
		t.Errorf("a payload longer than a slot: %v", err)
	}
	var st TxStats
	if s.AddStats(&st); st.NoBuffers != 3 || st.Full != 0 {
		t.Errorf("%+v", st)
	}
	if o.Reserve(3) != 3 {
		t.Fatal("descriptors are missing")
	}
	check(b, 4, 2, ErrFull)
	b.Release()
	o.Unreserve(3)
	s.CountFull()
	s.AddStats(&st)
	if out(0, 0, 5); st.Full != 2 {
		t.Errorf("%d times too few descriptors, expected 2", st.Full)
	}
}

// TestTxSlotsChain makes packets that are longer than a slot.
func TestTxSlotsChain(t *testing.T) {
	p := newPool(t, 10)
	size := p.SlotSize()
	s := NewTxSlots([]*mem.Pool{p}, []*burst.Source{burst.PoolSource(p)}, 16, 0)
	o, err := NewOutbox(nullSink{}, 5, false)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	b := burst.NewSegmented(8, 16)
	if _, err := s.Alloc(o, b, 1, size-15); !errors.Is(err, ErrInvalid) {
		t.Errorf("longer than a slot without Chain: %v", err)
	}
	s.Chain(4, 100*size)
	for _, c := range []struct {
		n, length, got, segments int
		err                      error
	}{
		{1, size - 16, 1, 1, nil}, {1, size - 15, 1, 2, nil}, {5, 2*size - 16, 5, 2, nil}, {3, 2 * size, 3, 3, nil}, {4, 2 * size, 3, 3, ErrNoBuffers},
		{2, 4*size - 16, 2, 4, nil}, {1, 4*size - 15, 0, 0, ErrInvalid}, {6, 3 * size, 0, 0, ErrInvalid}, {6, size, 5, 2, ErrFull},
	} {
		n, err := s.Alloc(o, b, c.n, c.length)
		if n != c.got || !errors.Is(err, c.err) || p.Stats().InUse != c.got*c.segments || o.Free() != 5-c.got {
			t.Fatalf("%+v: %d and %v, %d slots are out", c, n, err, p.Stats().InUse)
		}
		for i := range n {
			if b.Segments(i) != c.segments || b.PacketLen(i) != c.length || b.Headroom(i) != 16 {
				t.Fatalf("%+v: packet %d has %d segments, %d bytes", c, i, b.Segments(i), b.PacketLen(i))
			}
			for k := range b.Segments(i) { // to the end of the slot, but the last
				if full := len(b.Bytes(i, k)) == b.SegmentCap(i, k); !full && k < b.Segments(i)-1 {
					t.Fatalf("%+v: segment %d has %d bytes", c, k, len(b.Bytes(i, k)))
				}
			}
		}
		b.Release()
	}
}
