package vec

import "bytes"

const (
	minSearch = 512 // places from which Index uses assembly
	places    = 64  // that a kernel takes a multiple of
)

// Index is the first place of pattern in p, -1 where there is none: bytes.Index, whose time per
// byte does not depend on the bytes as much.
//
// A kernel looks for two bytes of the pattern at their distance, at 32 or 64 places at a time.
// Where a place has both and yet not the pattern, one of the two becomes the byte that was
// different; where that happens too often, bytes.Index does the rest.
func Index(p, pattern []byte) int {
	n := len(p) - len(pattern) + 1 // places
	if len(pattern) < 2 || n < minSearch || !hasBytes {
		return bytes.Index(p, pattern)
	}
	raceRead(p)
	first, second := 0, len(pattern)-1
	for second > 1 && pattern[second] == pattern[0] {
		second--
	}
	at, misses := 0, 0
	for n-at >= places {
		k := min((n-at)&^(places-1), block)
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
			if i = bytes.Index(p[at:], pattern); i < 0 {
				return -1
			}
			return at + i
		}
	}
	for at < n {
		i := bytes.IndexByte(p[at+second:n+second], pattern[second])
		if i < 0 {
			break
		}
		if at += i; difference(p[at:], pattern) < 0 {
			return at
		}
		at++
	}
	return -1
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
