package mem

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/sys"
	"pgregory.net/rapid"
)

// fakeRegistrar is a device that checks how it is used.
type fakeRegistrar struct {
	t interface{ Errorf(string, ...any) }

	mu    sync.Mutex
	live  map[*fakeKey]bool
	bytes uint64
	most  uint64
	calls int
	fail  error
	gate  chan struct{} // if set, Register waits for it
	enter chan struct{}
}

type fakeKey struct {
	span   Span
	access Access
}

func (f *fakeRegistrar) Register(s Span, a Access) (any, error) {
	if f.enter != nil {
		f.enter <- struct{}{}
	}
	if f.gate != nil {
		<-f.gate
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if f.fail != nil {
		return nil, f.fail
	}
	if isUnmapped(s.Region) || !s.Valid() {
		f.t.Errorf("register of unmapped or invalid memory %+v", s)
	}
	k := &fakeKey{s, a}
	if f.live == nil {
		f.live = map[*fakeKey]bool{}
	}
	f.live[k] = true
	f.bytes += s.Len
	f.most = max(f.most, f.bytes)
	return k, nil
}

func (f *fakeRegistrar) Deregister(h any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := h.(*fakeKey)
	if !f.live[k] {
		f.t.Errorf("deregister of %+v, which is not registered", *k)
	}
	if isUnmapped(k.span.Region) {
		f.t.Errorf("%+v was unmapped before it was deregistered", k.span)
	}
	delete(f.live, k)
	f.bytes -= k.span.Len
	return nil
}

func (f *fakeRegistrar) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.live)
}

func newRegCache(t testing.TB, o RegCacheOptions) *RegCache {
	t.Helper()
	c := must[*RegCache](t)(NewRegCache(o))
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if s := c.Stats(); s.Count != 0 || s.Bytes != 0 || s.InUse != 0 {
			t.Errorf("after close: %+v", s)
		}
		if f, ok := o.Registrar.(*fakeRegistrar); ok && f.count() != 0 {
			t.Errorf("%d registrations left at the device", f.count())
		}
	})
	return c
}

func pages(t testing.TB, r *Region, from, n int) Span {
	t.Helper()
	return must[Span](t)(r.Span(uint64(from*sys.PageSize), uint64(n*sys.PageSize)))
}

func TestRegCacheHitsAndMisses(t *testing.T) {
	f := &fakeRegistrar{t: t}
	c := newRegCache(t, RegCacheOptions{Registrar: f})
	r := allocate(t, Options{Size: 100 * sys.PageSize, Lazy: true})
	get := func(s Span, a Access, calls int, hits uint64) Registration {
		t.Helper()
		g := must[Registration](t)(c.Get(s, a))
		if f.calls != calls || c.Stats().Hits != hits || c.Stats().Misses != uint64(calls) {
			t.Errorf("%+v %s: %d calls, expected %d; %+v, expected %d hits", s, a, f.calls, calls, c.Stats(), hits)
		}
		return g
	}
	first := get(pages(t, r, 10, 10), ReadAccess, 1, 0)
	h, err := first.Handle()
	if k, ok := h.(*fakeKey); err != nil || !ok || k.span != pages(t, r, 10, 10) || k.access != ReadAccess ||
		first.Span() != k.span {
		t.Fatalf("handle %+v, %v", h, err)
	}
	odd := must[Span](t)(r.Span(uint64(12*sys.PageSize)+1, 5))
	second := get(odd, ReadAccess, 1, 1) // a part is covered
	if h2, _ := second.Handle(); h2 != h {
		t.Error("another handle")
	}
	third := get(odd, WriteAccess, 2, 1) // other access is not
	if s := third.Span(); s != pages(t, r, 12, 1) {
		t.Errorf("registered %+v: expected the page around", s)
	}
	fourth := get(pages(t, r, 15, 6), ReadAccess, 3, 1) // reaches beyond
	both := get(pages(t, r, 50, 2), ReadAccess|WriteAccess, 4, 1)
	fifth := get(pages(t, r, 51, 1), ReadAccess, 4, 2) // less access is covered by more
	if s := c.Stats(); s.InUse != 4 || s.Count != 4 || s.Bytes != uint64((10+1+6+2)*sys.PageSize) {
		t.Errorf("%+v", s)
	}
	if ls := LeakReport().String(); !strings.Contains(ls, "registration") ||
		invariants.Enabled != strings.Contains(ls, "TestRegCacheHitsAndMisses") {
		t.Errorf("leak report:\n%s", ls)
	}
	for _, g := range []Registration{first, second, third, fourth, both, fifth} {
		for range 2 { // twice is as good as once
			if err := g.Release(); err != nil {
				t.Error(err)
			}
		}
		if _, err := g.Handle(); err != ErrDeregistered || g.Span().Valid() {
			t.Errorf("handle after release: %v", err)
		}
	}
	if s := c.Stats(); s.InUse != 0 || s.Count != 4 || s.Redundant != 6 {
		t.Errorf("%+v", s)
	}
	again := get(pages(t, r, 10, 10), ReadAccess, 4, 3) // kept
	first.Release()                                     // stale: its grant serves another use now
	if _, err := again.Handle(); err != nil {
		t.Errorf("a stale release ended another use: %v", err)
	}
	again.Release()
	if err := (Registration{}).Release(); err != nil {
		t.Error(err)
	}
	if _, err := (Registration{}).Handle(); err != ErrDeregistered {
		t.Error(err)
	}
}

func TestRegCacheRefuses(t *testing.T) {
	f := &fakeRegistrar{t: t}
	c := newRegCache(t, RegCacheOptions{Name: "nic", Registrar: f, MaxBytes: uint64(4 * sys.PageSize), MaxCount: 2})
	r := allocate(t, Options{Name: "data", Size: 100 * sys.PageSize, Lazy: true})
	path, _ := writeFile(t, 100)
	file := must[*Region](t)(AdoptFile(path))
	defer file.Close()
	check := func(s Span, a Access, is error, text string) {
		t.Helper()
		_, err := c.Get(s, a)
		if err == nil || is != nil && !errors.Is(err, is) || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, expected %v and %q", err, is, text)
		}
	}
	check(Span{}, ReadAccess, ErrBounds, "nic")
	check(Span{r, 1, r.Len()}, ReadAccess, ErrBounds, "not inside")
	check(r.All(), 0, nil, "access(0)")
	check(r.All(), 4, nil, "access(4)")
	check(file.All(), WriteAccess, nil, "read-only")
	check(pages(t, r, 0, 5), ReadAccess, ErrBudget, fmt.Sprint(4*sys.PageSize))
	a := must[Registration](t)(c.Get(pages(t, r, 0, 3), ReadAccess))
	check(pages(t, r, 10, 2), ReadAccess, ErrBudget,
		fmt.Sprintf("limit is %d bytes, and 1 registrations of %d bytes are in use", 4*sys.PageSize, 3*sys.PageSize))
	b := must[Registration](t)(c.Get(pages(t, r, 20, 1), ReadAccess))
	check(pages(t, r, 30, 1), ReadAccess, ErrBudget, "2 registrations")
	a.Release()
	b.Release()
	f.fail = errors.New("device on fire")
	check(pages(t, r, 30, 2), ReadAccess|WriteAccess, f.fail, "read+write")
	f.fail = nil
	g := must[Registration](t)(c.Get(pages(t, r, 30, 2), ReadAccess)) // failing left nothing behind
	g.Release()
	closed := allocate(t, Options{Size: 1})
	closed.Close()
	check(closed.All(), ReadAccess, ErrClosed, "closed")
	if s := c.Stats(); s.Failed != 4 {
		t.Errorf("%+v", s)
	}
	for _, o := range []RegCacheOptions{{}, {Registrar: f, MaxCount: -1}} {
		if _, err := NewRegCache(o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}

func TestRegistrarPanics(t *testing.T) {
	c := newRegCache(t, RegCacheOptions{Registrar: panics{}})
	r := allocate(t, Options{Size: 1})
	for range 2 {
		if _, err := c.Get(r.All(), ReadAccess); err == nil || !strings.Contains(err.Error(), "panicked: boom") {
			t.Errorf("%v", err)
		}
	}
}

type panics struct{}

func (panics) Register(Span, Access) (any, error) { panic("boom") }
func (panics) Deregister(any) error               { panic("boom") }

func TestConcurrentMissesRegisterOnce(t *testing.T) {
	f := &fakeRegistrar{t: t, gate: make(chan struct{}), enter: make(chan struct{}, 100)}
	c := newRegCache(t, RegCacheOptions{Registrar: f})
	r := allocate(t, Options{Size: 8 * sys.PageSize})
	var wg sync.WaitGroup
	get := func() {
		g, err := c.Get(r.All(), ReadAccess)
		if err != nil {
			t.Error(err)
		}
		g.Release()
	}
	wg.Go(get)
	<-f.enter // the first is in Register, with no lock held
	if s := c.Stats(); s.Misses != 1 {
		t.Errorf("%+v", s)
	}
	for range 10 {
		wg.Go(get)
	}
	close(f.gate)
	wg.Wait()
	if s := c.Stats(); f.calls != 1 || s.Misses != 1 || s.Shared+s.Hits != 10 {
		t.Errorf("%d calls, %+v", f.calls, s)
	}
	// A failure reaches those who wait for it, and is not kept.
	f.gate, f.fail = make(chan struct{}), errors.New("no")
	big := allocate(t, Options{Size: sys.PageSize})
	wg.Go(func() {
		if _, err := c.Get(big.All(), ReadAccess); !errors.Is(err, f.fail) {
			t.Error(err)
		}
	})
	<-f.enter
	close(f.gate)
	wg.Wait()
	f.fail = nil
	must[Registration](t)(c.Get(big.All(), ReadAccess)).Release()
}

func TestRegionCloseInvalidates(t *testing.T) {
	f := &fakeRegistrar{t: t}
	c := newRegCache(t, RegCacheOptions{Registrar: f})
	r := must[*Region](t)(Alloc(Options{Size: 4 * sys.PageSize}))
	used := must[Registration](t)(c.Get(pages(t, r, 0, 1), ReadAccess))
	must[Registration](t)(c.Get(pages(t, r, 2, 1), ReadAccess)).Release()
	if f.count() != 2 {
		t.Fatalf("%d registered", f.count())
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if f.count() != 1 || isUnmapped(r) {
		t.Errorf("%d registered, unmapped %v: the one in use must stay, the other must go", f.count(), isUnmapped(r))
	}
	if _, err := used.Handle(); err != nil {
		t.Errorf("handle of a use that began before: %v", err)
	}
	if _, err := c.Get(pages(t, r, 0, 1), ReadAccess); !errors.Is(err, ErrClosed) {
		t.Errorf("get after close: %v", err)
	}
	used.Release()
	if f.count() != 0 || !isUnmapped(r) || c.Stats().Invalidated != 2 {
		t.Errorf("%d registered, unmapped %v, %+v", f.count(), isUnmapped(r), c.Stats())
	}
	// Other memory at the same address is registered again.
	buf := make([]byte, sys.PageSize)
	for i := range 3 {
		again := must[*Region](t)(Adopt("again", buf[:len(buf)-i*100], nil))
		must[Registration](t)(c.Get(again.All(), ReadAccess)).Release()
		if f.calls != 3+i {
			t.Errorf("round %d: %d calls of Register", i, f.calls)
		}
		again.Close()
	}
}

func TestRegCacheCloseWithUses(t *testing.T) {
	f := &fakeRegistrar{t: t}
	c := must[*RegCache](t)(NewRegCache(RegCacheOptions{Name: "busy", Registrar: f}))
	r := allocate(t, Options{Size: 4 * sys.PageSize})
	used := must[Registration](t)(c.Get(pages(t, r, 0, 1), ReadAccess))
	must[Registration](t)(c.Get(pages(t, r, 2, 1), ReadAccess)).Release()
	if err := c.Close(); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "1 registrations in use") {
		t.Errorf("close: %v", err)
	}
	if f.count() != 1 {
		t.Errorf("%d registered", f.count())
	}
	if _, err := c.Get(r.All(), ReadAccess); err != ErrRegCacheClosed {
		t.Errorf("get after close: %v", err)
	}
	used.Release()
	if f.count() != 0 || r.Leases() != 0 {
		t.Errorf("%d registered, %d leases", f.count(), r.Leases())
	}
	if err := c.Close(); err != nil || strings.Contains(LeakReport().String(), "busy") {
		t.Errorf("second close: %v", err)
	}
}

func TestUnalignedAdoptedMemory(t *testing.T) {
	f := &fakeRegistrar{t: t}
	c := newRegCache(t, RegCacheOptions{Registrar: f})
	m := must[[]byte](t)(sys.MmapAnonymous(4 * sys.PageSize))
	defer sys.Munmap(m)
	p := uint64(sys.PageSize)
	r := must[*Region](t)(Adopt("skewed", m[100:3*p+50], nil))
	defer r.Close()
	for _, x := range []struct{ off, n, start, end uint64 }{
		{0, 1, 0, p - 100}, {p - 100, 1, p - 100, 2*p - 100}, {p - 101, 2, 0, 2*p - 100}, {2 * p, 10, 2*p - 100, 3*p - 100}, {3*p - 60, 5, 3*p - 100, 3*p - 50},
	} {
		g := must[Registration](t)(c.Get(must[Span](t)(r.Span(x.off, x.n)), ReadAccess))
		h, _ := g.Handle()
		if s := h.(*fakeKey).span; s.Off > x.off || s.Off+s.Len < x.off+x.n || s.Off != x.start && f.calls == 1 {
			t.Errorf("%+v: registered %d to %d", x, s.Off, s.Off+s.Len)
		}
		g.Release()
		if s := pageAligned(must[Span](t)(r.Span(x.off, x.n))); s.Off != x.start || s.Off+s.Len != x.end {
			t.Errorf("%+v: aligned to %d to %d", x, s.Off, s.Off+s.Len)
		}
		if _, err := Populate.Register(must[Span](t)(r.Span(x.off, x.n)), WriteAccess); err != nil {
			t.Error(err)
		}
	}
}

func TestPopulateMakesPagesPresent(t *testing.T) {
	c := newRegCache(t, RegCacheOptions{Registrar: Populate})
	r := allocate(t, Options{Size: 16 * sys.PageSize, Lazy: true})
	absent := func() int {
		on, err := r.PlacedOn()
		if err != nil {
			testenv.Missing(t, "a kernel that says where pages are", err)
		}
		return on[-1]
	}
	if n := absent(); n != 16 {
		t.Fatalf("%d of 16 pages absent at first", n)
	}
	g := must[Registration](t)(c.Get(must[Span](t)(r.Span(uint64(3*sys.PageSize)+7, uint64(2*sys.PageSize))),
		WriteAccess))
	defer g.Release()
	if n := absent(); n != 13 {
		t.Errorf("%d of 16 pages absent after registering 3", n)
	}
	if c.Stats().Registering <= 0 {
		t.Error("time spent in Register is not reported")
	}
}

// TestRegCacheModel compares the cache with a plain list of registrations.
func TestRegCacheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const regionPages = 16
		maxBytes, maxCount := rapid.IntRange(8, 40).Draw(t, "pages")*sys.PageSize, rapid.IntRange(2, 8).Draw(t, "count")
		f := &fakeRegistrar{t: t}
		c, err := NewRegCache(RegCacheOptions{Registrar: f, MaxBytes: uint64(maxBytes), MaxCount: maxCount})
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, regionPages*sys.PageSize)
		adopt := func() *Region {
			r, err := Adopt("model", buf, nil)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		// The model: what is registered, least recently released first among those without uses.
		type reg struct {
			key  *fakeKey
			refs int
			used int // when it was released last
		}
		type use struct {
			g Registration
			r *reg
		}
		regions := []*Region{adopt(), adopt()}
		var regs []*reg
		var uses []use
		clock := 0
		closedRegions := map[*Region]bool{}
		drop := func(x *reg) {
			for i := range regs {
				if regs[i] == x {
					regs = append(regs[:i], regs[i+1:]...)
					return
				}
			}
		}
		total := func() (n uint64) {
			for _, x := range regs {
				n += x.key.span.Len
			}
			return
		}
		t.Repeat(map[string]func(*rapid.T){
			"get": func(t *rapid.T) {
				region := regions[rapid.IntRange(0, 1).Draw(t, "region")]
				off := uint64(rapid.IntRange(0, len(buf)-1).Draw(t, "off"))
				n := uint64(rapid.IntRange(1, len(buf)-int(off)).Draw(t, "len"))
				access := Access(rapid.IntRange(1, 3).Draw(t, "access"))
				span := Span{region, off, n}
				covered := false
				for _, x := range regs {
					s := x.key.span
					covered = covered || s.Region == region && !closedRegions[region] && s.Off <= off &&
						s.Off+s.Len >= off+n && x.key.access&access == access
				}
				calls := f.calls
				g, err := c.Get(span, access)
				if covered {
					if err != nil || f.calls != calls {
						t.Fatalf("%+v is covered: %v, %d calls", span, err, f.calls-calls)
					}
				} else {
					whole := pageAligned(span)
					// Evict as the cache must: the least recently used without uses, as many as it
					// takes, and no more.
					for total()+whole.Len > uint64(maxBytes) || len(regs) >= maxCount {
						var oldest *reg
						for _, x := range regs {
							if x.refs == 0 && (oldest == nil || x.used < oldest.used) {
								oldest = x
							}
						}
						if oldest == nil || whole.Len > uint64(maxBytes) {
							if !errors.Is(err, ErrBudget) {
								t.Fatalf("%d bytes besides %d in use: %v", whole.Len, total(), err)
							}
							return
						}
						drop(oldest)
					}
					if err != nil || f.calls != calls+1 {
						t.Fatalf("%+v: %v, %d calls of Register", span, err, f.calls-calls)
					}
				}
				h, err := g.Handle()
				if err != nil {
					t.Fatal(err)
				}
				k := h.(*fakeKey)
				if !f.live[k] || k.span.Region != region || k.span.Off > off || k.span.Off+k.span.Len < off+n ||
					k.access&access != access {
					t.Fatalf("%+v %s is served by %+v, registered %v", span, access, *k, f.live[k])
				}
				var x *reg
				for _, y := range regs {
					if y.key == k {
						x = y
					}
				}
				if x == nil {
					if covered {
						t.Fatal("a hit outside the model")
					}
					x = &reg{key: k}
					regs = append(regs, x)
				}
				x.refs++
				uses = append(uses, use{g, x})
			},
			"release": func(t *rapid.T) {
				if len(uses) == 0 {
					return
				}
				i := rapid.IntRange(0, len(uses)-1).Draw(t, "which")
				u := uses[i]
				uses = append(uses[:i], uses[i+1:]...)
				for range rapid.IntRange(1, 2).Draw(t, "times") {
					if err := u.g.Release(); err != nil {
						t.Fatal(err)
					}
				}
				clock++
				u.r.refs--
				u.r.used = clock
				if u.r.refs == 0 && closedRegions[u.r.key.span.Region] {
					drop(u.r)
				}
			},
			"close region": func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "rarely") > 0 {
					return
				}
				i := rapid.IntRange(0, 1).Draw(t, "region")
				if err := regions[i].Close(); err != nil {
					t.Fatal(err)
				}
				closedRegions[regions[i]] = true
				for _, x := range append([]*reg(nil), regs...) {
					if x.key.span.Region == regions[i] && x.refs == 0 {
						drop(x)
					}
				}
				regions[i] = adopt() // at the same address
			},
			"": func(t *rapid.T) {
				s := c.Stats()
				inUse := 0
				for _, x := range regs {
					if !f.live[x.key] {
						t.Fatalf("%+v is not at the device any more", *x.key)
					}
					if x.refs > 0 {
						inUse++
					}
				}
				if len(f.live) != len(regs) || s.Count != len(regs) || s.Bytes != total() || s.InUse != inUse ||
					s.Bytes > uint64(maxBytes) || s.Count > maxCount || f.most > uint64(maxBytes) {
					t.Fatalf("%+v, %d at the device (at most %d bytes); the model has %d of %d bytes, %d in use", s,
						len(f.live), f.most, len(regs), total(), inUse)
				}
			},
		})
		for _, u := range uses {
			u.g.Release()
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if len(f.live) != 0 {
			t.Fatalf("%d registrations left at the device", len(f.live))
		}
		for r := range closedRegions {
			if !isUnmapped(r) {
				t.Fatal("a region stays mapped")
			}
		}
		for _, r := range regions {
			r.Close()
		}
	})
}

func TestRegCacheStress(t *testing.T) {
	f := &fakeRegistrar{t: t}
	c := newRegCache(t, RegCacheOptions{Registrar: f, MaxBytes: uint64(40 * sys.PageSize), MaxCount: 12})
	buf := make([]byte, 32*sys.PageSize)
	var regions [3]atomic.Pointer[Region]
	for i := range regions {
		regions[i].Store(must[*Region](t)(Adopt("stress", buf, nil)))
	}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(3, uint64(w)))
			var held []Registration
			for range 4000 {
				i := rng.IntN(len(regions))
				if rng.IntN(200) == 0 {
					next, err := Adopt("stress", buf, nil)
					if err != nil {
						t.Error(err)
						return
					}
					if err := regions[i].Swap(next).Close(); err != nil {
						t.Error(err)
					}
				}
				off := rng.IntN(len(buf))
				n := min(rng.IntN(4*sys.PageSize)+1, len(buf)-off)
				g, err := c.Get(Span{regions[i].Load(), uint64(off), uint64(n)}, Access(rng.IntN(3)+1))
				switch {
				case err == nil:
					h, err := g.Handle()
					if err != nil {
						t.Error(err)
						continue
					}
					f.mu.Lock()
					if !f.live[h.(*fakeKey)] {
						t.Error("a use of what is not registered")
					}
					f.mu.Unlock()
					held = append(held, g)
				case !errors.Is(err, ErrBudget) && !errors.Is(err, ErrClosed):
					t.Error(err)
				}
				for len(held) > 2 {
					held[0].Release()
					held = held[1:]
				}
			}
			for _, g := range held {
				g.Release()
			}
		})
	}
	wg.Wait()
	for i := range regions {
		r := regions[i].Load()
		r.Close()
		if !isUnmapped(r) {
			t.Error("a region stays mapped")
		}
	}
	if s := c.Stats(); s.Count != 0 || f.most > uint64(40*sys.PageSize) || s.Evictions == 0 || s.Hits == 0 {
		t.Errorf("%+v, at most %d bytes at the device", s, f.most)
	}
}
