package tensor_test

import (
	"bytes"
	"encoding/hex"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/tensor"
)

func TestDescBytes(t *testing.T) {
	const big = 1 << 40
	for _, c := range []struct {
		name   string
		d      tensor.Desc
		elems  int64
		bytes  int64 // -1: an error
		rowMaj bool
		colMaj bool
	}{
		{"scalar", tensor.Desc{DType: tensor.F64}, 1, 8, true, true},
		{"vector", tensor.Desc{DType: tensor.I4, Shape: []int64{5}}, 5, 3, true, true},
		{"matrix", tensor.Desc{DType: tensor.F32, Shape: []int64{2, 3}}, 6, 24, true, false},
		{"matrix, explicit strides", tensor.Desc{DType: tensor.F32, Shape: []int64{2, 3}, Strides: []int64{3, 1}}, 6, 24, true, false},
		{"transposed", tensor.Desc{DType: tensor.F32, Shape: []int64{2, 3}, Strides: []int64{1, 2}}, 6, 24, false, true},
		{"gaps", tensor.Desc{DType: tensor.F32, Shape: []int64{2, 3}, Strides: []int64{4, 1}}, 6, 28, false, false},
		{"repeated", tensor.Desc{DType: tensor.F32, Shape: []int64{5, 3}, Strides: []int64{0, 1}}, 15, 12, false, false},
		{"ones", tensor.Desc{DType: tensor.U8, Shape: []int64{1, 4, 1}, Strides: []int64{99, 1, 77}}, 4, 4, true, true},
		{"empty", tensor.Desc{DType: tensor.U8, Shape: []int64{3, 0}, Strides: []int64{9, 9}}, 0, 0, true, true},
		{"empty but too big", tensor.Desc{DType: tensor.U8, Shape: []int64{big, big, 0}}, 0, -1, false, false},
		{"empty but too big, zero first", tensor.Desc{DType: tensor.U8, Shape: []int64{0, big, big}}, 0, -1, false, false},
		{"elements overflow", tensor.Desc{DType: tensor.U8, Shape: []int64{big, big}}, 0, -1, false, false},
		{"bytes overflow", tensor.Desc{DType: tensor.F64, Shape: []int64{1 << 61}}, 0, -1, false, false},
		{"wraps to a small number", tensor.Desc{DType: tensor.U8, Shape: []int64{1 << 32, 1 << 32, 3}}, 0, -1, false, false},
		{"negative", tensor.Desc{DType: tensor.U8, Shape: []int64{-1, -1}}, 0, -1, false, false},
		{"rank 33", tensor.Desc{DType: tensor.U8, Shape: make([]int64, 33)}, 0, -1, false, false},
		{"no dtype", tensor.Desc{Shape: []int64{1}}, 0, -1, false, false},
		{"few strides", tensor.Desc{DType: tensor.U8, Shape: []int64{1, 1}, Strides: []int64{1}}, 1, -1, false, false},
		{"negative stride", tensor.Desc{DType: tensor.U8, Shape: []int64{2}, Strides: []int64{-1}}, 2, -1, false, false},
		{"stride overflow", tensor.Desc{DType: tensor.U8, Shape: []int64{3}, Strides: []int64{1 << 62}}, 3, -1, false, false},
		{"stride sum overflow", tensor.Desc{DType: tensor.U8, Shape: []int64{2, 2}, Strides: []int64{math.MaxInt64 - 1, 1}}, 4, -1, false, false},
		{"stride sum wraps to a small number", tensor.Desc{DType: tensor.U8, Shape: []int64{2, 2, 2},
			Strides: []int64{math.MaxInt64, math.MaxInt64, 3}}, 8, -1, false, false},
		{"stride bytes overflow", tensor.Desc{DType: tensor.F64, Shape: []int64{2}, Strides: []int64{1 << 61}}, 2, -1, false, false},
	} {
		n, err := c.d.Bytes()
		if c.bytes < 0 && err == nil || c.bytes >= 0 && (err != nil || n != c.bytes) {
			t.Errorf("%s: Bytes() = %d, %v; want %d", c.name, n, err, c.bytes)
		}
		if c.bytes >= 0 {
			if e, err := c.d.Elems(); err != nil || e != c.elems {
				t.Errorf("%s: Elems() = %d, %v; want %d", c.name, e, err, c.elems)
			}
		}
		if (c.d.Validate() == nil) != (c.bytes >= 0) {
			t.Errorf("%s: Validate() = %v", c.name, c.d.Validate())
		}
		if c.d.Contiguous() != c.rowMaj || c.d.ColumnMajor() != c.colMaj {
			t.Errorf("%s: Contiguous() = %v, ColumnMajor() = %v", c.name, c.d.Contiguous(), c.d.ColumnMajor())
		}
		b, err := c.d.AppendBinary([]byte("x"))
		if (err == nil) != (c.bytes >= 0) || err != nil && string(b) != "x" {
			t.Errorf("%s: AppendBinary = %x, %v", c.name, b, err)
		}
	}
}

func TestDescEqualAndString(t *testing.T) {
	row := tensor.Desc{DType: tensor.F32, Shape: []int64{2, 3}}
	explicit := tensor.Desc{DType: tensor.F32, Shape: []int64{2, 3}, Strides: []int64{3, 1}}
	col := tensor.Desc{DType: tensor.F32, Shape: []int64{2, 3}, Strides: tensor.ColumnMajor([]int64{2, 3})}
	if !row.Equal(explicit) || !explicit.Equal(row) || row.Equal(col) || !col.Equal(col) {
		t.Error("Equal: nil and explicit row-major strides are equal, column-major ones are not")
	}
	if row.Equal(tensor.Desc{DType: tensor.I32, Shape: row.Shape}) ||
		row.Equal(tensor.Desc{DType: tensor.F32, Shape: []int64{3, 2}}) {
		t.Error("Equal ignores dtype or shape")
	}
	if got := row.String() + ", " + col.String(); got != "f32[2 3], f32[2 3] strides [1 2]" {
		t.Errorf("String: %s", got)
	}
	if got := (tensor.Desc{DType: tensor.Bool}).String(); got != "bool[]" {
		t.Errorf("String of a scalar: %s", got)
	}
}

func TestDescGolden(t *testing.T) {
	for want, d := range map[string]tensor.Desc{
		"010c0000": {DType: tensor.F32},
		"010b0200" + "0004000000000000" +
			"0003000000000000": {DType: tensor.BF16, Shape: []int64{1024, 768}},
		"01120201" + "0200000000000000" + "0300000000000000" + "0100000000000000" +
			"0200000000000000": {DType: tensor.I4, Shape: []int64{2, 3}, Strides: []int64{1, 2}},
	} {
		b, err := d.AppendBinary(nil)
		if err != nil || hex.EncodeToString(b) != want {
			t.Errorf("%v: %x, %v; want %s", d, b, err, want)
		}
	}
	// The widest one is as large as promised.
	wide := tensor.Desc{DType: tensor.U8, Shape: make([]int64, 32), Strides: make([]int64, 32)}
	if b, err := wide.AppendBinary(nil); err != nil || len(b) != tensor.MaxDescSize {
		t.Errorf("widest desc: %d bytes, %v; want %d", len(b), err, tensor.MaxDescSize)
	}
}

func TestParseDescErrors(t *testing.T) {
	le := func(head string, numbers ...int64) []byte {
		b, err := hex.DecodeString(head)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range numbers {
			for k := range 8 {
				b = append(b, byte(uint64(n)>>(8*k)))
			}
		}
		return b
	}
	for want, b := range map[string][]byte{
		"expected at least 4":  le("010c00"),
		"version 2":            le("020c0000"),
		"dtype code 0":         le("01000000"),
		"dtype code 21":        le("01150000"),
		"rank 33 at byte 2":    le("010c2100"),
		"flags 0x2":            le("010c0102", 1),
		"flags 0x1":            le("010c0001"),
		"expected 20":          le("010c0200", 1, 1)[:19],
		"expected 12 for rank": le("010c0100"),
		"expected 36":          le("010c0201", 1, 2, 3),
		"negative":             le("010c0100", -1),
		"more than":            le("010c0200", 1<<40, 1<<40),
		"stride 0 of":          le("010c0101", 2, -1),
	} {
		d, rest, err := tensor.ParseDesc(b)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%x: %v, %v; want an error with %q", b, d, err, want)
		}
		if len(rest) != len(b) {
			t.Errorf("%x: consumed bytes along with an error", b)
		}
	}
}

// genDesc draws valid descriptions of small tensors: contiguous, permuted, with gaps, repeated, of
// every dtype and rank.
func genDesc() *rapid.Generator[tensor.Desc] {
	return rapid.Custom(func(t *rapid.T) tensor.Desc {
		d := tensor.Desc{DType: rapid.SampledFrom(tensor.DTypes()).Draw(t, "dtype")}
		rank := rapid.IntRange(0, 6).Draw(t, "rank")
		if rapid.IntRange(0, 20).Draw(t, "deep") == 0 {
			rank = tensor.MaxRank
		}
		for range rank {
			top := int64(5)
			if rank > 6 {
				top = 1
			}
			d.Shape = append(d.Shape, rapid.Int64Range(0, top).Draw(t, "dim"))
		}
		if rank > 0 && rapid.Bool().Draw(t, "strided") {
			order := rapid.Permutation(slices.Collect(func(yield func(int) bool) {
				for i := range rank {
					if !yield(i) {
						return
					}
				}
			})).Draw(t, "order")
			d.Strides = make([]int64, rank)
			next := int64(1)
			for _, i := range order {
				d.Strides[i] = next * rapid.Int64Range(0, 2).Draw(t, "gap")
				next *= max(d.Shape[i], 1)
			}
		}
		return d
	})
}

func TestDescRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := genDesc().Draw(t, "desc")
		b, err := d.AppendBinary(nil)
		if err != nil {
			t.Fatalf("%v: %v", d, err)
		}
		back, rest, err := tensor.ParseDesc(append(b, "tail"...))
		if err != nil || string(rest) != "tail" || !back.Equal(d) || back.String() != d.String() {
			t.Fatalf("%v came back as %v, rest %q, %v", d, back, rest, err)
		}
	})
}

// Bytes against its definition: one more than the highest element that any index reaches.
func TestDescBytesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := genDesc().Draw(t, "desc")
		strides := d.Strides
		if strides == nil {
			strides = tensor.RowMajor(d.Shape)
		}
		elems, last := int64(0), int64(-1)
		seen := map[int64]bool{}
		index := make([]int64, len(d.Shape))
		inOrder := true
		for !slices.Contains(d.Shape, 0) {
			at := int64(0)
			for i, x := range index {
				at += x * strides[i]
			}
			inOrder = inOrder && at == elems
			elems++
			last = max(last, at)
			seen[at] = true
			i := len(index) - 1
			for ; i >= 0; i-- {
				if index[i]++; index[i] < d.Shape[i] {
					break
				}
				index[i] = 0
			}
			if i < 0 {
				break
			}
		}
		wantBytes := ((last+1)*int64(d.DType.Bits()) + 7) / 8
		if n, err := d.Bytes(); err != nil || n != wantBytes {
			t.Fatalf("%v: Bytes() = %d, %v; want %d", d, n, err, wantBytes)
		}
		if n, err := d.Elems(); err != nil || n != elems {
			t.Fatalf("%v: Elems() = %d, %v; want %d", d, n, err, elems)
		}
		if d.Contiguous() != inOrder {
			t.Fatalf("%v: Contiguous() = %v; want %v", d, d.Contiguous(), inOrder)
		}
	})
}

func FuzzParseDesc(f *testing.F) {
	for _, d := range []tensor.Desc{
		{DType: tensor.F32},
		{DType: tensor.BF16, Shape: []int64{1024, 768}},
		{DType: tensor.I4, Shape: []int64{2, 3}, Strides: []int64{1, 2}},
		{DType: tensor.U8, Shape: make([]int64, 32), Strides: make([]int64, 32)},
	} {
		b, err := d.AppendBinary(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)-1])
	}
	f.Add([]byte{1, 12, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		d, rest, err := tensor.ParseDesc(b)
		if err != nil {
			return
		}
		if err := d.Validate(); err != nil {
			t.Fatalf("accepted an invalid desc %v: %v", d, err)
		}
		again, err := d.AppendBinary(nil)
		if err != nil || !bytes.Equal(again, b[:len(b)-len(rest)]) {
			t.Fatalf("%x parsed as %v and encodes as %x, %v", b, d, again, err)
		}
	})
}
