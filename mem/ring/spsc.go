package ring

import (
	"reflect"
	"sync/atomic"
)

// SPSC is a bounded ring for one producer goroutine and one consumer goroutine.
// Put and PutBatch belong to the producer, Get and GetBatch to the consumer; Len
// and Cap may be called by anyone. Each role may move to another goroutine if
// the move itself synchronises (a channel, a mutex).
//
// "Full" and "empty" are exact: at a moment during the call, the ring held Cap
// items or none.
type SPSC[T any] struct {
	slots    []T
	mask     uint64
	pointers bool // slots must be cleared after Get, for the garbage collector

	_        [lineSize]byte
	producer spscSide
	_        [lineSize]byte
	consumer spscSide
	_        [lineSize]byte
}

// spscSide is what one side writes.
type spscSide struct {
	ticket atomic.Uint64 // next ticket; written by this side only
	other  uint64        // the other side's ticket when last looked at; private
}

// NewSPSC returns a ring for capacity items, rounded up to the next power of two
// (at least 2); Cap tells the result. The error says which capacity or size was
// out of range.
func NewSPSC[T any](capacity int) (*SPSC[T], error) {
	return newSPSC[T](capacity, 0)
}

// newSPSC starts the tickets at start, so that tests reach the wrap of 2^64.
func newSPSC[T any](capacity int, start uint64) (*SPSC[T], error) {
	t := reflect.TypeFor[T]()
	n, err := roundCapacity("SPSC", capacity, t.Size())
	if err != nil {
		return nil, err
	}
	r := &SPSC[T]{slots: make([]T, n), mask: n - 1, pointers: holdsPointers(t)}
	r.producer.ticket.Store(start)
	r.producer.other = start
	r.consumer.ticket.Store(start)
	r.consumer.other = start
	return r, nil
}

// Put appends v and reports whether there was room.
func (r *SPSC[T]) Put(v T) bool {
	p := &r.producer
	t := p.ticket.Load()
	if t-p.other > r.mask {
		p.other = r.consumer.ticket.Load()
		if t-p.other > r.mask {
			return false
		}
	}
	r.slots[t&r.mask] = v
	p.ticket.Store(t + 1)
	return true
}

// PutBatch appends the first items of vs, as many as there is room for, and
// returns their number. They appear to the consumer at once.
func (r *SPSC[T]) PutBatch(vs []T) int {
	p := &r.producer
	t := p.ticket.Load()
	n := uint64(len(vs))
	room := r.mask + 1 - (t - p.other)
	if room < n {
		p.other = r.consumer.ticket.Load()
		room = r.mask + 1 - (t - p.other)
		n = min(n, room)
	}
	if n == 0 {
		return 0
	}
	k := copy(r.slots[t&r.mask:], vs[:n])
	copy(r.slots, vs[k:n])
	p.ticket.Store(t + n)
	return int(n)
}

// Get removes and returns the oldest item; the answer is false when there is none.
func (r *SPSC[T]) Get() (v T, ok bool) {
	c := &r.consumer
	h := c.ticket.Load()
	if h == c.other {
		c.other = r.producer.ticket.Load()
		if h == c.other {
			return v, false
		}
	}
	s := &r.slots[h&r.mask]
	v = *s
	if r.pointers {
		var zero T
		*s = zero
	}
	c.ticket.Store(h + 1)
	return v, true
}

// GetBatch removes the oldest items, as many as there are and as dst has room
// for, into dst, and returns their number.
func (r *SPSC[T]) GetBatch(dst []T) int {
	c := &r.consumer
	h := c.ticket.Load()
	n := uint64(len(dst))
	if c.other-h < n {
		c.other = r.producer.ticket.Load()
		n = min(n, c.other-h)
	}
	if n == 0 {
		return 0
	}
	first := r.slots[h&r.mask:]
	if uint64(len(first)) > n {
		first = first[:n]
	}
	k := copy(dst, first)
	rest := r.slots[:n-uint64(k)]
	copy(dst[k:], rest)
	if r.pointers {
		clear(first)
		clear(rest)
	}
	c.ticket.Store(h + n)
	return int(n)
}

// Len returns how many items the ring held at about the time of the call:
// exactly, for the only goroutine that is using the ring.
func (r *SPSC[T]) Len() int {
	h := r.consumer.ticket.Load()
	return int(min(r.producer.ticket.Load()-h, r.mask+1))
}

// Cap returns how many items the ring can hold.
func (r *SPSC[T]) Cap() int { return len(r.slots) }
