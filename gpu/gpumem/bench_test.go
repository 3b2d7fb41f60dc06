package gpumem_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/mem"
)

// provider is one of the host's memory, as on a card.
func provider(t testing.TB, o gpumem.Options) *gpumem.Provider {
	t.Helper()
	rt := openHost(t)
	c := must[*gpu.Context](t)(rt.Devices()[0].Open())
	o.Opaque = true
	p := must[*gpumem.Provider](t)(gpumem.New(c, o))
	t.Cleanup(func() {
		for _, x := range []interface{ Close() error }{p, c, rt} {
			if err := x.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return p
}

func region(t testing.TB, k mem.Kind, size int, p mem.Provider) *mem.Region {
	t.Helper()
	r := must[*mem.Region](t)(mem.Alloc(mem.Options{Name: k.String(), Kind: k, Size: size, Provider: p}))
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// A slot of device memory, taken and given back: the target is below a microsecond, without an
// allocation.
func BenchmarkSlot(b *testing.B) {
	p := provider(b, gpumem.Options{})
	pool := must[*mem.Pool](b)(mem.NewPool(mem.PoolOptions{SlotSize: 4096, Slots: 1024,
		Memory: mem.Options{Kind: mem.Device, Provider: p}}))
	defer pool.Close()
	b.Run("pool", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s, err := pool.Get()
			if err == nil {
				err = s.Release()
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("cache", func(b *testing.B) {
		c := pool.Cache()
		defer c.Close()
		b.ReportAllocs()
		for b.Loop() {
			s, err := c.Get()
			if err == nil {
				err = c.Put(s)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}

// A copy to the device and the wait for it.
func BenchmarkStore(b *testing.B) {
	p := provider(b, gpumem.Options{})
	const most = 16 << 20
	x := region(b, mem.Device, most, p)
	for _, h := range []*mem.Region{region(b, mem.HostPinned, most, p), region(b, mem.Host, most, nil)} {
		for _, n := range []uint64{64, 64 << 10, most} {
			b.Run(fmt.Sprintf("%s/%d", h.Kind(), n), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(n))
				for b.Loop() {
					m, err := x.Mover().Store(0, mem.Span{Region: h, Len: n})
					if err == nil {
						err = m.Wait(context.Background())
					}
					if err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
