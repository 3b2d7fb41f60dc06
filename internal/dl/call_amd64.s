//go:build linux && !static

#include "textflag.h"
#include "go_asm.h"

// Both functions below are called by runtime.cgocall in the manner of C, with the address of a few or a many in DI, on a stack that is aligned to 16
// bytes and large enough for C. They have no Go declaration and so no dot before their names; Go knows their addresses only.

GLOBL ·fewPC(SB), NOPTR|RODATA, $8
DATA ·fewPC(SB)/8, $penstock_dl_few(SB)

GLOBL ·manyPC(SB), NOPTR|RODATA, $8
DATA ·manyPC(SB)/8, $penstock_dl_many(SB)

// The frame is a multiple of 16: with the return address and BP, which the assembler saves, SP is aligned at the call.
TEXT penstock_dl_few(SB), NOSPLIT, $16
	MOVQ DI, 8(SP)
	MOVQ DI, R11
	MOVQ few_fn(R11), R10
	MOVQ (few_a+0)(R11), DI
	MOVQ (few_a+8)(R11), SI
	MOVQ (few_a+16)(R11), DX
	MOVQ (few_a+24)(R11), CX
	MOVQ (few_a+32)(R11), R8
	MOVQ (few_a+40)(R11), R9
	XORL AX, AX               // for variadic functions: no vector registers are used
	CALL R10
	MOVQ 8(SP), R11
	MOVQ AX, few_ret(R11)
	XORL AX, AX
	RET

// Arguments 7 to 15 are at 0(SP) to 64(SP) when the function is called; above them the address of the many.
TEXT penstock_dl_many(SB), NOSPLIT, $96
	MOVQ DI, 80(SP)
	MOVQ many_location(DI), AX
	TESTQ AX, AX
	JZ   arguments
	CALL AX
	MOVL $0, (AX)             // errno = 0
	MOVQ 80(SP), DI

arguments:
	MOVQ DI, R11
	MOVQ (many_a+48)(R11), AX
	MOVQ AX, 0(SP)
	MOVQ (many_a+56)(R11), AX
	MOVQ AX, 8(SP)
	MOVQ (many_a+64)(R11), AX
	MOVQ AX, 16(SP)
	MOVQ (many_a+72)(R11), AX
	MOVQ AX, 24(SP)
	MOVQ (many_a+80)(R11), AX
	MOVQ AX, 32(SP)
	MOVQ (many_a+88)(R11), AX
	MOVQ AX, 40(SP)
	MOVQ (many_a+96)(R11), AX
	MOVQ AX, 48(SP)
	MOVQ (many_a+104)(R11), AX
	MOVQ AX, 56(SP)
	MOVQ (many_a+112)(R11), AX
	MOVQ AX, 64(SP)
	MOVQ many_fn(R11), R10
	MOVQ (many_a+0)(R11), DI
	MOVQ (many_a+8)(R11), SI
	MOVQ (many_a+16)(R11), DX
	MOVQ (many_a+24)(R11), CX
	MOVQ (many_a+32)(R11), R8
	MOVQ (many_a+40)(R11), R9
	XORL AX, AX
	CALL R10
	MOVQ 80(SP), R11
	MOVQ AX, many_ret(R11)
	MOVQ many_location(R11), AX
	TESTQ AX, AX
	JZ   done
	CALL AX
	MOVL (AX), AX
	MOVQ 80(SP), R11
	MOVQ AX, many_errno(R11)

done:
	XORL AX, AX
	RET
