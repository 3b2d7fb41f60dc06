package gpumemtest

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/mem"
)

// checkPool is slots of device memory, which cost no call of the driver, hold different bytes, and
// are found when they are forgotten.
func checkPool(r *rig) {
	const slots, size = 64, 4096
	p := must(mem.NewPool(mem.PoolOptions{Name: "slots", SlotSize: size, Slots: slots, Align: 512,
		Memory: mem.Options{Kind: mem.Device, Provider: r.p}}))(r)
	if p.Region().Kind() != mem.Device || !p.Region().Divided() {
		r.Errorf("the pool is of kind %s, divided: %v", p.Region().Kind(), p.Region().Divided())
	}
	var out []mem.Slot
	for range slots {
		out = append(out, must(p.Get())(r))
	}
	_, err := p.Get()
	r.is("a slot too many", err, mem.ErrExhausted)
	h := r.alloc(mem.HostPinned, slots*size)
	hb := r.bytes(h)
	copy(hb, noise(30, slots*size))
	for i, s := range out {
		span := s.Span()
		g := must(gpumem.Span(span))(r)
		if g.Len != size || g.Off%512 != 0 || r.opaque() && s.Bytes() != nil {
			r.Errorf("slot %d is %+v, with %d bytes for the CPU", i, g, len(s.Bytes()))
		}
		r.storeTo(span, mem.Span{Region: h, Off: uint64(i * size), Len: size})
	}
	live := r.c.Live()
	all := r.content(p.Region())
	for i, s := range out {
		off := s.Span().Off
		r.same("a slot", all[off:off+size], hb[i*size:(i+1)*size])
	}
	if ls := mem.LeakReport(); !finds(ls, "slot", "slots") {
		r.Errorf("slots that are out are not reported:\n%s", ls)
	}
	for _, s := range out {
		r.ok(s.Release())
	}
	r.is("a second release", out[0].Release(), mem.ErrReleased)
	// Through caches, and given back by others.
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			c := p.Cache()
			defer c.Close()
			rng := rand.New(rand.NewPCG(uint64(w), 3))
			var mine []mem.Slot
			for range 2000 {
				if s, err := c.Get(); err == nil && rng.IntN(2) == 0 {
					mine = append(mine, s)
				} else if err == nil {
					if err := c.Put(s); err != nil {
						r.Error(err)
					}
				}
				if len(mine) > 8 {
					for _, s := range mine {
						if err := s.Release(); err != nil {
							r.Error(err)
						}
					}
					mine = mine[:0]
				}
			}
			for _, s := range mine {
				if err := c.Put(s); err != nil {
					r.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if !instrumented {
		if n := testing.AllocsPerRun(100, func() {
			s, err := p.Get()
			if err == nil {
				err = s.Release()
			}
			if err != nil {
				r.Fatal(err)
			}
		}); n != 0 {
			r.Errorf("a slot costs %v allocations", n)
		}
	}
	if n := r.c.Live(); n != live {
		r.Errorf("slots made %d objects of the context", n-live)
	}
	last := must(p.Get())(r)
	r.is("close with a slot out", p.Close(), mem.ErrInUse)
	r.ok(last.Release())
	if !p.Region().Closed() || p.Region().Divided() {
		r.Error("the region of the pool is not given back")
	}
}

// storeTo puts host bytes into device memory of any kind.
func (r *rig) storeTo(dst, src mem.Span) {
	r.Helper()
	if mv := dst.Region.Mover(); mv != nil {
		r.over(mv.Store(dst.Off, src))
		return
	}
	copy(dst.Bytes(), src.Bytes())
}

func finds(ls mem.Leaks, what, of string) bool {
	for _, l := range ls {
		if l.What == what && l.Of == of {
			return true
		}
	}
	return false
}

// checkAllocator is blocks of device memory under a budget that counts what the device really
// gives.
func checkAllocator(r *rig) {
	unit := uint64(r.p.Granularity(mem.Device))
	small := max(unit/4, 4096)
	a := must(mem.NewAllocator(mem.AllocatorOptions{Name: "blocks", Budget: 64 << 20, Classes: []uint64{small, 4 << 20},
		Memory: mem.Options{Kind: mem.Device, Provider: r.p}}))(r)
	var blocks []mem.Block
	for _, n := range []uint64{1, small, small + 1, 4 << 20, 5 << 20, 100} {
		b := must(a.Alloc(n))(r)
		if s := b.Span(); s.Len != n || !s.Valid() || s.Region.Kind() != mem.Device || r.opaque() && b.Bytes() != nil {
			r.Errorf("a block of %d bytes is %+v", n, s)
		}
		must(gpumem.Span(b.Span()))(r)
		blocks = append(blocks, b)
	}
	if s := a.Stats(); s.Reserved > s.Budget || s.Reserved%unit != 0 {
		r.Errorf("%d bytes are reserved, regions are multiples of %d", s.Reserved, unit)
	}
	if !finds(mem.LeakReport(), "block", "blocks") {
		r.Error("blocks that are out are not reported")
	}
	r.ok(a.Free(blocks[0]))
	r.is("a second free", a.Free(blocks[0]), mem.ErrFreed)
	for _, b := range blocks[1:4] {
		r.ok(a.Free(b))
	}
	for _, b := range blocks[4:] {
		r.ok(a.Retire(b))
	}
	r.ok(a.Close())
	// Blocks of their own are regions, of which the smallest counts in full.
	const regions = 3
	o := mem.AllocatorOptions{Name: "dedicated", Budget: regions * unit, Classes: []uint64{unit}, Dedicated: true,
		Memory: mem.Options{Kind: mem.Device, Provider: r.p}}
	a = must(mem.NewAllocator(o))(r)
	blocks = blocks[:0]
	for {
		b, err := a.Alloc(1)
		if err != nil {
			r.is("a block over the budget", err, mem.ErrBudget)
			break
		}
		blocks = append(blocks, b)
	}
	var really uint64
	for _, b := range blocks {
		really += gpumem.Memory(b.Span().Region).Size()
		r.ok(a.Free(b))
	}
	if len(blocks) != regions || really != o.Budget {
		r.Errorf("a budget of %d regions gave %d, of %d bytes together: %d were expected", regions, len(blocks), really,
			o.Budget)
	}
	r.ok(a.Close())
	if unit > 4096 {
		o.Classes = []uint64{4096}
		if _, err := mem.NewAllocator(o); err == nil {
			r.Error("blocks of their own that are smaller than regions")
		}
		o.Dedicated = false
		a := must(mem.NewAllocator(o))(r)
		b := must(a.Alloc(1))(r)
		if s := a.Stats(); s.Reserved%unit != 0 || s.Reserved < gpumem.Memory(b.Span().Region).Size() {
			r.Errorf("%d bytes are reserved for a region of %d", s.Reserved, gpumem.Memory(b.Span().Region).Size())
		}
		r.ok(a.Free(b), a.Close())
	}
}

// checkRegCache is registrations of device memory, among them those of mem.Populate, which has
// nothing to do there.
func checkRegCache(r *rig) {
	x, h := r.alloc(mem.Device, 1<<20), r.alloc(mem.HostPinned, 1<<20)
	populated := must(mem.NewRegCache(mem.RegCacheOptions{Name: "populate", Registrar: mem.Populate}))(r)
	seen := &registrar{}
	c := must(mem.NewRegCache(mem.RegCacheOptions{Name: "device", Registrar: seen}))(r)
	for _, y := range []*mem.Region{x, h} {
		s := mem.Span{Region: y, Off: 5, Len: 4096}
		for _, cache := range []*mem.RegCache{populated, c} {
			g, err := cache.Get(s, mem.ReadAccess|mem.WriteAccess)
			r.ok(err)
			g.Release()
			g, err = cache.Get(s, mem.ReadAccess)
			r.ok(err)
			g.Release()
		}
	}
	if n := len(seen.spans); n != 2 {
		r.Errorf("%d registrations for two ranges", n)
	}
	for _, s := range seen.spans {
		if page := uint64(s.Region.PageSize()); s.Off > 5 || s.Off+s.Len < 5+4096 || s.Region.Kind() == mem.Device &&
			(s.Off%page != 0 || s.Len%page != 0) {
			r.Errorf("bytes 5 to 4101 are registered as %d from %d, pages have %d", s.Len, s.Off, page)
		}
	}
	r.ok(c.Close(), populated.Close())
	if seen.count != 0 {
		r.Errorf("%d registrations are left", seen.count)
	}
}

type registrar struct {
	mu    sync.Mutex
	spans []mem.Span
	count int
}

func (x *registrar) Register(s mem.Span, _ mem.Access) (any, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.spans = append(x.spans, s)
	x.count++
	return x, nil
}

func (x *registrar) Deregister(handle any) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.count--
	if handle != any(x) {
		return errors.New("another handle came back")
	}
	return nil
}

// checkOthers is memory of two devices: their bytes go by way of the host.
func checkOthers(r *rig) {
	n := len(r.rt.Devices())
	if n < 2 {
		return
	}
	x, mv := r.mover(1 << 16)
	if mv == nil {
		return
	}
	h := r.h
	h.device = (h.device + 1) % n
	c := must(r.rt.Devices()[h.device].Open())(r)
	r.closeLater(c)
	q := must(gpumem.New(c, h.Options))(r)
	r.closeLater(q)
	y := must(mem.Alloc(mem.Options{Kind: mem.Device, Size: 1 << 16, Provider: q}))(r)
	r.closeLater(y)
	_, err := mv.Store(0, y.All())
	r.is("a copy from another device", err, mem.ErrUnavailable)
	_, err = q.Export(x)
	if err == nil {
		r.Error("a provider exports memory of another device")
	}
	_, err = q.Adopt("theirs", gpumem.Memory(x), nil)
	if err == nil {
		r.Error("a provider adopts memory of another device")
	}
	// Pinned memory of one is other memory to the other.
	p := must(mem.Alloc(mem.Options{Kind: mem.HostPinned, Size: 1 << 16, Provider: q}))(r)
	r.closeLater(p)
	want := noise(31, 1<<16)
	copy(r.bytes(p), want)
	r.over(mv.Store(0, mem.Span{Region: p, Len: 1 << 16}))
	r.same("by way of another device's pinned memory", r.content(x)[:1<<16], want)
}
