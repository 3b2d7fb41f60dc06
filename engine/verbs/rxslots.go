package verbs

import (
	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/ibvmem"
	"github.com/penstock-io/penstock/mem"
)

// bank is a pool that messages are received into, with slots at hand.
type bank struct {
	pool *mem.Pool
	src  *burst.Source
	reg  *ibvmem.Registration
	free []mem.Handle // not posted
}

// take is a slot, or false if there is none.
func (k *bank) take() (mem.Handle, bool) {
	if len(k.free) == 0 {
		n := k.pool.GetBatch(k.free[:min(cap(k.free), refill)])
		if k.free = k.free[:n]; n == 0 {
			return 0, false
		}
	}
	n := len(k.free) - 1
	h := k.free[n]
	k.free = k.free[:n]
	return h, true
}

// put keeps a slot that was not used, or gives it back to the pool.
func (k *bank) put(h mem.Handle) {
	if len(k.free) < cap(k.free) {
		k.free = append(k.free, h)
		return
	}
	one := [1]mem.Handle{h}
	k.pool.PutBatch(one[:])
}

// drain gives all that is at hand back.
func (k *bank) drain() {
	k.pool.PutBatch(k.free)
	k.free = k.free[:0]
}

// refill is the number of slots that are taken from a pool at a time, and of receives that are posted in one call.
const refill = 64

// place is one piece of a receive: up to size bytes in a slot of a bank.
type place struct {
	bank *bank
	size uint32
	role burst.Role
}

// receives are the buffers of a receive queue that the device may fill: each is one place of every kind. Those that are posted are known by
// their number, which is the request's id.
type receives struct {
	banks  []*bank
	places []place
	skip   uint32 // bytes in front of a message that are not the sender's: the routing header of a datagram
	grh    bool   // which is delivered, too
	held   []mem.Handle
	idle   []uint32 // numbers that are not posted
	sges   []ibv.SGE
	posted int
}

// newReceives makes room for n receives. With several pools the first one's slots hold the first bytes of each message.
func newReceives(n int, places []place, banks []*bank, skip uint32, grh bool) *receives {
	r := &receives{banks: banks, places: places, skip: skip, grh: grh, held: make([]mem.Handle, n*len(places)), idle: make([]uint32, n), sges: make([]ibv.SGE, len(places))}
	for i := range r.idle {
		r.idle[i] = uint32(n - 1 - i)
	}
	for _, k := range banks {
		k.free = make([]mem.Handle, 0, refill+len(places))
	}
	return r
}

// longest is the longest message that a receive holds, in bytes.
func (r *receives) longest() uint64 {
	var n uint64
	for _, p := range r.places {
		n += uint64(p.size)
	}
	return n - uint64(r.skip)
}

// fill adds one receive to the chain, and reports whether there was a buffer and room.
func (r *receives) fill(c *ibv.RecvChain) bool {
	if len(r.idle) == 0 {
		return false
	}
	id := r.idle[len(r.idle)-1]
	held := r.held[int(id)*len(r.places):][:len(r.places)]
	for i, p := range r.places {
		h, ok := p.bank.take()
		if !ok {
			r.back(held[:i])
			return false
		}
		held[i] = h
		r.sges[i] = p.bank.reg.SGE(p.bank.pool.Offset(h), p.size)
	}
	if _, ok := c.Recv(uint64(id), r.sges...); !ok {
		r.back(held)
		return false
	}
	r.idle = r.idle[:len(r.idle)-1]
	r.posted++
	return true
}

// back gives the slots of the first places back.
func (r *receives) back(held []mem.Handle) {
	for i, h := range held {
		r.places[i].bank.put(h)
	}
}

// came notes that the device has filled a receive, or given it up.
func (r *receives) came() { r.posted-- }

// free takes back a receive that came and brought nothing for the application.
func (r *receives) free(id uint32) {
	r.back(r.held[int(id)*len(r.places):][:len(r.places)])
	r.idle = append(r.idle, id)
}

// pieces is the number of segments that a message of n bytes, with what is in front of it, is received as.
func (r *receives) pieces(n uint32) int {
	k := 0
	for k < len(r.places) && (n > 0 || k == 0) {
		n -= min(n, r.places[k].size)
		k++
	}
	if r.grh {
		k++
	}
	return k
}

// deliver adds the message of n bytes, with what is in front of it, that a receive holds to b as a packet, and returns its place. There is
// room for it, or the answer is -1.
func (r *receives) deliver(b *burst.Burst, id, n uint32) int {
	held := r.held[int(id)*len(r.places):][:len(r.places)]
	if b.SegmentRoom() < r.pieces(n) {
		return -1
	}
	at, skip := -1, r.skip
	for i, p := range r.places {
		k := min(n, p.size)
		if i > 0 && k == 0 {
			p.bank.put(held[i])
			continue
		}
		off := p.bank.pool.Offset(held[i])
		g := burst.Segment{Handle: held[i], Off: off + uint64(skip), Len: k - min(k, skip), Cap: p.size - skip, Headroom: uint16(skip), Role: p.role}
		switch {
		case at < 0 && r.grh:
			if at = b.Add(p.bank.src, burst.Segment{Handle: burst.NoHandle, Off: off, Len: skip, Cap: skip, Role: burst.Header}); at >= 0 {
				g.Role, g.Headroom = burst.Payload, 0
				b.AddSegment(p.bank.src, g)
			}
		case at < 0:
			at = b.Add(p.bank.src, g)
		default:
			if !b.AddSegment(p.bank.src, g) {
				b.Truncate(at) // too many memories in this burst: what it took goes with it
				for _, h := range held[i:] {
					r.places[i].bank.put(h)
					i++
				}
				r.idle = append(r.idle, id)
				return lostInBurst
			}
		}
		if at < 0 {
			return -1
		}
		n, skip = n-k, 0
	}
	r.idle = append(r.idle, id)
	return at
}

// lostInBurst is the answer of deliver when the message had to be given up.
const lostInBurst = -2

// close gives all slots back. The device has no receive any more.
func (r *receives) close() {
	idle := make([]bool, len(r.held)/len(r.places))
	for _, id := range r.idle {
		idle[id] = true
	}
	for id := range idle {
		if !idle[id] {
			r.free(uint32(id))
		}
	}
	for _, k := range r.banks {
		k.drain()
	}
}
