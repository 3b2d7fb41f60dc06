package convert

import (
	"errors"
	"fmt"
	"math"

	"github.com/penstock-io/penstock/tensor"
)

// ErrSpec is wrapped by the errors of New.
var ErrSpec = errors.New("convert: no such conversion")

// Spec is a conversion. It is inert.
type Spec struct {
	From Format
	// To is the type of the elements: I8, U8, I16, U16, I32, U32, F16, BF16, F32, F64; C64 or C128 take pairs of samples.
	To tensor.DType
	// Scale and Offset make sample*Scale + Offset of a sample. Scale 0 is 1.
	Scale, Offset float64
}

// Converter converts. It has no state: any number of goroutines may use it.
type Converter struct {
	spec    Spec
	decode  decoder
	encode  func(dst []byte, in []int64, scale, offset float64)
	unit    int // bytes of input that belong together
	out     int // bytes of output that they become
	samples int // of a unit
	scale   float64
	fast    fast
}

// New makes a Converter. Its error wraps ErrSpec and names what there is.
func New(s Spec) (*Converter, error) {
	c := &Converter{spec: s, decode: s.From.decoder(), unit: s.From.unit(), scale: s.Scale}
	if c.decode == nil {
		return nil, fmt.Errorf("%w: samples of %d bits: expected 4, 8, 12, 14, 16 or 32", ErrSpec, s.From.Bits)
	}
	if bad := func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) }; bad(s.Scale) || bad(s.Offset) {
		return nil, fmt.Errorf("%w: scale %v, offset %v: expected finite numbers", ErrSpec, s.Scale, s.Offset)
	}
	if c.scale == 0 {
		c.scale = 1
	}
	to := s.To
	c.samples = c.unit * 8 / s.From.Bits
	if to == tensor.C64 || to == tensor.C128 {
		if c.samples%2 != 0 {
			c.unit, c.samples = 2*c.unit, 2*c.samples
		}
		to = map[tensor.DType]tensor.DType{tensor.C64: tensor.F32, tensor.C128: tensor.F64}[to]
	}
	pair := encoders[to]
	if pair.plain == nil {
		return nil, fmt.Errorf("%w: elements of %v: expected i8, u8, i16, u16, i32, u32, f16, bf16, f32, f64, c64 or c128", ErrSpec, s.To)
	}
	c.encode = func(dst []byte, in []int64, _, _ float64) { pair.plain(dst, in) }
	if c.scale != 1 || s.Offset != 0 {
		c.encode = pair.scaled
	}
	c.out = c.samples * to.Bits() / 8
	c.fast = fastOf(s.From, to, c.scale, s.Offset)
	return c, nil
}

// Unit is the number of bytes of input that are converted together: Convert takes multiples of it.
func (c *Converter) Unit() int { return c.unit }

// OutLen is the number of bytes that n bytes of input become; a rest of less than a Unit becomes nothing.
func (c *Converter) OutLen(n int) int { return n / c.unit * c.out }

// InLen is the largest number of bytes of input that become at most n bytes.
func (c *Converter) InLen(n int) int { return n / c.out * c.unit }

// block is how many samples are decoded at a time: they stay in the processor's first cache. It holds a whole number of each format's units.
const block = 512

// Convert converts src, whole Units, to dst, which has room for OutLen(len(src)) bytes and does not overlap it, and returns that number.
func (c *Converter) Convert(dst, src []byte) int {
	n := c.OutLen(len(src))
	dst, src = dst[:n], src[:n/c.out*c.unit]
	k := c.fast.run(dst, src)
	if k < len(src) {
		c.slow(dst[k/c.unit*c.out:], src[k:])
	}
	return n
}

// slow converts whole Units in Go.
func (c *Converter) slow(dst, src []byte) {
	var in [block]int64
	step := block / c.samples * c.unit
	for len(src) > 0 {
		k := min(step, len(src))
		part := in[:k/c.unit*c.samples]
		c.decode(part, src[:k])
		c.encode(dst, part, c.scale, c.spec.Offset)
		dst, src = dst[k/c.unit*c.out:], src[k:]
	}
}
