package reorder

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/convert"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/vec"
)

// BenchmarkPlace is the placement of payloads, beside a plain copy of the same bytes from the same memory (ns of both are per packet).
func BenchmarkPlace(b *testing.B) {
	for _, size := range []int{1024, 4096, 8192} {
		for _, conv := range []*convert.Spec{nil, {From: convert.Format{Bits: 16, BigEndian: true}, To: tensor.F32}, {From: convert.Format{Bits: 16, BigEndian: true}, To: tensor.F16}, {From: convert.Format{Bits: 8}, To: tensor.F32}} {
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
				x.Builder().Add(src, burst.Segment{Handle: s.Handle(), Off: in.Offset(s.Handle()), Len: uint32(size + 64)})
			}
			c, err := newCollector(Plan{Flows: []uint32{0}, Sequence: Field{0, 32}, PerBatch: per, Offset: 64, Pool: batches, Convert: conv}, nil, nil)
			if err != nil {
				b.Fatal(err)
			}
			c.out = func(o *open) { c.cache.Put(o.slot); c.recycle(o) }
			seq := uint32(0)
			b.Run("place "+name, func(b *testing.B) {
				b.SetBytes(int64(out))
				for i := range b.N {
					k := i % n
					binary.BigEndian.PutUint32(x.Bytes(k, 0), seq)
					seq++
					c.take(x, k, 0)
				}
			})
			dst, from := batches.Region().All().Bytes(), make([]byte, n*(out+64))
			b.Run("copy "+name, func(b *testing.B) {
				b.SetBytes(int64(out))
				for i := range b.N {
					k, d := i%n, i%(32*per)
					vec.Copy(dst[d*out:(d+1)*out], from[k*(out+64)+64:][:out])
				}
			})
			x.Release()
			c.shut()
			in.Close()
			batches.Close()
		}
	}
}
