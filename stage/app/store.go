package app

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer"
)

// store is the buffers of a tensor: one that is filled, one that has the name, and older ones that
// only peers which looked them up before can read. One goroutine at a time uses it.
type store struct {
	node *transfer.Node
	name string
	desc tensor.Desc
	size uint64

	infos []info // of the buffers, by the same numbers

	regions []*mem.Region
	exports []*transfer.Export // of the buffers that were published and not taken back; nil: no peer can see it
	order   []int              // buffers that were published, the oldest first
	filling int                // buffer that take gave; -1: none
	run     [8]byte            // tells the tags of this run from those of others
	count   uint64

	waits metrics.Counter

	first   chan struct{} // closed when there is a tensor to be got
	over    chan struct{} // closed by close
	once    sync.Once
	listens func()
}

// info is where peers find what is known of the batches in a buffer.
type info struct {
	region *mem.Region      // nil until there was a batch
	export *transfer.Export // nil: no peer can see it
}

// patience is how long a lookup of the name waits for the first tensor: well below what a peer
// waits for an answer.
const patience = 5 * time.Second

func newStore(o Tensor, size int) (*store, error) {
	t := &store{node: o.Node, name: o.Name, desc: o.Desc, size: uint64(size),
		exports: make([]*transfer.Export, o.Buffers), infos: make([]info, o.Buffers), filling: -1,
		first: make(chan struct{}), over: make(chan struct{})}
	rand.Read(t.run[:]) // never fails
	for i := range o.Buffers {
		r, err := mem.Alloc(mem.Options{Name: fmt.Sprintf("%s/%d", o.Name, i), Size: size})
		if err != nil {
			return nil, errors.Join(err, t.free())
		}
		t.regions = append(t.regions, r)
	}
	t.listens = t.node.OnLookup(t.asked)
	return t, nil
}

// asked lets a lookup of the name wait for the first tensor, instead of finding nothing.
func (t *store) asked(ctx context.Context, _ *transfer.Peer, name string) {
	if name != t.name && name != t.name+BatchSuffix {
		return
	}
	select {
	case <-t.first: // nearly always
		return
	default:
	}
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case <-t.first:
	case <-t.over:
	case <-ctx.Done():
	case <-limit.C:
	}
}

// take gives a buffer that no peer can see. When there is none, take revokes the oldest that has
// lost the name: the gets of its readers fail, which tells them to discard what they have of it. It
// waits until the revocation is complete.
func (t *store) take(ctx context.Context) ([]byte, error) {
	for i, x := range t.exports {
		if x == nil {
			t.filling = i
			return t.bytes(i), nil
		}
	}
	i := t.order[0]
	t.waits.Inc()
	if err := t.revoke(ctx, i); err != nil {
		return nil, err
	}
	t.exports[i], t.order, t.filling = nil, append(t.order[:0], t.order[1:]...), i
	return t.bytes(i), nil
}

func (t *store) bytes(i int) []byte { return t.regions[i].All().Bytes()[:t.size] }

// revoke takes a buffer, and what is known of it, back from the peers.
func (t *store) revoke(ctx context.Context, i int) (err error) {
	if x := t.infos[i].export; x != nil {
		err = x.Revoke(ctx)
		t.infos[i].export = nil
	}
	if x := t.exports[i]; x != nil {
		err = errors.Join(err, x.Revoke(ctx))
	}
	return err
}

// span is n bytes of the buffer that is filled, from at on.
func (t *store) span(at, n int) (mem.Span, error) {
	return t.regions[t.filling].Span(uint64(at), uint64(n))
}

// publish gives the buffer that is filled the name, and the rows about its batches, if there are
// any, the name with BatchSuffix. Both have the same tag.
func (t *store) publish(batches []int64, rows int) error {
	i := t.filling
	span, err := t.regions[i].Span(0, t.size)
	if err != nil {
		return err
	}
	t.count++
	o := transfer.ExportOptions{Name: t.name, Tensor: &t.desc}
	copy(o.Tag[:8], t.run[:])
	binary.BigEndian.PutUint64(o.Tag[8:], t.count)
	if len(batches) > 0 {
		if err := t.describe(i, batches, rows, o.Tag); err != nil {
			return err
		}
	}
	if n := len(t.order); n > 0 {
		o.Replaces = t.exports[t.order[n-1]]
	}
	x, err := t.node.Export(span, o)
	if err != nil {
		return err
	}
	t.exports[i], t.order, t.filling = x, append(t.order, i), -1
	if t.count == 1 {
		close(t.first)
	}
	return nil
}

// describe publishes what is known of the batches in a buffer.
func (t *store) describe(i int, batches []int64, rows int, tag [16]byte) (err error) {
	x, size := &t.infos[i], uint64(len(batches)*8)
	if x.region != nil && x.region.Len() < size {
		if err := x.region.Close(); err != nil {
			return err
		}
		x.region = nil
	}
	if x.region == nil {
		if x.region, err = mem.Alloc(mem.Options{Name: fmt.Sprintf("%s%s/%d", t.name, BatchSuffix, i),
			Size: int(size)}); err != nil {
			return err
		}
	}
	span, err := x.region.Span(0, size)
	if err != nil {
		return err
	}
	to := span.Bytes()
	for k, v := range batches {
		binary.LittleEndian.PutUint64(to[8*k:], uint64(v))
	}
	o := transfer.ExportOptions{Name: t.name + BatchSuffix, Tag: tag,
		Tensor: &tensor.Desc{DType: tensor.I64, Shape: []int64{int64(rows), int64(len(batches) / rows)}}}
	if n := len(t.order); n > 0 {
		o.Replaces = t.infos[t.order[n-1]].export // nil: that one had no batches
	}
	x.export, err = t.node.Export(span, o)
	return err
}

// close takes everything back from the peers, and frees it. When the context ends first, the memory
// goes when the last peer has let go.
func (t *store) close(ctx context.Context) (err error) {
	t.once.Do(func() {
		close(t.over)
		t.listens()
		for i := range t.exports { // of one that could not be published there may be an info
			err = errors.Join(err, t.revoke(ctx, i))
		}
		err = errors.Join(err, t.free())
	})
	return err
}

func (t *store) free() (err error) {
	for _, r := range t.regions {
		err = errors.Join(err, r.Close())
	}
	for _, x := range t.infos {
		if x.region != nil {
			err = errors.Join(err, x.region.Close())
		}
	}
	return err
}
