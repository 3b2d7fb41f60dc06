package mem

import (
	"slices"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

func BenchmarkLease(b *testing.B) {
	r := allocate(b, Options{Size: 1})
	b.ReportAllocs()
	for b.Loop() {
		l, _ := r.Lease()
		l.Release()
	}
}

func benchPool(b *testing.B) *Pool {
	return newPool(b, PoolOptions{SlotSize: 2048, Slots: 1 << 14, Memory: Options{Lazy: true}})
}

// BenchmarkCacheGetPut is one get and one put through a goroutine's own cache.
func BenchmarkCacheGetPut(b *testing.B) {
	c := benchPool(b).Cache()
	defer c.Close()
	b.ReportAllocs()
	for b.Loop() {
		s, err := c.Get()
		if err != nil {
			b.Fatal(err)
		}
		c.Put(s)
	}
}

// BenchmarkCacheBurst gets 256 slots and puts them back, which exchanges them with the shared list;
// per slot.
func BenchmarkCacheBurst(b *testing.B) {
	c := benchPool(b).Cache()
	defer c.Close()
	var s [256]Slot
	b.ReportAllocs()
	for n := 0; n < b.N; n += len(s) {
		for i := range s {
			s[i], _ = c.Get()
		}
		for i := range s {
			c.Put(s[i])
		}
	}
}

func BenchmarkCacheGetPutParallel(b *testing.B) {
	p := benchPool(b)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		c := p.Cache()
		defer c.Close()
		for pb.Next() {
			s, err := c.Get()
			if err != nil {
				b.Error(err)
				return
			}
			c.Put(s)
		}
	})
}

// BenchmarkPoolGetPutParallel goes to the shared list every time.
func BenchmarkPoolGetPutParallel(b *testing.B) {
	p := benchPool(b)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			s, err := p.Get()
			if err != nil {
				b.Error(err)
				return
			}
			p.Put(s)
		}
	})
	s := p.Stats()
	b.ReportMetric(float64(s.ListFail)/float64(s.ListTries)*100, "retry-%")
}

func benchAllocator(b *testing.B) *Allocator {
	a := newAllocator(b, AllocatorOptions{Budget: 1 << 30})
	var out []Block
	for range 64 {
		out = append(out, must[Block](b)(a.Alloc(mib)))
	}
	for _, x := range out {
		a.Free(x)
	}
	return a
}

// BenchmarkAllocWarm also reports the 99th percentile of Alloc alone.
func BenchmarkAllocWarm(b *testing.B) {
	a := benchAllocator(b)
	took := make([]time.Duration, 0, 1<<20)
	b.ReportAllocs()
	for b.Loop() {
		start := time.Now()
		x, err := a.Alloc(mib)
		if len(took) < cap(took) {
			took = append(took, time.Since(start))
		}
		if err != nil {
			b.Fatal(err)
		}
		a.Free(x)
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100]), "p99-ns")
}

func BenchmarkAllocWarmParallel(b *testing.B) {
	a := benchAllocator(b)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			x, err := a.Alloc(mib)
			if err != nil {
				b.Error(err)
				return
			}
			a.Free(x)
		}
	})
}

// BenchmarkAllocCold maps and populates a block of 1 MiB every time: what first touch costs.
func BenchmarkAllocCold(b *testing.B) {
	a := must[*Allocator](b)(NewAllocator(AllocatorOptions{Budget: mib, Dedicated: true}))
	defer a.Close()
	b.SetBytes(mib)
	b.ReportAllocs()
	for b.Loop() {
		x, err := a.Alloc(mib)
		if err != nil {
			b.Fatal(err)
		}
		a.Retire(x)
	}
}

func benchRegCache(b *testing.B, n int) (*RegCache, *Region) {
	c := newRegCache(b, RegCacheOptions{Registrar: Populate})
	r := allocate(b, Options{Size: 2 * n * sys.PageSize, Lazy: true})
	for i := range n { // every second page, so that each is a registration of its own
		must[Registration](b)(c.Get(pages(b, r, 2*i, 1), ReadAccess)).Release()
	}
	return c, r
}

// BenchmarkRegistrationHit finds one of 1000 registrations of a region, and releases it.
func BenchmarkRegistrationHit(b *testing.B) {
	c, r := benchRegCache(b, 1000)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		g, err := c.Get(Span{r, uint64(2 * (i * 7 % 1000) * sys.PageSize), 64}, ReadAccess)
		if err != nil {
			b.Fatal(err)
		}
		g.Release()
	}
	if s := c.Stats(); s.Misses != 1000 {
		b.Errorf("not only hits: %+v", s)
	}
}

func BenchmarkRegistrationHitParallel(b *testing.B) {
	c, r := benchRegCache(b, 1000)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			g, err := c.Get(Span{r, uint64(2 * (i * 7 % 1000) * sys.PageSize), 64}, ReadAccess)
			if err != nil {
				b.Error(err)
				return
			}
			g.Release()
		}
	})
}

// BenchmarkCopyGuarded against BenchmarkCopy is what the guard costs.
func BenchmarkCopyGuarded(b *testing.B) {
	dst, src := make([]byte, 64), make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		CopyGuarded(dst, src)
	}
}

func BenchmarkCopy(b *testing.B) {
	dst, src := make([]byte, 64), make([]byte, 64)
	for b.Loop() {
		copy(dst, src)
	}
}
