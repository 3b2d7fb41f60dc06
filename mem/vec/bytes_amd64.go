//go:build !noasm

package vec

import "golang.org/x/sys/cpu"

// What the processor has. Tests take it away.
var (
	hasAVX512 = cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW
	hasBytes  = cpu.X86.HasAVX2 && cpu.X86.HasBMI1
)

// turn is the number of bytes, a power of two, of which kernels take multiples, but none.
const turn = 256

func set(dst []byte, pattern uint64, nt bool) {
	switch {
	case hasAVX512 && nt:
		setNTAVX512(dst, pattern)
	case hasAVX512:
		setAVX512(dst, pattern)
	case nt:
		setNTAVX2(dst, pattern)
	default:
		setAVX2(dst, pattern)
	}
}

func xor(dst, a, b []byte, nt bool) {
	switch {
	case hasAVX512 && nt:
		xorNTAVX512(dst, a, b)
	case hasAVX512:
		xorAVX512(dst, a, b)
	case nt:
		xorNTAVX2(dst, a, b)
	default:
		xorAVX2(dst, a, b)
	}
}

func sum(p []byte) uint64 {
	if hasAVX512 {
		return sumAVX512(p)
	}
	return sumAVX2(p)
}

func swap(dst, src []byte, order *[16]byte) {
	if hasAVX512 {
		swapAVX512(dst, src, order)
		return
	}
	swapAVX2(dst, src, order)
}

// find is the first i below n with p[i+first] == a and p[i+second] == b; n where there is none.
func find(p *byte, n, first, second int, a, b byte) int {
	if hasAVX512 {
		return findAVX512(p, n, first, second, a, b)
	}
	return findAVX2(p, n, first, second, a, b)
}
