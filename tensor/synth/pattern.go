package synth

import (
	"encoding/binary"
	"math/bits"
)

// The pattern is SplitMix64 used as a counter: 64-bit word k of a seed is mix(mix(seed) +
// (k+1)·golden), little-endian (G. Steele, D. Lea, C. Flood: Fast splittable pseudorandom number
// generators, OOPSLA 2014). Any byte can be had without the ones before it. The seed is mixed
// first, since the streams of two seeds that differ by a multiple of golden would otherwise be
// shifts of each other.
const (
	golden  = 0x9e3779b97f4a7c15
	golden2 = golden * 2 & (1<<64 - 1) // constants do not wrap by themselves
	golden3 = golden * 3 & (1<<64 - 1)
	golden4 = golden * 4 & (1<<64 - 1)
)

func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Seed derives a seed from a name (FNV-1a), so that sender and receiver need to agree on nothing
// but the name.
func Seed(name string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	return h
}

// Fill writes the pattern of seed into dst, from position 0. It does not allocate.
func Fill(dst []byte, seed uint64) { FillAt(dst, seed, 0) }

// FillAt writes the part of the pattern that begins at position offset, in bytes, into dst.
func FillAt(dst []byte, seed, offset uint64) {
	// state is the counter of the word that contains the next byte.
	state := mix(seed) + (offset/8+1)*golden
	if r := int(offset % 8); r != 0 {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], mix(state))
		dst = dst[copy(dst, word[r:]):]
		state += golden
	}
	for len(dst) >= 32 {
		d := dst[:32:32]
		binary.LittleEndian.PutUint64(d[0:8], mix(state))
		binary.LittleEndian.PutUint64(d[8:16], mix(state+golden))
		binary.LittleEndian.PutUint64(d[16:24], mix(state+golden2))
		binary.LittleEndian.PutUint64(d[24:32], mix(state+golden3))
		state += golden4
		dst = dst[32:]
	}
	for len(dst) > 0 {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], mix(state))
		dst = dst[copy(dst, word[:]):]
		state += golden
	}
}

// Verify checks that p holds the part of the pattern of seed that begins at position offset, in
// bytes. When ok is false, firstBad is the index in p of the first byte that differs; otherwise it
// is -1. It does not allocate or write.
func Verify(p []byte, seed, offset uint64) (firstBad int, ok bool) {
	rest := p
	state := mix(seed) + (offset/8+1)*golden
	if r := int(offset % 8); r != 0 {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], mix(state))
		n := min(len(rest), 8-r)
		for i := range n {
			if rest[i] != word[r+i] {
				return i, false
			}
		}
		rest = rest[n:]
		state += golden
	}
	for len(rest) >= 32 {
		d := rest[:32:32]
		a := binary.LittleEndian.Uint64(d[0:8]) ^ mix(state)
		b := binary.LittleEndian.Uint64(d[8:16]) ^ mix(state+golden)
		c := binary.LittleEndian.Uint64(d[16:24]) ^ mix(state+golden2)
		e := binary.LittleEndian.Uint64(d[24:32]) ^ mix(state+golden3)
		if a|b|c|e != 0 {
			at := len(p) - len(rest)
			for i, diff := range [...]uint64{a, b, c, e} {
				if diff != 0 {
					return at + 8*i + bits.TrailingZeros64(diff)/8, false
				}
			}
		}
		state += golden4
		rest = rest[32:]
	}
	for len(rest) > 0 {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], mix(state))
		n := min(len(rest), 8)
		for i := range n {
			if rest[i] != word[i] {
				return len(p) - len(rest) + i, false
			}
		}
		rest = rest[n:]
		state += golden
	}
	return -1, true
}
