package engine

import (
	"errors"
	"testing"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/mem"
)

// TestTxSlotsSplit exhausts descriptors, headers and payloads in turn: nothing of a packet that could not be made stays out.
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
			t.Fatalf("%d headers and %d payloads are out, %d descriptors free; expected %d, %d and %d", heads.Stats().InUse, data.Stats().InUse, o.Free(),
				h, d, free)
		}
	}
	check(b, 3, 3, nil)
	out(3, 3, 2)
	if b.Role(0, 0) != burst.Header || b.Headroom(0) != 16 || len(b.Bytes(2, 0)) != size-16 || len(b.Bytes(2, 1)) != 20 || b.SegmentCap(2, 1) != size {
		t.Errorf("a header of %d bytes with %d before it, a payload of %d", len(b.Bytes(2, 0)), b.Headroom(0), len(b.Bytes(2, 1)))
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
