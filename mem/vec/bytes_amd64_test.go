//go:build !noasm

package vec

// processors calls f as on this processor, as on one without AVX-512, and as on one without
// kernels.
func processors(f func(name string)) {
	a, b := hasBytes, hasAVX512
	defer func() { hasBytes, hasAVX512 = a, b }()
	for _, p := range []struct {
		name          string
		bytes, avx512 bool
	}{{"AVX-512", a, b}, {"AVX2", a, false}, {"Go", false, false}} {
		hasBytes, hasAVX512 = p.bytes, p.avx512
		f(p.name)
	}
}
