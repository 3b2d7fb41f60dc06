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
	// To is the type of the elements: I8, U8, I16, U16, I32, U32, F16, BF16, F32, F64; C64 or C128
	// take pairs of samples.
	To tensor.DType
	// Scale and Offset make sample*Scale + Offset of a sample. Scale 0 is 1.
	Scale, Offset float64
}

// Converter converts. It has no state: any number of goroutines may use it.
type Converter struct {
	spec      Spec
	to        tensor.DType // of a sample
	unit      int          // bytes of input that belong together
	out       int          // bytes of output that they become
	samples   int          // of a unit
	low, high int64        // of elements that are integers
	scaled    bool
	scale     float64
	fast      fast
}

// New makes a Converter. Its error wraps ErrSpec and names what there is.
func New(s Spec) (*Converter, error) {
	c := &Converter{spec: s, to: s.To, unit: s.From.unit(), scale: s.Scale}
	if c.unit == 0 {
		return nil, fmt.Errorf("%w: samples of %d bits: expected 4, 8, 12, 14, 16 or 32", ErrSpec, s.From.Bits)
	}
	if bad := func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) }; bad(s.Scale) || bad(s.Offset) {
		return nil, fmt.Errorf("%w: scale %v, offset %v: expected finite numbers", ErrSpec, s.Scale, s.Offset)
	}
	if c.scale == 0 {
		c.scale = 1
	}
	c.scaled = c.scale != 1 || s.Offset != 0
	c.samples = c.unit * 8 / s.From.Bits
	switch s.To {
	case tensor.C64:
		c.to = tensor.F32
	case tensor.C128:
		c.to = tensor.F64
	}
	if c.to != s.To && c.samples%2 != 0 {
		c.unit, c.samples = 2*c.unit, 2*c.samples
	}
	r, integer := integers[c.to]
	if !integer && !isFloat(c.to) {
		return nil, fmt.Errorf("%w: elements of %v: expected i8, u8, i16, u16, i32, u32, f16, bf16, f32, f64, c64 "+
			"or c128", ErrSpec, s.To)
	}
	c.low, c.high = r[0], r[1]
	c.out = c.samples * c.to.Bits() / 8
	c.fast = c.fastest()
	return c, nil
}

// Unit is the number of bytes of input that are converted together: Convert takes multiples of it.
func (c *Converter) Unit() int { return c.unit }

// OutLen is the number of bytes that n bytes of input become; a rest of less than a Unit becomes
// nothing.
func (c *Converter) OutLen(n int) int { return n / c.unit * c.out }

// InLen is the largest number of bytes of input that become at most n bytes.
func (c *Converter) InLen(n int) int { return n / c.out * c.unit }

// block is how many samples are decoded at a time: they stay in the processor's first cache. It
// holds a whole number of each format's units.
const block = 512

// Convert converts src, whole Units, to dst, which has room for OutLen(len(src)) bytes and does not
// overlap it, and returns that number.
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
		c.spec.From.decode(part, src[:k])
		c.encode(dst, part)
		dst, src = dst[k/c.unit*c.out:], src[k:]
	}
}
