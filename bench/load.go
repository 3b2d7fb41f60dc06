package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/path"
)

// flow is one queue's share of a load: slots that are used in turn, each for one operation at a
// time.
type flow struct {
	q      *transfer.Queue
	ops    []path.Op // one per slot; its token is the slot
	busy   []bool
	area   *area  // of all flows together
	local  []byte // all slots of all flows
	first  int    // this flow's first slot in the area
	next   int    // slot
	number uint64 // of the last message
	left   int    // messages to post
	done   int
	want   int
	err    error
	events [64]path.Event
}

// load is a number of flows between the same memories, in one direction.
type load struct {
	kind  path.OpKind
	mode  string
	b     *buffers
	area  area
	flows []*flow
	order []int // of the blocks of each operation; nil is one block
	pin   bool
	// stampAt is where in a local slot the stamp is, in bytes: in the block that belongs to the
	// beginning of the remote slot.
	stampAt uint64
}

// newLoad prepares operations of size bytes, or of blocks pieces of that together, over all open
// queues of the link.
func (l *link) newLoad(ctx context.Context, kind path.OpKind, mode string, size uint64, blocks, slots int) (*load,
	error) {
	n := len(l.queues)
	x := &load{kind: kind, mode: mode, area: newArea(size, n*slots), pin: l.pin && mode == Spin}
	var err error
	if x.b, err = l.allocate(ctx, x.area.len()); err != nil {
		return nil, err
	}
	if blocks > 1 {
		x.order = rand.Perm(blocks)
		x.stampAt = uint64(slices.Index(x.order, 0)) * (size / uint64(blocks))
	}
	local := x.b.local.All().Bytes()
	for i, q := range l.queues {
		f := &flow{q: q, area: &x.area, local: local, first: i * slots, busy: make([]bool, slots)}
		for s := range slots {
			op := path.Op{Kind: kind, Token: uint64(s)}
			base, block := uint64(f.first+s)*size, size/uint64(max(blocks, 1))
			for k := range max(blocks, 1) {
				to := k
				if x.order != nil {
					to = x.order[k]
				}
				span, err := x.b.local.Span(base+uint64(k)*block, block)
				if err != nil {
					return nil, errors.Join(err, x.b.free())
				}
				op.Copies = append(op.Copies, x.b.remote[i].At(base+uint64(to)*block, span))
			}
			f.ops = append(f.ops, op)
		}
		x.flows = append(x.flows, f)
	}
	return x, nil
}

func (x *load) close() error { return x.b.free() }

// prepare fills the source with bytes that were never sent before, and the destination with others.
func (x *load) prepare() error {
	seed := rand.Uint64()
	x.area.Seed = seed
	for i := range x.area.Stamps {
		x.area.Stamps[i] = 0
	}
	local := x.b.local.All().Bytes()
	if x.kind == path.Get {
		if _, err := x.b.l.ask(request{Do: "fill", Name: "memory", Area: x.area}); err != nil {
			return err
		}
		for i := range local {
			local[i] = 0xEE
		}
		return nil
	}
	if x.order == nil {
		x.area.fill(local)
	} else {
		x.area.scatter(local, x.order)
	}
	_, err := x.b.l.ask(request{Do: "scribble", Name: "memory"})
	return err
}

// verify has the receiving side check every byte of the last message of every slot.
func (x *load) verify() (uint64, error) {
	if x.kind == path.Get && x.order != nil {
		return x.area.verifyBlocks(x.b.local.All().Bytes(), x.order)
	}
	if x.kind == path.Get {
		return x.area.verify(x.b.local.All().Bytes())
	}
	a, err := x.b.l.ask(request{Do: "verify", Name: "memory", Area: x.area})
	if err == nil && a.Checked != x.area.len() {
		err = fmt.Errorf("%w: the receiver checked %d bytes of %d", paired.ErrFailed, a.Checked, x.area.len())
	}
	return a.Checked, err
}

// run moves messages over every flow, as many as slots at a time, and returns how long that took.
func (x *load) run(ctx context.Context, messages int) (d time.Duration, err error) {
	err = pinned(x.pin, func() error {
		for _, f := range x.flows {
			f.left, f.want, f.done, f.err = messages, messages, 0, nil
		}
		t := time.Now()
		switch {
		case x.mode == Spin:
			err = x.spin(ctx)
		case len(x.flows) == 1:
			err = x.flows[0].sleep(ctx, x)
		default:
			var wg sync.WaitGroup
			errs := make([]error, len(x.flows))
			for i, f := range x.flows {
				wg.Go(func() { errs[i] = f.sleep(ctx, x) })
			}
			wg.Wait()
			err = errors.Join(errs...)
		}
		d = time.Since(t)
		return err
	})
	return d, err
}

func (x *load) spin(ctx context.Context) error {
	for round := 0; ; round++ {
		finished := true
		for _, f := range x.flows {
			if f.done == f.want {
				continue
			}
			finished = false
			if err := f.post(x); err != nil {
				return err
			}
			if n := f.q.Poll(f.events[:]); n > 0 {
				if err := f.collect(x, n); err != nil {
					return err
				}
			}
		}
		if finished {
			return nil
		}
		if round&0xfff == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func (f *flow) sleep(ctx context.Context, x *load) error {
	for f.done < f.want {
		if err := f.post(x); err != nil {
			return err
		}
		n, err := f.q.Wait(ctx, f.events[:], 0)
		if err != nil {
			return err
		}
		if err := f.collect(x, n); err != nil {
			return err
		}
	}
	return nil
}

// post hands over as many free slots as lie in a row, in one batch.
func (f *flow) post(x *load) error {
	for f.left > 0 && !f.busy[f.next] {
		n := 0
		for i := f.next; i < len(f.ops) && n < f.left && !f.busy[i]; i++ {
			f.number++
			f.mark(x, i)
			n++
		}
		k, err := f.q.Post(f.ops[f.next : f.next+n])
		f.number -= uint64(n - k)
		for i := range k {
			f.busy[f.next+i] = true
		}
		f.left -= k
		f.next = (f.next + k) % len(f.ops)
		if err != nil {
			if errors.Is(err, path.ErrFull) {
				return nil
			}
			return err
		}
	}
	return nil
}

// mark makes the message of a slot different from all others before it is posted: a put carries a
// new stamp; a get's destination loses what it must bring.
func (f *flow) mark(x *load, slot int) {
	if x.area.Slot < stampSize {
		return
	}
	at := f.first + slot
	b := f.local[uint64(at)*x.area.Slot+x.stampAt:]
	if x.kind == path.Get {
		binary.LittleEndian.PutUint64(b, 0xEEEEEEEEEEEEEEEE)
		return
	}
	x.area.Stamps[at] = f.number
	binary.LittleEndian.PutUint64(b, f.number^x.area.Seed)
}

// collect takes events and, for gets, looks whether the bytes came.
func (f *flow) collect(x *load, n int) error {
	for i := range n {
		e := &f.events[i]
		switch e.Kind {
		case path.EventDone:
			if e.Err != nil {
				return e.Err
			}
			s := int(e.Token)
			if s >= len(f.busy) || !f.busy[s] {
				return fmt.Errorf("%w: completion of operation %d, which was not outstanding", paired.ErrFailed,
					e.Token)
			}
			f.busy[s] = false
			f.done++
			if x.kind == path.Get && x.area.Slot >= stampSize {
				at := f.first + s
				if got := binary.LittleEndian.Uint64(f.local[uint64(at)*x.area.Slot+
					x.stampAt:]) ^ x.area.Seed; got != x.area.Stamps[at] {
					return fmt.Errorf("%w: a get completed but brought no bytes (stamp %#x)", paired.ErrFailed, got)
				}
			}
		case path.EventDown:
			return downOf(e)
		}
	}
	return nil
}
