package ibverbs

import (
	"testing"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/engine"
)

// BenchmarkFrames sends bursts of 32 frames over the stand-in and takes them, without and with times of completions, which are polled one
// by one. The stand-in's own work is in it.
func BenchmarkFrames(b *testing.B) {
	for _, times := range []bool{false, true} {
		b.Run(map[bool]string{false: "plain", true: "times"}[times], func(b *testing.B) {
			e := newEnds(b, "", Options{}, engine.PortSpec{})
			q := e.rx(engine.RxSpec{Depth: 48, HardwareTime: times})
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
