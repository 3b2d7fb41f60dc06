package pathtest

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// canary fills memory that must not change.
const canary = 0xA5

func mix(x uint64) uint64 { // SplitMix64 (Steele, Lea, Flood 2014)
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// Fill writes the pattern of a seed: every 8 bytes are different, so that a block at the wrong
// place shows.
func Fill(b []byte, seed uint64) {
	i := uint64(0)
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, mix(seed+i))
		i++
	}
	x := mix(seed + i)
	for k := range b {
		b[k] = byte(x >> (8 * k))
	}
}

// Verify returns the offset of the first byte that is not as Fill left it, or -1.
func Verify(b []byte, seed uint64) int {
	i, off := uint64(0), 0
	for ; len(b)-off >= 8; off += 8 {
		if binary.LittleEndian.Uint64(b[off:]) != mix(seed+i) {
			break
		}
		i++
	}
	x := mix(seed + i)
	for k, c := range b[off:min(off+8, len(b))] {
		if c != byte(x>>(8*k)) {
			return off + k
		}
	}
	return -1
}

func wantFill(t testing.TB, what string, b []byte, seed uint64) {
	t.Helper()
	if i := Verify(b, seed); i >= 0 {
		t.Fatalf("%s: byte %d of %d is wrong", what, i, len(b))
	}
}

func setAll(b []byte, c byte) {
	if len(b) == 0 {
		return
	}
	b[0] = c
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

func wantAll(t testing.TB, what string, b []byte, c byte) {
	t.Helper()
	for i, x := range b {
		if x != c {
			t.Fatalf("%s: byte %d of %d is %#x, expected %#x: it was not to be written", what, i, len(b), x, c)
		}
	}
}

// different is the offset of the first byte in which a differs from b, which is as long, or -1.
func different(a, b []byte) int {
	if bytes.Equal(a, b) {
		return -1
	}
	i := 0
	for a[i] == b[i] {
		i++
	}
	return i
}
