package ibverbs

import (
	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/internal/ibvmem"
	"github.com/penstock-io/penstock/mem"
)

const (
	// splitAt is where the card cuts frames whose headers are to end where they end: behind Ethernet, IPv4 and UDP. Others are mended.
	splitAt = 42
	// splitRoom is what stays free in front of a payload then, for bytes that were cut off with the header.
	splitRoom = 32
	// minCut is the shortest header of a frame that is split so.
	minCut = splitAt - splitRoom
	// slotsAtHand is the number of free slots that a queue takes from a pool at a time.
	slotsAtHand = 64
)

// What deliver answers in place of a packet's number.
const (
	noRoom = -1 // nothing has happened
	lost   = -2 // the burst could not hold it, and its memory is back
)

// place is one piece of each receive: size bytes, skip bytes behind the beginning of a slot of the pool.
type place struct {
	pool  *mem.Pool
	src   *burst.Source
	reg   *ibvmem.Registration
	bytes []byte // of the region, nil where the CPU does not reach it
	skip  uint32
	size  uint32
	role  burst.Role
	hand  *[]mem.Handle // free slots; places of one pool share them
}

// get takes a slot. The pool is asked for as many as are needed now, and no more: others may use it, who would find it empty while slots lie here.
func (p *place) get(needed int) (h mem.Handle, ok bool) {
	hand := *p.hand
	if len(hand) == 0 {
		hand = hand[:p.pool.GetBatch(hand[:min(cap(hand), slotsAtHand, needed)])]
	}
	if n := len(hand) - 1; n >= 0 {
		h, ok, hand = hand[n], true, hand[:n]
	}
	*p.hand = hand
	return h, ok
}

func (p *place) put(h mem.Handle) {
	if hand := *p.hand; len(hand) < cap(hand) {
		*p.hand = append(hand, h)
		return
	}
	one := [1]mem.Handle{h}
	p.pool.PutBatch(one[:])
}

// at are bytes of the place's piece in a slot.
func (p *place) at(h mem.Handle, from, to uint32) []byte {
	off := p.pool.Offset(h) + uint64(p.skip)
	return p.bytes[off+uint64(from) : off+uint64(to)]
}

// held are the slots of a receive.
func (q *rxQueue) held(id uint32) []mem.Handle {
	n := len(q.places)
	return q.slots[int(id)*n:][:n]
}

// refill posts receives, as many as there are slots and room for. The lane's lock is held.
func (q *rxQueue) refill() {
	if q.broken {
		if q.posted > 0 || q.closed {
			return // what it had is still being flushed
		}
		if err := q.port.ready(q.qp); err != nil {
			q.port.fail(err)
			return
		}
		q.broken = false
	}
	q.short = false
	for len(q.idle) > 0 && !q.closed {
		q.chain.Reset()
		for len(q.idle) > 0 && q.chain.Len() < q.chain.Cap() && q.fill() {
		}
		n := q.chain.Len()
		if n == 0 {
			return
		}
		done, err := q.qp.PostRecv(q.chain)
		q.posted += done
		for i := n; i > done; i-- { // the last ones were not taken
			id := q.order[i-1]
			q.free(id)
		}
		if err != nil || n < q.chain.Cap() {
			return // a queue pair that has failed says so by what it flushes
		}
	}
}

// fill adds one receive to the chain, and reports whether there were slots.
func (q *rxQueue) fill() bool {
	id := q.idle[len(q.idle)-1]
	held := q.held(id)
	for i := range q.places {
		p := &q.places[i]
		needed := len(q.idle)
		if len(q.spec.Pools) == 1 { // all places are of it
			needed = needed*len(q.places) - i
		}
		h, ok := p.get(needed)
		if !ok {
			for k := range i {
				q.places[k].put(held[k])
			}
			q.short, q.starved = true, true
			return false
		}
		held[i] = h
		q.sges[i] = p.reg.SGE(p.pool.Offset(h)+uint64(p.skip), p.size)
	}
	q.order[q.chain.Len()] = id
	q.chain.Recv(uint64(id), q.sges...)
	q.idle = q.idle[:len(q.idle)-1]
	return true
}

// free takes back a receive that brought nothing for the application.
func (q *rxQueue) free(id uint32) {
	for i, h := range q.held(id) {
		q.places[i].put(h)
	}
	q.idle = append(q.idle, id)
}

// look is a frame for those who classify it: as it lies if it is in one piece, otherwise its front in scratch.
func (q *rxQueue) look(id uint32, length int, scratch []byte) []byte {
	held := q.held(id)
	if n := uint32(length); n <= q.places[0].size {
		return q.places[0].at(held[0], 0, n)
	}
	scratch = scratch[:min(length, len(scratch))]
	to := scratch[:min(len(scratch), lookAt)]
	for i := range q.places {
		p := &q.places[i]
		if len(to) == 0 {
			break
		}
		n := min(len(to), int(p.size))
		if p.bytes == nil {
			clear(to[:n]) // not there for the CPU
		} else {
			copy(to, p.at(held[i], 0, uint32(n)))
		}
		to = to[n:]
	}
	return scratch
}

// deliver adds a frame to a burst and returns its number there, noRoom or lost. With a cut from 0 on the header ends there.
func (q *rxQueue) deliver(b *burst.Burst, id uint32, length, cut int) int {
	var lens, offs [burst.MaxSegments]uint32
	left, k := uint32(length), 0
	for k < len(q.places) && (left > 0 || k == 0) {
		lens[k], offs[k] = min(left, q.places[k].size), q.places[k].skip
		left -= lens[k]
		k++
	}
	if b.Room() < 1 || b.SegmentRoom() < k {
		return noRoom
	}
	held := q.held(id)
	moved := 0
	if cut >= 0 {
		k, moved = q.mend(held, &lens, &offs, cut)
	}
	at := -1
	for i := range q.places {
		p, h := &q.places[i], held[i]
		if i >= k {
			p.put(h)
			continue
		}
		g := burst.Segment{Handle: h, Off: p.pool.Offset(h) + uint64(offs[i]), Len: lens[i], Cap: p.skip + p.size - offs[i], Headroom: uint16(offs[i]), Role: p.role}
		switch {
		case i == 0:
			if at = b.Add(p.src, g); at < 0 {
				return noRoom
			}
		case !b.AddSegment(p.src, g):
			if at > 0 { // an empty burst has room for its memories
				b.ForgetPart(at, at+1)
				b.Truncate(at)
				return noRoom
			}
			b.Truncate(at) // it lies in too many memories; what it took goes with it
			for r := i; r < len(q.places); r++ {
				q.places[r].put(held[r])
			}
			q.idle = append(q.idle, id)
			return lost
		}
	}
	if moved > 0 {
		q.copied.Add(uint64(moved))
	}
	q.idle = append(q.idle, id)
	return at
}

// mend moves the bytes between a header and its payload that the card has cut at the wrong place, and returns the number of segments, and how many
// bytes it moved. A frame that finds no room may be mended again.
func (q *rxQueue) mend(held []mem.Handle, lens, offs *[burst.MaxSegments]uint32, cut int) (segments, moved int) {
	total := lens[0] + lens[1]
	head, body := &q.places[0], &q.places[1]
	want := min(uint32(max(cut, minCut)), total, uint32(head.pool.SlotSize()))
	switch have := lens[0]; {
	case want > have: // a longer header: its end lies in front of the payload
		head := head.at(held[0], 0, want)
		moved = copy(head[have:], body.at(held[1], 0, want-have))
		offs[1] += want - have
	case want < have:
		n := have - want
		off := body.pool.Offset(held[1]) + uint64(body.skip) - uint64(n)
		moved = copy(body.bytes[off:off+uint64(n)], head.at(held[0], want, have))
		offs[1] = body.skip - n
	}
	lens[0], lens[1] = want, total-want
	if lens[1] == 0 {
		return 1, moved
	}
	return 2, moved
}
