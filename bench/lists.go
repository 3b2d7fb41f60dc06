package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/path"
)

// One list of many blocks that lie anywhere, such as those of a KV cache: by Peer.Put, and prepared
// once (Peer.Prepare), each beside the same list by a Queue. Both sides sleep where they have
// nothing to do.

const (
	listBlocks = 10000
	listBlock  = 4 << 10
)

// listRows measures the lists of a path. ours/theirs is to be 0.95 for a put, 1 for a prepared
// list.
func (o *TransferOptions) listRows(ctx context.Context, r *Suite, driver string) error {
	for _, prepared := range []bool{false, true} {
		if err := o.listRow(ctx, r, driver, prepared); err != nil {
			return err
		}
	}
	return nil
}

func (o *TransferOptions) listRow(ctx context.Context, r *Suite, driver string, prepared bool) (err error) {
	blocks := listBlocks
	if o.Quick {
		blocks /= 10
	}
	h := shape{what: "list", path: driver, mode: Event, size: uint64(blocks) * listBlock, blocks: blocks, peers: 1}
	how, target := "Peer.Put", 0.95
	if prepared {
		how, target = "Peer.Prepare", 1
	}
	h.class = fmt.Sprintf("%s %s %d x %s, random", driver, how, blocks, FormatSize(listBlock))
	o.Progress.Say("%s, beside Queue", h.class)
	l, err := o.dial(ctx, o.node())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	if err := l.openQueues(ctx, driver, Event, 1, 0); err != nil {
		return fmt.Errorf("%s: %w", h.class, err)
	}
	defer func() {
		_, e := l.closeQueues()
		err = errors.Join(err, e)
	}()
	x, err := o.newSampler(ctx, l, path.Put, h)
	if err != nil {
		return fmt.Errorf("%s: %w", h.class, err)
	}
	put := transfer.PutOptions{Paths: []string{driver}}
	copies := x.x.flows[0].ops[0].Copies
	begin := func(ctx context.Context) (*transfer.Transfer, error) { return l.peers[0].Put(ctx, copies, put) }
	end := x.x.close
	if prepared {
		list, err := l.peers[0].Prepare(path.Put, copies, put)
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", h.class, err), x.x.close())
		}
		begin, end = list.Post, func() error { return errors.Join(list.Close(), x.x.close()) }
	}
	calls := func(ctx context.Context, messages int) (time.Duration, error) { return x.x.call(ctx, messages, begin) }
	s := &subject{unit: paired.GBs, close: end, finish: func(row *paired.Row) error {
		row.Cost = x.cost()
		return nil
	}}
	s.run = func(ctx context.Context) (paired.Sample, error) { return x.sampleBy(ctx, calls, true) }
	theirs := func(ctx context.Context) (paired.Sample, error) { return x.sampleBy(ctx, x.x.run, false) }
	return o.row(ctx, r, l, h, s, paired.Plan{Pairs: o.Pairs, Target: target, Limit: 2 * o.RowTime,
		Theirs: []paired.Contender{{Name: "penstock, Queue", Run: theirs}}})
}

// call puts messages as run does, each by a transfer that begin begins.
func (x *load) call(ctx context.Context, messages int,
	begin func(context.Context) (*transfer.Transfer, error)) (time.Duration, error) {
	f := x.flows[0]
	t := time.Now()
	for range messages {
		f.number++
		f.mark(x, 0)
		y, err := begin(ctx)
		if err != nil {
			return 0, err
		}
		if err := y.Wait(ctx); err != nil {
			return 0, err
		}
	}
	return time.Since(t), nil
}
