package xsk

import "github.com/penstock-io/penstock/internal/sys"

// What tests look at.

// Config is what the umem was made from, with defaults filled in.
func (u *Umem) Config() UmemConfig { return u.cfg }

// Chunks is the number of chunks; of an unaligned umem, that would fit.
func (u *Umem) Chunks() int { return len(u.cfg.Memory) / u.cfg.ChunkSize }

// MaxFrame is the number of bytes of a received packet that fit into one chunk.
func (u *Umem) MaxFrame() int { return u.cfg.ChunkSize - sys.XDPHeadroom - u.cfg.Headroom }

// Queues is the number of queues that are open, counting those that are closed but have sockets.
// The memory must stay mapped while there are any.
func (u *Umem) Queues() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.queues)
}

// Size is the number of entries.
func (p *Producer[T]) Size() int { return len(p.desc) }

// Faults counts how often the kernel's index could not be true.
func (p *Producer[T]) Faults() uint64 { return p.faults }

// Faults counts how often the kernel's index could not be true.
func (c *Consumer[T]) Faults() uint64 { return c.faults }
