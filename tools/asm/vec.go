package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Kernels of package vec are leaves without a frame that leave SP alone, so that a fault inside one
// can be unwound. Each exists for registers of 32 bytes (AVX2) and of 64 (AVX-512); a turn of their
// loops takes four registers.

func vecAVX2()   { vecKernels(width{"AVX2", 32, func() reg.VecVirtual { return YMM() }}) }
func vecAVX512() { vecKernels(width{"AVX512", 64, func() reg.VecVirtual { return ZMM() }}) }

type width struct {
	name  string
	bytes int
	reg   func() reg.VecVirtual
}

func (w width) wide() bool { return w.bytes == 64 }

func (w width) four() (r [4]reg.VecVirtual) {
	for i := range r {
		r[i] = w.reg()
	}
	return r
}

// load and store move a register that need not be aligned; store past the caches where nt is set:
// then it is.
func (w width) load(m operand.Mem, v reg.VecVirtual) {
	if w.wide() {
		VMOVDQU64(m, v)
	} else {
		VMOVDQU(m, v)
	}
}

func (w width) store(v reg.VecVirtual, m operand.Mem, nt bool) {
	switch {
	case nt:
		VMOVNTDQ(v, m)
	case w.wide():
		VMOVDQU64(v, m)
	default:
		VMOVDQU(v, m)
	}
}

func (w width) xor(a, b operand.Op, to reg.VecVirtual) {
	if w.wide() {
		VPXORQ(a, b, to)
	} else {
		VPXOR(a, b, to)
	}
}

func (w width) zero() reg.VecVirtual {
	v := w.reg()
	w.xor(v, v, v)
	return v
}

// broadcast is a register with copies of a general one of size bytes.
func (w width) broadcast(from reg.Register, size int) reg.VecVirtual {
	v := w.reg()
	x := XMM()
	if size == 1 {
		VMOVD(from.(reg.GPVirtual).As32(), x)
		VPBROADCASTB(x, v)
	} else {
		VMOVQ(from, x)
		VPBROADCASTQ(x, v)
	}
	return v
}

func text(name, signature string) {
	TEXT(name, NOSPLIT, signature)
	Pragma("noescape")
}

func done(nt bool) {
	if nt {
		SFENCE() // stores past the caches are not ordered by themselves
	}
	VZEROUPPER()
	RET()
}

func param(name string) reg.GPVirtual { return Load(Param(name), GP64()).(reg.GPVirtual) }

func base(name string) reg.GPVirtual { return Load(Param(name).Base(), GP64()).(reg.GPVirtual) }

func length(name string) reg.GPVirtual { return Load(Param(name).Len(), GP64()).(reg.GPVirtual) }

// advance ends a turn of n bytes of a loop over left bytes.
func advance(label string, n int, left reg.Register, pointers ...reg.Register) {
	for _, p := range pointers {
		ADDQ(operand.U32(n), p)
	}
	SUBQ(operand.U32(n), left)
	JNZ(operand.LabelRef(label))
}

func vecKernels(w width) {
	for _, nt := range []bool{false, true} {
		name := w.name
		if nt {
			name = "NT" + name
		}
		w.set("set"+name, nt)
		w.xorBytes("xor"+name, nt)
	}
	w.sum("sum" + w.name)
	w.swap("swap" + w.name)
	w.find("find" + w.name)
}

func (w width) set(name string, nt bool) {
	text(name, "func(dst []byte, pattern uint64)")
	dst, left := base("dst"), length("dst")
	v := w.broadcast(param("pattern"), 8)
	Label("loop")
	for i := range 4 {
		w.store(v, mem(dst, i*w.bytes), nt)
	}
	advance("loop", 4*w.bytes, left, dst)
	done(nt)
}

func (w width) xorBytes(name string, nt bool) {
	text(name, "func(dst, a, b []byte)")
	dst, left, a, b := base("dst"), length("dst"), base("a"), base("b")
	Label("loop")
	r := w.four()
	for i, v := range r {
		w.load(mem(a, i*w.bytes), v)
	}
	for i, v := range r {
		w.xor(mem(b, i*w.bytes), v, v)
	}
	for i, v := range r {
		w.store(v, mem(dst, i*w.bytes), nt)
	}
	advance("loop", 4*w.bytes, left, dst, a, b)
	done(nt)
}

// sum adds the words of 32 bits, little-endian, in lanes of 64.
func (w width) sum(name string) {
	text(name, "func(p []byte) uint64")
	p, left := base("p"), length("p")
	low := w.reg()
	ones := GP64()
	MOVQ(operand.U64(1<<32-1), ones)
	x := XMM()
	VMOVQ(ones, x)
	VPBROADCASTQ(x, low)
	var acc [8]reg.VecVirtual
	for i := range acc {
		acc[i] = w.zero()
	}
	Label("loop")
	for i, v := range w.four() {
		w.load(mem(p, i*w.bytes), v)
		upper := w.reg()
		VPSRLQ(operand.Imm(32), v, upper)
		if w.wide() {
			VPANDQ(low, v, v)
		} else {
			VPAND(low, v, v)
		}
		VPADDQ(v, acc[i], acc[i])
		VPADDQ(upper, acc[4+i], acc[4+i])
	}
	advance("loop", 4*w.bytes, left, p)
	for n := 4; n > 0; n /= 2 {
		for i := range n {
			VPADDQ(acc[n+i], acc[i], acc[i])
		}
	}
	all := acc[0]
	if w.wide() {
		half := ZMM()
		VEXTRACTI64X4(operand.Imm(1), all, half.AsY())
		VPADDQ(half.AsY(), all.AsY(), all.AsY())
	}
	half := XMM()
	VEXTRACTI128(operand.Imm(1), all.AsY(), half)
	VPADDQ(half, all.AsX(), all.AsX())
	VPSHUFD(operand.Imm(0xee), all.AsX(), half)
	VPADDQ(half, all.AsX(), all.AsX())
	sum := GP64()
	VMOVQ(all.AsX(), sum)
	Store(sum, ReturnIndex(0))
	done(false)
}

// swap permutes the bytes of each 16 as order says.
func (w width) swap(name string) {
	text(name, "func(dst, src []byte, order *[16]byte)")
	dst, left, src, order := base("dst"), length("dst"), base("src"), param("order")
	v := w.reg()
	if w.wide() {
		VBROADCASTI32X4(mem(order, 0), v)
	} else {
		VBROADCASTI128(mem(order, 0), v)
	}
	Label("loop")
	r := w.four()
	for i, x := range r {
		w.load(mem(src, i*w.bytes), x)
		VPSHUFB(v, x, x)
	}
	for i, x := range r {
		w.store(x, mem(dst, i*w.bytes), false)
	}
	advance("loop", 4*w.bytes, left, dst, src)
	done(false)
}

// find is the first i below n, a multiple of the width, with p[i+first] == a and p[i+second] == b;
// n where there is none.
func (w width) find(name string) {
	text(name, "func(p *byte, n, first, second int, a, b byte) int")
	at, n := param("p"), param("n")
	one, other := param("first"), param("second")
	ra, rb := GP64(), GP64()
	Load(Param("a"), ra.As8())
	Load(Param("b"), rb.As8())
	a, b := w.broadcast(ra, 1), w.broadcast(rb, 1)
	ADDQ(at, one)
	ADDQ(at, other)
	i := GP64()
	XORQ(i, i)
	Label("loop")
	hits := GP64()
	x := operand.Mem{Base: one, Index: i, Scale: 1}
	y := operand.Mem{Base: other, Index: i, Scale: 1}
	if w.wide() {
		k := K()
		v, u := ZMM(), ZMM()
		VMOVDQU64(x, v)
		VMOVDQU64(y, u)
		VPCMPEQB(v, a, k)
		VPCMPEQB(u, b, k, k)
		KMOVQ(k, hits)
	} else {
		v, u := YMM(), YMM()
		VPCMPEQB(x, a, v)
		VPCMPEQB(y, b, u)
		VPAND(u, v, v)
		VPMOVMSKB(v, hits.As32())
	}
	TESTQ(hits, hits)
	JNZ(operand.LabelRef("found"))
	ADDQ(operand.Imm(uint64(w.bytes)), i)
	CMPQ(i, n)
	JNE(operand.LabelRef("loop"))
	Store(n, ReturnIndex(0))
	done(false)
	Label("found")
	BSFQ(hits, hits)
	ADDQ(hits, i)
	Store(i, ReturnIndex(0))
	done(false)
}
