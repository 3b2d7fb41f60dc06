package vec

import "fmt"

// Kernel is one way to copy bytes. The zero value is Builtin.
type Kernel uint8

// The kernels. Kernels lists those that this machine has.
const (
	// Builtin is Go's built-in copy.
	Builtin Kernel = iota
	// REPMOVSB is the string instruction of x86 processors that have ERMS; its microcode picks a
	// strategy by length.
	REPMOVSB
	// NTAVX2 is a linear loop of 32-byte loads with prefetch and 32-byte non-temporal stores
	// (amd64).
	NTAVX2
	// NTAVX512 is a linear loop of 64-byte loads and 64-byte non-temporal stores (amd64).
	NTAVX512
	// NTPages is non-temporal and walks four pages at once, 128 bytes from each in turn, so that
	// four DRAM rows and four streams of the hardware prefetcher are busy (amd64 with AVX2). The
	// idea is that of glibc's large_memcpy.
	NTPages
	// NTPair is a loop of load and store pairs with the non-temporal hint, LDNP and STNP (arm64).
	NTPair
	kernels = iota
)

var kernelNames = [kernels]string{"builtin", "rep-movsb", "nt-avx2", "nt-avx512", "nt-pages", "nt-pair"}

func (k Kernel) String() string {
	if int(k) < len(kernelNames) {
		return kernelNames[k]
	}
	return fmt.Sprintf("kernel(%d)", uint8(k))
}

// NonTemporal reports whether the kernel's stores bypass the caches whatever the length.
func (k Kernel) NonTemporal() bool { return k >= NTAVX2 && k < kernels }

// Available reports whether this machine and build have the kernel.
func (k Kernel) Available() bool { return k == Builtin || k < kernels && available[k] }

// available is set once at start by the architecture's file and never changes.
var available = detect()

// Kernels returns the kernels of this machine, Builtin first. The caller owns the slice.
func Kernels() []Kernel {
	var ks []Kernel
	for k := range Kernel(kernels) {
		if k.Available() {
			ks = append(ks, k)
		}
	}
	return ks
}

// block is the most that one call into assembly copies. Assembly cannot be preempted, so this
// bounds how long a large copy can hold up the garbage collector: about half a millisecond, where
// the built-in copy takes as long as it takes.
const block = 4 << 20

// Copy copies min(len(dst), len(src)) bytes with kernel k at any size and returns that number. The
// rules are those of the function Copy: overlapping slices, and a kernel that is not Available, use
// the built-in copy.
func (k Kernel) Copy(dst, src []byte) int {
	n := min(len(dst), len(src))
	if k == Builtin || !k.Available() || overlap(dst[:n], src[:n]) {
		return copy(dst, src)
	}
	dst, src = dst[:n], src[:n]
	raceCopy(dst, src)
	for len(dst) > block {
		k.run(dst[:block], src[:block])
		dst, src = dst[block:], src[block:]
	}
	k.run(dst, src)
	return n
}
