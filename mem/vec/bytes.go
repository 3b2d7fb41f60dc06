package vec

import (
	"encoding/binary"
	"math/bits"
)

// minKernel is the length from which the functions of this file use assembly; below it calls cost
// more than they bring.
const minKernel = 256

// front is how many of n bytes kernels take: whole turns of their loops, none below minKernel.
func front(n int) int {
	if !hasBytes || n < minKernel {
		return 0
	}
	return n &^ (turn - 1)
}

// past reports whether n bytes are better stored past the caches: where Copy does.
func past(n int) bool {
	if n <= LargeCopy {
		return false
	}
	t := chosen(n)
	return t != nil && t.kernels[classOf(n)].NonTemporal()
}

// Set fills dst with the 8 bytes of pattern, little-endian, again and again. dst may end within a
// pattern. For one byte v pattern is v*0x0101010101010101. Large slices are filled past the caches
// where Copy copies so.
func Set(dst []byte, pattern uint64) {
	if pattern == 0 {
		clear(dst)
		return
	}
	nt := past(len(dst))
	if nt {
		h := min(misalignment(dst, 64), len(dst))
		setScalar(dst[:h], pattern)
		dst, pattern = dst[h:], bits.RotateLeft64(pattern, -8*h)
	}
	raceWrite(dst)
	for n := front(len(dst)); n > 0; n = front(len(dst)) {
		n = min(n, block)
		set(dst[:n], pattern, nt)
		dst = dst[n:]
	}
	setScalar(dst, pattern)
}

func setScalar(dst []byte, pattern uint64) {
	for ; len(dst) >= 8; dst = dst[8:] {
		binary.LittleEndian.PutUint64(dst, pattern)
	}
	for i := range dst {
		dst[i] = byte(pattern >> (8 * i))
	}
}

// Xor sets dst[i] = a[i] ^ b[i] for as many bytes as all three have, and returns their number. dst
// may be a or b, or overlap neither: that is crypto/subtle.XORBytes, which panics where they
// overlap otherwise, without its panic; dst is undefined then. Large results are stored past the
// caches where Copy does so, unless dst is a or b.
func Xor(dst, a, b []byte) int {
	all := min(len(dst), len(a), len(b))
	dst, a, b = dst[:all], a[:all], b[:all]
	nt := past(all) && !overlap(dst, a) && !overlap(dst, b)
	if nt {
		h := min(misalignment(dst, 64), all)
		xorScalar(dst[:h], a, b)
		dst, a, b = dst[h:], a[h:], b[h:]
	}
	raceCopy(dst, a)
	raceCopy(dst, b)
	for n := front(len(dst)); n > 0; n = front(len(dst)) {
		n = min(n, block)
		xor(dst[:n], a[:n], b[:n], nt)
		dst, a, b = dst[n:], a[n:], b[n:]
	}
	xorScalar(dst, a, b)
	return all
}

func xorScalar(dst, a, b []byte) {
	le := binary.LittleEndian
	for ; len(dst) >= 8; dst, a, b = dst[8:], a[8:], b[8:] {
		le.PutUint64(dst, le.Uint64(a)^le.Uint64(b))
	}
	for i := range dst {
		dst[i] = a[i] ^ b[i]
	}
}

// Sum is the one's complement sum of the internet checksum (RFC 1071) of p's words of 16 bits in
// network order, folded to 16 bits. A last odd byte is the upper half of a word. The sum is 0 only
// where all bytes are, and is the same for each alignment; sums of even pieces add up, with carries
// added at the end.
func Sum(p []byte) uint16 {
	raceRead(p)
	// The sum of words in the other order is the sum with its bytes swapped (RFC 1071 section 2B).
	var s uint64
	for n := front(len(p)); n > 0; n = front(len(p)) {
		n = min(n, block)
		s = addCarry(s, sum(p[:n]))
		p = p[n:]
	}
	return bits.ReverseBytes16(fold(sumScalar(s, p)))
}

func sumScalar(s uint64, p []byte) uint64 {
	for ; len(p) >= 8; p = p[8:] {
		s = addCarry(s, binary.LittleEndian.Uint64(p))
	}
	var rest uint64
	for i, b := range p {
		rest |= uint64(b) << (8 * i)
	}
	return addCarry(s, rest)
}

func addCarry(a, b uint64) uint64 {
	s, c := bits.Add64(a, b, 0)
	return s + c
}

func fold(s uint64) uint16 {
	s = s>>32 + s&0xffffffff
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	return uint16(s)
}

// orders are those of the bytes of 16 that are swapped in elements of 2, 4 and 8.
var orders = map[int]*[16]byte{2: newOrder(2), 4: newOrder(4), 8: newOrder(8)}

func newOrder(size int) *[16]byte {
	o := new([16]byte)
	for i := range o {
		o[i] = byte(i ^ (size - 1))
	}
	return o
}

// Swap reverses the bytes of each element of src, into dst, and returns how many bytes that was:
// whole elements of size bytes, 2, 4 or 8, as many as both have. dst may be src, or overlap it
// nowhere. It panics for another size.
func Swap(dst, src []byte, size int) int {
	order := orders[size]
	if order == nil {
		panic("vec: Swap of elements that have not 2, 4 or 8 bytes")
	}
	all := min(len(dst), len(src)) &^ (size - 1)
	dst, src = dst[:all], src[:all]
	raceCopy(dst, src)
	for n := front(len(dst)); n > 0; n = front(len(dst)) {
		n = min(n, block)
		swap(dst[:n], src[:n], order)
		dst, src = dst[n:], src[n:]
	}
	swapScalar(dst, src, size)
	return all
}

func swapScalar(dst, src []byte, size int) {
	be, le := binary.BigEndian, binary.LittleEndian
	for i := 0; i < len(src); i += size {
		switch size {
		case 2:
			be.PutUint16(dst[i:], le.Uint16(src[i:]))
		case 4:
			be.PutUint32(dst[i:], le.Uint32(src[i:]))
		case 8:
			be.PutUint64(dst[i:], le.Uint64(src[i:]))
		}
	}
}

// Scatter copies src, elements of size bytes one behind the other, to dst, where one begins every
// stride bytes: the corner turn of one row. A last part of an element is left out. It panics where
// dst is too short for the last element, where size is below 1, or stride below size. dst and src
// do not overlap.
func Scatter(dst []byte, stride int, src []byte, size int) {
	if size < 1 || stride < size {
		panic("vec: Scatter of elements that are empty or overlap")
	}
	le := binary.LittleEndian
	for at := 0; len(src) >= size; at, src = at+stride, src[size:] {
		switch d := dst[at:]; size {
		case 1:
			d[0] = src[0]
		case 2:
			le.PutUint16(d, le.Uint16(src))
		case 4:
			le.PutUint32(d, le.Uint32(src))
		case 8:
			le.PutUint64(d, le.Uint64(src))
		default:
			copy(d[:size], src)
		}
	}
}

// Gather fills dst with elements of size bytes that begin every stride bytes of src: what Scatter
// does, backwards. It panics as Scatter does, for src.
func Gather(dst []byte, src []byte, stride, size int) {
	if size < 1 || stride < size {
		panic("vec: Gather of elements that are empty or overlap")
	}
	le := binary.LittleEndian
	for at := 0; len(dst) >= size; at, dst = at+stride, dst[size:] {
		switch s := src[at:]; size {
		case 1:
			dst[0] = s[0]
		case 2:
			le.PutUint16(dst, le.Uint16(s))
		case 4:
			le.PutUint32(dst, le.Uint32(s))
		case 8:
			le.PutUint64(dst, le.Uint64(s))
		default:
			copy(dst[:size], s[:size])
		}
	}
}
