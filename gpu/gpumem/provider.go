package gpumem

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
)

// Options of a Provider. The zero value is right for most.
type Options struct {
	Name string // for messages; "" becomes "memory"
	// Opaque hides the bytes of device memory from the CPU also where it could reach them. It makes
	// the runtime host behave as a card does.
	Opaque bool
	// Streams is how many copies run side by side at most, 1 to 64; 0 means 4.
	Streams int
	// Bounce is the size in bytes of each half of the buffers through which bytes of other memory
	// go; 0 means 2 MiB. Below 0 there are none, and the runtime copies such memory by its own
	// means.
	Bounce int
}

// Provider provides memory of one context. Its methods may be called from any goroutine.
type Provider struct {
	c       *gpu.Context
	info    *gpu.Info
	o       Options
	page    uint64 // what regions of device memory are multiples of
	align   uint64 // where they begin
	streams []copyStream
	next    atomic.Uint32 // index in streams
	bounces []*bounce     // none: the runtime's own copies
	counts  counts

	mu     sync.Mutex // guards what follows
	closed bool
	live   map[*gpu.Memory]*record // memory behind regions
	moves  moves
}

// record is what a Provider knows of the memory behind a region.
type record struct {
	name  string
	whole bool // an allocation of its own, made here: it can be exported
}

// shareUnit is the size of the blocks in which drivers export memory, in bytes.
const shareUnit = 2 << 20

// New makes a Provider of a context, which must stay open until Close. It takes streams and pinned
// memory for copies at once, so that nothing has to be allocated behind a persistent kernel.
func New(c *gpu.Context, o Options) (*Provider, error) {
	if o.Name == "" {
		o.Name = "memory"
	}
	if o.Streams == 0 {
		o.Streams = 4
	}
	if o.Bounce == 0 {
		o.Bounce = 2 << 20
	}
	if o.Streams < 1 || o.Streams > 64 {
		return nil, fmt.Errorf("gpumem: %s: Streams is %d: expected 1 to 64: %w", o.Name, o.Streams, gpu.ErrArgument)
	}
	p := &Provider{c: c, info: c.Info(), o: o, live: map[*gpu.Memory]*record{}}
	p.page = max(uint64(sys.PageSize), p.info.Align)
	if caps := &p.info.Capabilities; caps.Has(gpu.CapIPC) || caps.Has(gpu.CapDMABuf) {
		p.page, p.align = max(p.page, shareUnit), shareUnit
	}
	if err := p.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("gpumem: %s: %w", o.Name, err), p.Close())
	}
	return p, nil
}

// open makes what copies need.
func (p *Provider) open() error {
	for range p.o.Streams {
		s, err := p.c.NewStream(gpu.StreamOptions{Name: p.o.Name})
		if err != nil {
			return err
		}
		p.streams = append(p.streams, copyStream{s: s})
	}
	if p.o.Bounce < 0 {
		return nil
	}
	for range min(p.o.Streams, maxBounces) {
		b, err := newBounce(p.c, p.o.Name, uint64(p.o.Bounce))
		if err != nil {
			return err
		}
		p.bounces = append(p.bounces, b)
	}
	return nil
}

// Device is the device whose memory it is.
func (p *Provider) Device() *gpu.Device { return p.c.Device() }

// Context is the context that owns the memory.
func (p *Provider) Context() *gpu.Context { return p.c }

// Granularity is what regions of a kind are multiples of, in bytes.
func (p *Provider) Granularity(k mem.Kind) int {
	if k == mem.Device {
		return int(p.page)
	}
	return sys.PageSize
}

// Close gives back what the Provider has. While regions of it are there it is an error that wraps
// gpu.ErrInUse and names them, and nothing is closed.
func (p *Provider) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	if n := len(p.live); n > 0 {
		names := slices.SortedFunc(maps.Values(p.live), func(a, b *record) int { return cmp.Compare(a.name, b.name) })
		var text []string
		for _, r := range names[:min(n, 10)] {
			text = append(text, fmt.Sprintf("%q", r.name))
		}
		p.mu.Unlock()
		return fmt.Errorf("gpumem: %s: close: %w: %d regions are there: %s", p.o.Name, gpu.ErrInUse, n,
			strings.Join(text, ", "))
	}
	p.closed = true
	events := p.moves.close()
	p.mu.Unlock()
	var errs []error
	for i := range p.streams {
		errs = append(errs, p.streams[i].s.Close())
	}
	for _, e := range events {
		errs = append(errs, e.Close())
	}
	for _, b := range p.bounces {
		errs = append(errs, b.close())
	}
	return errors.Join(errs...)
}

// enter notes memory behind a region that is about to be made.
func (p *Provider) enter(m *gpu.Memory, r *record) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return fmt.Errorf("gpumem: %s is %w", p.o.Name, gpu.ErrClosed)
	}
	if other := p.live[m]; other != nil {
		return fmt.Errorf("gpumem: %s: region %q: %w: the memory is that of region %q", p.o.Name, r.name, gpu.ErrInUse,
			other.name)
	}
	p.live[m] = r
	return nil
}

func (p *Provider) leave(m *gpu.Memory) {
	p.mu.Lock()
	delete(p.live, m)
	p.mu.Unlock()
}

// of is what is known of the memory behind a region, nil where it is not of this Provider.
func (p *Provider) of(r *mem.Region) (*gpu.Memory, *record) {
	m := Memory(r)
	p.mu.Lock()
	defer p.mu.Unlock()
	return m, p.live[m]
}

// Memory is the accelerator's memory behind a region, for kernels and streams; nil for regions of
// no Provider. It is valid as long as the region is mapped: hold a lease.
func Memory(r *mem.Region) *gpu.Memory {
	m, _ := r.Handle().(*gpu.Memory)
	return m
}

// Span is the accelerator's memory behind a span of a region; see Memory. The error wraps
// mem.ErrUnavailable for regions of no Provider, and mem.ErrBounds for a span that is not inside.
func Span(s mem.Span) (gpu.Span, error) {
	if !s.Valid() {
		return gpu.Span{}, fmt.Errorf("gpumem: offset %d + %d bytes is not inside its region: %w", s.Off, s.Len,
			mem.ErrBounds)
	}
	m := Memory(s.Region)
	if m == nil {
		return gpu.Span{}, fmt.Errorf("gpumem: region %q of kind %s is no memory of an accelerator: %w",
			s.Region.Name(), s.Region.Kind(), mem.ErrUnavailable)
	}
	return gpu.Span{Memory: m, Off: s.Off, Len: s.Len}, nil
}

// Allocate is for mem.Alloc, with Options of kind mem.Device or mem.HostPinned. The size is rounded
// up to Granularity. Errors wrap mem.ErrUnavailable for what cannot be on this device, else what
// package gpu said, as gpu.ErrOutOfMemory.
func (p *Provider) Allocate(o mem.Options) (mem.Mapping, error) {
	unit := uint64(p.Granularity(o.Kind))
	if o.Size <= 0 || uint64(o.Size) > math.MaxInt64-unit {
		return mem.Mapping{}, fmt.Errorf("gpumem: %s: %d bytes: expected 1 to %d: %w", p.o.Name, o.Size,
			math.MaxInt64-unit, gpu.ErrArgument)
	}
	switch o.Kind {
	case mem.Device:
		return p.allocDevice(o, (uint64(o.Size)+unit-1)/unit*unit)
	case mem.HostPinned:
		if p.info.Capabilities.Has(gpu.CapAdopt) {
			return p.allocAdopted(o)
		}
		return p.allocPinned(o, (uint64(o.Size)+unit-1)/unit*unit)
	}
	return mem.Mapping{}, fmt.Errorf("gpumem: %s: kind %s: it provides %s and %s: %w", p.o.Name, o.Kind, mem.Device,
		mem.HostPinned, mem.ErrUnavailable)
}

func (p *Provider) allocDevice(o mem.Options, size uint64) (mem.Mapping, error) {
	m, err := p.c.Alloc(gpu.MemoryOptions{Name: o.Name, Kind: gpu.DeviceMemory, Size: size, Align: p.align})
	if err != nil {
		return mem.Mapping{}, unavailable(err)
	}
	if err := p.enter(m, &record{name: o.Name, whole: true}); err != nil {
		return mem.Mapping{}, errors.Join(err, m.Close())
	}
	x := p.mapping(m, mem.Device, int(p.page), func() error { return m.Close() })
	if o.NUMANode.Number() >= 0 {
		x.Note = "memory of a device is on no NUMA node"
	}
	return x, nil
}

// allocAdopted registers pages of package mem.
func (p *Provider) allocAdopted(o mem.Options) (mem.Mapping, error) {
	pages, err := p.pages(o)
	if err != nil {
		return mem.Mapping{}, err
	}
	m, err := p.c.Adopt(o.Name, pages.Bytes)
	if err != nil {
		return mem.Mapping{}, unavailable(errors.Join(err, pages.Free()))
	}
	if err := p.enter(m, &record{name: o.Name}); err != nil {
		return mem.Mapping{}, errors.Join(err, m.Close(), pages.Free())
	}
	x := p.mapping(m, mem.HostPinned, pages.PageSize, func() error { return errors.Join(m.Close(), pages.Free()) })
	x.FD, x.NUMANode, x.Note, x.Populate = pages.FD, pages.NUMANode, pages.Note, pages.Populate
	return x, nil
}

// pages are the machine's, on the node of the device where o names no node.
func (p *Provider) pages(o mem.Options) (mem.Mapping, error) {
	o.Kind, o.Lazy = mem.Host, false
	if o.PageSize > sys.PageSize {
		o.Kind = mem.Huge
	}
	if o.NUMANode.Number() >= 0 || p.info.NUMANode < 0 {
		return mem.Pages.Allocate(o)
	}
	near := o
	near.NUMANode = mem.OnNode(p.info.NUMANode)
	m, err := mem.Pages.Allocate(near)
	if err == nil {
		return m, nil
	}
	m, other := mem.Pages.Allocate(o)
	if other != nil {
		return m, errors.Join(err, other)
	}
	if m.Note != "" {
		m.Note += "; "
	}
	m.Note += fmt.Sprintf("not bound to the NUMA node of the device: %v", err)
	return m, nil
}

// allocPinned is pinned memory of the runtime.
func (p *Provider) allocPinned(o mem.Options, size uint64) (mem.Mapping, error) {
	why := p.info.Capabilities[gpu.CapAdopt].Why
	if o.NUMANode.Number() >= 0 || o.PageSize > sys.PageSize {
		return mem.Mapping{}, fmt.Errorf("gpumem: %s: pinned memory with a NUMA node or page size of its own: the "+
			"runtime chooses both, since %s: %w", p.o.Name, why, mem.ErrUnavailable)
	}
	kind := gpu.PinnedMemory
	if p.info.Capabilities.Has(gpu.CapMapped) { // then kernels reach it as well, as they reach memory that is adopted
		kind = gpu.MappedMemory
	}
	m, err := p.c.Alloc(gpu.MemoryOptions{Name: o.Name, Kind: kind, Size: size})
	if err != nil {
		return mem.Mapping{}, unavailable(err)
	}
	if err := p.enter(m, &record{name: o.Name}); err != nil {
		return mem.Mapping{}, errors.Join(err, m.Close())
	}
	x := p.mapping(m, mem.HostPinned, sys.PageSize, func() error { return m.Close() })
	x.Note = "memory of the runtime without a descriptor, which peers on this machine cannot map: " + why
	return x, nil
}

// mapping describes memory that was entered. Its end gives it back, after the copies that are under
// way.
func (p *Provider) mapping(m *gpu.Memory, k mem.Kind, page int, end func() error) mem.Mapping {
	x := mem.Mapping{Kind: k, Bytes: m.Bytes(), Size: m.Size(), PageSize: page, FD: -1, NUMANode: -1, Present: true,
		Handle: m}
	x.Free = func() error {
		p.drain()
		err := end()
		p.leave(m)
		return err
	}
	if k != mem.Device {
		return x
	}
	if p.o.Opaque {
		x.Bytes = nil
	}
	if x.Bytes == nil {
		x.Mover = &mover{p: p, m: m}
	}
	x.Direct = p.direct(m)
	if x.Direct.NoDMABuf != nil {
		return x
	}
	x.Direct.Before, x.Direct.After = m.Around()
	x.DMABuf = func(off int64, n uint64) (int, error) {
		at := uint64(off)
		if x.Direct.Before > 0 || x.Direct.After > 0 {
			at += m.Addr()
		}
		if page := uint64(page); at%page != 0 || n%page != 0 {
			return -1, fmt.Errorf("gpumem: %s: dma-buf of %d bytes from %d: expected multiples of %d: %w", p.o.Name, n,
				off, page, mem.ErrBounds)
		}
		fd, err := m.ExportDMABuf(off, n)
		return fd, unavailable(err)
	}
	return x
}

// direct is how network cards reach memory of the device.
func (p *Provider) direct(m *gpu.Memory) (d mem.Direct) {
	caps := &p.info.Capabilities
	d.Bus = p.info.Bus
	d.NoDMABuf = caps.Check(gpu.CapDMABuf)
	if err := caps.Check(gpu.CapGPUDirect); err == nil {
		d.Addr = m.Addr()
	} else if d.NoDMABuf == nil {
		d.NoDMABuf = err
	}
	if p.info.FlushWrites {
		d.Flush = (*flusher)(p)
	}
	return d
}

// flusher flushes for all regions of a Provider.
type flusher Provider

// Flush implements mem.Flusher.
func (f *flusher) Flush() error { return f.c.FlushWrites() }

// unavailable adds the word of package mem for what package gpu does not support.
func unavailable(err error) error {
	if errors.Is(err, gpu.ErrUnsupported) || errors.Is(err, gpu.ErrUnavailable) {
		return fmt.Errorf("%w: %w", mem.ErrUnavailable, err)
	}
	return err
}
