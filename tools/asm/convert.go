package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// A kernel of AVX2 converts blocks of 8 samples. It shuffles the bytes of each sample into the
// upper bits of a lane of 32 bits, shifts out what is above the sample and then what is below it,
// converts the 8 integers, and stores them. The shuffle and the shifts are data (type layout of
// package convert), so one kernel does for all formats; only samples of 32 bits are loaded in
// another way.

// Offsets of the fields of layout, as the kernels of AVX2 have them.
const (
	shuffle = 0  // [32]byte
	left    = 32 // [8]uint32
	scale   = 64 // [8]float32
	right   = 96 // uint64
	step    = 104
)

// layoutType is the type of layout.
const layoutType = "*[264]byte"

func convertAVX2() {
	for _, load := range []struct {
		name         string
		signed, wide bool
	}{{"Signed", true, false}, {"Unsigned", false, false}, {"Wide", true, true}} {
		for _, to := range []string{"I8", "U8", "I16", "U16", "I32", "F16", "BF16", "F32", "F64"} {
			if load.wide && (to == "BF16" || to == "F64") { // a float32 between would round
				continue
			}
			kernel("kernel"+to+load.name, to, load.signed, load.wide)
		}
	}
}

func mem(base reg.Register, at int) operand.Mem { return operand.Mem{Base: base, Disp: at} }

func kernel(name, to string, signed, wide bool) {
	TEXT(name, NOSPLIT, "func(dst, src *byte, blocks int, l "+layoutType+")")
	Pragma("noescape")
	dst, src, n, l := Load(Param("dst"), GP64()), Load(Param("src"), GP64()), Load(Param("blocks"), GP64()),
		Load(Param("l"), GP64())
	mask, up, factor := YMM(), YMM(), YMM()
	down := XMM()
	next := GP64()
	VMOVDQU(mem(l, shuffle), mask)
	VMOVDQU(mem(l, left), up)
	VMOVUPS(mem(l, scale), factor)
	VMOVQ(mem(l, right), down)
	MOVQ(mem(l, step), next)
	var bias, one reg.VecVirtual
	if to == "BF16" {
		bias, one = YMM(), YMM()
		x := GP32()
		y := XMM()
		MOVL(operand.U32(0x7fff), x)
		VMOVD(x, y)
		VPBROADCASTD(y, bias)
		MOVL(operand.U32(1), x)
		VMOVD(x, y)
		VPBROADCASTD(y, one)
	}
	Label("block")
	v := YMM()
	if wide {
		VMOVDQU(mem(src, 0), v)
		VPSHUFB(mask, v, v)
	} else {
		VBROADCASTI128(mem(src, 0), v)
		VPSHUFB(mask, v, v)
		VPSLLVD(up, v, v)
		if signed {
			VPSRAD(down, v, v)
		} else {
			VPSRLD(down, v, v)
		}
	}
	size := store(to, dst, v, factor, bias, one)
	ADDQ(next, src)
	ADDQ(operand.Imm(uint64(size)), dst)
	DECQ(n)
	JNZ(operand.LabelRef("block"))
	VZEROUPPER()
	RET()
}

// store writes 8 integers as elements and returns how many bytes they are.
func store(to string, dst reg.Register, v, factor, bias, one reg.VecVirtual) int {
	if to[0] == 'F' || to == "BF16" {
		if to == "F64" {
			low, high := YMM(), YMM()
			upper := XMM()
			VCVTPS2PD(scaled(v, factor).AsX(), low)
			VEXTRACTI128(operand.Imm(1), v, upper)
			VCVTPS2PD(upper, high)
			VMOVUPD(low, mem(dst, 0))
			VMOVUPD(high, mem(dst, 32))
			return 64
		}
		scaled(v, factor)
	}
	switch to {
	case "F32":
		VMOVUPS(v, mem(dst, 0))
		return 32
	case "F16":
		VCVTPS2PH(operand.Imm(0), v, mem(dst, 0))
		return 16
	case "BF16":
		odd := YMM()
		VPSRLD(operand.Imm(16), v, odd)
		VPAND(one, odd, odd)
		VPADDD(bias, odd, odd)
		VPADDD(odd, v, v)
		VPSRLD(operand.Imm(16), v, v)
		upper := XMM()
		VEXTRACTI128(operand.Imm(1), v, upper)
		VPACKUSDW(upper, v.AsX(), upper)
		VMOVDQU(upper, mem(dst, 0))
		return 16
	case "I32":
		VMOVDQU(v, mem(dst, 0))
		return 32
	}
	upper := XMM()
	VEXTRACTI128(operand.Imm(1), v, upper)
	if to == "U16" {
		VPACKUSDW(upper, v.AsX(), upper)
	} else {
		VPACKSSDW(upper, v.AsX(), upper)
	}
	switch to {
	case "I16", "U16":
		VMOVDQU(upper, mem(dst, 0))
		return 16
	case "I8":
		VPACKSSWB(upper, upper, upper)
	case "U8":
		VPACKUSWB(upper, upper, upper)
	}
	VMOVQ(upper, mem(dst, 0))
	return 8
}

// scaled converts v to float32 and multiplies it.
func scaled(v, factor reg.VecVirtual) reg.VecVirtual {
	VCVTDQ2PS(v, v)
	VMULPS(factor, v, v)
	return v
}
