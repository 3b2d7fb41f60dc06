package app

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/stage/reorder"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
)

// described owns packets, each of which is the batch of its slot's number, if there is one.
type described struct {
	pool *mem.Pool
	is   map[burst.Handle]*reorder.Batch
}

func (o described) Reclaim(handles []burst.Handle) { o.pool.PutBatch(handles) }
func (o described) Describe(h burst.Handle) any {
	if x := o.is[h]; x != nil {
		return x
	}
	return nil
}

// A batch that becomes a row of a tensor keeps its id, its count, its bitmap and its times: peers
// find them by a name, with the tag of the tensor, and the snapshot says how many packets are
// missing.
func TestSinkTellsOfBatches(t *testing.T) {
	pool, err := mem.NewPool(mem.PoolOptions{Name: "batches", SlotSize: 64, Slots: 16})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	owner := described{pool, map[burst.Handle]*reorder.Batch{}}
	src := burst.NewSource(pool.Region(), pool.Region().All().Bytes(), owner)
	b := burst.New(8)
	add := func(x *reorder.Batch) {
		t.Helper()
		s, err := pool.Get()
		if err != nil {
			t.Fatal(err)
		}
		owner.is[s.Handle()] = x
		b.Builder().Add(src, burst.Segment{Handle: s.Handle(), Off: pool.Offset(s.Handle()), Len: 8})
	}
	node := newNode(t)
	c, err := newSink(Tensor{Node: node, Name: "t", Desc: tensor.Desc{DType: tensor.U8, Shape: []int64{2, 8}}}, false,
		false)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r := newReader(t, node, "t", tensor.Desc{DType: tensor.U8, Shape: []int64{2, 8}})
	give := func() {
		t.Helper()
		if err := c.Consume(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		b.Release()
	}
	// known is what a peer finds of the batches in the tensor that it would get now.
	known := func(shape ...int64) (out [][]int64) {
		t.Helper()
		of, err := r.peer.Lookup(limit(t), "t")
		if err != nil {
			t.Fatal(err)
		}
		x, err := r.peer.Lookup(limit(t), "t"+BatchSuffix)
		if err != nil {
			t.Fatal(err)
		}
		if x.Tag != of.Tag || x.Tensor == nil || x.Tensor.DType != tensor.I64 || !slices.Equal(x.Tensor.Shape, shape) {
			t.Fatalf("%v with the tag %x, want %v with that of the tensor, %x", x.Tensor, x.Tag, shape, of.Tag)
		}
		to, err := mem.Alloc(mem.Options{Size: int(x.Size())})
		if err != nil {
			t.Fatal(err)
		}
		defer to.Close()
		span, _ := to.Span(0, x.Size())
		f, err := r.peer.Get(limit(t), []path.Copy{x.At(0, span)}, transfer.PutOptions{})
		if err == nil {
			err = f.Wait(limit(t))
		}
		if err != nil {
			t.Fatal(err)
		}
		for k := range shape[0] {
			row := make([]int64, shape[1])
			for i := range row {
				row[i] = int64(binary.LittleEndian.Uint64(span.Bytes()[8*(int(k)*len(row)+i):]))
			}
			out = append(out, row)
		}
		return out
	}
	same := func(got [][]int64, want ...[]int64) {
		t.Helper()
		if !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("%v, want %v", got, want)
		}
	}

	add(&reorder.Batch{ID: 40, Present: []uint64{0xf0ff}, Packets: 12, PerBatch: 16, First: 1000, Last: 2000,
		TimedOut: true})
	add(&reorder.Batch{ID: 41, Present: []uint64{0xffff}, Packets: 16, PerBatch: 16, First: 2001, Last: 3000})
	give()
	same(known(2, 8), []int64{1, 40, 12, 16, 1000, 2000, 1, 0xf0ff}, []int64{1, 41, 16, 16, 2001, 3000, 0, 0xffff})

	add(nil) // no batch, and one of another plan with a longer bitmap
	add(&reorder.Batch{ID: -1, Present: []uint64{1, 1 << 63}, Packets: 2, PerBatch: 128})
	give()
	same(known(2, 9), []int64{2, 0, 0, 0, 0, 0, 0, 0, 0}, []int64{2, -1, 2, 128, 0, 0, 0, 1, -1 << 63})

	for range 4 { // all buffers are used again, also without a batch
		add(nil)
		add(nil)
		give()
	}
	same(known(2, 9), []int64{6, 0, 0, 0, 0, 0, 0, 0, 0}, []int64{6, 0, 0, 0, 0, 0, 0, 0, 0})

	var s Snapshot
	c.(*sink).Report(&s)
	if want := (BatchSnapshot{Batches: 3, Packets: 30, Missing: 130, Last: -1, Present: 2,
		Of: 128}); s.Tensor.Batches == nil || *s.Tensor.Batches != want {
		t.Errorf("%+v, want %+v", s.Tensor.Batches, want)
	}

	// A context that is over ends the wait for peers, not the withdrawal: no peer finds either name
	// afterwards.
	over, cancel := context.WithCancel(t.Context())
	cancel()
	_ = c.(*sink).st.close(over) // which may have to give up waiting
	for _, name := range []string{"t", "t" + BatchSuffix} {
		if _, err := r.peer.Lookup(limit(t), name); !errors.Is(err, control.NotFound) {
			t.Errorf("%s after close: %v, expected NotFound", name, err)
		}
	}
}
