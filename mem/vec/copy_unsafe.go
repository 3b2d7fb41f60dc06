package vec

import "unsafe"

// overlap reports whether the slices, of equal length, share a byte.
func overlap(a, b []byte) bool {
	p, q := uintptr(unsafe.Pointer(unsafe.SliceData(a))), uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	n := uintptr(len(a))
	return p < q+n && q < p+n
}

// misalignment is the number of bytes from the start of b to the next address that is a multiple of
// align, a power of two.
func misalignment(b []byte, align int) int {
	return int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & uintptr(align-1))
}

// keepOnStack returns p with its origin hidden from escape analysis. hash/crc32 calls through a
// function variable, so the compiler must assume that it keeps p, and would move every caller's
// small buffer to the heap; it keeps nothing. The result must not outlive the call of the function
// that p was passed to, which must not be inlined.
func keepOnStack(p []byte) []byte {
	return unsafe.Slice((*byte)(hide(unsafe.Pointer(unsafe.SliceData(p)))), len(p))
}
