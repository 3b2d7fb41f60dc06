package tensor_test

import (
	"bytes"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/tensor"
)

func TestNew(t *testing.T) {
	d := tensor.Desc{DType: tensor.F32, Shape: []int64{2, 3}}
	data := make([]byte, 25)
	x, err := tensor.New("w", d, data[:24])
	if err != nil {
		t.Fatal(err)
	}
	if &x.Bytes()[0] != &data[0] || len(x.Bytes()) != 24 || cap(x.Bytes()) != 24 {
		t.Error("Bytes is not exactly the memory that was given")
	}
	if got := x.String(); got != `"w" f32[2 3] 24 B` {
		t.Errorf("String: %s", got)
	}
	for _, n := range []int{0, 23, 25} {
		if _, err := tensor.New("w", d, data[:n]); err == nil || !strings.Contains(err.Error(), "expected 24") {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if _, err := tensor.New("w", tensor.Desc{DType: tensor.U8, Shape: []int64{-1}}, nil); err == nil {
		t.Error("a negative dimension was accepted")
	}
}

func TestViewErrors(t *testing.T) {
	tens := func(d tensor.Desc) tensor.Tensor {
		n, err := d.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		x, err := tensor.New("x", d, make([]byte, n))
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	rows := tens(tensor.Desc{DType: tensor.U8, Shape: []int64{4, 2}})
	packed := tens(tensor.Desc{DType: tensor.I4, Shape: []int64{4, 3}})
	for _, c := range []struct {
		x      tensor.Tensor
		lo, hi int64
		want   string
	}{
		{tens(tensor.Desc{DType: tensor.U8}), 0, 0, "scalar"},
		{rows, -1, 2, "expected 0 <= lo"},
		{rows, 3, 2, "expected 0 <= lo"},
		{rows, 0, 5, "expected 0 <= lo"},
		{packed, 1, 3, "whole bytes"},
		{packed, 0, 1, "whole bytes"},
		{tensor.Tensor{Desc: rows.Desc}, 1, 2, "was it made by New"},
		{tensor.Tensor{Desc: tensor.Desc{DType: tensor.U8, Shape: []int64{4}, Strides: []int64{1 << 62}}}, 2, 3, "was it made by New"},
	} {
		if v, err := c.x.View(c.lo, c.hi); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v [%d:%d]: %v, %v; want an error with %q", c.x, c.lo, c.hi, v, err, c.want)
		}
	}
	for _, r := range [][2]int64{{0, 2}, {2, 4}, {0, 4}, {3, 3}} {
		if v, err := packed.View(r[0], r[1]); err != nil || len(v.Bytes()) != int(r[1]-r[0])*3/2 {
			t.Errorf("packed [%d:%d]: %v, %v", r[0], r[1], v, err)
		}
	}
}

// A view must hold exactly the rows of the original, in the same memory.
func TestViewIsTheSameMemory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := genDesc().Filter(func(d tensor.Desc) bool {
			return len(d.Shape) > 0 && d.DType.Bits() >= 8
		}).Draw(t, "desc")
		n, err := d.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		data := make([]byte, n)
		for i := range data {
			data[i] = byte(i % 251)
		}
		x, err := tensor.New("x", d, data)
		if err != nil {
			t.Fatal(err)
		}
		before := x.Desc.String()
		lo := rapid.Int64Range(0, d.Shape[0]).Draw(t, "lo")
		hi := rapid.Int64Range(lo, d.Shape[0]).Draw(t, "hi")
		v, err := x.View(lo, hi)
		if err != nil {
			t.Fatal(err)
		}
		if vn, err := v.Desc.Bytes(); err != nil || vn != int64(len(v.Bytes())) || v.Desc.Shape[0] != hi-lo {
			t.Fatalf("view %v of %v has %d bytes; its desc says %d, %v", v, x, len(v.Bytes()), vn, err)
		}
		if x.Desc.String() != before {
			t.Fatalf("View changed the original from %s to %s", before, x.Desc)
		}
		if len(v.Bytes()) == 0 {
			return
		}
		stride := tensor.RowMajor(d.Shape)[0]
		if d.Strides != nil {
			stride = d.Strides[0]
		}
		from := lo * stride * int64(d.DType.Bits()/8)
		if &v.Bytes()[0] != &data[from] || !bytes.Equal(v.Bytes(), data[from:from+int64(len(v.Bytes()))]) {
			t.Fatalf("view [%d:%d] of %v begins elsewhere", lo, hi, x)
		}
	})
}
