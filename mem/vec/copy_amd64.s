//go:build !noasm

#include "textflag.h"

// Every function here is a leaf without a frame that leaves SP alone, so that a fault inside it can be unwound.
// dst_base+0(FP), dst_len+8(FP), dst_cap+16(FP), src_base+24(FP), src_len+32(FP), src_cap+40(FP).

// func copyREPMOVSB(dst, src []byte)
TEXT ·copyREPMOVSB(SB), NOSPLIT, $0-48
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	MOVQ src_base+24(FP), SI
	CLD
	REP; MOVSB
	SFENCE // the microcode's stores for long copies are not promised to be ordered among themselves
	RET

// func copyNTAVX2(dst, src []byte)
TEXT ·copyNTAVX2(SB), NOSPLIT, $0-48
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	MOVQ src_base+24(FP), SI

	PCALIGN $32
loop:
	PREFETCHNTA 1024(SI)
	PREFETCHNTA 1088(SI)
	VMOVDQU  (SI), Y0
	VMOVDQU  32(SI), Y1
	VMOVDQU  64(SI), Y2
	VMOVDQU  96(SI), Y3
	VMOVNTDQ Y0, (DI)
	VMOVNTDQ Y1, 32(DI)
	VMOVNTDQ Y2, 64(DI)
	VMOVNTDQ Y3, 96(DI)
	ADDQ $128, SI
	ADDQ $128, DI
	SUBQ $128, CX
	JNZ  loop
	SFENCE
	VZEROUPPER
	RET

// func copyNTAVX512(dst, src []byte)
TEXT ·copyNTAVX512(SB), NOSPLIT, $0-48
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	MOVQ src_base+24(FP), SI

	PCALIGN $32
loop:
	VMOVDQU64 (SI), Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3
	VMOVNTDQ  Z0, (DI)
	VMOVNTDQ  Z1, 64(DI)
	VMOVNTDQ  Z2, 128(DI)
	VMOVNTDQ  Z3, 192(DI)
	ADDQ $256, SI
	ADDQ $256, DI
	SUBQ $256, CX
	JNZ  loop
	SFENCE
	VZEROUPPER
	RET

// One turn over four pages: 128 bytes (two lines, the unit of the adjacent-line prefetcher) of each.
#define LOADPAGE(off, a, b, c, d) \
	PREFETCHT0 (off+256)(SI) \
	PREFETCHT0 (off+320)(SI) \
	VMOVDQU (off)(SI), a     \
	VMOVDQU (off+32)(SI), b  \
	VMOVDQU (off+64)(SI), c  \
	VMOVDQU (off+96)(SI), d

#define STOREPAGE(off, a, b, c, d) \
	VMOVNTDQ a, (off)(DI)    \
	VMOVNTDQ b, (off+32)(DI) \
	VMOVNTDQ c, (off+64)(DI) \
	VMOVNTDQ d, (off+96)(DI)

// func copyNTPages(dst, src []byte)
TEXT ·copyNTPages(SB), NOSPLIT, $0-48
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	MOVQ src_base+24(FP), SI

pages:
	MOVQ $32, DX

turn:
	LOADPAGE(0, Y0, Y1, Y2, Y3)
	LOADPAGE(4096, Y4, Y5, Y6, Y7)
	LOADPAGE(8192, Y8, Y9, Y10, Y11)
	LOADPAGE(12288, Y12, Y13, Y14, Y15)
	STOREPAGE(0, Y0, Y1, Y2, Y3)
	STOREPAGE(4096, Y4, Y5, Y6, Y7)
	STOREPAGE(8192, Y8, Y9, Y10, Y11)
	STOREPAGE(12288, Y12, Y13, Y14, Y15)
	ADDQ $128, SI
	ADDQ $128, DI
	DECQ DX
	JNZ  turn
	ADDQ $12288, SI
	ADDQ $12288, DI
	SUBQ $16384, CX
	JNZ  pages
	SFENCE
	VZEROUPPER
	// Go code of the ABIInternal keeps zero in X15; the wrapper around this function restores it.
	RET

// func flush(b []byte)
TEXT ·flush(SB), NOSPLIT, $0-24
	MOVQ b_base+0(FP), DI
	MOVQ b_len+8(FP), CX

line:
	CLFLUSHOPT (DI)
	ADDQ $64, DI
	SUBQ $64, CX
	JNZ  line
	MFENCE
	RET

// func hasCLFLUSHOPT() bool
TEXT ·hasCLFLUSHOPT(SB), NOSPLIT, $0-1
	MOVL $0, AX
	CPUID
	CMPL AX, $7
	JLT  no
	MOVL $7, AX
	MOVL $0, CX
	CPUID
	SHRL $23, BX
	ANDL $1, BX
	MOVB BX, ret+0(FP)
	RET

no:
	MOVB $0, ret+0(FP)
	RET

// func hide(p unsafe.Pointer) unsafe.Pointer
TEXT ·hide(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ AX, ret+8(FP)
	RET
