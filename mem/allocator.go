package mem

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/internal/sys"
)

// defaultClasses are the block sizes in bytes of an Allocator unless its options say otherwise.
var defaultClasses = []uint64{64 << 10, 1 << 20, 16 << 20, 256 << 20}

// slabTarget is how many bytes a slab of small blocks has: enough to make growing rare, little
// enough to populate in a few milliseconds (at about 2 GB/s).
const slabTarget = 16 << 20

// AllocatorOptions describe an Allocator.
type AllocatorOptions struct {
	Name string
	// Budget is the number of bytes that may be mapped at once, in use or not; required. It is
	// checked against the memory of the machine at start.
	Budget uint64
	// Classes are the block sizes in bytes, ascending, multiples of the page size; nil means 64
	// KiB, 1, 16 and 256 MiB. A request is served from the smallest class that fits, so coarse
	// classes waste memory (see AllocatorStats.Internal): between two of the default classes, up to
	// 15/16 of a block.
	Classes []uint64
	// Dedicated gives each block a region, and so a memfd, of its own. An export over shared memory
	// hands over a whole memfd; only a dedicated block can therefore be exported alone. A region
	// costs a descriptor.
	Dedicated bool
	// Memory says what regions to allocate: Kind, PageSize, AllowFallback, Lazy, NUMANode,
	// SealWrites, Provider.
	Memory Options
}

// Allocator hands out blocks of memory in size classes under one budget.
//
// It begins with nothing and grows on demand in slabs, regions that are divided into blocks of one
// class; requests above the largest class get a region of their own, and so do requests whose block
// would exceed the budget. Freed blocks are kept for reuse; memory that lies idle in one class is
// unmapped when another class needs the budget. The sum of everything mapped never exceeds the
// budget.
//
// Alloc from memory that is there already takes a short lock and does not allocate Go memory.
// Growing maps and populates pages, about 0.5 ms per MiB, and holds no lock meanwhile. Blocks are
// not cleared when they are reused.
//
// Its methods may be called from any goroutine.
type Allocator struct {
	name   string
	budget uint64
	opts   AllocatorOptions
	page   uint64

	mu       sync.Mutex // guards what follows; never held while mapping or unmapping
	changed  sync.Cond  // a slab came or went
	closed   bool
	classes  []class // one per size; the last is for requests above the largest
	reserved uint64  // mapped, or about to be mapped or unmapped
	stats    AllocatorStats
	note     string
}

type class struct {
	size    uint64 // of a block; 0 in the last class, where each slab has its own
	slabs   []*slab
	open    []*slab // those with free blocks that may be handed out
	growing int     // slabs that are being mapped for this class
}

// slab is a region that is divided into blocks.
type slab struct {
	owner   *Allocator
	class   int
	region  *Region
	bytes   uint64   // of the budget
	block   uint64   // bytes of a block
	free    []uint32 // blocks that are free, as a stack
	uses    []use    // one per block
	retired bool     // to be unmapped as soon as all blocks are free
	opened  bool     // listed in class.open
}

// use is the state of a block. gen is odd while it is allocated.
type use struct {
	gen       uint32
	requested uint64
	stack     []uintptr // with -tags invariants
}

func (s *slab) idle() bool { return len(s.free) == len(s.uses) }

// Block is memory from an Allocator, until Free or Retire. Copies of the value share the one Free.
type Block struct {
	slab  *slab
	index uint32
	gen   uint32
	size  uint64 // requested
}

// Span names the bytes that were asked for.
func (b Block) Span() Span {
	s := b.Whole()
	s.Len = min(b.size, s.Len)
	return s
}

// Whole names all bytes of the block, at least as many as were asked for. From a Dedicated
// allocator that is the whole region.
func (b Block) Whole() Span {
	if b.slab == nil {
		return Span{}
	}
	return Span{Region: b.slab.region, Off: uint64(b.index) * b.slab.block, Len: b.slab.block}
}

// Bytes are the bytes that were asked for, valid until Free; nil for memory that the CPU cannot
// reach.
func (b Block) Bytes() []byte {
	if b.slab == nil {
		return nil
	}
	return b.Span().Bytes()
}

// NewAllocator checks the options and the budget. It maps nothing yet.
func NewAllocator(o AllocatorOptions) (*Allocator, error) {
	if o.Name == "" {
		o.Name = "allocator"
	}
	fail := func(format string, args ...any) (*Allocator, error) {
		return nil, fmt.Errorf("mem: allocator %q: "+format, append([]any{o.Name}, args...)...)
	}
	page := uint64(sys.PageSize)
	if o.Memory.Kind == Huge {
		if o.Memory.PageSize == 0 {
			o.Memory.PageSize = 2 << 20
		}
		page = uint64(o.Memory.PageSize)
	}
	if g, ok := o.Memory.Provider.(granular); ok {
		page = max(page, uint64(g.Granularity(o.Memory.Kind)))
	}
	if o.Classes == nil {
		o.Classes = defaultClasses
		if o.Dedicated && page > o.Classes[0] { // a region cannot be smaller than a page
			o.Classes = slices.DeleteFunc(slices.Clone(o.Classes), func(c uint64) bool { return c%page != 0 })
		}
	}
	o.Classes = slices.Clone(o.Classes)
	for i, c := range o.Classes {
		if c == 0 || c%uint64(sys.PageSize) != 0 || c > math.MaxInt64/2 {
			return fail("class %d of %d bytes: expected a multiple of the page size, %d", i, c, sys.PageSize)
		}
		if o.Dedicated && c%page != 0 {
			return fail("class %d of %d bytes: dedicated blocks are regions of their own, which are multiples of "+
				"%d bytes", i, c, page)
		}
		if i > 0 && c <= o.Classes[i-1] {
			return fail("class %d of %d bytes after %d: expected ascending sizes", i, c, o.Classes[i-1])
		}
	}
	if o.Budget == 0 {
		return fail("Budget is 0: expected the number of bytes that may be mapped")
	}
	smallest := page
	if len(o.Classes) > 0 {
		smallest = roundUp(o.Classes[0], page)
	}
	if o.Budget < smallest {
		return fail("Budget of %d bytes: the smallest region takes %d", o.Budget, smallest)
	}
	if o.Memory.Kind == Host && !o.Memory.Lazy && o.Memory.Provider == nil {
		if avail, err := sys.MemAvailable(); err == nil && o.Budget > avail {
			return fail("Budget of %d bytes, but only %d are available (MemAvailable in /proc/meminfo): %w", o.Budget,
				avail, ErrBudget)
		}
	}
	if o.Memory.Kind == Huge && !o.Memory.AllowFallback && o.Memory.Provider == nil {
		pages := int(o.Budget / page)
		h, err := sys.HugePageState(int(page), o.Memory.NUMANode.Number())
		if err != nil {
			return fail("%w: %w", ErrUnavailable, err)
		}
		if h.Free+h.More < pages {
			return fail("Budget of %d bytes is %d huge pages and %d are free: %w; as root: %s", o.Budget, pages, h.Free,
				ErrBudget, h.Command(pages))
		}
	}
	a := &Allocator{name: o.Name, budget: o.Budget, opts: o, page: page}
	a.changed.L = &a.mu
	for _, c := range o.Classes {
		a.classes = append(a.classes, class{size: c})
	}
	a.classes = append(a.classes, class{})
	live.hold(a)
	return a, nil
}

func roundUp(n, to uint64) uint64 { return (n + to - 1) / to * to }

// Alloc returns a block of at least size bytes, > 0. The error wraps ErrBudget when it does not fit
// into the budget besides what is in use. The content is whatever its last user left.
func (a *Allocator) Alloc(size uint64) (Block, error) {
	if size == 0 {
		return Block{}, fmt.Errorf("mem: allocator %q: size 0: expected more", a.name)
	}
	if size > math.MaxInt64/2 {
		return Block{}, fmt.Errorf("mem: allocator %q: size %d: %w", a.name, size, ErrBudget)
	}
	want := a.classOf(size)
	a.mu.Lock()
	defer a.mu.Unlock()
	warm := true
	for {
		if a.closed {
			return Block{}, ErrAllocatorClosed
		}
		s := a.find(want, size)
		if s == nil {
			s = a.find(len(a.classes)-1, size)
		}
		if s != nil {
			b := a.hand(s, size)
			if warm {
				a.stats.Hits++
			}
			return b, nil
		}
		warm = false
		s, err := a.grow(want, size)
		if err != nil {
			a.stats.Failed++
			return Block{}, err
		}
		if s != nil { // ours before another caller looks
			return a.hand(s, size), nil
		}
	}
}

// classOf is the index of the class that serves size.
func (a *Allocator) classOf(size uint64) int {
	for i := range a.opts.Classes {
		if size <= a.opts.Classes[i] {
			return i
		}
	}
	return len(a.opts.Classes)
}

// find returns a slab with a free block for size in class c, or nil. Holds a.mu.
func (a *Allocator) find(c int, size uint64) *slab {
	open := a.classes[c].open
	if len(open) == 0 {
		return nil
	}
	if a.classes[c].size != 0 {
		return open[len(open)-1]
	}
	// Above the largest class every slab has its own size: take the tightest, unless it wastes more
	// than a quarter.
	var best *slab
	for _, s := range open {
		if s.block >= size && s.block-size <= s.block/4 && (best == nil || s.block < best.block) {
			best = s
		}
	}
	return best
}

// hand gives out a free block of s. Holds a.mu.
func (a *Allocator) hand(s *slab, size uint64) Block {
	last := len(s.free) - 1
	i := s.free[last]
	s.free = s.free[:last]
	c := &a.classes[s.class]
	if last == 0 && s.opened {
		// Nearly always the last element; the search is for slabs above the largest class.
		k := len(c.open) - 1
		for c.open[k] != s {
			k--
		}
		c.open = slices.Delete(c.open, k, k+1)
		s.opened = false
	}
	u := &s.uses[i]
	u.gen++
	u.requested = size
	if invariants.Enabled {
		u.stack = callers(2)
	}
	a.stats.Allocs++
	a.stats.Requested += size
	a.stats.InUse += s.block
	a.stats.HighWater = max(a.stats.HighWater, a.stats.InUse)
	return Block{s, i, u.gen, size}
}

// Free gives a block back for reuse. The error wraps ErrFreed when that happened before; nothing
// changes then.
func (a *Allocator) Free(b Block) error { return a.free(b, false) }

// Retire gives a block back, and its memory to the system instead of to the next Alloc: at once if
// the block is dedicated or large, otherwise when all blocks of its slab are free. It is for memory
// that another process may still write, such as a peer that has it mapped. The budget is held until
// the memory is unmapped, that is until the last lease on it ends. Errors are those of Free.
func (a *Allocator) Retire(b Block) error { return a.free(b, true) }

func (a *Allocator) free(b Block, retire bool) error {
	a.mu.Lock()
	s := b.slab
	if s == nil || s.owner != a || s.uses[b.index].gen != b.gen {
		a.stats.Rejected++
		a.mu.Unlock()
		return fmt.Errorf("mem: allocator %q: free of a block of %d bytes: %w", a.name, b.size, ErrFreed)
	}
	u := &s.uses[b.index]
	u.gen++
	c := &a.classes[s.class]
	a.stats.Frees++
	a.stats.Requested -= u.requested
	a.stats.InUse -= s.block
	u.requested, u.stack = 0, nil
	s.free = append(s.free, b.index)
	if retire && !s.retired {
		s.retired = true
		if s.opened {
			c.open = slices.DeleteFunc(c.open, func(o *slab) bool { return o == s })
			s.opened = false
		}
	}
	if s.retired || a.closed {
		if s.idle() {
			a.detach(s)
			a.mu.Unlock()
			return a.unmap(s)
		}
	} else if !s.opened {
		c.open = append(c.open, s)
		s.opened = true
	}
	a.mu.Unlock()
	return nil
}

// Close ends the allocator and gives back what is free. If blocks are out, the error wraps ErrInUse
// and says how many, with -tags invariants also whose; they stay valid, and their memory is given
// back as they are freed. Calling Close again does nothing.
func (a *Allocator) Close() error {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return nil
	}
	a.closed = true
	a.changed.Broadcast()
	out := int(a.stats.Allocs - a.stats.Frees)
	bytes := a.stats.Requested
	var idle []*slab
	for i := range a.classes {
		for _, s := range slices.Clone(a.classes[i].slabs) {
			if s.idle() {
				a.detach(s)
				idle = append(idle, s)
			}
		}
	}
	a.mu.Unlock()
	var err error
	for _, s := range idle {
		err = errors.Join(err, a.unmap(s))
	}
	if out == 0 {
		live.drop(a)
		return err
	}
	text := fmt.Sprintf("mem: allocator %q: closed with %d blocks out (%d bytes)", a.name, out, bytes)
	if invariants.Enabled {
		for _, l := range a.leaks() {
			text += "\nacquired by\n" + l.Stack
		}
	}
	return errors.Join(err, fmt.Errorf("%s: %w", text, ErrInUse))
}

// leaks implements holder.
func (a *Allocator) leaks() []Leak {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.stats.Allocs - a.stats.Frees
	if n == 0 {
		return nil
	}
	if !invariants.Enabled {
		return []Leak{{What: "block", Of: a.name, Count: int(n), Bytes: a.stats.Requested}}
	}
	var out []Leak
	for i := range a.classes {
		for _, s := range a.classes[i].slabs {
			for j := range s.uses {
				if u := &s.uses[j]; u.gen&1 != 0 {
					out = append(out, Leak{What: "block", Of: a.name, Count: 1, Bytes: u.requested,
						Stack: format(u.stack)})
				}
			}
		}
	}
	return out
}
