package vec

// The scalar twins: each operation of the package in its plainest form, against which the kernels
// are tested. The race detector has nothing to find in them and would make them fifty times slower.

//go:norace
func scalarCopy(dst, src []byte) int {
	n := min(len(dst), len(src))
	for i := range n {
		dst[i] = src[i]
	}
	return n
}

// scalarTable holds the remainder of each byte, found by dividing bit by bit.
var scalarTable = func() (t [256]uint32) {
	for i := range t {
		r := uint32(i)
		for range 8 {
			if r&1 != 0 {
				r = r>>1 ^ 0x82f63b78
			} else {
				r >>= 1
			}
		}
		t[i] = r
	}
	return
}()

// scalarCRC32C divides byte by byte.
//
//go:norace
func scalarCRC32C(crc uint32, p []byte) uint32 {
	crc = ^crc
	for _, b := range p {
		crc = crc>>8 ^ scalarTable[byte(crc)^b]
	}
	return ^crc
}

func scalarCopyCRC32C(dst, src []byte, crc uint32) uint32 {
	scalarCopy(dst, src)
	return scalarCRC32C(crc, src)
}

//go:norace
func scalarSet(dst []byte, pattern uint64) {
	for i := range dst {
		dst[i] = byte(pattern >> (i % 8 * 8))
	}
}

//go:norace
func scalarXor(dst, a, b []byte) {
	for i := range min(len(dst), len(a), len(b)) {
		dst[i] = a[i] ^ b[i]
	}
}

// scalarSum is RFC 1071 as it is written.
//
//go:norace
func scalarSum(p []byte) uint16 {
	var s uint32
	for i, v := range p {
		s += uint32(v) << (8 * (1 - i&1))
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

//go:norace
func scalarSwap(dst, src []byte, size int) {
	for i := range min(len(dst), len(src)) / size * size {
		dst[i] = src[i^(size-1)]
	}
}

//go:norace
func scalarIndex(p, pattern []byte) int {
	for i := 0; i+len(pattern) <= len(p); i++ {
		if string(p[i:i+len(pattern)]) == string(pattern) {
			return i
		}
	}
	return -1
}
