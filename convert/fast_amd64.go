//go:build !noasm

package convert

import (
	"encoding/binary"
	"math"

	"golang.org/x/sys/cpu"

	"github.com/penstock-io/penstock/tensor"
)

// layout is how a kernel finds the samples of a block of 8: see tools/convertasm, which has the offsets of its fields.
type layout = [112]byte

// fast is a kernel with its layout; the zero value is none.
type fast struct {
	kernel func(dst, src *byte, blocks int, l *layout)
	l      *layout
	in     int // bytes of a block
	load   int // bytes that the kernel loads for it
	out    int // bytes of its elements
}

type kernels struct {
	signed, unsigned, wide func(dst, src *byte, blocks int, l *layout)
}

var fastKernels = map[tensor.DType]kernels{
	tensor.I8:   {kernelI8Signed, kernelI8Unsigned, kernelI8Wide},
	tensor.U8:   {kernelU8Signed, kernelU8Unsigned, kernelU8Wide},
	tensor.I16:  {kernelI16Signed, kernelI16Unsigned, kernelI16Wide},
	tensor.U16:  {kernelU16Signed, kernelU16Unsigned, kernelU16Wide},
	tensor.I32:  {kernelI32Signed, kernelI32Unsigned, kernelI32Wide},
	tensor.F16:  {kernelF16Signed, kernelF16Unsigned, kernelF16Wide},
	tensor.BF16: {kernelBF16Signed, kernelBF16Unsigned, nil},
	tensor.F32:  {kernelF32Signed, kernelF32Unsigned, kernelF32Wide},
	tensor.F64:  {kernelF64Signed, kernelF64Unsigned, nil},
}

// fastOf is the kernel for a conversion, if there is one on this processor whose results are the same.
func fastOf(f Format, to tensor.DType, scale, offset float64) fast {
	if !cpu.X86.HasAVX2 || !cpu.X86.HasF16C || offset != 0 {
		return fast{}
	}
	k := fastKernels[to]
	x := fast{kernel: k.signed, in: f.Bits, load: 16, out: to.Bits()}
	switch {
	case f.Bits == 32 && f.Unsigned:
		return fast{}
	case f.Bits == 32:
		x.kernel, x.load = k.wide, 32
	case f.Unsigned:
		x.kernel = k.unsigned
	}
	if scale != 1 {
		// Kernels multiply in float32. A power of two is exact there, as long as the number has no more than 24 bits, and neither it nor the product is small.
		_, isFloat := map[tensor.DType]bool{tensor.F16: true, tensor.BF16: true, tensor.F32: true, tensor.F64: true}[to]
		frac, exp := math.Frexp(scale)
		if !isFloat || frac != 0.5 || exp < -100 || exp > 90 || f.Bits == 32 {
			return fast{}
		}
	}
	if x.kernel == nil {
		return fast{}
	}
	x.l = newLayout(f, float32(scale))
	return x
}

func newLayout(f Format, scale float32) *layout {
	l := new(layout)
	for lane := range 8 {
		index := l[4*lane:][:4]
		first := lane * f.Bits // bit
		left := first % 8
		if f.Bits == 32 {
			first = lane % 4 * 32 // each half of the register is shuffled by itself
		} else if !f.BigEndian {
			left = 32 - f.Bits - first%8
		}
		for k := range 4 { // byte k of the sample, in the order of memory
			at := first/8 + k
			if k*8 >= f.Bits+first%8 {
				at = 0x80 // zero
			}
			if f.BigEndian {
				index[3-k] = byte(at)
			} else {
				index[k] = byte(at)
			}
		}
		binary.LittleEndian.PutUint32(l[32+4*lane:], uint32(left))
		binary.LittleEndian.PutUint32(l[64+4*lane:], math.Float32bits(scale))
	}
	binary.LittleEndian.PutUint64(l[96:], uint64(32-f.Bits))
	binary.LittleEndian.PutUint64(l[104:], uint64(f.Bits)) // 8 samples
	return l
}

// run converts the front of src and returns how many bytes that was: whole blocks, so that no load reaches beyond src.
func (x *fast) run(dst, src []byte) int {
	if x.kernel == nil || len(src) < x.load {
		return 0
	}
	n := (len(src)-x.load)/x.in + 1
	_ = dst[:n*x.out]
	x.kernel(&dst[0], &src[0], n, x.l)
	return n * x.in
}
