package mem

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/internal/sys"
	"pgregory.net/rapid"
)

func newPool(t testing.TB, o PoolOptions) *Pool {
	t.Helper()
	p := must[*Pool](t)(NewPool(o))
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if p.owned && !isUnmapped(p.region) {
			t.Error("the region of a closed pool is mapped")
		}
	})
	return p
}

func TestPoolOptions(t *testing.T) {
	small := allocate(t, Options{Name: "small", Size: sys.PageSize})
	closed := allocate(t, Options{Size: sys.PageSize})
	closed.Close()
	for _, c := range []struct {
		o    PoolOptions
		text string
	}{
		{PoolOptions{Slots: 1}, "SlotSize is 0"},
		{PoolOptions{SlotSize: 1}, "Slots is 0"},
		{PoolOptions{SlotSize: 1, Slots: maxSlots + 1}, "1 to 67108863"},
		{PoolOptions{SlotSize: 1, Slots: 1, Align: 3}, "power of two"},
		{PoolOptions{SlotSize: 1, Slots: 1, CacheSlots: -1}, "CacheSlots is -1"},
		{PoolOptions{SlotSize: math.MaxInt, Slots: 1}, "overflow"},
		{PoolOptions{SlotSize: 1 << 40, Slots: 1 << 25}, "overflow"},
		{PoolOptions{SlotSize: 65, Slots: sys.PageSize / 64, Region: small}, "outside its region"},
		{PoolOptions{SlotSize: 1, Slots: 1, Region: closed}, "region is closed"},
		{PoolOptions{SlotSize: 64, Slots: sys.PageSize / 64, Region: small, Offset: 64}, "outside its region"},
		{PoolOptions{SlotSize: 64, Slots: 1, Region: small, Offset: math.MaxInt &^ 63}, "outside its region"},
		{PoolOptions{SlotSize: 64, Slots: 1, Region: small, Offset: 32}, "multiple of Align"},
		{PoolOptions{SlotSize: 64, Slots: 1, Region: small, Offset: -64}, "Offset is -64"},
		{PoolOptions{SlotSize: 64, Slots: 1, Offset: 64}, "no Region"},
		{PoolOptions{SlotSize: 1, Slots: 1, Memory: Options{Kind: Device}}, "GPU runtime"},
	} {
		if p, err := NewPool(c.o); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v: %v, %v; expected %q", c.o, p, err, c.text)
		}
	}
	if small.Leases() != 0 {
		t.Error("a refused pool kept its lease")
	}
	p := newPool(t, PoolOptions{SlotSize: 64, Slots: sys.PageSize / 64, Region: small})
	if p.Region() != small || p.Slots() != sys.PageSize/64 || p.SlotSize() != 64 || p.Name() != "pool" {
		t.Error("not as asked for")
	}
}

// Pools that divide of one region have their slots in these parts.
func TestPoolsOfOneRegion(t *testing.T) {
	r := allocate(t, Options{Name: "shared", Size: 4 * sys.PageSize})
	a := newPool(t, PoolOptions{SlotSize: 2000, Align: 2048, Slots: 2, Region: r})
	b := newPool(t, PoolOptions{SlotSize: 64, Slots: 3, Region: r, Offset: 4096})
	if a.Stride() != 2048 || a.Span() != (Span{r, 0, 4096}) || b.Stride() != 64 || b.Span() != (Span{r, 4096, 192}) {
		t.Errorf("%d %+v, %d %+v", a.Stride(), a.Span(), b.Stride(), b.Span())
	}
	seen := map[uint64]bool{}
	for _, p := range []*Pool{a, b} {
		for range p.Slots() {
			s, err := p.Get()
			if err != nil {
				t.Fatal(err)
			}
			off := p.Offset(s.Handle())
			if s.Span() != (Span{r, off, uint64(p.SlotSize())}) || off < p.Span().Off ||
				off-p.Span().Off >= p.Span().Len || seen[off] {
				t.Errorf("a slot of %d bytes at %d", s.Span().Len, off)
			}
			seen[off] = true
			clear(s.Bytes())
			defer s.Release()
		}
	}
}

func TestPoolHandsOutEverySlotOnce(t *testing.T) {
	p := newPool(t, PoolOptions{Name: "once", SlotSize: 100, Slots: 37, Align: 128})
	seen := map[int]bool{}
	var out []Slot
	for range 37 {
		s := must[Slot](t)(p.Get())
		b := s.Bytes()
		if seen[s.Index()] || len(b) != 100 || s.Span().Off != uint64(s.Index())*128 || sys.Address(b)%128 != 0 {
			t.Fatalf("slot %d: seen %v, %d bytes at %d", s.Index(), seen[s.Index()], len(b), s.Span().Off)
		}
		seen[s.Index()] = true
		out = append(out, s)
	}
	if _, err := p.Get(); err != ErrExhausted {
		t.Errorf("slot 38 of 37: %v", err)
	}
	c := p.Cache()
	if _, err := c.Get(); err != ErrExhausted {
		t.Errorf("slot 38 of 37, from a cache: %v", err)
	}
	if st := p.Stats(); st.InUse != 37 || st.Exhausted != 2 || st.Gets != 37 || st.Puts != 0 {
		t.Errorf("%+v", st)
	}
	if ls := LeakReport(); !strings.Contains(ls.String(), `slot of "once"`) {
		t.Errorf("leak report:\n%s", ls)
	}
	for _, s := range out {
		if err := s.Release(); err != nil {
			t.Error(err)
		}
	}
	c.Close()
	if st := p.Stats(); st.InUse != 0 || st.Puts != 37 {
		t.Errorf("%+v", st)
	}
}

func TestBadHandles(t *testing.T) {
	p, q := newPool(t, PoolOptions{Name: "p", SlotSize: 8, Slots: 4}),
		newPool(t, PoolOptions{Name: "q", SlotSize: 8, Slots: 4})
	c := p.Cache()
	defer c.Close()
	refused := 0
	check := func(what string, err error, want error) {
		t.Helper()
		var e *slotError
		if !errors.Is(err, want) || !errors.As(err, &e) {
			t.Errorf("%s: %v, expected %v", what, err, want)
		}
		if e != nil && want == ErrReleased && invariants.Enabled != strings.Contains(e.Stack, "TestBadHandles") {
			t.Errorf("%s: stack of the first release %q", what, e.Stack)
		}
		refused++
		if st := p.Stats(); st.Rejected != uint64(refused) {
			t.Errorf("%s: %d rejected, expected %d", what, st.Rejected, refused)
		}
	}
	s := must[Slot](t)(c.Get())
	if s.Check() != nil || len(s.Bytes()) != 8 {
		t.Fatal("a good handle is refused")
	}
	if err := c.Put(s); err != nil {
		t.Fatal(err)
	}
	if s.Check() != ErrReleased || s.Bytes() != nil {
		t.Error("use after release was not found")
	}
	check("double put in a cache", c.Put(s), ErrReleased)
	check("double put in the pool", p.Put(s), ErrReleased)
	again := must[Slot](t)(c.Get()) // the same slot, another generation
	if again.Index() != s.Index() {
		t.Fatalf("slot %d instead of %d: the test needs the same one", again.Index(), s.Index())
	}
	check("stale handle of a slot that is out again", s.Release(), ErrReleased)
	if again.Check() != nil {
		t.Error("a stale release ended the new use")
	}
	if err := p.Put(again); err != nil {
		t.Error(err)
	}
	foreign := must[Slot](t)(q.Get())
	check("foreign slot", p.Put(foreign), ErrForeign)
	check("foreign slot in a cache", c.Put(foreign), ErrForeign)
	check("zero slot", p.Put(Slot{}), ErrForeign)
	if err := foreign.Release(); err != nil {
		t.Error(err)
	}
	if err := (Slot{}).Release(); !errors.Is(err, ErrForeign) || (Slot{}).Check() != ErrForeign ||
		(Slot{}).Bytes() != nil {
		t.Errorf("zero slot: %v", err)
	}
}

// TestGenerationWraps drives a slot past the end of its generation counter.
func TestGenerationWraps(t *testing.T) {
	p := newPool(t, PoolOptions{SlotSize: 8, Slots: 1})
	p.meta[0].word.Store((closing - 2) << 32)
	for range 3 {
		s := must[Slot](t)(p.Get())
		if s.Check() != nil {
			t.Fatalf("generation %#x is refused", s.gen)
		}
		if err := p.Put(s); err != nil {
			t.Fatal(err)
		}
		if err := p.Put(s); !errors.Is(err, ErrReleased) {
			t.Fatalf("generation %#x: second release: %v", s.gen, err)
		}
	}
}

// TestListHeadNeverRepeats: a pop that was overtaken compares the head with what it read. If the
// same slot is on top again by then, with others below it, only the count of changes can tell.
func TestListHeadNeverRepeats(t *testing.T) {
	p := newPool(t, PoolOptions{SlotSize: 8, Slots: 4})
	seen := map[uint64]bool{p.head.Load(): true}
	for range 1000 {
		s := must[Slot](t)(p.Get())
		for _, what := range []string{"get", "put"} {
			if what == "put" {
				p.Put(s)
			}
			if h := p.head.Load(); seen[h] {
				t.Fatalf("head %#x repeats after %s", h, what)
			} else {
				seen[h] = true
			}
		}
	}
}

func TestPoolCloseWithSlotsOut(t *testing.T) {
	p := must[*Pool](t)(NewPool(PoolOptions{Name: "held", SlotSize: 8, Slots: 10}))
	c := p.Cache()
	a, b := must[Slot](t)(c.Get()), must[Slot](t)(p.Get())
	err := p.Close()
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "2 of 10 slots out") {
		t.Fatalf("close: %v", err)
	}
	if invariants.Enabled && strings.Count(err.Error(), "TestPoolCloseWithSlotsOut") != 2 {
		t.Errorf("no stacks of the two holders in %v", err)
	}
	if err := p.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	if _, err := c.Get(); err != ErrPoolClosed { // the cache has free slots, but none may leave it
		t.Errorf("get from a cache after close: %v", err)
	}
	if _, err := p.Get(); err != ErrPoolClosed {
		t.Errorf("get after close: %v", err)
	}
	a.Bytes()[0] = 1 // still mapped
	if err := c.Put(a); err != nil {
		t.Error(err)
	}
	if err := c.Put(a); !errors.Is(err, ErrReleased) {
		t.Errorf("double release after close: %v", err)
	}
	if isUnmapped(p.Region()) {
		t.Fatal("unmapped with a slot out")
	}
	if err := b.Release(); err != nil {
		t.Error(err)
	}
	if !isUnmapped(p.Region()) {
		t.Error("still mapped after the last slot came back")
	}
	c.Close()
	if strings.Contains(LeakReport().String(), "held") {
		t.Error("in the leak report after the end")
	}
}

// TestPoolModel compares pool and caches with a set, step by step.
func TestPoolModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.IntRange(1, 40).Draw(t, "slots")
		p, err := NewPool(PoolOptions{SlotSize: 16, Slots: slots, CacheSlots: rapid.IntRange(1, 9).Draw(t, "cache")})
		if err != nil {
			t.Fatal(err)
		}
		caches := []*Cache{p.Cache(), p.Cache(), p.Cache()}
		out := map[int]Slot{}
		var past []Slot
		where := rapid.IntRange(-1, len(caches)-1)
		t.Repeat(map[string]func(*rapid.T){
			"get": func(t *rapid.T) {
				var s Slot
				var err error
				if w := where.Draw(t, "from"); w < 0 {
					s, err = p.Get()
				} else {
					s, err = caches[w].Get()
				}
				if err == ErrExhausted {
					kept := 0
					for _, c := range caches {
						kept += len(c.free)
					}
					if len(out)+kept != slots { // what others keep cannot be had, everything else must
						t.Fatalf("exhausted with %d out and %d in caches of %d", len(out), kept, slots)
					}
					return
				}
				if _, dup := out[s.Index()]; dup || err != nil {
					t.Fatalf("slot %d: out already %v, %v", s.Index(), dup, err)
				}
				out[s.Index()] = s
			},
			"put": func(t *rapid.T) {
				for i, s := range out {
					if w := where.Draw(t, "to"); w < 0 {
						err = s.Release()
					} else {
						err = caches[w].Put(s)
					}
					if err != nil {
						t.Fatal(err)
					}
					delete(out, i)
					past = append(past, s)
					return
				}
			},
			"put again": func(t *rapid.T) {
				if len(past) > 0 {
					s := past[rapid.IntRange(0, len(past)-1).Draw(t, "which")]
					if err := p.Put(s); !errors.Is(err, ErrReleased) {
						t.Fatalf("stale slot %d: %v", s.Index(), err)
					}
				}
			},
			"flush": func(t *rapid.T) { caches[rapid.IntRange(0, 2).Draw(t, "which")].Flush() },
			"": func(t *rapid.T) {
				st := p.Stats()
				if st.InUse != len(out) || int(st.Gets-st.Puts) != len(out) {
					t.Fatalf("%+v with %d out", st, len(out))
				}
				for _, s := range out {
					if s.Check() != nil {
						t.Fatalf("slot %d is out and refused", s.Index())
					}
				}
			},
		})
		for _, s := range out {
			if err := s.Release(); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range caches {
			c.Close()
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestPoolStress has goroutines get, write, hand over and put slots, through caches and without: no
// slot is ever with two.
func TestPoolStress(t *testing.T) {
	const workers, slots = 4, 64
	rounds := 30000
	if invariants.Enabled {
		rounds = 3000
	}
	p := newPool(t, PoolOptions{SlotSize: 8, Slots: slots, CacheSlots: 8})
	var owner [slots]atomic.Int32
	handoff := make(chan Slot, 8)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			c := p.Cache()
			defer c.Close()
			rng := rand.New(rand.NewPCG(1, uint64(w)))
			var held []Slot
			put := func(s Slot) {
				if !owner[s.index].CompareAndSwap(1, 0) {
					t.Errorf("slot %d was not held", s.index)
				}
				var err error
				if rng.IntN(3) == 0 {
					err = p.Put(s)
				} else {
					err = c.Put(s)
				}
				if err != nil {
					t.Error(err)
				}
			}
			for range rounds {
				if len(held) < 6 && rng.IntN(2) == 0 {
					get := c.Get
					if rng.IntN(3) == 0 {
						get = p.Get
					}
					s, err := get()
					if err != nil {
						if err != ErrExhausted {
							t.Error(err)
						}
						continue
					}
					if !owner[s.index].CompareAndSwap(0, 1) {
						t.Errorf("slot %d is with two", s.index)
					}
					s.Bytes()[0]++ // the race detector watches
					held = append(held, s)
					continue
				}
				if len(held) > 0 {
					s := held[len(held)-1]
					held = held[:len(held)-1]
					select {
					case handoff <- s:
					default:
						put(s)
					}
				}
				select {
				case s := <-handoff:
					put(s)
				default:
				}
			}
			for _, s := range held {
				put(s)
			}
		})
	}
	wg.Wait()
	close(handoff)
	for s := range handoff {
		if err := p.Put(s); err != nil {
			t.Error(err)
		}
	}
	st := p.Stats()
	if st.InUse != 0 || st.Gets != st.Puts || st.Rejected != 0 || st.ListTries < st.ListFail {
		t.Errorf("%+v", st)
	}
	// Every slot can be had again: none was lost on the list.
	var all []Slot
	for range slots {
		all = append(all, must[Slot](t)(p.Get()))
	}
	for _, s := range all {
		p.Put(s)
	}
}

// TestConcurrentDoubleRelease has two goroutines release the same handles: exactly one of them may.
func TestConcurrentDoubleRelease(t *testing.T) {
	p := newPool(t, PoolOptions{SlotSize: 8, Slots: 16})
	for range 500 {
		var slots []Slot
		for range 16 {
			slots = append(slots, must[Slot](t)(p.Get()))
		}
		var wg sync.WaitGroup
		var good atomic.Int32
		for range 2 {
			wg.Go(func() {
				for _, s := range slots {
					if err := s.Release(); err == nil {
						good.Add(1)
					} else if !errors.Is(err, ErrReleased) {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if good.Load() != 16 {
			t.Fatalf("%d releases of 16 slots succeeded", good.Load())
		}
	}
}

// TestPoolCloseRace closes a pool while slots come and go: the region is unmapped once all are
// back, and not before.
func TestPoolCloseRace(t *testing.T) {
	for range 100 {
		p := must[*Pool](t)(NewPool(PoolOptions{SlotSize: 64, Slots: 32, CacheSlots: 4}))
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				c := p.Cache()
				defer c.Close()
				for {
					s, err := c.Get()
					if err == ErrExhausted {
						continue
					}
					if err != nil {
						return
					}
					s.Span().Bytes()[0] = 1 // faults if it is unmapped
					if err := c.Put(s); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Go(func() {
			if err := p.Close(); err != nil && !errors.Is(err, ErrInUse) {
				t.Error(err)
			}
		})
		wg.Wait()
		if !isUnmapped(p.Region()) {
			t.Fatal("mapped after the last slot came back")
		}
	}
}
