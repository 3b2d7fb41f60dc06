// Package convert turns samples of instruments into elements of tensors.
//
// A Format says how samples lie in a packet: signed or unsigned numbers of 4, 8, 12, 14, 16 or 32
// bits, packed without gaps. A Converter writes one element of a tensor.DType for each sample.
// Pairs of samples (I and Q) become one complex element.
//
//	c, err := convert.New(convert.Spec{From: convert.Format{Bits: 12, BigEndian: true}, To: tensor.F32, Scale: 1.0 / 2048})
//	c.Convert(dst, payload)
//
// # Values
//
// Without Scale and Offset the element is the number that is nearest to the sample. With them the
// value is sample*Scale + Offset, in float64 with two roundings, and then the nearest element. The
// nearest of two that are equally near is the even one (IEEE 754, roundTiesToEven). Integers
// saturate: a sample that is too large becomes the largest element. Floating-point elements that
// are too small for the value become infinite. Elements are little-endian, as everywhere in
// Penstock.
//
// NaN and infinities do not come from samples. A product that is beyond float64 is infinite, and
// saturates as any large number does.
//
// # Speed
//
// On amd64 with AVX-512 (F, VL, BW, VBMI) assembly does all conversions, 16 samples at a time, with
// the same results. With AVX2 and F16C it does those without Offset whose Scale is 1, or a power of
// two where elements are floating-point, 8 samples at a time. Go code does the rest: elements of
// U32, unsigned samples of 32 bits, and signed ones to BF16 and F64 or with a Scale; and what is
// left behind the last block. Nothing allocates.
package convert

//go:generate go run -C ../../tools ./asm -pkg convert -out ../tensor/convert/kernels_amd64.s -stubs ../tensor/convert/kernels_amd64.go
