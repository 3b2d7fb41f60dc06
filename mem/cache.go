package mem

import (
	"sync/atomic"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/metrics"
)

// Cache is one goroutine's own handle on a Pool: it keeps some free slots at hand, so that Get and
// Put touch nothing that other goroutines write. Make one for each poller with Pool.Cache and Close
// it when the poller ends. Its methods, except Stats, must not run at the same time; -tags
// invariants checks that and panics.
type Cache struct {
	p    *Pool
	free []uint32 // a stack: the slot used last is the one most likely in the processor's cache

	gets, puts, refills, spills metrics.Counter
	busy                        atomic.Bool
	closed                      bool
}

// cacheStats are counters since the cache was made.
type cacheStats struct {
	Gets, Puts      uint64
	Refills, Spills uint64 // exchanges with the shared list, of many slots each
}

func (s *cacheStats) add(o cacheStats) {
	s.Gets += o.Gets
	s.Puts += o.Puts
	s.Refills += o.Refills
	s.Spills += o.Spills
}

// Cache makes a handle for one goroutine. It starts without slots.
func (p *Pool) Cache() *Cache {
	c := &Cache{p: p, free: make([]uint32, 0, p.cacheCap+1)}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.caches[c] = struct{}{}
	return c
}

func (c *Cache) enter() {
	if !c.busy.CompareAndSwap(false, true) {
		panic("mem: Cache of pool " + c.p.name + " used by two goroutines at once")
	}
}

func (c *Cache) leave() { c.busy.Store(false) }

// Get takes a slot. The error is the bare ErrExhausted or ErrPoolClosed. The content of a slot is
// whatever its last user left.
func (c *Cache) Get() (Slot, error) {
	if invariants.Enabled {
		c.enter()
		defer c.leave()
	}
	if len(c.free) == 0 {
		if err := c.refill(); err != nil {
			return Slot{}, err
		}
	}
	last := len(c.free) - 1
	s, ok := c.p.take(c.free[last])
	if !ok {
		return Slot{}, ErrPoolClosed
	}
	c.free = c.free[:last]
	c.gets.Inc()
	return s, nil
}

// Put gives a slot of the pool back, whichever Cache it came from. Errors are those of Pool.Put.
func (c *Cache) Put(s Slot) error {
	if invariants.Enabled {
		c.enter()
		defer c.leave()
	}
	free, err := c.p.give(s)
	if err != nil {
		return err
	}
	c.puts.Inc()
	if free {
		c.free = append(c.free, s.index) // never grows: there is room for one more, see keep
		c.keep()
	}
	return nil
}

// refill takes half of what the cache can hold, so that the next Put finds room.
func (c *Cache) refill() error {
	if c.closed {
		return ErrPoolClosed
	}
	n := c.p.pop(c.free[:(cap(c.free)+1)/2])
	if n == 0 {
		return c.p.empty()
	}
	c.free = c.free[:n]
	c.refills.Inc()
	return nil
}

// keep makes room for the next Put.
func (c *Cache) keep() {
	if c.closed || len(c.free) == cap(c.free) {
		c.spill()
	}
}

// spill returns the half that was used longest ago, so that the next Get finds something.
func (c *Cache) spill() {
	n := (len(c.free) + 1) / 2
	c.p.push(c.free[:n])
	c.free = c.free[:copy(c.free, c.free[n:])]
	c.spills.Inc()
}

// Flush returns all free slots that the cache keeps to the pool, so that others can have them.
func (c *Cache) Flush() {
	if invariants.Enabled {
		c.enter()
		defer c.leave()
	}
	if len(c.free) > 0 {
		c.p.push(c.free)
		c.free = c.free[:0]
		c.spills.Inc()
	}
}

// Close flushes the cache and removes it from the pool's list. A closed cache has no slots to give,
// but takes them.
func (c *Cache) Close() {
	if c.closed {
		return
	}
	c.closed = true
	c.Flush()
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	c.p.old.add(c.counts())
	delete(c.p.caches, c)
}

// counts may be called from any goroutine.
func (c *Cache) counts() cacheStats {
	return cacheStats{c.gets.Load(), c.puts.Load(), c.refills.Load(), c.spills.Load()}
}
