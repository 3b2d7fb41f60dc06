//go:build !noasm

package convert

import (
	"encoding/binary"
	"math"

	"golang.org/x/sys/cpu"

	"github.com/penstock-io/penstock/tensor"
)

// layout is how a kernel finds the samples of a block, and what it does with them: see tools/asm,
// which has the offsets of the fields.
type layout = [264]byte

// kernel converts blocks of 8 samples (AVX2) or 16.
type kernel func(dst, src *byte, blocks int, l *layout)

// fast is a kernel with its layout; the zero value is none.
type fast struct {
	kernel kernel
	l      *layout
	in     int // bytes of a block
	load   int // bytes that the kernel loads for it
	out    int // bytes of its elements
}

// loads are the kernels of one element, by how samples are loaded; nil where there is none.
type loads struct{ signed, unsigned, wide, wideUnsigned, bytes8, bytes16 kernel }

func (k loads) of(f Format) kernel {
	switch {
	case k.bytes8 != nil && f.Bits == 8:
		return k.bytes8
	case k.bytes16 != nil && f.Bits == 16:
		return k.bytes16
	case f.Bits == 32 && f.Unsigned:
		return k.wideUnsigned
	case f.Bits == 32:
		return k.wide
	case f.Unsigned:
		return k.unsigned
	}
	return k.signed
}

// kernelsAVX2 are those for samples as they are, or times a power of two.
var kernelsAVX2 = map[tensor.DType]loads{
	tensor.I8:   {kernelI8Signed, kernelI8Unsigned, kernelI8Wide, nil, nil, nil},
	tensor.U8:   {kernelU8Signed, kernelU8Unsigned, kernelU8Wide, nil, nil, nil},
	tensor.I16:  {kernelI16Signed, kernelI16Unsigned, kernelI16Wide, nil, nil, nil},
	tensor.U16:  {kernelU16Signed, kernelU16Unsigned, kernelU16Wide, nil, nil, nil},
	tensor.I32:  {kernelI32Signed, kernelI32Unsigned, kernelI32Wide, nil, nil, nil},
	tensor.F16:  {kernelF16Signed, kernelF16Unsigned, kernelF16Wide, nil, nil, nil},
	tensor.BF16: {kernelBF16Signed, kernelBF16Unsigned, nil, nil, nil, nil},
	tensor.F32:  {kernelF32Signed, kernelF32Unsigned, kernelF32Wide, nil, nil, nil},
	tensor.F64:  {kernelF64Signed, kernelF64Unsigned, nil, nil, nil, nil},
}

// The kernels of AVX-512: plain ones as those of AVX2, and scaled ones for any Scale and Offset.
var (
	plainAVX512 = map[tensor.DType]loads{
		tensor.I8:   {plain8Signed, plain8Unsigned, plain8Wide, nil, nil, nil},
		tensor.I16:  {plain16Signed, plain16Unsigned, plain16Wide, nil, nil, nil},
		tensor.I32:  {plain32Signed, plain32Unsigned, plain32Wide, nil, nil, nil},
		tensor.F16:  {plainF16Signed, plainF16Unsigned, plainF16Wide, nil, plainF16Bytes8, plainF16Bytes16},
		tensor.BF16: {plainBF16Signed, plainBF16Unsigned, nil, nil, plainBF16Bytes8, plainBF16Bytes16},
		tensor.F32:  {plainF32Signed, plainF32Unsigned, plainF32Wide, nil, plainF32Bytes8, plainF32Bytes16},
	}
	scaledAVX512 = map[tensor.DType]loads{
		tensor.I8:   {scaled8Signed, scaled8Unsigned, scaled8Wide, scaled8WideUnsigned, nil, nil},
		tensor.I16:  {scaled16Signed, scaled16Unsigned, scaled16Wide, scaled16WideUnsigned, nil, nil},
		tensor.I32:  {scaled32Signed, scaled32Unsigned, scaled32Wide, scaled32WideUnsigned, nil, nil},
		tensor.U32:  {scaledU32Signed, scaledU32Unsigned, scaledU32Wide, scaledU32WideUnsigned, nil, nil},
		tensor.F16:  {scaledF16Signed, scaledF16Unsigned, scaledF16Wide, scaledF16WideUnsigned, nil, nil},
		tensor.BF16: {scaledBF16Signed, scaledBF16Unsigned, scaledBF16Wide, scaledBF16WideUnsigned, nil, nil},
		tensor.F32:  {scaledF32Signed, scaledF32Unsigned, scaledF32Wide, scaledF32WideUnsigned, nil, nil},
		tensor.F64:  {scaledF64Signed, scaledF64Unsigned, scaledF64Wide, scaledF64WideUnsigned, nil, nil},
	}
	// the same kernels with other bounds
	signedOf = map[tensor.DType]tensor.DType{tensor.U8: tensor.I8, tensor.U16: tensor.I16}
)

// What the processor has. Tests take it away.
var (
	hasAVX2   = cpu.X86.HasAVX2 && cpu.X86.HasF16C
	hasAVX512 = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VBMI
)

// fastest is the fastest kernel on this processor whose results are those of slow; the zero value
// where there is none.
func (c *Converter) fastest() fast {
	f := c.spec.From
	powerOfTwo := c.spec.Offset == 0
	if c.scale != 1 {
		// Kernels multiply in float32. A power of two is exact there, as long as the number has no
		// more than 24 bits, and neither it nor the product is small.
		frac, exp := math.Frexp(c.scale)
		powerOfTwo = powerOfTwo && isFloat(c.to) && frac == 0.5 && exp >= -100 && exp <= 90 && f.Bits < 32
	}
	switch {
	case hasAVX512:
		to := c.to
		if s, ok := signedOf[to]; ok {
			to = s
		}
		x := fast{l: c.layout512(), in: 2 * f.Bits, load: 2 * f.Bits, out: 2 * c.to.Bits()}
		if powerOfTwo {
			x.kernel = plainAVX512[to].of(f)
		}
		if isFloat(c.to) && x.kernel != nil && (f.Bits == 8 || f.Bits == 16) {
			c.layoutBytes(x.l)
		}
		if x.kernel == nil {
			x.kernel = scaledAVX512[to].of(f)
		}
		return x
	case hasAVX2 && powerOfTwo:
		if k := kernelsAVX2[c.to].of(f); k != nil {
			return fast{kernel: k, l: c.layout(), in: f.Bits, load: max(16, f.Bits), out: c.to.Bits()}
		}
	}
	return fast{}
}

// layout is that of the kernels of AVX2.
func (c *Converter) layout() *layout {
	l := new(layout)
	f := c.spec.From
	for lane := range 8 {
		first := lane * f.Bits // bit
		if f.Bits == 32 {
			first = lane % 4 * 32 // each half of the register is shuffled by itself
		}
		left := f.place(l[4*lane:][:4], first)
		binary.LittleEndian.PutUint32(l[32+4*lane:], left)
		binary.LittleEndian.PutUint32(l[64+4*lane:], math.Float32bits(float32(c.scale)))
	}
	binary.LittleEndian.PutUint64(l[96:], uint64(32-f.Bits))
	binary.LittleEndian.PutUint64(l[104:], uint64(f.Bits)) // 8 samples
	return l
}

// layout512 is that of the kernels of AVX-512.
func (c *Converter) layout512() *layout {
	l := new(layout)
	f := c.spec.From
	le := binary.LittleEndian
	for lane := range 16 {
		left := f.place(l[4*lane:][:4], lane*f.Bits)
		le.PutUint32(l[64+4*lane:], left)
		le.PutUint32(l[128+4*lane:], uint32(32-f.Bits))
	}
	le.PutUint32(l[192:], math.Float32bits(float32(c.scale)))
	le.PutUint32(l[196:], uint32(int32(c.low)))
	le.PutUint32(l[200:], uint32(int32(min(c.high, math.MaxInt32))))
	le.PutUint64(l[208:], math.Float64bits(c.scale))
	le.PutUint64(l[216:], math.Float64bits(c.spec.Offset))
	le.PutUint64(l[224:], math.Float64bits(float64(c.low)))
	le.PutUint64(l[232:], math.Float64bits(float64(c.high)))
	le.PutUint64(l[240:], 1<<(2*f.Bits)-1)
	le.PutUint64(l[248:], uint64(2*f.Bits)) // 16 samples
	return l
}

// layoutBytes changes l for samples of whole bytes, which a kernel of floats leaves in the upper
// bytes of the lanes, zeros below: below the sign of unsigned ones.
func (c *Converter) layoutBytes(l *layout) {
	n := c.spec.From.Bits / 8
	from := 4 - n
	if c.spec.From.Unsigned {
		from--
	}
	keep := uint64(0)
	for lane := range 16 {
		for k := range n {
			at := k
			if c.spec.From.BigEndian {
				at = n - 1 - k
			}
			l[4*lane+from+k] = byte(n*lane + at)
			keep |= 1 << (4*lane + from + k)
		}
	}
	binary.LittleEndian.PutUint32(l[192:], math.Float32bits(float32(math.Ldexp(c.scale, -8*from))))
	binary.LittleEndian.PutUint64(l[256:], keep)
}

// place says which bytes of a block, in the order of memory, become a lane of 32 bits for the
// sample that begins at bit first, and how far to the left they are then shifted.
func (f Format) place(lane []byte, first int) (left uint32) {
	for k := range 4 {
		if f.BigEndian {
			lane[3-k] = byte(first/8 + k)
		} else {
			lane[k] = byte(first/8 + k)
		}
	}
	if f.BigEndian || f.Bits == 32 {
		return uint32(first % 8)
	}
	return uint32(32 - f.Bits - first%8)
}

// run converts the front of src, all of it if it can, and returns how many bytes that was. No load
// reaches beyond src.
func (x *fast) run(dst, src []byte) int {
	if x.kernel == nil || len(src) < x.load {
		return 0
	}
	n := (len(src)-x.load)/x.in + 1
	_ = dst[:n*x.out]
	x.kernel(&dst[0], &src[0], n, x.l)
	n *= x.in
	if n < len(src) && x.load == x.in { // the rest again with what is before it, as one block
		x.kernel(&dst[len(dst)-x.out], &src[len(src)-x.in], 1, x.l)
		return len(src)
	}
	return n
}
