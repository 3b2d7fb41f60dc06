//go:build !noasm

package vec

// Advanced SIMD and the non-temporal pair instructions belong to every ARMv8-A processor that Go
// supports.
func detect() (a [kernels]bool) {
	a[NTPair] = true
	return
}

// run copies len(dst) == len(src) bytes that do not overlap.
func (k Kernel) run(dst, src []byte) {
	dst, src = aligned(dst, src, 64)
	if n := len(dst) &^ 127; n > 0 {
		copyNTPair(dst[:n], src[:n])
		dst, src = dst[n:], src[n:]
	}
	copy(dst, src)
}

// copyNTPair needs equal lengths, a non-zero multiple of 128. The stores of STNP are ordered by the
// barriers and release stores that order any others, so it needs no fence of its own.
//
//go:noescape
func copyNTPair(dst, src []byte)

// flush writes back and evicts the cache lines of b, whose length is a multiple of 64, on every
// core.
//
//go:noescape
func flush(b []byte)

// canFlush: Linux lets programs use DC CIVAC (SCTLR_EL1.UCI).
const canFlush = true
