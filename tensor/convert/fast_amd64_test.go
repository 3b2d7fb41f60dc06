//go:build !noasm

package convert

import (
	"fmt"
	"testing"

	"github.com/penstock-io/penstock/tensor"
)

// each makes a conversion as on this processor, as on one without AVX-512, and as on one without
// kernels.
func each(t *testing.T, s Spec) (out []*Converter) {
	a, b := hasAVX2, hasAVX512
	defer func() { hasAVX2, hasAVX512 = a, b }()
	for _, p := range [][2]bool{{a, b}, {a, false}, {false, false}} {
		hasAVX2, hasAVX512 = p[0], p[1]
		c, err := New(s)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, c)
	}
	return out
}

// No kernel loads a byte behind the input: the last block begins where as many bytes are left as it
// loads.
func TestLoadsWithin(t *testing.T) {
	for _, f := range formats() {
		for _, c := range each(t, Spec{From: f, To: tensor.F32}) {
			x := &c.fast
			if x.kernel == nil {
				continue
			}
			for n := range 200 {
				n = n / c.unit * c.unit
				if k := x.run(make([]byte, n/c.unit*c.out), make([]byte, n)); k > n || k > 0 && k < n &&
					k-x.in+x.load > n {
					t.Errorf("%v: the last block of %d bytes of %d loads up to %d", f, k, n, k-x.in+x.load)
				}
			}
		}
	}
}

// With AVX-512 there is a kernel for each conversion.
func TestEachConversionHasAKernel(t *testing.T) {
	if !hasAVX512 {
		return
	}
	for _, f := range formats() {
		for _, to := range elements {
			for _, scale := range []float64{1, 0.5, 0.3} {
				if c, err := New(Spec{From: f, To: to, Scale: scale}); err != nil || c.fast.kernel == nil {
					t.Errorf("%v times %v to %v: %v, no kernel", f, scale, to, err)
				}
			}
		}
	}
}

func BenchmarkProcessors(b *testing.B) {
	x, y := hasAVX2, hasAVX512
	defer func() { hasAVX2, hasAVX512 = x, y }()
	src, dst := make([]byte, 8192), make([]byte, 65536)
	for _, to := range []tensor.DType{tensor.I16, tensor.F16, tensor.BF16, tensor.F32} {
		for _, scale := range []float64{1, 0.3} {
			for _, avx512 := range []bool{false, true} {
				hasAVX512 = avx512 && y
				c, err := New(Spec{From: Format{Bits: 16, BigEndian: true}, To: to, Scale: scale})
				if err != nil {
					b.Fatal(err)
				}
				b.Run(fmt.Sprintf("int16 times %v to %v AVX-512 %v", scale, to, avx512), func(b *testing.B) {
					b.SetBytes(int64(c.OutLen(len(src))))
					for b.Loop() {
						c.Convert(dst, src)
					}
				})
			}
		}
	}
}
