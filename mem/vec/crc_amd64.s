//go:build !noasm

#include "textflag.h"

// Folding by carry-less multiplication (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
// Instruction", Intel 2009), 256 bytes a turn: sixteen 128-bit lanes, each multiplied by x^2048 and added to the lane of the
// same place in the next block. Leaves without a frame, as in copy_amd64.s.

// FOLD multiplies the lanes of acc and adds data. t is scratch; Z8 holds the two constants in each lane.
#define FOLD(acc, data, t) \
	VPCLMULQDQ $0x00, Z8, acc, t   \
	VPCLMULQDQ $0x11, Z8, acc, acc \
	VPTERNLOGQ $0x96, data, t, acc

#define LOADSTATE \
	VBROADCASTI32X4 (BX), Z8 \
	VMOVDQU64 (AX), Z0    \
	VMOVDQU64 64(AX), Z1  \
	VMOVDQU64 128(AX), Z2 \
	VMOVDQU64 192(AX), Z3

#define STORESTATE \
	VMOVDQU64 Z0, (AX)    \
	VMOVDQU64 Z1, 64(AX)  \
	VMOVDQU64 Z2, 128(AX) \
	VMOVDQU64 Z3, 192(AX)

#define LOADDATA \
	VMOVDQU64 (SI), Z16    \
	VMOVDQU64 64(SI), Z17  \
	VMOVDQU64 128(SI), Z18 \
	VMOVDQU64 192(SI), Z19

#define FOLDDATA \
	FOLD(Z0, Z16, Z4) \
	FOLD(Z1, Z17, Z5) \
	FOLD(Z2, Z18, Z6) \
	FOLD(Z3, Z19, Z7)

// func foldCRC(state *[256]byte, k *[2]uint64, p []byte)
TEXT ·foldCRC(SB), NOSPLIT, $0-40
	MOVQ state+0(FP), AX
	MOVQ k+8(FP), BX
	MOVQ p_base+16(FP), SI
	MOVQ p_len+24(FP), CX
	LOADSTATE

	PCALIGN $32
loop:
	PREFETCHT0 2048(SI) // the loads of one turn alone do not keep the memory busy
	PREFETCHT0 2112(SI)
	PREFETCHT0 2176(SI)
	PREFETCHT0 2240(SI)
	LOADDATA
	FOLDDATA
	ADDQ $256, SI
	SUBQ $256, CX
	JNZ  loop
	STORESTATE
	VZEROUPPER
	RET

// func copyFoldCRC(state *[256]byte, k *[2]uint64, dst, src []byte)
TEXT ·copyFoldCRC(SB), NOSPLIT, $0-64
	MOVQ state+0(FP), AX
	MOVQ k+8(FP), BX
	MOVQ dst_base+16(FP), DI
	MOVQ dst_len+24(FP), CX
	MOVQ src_base+40(FP), SI
	LOADSTATE

	PCALIGN $32
loop:
	LOADDATA
	VMOVDQU64 Z16, (DI)
	VMOVDQU64 Z17, 64(DI)
	VMOVDQU64 Z18, 128(DI)
	VMOVDQU64 Z19, 192(DI)
	FOLDDATA
	ADDQ $256, SI
	ADDQ $256, DI
	SUBQ $256, CX
	JNZ  loop
	STORESTATE
	VZEROUPPER
	RET

// func copyFoldCRCNT(state *[256]byte, k *[2]uint64, dst, src []byte)
TEXT ·copyFoldCRCNT(SB), NOSPLIT, $0-64
	MOVQ state+0(FP), AX
	MOVQ k+8(FP), BX
	MOVQ dst_base+16(FP), DI
	MOVQ dst_len+24(FP), CX
	MOVQ src_base+40(FP), SI
	LOADSTATE

	PCALIGN $32
loop:
	LOADDATA
	VMOVNTDQ Z16, (DI)
	VMOVNTDQ Z17, 64(DI)
	VMOVNTDQ Z18, 128(DI)
	VMOVNTDQ Z19, 192(DI)
	FOLDDATA
	ADDQ $256, SI
	ADDQ $256, DI
	SUBQ $256, CX
	JNZ  loop
	STORESTATE
	SFENCE
	VZEROUPPER
	RET
