//go:build linux && !static

#include "textflag.h"
#include "go_asm.h"

// Both functions below are called by runtime.cgocall in the manner of C, with the address of a few or a many in R0, on a stack that is aligned to 16
// bytes and large enough for C. They have no Go declaration and so no dot before their names; Go knows their addresses only.
//
// The assembler saves the link register at 0(RSP) and the frame pointer below the stack pointer, where C would overwrite both. So each function lowers
// the stack pointer by itself before it calls.

GLOBL ·fewPC(SB), NOPTR|RODATA, $8
DATA ·fewPC(SB)/8, $penstock_dl_few(SB)

GLOBL ·manyPC(SB), NOPTR|RODATA, $8
DATA ·manyPC(SB)/8, $penstock_dl_many(SB)

TEXT penstock_dl_few(SB), NOSPLIT, $0
	SUB  $32, RSP
	MOVD R0, 8(RSP)
	MOVD R0, R9
	MOVD few_fn(R9), R10
	MOVD (few_a+0)(R9), R0
	MOVD (few_a+8)(R9), R1
	MOVD (few_a+16)(R9), R2
	MOVD (few_a+24)(R9), R3
	MOVD (few_a+32)(R9), R4
	MOVD (few_a+40)(R9), R5
	BL   (R10)
	MOVD 8(RSP), R9
	ADD  $32, RSP
	MOVD R0, few_ret(R9)
	MOVD $0, R0
	RET

// Arguments 9 to 15 are at 0(RSP) to 48(RSP) when the function is called; above them the address of the many.
TEXT penstock_dl_many(SB), NOSPLIT, $0
	SUB  $80, RSP
	MOVD R0, 64(RSP)
	MOVD many_location(R0), R10
	CBZ  R10, arguments
	BL   (R10)
	MOVW ZR, (R0)                // errno = 0

arguments:
	MOVD 64(RSP), R9
	MOVD (many_a+64)(R9), R10
	MOVD R10, 0(RSP)
	MOVD (many_a+72)(R9), R10
	MOVD R10, 8(RSP)
	MOVD (many_a+80)(R9), R10
	MOVD R10, 16(RSP)
	MOVD (many_a+88)(R9), R10
	MOVD R10, 24(RSP)
	MOVD (many_a+96)(R9), R10
	MOVD R10, 32(RSP)
	MOVD (many_a+104)(R9), R10
	MOVD R10, 40(RSP)
	MOVD (many_a+112)(R9), R10
	MOVD R10, 48(RSP)
	MOVD many_fn(R9), R10
	MOVD (many_a+0)(R9), R0
	MOVD (many_a+8)(R9), R1
	MOVD (many_a+16)(R9), R2
	MOVD (many_a+24)(R9), R3
	MOVD (many_a+32)(R9), R4
	MOVD (many_a+40)(R9), R5
	MOVD (many_a+48)(R9), R6
	MOVD (many_a+56)(R9), R7
	BL   (R10)
	MOVD 64(RSP), R9
	MOVD R0, many_ret(R9)
	MOVD many_location(R9), R10
	CBZ  R10, done
	BL   (R10)
	MOVW (R0), R0
	MOVD 64(RSP), R9
	MOVD R0, many_errno(R9)

done:
	ADD  $80, RSP
	MOVD $0, R0
	RET
