//go:build !noasm

package vec

import "golang.org/x/sys/cpu"

func detect() (a [kernels]bool) {
	a[REPMOVSB] = cpu.X86.HasERMS
	a[NTAVX2] = cpu.X86.HasAVX2
	a[NTAVX512] = cpu.X86.HasAVX512F
	a[NTPages] = cpu.X86.HasAVX2
	return
}

// run copies len(dst) == len(src) bytes that do not overlap.
func (k Kernel) run(dst, src []byte) {
	switch k {
	case REPMOVSB:
		copyREPMOVSB(dst, src)
		return
	case NTPages:
		dst, src = aligned(dst, src, 64)
		if n := len(dst) &^ (4*4096 - 1); n > 0 {
			copyNTPages(dst[:n], src[:n])
			dst, src = dst[n:], src[n:]
		}
		fallthrough
	case NTAVX2:
		dst, src = aligned(dst, src, 64)
		if n := len(dst) &^ 127; n > 0 {
			copyNTAVX2(dst[:n], src[:n])
			dst, src = dst[n:], src[n:]
		}
	case NTAVX512:
		dst, src = aligned(dst, src, 64)
		if n := len(dst) &^ 255; n > 0 {
			copyNTAVX512(dst[:n], src[:n])
			dst, src = dst[n:], src[n:]
		}
	}
	copy(dst, src)
}

// The lengths of dst and src are equal; in the non-temporal loops a non-zero multiple of 128
// (AVX2), 256 (AVX-512) or 16 KiB (pages), and dst is aligned to 64 bytes. They end with SFENCE,
// since non-temporal stores are weakly ordered.

//go:noescape
func copyREPMOVSB(dst, src []byte)

//go:noescape
func copyNTAVX2(dst, src []byte)

//go:noescape
func copyNTAVX512(dst, src []byte)

//go:noescape
func copyNTPages(dst, src []byte)

// flush writes back and evicts the cache lines of b, whose length is a multiple of 64, on every
// core.
//
//go:noescape
func flush(b []byte)

// canFlush reports CLFLUSHOPT. The older CLFLUSH waits for each line and would eat the
// calibration's time.
var canFlush = hasCLFLUSHOPT()

func hasCLFLUSHOPT() bool
