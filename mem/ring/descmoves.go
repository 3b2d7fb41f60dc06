package ring

import "fmt"

// claimRun takes a run of up to want tickets from next, whose slots have the sequence ticket+ready
// (0 for producers, 1 for consumers), with one compare-and-swap. n is 0 where the first slot is not
// ready.
func (r *Descriptors) claimRun(producer bool, want uint64) (t, n uint64, err error) {
	next, retries, ready := &r.h.head, &r.h.getRetries, uint64(1)
	if producer {
		next, retries, ready = &r.h.tail, &r.h.putRetries, 0
	}
	for {
		t = next.Load()
		for n = 0; n < want && r.slots[(t+n)&r.mask].seq.Load() == t+n+ready; {
			n++
		}
		if n == 0 {
			switch ahead := int64(r.slots[t&r.mask].seq.Load() - (t + ready)); {
			case ahead < 0: // full, or empty: no goroutine can have taken t meanwhile
				return t, 0, nil
			case ahead > 0 && next.Load() == t: // no ticket of this slot leads there
				r.corrupt.Store(true)
				return t, 0, ErrCorrupt
			}
			continue
		}
		if next.CompareAndSwap(t, t+n) {
			return t, n, nil
		}
		retries.Add(1)
	}
}

// Publish puts the first of ds, as many as there is room for, next to each other, and returns their
// number. Their bytes are the consumers' until they are released. The error is ErrClosed,
// ErrCorrupt, or wraps ErrPayload: then nothing was published.
func (r *Descriptors) Publish(ds []Desc) (int, error) {
	if len(ds) == 0 {
		return 0, nil
	}
	for i := range ds {
		if ds[i].Off > r.payload || ds[i].Len > r.payload-ds[i].Off {
			return 0, r.outside(&ds[i])
		}
	}
	t, n, err := r.Reserve(len(ds))
	for i := n - 1; i >= 0; i-- {
		// the first comes last: a consumer that looks at it meanwhile finds the whole run behind it
		r.Put(t+uint64(i), ds[i])
	}
	return n, err
}

// Reserve takes up to want free slots next to each other, for who must know the ticket before the
// descriptor, and returns the first ticket and their number. Each is Put once; nothing behind it is
// seen before.
func (r *Descriptors) Reserve(want int) (ticket uint64, n int, err error) {
	if r.h.left.Load()|r.h.closed.Load() != 0 {
		return 0, 0, ErrClosed
	}
	if r.corrupt.Load() {
		return 0, 0, ErrCorrupt
	}
	ticket, k, err := r.claimRun(true, uint64(want))
	return ticket, int(k), err
}

// Put publishes a descriptor with a ticket of Reserve. It names bytes of the payload memory.
func (r *Descriptors) Put(ticket uint64, d Desc) {
	s := &r.slots[ticket&r.mask]
	s.d = d
	s.seq.Store(ticket + 1) // the release: it comes last
}

// Refuse counts n descriptors that found no room and that the producer gives up (drop-new).
func (r *Descriptors) Refuse(n int) { r.h.refused.Add(uint64(n)) }

// Claim takes the oldest descriptors that no consumer has claimed, as many as there are and as dst
// has room for, copies them to dst, and returns the first's ticket and their number. The others
// follow it. The caller releases each ticket once, in any order.
//
// The error is ErrClosed when producers have closed and nothing is left, or consumers have;
// ErrCorrupt; or wraps ErrPayload, and then n is how many were claimed: those whose Len is 0 and
// which have DescVoid named bytes outside the payload memory.
func (r *Descriptors) Claim(dst []Desc) (ticket uint64, n int, err error) {
	if len(dst) == 0 {
		return 0, 0, nil
	}
	switch {
	case r.corrupt.Load():
		return 0, 0, ErrCorrupt
	case r.h.left.Load() != 0:
		return 0, 0, ErrClosed
	}
	closed := r.h.closed.Load() != 0 // before the look: what was published before the closing is seen
	t, k, err := r.claimRun(false, uint64(len(dst)))
	if k == 0 {
		if err == nil {
			r.h.empty.Add(1)
			if closed {
				err = ErrClosed
			}
		}
		return 0, 0, err
	}
	return t, int(k), r.read(dst[:k], t)
}

// Read copies the descriptors of tickets from ticket on again, which the caller has claimed and not
// released. The error is that of Claim.
func (r *Descriptors) Read(dst []Desc, ticket uint64) error { return r.read(dst, ticket) }

// read copies the descriptors of tickets from t on, and voids those that name no payload.
func (r *Descriptors) read(dst []Desc, t uint64) (err error) {
	for i := range dst {
		d := &dst[i]
		*d = r.slots[(t+uint64(i))&r.mask].d
		if d.Off > r.payload || d.Len > r.payload-d.Off {
			err = r.outside(d)
			*d = Desc{Tag: d.Tag, Flags: DescVoid}
		}
	}
	return err
}

// Release gives n tickets from ticket on, which the caller has claimed, back to producers.
func (r *Descriptors) Release(ticket uint64, n int) {
	r.free(ticket, n)
	r.h.released.Add(uint64(n))
}

func (r *Descriptors) free(ticket uint64, n int) {
	for end := ticket + uint64(n); end != ticket; end-- {
		r.slots[(end-1)&r.mask].seq.Store(end + r.mask)
	}
}

// DropOldest takes up to len(dst) of the oldest descriptors that no consumer has claimed, to make
// room (drop-old), and returns how many. Their bytes are the caller's. It claims as a consumer
// does, so head is changed by both sides: consumers must be on this processor, or on a device whose
// read-modify-writes of this memory are atomic to the CPU.
func (r *Descriptors) DropOldest(dst []Desc) (n int, err error) {
	if len(dst) == 0 {
		return 0, nil
	}
	if r.corrupt.Load() {
		return 0, ErrCorrupt
	}
	t, k, err := r.claimRun(false, uint64(len(dst)))
	if err != nil || k == 0 {
		return 0, err
	}
	err = r.read(dst[:k], t)
	r.free(t, int(k))
	r.h.dropped.Add(k)
	return int(k), err
}

// Recover says what a dead side has left behind, and makes the ring whole again. The caller knows
// that no producer and no consumer is alive, in any process or kernel.
//
// Tickets that a producer had claimed and not published are published as void (DescVoid), so that
// consumers get past them. Descriptors that a consumer had claimed and not released are returned,
// oldest first, as many as dst has room for, and released: publish them again, and nothing is lost;
// the consumer may have begun with them. Call it again until it returns 0. A ring that was closed
// is open afterwards.
//
// A side that dies in Release or DropOldest has freed slots and not counted them. Recover counts
// again what is in the ring, and sets the count of released descriptors to the rest: what a
// DropOldest freed and did not count is among them.
func (r *Descriptors) Recover(dst []Desc) (n int) {
	head, tail := r.h.head.Load(), r.h.tail.Load()
	for t := head; t != tail; t++ {
		if s := &r.slots[t&r.mask]; s.seq.Load() == t {
			s.d = Desc{Flags: DescVoid}
			s.seq.Store(t + 1)
		}
	}
	for t := tail - uint64(len(r.slots)); int64(t-head) < 0 && n < len(dst); t++ {
		if r.slots[t&r.mask].seq.Load() == t+1 {
			_ = r.read(dst[n:n+1], t)
			r.free(t, 1)
			n++
		}
	}
	s := r.Stats()
	r.h.released.Store(s.Published - s.Dropped - s.InRing)
	r.h.closed.Store(0)
	r.h.left.Store(0)
	return n
}

// outside is the error of a descriptor that names no payload.
func (r *Descriptors) outside(d *Desc) error {
	return fmt.Errorf("%w: offset %d + %d bytes of %d", ErrPayload, d.Off, d.Len, r.payload)
}
