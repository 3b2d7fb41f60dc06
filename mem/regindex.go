package mem

import (
	"slices"
	"sort"
)

// accessIndex finds registrations of one region and one access by range. Items are sorted by start.
// A range [a, b) is covered by one registration if and only if, of those that start at a or before,
// the one that reaches farthest reaches to b: best remembers that one for every prefix, so that a
// lookup is one binary search however the ranges overlap.
type accessIndex struct {
	access Access
	items  []indexItem
	best   []int32 // best[i] is the index of the item of items[:i+1] with the largest end
}

type indexItem struct {
	start, end uint64
	entry      *entry
}

// find returns a registration that covers [start, end), or nil.
func (x *accessIndex) find(start, end uint64) *entry {
	low, high := 0, len(x.items) // the number of items that start at start or before
	for low < high {
		if mid := int(uint(low+high) >> 1); x.items[mid].start <= start {
			low = mid + 1
		} else {
			high = mid
		}
	}
	if low == 0 {
		return nil
	}
	if it := &x.items[x.best[low-1]]; it.end >= end {
		return it.entry
	}
	return nil
}

func (x *accessIndex) insert(e *entry) {
	it := indexItem{e.span.Off, e.span.Off + e.span.Len, e}
	i := sort.Search(len(x.items), func(i int) bool { return x.items[i].start > it.start })
	x.items = slices.Insert(x.items, i, it)
	x.best = append(x.best, 0)
	x.rebuild(i)
}

func (x *accessIndex) remove(e *entry) {
	i := sort.Search(len(x.items), func(i int) bool { return x.items[i].start >= e.span.Off })
	for x.items[i].entry != e {
		i++
	}
	x.items = slices.Delete(x.items, i, i+1)
	x.best = x.best[:len(x.best)-1]
	x.rebuild(i)
}

// rebuild computes best from index i on.
func (x *accessIndex) rebuild(i int) {
	var best int32
	if i > 0 {
		best = x.best[i-1]
	}
	for ; i < len(x.items); i++ {
		if x.items[i].end >= x.items[best].end {
			best = int32(i)
		}
		x.best[i] = best
	}
}

// lookup returns an entry that covers span for access a, ready or not, or nil. Holds c.mu.
func (c *RegCache) lookup(span Span, a Access) *entry {
	for _, ix := range c.regions[span.Region] {
		if ix.access&a == a {
			if e := ix.find(span.Off, span.Off+span.Len); e != nil {
				return e
			}
		}
	}
	return nil
}

// insert makes an entry known. Holds c.mu.
func (c *RegCache) insert(e *entry) {
	list := c.regions[e.span.Region]
	for _, ix := range list {
		if ix.access == e.access {
			ix.insert(e)
			return
		}
	}
	ix := &accessIndex{access: e.access}
	ix.insert(e)
	c.regions[e.span.Region] = append(list, ix)
}

// remove makes an entry unknown. Holds c.mu.
func (c *RegCache) remove(e *entry) {
	for _, ix := range c.regions[e.span.Region] {
		if ix.access == e.access {
			ix.remove(e)
			return
		}
	}
}

// entryList is a list of entries, linked through themselves so that moving one allocates nothing.
type entryList struct{ first, last *entry }

func (l *entryList) push(e *entry) {
	e.listed, e.prev, e.next = true, nil, l.first
	if l.first != nil {
		l.first.prev = e
	} else {
		l.last = e
	}
	l.first = e
}

func (l *entryList) remove(e *entry) {
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		l.first = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	} else {
		l.last = e.prev
	}
	e.listed, e.prev, e.next = false, nil, nil
}
