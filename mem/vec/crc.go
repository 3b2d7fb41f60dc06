package vec

import (
	"encoding/binary"
	"hash/crc32"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CRC32C returns the CRC-32C (Castagnoli polynomial, RFC 3720 section 12.1 and appendix B.4) of the
// bytes whose CRC-32C is crc followed by p. Start with crc 0. It is the standard library's
// hash/crc32, which uses the CPU's CRC instructions, and on amd64 with AVX-512 and VPCLMULQDQ a
// folding kernel from 1 KiB up, which is several times as fast in the caches. It allocates nothing,
// nor does it make the caller's buffer escape to the heap.
func CRC32C(crc uint32, p []byte) uint32 {
	if folds && len(p) >= minFold {
		return foldedCRC32C(crc, p)
	}
	return update(crc, p)
}

// update is hash/crc32 for any buffer.
//
//go:noinline
func update(crc uint32, p []byte) uint32 {
	return crc32.Update(crc, castagnoli, keepOnStack(p))
}

// crcBlock is how much is copied before it is checksummed where no kernel does both at once: source
// and destination of one block fit the first-level cache of current server cores.
const crcBlock = 16 << 10

// CopyCRC32C copies src to dst, which must be at least as long, and returns CRC32C(crc, src),
// reading src from memory once. The checksum is that of the bytes that were written, so that a
// source which another process changes meanwhile cannot make data and checksum disagree. Large
// copies store past the caches where Copy would, and order their stores as Copy does. It panics
// when dst is shorter than src, and copies nothing then. Overlapping slices are legal only when
// they are equal.
func CopyCRC32C(dst, src []byte, crc uint32) uint32 {
	dst = dst[:len(src)]
	if folds && len(src) >= minFold {
		return foldedCopyCRC32C(dst, src, crc)
	}
	return blockedCopyCRC32C(dst, src, crc)
}

// blockedCopyCRC32C checksums what it has just copied, in blocks that are still in the first-level
// cache.
func blockedCopyCRC32C(dst, src []byte, crc uint32) uint32 {
	for len(src) > 0 {
		n := copy(dst[:min(len(dst), crcBlock)], src)
		crc = update(crc, dst[:n])
		dst, src = dst[n:], src[n:]
	}
	return crc
}

// foldBlock is what a folding kernel takes per turn; below minFold bytes the closing reduction eats
// the gain.
const (
	foldBlock = 256
	minFold   = 1 << 10
)

// foldBy holds what the lower and the upper half of a 128-bit lane are multiplied by to move
// foldBlock bytes ahead: x^(2048+32) and x^(2048-32) modulo the polynomial, one bit up because a
// product of reversed polynomials is one bit short.
var foldBy = [2]uint64{uint64(powX8(foldBlock+4)) << 1, uint64(powX8(foldBlock-4)) << 1}

// foldedCRC32C reduces p to foldBlock bytes that have the same remainder, and leaves those to
// update.
func foldedCRC32C(crc uint32, p []byte) uint32 {
	var state [foldBlock]byte
	begin(&state, p, crc)
	p = p[foldBlock:]
	for len(p) >= foldBlock {
		n := min(len(p), block) &^ (foldBlock - 1)
		foldCRC(&state, &foldBy, p[:n])
		p = p[n:]
	}
	return update(finish(&state), p)
}

// foldedCopyCRC32C stores the very registers that it folds.
func foldedCopyCRC32C(dst, src []byte, crc uint32) uint32 {
	past := past(len(src))
	if past {
		h := misalignment(dst, 64)
		copy(dst[:h], src[:h])
		crc = update(crc, dst[:h])
		dst, src = dst[h:], src[h:]
	}
	raceCopy(dst, src)
	var first, state [foldBlock]byte
	copy(first[:], src)
	begin(&state, first[:], crc)
	copy(dst, first[:])
	dst, src = dst[foldBlock:], src[foldBlock:]
	for len(src) >= foldBlock {
		n := min(len(src), block) &^ (foldBlock - 1)
		if past {
			copyFoldCRCNT(&state, &foldBy, dst[:n], src[:n])
		} else {
			copyFoldCRC(&state, &foldBy, dst[:n], src[:n])
		}
		dst, src = dst[n:], src[n:]
	}
	n := copy(dst, src)
	return update(finish(&state), dst[:n])
}

// begin starts a state with the first block of p; the CRC of what came before is added to its first
// four bytes.
func begin(state *[foldBlock]byte, p []byte, crc uint32) {
	copy(state[:], p[:foldBlock])
	binary.LittleEndian.PutUint32(state[:], binary.LittleEndian.Uint32(state[:])^^crc)
}

// finish is the CRC of a state. The register starts at zero, which hash/crc32 writes as all ones.
func finish(state *[foldBlock]byte) uint32 { return update(^uint32(0), state[:]) }

// poly is the Castagnoli polynomial without its x^32 term, bit-reversed: bit 31 is the coefficient
// of x^0.
const poly = 0x82f63b78

// mulModP multiplies two polynomials in reversed bit order modulo the Castagnoli polynomial.
func mulModP(a, b uint32) uint32 {
	var p uint32
	for a != 0 {
		if a&(1<<31) != 0 {
			p ^= b
		}
		a <<= 1
		b = b>>1 ^ poly&-(b&1)
	}
	return p
}

// x8Pow2[k] is x^(8·2^k) modulo the polynomial.
var x8Pow2 = func() (t [63]uint32) {
	t[0] = 1 << (31 - 8) // x^8
	for k := 1; k < len(t); k++ {
		t[k] = mulModP(t[k-1], t[k-1])
	}
	return
}()

// powX8 is x^(8n) modulo the polynomial.
func powX8(n uint64) uint32 {
	r := uint32(1 << 31) // x^0
	for k := 0; n != 0; k, n = k+1, n>>1 {
		if n&1 != 0 {
			r = mulModP(x8Pow2[k], r)
		}
	}
	return r
}
