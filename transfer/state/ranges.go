package state

import "slices"

// Ranges is a set of bytes [0, n): disjoint, in order, with gaps between them.
type Ranges []byteRange

// byteRange is the bytes from lo up to, and without, hi.
type byteRange struct{ lo, hi uint64 }

// Add puts [lo, hi) into the set.
func (r *Ranges) Add(lo, hi uint64) {
	if lo >= hi {
		return
	}
	s := *r
	i := 0
	for i < len(s) && s[i].hi < lo {
		i++
	}
	k := i
	for k < len(s) && s[k].lo <= hi {
		lo, hi = min(lo, s[k].lo), max(hi, s[k].hi)
		k++
	}
	*r = slices.Replace(s, i, k, byteRange{lo, hi})
}

// Prefix is how many bytes from 0 on are in the set without a gap.
func (r Ranges) Prefix() uint64 {
	if len(r) == 0 || r[0].lo > 0 {
		return 0
	}
	return r[0].hi
}

// Sum is how many bytes are in the set.
func (r Ranges) Sum() (n uint64) {
	for _, x := range r {
		n += x.hi - x.lo
	}
	return n
}

// Gap returns the first bytes from at on, below end, that are not in the set: at most size of them.
func (r Ranges) Gap(at, size, end uint64) (lo, hi uint64, ok bool) {
	for _, x := range r {
		if x.hi <= at {
			continue
		}
		if x.lo > at {
			end = min(end, x.lo)
			break
		}
		at = x.hi
	}
	if at >= end {
		return 0, 0, false
	}
	return at, at + min(size, end-at), true
}
