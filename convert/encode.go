package convert

import (
	"encoding/binary"
	"math"

	"github.com/penstock-io/penstock/tensor"
)

// encoder writes elements: plain of samples, scaled of sample*scale + offset.
type encoder struct {
	plain  func(dst []byte, in []int64)
	scaled func(dst []byte, in []int64, scale, offset float64)
}

var encoders = map[tensor.DType]encoder{
	tensor.I8:   integers(1, math.MinInt8, math.MaxInt8),
	tensor.U8:   integers(1, 0, math.MaxUint8),
	tensor.I16:  integers(2, math.MinInt16, math.MaxInt16),
	tensor.U16:  integers(2, 0, math.MaxUint16),
	tensor.I32:  integers(4, math.MinInt32, math.MaxInt32),
	tensor.U32:  integers(4, 0, math.MaxUint32),
	tensor.F16:  {plain: halves(func(v int64) uint16 { return f16(float64(v)) }), scaled: halvesScaled(f16)},
	tensor.BF16: {plain: halves(func(v int64) uint16 { return bf16(float64(v)) }), scaled: halvesScaled(bf16)},
	tensor.F32: {
		plain: func(dst []byte, in []int64) {
			for i, v := range in {
				binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(float32(v)))
			}
		},
		scaled: func(dst []byte, in []int64, scale, offset float64) {
			for i, v := range in {
				binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(float32(scaled(v, scale, offset))))
			}
		},
	},
	tensor.F64: {
		plain: func(dst []byte, in []int64) {
			for i, v := range in {
				binary.LittleEndian.PutUint64(dst[8*i:], math.Float64bits(float64(v)))
			}
		},
		scaled: func(dst []byte, in []int64, scale, offset float64) {
			for i, v := range in {
				binary.LittleEndian.PutUint64(dst[8*i:], math.Float64bits(scaled(v, scale, offset)))
			}
		},
	},
}

// scaled rounds twice: the conversion forbids the compiler to fuse the two operations.
func scaled(v int64, scale, offset float64) float64 { return float64(float64(v)*scale) + offset }

func integers(size int, low, high int64) encoder {
	put := func(dst []byte, i int, v int64) {
		switch v = min(max(v, low), high); size {
		case 1:
			dst[i] = byte(v)
		case 2:
			binary.LittleEndian.PutUint16(dst[2*i:], uint16(v))
		case 4:
			binary.LittleEndian.PutUint32(dst[4*i:], uint32(v))
		}
	}
	return encoder{
		plain: func(dst []byte, in []int64) {
			for i, v := range in {
				put(dst, i, v)
			}
		},
		scaled: func(dst []byte, in []int64, scale, offset float64) {
			for i, v := range in {
				x := math.RoundToEven(scaled(v, scale, offset))
				put(dst, i, int64(min(max(x, float64(low)), float64(high))))
			}
		},
	}
}

func halves(of func(int64) uint16) func([]byte, []int64) {
	return func(dst []byte, in []int64) {
		for i, v := range in {
			binary.LittleEndian.PutUint16(dst[2*i:], of(v))
		}
	}
}

func halvesScaled(of func(float64) uint16) func([]byte, []int64, float64, float64) {
	return func(dst []byte, in []int64, scale, offset float64) {
		for i, v := range in {
			binary.LittleEndian.PutUint16(dst[2*i:], of(scaled(v, scale, offset)))
		}
	}
}

// f16 is the nearest binary16.
func f16(x float64) uint16 { return round(x, 5, 10) }

// bf16 is the nearest number of the upper half of a binary32.
func bf16(x float64) uint16 { return round(x, 8, 7) }

// round is the nearest number of a format of 16 bits with an exponent of exp bits and a fraction of frac bits, ties to even. It rounds once.
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
