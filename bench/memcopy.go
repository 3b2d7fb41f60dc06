package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/path"
)

// memoryCopy is puts or gets, one at a time, between a memory of this process and one of the
// second. The source holds two messages that are sent in turn, so that the destination shows which
// one came last.
type memoryCopy struct {
	meter
	kind   path.OpKind
	size   uint64
	seed   uint64
	name   string // of the memory of the second process
	local  *mem.Region
	copies [2][]path.Copy
	put    transfer.PutOptions
	sent   uint64
	count  int // transfers of a sample
	last   transfer.Explanation

	device, why string // of the second process's accelerator, and what it was taken instead of
}

// newMemoryCopy allocates memory at both places and moves a first message, which opens the path.
// The caller closes it.
func (o *TransferOptions) newMemoryCopy(ctx context.Context, l *link, kind path.OpKind, h shape, name string, local,
	remote Place) (_ *memoryCopy, err error) {
	x := &memoryCopy{meter: meter{l: l}, kind: kind, size: h.size, name: name,
		put: transfer.PutOptions{Paths: []string{h.path}}}
	here, there := 2*h.size, h.size
	if kind == path.Get {
		here, there = there, here
	}
	if x.local, err = l.memories.allocate(name, here, l.huge, local); err != nil {
		return nil, err
	}
	a, err := l.ask(request{Do: "alloc", Name: name, Size: there, Huge: l.huge, Place: remote})
	if err != nil {
		return nil, errors.Join(err, x.local.Close())
	}
	x.device, x.why = a.Device, a.Why
	defer func() {
		if err != nil {
			err = errors.Join(err, x.close())
		}
	}()
	r, err := l.peers[0].Lookup(ctx, name)
	if err != nil {
		return nil, err
	}
	for i := range x.copies {
		at, from := uint64(i)*h.size, uint64(0)
		if kind == path.Put {
			at, from = from, at
		}
		s, err := x.local.Span(from, h.size)
		if err != nil {
			return nil, err
		}
		x.copies[i] = []path.Copy{r.At(at, s)}
	}
	if err := x.prepare(ctx); err != nil {
		return nil, err
	}
	if _, err := x.run(ctx, 1); err != nil {
		return nil, err
	}
	x.count = 4
	for range 8 {
		d, err := x.run(ctx, x.count)
		if err != nil {
			return nil, err
		}
		if d > o.Budget/4 {
			x.count = max(1, int(float64(x.count)*float64(o.Budget)/float64(d)))
			break
		}
		x.count *= 4
	}
	return x, x.begin()
}

func (x *memoryCopy) close() error {
	_, err := x.l.ask(request{Do: "free", Name: x.name})
	return errors.Join(err, x.local.Close())
}

// prepare draws two new messages into the source, and something else into the destination.
func (x *memoryCopy) prepare(ctx context.Context) error {
	x.seed = rand.Uint64()
	p := pattern{Seed: x.seed, Len: 2 * x.size}
	if x.kind == path.Get {
		if _, err := x.l.ask(request{Do: "draw", Name: x.name, Pattern: p}); err != nil {
			return err
		}
		return scribble(ctx, x.local)
	}
	if err := p.fill(ctx, x.local); err != nil {
		return err
	}
	_, err := x.l.ask(request{Do: "scribble", Name: x.name})
	return err
}

// run moves messages and returns how long that took.
func (x *memoryCopy) run(ctx context.Context, count int) (time.Duration, error) {
	begin := x.l.peers[0].Put
	if x.kind == path.Get {
		begin = x.l.peers[0].Get
	}
	t := time.Now()
	for i := range count {
		y, err := begin(ctx, x.copies[x.sent&1], x.put)
		if err == nil {
			err = y.Wait(ctx)
		}
		if err != nil {
			return 0, err
		}
		x.sent++
		if i == count-1 {
			d := time.Since(t)
			x.last = y.Explain()
			return d, nil
		}
	}
	return 0, nil
}

// verify has the receiving side check every byte of the last message.
func (x *memoryCopy) verify(ctx context.Context) (n uint64, err error) {
	p := pattern{Seed: x.seed, Base: (x.sent - 1) & 1 * x.size, Len: x.size}
	if x.kind == path.Get {
		if n, err = p.verify(ctx, &x.l.memories, x.local); err != nil {
			err = fmt.Errorf("%w: %w", paired.ErrFailed, err)
		}
	} else {
		var a reply
		a, err = x.l.ask(request{Do: "check", Name: x.name, Pattern: p})
		n = a.Checked
	}
	if err == nil && n != x.size {
		err = fmt.Errorf("%w: the receiver checked %d bytes of %d", paired.ErrFailed, n, x.size)
	}
	return n, err
}

// sample makes one verified run, in GB/s.
func (x *memoryCopy) sample(ctx context.Context) (paired.Sample, error) {
	if err := x.prepare(ctx); err != nil {
		return paired.Sample{}, err
	}
	if _, err := x.run(ctx, max(1, x.count/10)); err != nil {
		return paired.Sample{}, err
	}
	var d time.Duration
	moved := uint64(x.count) * x.size
	err := x.during(x.count, moved, func() (err error) {
		d, err = x.run(ctx, x.count)
		return err
	})
	if err != nil {
		return paired.Sample{}, err
	}
	n, err := x.verify(ctx)
	return paired.Sample{Value: GBps(moved, d), Verified: n}, err
}

// hostMemory is the contender that memory of other kinds is measured by.
const hostMemory = "penstock, host memory"

// targetOf is what part of the speed between host memories is to be reached.
func targetOf(driver string, local, remote Place) float64 {
	switch {
	case local.Kind != mem.Device && remote.Kind != mem.Device:
		return 1
	case driver == "shm": // which is a copy of memory itself, so that each further copy shows
		return 0.8
	}
	return 0.9
}

// between names memories in the direction in which the bytes go.
func between(kind path.OpKind, local, remote Place) string {
	if kind == path.Get {
		local, remote = remote, local
	}
	short := func(p Place) string { return strings.TrimPrefix(p.Kind.String(), "host_") } // as on the command line
	return short(local) + " to " + short(remote)
}

// memoryCopies measures puts and gets between the memories that were asked for, in pairs with the
// same ones between host memories.
func (o *TransferOptions) memoryCopies(ctx context.Context, r *Suite) error {
	for _, driver := range o.Paths {
		for _, mode := range o.Modes {
			n := o.node()
			if mode == Spin {
				if runtime.NumCPU() < 4 {
					r.Missing = append(r.Missing, driver+
						" put and get, spin: both nodes' goroutines and both callers need 4 processors")
					continue
				}
				n.Spin = time.Millisecond
			}
			l, err := o.dial(ctx, n)
			if err != nil {
				return err
			}
			err = o.memoryCopyRows(ctx, r, l, driver, mode)
			if err = errors.Join(err, l.close()); err != nil {
				return err
			}
		}
	}
	return nil
}

func (o *TransferOptions) memoryCopyRows(ctx context.Context, r *Suite, l *link, driver, mode string) error {
	for _, size := range o.Sizes {
		for _, kind := range []path.OpKind{path.Put, path.Get} {
			h := shape{what: kindName(kind), path: driver, mode: mode, size: size, peers: 1,
				memory: between(kind, o.Local, o.Remote)}
			err := o.memoryCopyRow(ctx, r, l, kind, h)
			if errors.Is(err, path.ErrUnavailable) {
				r.Missing = append(r.Missing, fmt.Sprintf("%s: %v", h.title(), err))
				return nil // the path is not there for other sizes either
			}
			if err != nil {
				return fmt.Errorf("%s: %w", h.title(), err)
			}
		}
	}
	return nil
}

func (o *TransferOptions) memoryCopyRow(ctx context.Context, r *Suite, l *link, kind path.OpKind, h shape) (err error) {
	o.Progress.Say("%s", h.title())
	ours, err := o.newMemoryCopy(ctx, l, kind, h, "memory", o.Local, o.Remote)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ours.close()) }()
	theirs, err := o.newMemoryCopy(ctx, l, kind, h, "host memory", Place{}, Place{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, theirs.close()) }()
	local, why := l.memories.device(o.Local)
	for _, side := range [][2]string{{"this process", why}, {"the second process", ours.why}} {
		if note := fmt.Sprintf("%s uses memory of %s", side[0], side[1]); side[1] != "" &&
			!slices.Contains(r.Notes, note) {
			r.Notes = append(r.Notes, note)
		}
	}
	p := paired.Plan{Name: h.title(), Unit: paired.GBs, Pairs: o.Pairs, Limit: o.RowTime,
		Target: targetOf(h.path, o.Local, o.Remote),
		Ours:   paired.Contender{Name: "penstock", Run: ours.sample},
		Theirs: []paired.Contender{{Name: hostMemory, Run: theirs.sample}}}
	return r.Measure(ctx, p, func(x *paired.Row) error {
		h.describe(x)
		x.Cost, x.Carrier = ours.cost(), ours.last.Carrier
		x.Memory = &paired.Memory{Local: o.Local.Kind.String(), Remote: o.Remote.Kind.String(), LocalDevice: local,
			RemoteDevice: ours.device,
			UserCopies:   ours.last.UserCopies, KernelCopies: ours.last.KernelCopies,
			DeviceCopies: ours.last.DeviceCopies()}
		return nil
	})
}
