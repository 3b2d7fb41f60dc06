package reorder

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/mem/vec"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/tensor/convert"
)

// BenchmarkPlace is the placement of payloads, in turn with a copy of as many bytes as are written,
// from packets laid out alike: medians of rounds of 1024 packets.
func BenchmarkPlace(b *testing.B) {
	for _, size := range []int{1024, 4096, 8192} {
		for _, conv := range []*convert.Spec{nil, {From: convert.Format{Bits: 16, BigEndian: true}, To: tensor.F32},
			{From: convert.Format{Bits: 16, BigEndian: true}, To: tensor.F16},
			{From: convert.Format{Bits: 8}, To: tensor.F32}} {
			const n, per = 1024, 64
			out := size
			name := fmt.Sprint(size)
			if conv != nil {
				out = size * 8 / conv.From.Bits * conv.To.Bits() / 8
				name += fmt.Sprintf(" %v to %v", conv.From, conv.To)
			}
			in, err := mem.NewPool(mem.PoolOptions{Name: "in", SlotSize: size + 64, Slots: n})
			if err != nil {
				b.Fatal(err)
			}
			batches, err := mem.NewPool(mem.PoolOptions{Name: "out", SlotSize: per * out, Slots: 32})
			if err != nil {
				b.Fatal(err)
			}
			x := burst.New(n)
			src := burst.PoolSource(in)
			for range n {
				s, _ := in.Get()
				x.Builder().Add(src, burst.Segment{Handle: s.Handle(), Off: in.Offset(s.Handle()),
					Len: uint32(size + 64)})
			}
			c, err := newCollector(Plan{Flows: []uint32{0}, Sequence: Field{0, 32}, PerBatch: per, Offset: 64,
				Pool: batches, Convert: conv}, nil, nil)
			if err != nil {
				b.Fatal(err)
			}
			c.out = func(o *open) { c.cache.Put(o.slot); c.recycle(o) }
			dst, from := batches.Region().All().Bytes(), make([]byte, n*(out+64))
			seq, at := uint32(0), 0
			b.Run(name, func(b *testing.B) {
				var place, plain, ratio []float64
				for range b.N {
					for k := range n {
						binary.BigEndian.PutUint32(x.Bytes(k, 0), seq)
						seq++
					}
					begin := time.Now()
					for k := 0; k < n; k++ {
						if k += c.takeRun(x, k, n); k < n {
							c.take(x, k, 0)
						}
					}
					between := time.Now()
					for k := range n {
						vec.Copy(dst[at*out:(at+1)*out], from[k*(out+64)+64:][:out])
						at = (at + 1) % (32 * per)
					}
					end := time.Now()
					place, plain = append(place, float64(between.Sub(begin))/n),
						append(plain, float64(end.Sub(between))/n)
					ratio = append(ratio, plain[len(plain)-1]/place[len(place)-1])
				}
				for unit, of := range map[string][]float64{"ns/packet": place, "ns/copy": plain, "copy/packet": ratio} {
					slices.Sort(of)
					b.ReportMetric(of[len(of)/2], unit)
				}
			})
			x.Release()
			c.shut()
			in.Close()
			batches.Close()
		}
	}
}
