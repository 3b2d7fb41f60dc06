package mem

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/internal/invariants"
)

// slotError is a handle that was refused: which, why (Err is ErrForeign or ErrReleased), and who
// released it first.
type slotError struct {
	Pool  string
	Index int
	Err   error
	Stack string // of the first release, with -tags invariants
}

func (e *slotError) Error() string {
	s := fmt.Sprintf("mem: pool %q: slot %d: %v", e.Pool, e.Index, e.Err)
	if e.Stack != "" {
		s += "; released first by\n" + e.Stack
	}
	return s
}

func (e *slotError) Unwrap() error { return e.Err }

// PoolOptions describe a pool.
type PoolOptions struct {
	Name     string
	SlotSize int // bytes that can be used of each slot, > 0
	Slots    int // how many; 1 to 67,108,863
	// Align is the alignment of slots in bytes, a power of two; 0 means 64. The distance between
	// slots is SlotSize rounded up to it.
	Align int
	// CacheSlots is how many free slots a Cache keeps at most; 0 means a sixteenth of Slots, but 1
	// to 64. What lies in one cache cannot be had through another, so it should be small against
	// Slots divided by the number of caches.
	CacheSlots int
	// Memory says what region to allocate; its Name and Size are set by the pool. Unused when
	// Region is given.
	Memory Options
	// Region is memory to divide instead of allocating. The pool keeps a lease on it and does not
	// close it. Several pools may divide one region, each its own part: whether the parts are apart
	// is the caller's to see to.
	Region *Region
	// Offset is where the first slot begins in Region, in bytes; a multiple of Align.
	Offset int
}

// maxSlots is the largest number of slots of a pool.
const maxSlots = 1<<indexBits - 1

// Pool hands out slots of fixed size in one region.
//
// Free slots are on a shared lock-free list, from which each Cache takes and to which it returns
// many at once; a goroutine with a Cache of its own does not touch the shared list in steady state.
// Pool's own Get and Put go to the shared list and may be called from any goroutine.
//
// Slots may be released through any Cache, or none, of the pool, by any goroutine. Each handle
// carries the generation of its slot: a second release, and a slot of another pool, are refused
// with an error. Builds with -tags invariants also fill released slots with the byte 0xDB and
// panic, in the Get that follows, if a byte there has changed since the release.
type Pool struct {
	name     string
	region   *Region
	lease    Lease
	owned    bool
	size     uint64 // usable bytes of a slot
	base     uint64 // of the first slot in the region
	stride   uint64
	cacheCap int

	// meta has one word per slot. It is apart from the slots, which a device or a peer may write.
	meta []slotMeta

	_    [64]byte
	head atomic.Uint64 // index+1 of the first free slot in the low bits, a count of changes above
	// takers is the number of goroutines that take slots without a compare-and-swap of their words;
	// once shut is set none begins.
	takers atomic.Int64
	shut   atomic.Bool
	_      [64]byte

	// Written by Get and Put of the pool itself, and on rare events.
	gets, puts, exhausted, rejected atomic.Uint64
	attempts, retries               atomic.Uint64 // of changing head

	mu        sync.Mutex // guards what follows
	closed    bool
	caches    map[*Cache]struct{}
	old       cacheStats // sums over caches that were closed
	remaining int        // slots that were out when the pool was closed and still are, +1 while Close runs
	debug     *poolDebug // with -tags invariants
}

// slotMeta is the state of a slot, in one word, so that a release and its place in the list are one
// change. The upper half is its generation, which counts its changes of hands: odd while it is out,
// even while it is free. The bit closing of it is set once by Close. The lower half is the index+1
// of the next free slot.
type slotMeta struct{ word atomic.Uint64 }

func (m *slotMeta) gen() uint32 { return uint32(m.word.Load() >> 32) }

func (m *slotMeta) next() uint32 { return uint32(m.word.Load()) }

// link says which free slot comes next. The caller owns the slot, which is free; only Close may
// come between.
func (m *slotMeta) link(next uint32) {
	for {
		w := m.word.Load()
		if m.word.CompareAndSwap(w, w>>32<<32|uint64(next)) {
			return
		}
	}
}

// free is Pool.release of the slot under handle h where its word is that of take: it is out, and
// the pool is not being closed. A generation that is even is of no slot that is out.
func (m *slotMeta) free(h Handle, next uint32) bool {
	w := uint64(h) >> 32 << 32
	return w>>32&1 != 0 && m.word.CompareAndSwap(w, (w+1<<32)&^(closing<<32)|uint64(next))
}

const (
	indexBits = 26
	indexMask = 1<<indexBits - 1
	closing   = 1 << 31
)

// Slot is a handle on one slot while it is out. Copies of the handle share the one release. The
// zero Slot belongs to no pool.
type Slot struct {
	pool  *Pool
	index uint32
	gen   uint32
}

// NewPool allocates the region, unless it is given, and divides it.
func NewPool(o PoolOptions) (*Pool, error) {
	if o.Name == "" {
		o.Name = "pool"
	}
	if o.Align == 0 {
		o.Align = 64
	}
	if o.CacheSlots == 0 {
		o.CacheSlots = min(max(o.Slots/16, 1), 64)
	}
	bad := func(what string, got int, want string) error {
		return fmt.Errorf("mem: pool %q: %s is %d: expected %s", o.Name, what, got, want)
	}
	switch {
	case o.SlotSize <= 0:
		return nil, bad("SlotSize", o.SlotSize, "more than 0 bytes")
	case o.Slots <= 0 || o.Slots > maxSlots:
		return nil, bad("Slots", o.Slots, fmt.Sprintf("1 to %d", maxSlots))
	case o.Align < 1 || o.Align&(o.Align-1) != 0 || o.Align > 1<<30:
		return nil, bad("Align", o.Align, "a power of two")
	case o.CacheSlots < 1:
		return nil, bad("CacheSlots", o.CacheSlots, "1 or more")
	case o.Offset < 0 || o.Offset%o.Align != 0:
		return nil, bad("Offset", o.Offset, fmt.Sprintf("0 or a multiple of Align, %d", o.Align))
	case o.Offset > 0 && o.Region == nil:
		return nil, bad("Offset", o.Offset, "0 where no Region is given")
	}
	stride := (o.SlotSize + o.Align - 1) &^ (o.Align - 1)
	if stride < o.SlotSize || stride > (1<<62)/o.Slots {
		return nil, fmt.Errorf("mem: pool %q: %d slots of %d bytes overflow", o.Name, o.Slots, o.SlotSize)
	}
	p := &Pool{
		name: o.Name, region: o.Region, owned: o.Region == nil, size: uint64(o.SlotSize), base: uint64(o.Offset),
		stride:   uint64(stride),
		cacheCap: o.CacheSlots, meta: make([]slotMeta, o.Slots), caches: map[*Cache]struct{}{},
	}
	var err error
	if p.owned {
		o.Memory.Name, o.Memory.Size = o.Name, stride*o.Slots
		if p.region, err = Alloc(o.Memory); err != nil {
			return nil, fmt.Errorf("mem: pool %q: %w", o.Name, err)
		}
	}
	if p.lease, err = p.region.Lease(); err != nil {
		return nil, fmt.Errorf("mem: pool %q: %w", o.Name, err)
	}
	fail := func(err error) (*Pool, error) {
		p.lease.Release()
		if p.owned {
			err = errors.Join(err, p.region.Close())
		}
		return nil, err
	}
	if need := p.stride * uint64(o.Slots); need > p.region.Len() || p.base > p.region.Len()-need {
		return fail(fmt.Errorf("mem: pool %q: %d slots need %d bytes from %d, but region %q has %d: %w", o.Name,
			o.Slots, need, p.base, p.region.Name(),
			p.region.Len(), ErrBounds))
	}
	if p.region.ReadOnly() {
		return fail(fmt.Errorf("mem: pool %q: region %q is read-only", o.Name, p.region.Name()))
	}
	for i := range p.meta {
		next := uint32(i + 2)
		if i == len(p.meta)-1 {
			next = 0
		}
		p.meta[i].link(next)
	}
	p.head.Store(1)
	if invariants.Enabled {
		p.debug = newPoolDebug(p)
	}
	p.region.divided.Add(1)
	live.hold(p)
	return p, nil
}

// Name is the name given at creation.
func (p *Pool) Name() string { return p.name }

// Region is the memory that is divided.
func (p *Pool) Region() *Region { return p.region }

// SlotSize is the size of a slot in bytes.
func (p *Pool) SlotSize() int { return int(p.size) }

// Stride is the distance from one slot to the next in bytes: SlotSize rounded up to the alignment.
func (p *Pool) Stride() int { return int(p.stride) }

// Span is the part of the region that the slots take.
func (p *Pool) Span() Span {
	return Span{Region: p.region, Off: p.base, Len: p.stride * uint64(len(p.meta))}
}

// Slots is the number of slots, free or not.
func (p *Pool) Slots() int { return len(p.meta) }

// Get takes a slot from the shared list. The error is the bare ErrExhausted or ErrPoolClosed. The
// content of a slot is whatever its last user left.
func (p *Pool) Get() (Slot, error) {
	var one [1]uint32
	if p.pop(one[:]) == 0 {
		return Slot{}, p.empty()
	}
	s, ok := p.take(one[0])
	if !ok {
		return Slot{}, ErrPoolClosed
	}
	p.gets.Add(1)
	return s, nil
}

// Put gives a slot back to the shared list. A handle that was released before or is of another pool
// changes nothing; the error wraps ErrForeign or ErrReleased.
func (p *Pool) Put(s Slot) error {
	free, err := p.give(s)
	if err != nil {
		return err
	}
	p.puts.Add(1)
	if free {
		p.pushChain(s.index, s.index)
	}
	return nil
}

// empty says why there is no slot, and counts it.
func (p *Pool) empty() error {
	if p.meta[0].gen()&closing != 0 {
		return ErrPoolClosed
	}
	p.exhausted.Add(1)
	return ErrExhausted
}

// take marks a free slot, which the caller got off the list or out of its cache, as out. It fails
// once the pool is closed.
func (p *Pool) take(i uint32) (Slot, bool) {
	m := &p.meta[i].word
	w := m.Load()
	gen := uint32(w >> 32)
	if gen&closing != 0 || !m.CompareAndSwap(w, uint64(gen+1)<<32) { // only Close changes the state of a free slot
		return Slot{}, false
	}
	s := Slot{p, i, gen + 1}
	if invariants.Enabled {
		p.debug.taken(s)
	}
	return s, true
}

// give marks a slot as free. The caller then puts it on the list or into its cache, unless free is
// false: the pool was closed meanwhile.
func (p *Pool) give(s Slot) (free bool, err error) {
	if s.pool != p {
		p.rejected.Add(1)
		return false, &slotError{Pool: p.name, Index: int(s.index), Err: ErrForeign}
	}
	released, closed := p.release(s, 0)
	switch {
	case released && closed:
		p.mu.Lock()
		defer p.mu.Unlock()
		p.returned()
		return false, nil
	case released:
		return true, nil
	}
	return false, p.refusal(s.Handle())
}

// refusal counts a release of what was released before or is of no slot of this pool, and says so.
func (p *Pool) refusal(h Handle) error {
	p.rejected.Add(1)
	if int(h.index()) >= len(p.meta) {
		return &slotError{Pool: p.name, Index: int(h.index()), Err: ErrForeign}
	}
	e := &slotError{Pool: p.name, Index: int(h.index()), Err: ErrReleased}
	if invariants.Enabled {
		e.Stack = p.debug.firstRelease(p.Slot(h))
	}
	return e
}

// release changes the state of a slot that is out under this handle to free, once. next is the
// index+1 of the free slot that is to come after it, where the caller knows that already.
func (p *Pool) release(s Slot, next uint32) (released, closed bool) {
	if invariants.Enabled {
		stack := callers(3)
		p.debug.mu.Lock() // no second release may come between scribbling and the change of state
		defer p.debug.mu.Unlock()
		p.debug.scribble(s, stack)
	}
	if p.meta[s.index].free(s.Handle(), next) {
		return true, false
	}
	for m := &p.meta[s.index].word; s.gen&1 != 0; {
		w := m.Load()
		gen := uint32(w >> 32)
		if gen&^closing != s.gen {
			return false, false
		}
		mark := gen & closing
		if m.CompareAndSwap(w, uint64((s.gen+1)&^closing|mark)<<32|uint64(next)) {
			return true, mark != 0
		}
	}
	return false, false
}

// pop takes up to len(out) free slots off the shared list and returns how many; one change of head
// takes them all.
func (p *Pool) pop(out []uint32) int {
	var tries uint64
	for {
		tries++
		head := p.head.Load()
		n, at := 0, head&indexMask
		// While the walk reads, others may take these slots and put them elsewhere: then head has
		// changed, if only by its count, and what was read is dropped. Indexes stay within the
		// array whatever is read.
		for n < len(out) && at != 0 {
			out[n] = uint32(at) - 1
			at = uint64(p.meta[at-1].next())
			n++
		}
		if n == 0 || p.head.CompareAndSwap(head, (head&^indexMask+1<<indexBits)|at) {
			p.counted(tries)
			return n
		}
	}
}

// counted counts how many attempts a change of head took.
func (p *Pool) counted(tries uint64) {
	if tries > 1 {
		p.retries.Add(tries - 1)
	}
	p.attempts.Add(tries)
}

// push puts slots on the shared list with one change of head.
func (p *Pool) push(free []uint32) {
	for i := 0; i+1 < len(free); i++ {
		p.meta[free[i]].link(free[i+1] + 1)
	}
	p.pushChain(free[0], free[len(free)-1])
}

// pushChain puts slots that are linked, from first to last, on the shared list.
func (p *Pool) pushChain(first, last uint32) {
	var tries uint64
	for {
		tries++
		head := p.head.Load()
		p.meta[last].link(uint32(head & indexMask))
		if p.head.CompareAndSwap(head, (head&^indexMask+1<<indexBits)|uint64(first+1)) {
			p.counted(tries)
			return
		}
	}
}

// Close ends the pool: no slot can be had from it any more. If slots are out, the error wraps
// ErrInUse and says how many, with -tags invariants also whose; they stay valid, the region stays
// mapped, and it is given back when the last one has been released. Calling Close again does
// nothing.
func (p *Pool) Close() error {
	out, err := p.close()
	if len(out) == 0 {
		return err
	}
	text := fmt.Sprintf("mem: pool %q: closed with %d of %d slots out", p.name, len(out), len(p.meta))
	if invariants.Enabled {
		for _, l := range p.debug.leaks(out) {
			text += "\nacquired by\n" + l.Stack
		}
	}
	return fmt.Errorf("%s: %w", text, ErrInUse)
}

// close marks all slots and returns those that are out, or else the outcome of giving the region
// back.
func (p *Pool) close() (out []uint32, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil
	}
	p.closed = true
	for p.shut.Store(true); p.takers.Load() > 0; {
		runtime.Gosched()
	}
	// Marks every slot: a free one can then no more be taken, and of one that is out the release
	// counts.
	p.remaining = 1
	for i := range p.meta {
		m := &p.meta[i].word
		for {
			w := m.Load()
			if m.CompareAndSwap(w, w|closing<<32) {
				if w>>32&1 != 0 {
					p.remaining++
					out = append(out, uint32(i))
				}
				break
			}
		}
	}
	return out, p.returned()
}

// returned counts a slot that came back after Close, or Close itself; the last one gives the region
// back. Holds p.mu.
func (p *Pool) returned() error {
	p.remaining--
	if p.remaining > 0 {
		return nil
	}
	live.drop(p)
	p.region.divided.Add(-1)
	var err error
	if p.owned {
		err = p.region.Close()
	}
	p.lease.Release()
	return err
}

// leaks implements holder.
func (p *Pool) leaks() []Leak {
	var out []uint32
	for i := range p.meta {
		if p.meta[i].gen()&1 != 0 {
			out = append(out, uint32(i))
		}
	}
	if len(out) == 0 {
		return nil
	}
	if invariants.Enabled {
		return p.debug.leaks(out)
	}
	return []Leak{{What: "slot", Of: p.name, Count: len(out), Bytes: uint64(len(out)) * p.size}}
}

// PoolStats are counters since the pool was made, and its state now.
type PoolStats struct {
	Slots, InUse        int
	Gets, Puts          uint64 // slots handed out and given back
	Exhausted           uint64 // Gets that found no slot
	Rejected            uint64 // Puts refused: released before, or foreign
	Refills, Spills     uint64 // exchanges between caches and the shared list, of many slots each
	ListTries, ListFail uint64 // attempts to change the shared list, and those that another goroutine came before
}

// Stats may be called from any goroutine. It looks at every slot.
func (p *Pool) Stats() PoolStats {
	s := PoolStats{Slots: len(p.meta), Exhausted: p.exhausted.Load(), Rejected: p.rejected.Load(),
		ListTries: p.attempts.Load(), ListFail: p.retries.Load()}
	for i := range p.meta {
		s.InUse += int(p.meta[i].gen() & 1)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	sum := p.old
	for c := range p.caches {
		sum.add(c.counts())
	}
	s.Gets, s.Puts = p.gets.Load()+sum.Gets, p.puts.Load()+sum.Puts
	s.Refills, s.Spills = sum.Refills, sum.Spills
	return s
}

// Bytes are the slot's bytes, valid until it is released; nil when it was released already, which
// is how use after release is found early, and for memory that the CPU cannot reach.
func (s Slot) Bytes() []byte {
	if s.Check() != nil {
		return nil
	}
	return s.Span().Bytes()
}

// Span names the slot's bytes in the pool's region. The zero Slot has an empty span that is not
// Valid.
func (s Slot) Span() Span {
	if s.pool == nil {
		return Span{}
	}
	return Span{Region: s.pool.region, Off: s.pool.base + uint64(s.index)*s.pool.stride, Len: s.pool.size}
}

// Index is the slot's number in its pool, from 0.
func (s Slot) Index() int { return int(s.index) }

// Check returns nil while the slot is out under this handle, and the bare ErrReleased or ErrForeign
// otherwise.
func (s Slot) Check() error {
	if s.pool == nil {
		return ErrForeign
	}
	if s.gen&1 == 0 || s.pool.meta[s.index].gen()&^closing != s.gen {
		return ErrReleased
	}
	return nil
}

// Release gives the slot back to its pool's shared list, see Pool.Put. It may be called from any
// goroutine.
func (s Slot) Release() error {
	if s.pool == nil {
		return &slotError{Pool: "none", Err: ErrForeign}
	}
	return s.pool.Put(s)
}

// poolDebug is what -tags invariants adds to a pool: stacks, and scribbled memory.
type poolDebug struct {
	p  *Pool
	mu sync.Mutex // guards what follows
	by []slotStacks
}

type slotStacks struct {
	taken, given []uintptr
	scribbled    bool
}

// scribble fills released memory, so that who still reads it sees nonsense, and who writes it is
// found at the next Get.
const scribble = 0xDB

func newPoolDebug(p *Pool) *poolDebug { return &poolDebug{p: p, by: make([]slotStacks, len(p.meta))} }

func (d *poolDebug) taken(s Slot) {
	stack := callers(3)
	d.mu.Lock()
	defer d.mu.Unlock()
	e := &d.by[s.index]
	if e.scribbled {
		for i, b := range s.Span().Bytes() {
			if b != scribble {
				panic(fmt.Sprintf("mem: pool %q: slot %d: byte %d was written after release; released by\n%s", d.p.name,
					s.index, i, format(e.given)))
			}
		}
	}
	e.taken, e.scribbled = stack, false
}

// scribble overwrites a slot that is about to be released, if the handle is good. Holds d.mu.
func (d *poolDebug) scribble(s Slot, stack []uintptr) {
	if s.Check() != nil {
		return
	}
	b := s.Span().Bytes()
	for i := range b {
		b[i] = scribble
	}
	d.by[s.index].scribbled, d.by[s.index].given = b != nil, stack
}

func (d *poolDebug) firstRelease(s Slot) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return format(d.by[s.index].given)
}

func (d *poolDebug) leaks(out []uint32) []Leak {
	d.mu.Lock()
	defer d.mu.Unlock()
	ls := make([]Leak, 0, len(out))
	for _, i := range out {
		ls = append(ls, Leak{What: "slot", Of: d.p.name, Count: 1, Bytes: d.p.size, Stack: format(d.by[i].taken)})
	}
	slices.SortFunc(ls, func(a, b Leak) int { return strings.Compare(a.Stack, b.Stack) })
	return ls
}
