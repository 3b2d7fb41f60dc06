package convert

import (
	"encoding/binary"
	"math"

	"github.com/penstock-io/penstock/tensor"
)

// integers are the ranges of the integer elements.
var integers = map[tensor.DType][2]int64{
	tensor.I8:  {math.MinInt8, math.MaxInt8},
	tensor.U8:  {0, math.MaxUint8},
	tensor.I16: {math.MinInt16, math.MaxInt16},
	tensor.U16: {0, math.MaxUint16},
	tensor.I32: {math.MinInt32, math.MaxInt32},
	tensor.U32: {0, math.MaxUint32},
}

func isFloat(to tensor.DType) bool {
	return to == tensor.F16 || to == tensor.BF16 || to == tensor.F32 || to == tensor.F64
}

// encode writes elements of the samples. It calls no function by a variable: samples stay on the
// stack of slow.
func (c *Converter) encode(dst []byte, in []int64) {
	switch c.to {
	case tensor.F16:
		for i, v := range in {
			binary.LittleEndian.PutUint16(dst[2*i:], f16(c.value(v)))
		}
	case tensor.BF16:
		for i, v := range in {
			binary.LittleEndian.PutUint16(dst[2*i:], bf16(c.value(v)))
		}
	case tensor.F32:
		for i, v := range in {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(float32(c.value(v))))
		}
	case tensor.F64:
		for i, v := range in {
			binary.LittleEndian.PutUint64(dst[8*i:], math.Float64bits(c.value(v)))
		}
	default:
		for i, v := range in {
			if c.scaled {
				v = int64(min(max(math.RoundToEven(c.value(v)), float64(c.low)), float64(c.high)))
			}
			switch v = min(max(v, c.low), c.high); c.to.Bits() {
			case 8:
				dst[i] = byte(v)
			case 16:
				binary.LittleEndian.PutUint16(dst[2*i:], uint16(v))
			case 32:
				binary.LittleEndian.PutUint32(dst[4*i:], uint32(v))
			}
		}
	}
}

// value is sample*scale + offset. It rounds twice: the conversion forbids the compiler to fuse the
// two operations.
func (c *Converter) value(v int64) float64 {
	if !c.scaled {
		return float64(v)
	}
	return float64(float64(v)*c.scale) + c.spec.Offset
}

// f16 is the nearest binary16.
func f16(x float64) uint16 { return round(x, 5, 10) }

// bf16 is the nearest number of the upper half of a binary32.
func bf16(x float64) uint16 { return round(x, 8, 7) }

// round is the nearest number of a format of 16 bits with an exponent of exp bits and a fraction of
// frac bits, ties to even. It rounds once.
func round(x float64, exp, frac uint) uint16 {
	b := math.Float64bits(x)
	sign := uint16(b >> 48 & 0x8000)
	b &= 1<<63 - 1
	inf := uint16(1<<exp-1) << frac
	switch {
	case b > 0x7ff<<52: // NaN: a quiet one
		return sign | inf | 1<<(frac-1)
	case b == 0:
		return sign
	}
	e := int(b>>52) - 1023 + 1<<(exp-1) - 1 // the exponent as the format has it
	drop := 52 - frac
	m := b & (1<<52 - 1)
	if e >= 1<<exp-1 {
		return sign | inf
	}
	if e <= 0 { // a subnormal number, or 0
		if b>>52 == 0 || 1-e > int(frac)+1 {
			return sign
		}
		m |= 1 << 52
		drop += uint(1 - e)
		e = 0
	}
	v := uint64(e)<<frac + m>>drop
	rest, half := m&(1<<drop-1), uint64(1)<<(drop-1)
	if rest > half || rest == half && v&1 == 1 {
		v++ // a carry out of the fraction is the next exponent, and out of the largest number infinity
	}
	return sign | uint16(v)
}
