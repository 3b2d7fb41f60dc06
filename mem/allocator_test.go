package mem

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/internal/sys"
	"pgregory.net/rapid"
)

const kib, mib = 1 << 10, 1 << 20

// newAllocator makes one with lazy memory, so that large budgets cost nothing here.
func newAllocator(t testing.TB, o AllocatorOptions) *Allocator {
	t.Helper()
	o.Memory.Lazy = true
	a := must[*Allocator](t)(NewAllocator(o))
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if s := a.Stats(); s.Reserved != 0 || s.InUse != 0 {
			t.Errorf("after close: %+v", s)
		}
	})
	return a
}

func TestAllocatorOptions(t *testing.T) {
	avail, err := sys.MemAvailable()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		o    AllocatorOptions
		is   error
		text string
	}{
		{AllocatorOptions{}, nil, "Budget is 0"},
		{AllocatorOptions{Budget: 1000}, nil, "the smallest region takes 65536"},
		{AllocatorOptions{Budget: 2 * avail}, ErrBudget, "available"},
		{AllocatorOptions{Budget: 1 << 20, Classes: []uint64{1000}}, nil, "multiple of the page size"},
		{AllocatorOptions{Budget: 1 << 20, Classes: []uint64{0}}, nil, "multiple of the page size"},
		{AllocatorOptions{Budget: 1 << 20, Classes: []uint64{8192, 4096}}, nil, "ascending"},
		{AllocatorOptions{Budget: 1 << 30, Classes: []uint64{4096}, Dedicated: true,
			Memory: Options{Kind: Huge, AllowFallback: true}}, nil, "regions of their own"},
		{AllocatorOptions{Budget: 1 << 45, Memory: Options{Kind: Huge}}, nil, "huge pages"},
	} {
		a, err := NewAllocator(c.o)
		if err == nil {
			a.Close()
			t.Errorf("%+v: no error", c.o)
		} else if !strings.Contains(err.Error(), c.text) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%+v: %v", c.o, err)
		}
	}
}

func TestSizeClasses(t *testing.T) {
	a := newAllocator(t, AllocatorOptions{Budget: 1 << 30})
	for _, c := range []struct{ size, block uint64 }{
		{1, 64 * kib}, {64 * kib, 64 * kib}, {64*kib + 1, mib}, {mib, mib}, {mib + 1, 16 * mib},
		{16*mib + 1, 256 * mib}, {256 * mib, 256 * mib}, {256*mib + 1, 256*mib + uint64(sys.PageSize)}, {300 * mib, 300 * mib},
	} {
		b := must[Block](t)(a.Alloc(c.size))
		w := b.Whole()
		if w.Len != c.block || uint64(len(b.Bytes())) != c.size || b.Span().Off != w.Off || !w.Valid() ||
			w.Off%c.block != 0 && c.block <= 256*mib {
			t.Errorf("%d bytes: block of %d at %d, %d usable; expected a block of %d", c.size, w.Len, w.Off,
				len(b.Bytes()), c.block)
		}
		b.Bytes()[c.size-1] = 1
		if err := a.Free(b); err != nil {
			t.Error(err)
		}
	}
	for _, size := range []uint64{0, math.MaxUint64, 1<<30 + 1} {
		if _, err := a.Alloc(size); err == nil || size > 0 && !errors.Is(err, ErrBudget) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	if (Block{}).Bytes() != nil || (Block{}).Whole().Valid() {
		t.Error("the zero block has bytes")
	}
}

func TestFreeOnce(t *testing.T) {
	a, other := newAllocator(t, AllocatorOptions{Budget: mib}), newAllocator(t, AllocatorOptions{Budget: mib})
	b := must[Block](t)(a.Alloc(100))
	if err := other.Free(b); !errors.Is(err, ErrFreed) {
		t.Errorf("free of a foreign block: %v", err)
	}
	if err := a.Free(b); err != nil {
		t.Fatal(err)
	}
	again := must[Block](t)(a.Alloc(200))
	if again.Whole() != b.Whole() {
		t.Fatal("the test needs the same block again")
	}
	for _, stale := range []Block{b, {}} {
		if err := a.Free(stale); !errors.Is(err, ErrFreed) {
			t.Errorf("free of %+v: %v", stale, err)
		}
	}
	if s := a.Stats(); s.InUse != 64*kib || s.Requested != 200 || s.Rejected != 2 || s.Hits != 1 || s.Grows != 1 {
		t.Errorf("%+v", s)
	}
	if err := a.Free(again); err != nil {
		t.Error(err)
	}
}

// TestBudgetIsReusedAcrossClasses fills the budget with one class after the other: idle memory of
// one serves the next.
func TestBudgetIsReusedAcrossClasses(t *testing.T) {
	a := newAllocator(t, AllocatorOptions{Budget: 32 * mib})
	for round, size := range []uint64{64 * kib, 16 * mib, mib, 20 * mib, 64 * kib} {
		var out []Block
		for {
			b, err := a.Alloc(size)
			if errors.Is(err, ErrBudget) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, b)
			if s := a.Stats(); s.Reserved > s.Budget {
				t.Fatalf("%d of %d bytes reserved", s.Reserved, s.Budget)
			}
		}
		if want := int(32 * mib / max(size, 1)); len(out) != want {
			t.Errorf("round %d: %d blocks of %d bytes, expected %d", round, len(out), size, want)
		}
		for _, b := range out {
			a.Free(b)
		}
	}
	if s := a.Stats(); s.HighWater != 32*mib || s.ReservedHighWater != 32*mib || s.Reclaimed == 0 || s.Failed != 5 {
		t.Errorf("%+v", s)
	}
}

// TestLargerBlockRatherThanNone: the budget is taken by a slab of a larger class with free blocks
// and one in use.
func TestLargerBlockRatherThanNone(t *testing.T) {
	a := newAllocator(t, AllocatorOptions{Budget: 16 * mib})
	big := must[Block](t)(a.Alloc(mib))
	small := must[Block](t)(a.Alloc(1000))
	if small.Whole().Len != mib || len(small.Bytes()) != 1000 {
		t.Errorf("block of %d bytes", small.Whole().Len)
	}
	a.Free(big)
	a.Free(small)
}

func TestDedicatedBlocks(t *testing.T) {
	a := newAllocator(t, AllocatorOptions{Budget: 64 * mib, Dedicated: true})
	b, c := must[Block](t)(a.Alloc(1000)), must[Block](t)(a.Alloc(1000))
	for _, x := range []Block{b, c} {
		if w := x.Whole(); w != w.Region.All() || w.Region.FD() < 0 || w.Len != 64*kib {
			t.Errorf("block %+v is not a whole memfd of its class", w)
		}
	}
	if b.Whole().Region == c.Whole().Region {
		t.Error("two dedicated blocks share a region")
	}
	r := b.Whole().Region
	a.Free(b)
	d := must[Block](t)(a.Alloc(5))
	if d.Whole().Region != r {
		t.Error("a freed dedicated block was not reused")
	}
	a.Free(c)
	// Retired memory is never handed out again, and holds the budget until the last lease on it
	// ends.
	l := must[Lease](t)(r.Lease())
	before := a.Stats().Reserved
	if err := a.Retire(d); err != nil {
		t.Fatal(err)
	}
	if !r.Closed() || isUnmapped(r) || a.Stats().Reserved != before {
		t.Errorf("closed %v, unmapped %v, reserved %d, before %d", r.Closed(), isUnmapped(r), a.Stats().Reserved,
			before)
	}
	l.Release()
	if !isUnmapped(r) || a.Stats().Reserved != before-64*kib {
		t.Errorf("unmapped %v, reserved %d, before %d", isUnmapped(r), a.Stats().Reserved, before)
	}
	if err := a.Retire(d); !errors.Is(err, ErrFreed) {
		t.Errorf("second retire: %v", err)
	}
}

func TestRetireInASharedSlab(t *testing.T) {
	a := newAllocator(t, AllocatorOptions{Budget: 64 * mib})
	b, c := must[Block](t)(a.Alloc(1)), must[Block](t)(a.Alloc(1))
	r := b.Whole().Region
	a.Retire(b)
	d := must[Block](t)(a.Alloc(1))
	if d.Whole().Region == r {
		t.Error("a retired slab serves again")
	}
	if r.Closed() {
		t.Error("a slab was closed under a block")
	}
	a.Free(c)
	if !isUnmapped(r) {
		t.Error("a retired slab outlives its last block")
	}
	a.Free(d)
}

func TestLargeRegionsAreReused(t *testing.T) {
	a := newAllocator(t, AllocatorOptions{Budget: 2 << 30})
	b := must[Block](t)(a.Alloc(400 * mib))
	c := must[Block](t)(a.Alloc(300 * mib))
	rb, rc := b.Whole().Region, c.Whole().Region
	a.Free(b)
	a.Free(c)
	if x := must[Block](t)(a.Alloc(290 * mib)); x.Whole().Region != rc || x.Span().Len != 290*mib {
		t.Error("the tightest region was not taken")
	} else if y := must[Block](t)(a.Alloc(290 * mib)); y.Whole().Region == rb {
		t.Error("a region was taken that wastes more than a quarter")
	} else if z := must[Block](t)(a.Alloc(390 * mib)); z.Whole().Region != rb {
		t.Error("a region that fits was not reused")
	} else {
		a.Free(x)
		a.Free(y)
		a.Free(z)
	}
}

// TestRegionInsteadOfBlock asks for 20 MiB of a budget of 32, where the block would have 256 MiB.
func TestRegionInsteadOfBlock(t *testing.T) {
	a := newAllocator(t, AllocatorOptions{Budget: 32 * mib})
	for range 3 {
		b := must[Block](t)(a.Alloc(20 * mib))
		if b.Whole().Len != 20*mib {
			t.Errorf("block of %d bytes", b.Whole().Len)
		}
		a.Free(b)
	}
	if s := a.Stats(); s.Hits != 2 || s.Grows != 1 {
		t.Errorf("not reused: %+v", s)
	}
}

func TestAllocatorCloseWithBlocksOut(t *testing.T) {
	a := must[*Allocator](t)(NewAllocator(AllocatorOptions{Name: "held", Budget: 64 * mib,
		Memory: Options{Lazy: true}}))
	b, idle := must[Block](t)(a.Alloc(5)), must[Block](t)(a.Alloc(2*mib))
	a.Free(idle)
	err := a.Close()
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "1 blocks out (5 bytes)") || invariants.Enabled &&
		!strings.Contains(err.Error(), "TestAllocatorCloseWithBlocksOut") {
		t.Errorf("close: %v", err)
	}
	if !isUnmapped(idle.Whole().Region) {
		t.Error("free memory outlives Close")
	}
	if _, err := a.Alloc(1); !errors.Is(err, ErrAllocatorClosed) {
		t.Errorf("alloc after close: %v", err)
	}
	if !strings.Contains(LeakReport().String(), `1 block of "held", 5 bytes`) {
		t.Errorf("leak report:\n%s", LeakReport())
	}
	b.Bytes()[0] = 1
	if err := a.Free(b); err != nil || !isUnmapped(b.Whole().Region) {
		t.Errorf("free after close: %v", err)
	}
	if err := a.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	if strings.Contains(LeakReport().String(), "held") {
		t.Error("in the leak report after the end")
	}
}

func TestAllocatorPassesErrorsOn(t *testing.T) {
	a := newAllocator(t, AllocatorOptions{Budget: mib, Memory: Options{Kind: HostPinned}})
	if _, err := a.Alloc(1); !errors.Is(err, ErrUnavailable) {
		t.Errorf("%v", err)
	}
	if s := a.Stats(); s.Reserved != 0 || s.Failed != 1 {
		t.Errorf("%+v", s)
	}
}

// TestAllocatorModel compares with a model: blocks never overlap, bytes stay, budget and statistics
// are right, and the fragmentation is what a plain recount of the layout says.
func TestAllocatorModel(t *testing.T) {
	classes := []uint64{4 * kib, 16 * kib, 64 * kib}
	rapid.Check(t, func(t *rapid.T) {
		dedicated := rapid.Bool().Draw(t, "dedicated")
		budget := uint64(rapid.IntRange(16, 200).Draw(t, "pages")) * 4 * kib
		a, err := NewAllocator(AllocatorOptions{Budget: budget, Classes: classes, Dedicated: dedicated,
			Memory: Options{Lazy: true}})
		if err != nil {
			t.Fatal(err)
		}
		type held struct {
			b    Block
			mark byte
		}
		var out []held
		var mark byte
		take := func(t *rapid.T) held {
			i := rapid.IntRange(0, len(out)-1).Draw(t, "which")
			h := out[i]
			out = append(out[:i], out[i+1:]...)
			for _, v := range h.b.Bytes() {
				if v != h.mark {
					t.Fatalf("a byte of block %+v changed from %d to %d", h.b.Whole(), h.mark, v)
				}
			}
			return h
		}
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				size := uint64(rapid.IntRange(1, 100*kib).Draw(t, "size"))
				before := a.Stats()
				b, err := a.Alloc(size)
				if err != nil {
					if !errors.Is(err, ErrBudget) {
						t.Fatal(err)
					}
					// Refused only if nothing that is free would do: the recount must agree for the
					// largest class.
					if size <= 64*kib && size > 16*kib && before.Free-before.Unusable >= 64*kib {
						t.Fatalf("%d bytes refused with %d usable: %+v", size, before.Free-before.Unusable, before)
					}
					return
				}
				mark++
				for i := range b.Bytes() {
					b.Bytes()[i] = mark
				}
				if uint64(len(b.Bytes())) != size || b.Whole().Len < size || dedicated &&
					b.Whole() != b.Whole().Region.All() {
					t.Fatalf("%d bytes: %+v", size, b.Whole())
				}
				out = append(out, held{b, mark})
			},
			"free": func(t *rapid.T) {
				if len(out) > 0 {
					b := take(t).b
					if err := a.Free(b); err != nil {
						t.Fatal(err)
					}
					if err := a.Free(b); !errors.Is(err, ErrFreed) {
						t.Fatalf("second free: %v", err)
					}
				}
			},
			"retire": func(t *rapid.T) {
				if len(out) > 0 {
					if err := a.Retire(take(t).b); err != nil {
						t.Fatal(err)
					}
				}
			},
			"": func(t *rapid.T) {
				s := a.Stats()
				var inUse, requested, mapped uint64
				regions := map[*Region]uint64{} // bytes in use
				for _, h := range out {
					inUse += h.b.Whole().Len
					requested += h.b.Span().Len
					regions[h.b.Whole().Region] += h.b.Whole().Len
				}
				for _, r := range live.list() {
					if r.name == "allocator" {
						mapped += r.Len()
					}
				}
				if s.InUse != inUse || s.Requested != requested || s.Reserved != mapped || mapped > budget ||
					int(s.Allocs-s.Frees) != len(out) {
					t.Fatalf("%+v, but %d in use, %d requested, %d mapped", s, inUse, requested, mapped)
				}
				// Recount what is usable for 64 KiB blocks: regions without a block in use count as
				// a whole.
				busy := uint64(0)
				usable := uint64(0)
				for r, used := range regions {
					busy += r.Len()
					for _, h := range out {
						if h.b.slab.region == r && h.b.Whole().Len == 64*kib && !h.b.slab.retired {
							usable += (r.Len() - used) / (64 * kib) * (64 * kib)
							break
						}
					}
				}
				usable += (budget - busy) / (64 * kib) * (64 * kib)
				if s.Free != budget-inUse || s.Unusable != s.Free-usable {
					t.Fatalf("free %d, unusable %d; the recount says %d and %d", s.Free, s.Unusable, budget-inUse,
						budget-inUse-usable)
				}
			},
		})
		for len(out) > 0 {
			if err := a.Free(out[0].b); err != nil {
				t.Fatal(err)
			}
			out = out[1:]
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestAllocatorStress(t *testing.T) {
	a := newAllocator(t, AllocatorOptions{Budget: 4 * mib, Classes: []uint64{4 * kib, 64 * kib, mib}})
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(2, uint64(w)))
			var out []Block
			give := func() {
				b := out[0]
				out = out[1:]
				if v := b.Bytes(); v[0] != byte(w) || v[len(v)-1] != byte(w) {
					t.Errorf("a block of goroutine %d was written by another", w)
				}
				free := a.Free
				if rng.IntN(10) == 0 {
					free = a.Retire
				}
				if err := free(b); err != nil {
					t.Error(err)
				}
			}
			for range 3000 {
				b, err := a.Alloc(uint64(rng.IntN(2*mib)>>rng.IntN(12)) + 1)
				if err != nil {
					if !errors.Is(err, ErrBudget) {
						t.Error(err)
					}
					if len(out) > 0 {
						give()
					}
					continue
				}
				b.Bytes()[0], b.Bytes()[b.Span().Len-1] = byte(w), byte(w)
				if out = append(out, b); len(out) > 5 {
					give()
				}
			}
			for len(out) > 0 {
				give()
			}
		})
	}
	wg.Wait()
	if s := a.Stats(); s.InUse != 0 || s.Requested != 0 || s.ReservedHighWater > s.Budget || s.Rejected != 0 {
		t.Errorf("%+v", s)
	}
}

// TestWaitForGrowth: two goroutines want blocks of one class and the budget is enough for one slab,
// which serves both.
func TestWaitForGrowth(t *testing.T) {
	for range 50 {
		a := must[*Allocator](t)(NewAllocator(AllocatorOptions{Budget: 128 * kib, Memory: Options{Lazy: true}}))
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				b, err := a.Alloc(1)
				if err != nil {
					t.Error(err)
					return
				}
				defer a.Free(b)
			})
		}
		wg.Wait()
		a.Close()
	}
}
