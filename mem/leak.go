package mem

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Leak is something that is open or held now: at the end of a program, or of a test, something that
// was forgotten.
type Leak struct {
	What  string // "region", "lease", "slot", "block" or "registration"
	Of    string // the name of the region, pool, allocator or cache
	Count int    // how many of them; 1 where Stack is known
	Bytes uint64 // together
	Stack string // who acquired it, innermost call first; "" without -tags invariants
}

// Leaks is a report; its String is for people.
type Leaks []Leak

func (ls Leaks) String() string {
	if len(ls) == 0 {
		return "no leaks"
	}
	var b strings.Builder
	for _, l := range ls {
		fmt.Fprintf(&b, "%d %s of %q, %d bytes\n", l.Count, l.What, l.Of, l.Bytes)
		for line := range strings.SplitSeq(strings.TrimSuffix(l.Stack, "\n"), "\n") {
			if line != "" {
				fmt.Fprintf(&b, "\t%s\n", line)
			}
		}
	}
	return b.String()
}

// LeakReport lists the regions that are mapped, the leases on them, the slots and blocks that were
// not given back, and the registrations in use. With -tags invariants each comes with the stack
// that acquired it, otherwise with a count. It is empty when all memory was given back. Pools,
// allocators and caches also show the regions they hold.
func LeakReport() Leaks {
	var out Leaks
	for _, r := range live.list() {
		out = append(out, Leak{What: "region", Of: r.name, Count: 1, Bytes: r.Len(), Stack: format(r.stack)})
		out = append(out, leases.report(r)...)
	}
	for _, h := range live.holders() {
		out = append(out, h.leaks()...)
	}
	return out
}

// holder is a pool, allocator or cache: it knows what it lent and who has not given it back.
type holder interface{ leaks() []Leak }

// registry knows every region that is mapped and every holder that is open.
type registry struct {
	mu      sync.Mutex // guards the maps
	seq     uint64
	regions map[*Region]uint64 // the value orders the report
	held    map[holder]uint64

	count, bytes [kinds]atomic.Int64
	populated    atomic.Int64 // nanoseconds
}

var live registry

func (g *registry) add(r *Region) {
	g.count[r.kind].Add(1)
	g.bytes[r.kind].Add(int64(r.size))
	g.populated.Add(int64(r.populated))
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.regions == nil {
		g.regions = map[*Region]uint64{}
	}
	g.seq++
	g.regions[r] = g.seq
}

func (g *registry) remove(r *Region) {
	g.count[r.kind].Add(-1)
	g.bytes[r.kind].Add(-int64(r.size))
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.regions, r)
}

func (g *registry) hold(h holder) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held == nil {
		g.held = map[holder]uint64{}
	}
	g.seq++
	g.held[h] = g.seq
}

func (g *registry) drop(h holder) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.held, h)
}

func (g *registry) list() []*Region {
	g.mu.Lock()
	defer g.mu.Unlock()
	return byAge(g.regions)
}

func (g *registry) holders() []holder {
	g.mu.Lock()
	defer g.mu.Unlock()
	return byAge(g.held)
}

func byAge[K comparable](m map[K]uint64) []K {
	out := make([]K, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b K) int { return int(int64(m[a] - m[b])) })
	return out
}

// Stats are totals of the process.
type Stats struct {
	Regions  [kinds]int    // that are mapped now, by Kind
	Bytes    [kinds]uint64 // of those regions
	Populate time.Duration // spent since the start on making pages present at allocation
}

// ReadStats returns what is mapped in this process now. It may be called from anywhere at any time.
func ReadStats() Stats {
	s := Stats{Populate: time.Duration(live.populated.Load())}
	for k := range kinds {
		s.Regions[k], s.Bytes[k] = int(live.count[k].Load()), uint64(live.bytes[k].Load())
	}
	return s
}

// leases is the table of leases, filled only under -tags invariants.
var leases leaseTable

type leaseTable struct {
	mu   sync.Mutex // guards what follows
	held map[Lease][]uintptr
	// past remembers the most recent releases, so that a second release can show the first one.
	past map[Lease][]uintptr
	ring [1024]Lease
	next int
}

func (t *leaseTable) acquired(l Lease) {
	stack := callers(2)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held == nil {
		t.held, t.past = map[Lease][]uintptr{}, map[Lease][]uintptr{}
	}
	t.held[l] = stack
}

func (t *leaseTable) released(l Lease) {
	stack := callers(2)
	t.mu.Lock()
	_, ok := t.held[l]
	first := t.past[l]
	if ok {
		delete(t.held, l)
		old := &t.ring[t.next%len(t.ring)]
		t.next++
		delete(t.past, *old)
		*old = l
		t.past[l] = stack
	}
	t.mu.Unlock()
	if !ok {
		panic(fmt.Sprintf("mem: lease on region %q released twice\nfirst release:\n%ssecond release:\n%s", l.r.name,
			format(first), format(stack)))
	}
}

// report lists the leases on r.
func (t *leaseTable) report(r *Region) []Leak {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Leak
	for l, stack := range t.held {
		if l.r == r {
			out = append(out, Leak{What: "lease", Of: r.name, Count: 1, Bytes: r.Len(), Stack: format(stack)})
		}
	}
	slices.SortFunc(out, func(a, b Leak) int { return strings.Compare(a.Stack, b.Stack) })
	if n := r.Leases(); len(out) == 0 && n > 0 {
		out = append(out, Leak{What: "lease", Of: r.name, Count: n, Bytes: r.Len()})
	}
	return out
}

// format writes a stack with one "function file:line" per line, without the runtime's own frames.
func format(stack []uintptr) string {
	if len(stack) == 0 {
		return ""
	}
	var b strings.Builder
	frames := runtime.CallersFrames(stack)
	for {
		f, more := frames.Next()
		if f.Function != "" && !strings.HasPrefix(f.Function, "runtime.") {
			fmt.Fprintf(&b, "%s %s:%d\n", f.Function, f.File, f.Line)
		}
		if !more {
			return b.String()
		}
	}
}
