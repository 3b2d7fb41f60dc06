package reorder

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/tensor/convert"
)

// TestCornerTurn compares batches of channels with a model that moves one sample at a time: packets
// in any order, some lost, whole and in two segments.
func TestCornerTurn(t *testing.T) {
	converts := []*convert.Spec{nil, {From: convert.Format{Bits: 16, BigEndian: true}, To: tensor.F32},
		{From: convert.Format{Bits: 8}, To: tensor.F16, Scale: 0.5}, {From: convert.Format{Bits: 12, BigEndian: true}, To: tensor.I16},
		{From: convert.Format{Bits: 8}, To: tensor.C64}}
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 200 {
		spec := converts[n%len(converts)]
		channels, units, per := 1+r.IntN(6), 1+r.IntN(9), 1<<r.IntN(4)
		unit, elem, dtype := 1, 1, tensor.U8
		var c *convert.Converter
		if spec != nil {
			c, _ = convert.New(*spec)
			unit, elem, dtype = c.Unit(), spec.To.Bits()/8, spec.To
		}
		in := units * unit // bytes of a channel in a packet
		out := in
		if c != nil {
			out = c.OutLen(in)
		}
		s, f := newStage(t, Plan{Name: "turn", Flows: []uint32{7}, Sequence: Field{0, 32}, PerBatch: per, Offset: 8,
			Channels: channels, Convert: spec}, channels*out*per)
		if r.IntN(2) == 0 {
			f.cut = 4 + r.IntN(8)
		}
		payloads := make([][]byte, per)
		for i := range payloads {
			payloads[i] = make([]byte, channels*in)
			for k := range payloads[i] {
				payloads[i][k] = byte(r.Uint32())
			}
		}
		order := r.Perm(per)
		order = order[:max(1, per-r.IntN(3))]
		want := make([]byte, channels*out*per)
		for _, i := range order {
			f.put(uint32(i), payloads[i])
			for ch := range channels {
				piece := payloads[i][ch*in:][:in]
				for u := range units { // one unit at a time
					from := piece[u*unit:][:unit]
					if c != nil {
						to := make([]byte, c.OutLen(unit))
						c.Convert(to, from)
						from = to
					}
					copy(want[ch*per*out+i*out+u*len(from):], from)
				}
			}
		}
		f.ended = engine.ErrClosed
		got, _, _ := drain(t, s, 4)
		name := fmt.Sprintf("run %d: %d packets of %d, %d channels of %d bytes, %+v, cut at %d", n, len(order), per,
			channels, in, spec, f.cut)
		if len(got) != 1 || !bytes.Equal(got[0].data, want) {
			t.Fatalf("%s: another batch than expected", name)
		}
		if d := got[0].Tensor(); d.DType != dtype ||
			!slices.Equal(d.Shape, []int64{int64(channels), int64(per * out / elem)}) {
			t.Fatalf("%s: tensor %v", name, d)
		}
		if size, err := got[0].Tensor().Bytes(); err != nil || size != int64(len(want)) {
			t.Fatalf("%s: %d bytes in the tensor of %d: %v", name, size, len(want), err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCornerTurnRefusals: a packet whose channels are not as long as those of its batch is no part
// of it.
func TestCornerTurnRefusals(t *testing.T) {
	s, f := newStage(t, Plan{Name: "turn", Flows: []uint32{7}, Sequence: Field{0, 32}, PerBatch: 4, Offset: 8,
		Channels: 3}, 4*9)
	for i, size := range []int{9, 6, 8, 9} {
		// a shorter one, and one that is no whole number of samples for each channel
		f.put(uint32(i), make([]byte, size))
	}
	f.ended = engine.ErrClosed
	got, _, _ := drain(t, s, 4)
	if len(got) != 1 || got[0].Packets != 2 || !got[0].Has(0) || !got[0].Has(3) {
		t.Fatalf("%+v", got)
	}
	if n := s.Plans()[0].Drops[engine.DropBadFrame]; n != 2 {
		t.Errorf("%d bad frames, expected 2", n)
	}
	for _, p := range []Plan{{Channels: -1}, {Channels: MaxChannels + 1}, {Channels: 3, Payload: 8},
		{Channels: 3, Payload: 6, Convert: &convert.Spec{From: convert.Format{Bits: 32}, To: tensor.F32}}} {
		p.Flows, p.Sequence, p.PerBatch = []uint32{7}, Field{0, 32}, 4
		if err := p.CheckFor("pool", 1<<20, true); err == nil {
			t.Errorf("%+v is accepted", p)
		}
	}
	_ = s.Close()
}

// newStage makes a stage for a plan, with batches in slots of size bytes.
func newStage(t *testing.T, p Plan, size int) (*Stage, *feed) {
	t.Helper()
	f := newFeed(t, 2048)
	p.Pool = newPool(t, "batches", max(size, 1), 4)
	s, err := New(f, engine.StageSpec{}, p)
	if err != nil {
		t.Fatal(err)
	}
	return s, f
}
