package rdmadev

import (
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/ibvmem"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// postAtOnce is the number of receives that a device is given in one call, and whose slots are
// taken from a pool at a time.
const postAtOnce = 64

// Pool is a pool that a device receives into, and its registration there.
type Pool struct {
	Slots *mem.Pool
	Reg   *ibvmem.Registration
}

// Place is one piece of every receive: Size bytes, Skip bytes behind the beginning of a slot of the
// pool with that index.
type Place struct {
	Pool int
	Skip uint32
	Size uint32
	Role burst.Role
}

// Receives are the receives that a queue pair or a shared receive queue has posted, or could post:
// each is a slot for every place. A receive is known by its number, which is the id of the request.
// One goroutine at a time uses them.
type Receives struct {
	pools  []poolState
	places []Place
	chain  *ibv.RecvChain
	held   []mem.Handle // for each receive one for every place
	idle   []uint32     // numbers that are not posted
	order  []uint32     // those of the chain
	sges   []ibv.SGE
	posted int
	short  bool
}

type poolState struct {
	Pool
	src   *burst.Source
	bytes []byte // of the region, nil where the CPU does not reach it
	cache *mem.Cache
	each  int          // places in it
	got   []mem.Handle // slots for the receives that are posted next
}

// NewReceives makes n receives, none of which is posted. Close gives them up.
func NewReceives(n int, pools []Pool, places []Place) (*Receives, error) {
	r := &Receives{places: places, pools: make([]poolState, len(pools)), held: make([]mem.Handle, n*len(places)),
		idle: make([]uint32, n), order: make([]uint32, postAtOnce),
		sges: make([]ibv.SGE, len(places))}
	for i := range r.idle {
		r.idle[i] = uint32(n - 1 - i)
	}
	at := min(n, postAtOnce)
	var err error
	if r.chain, err = ibv.NewRecvChain(at, at*len(places)); err != nil {
		return nil, err
	}
	for i, p := range pools {
		r.pools[i] = poolState{Pool: p, src: burst.PoolSource(p.Slots), bytes: p.Slots.Region().All().Bytes(),
			cache: p.Slots.Cache()}
	}
	for _, x := range places {
		r.pools[x.Pool].each++
	}
	for i := range r.pools {
		p := &r.pools[i]
		p.got = make([]mem.Handle, 0, at*p.each)
	}
	return r, nil
}

// Places are the places of every receive.
func (r *Receives) Places() []Place { return r.places }

// Flusher is what shows the place's memory to its accelerator, nil where that needs nothing.
func (r *Receives) Flusher(place int) mem.Flusher { return r.pools[r.places[place].Pool].Reg.Flusher() }

// Size is the number of bytes that a receive holds.
func (r *Receives) Size() (n uint64) {
	for i := range r.places {
		n += uint64(r.places[i].Size)
	}
	return n
}

// Posted is the number of receives that the device has.
func (r *Receives) Posted() int { return r.posted }

// Short reports whether the pools had too few slots at the last Post.
func (r *Receives) Short() bool { return r.short }

// Post gives the device as many receives as there are slots for, in as few calls as there can be.
// to is a queue pair or a shared receive queue.
func (r *Receives) Post(to interface {
	PostRecv(c *ibv.RecvChain) (int, error)
}) error {
	r.short = false
	for len(r.idle) > 0 && !r.short {
		n := r.fill(min(len(r.idle), r.chain.Cap()))
		if n == 0 {
			return nil
		}
		done, err := to.PostRecv(r.chain)
		r.posted += done
		for i := n - 1; i >= done; i-- { // the device did not take the last ones
			r.Free(r.order[i])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fill makes a chain of n receives, or of as many as there are slots for.
func (r *Receives) fill(n int) int {
	have := n
	for i := range r.pools {
		p := &r.pools[i]
		p.got = p.got[:p.cache.GetBatch(p.got[:n*p.each])]
		have = min(have, len(p.got)/p.each)
	}
	r.short = have < n
	r.chain.Reset()
	for k := range have {
		id := r.idle[len(r.idle)-1-k]
		held := r.slots(id)
		for i := range r.places {
			x := &r.places[i]
			p := &r.pools[x.Pool]
			h := p.got[len(p.got)-1]
			p.got = p.got[:len(p.got)-1]
			held[i], r.sges[i] = h, p.Reg.SGE(p.Slots.Offset(h)+uint64(x.Skip), x.Size)
		}
		r.order[k] = id
		r.chain.Recv(uint64(id), r.sges...)
	}
	r.idle = r.idle[:len(r.idle)-have]
	for i := range r.pools {
		p := &r.pools[i]
		for _, h := range p.got {
			p.put(h)
		}
	}
	return have
}

func (p *poolState) put(h mem.Handle) { _ = p.cache.Put(p.Slots.Slot(h)) }

func (r *Receives) slots(id uint32) []mem.Handle {
	n := len(r.places)
	return r.held[int(id)*n:][:n]
}

// put gives the slots of a receive back, from that place on.
func (r *Receives) put(held []mem.Handle, from int) {
	for i := from; i < len(held); i++ {
		r.pools[r.places[i].Pool].put(held[i])
	}
}

// Came notes that the device has filled a receive, or given it up. Free or Deliver follows.
func (r *Receives) Came() { r.posted-- }

// Free takes back a receive that brought nothing for the application.
func (r *Receives) Free(id uint32) {
	r.put(r.slots(id), 0)
	r.idle = append(r.idle, id)
}

// Bytes are bytes of a receive's slot at a place, counted from the beginning of the slot; nil where
// the CPU does not reach them.
func (r *Receives) Bytes(id uint32, place int, from, to uint32) []byte {
	p := &r.pools[r.places[place].Pool]
	if p.bytes == nil {
		return nil
	}
	off := p.Slots.Offset(r.slots(id)[place])
	return p.bytes[off+uint64(from) : off+uint64(to)]
}

// Layout says where a packet lies in its receive: Len[i] bytes, Off[i] bytes behind the beginning
// of the slot at place i, for the first N places.
type Layout struct {
	N        int
	Len, Off [burst.MaxSegments]uint32
	// Header is the number of bytes at the beginning of the first slot that become a segment of
	// their own, in front of the others: their memory goes back with that of the next segment. 0
	// for none.
	Header uint32
}

// Lay fills in where n bytes lie that the device has written into the places one after the other.
func (r *Receives) Lay(l *Layout, n uint32) {
	l.N, l.Header = 0, 0
	for l.N < len(r.places) && (n > 0 || l.N == 0) {
		x := &r.places[l.N]
		l.Len[l.N], l.Off[l.N] = min(n, x.Size), x.Skip
		n -= l.Len[l.N]
		l.N++
	}
}

// What Deliver answers in place of a packet's index.
const (
	NoRoom  = -1 // nothing has happened
	Dropped = -2 // not even an empty burst holds the packet: its memory is back
)

// Deliver adds the packet of a receive to b and returns its index there, NoRoom or Dropped.
func (r *Receives) Deliver(b *burst.Burst, id uint32, l *Layout) int {
	held := r.slots(id)
	at := r.add(b, held, l)
	switch {
	case at >= 0:
		r.put(held, l.N)
		r.idle = append(r.idle, id)
	case b.Len() == 0:
		r.Free(id)
		return Dropped
	}
	return at
}

func (r *Receives) add(b *burst.Burst, held []mem.Handle, l *Layout) int {
	if need := l.N + int(min(l.Header, 1)); b.Room() < 1 || b.SegmentRoom() < need {
		return NoRoom
	}
	at := -1
	for i := range l.N {
		x := &r.places[i]
		p, off := &r.pools[x.Pool], l.Off[i]
		g := burst.Segment{Handle: held[i], Off: p.Slots.Offset(held[i]) + uint64(off), Len: l.Len[i],
			Cap: x.Skip + x.Size - off, Headroom: uint16(off), Role: x.Role}
		if i == 0 && l.Header > 0 {
			at = b.Builder().Add(p.src, burst.Segment{Handle: burst.NoHandle, Off: g.Off - uint64(off), Len: l.Header,
				Cap: l.Header, Role: burst.Header})
			g.Role, g.Headroom = burst.Payload, 0
		} else if i == 0 {
			if at = b.Builder().Add(p.src, g); at >= 0 {
				continue
			}
		}
		if at < 0 {
			return NoRoom
		}
		if !b.Builder().AddSegment(p.src, g) { // the packets of b lie in too many memories
			b.Builder().ForgetPart(at, at+1)
			b.Truncate(at)
			return NoRoom
		}
	}
	return at
}

// Close gives all slots back. The device has no receive any more.
func (r *Receives) Close() {
	idle := make([]bool, len(r.held)/len(r.places))
	for _, id := range r.idle {
		idle[id] = true
	}
	for id := range idle {
		if !idle[id] {
			r.Free(uint32(id))
		}
	}
	for i := range r.pools {
		r.pools[i].cache.Close()
	}
	r.chain.Close()
}
