package tensor_test

import (
	"strings"
	"testing"

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
