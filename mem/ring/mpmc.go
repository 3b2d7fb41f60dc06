package ring

import (
	"reflect"
	"sync/atomic"
)

// MPMC is a bounded ring for any number of producer and consumer goroutines; all
// calls may be made by all at once.
//
// The items of one producer are got in the order in which it put them, those of
// one PutBatch lie next to each other, and so do those of one GetBatch. See the
// package documentation for what false means while another call is in progress.
//
// Slot sequence words follow D. Vyukov's bounded MPMC queue: seq == t means free
// for ticket t, t+1 filled by it, t+capacity released. A batch claims a run of
// slots with one compare-and-swap: it may look at the run first, because a slot
// that is ready for a ticket stays so until the owner of that ticket acts.
type MPMC[T any] struct {
	slots    []slot[T]
	mask     uint64
	pointers bool

	_    [lineSize]byte
	tail cursor // producers
	_    [lineSize]byte
	head cursor // consumers
	_    [lineSize]byte
}

// cursor is the claim point of one side.
type cursor struct {
	ticket  atomic.Uint64 // next ticket to claim
	retries atomic.Uint64 // claims lost to another goroutine; the line is ours anyway
}

// NewMPMC returns a ring for capacity items, rounded up to the next power of two
// (at least 2); Cap tells the result. The error says which capacity or size was
// out of range.
func NewMPMC[T any](capacity int) (*MPMC[T], error) {
	return newMPMC[T](capacity, 0)
}

// newMPMC starts the tickets at start, so that tests reach the wrap of 2^64.
func newMPMC[T any](capacity int, start uint64) (*MPMC[T], error) {
	n, err := roundCapacity("MPMC", capacity, reflect.TypeFor[slot[T]]().Size())
	if err != nil {
		return nil, err
	}
	r := &MPMC[T]{slots: newSlots[T](n, start), mask: n - 1, pointers: holdsPointers(reflect.TypeFor[T]())}
	r.tail.ticket.Store(start)
	r.head.ticket.Store(start)
	return r, nil
}

// claim takes a run of up to want tickets whose slots are ready, which is when
// their sequence word equals ticket+ready (0 for producers, 1 for consumers). It
// returns the first ticket and the number: 0 when the first slot is not ready. A
// run ends at the capacity by itself, where it comes back to its own first slot.
func (r *MPMC[T]) claim(c *cursor, want, ready uint64) (t, n uint64) {
	for {
		t = c.ticket.Load()
		n = 0
		for n < want && r.slots[(t+n)&r.mask].seq.Load() == t+n+ready {
			n++
		}
		if n == 0 {
			// A sequence beyond ours: another goroutine took t after we read it.
			// Behind ours: full (or empty), and as no goroutine can have taken t
			// then, t was still the next ticket when we looked.
			if int64(r.slots[t&r.mask].seq.Load()-(t+ready)) < 0 {
				return t, 0
			}
			continue
		}
		if c.ticket.CompareAndSwap(t, t+n) {
			return t, n
		}
		c.retries.Add(1)
	}
}

// Put appends v and reports whether there was room.
func (r *MPMC[T]) Put(v T) bool {
	t, n := r.claim(&r.tail, 1, 0)
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
// appear to consumers one after the other.
func (r *MPMC[T]) PutBatch(vs []T) int {
	if len(vs) == 0 {
		return 0
	}
	t, n := r.claim(&r.tail, uint64(len(vs)), 0)
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
func (r *MPMC[T]) Get() (v T, ok bool) {
	h, n := r.claim(&r.head, 1, 1)
	if n == 0 {
		return v, false
	}
	s := &r.slots[h&r.mask]
	v = s.v
	if r.pointers {
		var zero T
		s.v = zero
	}
	s.seq.Store(h + r.mask + 1)
	return v, true
}

// GetBatch removes the oldest items, as many as there are and as dst has room
// for, into dst, and returns their number. It stops at an item still being put.
func (r *MPMC[T]) GetBatch(dst []T) int {
	if len(dst) == 0 {
		return 0
	}
	h, n := r.claim(&r.head, uint64(len(dst)), 1)
	for i := range dst[:n] {
		s := &r.slots[h&r.mask]
		dst[i] = s.v
		if r.pointers {
			var zero T
			s.v = zero
		}
		s.seq.Store(h + r.mask + 1)
		h++
	}
	return int(n)
}

// Len returns how many tickets were claimed by Put and not yet by Get at about
// the time of the call: the number of items, when no call is in progress.
func (r *MPMC[T]) Len() int {
	h := r.head.ticket.Load()
	return int(min(r.tail.ticket.Load()-h, r.mask+1))
}

// Cap returns how many items the ring can hold.
func (r *MPMC[T]) Cap() int { return len(r.slots) }

// Retries returns how many claims by producers and by consumers were lost to
// another goroutine and tried again. Attempts are the calls that moved something,
// plus these.
func (r *MPMC[T]) Retries() (put, get uint64) {
	return r.tail.retries.Load(), r.head.retries.Load()
}
