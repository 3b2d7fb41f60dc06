package rawqp

import (
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ibvmem/cardtest"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// BenchmarkFrames sends bursts of 32 frames over the stand-in and takes them, without and with
// times of completions, which are polled one by one, and with payload in memory of a card that
// takes a flush. The stand-ins' own work is in it.
func BenchmarkFrames(b *testing.B) {
	for _, kind := range []string{"plain", "times", "card"} {
		b.Run(kind, func(b *testing.B) {
			spec := engine.RxSpec{Depth: 48, HardwareTime: kind == "times"}
			card := cardtest.New(b, cardtest.Options{DMABuf: true, Flush: true, Page: 4096})
			body := card.Pool("payload", 64, 2048)
			e := newEnds(b, "", Options{}, engine.PortSpec{})
			if kind == "card" {
				spec.Pools, spec.SplitAt = []*mem.Pool{pool(b, 128, 64), body}, cut
			}
			q := e.rx(spec)
			in := burst.New(64)
			f := udp(b, 5, 100)
			b.ReportAllocs()
			for b.Loop() {
				n, err := e.tx.Alloc(e.out, 32, len(f))
				if n != 32 {
					b.Fatal(n, err)
				}
				for i := range n {
					copy(e.out.Bytes(i, 0), f)
				}
				if err := e.tx.Send(e.out); err != nil {
					b.Fatal(err)
				}
				for got := 0; got < 32; {
					n, err := q.TryRecv(in)
					if err != nil {
						b.Fatal(err)
					}
					got += n
					in.Release()
				}
			}
		})
	}
}
