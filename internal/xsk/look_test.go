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

// Size is the number of entries.
func (c *Consumer[T]) Size() int { return len(c.desc) }

// Peek gives the entries that lie together, at most max of them, where they are. The caller reads
// them and gives them back with Release. Fewer than max may come although there are more: the
// ring's end lies between; then ask again after Release.
func (c *Consumer[T]) Peek(max int) []T {
	if max <= 0 {
		return nil
	}
	n := c.available(uint32(max))
	at := c.next & c.mask
	n = min(n, uint32(max), uint32(len(c.desc))-at)
	return c.desc[at : at+n : at+n]
}

// Release takes the first n entries out of the ring: the kernel may write there again. More than
// there are is cut to those.
func (c *Consumer[T]) Release(n int) {
	if n <= 0 {
		return
	}
	c.next += uint32(min(n, int(c.seen-c.next)))
	c.words.consumer.Store(c.next)
}

// Front is the n bytes in front of a received packet, in the same chunk: where an XDP program
// leaves what it knows of the packet (bpf_xdp_adjust_meta; up to 255 bytes, the last of them next
// to the packet). They are whatever was there before if the program left nothing. nil if the chunk
// does not have so many there, or is not in the umem.
func (u *Umem) Front(d Desc, n int) []byte {
	at := u.Offset(d.Addr)
	room := at & uint64(u.cfg.ChunkSize-1)
	if u.cfg.Unaligned {
		room = d.Addr >> 48
	}
	if n < 0 || uint64(n) > room || at > uint64(len(u.mem)) {
		return nil
	}
	return u.mem[at-uint64(n) : at : at]
}

// Crosses reports whether a chunk at this offset lies across two pages of PageSize, which zero-copy
// mode takes only where the device's addresses of both are neighbours.
func (u *Umem) Crosses(offset uint64) bool {
	page := uint64(u.cfg.PageSize)
	return offset/page != (offset+uint64(u.cfg.ChunkSize)-1)/page
}
