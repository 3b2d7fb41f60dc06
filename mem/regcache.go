package mem

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/internal/sys"
)

// RegCacheOptions describe a RegCache.
type RegCacheOptions struct {
	Name      string
	Registrar Registrar // required
	// MaxBytes bounds the bytes that are registered at once, in use or kept. Where registering pins
	// pages, the kernel's bound is RLIMIT_MEMLOCK (ulimit -l); 0 means no bound.
	MaxBytes uint64
	MaxCount int // registrations at once; 0 means 4096
}

// RegCache keeps registrations of memory for one device or path. Get returns one that covers a
// range, a kept one if there is any; released ones are kept until the room is needed, the least
// recently used going first, or their region is closed. One that is in use is never given up. A
// range must be covered by one registration: two that touch are not joined.
//
// Registrations are known by region, not by address: memory that is mapped at an address where
// other memory was before is registered again.
//
// Its methods may be called from any goroutine. No lock is held while the Registrar works.
type RegCache struct {
	name string
	opts RegCacheOptions

	mu      sync.Mutex // guards what follows
	changed sync.Cond  // bytes or count went down, or a registration is done
	closed  bool
	regions map[*Region][]*accessIndex
	idle    entryList // registrations without users, most recently used first
	grants  []grant   // one per registration handed out, reused
	free    []uint32  // grants to use again
	waning  int       // entries being deregistered
	stats   RegCacheStats
}

// entry is one registration at the Registrar.
type entry struct {
	span   Span
	access Access
	handle any
	err    error
	ready  bool // Register has returned
	dead   bool // not to be found any more; deregistered when refs becomes 0
	refs   int
	lease  Lease
	listed bool // in the idle list
	prev   *entry
	next   *entry
}

// grant is one use of an entry.
type grant struct {
	gen   uint32
	entry *entry
	stack []uintptr // with -tags invariants
}

// Registration is the use of a registration until Release. Copies of the value share the one
// Release, which may be called again without harm.
type Registration struct {
	c     *RegCache
	grant uint32
	gen   uint32
}

// NewRegCache makes an empty cache.
func NewRegCache(o RegCacheOptions) (*RegCache, error) {
	if o.Name == "" {
		o.Name = "registrations"
	}
	if o.Registrar == nil {
		return nil, fmt.Errorf("mem: registration cache %q: no Registrar", o.Name)
	}
	if o.MaxCount == 0 {
		o.MaxCount = 4096
	}
	if o.MaxCount < 0 {
		return nil, fmt.Errorf("mem: registration cache %q: MaxCount is %d: expected 1 or more", o.Name, o.MaxCount)
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 1<<64 - 1
	}
	c := &RegCache{name: o.Name, opts: o, regions: map[*Region][]*accessIndex{}}
	c.changed.L = &c.mu
	live.hold(c)
	return c, nil
}

// Get returns a registration of at least span for at least access a. A kept one costs no call of
// the Registrar and no allocation; of several goroutines that miss on the same range, one registers
// and the others wait for it.
//
// The error wraps ErrBudget when the range does not fit into the limits besides what is in use,
// ErrBounds for a span outside its region, ErrClosed for a closed region, or is what the Registrar
// said. The caller need not hold a lease: the registration does.
func (c *RegCache) Get(span Span, a Access) (Registration, error) {
	if !span.Valid() {
		return Registration{}, fmt.Errorf("mem: registration cache %q: offset %d + %d bytes is not inside its "+
			"region: %w", c.name, span.Off, span.Len, ErrBounds)
	}
	if a == 0 || a&^(ReadAccess|WriteAccess) != 0 {
		return Registration{}, fmt.Errorf("mem: registration cache %q: access %s: expected read, write or both", c.name,
			a)
	}
	if a&WriteAccess != 0 && span.Region.ReadOnly() {
		return Registration{}, fmt.Errorf("mem: registration cache %q: region %q is read-only and cannot be "+
			"registered for writing", c.name, span.Region.Name())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	hit := true
	for {
		if c.closed {
			return Registration{}, ErrRegCacheClosed
		}
		if e := c.lookup(span, a); e != nil {
			if !e.ready { // another goroutine registers it now
				hit = false
				for !e.ready {
					c.changed.Wait()
				}
				if e.err != nil {
					return Registration{}, e.err
				}
				continue
			}
			if hit {
				c.stats.Hits++
			} else {
				c.stats.Shared++
			}
			return c.grantOf(e), nil
		}
		if span.Region.Closed() {
			return Registration{}, fmt.Errorf("mem: region %q: %w", span.Region.name, ErrClosed)
		}
		hit = false
		whole := pageAligned(span)
		if ok, err := c.room(whole.Len); err != nil {
			c.stats.Failed++
			return Registration{}, err
		} else if ok {
			return c.register(whole, a)
		}
	}
}

// pageAligned widens a span to page boundaries in memory, as far as its region goes.
func pageAligned(s Span) Span {
	page := uint64(s.Region.page)
	var skew uint64 // of the region's first byte, for adopted memory
	if s.Region.data != nil {
		skew = uint64(sys.Address(s.Region.data)) % page
	}
	start := (s.Off + skew) / page * page
	start -= min(start, skew)
	end := min(roundUp(s.Off+s.Len+skew, page)-skew, s.Region.Len())
	return Span{Region: s.Region, Off: start, Len: end - start}
}

// room sees to it that n more bytes may be registered: true when they may now, false when the
// caller should look again, or the error that they cannot. It holds c.mu, except while it
// deregisters.
func (c *RegCache) room(n uint64) (bool, error) {
	if n <= c.opts.MaxBytes && c.stats.Bytes <= c.opts.MaxBytes-n && c.stats.Count < c.opts.MaxCount {
		return true, nil
	}
	if e := c.idle.last; e != nil && n <= c.opts.MaxBytes {
		c.stats.Evictions++
		c.bury(e)
		return false, nil
	}
	if c.waning > 0 && n <= c.opts.MaxBytes {
		c.changed.Wait()
		return false, nil
	}
	limit := fmt.Sprintf("%d bytes", c.opts.MaxBytes)
	if c.stats.Count >= c.opts.MaxCount {
		limit = fmt.Sprintf("%d registrations", c.opts.MaxCount)
	}
	return false, fmt.Errorf("mem: registration cache %q: %d bytes more do not fit: the limit is %s, and %d "+
		"registrations of %d bytes are in use: release some or raise the limit (for pinned memory also ulimit -l): %w",
		c.name, n, limit, c.stats.Count, c.stats.Bytes, ErrBudget)
}

// register makes a new entry and returns its first use. It holds c.mu, except while the Registrar
// works.
func (c *RegCache) register(span Span, a Access) (Registration, error) {
	lease, err := span.Region.Lease()
	if err != nil {
		return Registration{}, err
	}
	e := &entry{span: span, access: a, lease: lease}
	if _, known := c.regions[span.Region]; !known && !span.Region.onClose(c, func() { c.forget(span.Region) }) {
		c.mu.Unlock() // releasing the lease may unmap the region, and call Region.gone
		lease.Release()
		c.mu.Lock()
		return Registration{}, fmt.Errorf("mem: region %q: %w", span.Region.name, ErrClosed)
	}
	c.insert(e)
	c.stats.Misses++
	c.stats.Count++
	c.stats.Bytes += span.Len
	c.stats.HighWater = max(c.stats.HighWater, c.stats.Bytes)
	c.mu.Unlock()

	start := time.Now()
	handle, err := c.call(span, a)
	took := time.Since(start)

	c.mu.Lock()
	c.stats.Registering += took
	e.ready, e.handle = true, handle
	if err == nil {
		c.changed.Broadcast()
		return c.grantOf(e), nil
	}
	e.err = fmt.Errorf("mem: registration cache %q: region %q, offset %d, %d bytes, %s: %w", c.name, span.Region.name,
		span.Off, span.Len, a, err)
	c.stats.Failed++
	if !e.dead {
		c.remove(e)
	}
	c.gone(e)
	c.mu.Unlock()
	lease.Release()
	c.mu.Lock()
	return Registration{}, e.err
}

// call calls the Registrar. A panic in it becomes an error, because others may wait for the
// outcome.
func (c *RegCache) call(span Span, a Access) (handle any, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the Registrar panicked: %v", v)
		}
	}()
	return c.opts.Registrar.Register(span, a)
}

// grantOf makes a use of e. Holds c.mu.
func (c *RegCache) grantOf(e *entry) Registration {
	if e.refs == 0 {
		if e.listed {
			c.idle.remove(e)
		}
		c.stats.InUse++
	}
	e.refs++
	var i uint32
	if n := len(c.free); n > 0 {
		i, c.free = c.free[n-1], c.free[:n-1]
	} else {
		i = uint32(len(c.grants))
		c.grants = append(c.grants, grant{})
	}
	g := &c.grants[i]
	g.gen++
	g.entry = e
	if invariants.Enabled {
		g.stack = callers(2)
	}
	return Registration{c, i, g.gen}
}

// of finds the entry of a use, nil when it was released. Holds c.mu.
func (r Registration) of() *entry {
	if g := &r.c.grants[r.grant]; g.gen == r.gen {
		return g.entry
	}
	return nil
}

// Handle is what the Registrar returned. The error is ErrDeregistered after Release.
func (r Registration) Handle() (any, error) {
	if r.c == nil {
		return nil, ErrDeregistered
	}
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	if e := r.of(); e != nil {
		return e.handle, nil
	}
	return nil, ErrDeregistered
}

// Span is the range that is registered, which may be more than was asked for; not Valid after
// Release.
func (r Registration) Span() Span {
	if r.c == nil {
		return Span{}
	}
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	if e := r.of(); e != nil {
		return e.span
	}
	return Span{}
}

// Release ends the use; again, and of the zero Registration, it does nothing. The registration is
// kept for the next Get, unless its region or the cache was closed: it is then given up, and the
// error is the Registrar's.
func (r Registration) Release() error {
	c := r.c
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e := r.of()
	if e == nil {
		c.stats.Redundant++
		return nil
	}
	g := &c.grants[r.grant]
	g.gen++
	g.entry, g.stack = nil, nil
	c.free = append(c.free, r.grant)
	if e.refs--; e.refs > 0 {
		return nil
	}
	c.stats.InUse--
	if e.dead {
		return c.deregister(e)
	}
	c.idle.push(e)
	c.changed.Broadcast() // it may be evicted now
	return nil
}

// bury gives up an idle registration. It holds c.mu, except while the Registrar works.
func (c *RegCache) bury(e *entry) error {
	c.idle.remove(e)
	c.remove(e)
	return c.deregister(e)
}

// deregister undoes the registration of an entry that is on no list. It holds c.mu, except while
// the Registrar works.
func (c *RegCache) deregister(e *entry) error {
	e.dead = true
	c.waning++
	c.mu.Unlock()
	err := c.opts.Registrar.Deregister(e.handle)
	e.lease.Release() // after it: the memory must outlive its registration
	c.mu.Lock()
	c.waning--
	c.gone(e)
	if err != nil {
		c.stats.Undead++
		return fmt.Errorf("mem: registration cache %q: deregister %d bytes of region %q: %w", c.name, e.span.Len,
			e.span.Region.name, err)
	}
	return nil
}

// gone takes an entry off the account. Holds c.mu.
func (c *RegCache) gone(e *entry) {
	c.stats.Count--
	c.stats.Bytes -= e.span.Len
	c.changed.Broadcast()
	if c.closed && c.stats.Count == 0 {
		live.drop(c)
	}
}

// forget gives up all registrations of a region that is being closed; those in use when they are
// released.
func (c *RegCache) forget(r *Region) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.abandon(r)
}

// abandon forgets all registrations of r and gives up the idle ones. It holds c.mu, with gaps.
func (c *RegCache) abandon(r *Region) error {
	var unused []*entry
	for _, ix := range c.regions[r] {
		for _, it := range ix.items {
			it.entry.dead = true
			c.stats.Invalidated++
			if it.entry.listed {
				c.idle.remove(it.entry)
				unused = append(unused, it.entry)
			}
		}
	}
	delete(c.regions, r)
	var err error
	for _, e := range unused {
		err = errors.Join(err, c.deregister(e))
	}
	return err
}

// Close gives up all registrations. If some are in use, the error wraps ErrInUse; they are given up
// when they are released. Calling Close again does nothing.
func (c *RegCache) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	c.changed.Broadcast()
	var err error
	for _, r := range slices.Collect(maps.Keys(c.regions)) {
		r.onClose(c, nil)
		err = errors.Join(err, c.abandon(r))
	}
	if c.stats.Count == 0 {
		live.drop(c)
	}
	if c.stats.InUse > 0 {
		err = errors.Join(err, fmt.Errorf("mem: registration cache %q: closed with %d registrations in use: %w", c.name,
			c.stats.InUse, ErrInUse))
	}
	return err
}

// leaks implements holder.
func (c *RegCache) leaks() []Leak {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Leak
	for i := range c.grants {
		if g := &c.grants[i]; g.entry != nil {
			out = append(out, Leak{What: "registration", Of: c.name, Count: 1, Bytes: g.entry.span.Len,
				Stack: format(g.stack)})
		}
	}
	if n := len(out); n > 0 && !invariants.Enabled {
		sum := Leak{What: "registration", Of: c.name, Count: n}
		for _, l := range out {
			sum.Bytes += l.Bytes
		}
		return []Leak{sum}
	}
	return out
}

// RegCacheStats are counters since the start, and the state now.
type RegCacheStats struct {
	Hits        uint64 // Gets served by a kept registration
	Shared      uint64 // Gets that waited for another goroutine's registration
	Misses      uint64 // calls of Register
	Failed      uint64 // Gets refused by the Registrar or the limits
	Evictions   uint64 // given up for room
	Invalidated uint64 // made unknown because their region, or the cache, was closed
	Redundant   uint64 // Releases after the first
	Undead      uint64 // calls of Deregister that failed

	Count       int           // registrations at the Registrar now
	InUse       int           // of which in use
	Bytes       uint64        // registered now
	HighWater   uint64        // the most bytes that were registered at once
	Registering time.Duration // spent in Register, first touch included
}

// Stats may be called from any goroutine.
func (c *RegCache) Stats() RegCacheStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}
