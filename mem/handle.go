package mem

import (
	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/internal/word"
)

// Handle is a Slot of a pool that is known otherwise, as a number: the index in the low half, the
// generation in the high half. Arrays of handles hold no pointers, so the garbage collector does
// not look at them, and they go to and from a pool in batches. A handle is as good as its Slot: a
// second release is refused.
type Handle uint64

// maxBatch is the number of slots that GetBatch takes with one change of the shared list.
const maxBatch = 64

func (h Handle) index() uint32 { return uint32(h) }

// Handle is the slot as a number.
func (s Slot) Handle() Handle { return Handle(s.gen)<<32 | Handle(s.index) }

// Slot is the slot of p that h stands for.
func (p *Pool) Slot(h Handle) Slot { return Slot{p, h.index(), uint32(h >> 32)} }

// Offset is where the slot of h begins in the pool's region, in bytes. h must be of this pool.
func (p *Pool) Offset(h Handle) uint64 { return p.base + uint64(h.index())*p.stride }

// GetBatch takes up to len(dst) slots from the shared list into dst and returns how many there
// were. Fewer than asked for is counted as one exhaustion. Any goroutine may call it; it does not
// allocate.
func (p *Pool) GetBatch(dst []Handle) int {
	got := 0
	for got < len(dst) {
		n := p.popAll(dst[got:min(got+maxBatch, len(dst))])
		if n == 0 {
			break
		}
		got += n
	}
	if got > 0 {
		p.gets.Add(uint64(got))
	}
	if got < len(dst) {
		p.empty()
	}
	return got
}

// popAll is pop and take for many slots. A compare-and-swap for each slot would be most of the
// cost, so it writes their words without; Close waits until no goroutine does that.
func (p *Pool) popAll(dst []Handle) (n int) {
	p.takers.Add(1)
	defer p.takers.Add(-1)
	if p.shut.Load() {
		return 0
	}
	meta := p.meta
	for tries := uint64(1); ; tries++ {
		head := p.head.Load()
		at := head & indexMask
		for n = 0; n < len(dst) && at != 0; n++ { // see pop
			w := meta[at-1].word.Load()
			dst[n] = Handle(w>>32+1)<<32 | Handle(at-1)
			at = w & (1<<32 - 1)
		}
		if n == 0 || p.head.CompareAndSwap(head, (head&^indexMask+1<<indexBits)|at) {
			p.counted(tries)
			break
		}
	}
	p.takeAll(dst[:n])
	return n
}

// takeAll marks slots as out under these handles. The caller is among the takers, and has got the
// slots off the list or out of its cache.
//
// The plain stores are right (see package word): the slots are free and the caller's alone, so it
// has synchronized with the last writer of each word by way of head, or is that goroutine, and
// Close waits for the takers. Others that look at these words meanwhile are walks of the list that
// began before the slots left it, in whatever order they see these stores and the change of head:
// their own compare-and-swap of head fails, because it expects a value that an earlier one has
// replaced; releases of older handles, whose compare-and-swap expects a generation that is past;
// and counts of what is in use.
func (p *Pool) takeAll(hs []Handle) {
	meta := p.meta
	for _, h := range hs {
		word.Store(&meta[h.index()].word, uint64(h)>>32<<32)
		if invariants.Enabled {
			p.debug.taken(p.Slot(h))
		}
	}
}

// PutBatch gives slots back to the shared list and returns how many were refused, because they were
// released before: those change nothing, and err says what is wrong with the first: it wraps
// ErrForeign or ErrReleased. Any goroutine may call it; without a refusal it does not allocate.
func (p *Pool) PutBatch(src []Handle) (refused int, err error) {
	put := 0
	first, last := uint32(0), uint32(0) // of the slots that go to the list, linked as they come: index+1
	meta := p.meta
	for _, h := range src {
		if i := h.index(); int(i) < len(meta) {
			if !invariants.Enabled && meta[i].free(h, first) { // nearly always
				put++
				if first = i + 1; last == 0 {
					last = first
				}
				continue
			}
			if free, closed := p.release(p.Slot(h), first); free && !closed { // nearly always
				put++
				if first = h.index() + 1; last == 0 {
					last = first
				}
				continue
			} else if free {
				put++
				p.mu.Lock()
				p.returned()
				p.mu.Unlock()
				continue
			}
		}
		refused++
		if e := p.refusal(h); err == nil {
			err = e
		}
	}
	if first > 0 {
		p.pushChain(first-1, last-1)
	}
	if put > 0 {
		p.puts.Add(uint64(put))
	}
	return refused, err
}

// GetBatch is Pool.GetBatch through the cache, for its one goroutine: it takes what the cache
// keeps, and the rest from the shared list.
func (c *Cache) GetBatch(dst []Handle) int {
	if invariants.Enabled {
		c.enter()
		defer c.leave()
	}
	got := 0
	if len(c.free) > 0 {
		c.p.takers.Add(1)
		for !c.p.shut.Load() && got < len(dst) && len(c.free) > 0 {
			last := len(c.free) - 1
			i := c.free[last]
			dst[got] = Handle(c.p.meta[i].gen()+1)<<32 | Handle(i)
			c.free = c.free[:last]
			got++
		}
		c.p.takeAll(dst[:got])
		c.p.takers.Add(-1)
		c.gets.Add(uint64(got))
	}
	if got < len(dst) && !c.closed {
		got += c.p.GetBatch(dst[got:])
	}
	return got
}
