package xsk

import (
	"fmt"
	"math/bits"
	"sync/atomic"

	"github.com/penstock-io/penstock/internal/sys"
)

// Desc is an entry of a receive or transmit ring: Addr says where the data lies in the umem (see
// Umem.Offset), Len how many bytes it has, and Options whether the packet goes on in the next entry
// ([More]).
type Desc = sys.XDPDesc

// More is the bit of Desc.Options that says that the packet goes on in the next entry
// (XDP_PKT_CONTD), in rings of queues with MultiBuffer.
const More = sys.XDPPacketContd

// MaxChain is the number of chunks that a packet to send may have in copy mode (MAX_SKB_FRAGS and
// one, as Linux is built by default); in zero-copy mode it is the driver's. Longer ones count as
// invalid, chunk by chunk, and are not sent.
const MaxChain = 18

// Entry is what a ring holds: addresses of chunks (fill, completion), or descriptors (receive,
// transmit).
type Entry interface{ uint64 | Desc }

// words are the shared words of a ring.
type words struct {
	producer, consumer, flags *atomic.Uint32
}

// Producer is the end of a ring at which this process puts entries in for the kernel: the fill ring
// of a queue, the transmit ring of a socket. One goroutine at a time uses it. Nothing allocates.
//
// The kernel's index is believed only as far as it can be true: when it says more entries are taken
// than were put in, the ring counts a fault and has no room. Whatever the kernel writes, this end
// touches only the ring's own memory.
type Producer[T Entry] struct {
	_      [64]byte
	words  words
	desc   []T // the ring, as many as its size
	mask   uint32
	next   uint32 // the next entry to write; those before it are published
	seen   uint32 // the kernel's index when it was last looked at
	faults uint64
	_      [64]byte
}

// Consumer is the end of a ring at which this process takes entries from the kernel: the completion
// ring of a queue, the receive ring of a socket. One goroutine at a time uses it. Nothing
// allocates.
//
// The kernel's index is believed only as far as it can be true: when it says that there are more
// entries than the ring has, the ring counts a fault and gives none. Whatever the kernel writes,
// this end touches only the ring's own memory. What the entries say is not checked here: see
// Umem.Data.
//
// What it costs: some 25 ns for a batch through both ends, and 1 ns or less for each entry
// (BenchmarkRing, BenchmarkDrain).
type Consumer[T Entry] struct {
	_      [64]byte
	words  words
	desc   []T
	mask   uint32
	next   uint32 // the next entry to read
	seen   uint32 // the kernel's index when it was last looked at
	faults uint64
	_      [64]byte
}

// The rings of queues and sockets.
type (
	FillRing       = Producer[uint64] // chunks that the kernel may receive into
	CompletionRing = Consumer[uint64] // chunks that were sent
	RxRing         = Consumer[Desc]   // packets that came
	TxRing         = Producer[Desc]   // packets to be sent
)

// room is the number of free entries. It asks the kernel only when fewer than want are known to be
// free: its index lies in a cache line that the kernel writes.
func (p *Producer[T]) room(want uint32) uint32 {
	size := uint32(len(p.desc))
	free := size - (p.next - p.seen)
	if free >= want {
		return free
	}
	seen := p.words.consumer.Load()
	if p.next-seen > size {
		p.faults++
		return 0
	}
	p.seen = seen
	return size - (p.next - seen)
}

// Room is the number of entries that can be put in. It asks the kernel.
func (p *Producer[T]) Room() int { return int(p.room(uint32(len(p.desc)) + 1)) }

// Pending is the number of entries that the kernel has not taken yet. It asks the kernel.
func (p *Producer[T]) Pending() int { return len(p.desc) - p.Room() }

// Put copies as many entries of batch as there is room for into the ring and publishes them. It
// returns how many.
func (p *Producer[T]) Put(batch []T) int {
	free := p.room(uint32(len(batch)))
	n := uint32(min(len(batch), int(free)))
	if n == 0 {
		return 0
	}
	at := p.next & p.mask
	k := copy(p.desc[at:], batch[:n]) // two moves at most: the ring is contiguous but for its end
	copy(p.desc, batch[k:n])
	p.next += n
	p.words.producer.Store(p.next)
	return int(n)
}

// Reserve gives the free entries that lie together, at most max of them: the caller writes them
// from the first on and publishes them with Submit. Fewer than max may come although there is room:
// the ring's end lies between; then ask again after Submit.
func (p *Producer[T]) Reserve(max int) []T {
	if max <= 0 {
		return nil
	}
	free := p.room(uint32(max))
	at := p.next & p.mask
	n := min(uint32(max), free, uint32(len(p.desc))-at)
	return p.desc[at : at+n : at+n]
}

// Submit publishes the first n entries of what Reserve gave. More than that, or a negative n, is a
// mistake of the caller's that is cut to what there is room for.
func (p *Producer[T]) Submit(n int) {
	if n <= 0 {
		return
	}
	free := uint32(len(p.desc)) - (p.next - p.seen)
	p.next += uint32(min(n, int(free)))
	// Go's stores are sequentially consistent: an exchange on amd64 (some 8 ns, once for a batch:
	// BenchmarkRing), a store-release on arm64. The release is needed: the kernel must not see the
	// index before the entries. The rest is not wasted: it keeps the store before the look at the
	// flags in NeedWakeup, else both sides could wait for each other.
	p.words.producer.Store(p.next)
}

// Recent is the entry that was put in as the last but i: 0 is the last one. Those that are Pending
// are as they were put in; others, and more than there ever were, may be anything.
func (p *Producer[T]) Recent(i int) T { return p.desc[(p.next-1-uint32(i))&p.mask] }

// NeedWakeup reports whether the kernel asks to be woken for this ring (XDP_USE_NEED_WAKEUP).
func (p *Producer[T]) NeedWakeup() bool { return p.words.flags.Load()&sys.XDPRingNeedWakeup != 0 }

// available is the number of entries to read. It asks the kernel only when it knows of fewer than
// want.
func (c *Consumer[T]) available(want uint32) uint32 {
	n := c.seen - c.next
	if n >= want {
		return n
	}
	seen := c.words.producer.Load()
	if seen-c.next > uint32(len(c.desc)) {
		c.faults++
		return n
	}
	c.seen = seen
	return seen - c.next
}

// Ready is the number of entries that can be taken. It asks the kernel.
func (c *Consumer[T]) Ready() int { return int(c.available(uint32(len(c.desc)) + 1)) }

// Get copies entries into out, takes them out of the ring and returns how many.
func (c *Consumer[T]) Get(out []T) int {
	n := min(uint32(len(out)), c.available(uint32(min(len(out), len(c.desc)))))
	if n == 0 {
		return 0
	}
	at := c.next & c.mask
	k := copy(out[:n], c.desc[at:])
	copy(out[k:n], c.desc)
	c.next += n
	c.words.consumer.Store(c.next)
	return int(n)
}

// layout checks that a ring of n entries of size bytes fits into its mapping.
func layout(mapped, n, size int, o sys.XDPRingOffset) error {
	if n <= 0 || n&(n-1) != 0 {
		return fmt.Errorf("xsk: a ring of %d entries: expected a power of two", n)
	}
	end, carry := bits.Add64(o.Desc, uint64(n)*uint64(size), 0)
	if carry != 0 || end > uint64(mapped) || o.Desc%8 != 0 {
		return fmt.Errorf("xsk: a ring of %d entries of %d bytes at offset %d does not fit into the %d bytes that "+
			"are mapped", n, size, o.Desc, mapped)
	}
	for _, w := range []uint64{o.Producer, o.Consumer, o.Flags} {
		if w%4 != 0 || w+4 > uint64(mapped) || w+4 < w {
			return fmt.Errorf("xsk: a word of a ring at offset %d of %d bytes that are mapped", w, mapped)
		}
	}
	return nil
}
