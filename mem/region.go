package mem

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/handles"
	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/internal/sys"
)

// Kind says what a region's memory is and who can reach it.
type Kind uint8

const (
	Host       Kind = iota // base pages in a sealed memfd: CPU, peers on this host, every network path
	Huge                   // 2 MiB or 1 GiB pages in a sealed memfd, reserved at allocation
	HostPinned             // page-locked and mapped by an accelerator; needs a GPU runtime
	Device                 // memory of an accelerator; needs a GPU runtime
	Foreign                // adopted: memory that this package did not allocate

	kinds // how many there are
)

var kindNames = [kinds]string{"host", "huge", "host_pinned", "device", "foreign"}

func (k Kind) String() string {
	if k < kinds {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Options describe a region to allocate.
type Options struct {
	Name     string // for messages and reports; "" becomes "region"
	Size     int    // bytes, > 0; rounded up to the page size
	Kind     Kind   // Host, Huge, or what Provider provides
	PageSize int    // for Huge: 2<<20 (default) or 1<<30
	// AllowFallback lets Huge fall back to base pages when no huge pages are free. Region.Note then
	// says so.
	AllowFallback bool
	// Lazy leaves pages untouched until first use (about 2 GB/s is then paid in the middle of a
	// transfer). The default populates them now. Huge pages are always populated: one that is
	// missing later would be a SIGBUS.
	Lazy bool
	// NUMANode binds the pages to a node, see OnNode; the zero value leaves the choice to the
	// kernel. The placement of each page is verified by asking the kernel back, unless Lazy is set.
	NUMANode Node
	// SealWrites is Region.SealWrites at once.
	SealWrites bool
	// Provider allocates kinds that this package cannot (a GPU runtime); nil means this package,
	// for Host and Huge.
	Provider Provider
}

// Node names a NUMA node in Options. The zero value is any node.
type Node struct{ plusOne int }

// OnNode names NUMA node n, counted from 0 as in /sys/devices/system/node. A negative n means any
// node.
func OnNode(n int) Node { return Node{max(n, -1) + 1} }

// Number is the node's number, or -1 for any.
func (n Node) Number() int { return n.plusOne - 1 }

// Region is one contiguous mapping outside the Go heap. Its methods may be called from any
// goroutine.
type Region struct {
	name      string
	kind      Kind
	page      int
	size      uint64
	data      []byte // the whole mapping, nil where the CPU cannot reach it; touched only under a lease
	fd        int    // memfd or -1
	node      int    // NUMA node of all pages, -1: mixed or unknown
	populated time.Duration
	present   bool // every page was made present at allocation
	readOnly  bool
	sealed    atomic.Bool
	note      string
	unmap     func() error
	mover     Mover
	handle    any
	dmabuf    func(off int64, n uint64) (int, error)
	direct    Direct
	stack     []uintptr // who allocated it; only under -tags invariants

	divided atomic.Int64 // pools and slabs that hand out parts of it
	// state holds the number of leases and the closed bit, so that the last one out unmaps exactly
	// once.
	state  atomic.Int64
	leases handles.Table // of those that were handed out
	done   chan struct{} // closed once unmapped
	mu     sync.Mutex    // guards hooks
	hooks  map[any]func()
	gone   func() // called after unmapping; set before the region is shared
}

const closedBit = 1 << 62

// Alloc makes a region. The pages are populated unless Lazy is set. The caller owns it until Close.
func Alloc(o Options) (*Region, error) {
	if o.Name == "" {
		o.Name = "region"
	}
	if o.Size <= 0 {
		return nil, fmt.Errorf("mem: region %q: size %d bytes: expected more than 0", o.Name, o.Size)
	}
	p := o.Provider
	if p == nil {
		if o.Kind != Host && o.Kind != Huge {
			return nil, fmt.Errorf("mem: region %q: kind %s: %w: %s", o.Name, o.Kind, ErrUnavailable, whyNot(o.Kind))
		}
		p = hostProvider{}
	}
	m, err := p.Allocate(o)
	if err != nil {
		return nil, fmt.Errorf("mem: region %q: %w", o.Name, err)
	}
	r := newRegion(o.Name, m)
	if o.SealWrites {
		if err := r.SealWrites(); err != nil {
			return nil, errors.Join(err, r.Close())
		}
	}
	return r, nil
}

func whyNot(k Kind) string {
	switch k {
	case HostPinned, Device:
		return "it comes from a GPU runtime, and Options.Provider names none"
	case Foreign:
		return "memory that exists already is adopted, not allocated: use Adopt or AdoptFile"
	}
	return "there is no such kind"
}

func newRegion(name string, m Mapping) *Region {
	r := &Region{
		name: name, kind: m.Kind, page: m.PageSize, size: m.Size, data: m.Bytes, fd: m.FD, node: m.NUMANode,
		note:      m.Note,
		populated: m.Populate, present: m.Present, readOnly: m.ReadOnly, unmap: m.Free, done: make(chan struct{}),
		mover: m.Mover, handle: m.Handle, dmabuf: m.DMABuf, direct: m.Direct,
	}
	if r.unmap == nil {
		r.unmap = func() error { return nil }
	}
	if invariants.Enabled {
		r.stack = callers(2)
	}
	live.add(r)
	return r
}

// Adopt makes a region of memory that the caller already has. The bytes must not be in the Go heap
// unless they are pinned, and must stay valid until release is called, which happens once, after
// Close and the last lease. release may be nil. b may be empty: a tensor without elements has no
// bytes. An adopted region has no file descriptor, so peers reach it over sockets, not over shared
// memory.
func Adopt(name string, b []byte, release func() error) (*Region, error) {
	if b == nil {
		b = []byte{} // nil is memory that the CPU does not reach
	}
	return newRegion(name, Mapping{Kind: Foreign, Bytes: b, Size: uint64(len(b)), PageSize: sys.PageSize, FD: -1,
		NUMANode: -1, Free: release}), nil
}

// Name is the name given at allocation.
func (r *Region) Name() string { return r.name }

// Kind says what memory it is.
func (r *Region) Kind() Kind { return r.kind }

// Len is the size in bytes, a multiple of PageSize for allocated regions.
func (r *Region) Len() uint64 { return r.size }

// PageSize is the size in bytes of the pages that back the region.
func (r *Region) PageSize() int { return r.page }

// FD is the memfd behind the region, or -1. It stays open as long as the region is mapped; the
// region owns it.
func (r *Region) FD() int { return r.fd }

// ReadOnly reports whether the mapping refuses writes (a mapped file). Writing to it kills the
// process.
func (r *Region) ReadOnly() bool { return r.readOnly }

// Note says what differs from what was asked for, such as a fallback from huge pages; "" when
// nothing does.
func (r *Region) Note() string { return r.note }

// NUMANode is the node on which the kernel said, at allocation, that the pages are: each page was
// asked for when Options bound the region, a sample of 64 otherwise. It is -1 where they are on
// several nodes or that is not known (Lazy, adopted, a kernel without NUMA). PlacedOn asks again.
func (r *Region) NUMANode() int { return r.node }

// PopulateTime is how long making the pages present took at allocation; 0 when that was left to the
// first touch. It is apart from everything else because it is the kernel zeroing pages, at about 2
// GB/s.
func (r *Region) PopulateTime() time.Duration { return r.populated }

// SealWrites makes the memory writable only through the mapping that this process has already: from
// now on a process that receives the descriptor can map it for reading only, and no process, this
// one included, can punch holes into it (F_SEAL_FUTURE_WRITE, Linux 5.1). It cannot be undone;
// calling it again does nothing. It fails with ErrUnavailable where there is no memfd.
//
// It is for memory that peers read. Memory that peers shall write over shared memory cannot be
// sealed so, and then any holder of the descriptor can punch holes, because the kernel forbids that
// only together with writing. What follows: base pages read as zero, and the next touch faults a
// new page in, or kills the process if there is no memory for it; a missing huge page is a SIGBUS.
// Touch such memory with CopyGuarded, as package transfer/path/shm does.
func (r *Region) SealWrites() error {
	if r.fd < 0 {
		return fmt.Errorf("mem: region %q: seal writes: there is no memfd to seal: %w", r.name, ErrUnavailable)
	}
	l, err := r.Lease() // the descriptor must stay open meanwhile
	if err != nil {
		return err
	}
	defer l.Release()
	if r.sealed.Load() {
		return nil
	}
	if err := sys.AddSeals(r.fd, sys.SealFutureWrite); err != nil {
		return fmt.Errorf("mem: region %q: %w", r.name, err)
	}
	r.sealed.Store(true)
	return nil
}

// Span names n bytes from off. The error wraps ErrBounds when they are not all inside the region.
func (r *Region) Span(off, n uint64) (Span, error) {
	if off > r.Len() || n > r.Len()-off {
		return Span{}, fmt.Errorf("mem: region %q: offset %d + %d bytes, but the region has %d: %w", r.name, off, n,
			r.Len(), ErrBounds)
	}
	return Span{Region: r, Off: off, Len: n}, nil
}

// All is the span of the whole region.
func (r *Region) All() Span { return Span{Region: r, Len: r.Len()} }

// Divided reports whether pools or allocators hand out parts of the region now. Who gives such a
// region away gives what is in all of them.
func (r *Region) Divided() bool { return r.divided.Load() > 0 }

// Lease pins the mapping until Release. It fails with ErrClosed once Close was called.
func (r *Region) Lease() (Lease, error) {
	for {
		s := r.state.Load()
		if s&closedBit != 0 {
			return Lease{}, fmt.Errorf("mem: region %q: %w", r.name, ErrClosed)
		}
		if r.state.CompareAndSwap(s, s+1) {
			l := Lease{r, r.leases.Take()}
			if invariants.Enabled {
				leases.acquired(l)
			}
			return l, nil
		}
	}
}

// Leases is the number of leases held now.
func (r *Region) Leases() int { return int(r.state.Load() &^ closedBit) }

// Closed reports whether Close was called. The memory may still be mapped, see Unmapped.
func (r *Region) Closed() bool { return r.state.Load()&closedBit != 0 }

// Close gives the memory back. The mapping stays until the last lease is released; no new lease is
// granted. Registrations that caches hold are given up. Calling Close again does nothing. The error
// is that of unmapping, when that happened during this call.
func (r *Region) Close() error {
	for {
		s := r.state.Load()
		if s&closedBit != 0 {
			return nil
		}
		// One lease of our own keeps the memory mapped until the hooks are done with it.
		if r.state.CompareAndSwap(s, s+1|closedBit) {
			break
		}
	}
	r.mu.Lock()
	hooks := r.hooks
	r.hooks = nil
	r.mu.Unlock()
	for _, f := range hooks {
		f()
	}
	return r.release()
}

// onClose has f called by Close, once, while the memory is still mapped. It returns false, and f is
// not called, when the region is closed already. A later f for the same key replaces the earlier
// one; nil removes it.
func (r *Region) onClose(key any, f func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f == nil {
		delete(r.hooks, key)
		return true
	}
	if r.Closed() { // Close takes the hooks after it set the bit, under mu: either it sees f, or we see the bit
		return false
	}
	if r.hooks == nil {
		r.hooks = map[any]func(){}
	}
	r.hooks[key] = f
	return true
}

// Unmapped is closed when the memory is gone: after Close and the release of the last lease.
func (r *Region) Unmapped() <-chan struct{} { return r.done }

// release gives one lease back, which the caller has, and unmaps after the last one of a closed
// region.
func (r *Region) release() error {
	if r.state.Add(-1) != closedBit {
		return nil
	}
	err := r.unmap()
	live.remove(r)
	close(r.done)
	if r.gone != nil {
		r.gone()
	}
	return err
}

// callers records the stack from its caller outward, without the first skip frames; format turns it
// into text.
func callers(skip int) []uintptr {
	var pc [24]uintptr
	return append([]uintptr(nil), pc[:runtime.Callers(skip+2, pc[:])]...)
}
