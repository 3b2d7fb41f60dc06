package mem

import (
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/sys"
)

// TestHotPathsDoNotAllocate counts heap allocations; builds with -tags invariants record stacks and
// so do allocate.
func TestHotPathsDoNotAllocate(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithInvariants, "recording stacks allocates")
	r := allocate(t, Options{Size: 64 * sys.PageSize})
	p := newPool(t, PoolOptions{SlotSize: 64, Slots: 256})
	c := p.Cache()
	defer c.Close()
	a := newAllocator(t, AllocatorOptions{Budget: 1 << 30})
	for _, size := range []uint64{1, mib, 300 * mib} {
		a.Free(must[Block](t)(a.Alloc(size))) // warm
	}
	regs := newRegCache(t, RegCacheOptions{Registrar: Populate})
	must[Registration](t)(regs.Get(r.All(), WriteAccess)).Release()
	dst, src := make([]byte, 512*kib), make([]byte, 512*kib)
	CopyGuarded(dst, src) // the first large copy measures which kernel is best
	var slots [100]Slot
	for name, f := range map[string]func(){
		"lease": func() {
			l, _ := r.Lease()
			l.Release()
		},
		"span": func() {
			s, _ := r.Span(5, 10)
			s, _ = s.Sub(1, 2)
			_ = s.Bytes()
		},
		"pool": func() {
			s, _ := p.Get()
			s.Release()
		},
		"cache, with refills": func() {
			for i := range slots {
				slots[i], _ = c.Get()
			}
			for _, s := range slots {
				c.Put(s)
			}
		},
		"alloc small": func() {
			b, _ := a.Alloc(1)
			a.Free(b)
		},
		"alloc large": func() {
			b, _ := a.Alloc(300 * mib)
			a.Free(b)
		},
		"registration hit": func() {
			g, _ := regs.Get(Span{r, 5000, 1}, ReadAccess)
			g.Handle()
			g.Release()
		},
		"guarded copy":       func() { CopyGuarded(dst[:100], src[:100]) },
		"guarded large copy": func() { CopyGuarded(dst, src) },
	} {
		if n := testing.AllocsPerRun(200, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	empty := newPool(t, PoolOptions{SlotSize: 64, Slots: 1})
	only := must[Slot](t)(empty.Get())
	if n := testing.AllocsPerRun(200, func() { empty.Get() }); n != 0 {
		t.Errorf("exhausted: %v allocations", n)
	}
	only.Release()
}
