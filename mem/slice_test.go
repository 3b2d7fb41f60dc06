package mem

import (
	"encoding/binary"
	"errors"
	"math"
	"testing"
)

func TestSlice(t *testing.T) {
	r, err := Alloc(Options{Size: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	at := func(off, n uint64) Span { return Span{Region: r, Off: off, Len: n} }
	f, err := Slice[float32](at(8, 16))
	if err != nil || len(f) != 4 || cap(f) != 4 {
		t.Fatalf("%d of %d elements, %v", len(f), cap(f), err)
	}
	f[1] = 1.5
	if bits := binary.NativeEndian.Uint32(at(12, 4).Bytes()); math.Float32frombits(bits) != 1.5 {
		t.Errorf("the region has %#x", bits)
	}
	if c, err := Slice[complex128](at(0, 4096)); err != nil || len(c) != 256 {
		t.Errorf("%d elements, %v", len(c), err)
	}
	if e, err := Slice[int64](at(4096, 0)); err != nil || len(e) != 0 {
		t.Errorf("an empty span: %v, %v", e, err)
	}
	for what, s := range map[string]Span{"half an element": at(0, 6), "outside": at(4092, 8), "no region": {Len: 4}} {
		if _, err := Slice[uint32](s); !errors.Is(err, ErrBounds) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := Slice[uint32](at(2, 8)); !errors.Is(err, ErrUnavailable) {
		t.Errorf("not aligned: %v", err)
	}
	if b, err := Slice[byte](at(3, 5)); err != nil || len(b) != 5 {
		t.Errorf("bytes have no alignment: %v", err)
	}
}
