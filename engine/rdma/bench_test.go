package rdma

import (
	"fmt"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// BenchmarkBurst is one burst there and its receipt, on the fake, which copies the bytes: what this
// package costs on top of a device.
func BenchmarkBurst(b *testing.B) {
	for _, n := range []int{1, 64} {
		for _, size := range []int{64, 8192} {
			b.Run(fmt.Sprintf("packets=%d/bytes=%d", n, size), func(b *testing.B) {
				f := onFake(b, "mode post")
				s, c, _ := f.pair(b, Options{}, Options{})
				in := rx(b, s, engine.RxSpec{Depth: 256, Pools: []*mem.Pool{pool(b, 8192, 1024)}})
				out := tx(b, c, engine.TxSpec{Depth: 256, Pools: []*mem.Pool{pool(b, 8192, 1024)}})
				put(b, out, 0, "first")
				got(b, in, 1)
				x, y := burst.New(n), burst.New(64)
				b.SetBytes(int64(n * size))
				b.ReportAllocs()
				calls := f.count(b, "ibv_post_send")
				b.ResetTimer()
				for b.Loop() {
					for {
						if k, _ := out.Alloc(x, n, size); k == n {
							break
						}
						x.Release()
					}
					if err := out.Send(x); err != nil {
						b.Fatal(err)
					}
					for k := 0; k < n; k += y.Len() {
						y.Release()
						if _, err := in.TryRecv(y); err != nil {
							b.Fatal(err)
						}
					}
					y.Release()
				}
				b.StopTimer()
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/packet")
				b.ReportMetric(float64(f.count(b, "ibv_post_send")-calls)/float64(b.N*n), "posts/packet")
			})
		}
	}
}
