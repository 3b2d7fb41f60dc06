package vec

import "bytes"

// minSearch is the number of places from which Index uses assembly.
const minSearch = 128

// Index is the first place of pattern in p, -1 where there is none: bytes.Index, whose time per byte does not depend on the bytes as much.
//
// A kernel looks for two bytes of the pattern at their distance, at 32 or 64 places at a time. Where a place has both and yet not the pattern, one of the two becomes the byte that
// was different; where that happens too often, bytes.Index does the rest.
func Index(p, pattern []byte) int {
	n := len(p) - len(pattern) + 1 // places
	if len(pattern) < 2 || n < minSearch || !hasBytes {
		return bytes.Index(p, pattern)
	}
	raceRead(p)
	first, second := 0, rarest(pattern)
	at, misses := 0, 0
	for n-at >= turn {
		k := min((n-at)&^(turn-1), block)
		i := find(&p[at], k, first, second, pattern[first], pattern[second])
		if at += i; i == k {
			continue
		}
		d := difference(p[at:], pattern)
		if d < 0 {
			return at
		}
		at++
		first, second = second, d
		if misses++; misses > 16+at/256 {
			break
		}
	}
	if i := bytes.Index(p[at:], pattern); i >= 0 {
		return at + i
	}
	return -1
}

// rarest is the place, behind the first, of a byte that occurs in pattern no more often than any other, the last such.
func rarest(pattern []byte) (at int) {
	var counts [256]uint8
	for _, b := range pattern {
		if counts[b] < 255 {
			counts[b]++
		}
	}
	at = len(pattern) - 1
	for i := len(pattern) - 2; i > 0; i-- {
		if counts[pattern[i]] < counts[pattern[at]] {
			at = i
		}
	}
	return at
}

// difference is the first place where p does not begin with pattern; -1: it does.
func difference(p, pattern []byte) int {
	p = p[:len(pattern)]
	if bytes.Equal(p, pattern) {
		return -1
	}
	for i, b := range pattern {
		if p[i] != b {
			return i
		}
	}
	return -1
}
