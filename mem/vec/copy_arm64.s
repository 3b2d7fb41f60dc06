//go:build !noasm

#include "textflag.h"

// The Go assembler has no names for LDNP and STNP of 128-bit registers (Arm ARM C7.2), so they are written as words.
// Leaves without a frame, so that a fault inside can be unwound.

// func copyNTPair(dst, src []byte)
TEXT ·copyNTPair(SB), NOSPLIT, $0-48
	MOVD dst_base+0(FP), R0
	MOVD dst_len+8(FP), R2
	MOVD src_base+24(FP), R1

loop:
	PRFM 1024(R1), PLDL1STRM
	PRFM 1088(R1), PLDL1STRM
	WORD $0xAC400420 // LDNP Q0, Q1, [X1, #0]
	WORD $0xAC410C22 // LDNP Q2, Q3, [X1, #32]
	WORD $0xAC421424 // LDNP Q4, Q5, [X1, #64]
	WORD $0xAC431C26 // LDNP Q6, Q7, [X1, #96]
	WORD $0xAC000400 // STNP Q0, Q1, [X0, #0]
	WORD $0xAC010C02 // STNP Q2, Q3, [X0, #32]
	WORD $0xAC021404 // STNP Q4, Q5, [X0, #64]
	WORD $0xAC031C06 // STNP Q6, Q7, [X0, #96]
	ADD  $128, R0
	ADD  $128, R1
	SUBS $128, R2
	BNE  loop
	RET

// func flush(b []byte)
TEXT ·flush(SB), NOSPLIT, $0-24
	MOVD b_base+0(FP), R0
	MOVD b_len+8(FP), R2

line:
	WORD $0xD50B7E20 // DC CIVAC, X0
	ADD  $64, R0
	SUBS $64, R2
	BNE  line
	DSB  $11         // ISH
	RET

// func hide(p unsafe.Pointer) unsafe.Pointer
TEXT ·hide(SB), NOSPLIT, $0-16
	MOVD p+0(FP), R0
	MOVD R0, ret+8(FP)
	RET
