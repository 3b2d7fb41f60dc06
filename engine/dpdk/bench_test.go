//go:build dpdk

package dpdk

import (
	"fmt"
	"testing"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
)

// BenchmarkNull receives packets of net_null into slots and gives them back: what the driver and the queue cost for each packet.
func BenchmarkNull(b *testing.B) {
	for _, size := range []int{32, 64} {
		b.Run(fmt.Sprintf("burst=%d", size), func(b *testing.B) {
			p := openPort(b, engine.PortSpec{Address: fmt.Sprintf("dpdk://net_null%d", names.Add(1)), RxQueues: 1}, Options{})
			pool, err := mem.NewPool(mem.PoolOptions{SlotSize: 2048, Slots: 4096})
			if err != nil {
				b.Fatal(err)
			}
			q, err := p.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{pool}})
			if err != nil {
				b.Fatal(err)
			}
			in := burst.New(size)
			b.ReportAllocs()
			packets := 0
			for b.Loop() {
				n, err := q.TryRecv(in)
				if err != nil {
					b.Fatal(err)
				}
				packets += n
				in.Release()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(packets), "ns/packet")
		})
	}
}
