//go:build !noasm && (amd64 || arm64)

package vec

// aligned copies the bytes before the first destination address that is a multiple of align (a
// power of two) and returns the rest. Non-temporal stores of whole lines must not straddle lines.
func aligned(dst, src []byte, align int) (d, s []byte) {
	h := min(misalignment(dst, align), len(dst))
	copy(dst[:h], src[:h])
	return dst[h:], src[h:]
}
