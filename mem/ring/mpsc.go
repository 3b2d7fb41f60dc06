package ring

import (
	"reflect"
	"sync/atomic"
)

// slot is one place of a ring with many producers.
type slot[T any] struct {
	seq atomic.Uint64 // ticket+1 once the item of that ticket is in place
	v   T
}

// MPSC is a bounded ring for any number of producer goroutines and one consumer
// goroutine. Put and PutBatch may be called by all at once; Get and GetBatch
// belong to the consumer, and that role may move if the move synchronises.
//
// The items of one producer keep their order; those of one PutBatch lie next to
// each other. See the package documentation for what false means while another
// Put is in progress.
//
// As the single consumer releases slots in order, one head ticket tells producers
// what is free, and a burst is released by a single store.
type MPSC[T any] struct {
	slots    []slot[T]
	mask     uint64
	pointers bool

	_       [lineSize]byte
	tail    atomic.Uint64 // next ticket to claim
	seen    atomic.Uint64 // a past value of head, so that producers rarely read its line
	retries atomic.Uint64 // claims lost to another producer; the line is ours anyway
	_       [lineSize]byte
	head    atomic.Uint64 // next ticket to get; written by the consumer only
	_       [lineSize]byte
}

// NewMPSC returns a ring for capacity items, rounded up to the next power of two
// (at least 2); Cap tells the result. The error says which capacity or size was
// out of range.
func NewMPSC[T any](capacity int) (*MPSC[T], error) {
	return newMPSC[T](capacity, 0)
}

// newMPSC starts the tickets at start, so that tests reach the wrap of 2^64.
func newMPSC[T any](capacity int, start uint64) (*MPSC[T], error) {
	n, err := roundCapacity("MPSC", capacity, reflect.TypeFor[slot[T]]().Size())
	if err != nil {
		return nil, err
	}
	r := &MPSC[T]{slots: newSlots[T](n, start), mask: n - 1, pointers: holdsPointers(reflect.TypeFor[T]())}
	r.tail.Store(start)
	r.seen.Store(start)
	r.head.Store(start)
	return r, nil
}

// newSlots returns n slots, free for the tickets from start on.
func newSlots[T any](n, start uint64) []slot[T] {
	s := make([]slot[T], n)
	for t := start; t != start+n; t++ {
		s[t&(n-1)].seq.Store(t)
	}
	return s
}

// claim takes up to want tickets with one successful compare-and-swap and returns
// the first of them and their number: 0 when the ring is full.
func (r *MPSC[T]) claim(want uint64) (t, n uint64) {
	size := r.mask + 1
	for {
		t = r.tail.Load()
		n = want
		if used := t - r.seen.Load(); used > size || size-used < want {
			h := r.head.Load()
			if r.seen.Load() != h {
				r.seen.Store(h)
			}
			used = t - h
			if used > size {
				continue // head has passed t: others have moved tail since we read it
			}
			if n = min(want, size-used); n == 0 {
				return t, 0
			}
		}
		if r.tail.CompareAndSwap(t, t+n) {
			return t, n
		}
		r.retries.Add(1)
	}
}

// Put appends v and reports whether there was room.
func (r *MPSC[T]) Put(v T) bool {
	t, n := r.claim(1)
	if n == 0 {
		return false
	}
	s := &r.slots[t&r.mask]
	s.v = v
	s.seq.Store(t + 1)
	return true
}

// PutBatch appends the first items of vs, as many as there is room for, next to
// each other, and returns their number. The room is claimed at once; the items
// appear to the consumer one after the other.
func (r *MPSC[T]) PutBatch(vs []T) int {
	if len(vs) == 0 {
		return 0
	}
	t, n := r.claim(uint64(len(vs)))
	for i := range vs[:n] {
		s := &r.slots[t&r.mask]
		s.v = vs[i]
		t++
		s.seq.Store(t)
	}
	return int(n)
}

// Get removes and returns the oldest item; the answer is false when there is none
// or when it is still being put.
func (r *MPSC[T]) Get() (v T, ok bool) {
	h := r.head.Load()
	s := &r.slots[h&r.mask]
	if s.seq.Load() != h+1 {
		return v, false
	}
	v = s.v
	if r.pointers {
		var zero T
		s.v = zero
	}
	r.head.Store(h + 1)
	return v, true
}

// GetBatch removes the oldest items, as many as there are and as dst has room
// for, into dst, and returns their number. It stops at an item still being put.
func (r *MPSC[T]) GetBatch(dst []T) int {
	h := r.head.Load()
	n := 0
	for n < len(dst) {
		s := &r.slots[h&r.mask]
		if s.seq.Load() != h+1 {
			break
		}
		dst[n] = s.v
		if r.pointers {
			var zero T
			s.v = zero
		}
		h++
		n++
	}
	if n > 0 {
		r.head.Store(h)
	}
	return n
}

// Len returns how many tickets were claimed and not yet got at about the time of
// the call: the number of items, when no Put is in progress.
func (r *MPSC[T]) Len() int {
	h := r.head.Load()
	return int(min(r.tail.Load()-h, r.mask+1))
}

// Cap returns how many items the ring can hold.
func (r *MPSC[T]) Cap() int { return len(r.slots) }

// Retries returns how many claims by producers were lost to another producer and
// tried again. Attempts are the calls that put something, plus these.
func (r *MPSC[T]) Retries() uint64 { return r.retries.Load() }
