//go:build dpdk

package dpdk

import (
	"fmt"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// BenchmarkNull receives packets of net_null into slots, and gives them back or sends them: what
// the driver and the queues cost for each packet.
func BenchmarkNull(b *testing.B) {
	for _, op := range []string{"receive", "forward"} {
		for _, size := range []int{32, 64} {
			b.Run(fmt.Sprintf("%s/burst=%d", op, size), func(b *testing.B) {
				p := openPort(b, engine.PortSpec{Address: fmt.Sprintf("dpdk://net_null%d", names.Add(1)), RxQueues: 1,
					TxQueues: 1}, Options{})
				pool, err := mem.NewPool(mem.PoolOptions{SlotSize: 2048, Slots: 2048})
				if err != nil {
					b.Fatal(err)
				}
				rx, err := p.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{pool}})
				if err != nil {
					b.Fatal(err)
				}
				tx, err := p.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{pool}})
				if err != nil {
					b.Fatal(err)
				}
				in := burst.New(size)
				b.ReportAllocs()
				packets := 0
				for b.Loop() {
					n, err := rx.TryRecv(in)
					if err != nil {
						b.Fatal(err)
					}
					packets += n
					if op == "receive" {
						in.Release()
					} else if _, err := tx.Forward(in); err != nil {
						b.Fatal(err)
					} else if err := tx.Send(in); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(packets), "ns/packet")
			})
		}
	}
}
