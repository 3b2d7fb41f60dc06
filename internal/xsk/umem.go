package xsk

import (
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/internal/sys"
)

// UmemConfig describes the memory of sockets.
type UmemConfig struct {
	// Memory is mapped for reading and writing, begins at a page and is not in Go's heap. It stays
	// mapped until every queue of the umem is closed and, in zero-copy mode, released
	// (Queue.Released).
	Memory []byte
	// PageSize is the size in bytes of Memory's pages: 0 for base pages, or 2 MiB, or 1 GiB. Huge
	// pages are what lets a chunk of an unaligned umem lie across two base pages in zero-copy mode.
	PageSize int
	// ChunkSize is the number of bytes of a chunk: 2048 to the base page size, a power of two
	// unless Unaligned. 0: a base page.
	ChunkSize int
	// Unaligned lets chunks begin anywhere; otherwise they begin at multiples of ChunkSize.
	Unaligned bool
	// Headroom is the number of bytes kept free in front of a received packet, behind the 256 that
	// the kernel keeps for XDP programs.
	Headroom int
}

// Umem is memory that queues exchange packets through. Its methods may be called from any
// goroutine. It holds nothing of the kernel's as long as no queue is open, so there is nothing to
// close.
type Umem struct {
	// Data needs these for every packet: they are in one cache line, and there is no branch on what
	// kind of umem it is. low is the part of an address that says where the chunk or the packet is,
	// high that of its upper 16 bits that is to be added.
	mem       []byte
	low, high uint64

	cfg        UmemConfig
	mask       uint64       // of an address: the part that names the chunk
	registered atomic.Int64 // registrations of the memory that are open

	mu     sync.Mutex
	queues []*Queue // that are open
}

// minChunk is the least size of a chunk (XDP_UMEM_MIN_CHUNK_SIZE).
const minChunk = 2048

// NewUmem checks the memory. It is given to the kernel with the first queue.
func NewUmem(c UmemConfig) (*Umem, error) {
	base := sys.PageSize
	if c.PageSize == 0 {
		c.PageSize = base
	}
	if c.ChunkSize == 0 {
		c.ChunkSize = base
	}
	size := len(c.Memory)
	switch {
	case c.PageSize < base || c.PageSize&(c.PageSize-1) != 0:
		return nil, fmt.Errorf("xsk: pages of %d bytes: expected %d, or the size of a huge page: %w", c.PageSize, base,
			ErrPageSize)
	case c.ChunkSize < minChunk || c.ChunkSize > base:
		return nil, fmt.Errorf("xsk: chunks of %d bytes: expected %d to %d, the base page size, on huge pages too; "+
			"longer packets take several chunks (MultiBuffer): %w",
			c.ChunkSize, minChunk, base, ErrChunk)
	case !c.Unaligned && c.ChunkSize&(c.ChunkSize-1) != 0:
		return nil, fmt.Errorf("xsk: chunks of %d bytes: expected a power of two, such as %d, or Unaligned: %w",
			c.ChunkSize, 1<<bits.Len(uint(c.ChunkSize-1)), ErrChunk)
	case size < c.ChunkSize:
		return nil, fmt.Errorf("xsk: %d bytes of memory: expected at least one chunk of %d: %w", size, c.ChunkSize,
			ErrAlignment)
	case start(c.Memory)%uintptr(c.PageSize) != 0:
		return nil, fmt.Errorf("xsk: memory at %#x does not begin at a page of %d bytes: use mapped memory, such as "+
			"a region's: %w", start(c.Memory), c.PageSize, ErrAlignment)
	case size%c.PageSize != 0 && c.PageSize > base:
		return nil, fmt.Errorf("xsk: %d bytes of memory are not whole pages of %d bytes: %w", size, c.PageSize,
			ErrPageSize)
	case !c.Unaligned && size%c.ChunkSize != 0:
		return nil, fmt.Errorf("xsk: %d bytes of memory are not whole chunks of %d: use %d: %w", size, c.ChunkSize,
			size-size%c.ChunkSize, ErrAlignment)
	case uint64(size) > 1<<48:
		return nil, fmt.Errorf("xsk: %d bytes of memory: expected at most 2^48: %w", size, ErrAlignment)
	case c.Headroom < 0 || c.Headroom >= c.ChunkSize-sys.XDPHeadroom:
		return nil, fmt.Errorf("xsk: headroom of %d bytes: expected 0 to %d in chunks of %d, of which the kernel "+
			"keeps %d: %w",
			c.Headroom, c.ChunkSize-sys.XDPHeadroom-1, c.ChunkSize, sys.XDPHeadroom, ErrChunk)
	}
	if c.PageSize > base {
		if real, err := sys.MappedPageSize(c.Memory); err == nil && real < c.PageSize {
			return nil, fmt.Errorf("xsk: the memory has pages of %d bytes, not of %d: map it with huge pages, or set "+
				"PageSize to %d: %w", real, c.PageSize, real, ErrPageSize)
		}
	}
	u := &Umem{cfg: c, mask: 1<<48 - 1, low: 1<<48 - 1, high: 1<<16 - 1, mem: c.Memory}
	if !c.Unaligned {
		u.mask, u.low, u.high = ^uint64(c.ChunkSize-1), ^uint64(0), 0
	}
	return u, nil
}

// Chunk is the address of the chunk that an address from a ring lies in: what the fill ring takes.
// Of an unaligned umem it is what was given to the fill or transmit ring as the beginning of the
// chunk. The fill ring also takes addresses as they come from the receive and completion rings: the
// kernel does the same.
func (u *Umem) Chunk(addr uint64) uint64 { return addr & u.mask }

// Offset is where in the memory an address from a ring points to. An unaligned umem's addresses
// have the distance from the beginning of the chunk in their upper 16 bits
// (XSK_UNALIGNED_BUF_OFFSET_SHIFT).
func (u *Umem) Offset(addr uint64) uint64 { return addr&u.low + addr>>48&u.high }

// Data is the memory that a descriptor names, nil if that is not in the umem. Its length and
// capacity are d.Len.
func (u *Umem) Data(d Desc) []byte {
	from := u.Offset(d.Addr)
	if size := uint64(len(u.mem)); from > size || uint64(d.Len) > size-from {
		return nil
	}
	to := from + uint64(d.Len)
	return u.mem[from:to:to]
}

// register gives the memory to the kernel with a socket.
func (u *Umem) register(fd int) error {
	flags := 0
	if u.cfg.Unaligned {
		flags |= sys.XDPUmemUnaligned
	}
	if err := sys.XDPUmem(fd, u.cfg.Memory, u.cfg.ChunkSize, u.cfg.Headroom, flags); err != nil {
		return u.registerError(err)
	}
	u.registered.Add(1)
	return nil
}

// donor is an open queue whose registration of the memory a new one can share: the kernel gives the
// new one the donor's mode.
func (u *Umem) donor(c *QueueConfig) *Queue {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, q := range u.queues {
		d := &q.cfg
		if q.refs == 0 || d.NeedWakeup != c.NeedWakeup || d.MultiBuffer != c.MultiBuffer {
			continue
		}
		if d.Interface == c.Interface && d.Mode == c.Mode || c.Mode == Copy && !q.zeroCopy {
			q.refs++
			return q
		}
	}
	return nil
}

// enter adds a queue that is open.
func (u *Umem) enter(q *Queue) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.queues = append(u.queues, q)
}

// release gives up one reference to a queue, and frees it after the last.
func (u *Umem) release(q *Queue) error {
	u.mu.Lock()
	q.refs--
	last := q.refs == 0
	u.mu.Unlock()
	if !last {
		return nil
	}
	err := q.free()
	u.mu.Lock()
	u.queues = slices.DeleteFunc(u.queues, func(o *Queue) bool { return o == q })
	u.mu.Unlock()
	return err
}
