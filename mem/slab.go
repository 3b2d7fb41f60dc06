package mem

import (
	"fmt"
	"slices"
	"time"
)

// grow makes room in class c, or waits for a goroutine that does. It returns a new slab with a
// block for the caller, nil when the caller should look again, or the error that nothing can be
// had. It holds a.mu, except while mapping and unmapping.
func (a *Allocator) grow(c int, size uint64) (*slab, error) {
	cl := &a.classes[c]
	block := cl.size
	if block == 0 {
		block = roundUp(size, a.page)
	}
	least := roundUp(block, a.page) // the smallest slab that helps
	exact := roundUp(size, a.page)  // what a region of its own takes
	if least > a.budget {
		if exact < least {
			return a.grow(len(a.classes)-1, size)
		}
		return nil, a.overBudget(size, least)
	}
	left := a.budget - a.reserved
	if left < least {
		// Another goroutine is about to add blocks of this class, or to give memory back.
		if cl.size != 0 && cl.growing > 0 {
			a.changed.Wait()
			return nil, nil
		}
		if victims := a.victims(least - left); victims != nil {
			a.mu.Unlock()
			for _, s := range victims {
				a.unmap(s) // an error of munmap changes nothing for the caller
			}
			a.mu.Lock()
			return nil, nil
		}
		if a.stats.draining > 0 {
			a.changed.Wait()
			return nil, nil
		}
		if exact < least { // rather a region of its own than a block that does not fit
			return a.grow(len(a.classes)-1, size)
		}
		// Rather a block that is too large than none.
		for i := a.classOf(size) + 1; i < len(a.classes); i++ {
			if s := a.find(i, size); s != nil {
				return s, nil
			}
		}
		return nil, a.overBudget(size, least)
	}
	bytes := least
	if cl.size != 0 && !a.opts.Dedicated && block < slabTarget {
		bytes = min(roundUp(max(slabTarget, a.page), a.page), left/a.page*a.page)
	}
	a.reserved += bytes
	a.stats.ReservedHighWater = max(a.stats.ReservedHighWater, a.reserved)
	cl.growing++
	a.stats.Grows++
	a.mu.Unlock()

	o := a.opts.Memory
	o.Name, o.Size = a.name, int(bytes)
	r, err := Alloc(o)

	a.mu.Lock()
	cl.growing--
	a.changed.Broadcast()
	if err != nil {
		a.reserved -= bytes
		return nil, fmt.Errorf("mem: allocator %q: %w", a.name, err)
	}
	if r.Note() != "" {
		a.note = r.Note()
	}
	n := min(r.Len(), bytes) / block
	s := &slab{owner: a, class: c, region: r, bytes: bytes, block: block, free: make([]uint32, n), uses: make([]use, n)}
	if n > 1 {
		r.divided.Add(1)
	}
	r.gone = func() { a.unmapped(bytes) }
	for i := range s.free {
		s.free[i] = uint32(n) - 1 - uint32(i)
	}
	cl.slabs = append(cl.slabs, s)
	a.stats.Populate += r.PopulateTime()
	if a.closed {
		a.detach(s)
		a.mu.Unlock()
		a.unmap(s)
		a.mu.Lock()
		return nil, ErrAllocatorClosed
	}
	if n > 1 {
		cl.open = append(cl.open, s)
		s.opened = true
	}
	return s, nil
}

// victims removes slabs without blocks in use from the lists, until their size reaches need; nil
// when there are not enough. The largest go first, so that few are lost. Holds a.mu.
func (a *Allocator) victims(need uint64) []*slab {
	var idle []*slab
	var sum uint64
	for i := range a.classes {
		for _, s := range a.classes[i].slabs {
			if s.idle() {
				idle = append(idle, s)
				sum += s.bytes
			}
		}
	}
	if sum < need {
		return nil
	}
	slices.SortFunc(idle, func(x, y *slab) int { return int(int64(y.bytes - x.bytes)) })
	sum = 0
	for i, s := range idle {
		a.detach(s)
		a.stats.Reclaimed++
		if sum += s.bytes; sum >= need {
			return idle[:i+1]
		}
	}
	return idle
}

// detach removes a slab from the lists; its bytes stay reserved until it is unmapped. Holds a.mu.
func (a *Allocator) detach(s *slab) {
	c := &a.classes[s.class]
	gone := func(o *slab) bool { return o == s }
	c.slabs = slices.DeleteFunc(c.slabs, gone)
	if s.opened {
		c.open = slices.DeleteFunc(c.open, gone)
		s.opened = false
	}
	a.stats.draining++
}

// unmap closes the region of a detached slab, which stays mapped while another lease on it is left.
// Without a.mu.
func (a *Allocator) unmap(s *slab) error {
	err := s.region.Close()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stats.draining--
	a.changed.Broadcast()
	if a.closed && a.stats.Allocs == a.stats.Frees {
		live.drop(a)
	}
	return err
}

// unmapped is called when a region is gone.
func (a *Allocator) unmapped(bytes uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reserved -= bytes
	a.changed.Broadcast()
}

func (a *Allocator) overBudget(size, need uint64) error {
	return fmt.Errorf("mem: allocator %q: %d bytes need a region of %d, but %d of the budget of %d are taken (%d in "+
		"use): %w",
		a.name, size, need, a.reserved, a.budget, a.stats.InUse, ErrBudget)
}

// AllocatorStats are counters since the start, and the state now. Sizes are in bytes.
type AllocatorStats struct {
	Budget            uint64
	Reserved          uint64 // mapped
	ReservedHighWater uint64 // the most that was ever mapped
	InUse             uint64 // in blocks that are out, by the size of the blocks
	Requested         uint64 // of which asked for
	HighWater         uint64 // the most that was ever in use
	Free              uint64 // Budget - InUse
	// Unusable is the part of Free that could not serve blocks of the largest class if only such
	// were asked for now: blocks free in slabs that have others in use, tails of slabs, and what is
	// left of the budget when it is divided.
	Unusable uint64

	Allocs, Frees uint64
	Hits          uint64        // Allocs served from memory that was there
	Grows         uint64        // regions mapped, or tried
	Failed        uint64        // Allocs refused
	Rejected      uint64        // Frees of blocks that were not allocated
	Reclaimed     uint64        // idle regions unmapped to serve another class
	Populate      time.Duration // spent on making pages present; part of the Allocs that were not hits
	Note          string        // what differs from what was asked for, such as a fallback from huge pages

	draining int // slabs detached and not yet closed
}

// Stats may be called from any goroutine. It looks at every slab.
func (a *Allocator) Stats() AllocatorStats {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.stats
	s.draining = 0
	s.Budget, s.Reserved, s.Free, s.Note = a.budget, a.reserved, a.budget-a.stats.InUse, a.note
	// What is not pinned by a block in use can be unmapped and mapped again as anything.
	loose := a.budget - a.reserved
	var usable uint64
	largest := a.page
	if n := len(a.opts.Classes); n > 0 {
		largest = a.opts.Classes[n-1]
	}
	for i := range a.classes {
		c := &a.classes[i]
		for _, sl := range c.slabs {
			switch {
			case sl.idle():
				loose += sl.bytes
			case sl.block == largest && !sl.retired:
				usable += uint64(len(sl.free)) * sl.block
			}
		}
	}
	usable += loose / roundUp(largest, a.page) * largest
	s.Unusable = s.Free - min(usable, s.Free)
	return s
}
