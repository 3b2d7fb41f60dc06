package reorder

import (
	"errors"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/tensor/convert"
)

// numbersOf gives the fields of a plan in turn, of any size at all.
type numbersOf struct{ p []byte }

// next is a signed number of 1 to 8 bytes, as its first byte says; 0 behind the end.
func (x *numbersOf) next() int {
	if len(x.p) == 0 {
		return 0
	}
	n := min(1+int(x.p[0]>>5), len(x.p)-1)
	v := 0
	for _, b := range x.p[1 : 1+n] {
		v = v<<8 | int(b)
	}
	if x.p[0]&16 != 0 {
		v = -v
	}
	x.p = x.p[1+n:]
	return v
}

// encoded is what numbersOf reads as these numbers, of 16 bits at most.
func encoded(all ...int) (p []byte) {
	for _, v := range all {
		p = append(p, 1<<5, byte(v>>8), byte(v))
	}
	return p
}

// Check takes any plan without a panic, and what it takes runs: each packet is placed or counted by
// its reason, and each slot comes back.
func FuzzPlan(f *testing.F) {
	// sequence, batch, per batch, offset, payload, channels, missing, window, timeout, executor,
	// slot, conversion: bits, type, unsigned, big-endian; packets
	f.Add(encoded(0, 16, 0, 0, 4, 4, 8, 0, 0, 2, 0, 0, 64, 0),
		[]byte("\x00\x00\x00\x00payload0\x00\x01\x00\x00payload1\x00\x01\x00\x00payload1\x00\x07\x00\x00payload7"),
		uint8(12))
	f.Add(encoded(0, 16, 16, 8, 0, 4, 0, 0, 1, 0, 0, 0, 2048, 0),
		[]byte("\x00\x00\x00\x00payload0\x01\x01\x01\x00payload1"), uint8(12))
	f.Add(encoded(3, 7, 0, 0, 8, 2, 0, 2, 0, 3, 1, 0, 1024, 12, int(tensor.F16), 0, 1),
		[]byte("\x00\x00abcdefabcdef\x00\x20abcdefabcdef\x00\x40abcdefabcd"), uint8(14))
	f.Add(encoded(0, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 16, 4, int(tensor.F64), 0, 0), []byte("\x00\x80\x00"), uint8(1))
	f.Add(encoded(0, 32, 0, 0, 65535, 0, 65535, 65535, 3, 1024, 0, 2, 1, 33, 99), []byte("some bytes"), uint8(5))
	f.Add(encoded(65535, 32, 65535, 32, 1, 65535, 0, 0, 0, 1024, 0, 0, 64, 0), []byte("some bytes"), uint8(5))
	f.Fuzz(func(t *testing.T, fields, data []byte, size uint8) {
		x := &numbersOf{fields}
		p := Plan{Name: "fuzzed", Flows: []uint32{7}, Sequence: Field{x.next(), x.next()},
			Batch: Field{x.next(), x.next()}, PerBatch: x.next(), Offset: x.next(), Payload: x.next(),
			Channels: x.next(),
			Missing:  Missing(x.next()), Window: x.next(), Timeout: time.Duration(x.next()),
			Executor: Executor(x.next())}
		slot := x.next()
		if bits := x.next(); bits != 0 {
			p.Convert = &convert.Spec{From: convert.Format{Bits: bits}, To: tensor.DType(x.next())}
			p.Convert.From.Unsigned, p.Convert.From.BigEndian = x.next() != 0, x.next() != 0
			p.Convert.Scale, p.Convert.Offset = float64(x.next()), float64(x.next())
		}
		_ = p.CheckFor("any", slot, true) // whatever the size of the slots
		p.Pool = newPool(t, "batches", 1+slot&0xffff, 4)
		if err := p.Check(); err != nil {
			if !errors.Is(err, ErrPlan) {
				t.Fatalf("%v is no ErrPlan", err)
			}
			return
		}
		q := newFeed(t, 256)
		s, err := New(q, engine.StageSpec{Queue: "q"}, p)
		if err != nil {
			t.Fatalf("Check takes %+v, and New does not: %v", p, err)
		}
		n := uint64(0)
		for ; len(data) > 0 && n < 400; n++ {
			k := min(len(data), int(size)+1)
			q.queued = append(q.queued, packet{flow: 7, data: data[:k]})
			data = data[k:]
		}
		q.ended = engine.ErrClosed
		out, passed, err := drain(t, s, 3)
		if !errors.Is(err, engine.ErrClosed) || len(passed) > 0 {
			t.Fatalf("%v, %d passed", err, len(passed))
		}
		packets := uint64(0)
		for _, b := range out {
			if packets += uint64(b.Packets); b.Packets == 0 || b.Packets > b.PerBatch ||
				len(b.data) != b.Place*b.PerBatch {
				t.Fatalf("%d bytes in %+v", len(b.data), b.Batch)
			}
		}
		if c := s.Plans()[0]; c.Placed != packets || c.Placed+c.Drops.Total() != n ||
			c.Whole+c.Partial != uint64(len(out)) {
			t.Fatalf("%d packets came, and %d are in %d batches: %+v", n, packets, len(out), c)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
