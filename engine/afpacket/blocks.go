package afpacket

import (
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// blockTime is how long the kernel keeps a block that is not full (Options.Blocks): packets come up
// to twice that time later.
const blockTime = 20 * time.Millisecond

// blocks are a ring of blocks. A block goes back to the kernel when it is read, and all of its
// packets that were lent are released.
type blocks struct {
	ring *sys.PacketBlocks
	cur  uint32 // the block that is read
	left uint32 // of its packets; 0: it is not open
	// By block: 2 for each of its packets that is lent, 2 while it is read, and 1 from then until
	// the kernel has it back. A block at 0 is the kernel's, or to be read: it becomes 0 behind its
	// return, so that none is read twice.
	out []atomic.Int32
}

func newBlocks(ring *sys.PacketBlocks) *blocks {
	return &blocks{ring: ring, out: make([]atomic.Int32, ring.Blocks())}
}

// ready reports whether there is a packet.
func (r *blocks) ready() bool { return r.left > 0 || r.out[r.cur].Load() == 0 && r.ring.Ready(r.cur) }

// next looks at the next packet, if there is one.
func (r *blocks) next(f *sys.PacketFrame) bool {
	for r.left == 0 {
		if !r.ready() {
			return false
		}
		r.out[r.cur].Store(3)
		if r.left = r.ring.Open(r.cur); r.left == 0 {
			r.end()
		}
	}
	r.ring.Frame(f)
	return true
}

// pass goes on behind the packet of next, which is lent or not.
func (r *blocks) pass(lend bool) {
	if lend {
		r.out[r.cur].Add(2)
	}
	if r.left--; r.left == 0 {
		r.end()
	} else {
		r.ring.Advance()
	}
}

// end goes on behind the block that was read.
func (r *blocks) end() {
	r.release(r.cur)
	r.cur = (r.cur + 1) % r.ring.Blocks()
}

// release ends what holds a block: a packet that is lent, or reading it. It reports false for a
// block that nothing holds.
func (r *blocks) release(i uint32) bool {
	n := r.out[i].Add(-2)
	if n == 1 {
		r.ring.Return(i)
		r.out[i].Store(0)
	}
	return n > 0
}

// blocked reports whether the block before the next one is out.
func (r *blocks) blocked() bool {
	n := r.ring.Blocks()
	return r.out[(r.cur+n-1)%n].Load() != 0
}
