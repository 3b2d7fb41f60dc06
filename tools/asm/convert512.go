package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// A kernel of AVX-512 converts blocks of 16 samples. One permutation of bytes (VBMI) puts the bytes
// of each sample into a lane of 32 bits, two shifts leave the sample, as with AVX2. A plain kernel
// makes elements of the integers, or of floats of 32 bits that it multiplies by a power of two. A
// scaled one computes sample*scale + offset in float64 with two roundings, as the Go code does, and
// rounds to the element once.

// Offsets of the fields of layout, as the kernels of AVX-512 have them.
const (
	shuffle512 = 0   // [64]byte
	left512    = 64  // [16]uint32
	right512   = 128 // [16]uint32
	factor512  = 192 // float32
	low512     = 196 // int32, the least element
	high512    = 200 // int32
	scale512   = 208 // float64
	offset512  = 216 // float64
	lowest512  = 224 // float64, the least element
	highest512 = 232 // float64
	load512    = 240 // uint64: a bit for each byte of a block
	step512    = 248 // uint64: bytes of a block
	keep512    = 256 // uint64: a bit for each byte of the lanes that a sample fills, where its bytes are whole
)

func convertAVX512() {
	for _, to := range []string{"F16", "BF16", "F32"} {
		kernel512("plain"+to+"Bytes8", to, "Bytes8", plain512)
		kernel512("plain"+to+"Bytes16", to, "Bytes16", plain512)
	}
	for _, load := range []string{"Signed", "Unsigned", "Wide", "WideUnsigned"} {
		for _, to := range []string{"8", "16", "32", "F16", "BF16", "F32"} {
			if load == "WideUnsigned" || load == "Wide" && to == "BF16" {
				// a float32 between would round, and a lane of 32 bits has a sign
				continue
			}
			kernel512("plain"+to+load, to, load, plain512)
		}
		for _, to := range []string{"8", "16", "32", "U32", "F16", "BF16", "F32", "F64"} {
			kernel512("scaled"+to+load, to, load, scaled512)
		}
	}
}

// kernel512 writes a kernel; body prepares its constants and returns what stores the elements of a
// block.
func kernel512(name, to, load string, body func(to, load string, l reg.Register) func(dst reg.Register,
	v reg.VecVirtual) int) {
	TEXT(name, NOSPLIT, "func(dst, src *byte, blocks int, l "+layoutType+")")
	Pragma("noescape")
	dst, src, n, l := Load(Param("dst"), GP64()), Load(Param("src"), GP64()), Load(Param("blocks"), GP64()),
		Load(Param("l"), GP64())
	mask, up, down := ZMM(), ZMM(), ZMM()
	bytes, keep := K(), K()
	next := GP64()
	VMOVDQU32(mem(l, shuffle512), mask)
	switch load {
	case "Bytes8", "Bytes16":
		KMOVQ(mem(l, keep512), keep)
	case "Signed", "Unsigned":
		KMOVQ(mem(l, load512), bytes)
		VMOVDQU32(mem(l, left512), up)
		VMOVDQU32(mem(l, right512), down)
	}
	MOVQ(mem(l, step512), next)
	store := body(to, load, l)
	Label("block")
	v := ZMM()
	switch load {
	case "Wide", "WideUnsigned":
		VMOVDQU32(mem(src, 0), v)
		VPERMB(v, mask, v)
	case "Bytes8": // a float that is too large by a power of two: the factor has its inverse
		VMOVDQU(mem(src, 0), v.AsX())
		VPERMB_Z(v, mask, keep, v)
	case "Bytes16":
		VMOVDQU(mem(src, 0), v.AsY())
		VPERMB_Z(v, mask, keep, v)
	default:
		VMOVDQU8_Z(mem(src, 0), bytes, v)
		VPERMB(v, mask, v)
		VPSLLVD(up, v, v)
		if load == "Signed" {
			VPSRAVD(down, v, v)
		} else {
			VPSRLVD(down, v, v)
		}
	}
	size := store(dst, v)
	ADDQ(next, src)
	ADDQ(operand.Imm(uint64(size)), dst)
	DECQ(n)
	JNZ(operand.LabelRef("block"))
	VZEROUPPER()
	RET()
}

func broadcastD(l reg.Register, at int) reg.VecVirtual {
	v := ZMM()
	VPBROADCASTD(mem(l, at), v)
	return v
}

func broadcastQ(l reg.Register, at int) reg.VecVirtual {
	v := ZMM()
	VPBROADCASTQ(mem(l, at), v)
	return v
}

// constant is a register with one number of 32 bits in all lanes.
func constant(x uint32) reg.VecVirtual {
	v := ZMM()
	r := GP32()
	MOVL(operand.U32(x), r)
	VPBROADCASTD(r, v)
	return v
}

func plain512(to, _ string, l reg.Register) func(reg.Register, reg.VecVirtual) int {
	var factor, low, high reg.VecVirtual
	var bias bfloat
	switch to {
	case "F16", "BF16", "F32":
		if factor = broadcastD(l, factor512); to == "BF16" {
			bias = newBfloat()
		}
	default:
		low, high = broadcastD(l, low512), broadcastD(l, high512)
	}
	return func(dst reg.Register, v reg.VecVirtual) int {
		if factor != nil {
			VCVTDQ2PS(v, v)
			VMULPS(factor, v, v)
		} else {
			VPMAXSD(low, v, v)
			VPMINSD(high, v, v)
		}
		switch to {
		case "F16":
			half := YMM()
			VCVTPS2PH(operand.Imm(0), v, half)
			VMOVDQU(half, mem(dst, 0))
			return 32
		case "BF16":
			bias.round(v)
			return narrow512("16", dst, v)
		}
		return narrow512(to, dst, v)
	}
}

// narrow512 writes 16 lanes of 32 bits, as they are or their lower bits.
func narrow512(to string, dst reg.Register, v reg.VecVirtual) int {
	switch to {
	case "8":
		VPMOVDB(v, mem(dst, 0))
		return 16
	case "16":
		VPMOVDW(v, mem(dst, 0))
		return 32
	}
	VMOVDQU32(v, mem(dst, 0))
	return 64
}

// bfloat are the constants that round floats of 32 bits to their upper halves, ties to even.
type bfloat struct{ bias, one reg.VecVirtual }

func newBfloat() bfloat { return bfloat{constant(0x7fff), constant(1)} }

// round leaves the rounded numbers in the lower halves of the lanes.
func (b bfloat) round(v reg.VecVirtual) {
	odd := ZMM()
	VPSRLD(operand.Imm(16), v, odd)
	VPANDD(b.one, odd, odd)
	VPADDD(b.bias, odd, odd)
	VPADDD(odd, v, v)
	VPSRLD(operand.Imm(16), v, v)
}

func scaled512(to, load string, l reg.Register) func(reg.Register, reg.VecVirtual) int {
	scale, offset := broadcastQ(l, scale512), broadcastQ(l, offset512)
	var lowest, highest, one reg.VecVirtual
	var bias bfloat
	switch to {
	case "F16", "BF16":
		if one = constant(1); to == "BF16" {
			bias = newBfloat()
		}
	case "F32", "F64":
	default:
		lowest, highest = broadcastQ(l, lowest512), broadcastQ(l, highest512)
	}
	// half makes the elements of 8 samples, of up to 32 bits each; of F64 it stores them.
	half := func(dst reg.Register, at int, v reg.VecVirtual) reg.VecVirtual {
		x := ZMM()
		if load == "WideUnsigned" {
			VCVTUDQ2PD(v.AsY(), x)
		} else {
			VCVTDQ2PD(v.AsY(), x)
		}
		VMULPD(scale, x, x)
		VADDPD(offset, x, x)
		y := ZMM()
		switch to {
		case "F64":
			VMOVUPD(x, mem(dst, at))
		case "F32":
			VCVTPD2PS(x, y.AsY())
		case "F16", "BF16":
			// To odd: towards zero, and the last bit is set where something was lost. What rounds
			// that rounds the float64.
			back := ZMM()
			lost := K()
			VCVTPD2PS_RZ_SAE(x, y.AsY())
			VCVTPS2PD(y.AsY(), back)
			VCMPPD(operand.Imm(4), back, x, lost) // not equal
			VPORD(one.AsY(), y.AsY(), lost, y.AsY())
		default:
			VMAXPD(lowest, x, x)
			VMINPD(highest, x, x)
			if to == "U32" {
				VCVTPD2UDQ(x, y.AsY())
			} else {
				VCVTPD2DQ(x, y.AsY())
			}
		}
		return y
	}
	return func(dst reg.Register, v reg.VecVirtual) int {
		upper := ZMM()
		VEXTRACTI64X4(operand.Imm(1), v, upper.AsY())
		a, b := half(dst, 0, v), half(dst, 64, upper)
		if to == "F64" {
			return 128
		}
		VINSERTI64X4(operand.Imm(1), b.AsY(), a, a)
		switch to {
		case "F16":
			VCVTPS2PH(operand.Imm(0), a, mem(dst, 0))
			return 32
		case "BF16":
			bias.round(a)
			return narrow512("16", dst, a)
		}
		return narrow512(to, dst, a)
	}
}
