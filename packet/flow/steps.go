package flow

import "math/bits"

// paged turns a number of 16 bits into a class by way of pages of 64 numbers. Pages of one class
// are shared, so that the table stays in the cache of the processor.
type paged struct {
	index [1 << 16 / pageSize]uint16 // number / 64 -> page
	pages []page
}

const pageSize = 64

type page [pageSize]uint16

// newPaged makes the table of intervals that begin at starts; class i begins at starts[i], the
// first at 0. Numbers above last are never asked for.
func newPaged(starts []u128, last uint64) *paged {
	t := new(paged)
	shared := map[uint16]uint16{}
	class := 0
	for n := uint64(0); n <= last; n += pageSize {
		var p page
		for i := range p {
			for class+1 < len(starts) && starts[class+1].hi == 0 && starts[class+1].lo <= n+uint64(i) {
				class++
			}
			p[i] = uint16(class)
		}
		at, ok := shared[p[0]]
		if !ok || p[0] != p[pageSize-1] {
			at = uint16(len(t.pages))
			t.pages = append(t.pages, p)
			if p[0] == p[pageSize-1] {
				shared[p[0]] = at
			}
		}
		t.index[n/pageSize] = at
	}
	return t
}

func (t *paged) find(v uint16) uint16 { return t.pages[t.index[v/pageSize]][v%pageSize] }

// steps32 finds in which of the intervals of the IPv4 addresses an address lies: an index by the
// upper half of the address, then a search among the few that begin there.
type steps32 struct {
	starts []uint32
	index  []uint16 // upper half -> interval that holds its first address; one more entry at the end
}

func newSteps32(at []u128) steps32 {
	s := steps32{index: make([]uint16, 1<<16+1)}
	for _, a := range at {
		if a.hi == 0 && a.lo < 1<<32 {
			s.starts = append(s.starts, uint32(a.lo))
		}
	}
	i := 0
	for h := range 1 << 16 {
		for i+1 < len(s.starts) && s.starts[i+1] <= uint32(h)<<16 {
			i++
		}
		s.index[h] = uint16(i)
	}
	s.index[1<<16] = uint16(len(s.starts) - 1)
	return s
}

// find returns the number of the last interval that begins at or before v.
func (s *steps32) find(v uint32) uint16 {
	h := v >> 16
	lo, hi := s.index[h], s.index[h+1]
	for lo < hi {
		mid := (lo + hi + 1) / 2
		if s.starts[mid] <= v {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	return lo
}

// steps128 is the same for IPv6 addresses. Its index is over the part of the upper 64 bits in which
// the beginnings differ.
type steps128 struct {
	starts []u128
	index  []uint16
	base   uint64 // upper half of the first beginning behind 0
	shift  uint8
	class  uint16 // of the first interval
}

const indexBits = 12

func newSteps128(at []u128, class uint16) steps128 {
	s := steps128{starts: at, class: class, index: make([]uint16, 1<<indexBits+1)}
	last := len(at) - 1
	if last > 0 {
		s.base = at[1].hi
		s.shift = uint8(max(bits.Len64(at[last].hi-s.base)-indexBits, 0))
	}
	i := 0
	for h := range s.index {
		first := s.base + uint64(h)<<s.shift
		if h > 0 && (first < s.base || first-s.base != uint64(h)<<s.shift) { // behind the last address
			s.index[h] = uint16(last)
			continue
		}
		for i < last && !(u128{first, 0}).less(at[i+1]) {
			i++
		}
		s.index[h] = uint16(i)
	}
	s.index[1<<indexBits] = uint16(last)
	return s
}

func (s *steps128) find(v u128) uint16 {
	if v.hi < s.base {
		return s.class // before the first beginning behind 0
	}
	h := min((v.hi-s.base)>>s.shift, 1<<indexBits-1)
	lo, hi := s.index[h], s.index[h+1]
	for lo < hi {
		mid := lo + (hi-lo+1)/2 // fits for up to 65,535 intervals
		if v.less(s.starts[mid]) {
			hi = mid - 1
		} else {
			lo = mid
		}
	}
	return s.class + lo
}

// exact is a hash table from numbers to 1, 2, 3... in the order in which they were given; 0 means
// that a number is not in it.
type exact struct {
	slots []exactSlot
	shift uint8
}

type exactSlot struct {
	key   uint64
	class uint32
}

func newExact(keys []uint64) exact {
	n := uint8(bits.Len(uint(2*len(keys)))) + 1 // at most half full
	e := exact{slots: make([]exactSlot, 1<<n), shift: 64 - n}
	for i, k := range keys {
		h := e.hash(k)
		for e.slots[h].class != 0 {
			h = (h + 1) & (len(e.slots) - 1)
		}
		e.slots[h] = exactSlot{k, uint32(i + 1)}
	}
	return e
}

func (e *exact) hash(k uint64) int { return int(k * 0x9e3779b97f4a7c15 >> e.shift) }

func (e *exact) find(k uint64) uint32 {
	for h := e.hash(k); ; h = (h + 1) & (len(e.slots) - 1) {
		if s := &e.slots[h]; s.key == k || s.class == 0 {
			return s.class
		}
	}
}
