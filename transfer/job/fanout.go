package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/path"
)

// DefaultAtOnce is how many targets of a fan-out are served at once unless FanoutOptions say
// otherwise. One transfer at a time leaves the machine idle while a target confirms; many share the
// same bandwidth, so that all of them are ready late instead of some of them early
// (docs/measurements/sharing.md).
const DefaultAtOnce = 2

// stallAfter is how long a target may show no progress before the next one is begun beside it.
// Progress counts by pieces, so a target that takes less than PieceSize in this time counts as one
// that stalls.
const stallAfter = time.Second

// Target is a receiver of PutAll: a peer, and what goes where in its memory.
type Target struct {
	Peer *transfer.Peer
	// Copies are the blocks, as for Peer.Put. With nil Copies the target is the peer's export of a
	// name:
	Copies []path.Copy
	Name   string   // looked up when it is this target's turn
	Local  mem.Span // goes to the start of that export, which must have room for it
}

// FanoutOptions modify PutAll. The zero value is usual.
type FanoutOptions struct {
	Put         transfer.PutOptions // for every target: message, paths, digest
	AtOnce      int                 // targets served at once; 0 means DefaultAtOnce
	StopOnError bool                // the first failure cancels all that are not done; otherwise they go on
}

// Fanout is a put to several peers under way. Its methods may be called from any goroutine.
type Fanout struct {
	opts   FanoutOptions
	legs   []*Leg
	bytes  uint64
	hold   []func() error // give back the local memory
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
}

// Leg is the part of a fan-out that goes to one target: a future. Its methods may be called from
// any goroutine.
type Leg struct {
	f      *Fanout
	target Target
	bytes  uint64
	done   chan struct{}

	ctx    context.Context
	cancel context.CancelFunc
	taken  atomic.Bool // by its turn, or by Cancel before that: who took it ends it

	mu  sync.Mutex         // guards what follows
	t   *transfer.Transfer // nil until it was begun
	err error
}

// PutAll puts the same or different local memory into the memory of many peers, weights to workers
// for example. The targets are begun in the order given, some at once; each has a future of its
// own, and one that is slow or dead holds the others up for no more than a second. The local memory
// of Copies is leased and registered once for all of them; that for a Name is leased, and its leg
// registers it. The targets' slices and spans belong to the
// fan-out until it is done. It ends early when ctx does. Requests that are wrong fail here,
// everything later by the legs.
func PutAll(ctx context.Context, targets []Target, o FanoutOptions) (*Fanout, error) {
	if err := invariants.Context(ctx, "job.PutAll"); err != nil {
		return nil, err
	}
	if o.AtOnce < 0 {
		return nil, fmt.Errorf("transfer: fan-out: AtOnce %d: expected 0 or more", o.AtOnce)
	}
	if o.AtOnce == 0 {
		o.AtOnce = DefaultAtOnce
	}
	f := &Fanout{opts: o, done: make(chan struct{})}
	for i, t := range targets {
		l := &Leg{f: f, target: t, done: make(chan struct{})}
		fail := func(err error) (*Fanout, error) {
			f.release()
			return nil, fmt.Errorf("transfer: fan-out: target %d: %w", i, err)
		}
		switch {
		case t.Peer == nil:
			return fail(errors.New("no peer"))
		case t.Copies == nil && t.Name == "":
			return fail(errors.New("expected Copies, or the Name of an export"))
		case t.Copies != nil && t.Name != "":
			return fail(errors.New("expected either Copies or the Name of an export"))
		case t.Copies == nil && !t.Local.Valid():
			return fail(fmt.Errorf("export %q: the local span is not inside its region: %w", t.Name, mem.ErrBounds))
		case t.Copies == nil:
			lease, err := t.Local.Region.Lease()
			if err != nil {
				return fail(err)
			}
			f.hold = append(f.hold, lease.Release)
			l.bytes = t.Local.Len
		default:
			list, err := t.Peer.Prepare(path.Put, t.Copies, transfer.PutOptions{Digest: o.Put.Digest})
			if err != nil && t.Peer.Err() == nil {
				return fail(err)
			}
			if err == nil { // else the leg says so
				f.hold = append(f.hold, list.Close)
			}
			for _, c := range t.Copies {
				l.bytes += c.Local.Len
			}
		}
		f.bytes += l.bytes
		f.legs = append(f.legs, l)
	}
	if closed(targets) {
		f.release()
		return nil, fmt.Errorf("transfer: fan-out: %w", targets[0].Peer.Err())
	}
	f.ctx, f.cancel = context.WithCancel(ctx)
	for _, l := range f.legs {
		l.ctx, l.cancel = context.WithCancel(f.ctx)
	}
	go f.run()
	return f, nil
}

func (f *Fanout) release() {
	for _, release := range f.hold {
		release()
	}
	f.hold = nil
}

// run begins the legs in order, as turns come free.
func (f *Fanout) run() {
	turns := make(chan struct{}, f.opts.AtOnce)
	for _, l := range f.legs {
		select {
		case turns <- struct{}{}:
			go l.run(sync.OnceFunc(func() { <-turns }))
		case <-f.ctx.Done():
			l.Cancel()
		}
	}
	for _, l := range f.legs {
		<-l.done
	}
	f.cancel()
	f.release()
	close(f.done)
}

// run serves one target. next lets another one begin.
func (l *Leg) run(next func()) {
	defer next()
	if l.taken.Swap(true) {
		return
	}
	go l.watch(next)
	err := l.put()
	if ended := l.ctx.Err(); ended != nil && errors.Is(err, ended) && !errors.Is(err, path.ErrCanceled) {
		err = transfer.CanceledBy(l.ctx)
	}
	l.end(err)
	if err != nil && l.f.opts.StopOnError {
		l.f.Cancel()
	}
}

// watch calls next when the leg does not move for a while.
func (l *Leg) watch(next func()) {
	tick := time.NewTicker(stallAfter)
	defer tick.Stop()
	for last := 0.0; ; {
		select {
		case <-l.done:
			return
		case <-tick.C:
		}
		now := l.Progress()
		if now == last {
			next()
			return
		}
		last = now
	}
}

func (l *Leg) put() error {
	ctx, p, copies := l.ctx, l.target.Peer, l.target.Copies
	if copies == nil {
		r, err := p.Lookup(ctx, l.target.Name)
		if err != nil {
			return err
		}
		if r.Size() < l.bytes {
			return fmt.Errorf("transfer: export %q has %d bytes, %d were to go there: %w", r.Name, r.Size(), l.bytes,
				path.ErrBounds)
		}
		copies = []path.Copy{r.At(0, l.target.Local)}
	}
	t, err := p.Put(ctx, copies, l.f.opts.Put)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.t = t
	l.mu.Unlock()
	<-t.Done() // also after the end of ctx, which cancels it
	return t.Err()
}

func (l *Leg) end(err error) {
	l.mu.Lock()
	l.err = err
	l.mu.Unlock()
	close(l.done)
}

// Peer is the target's peer.
func (l *Leg) Peer() *transfer.Peer { return l.target.Peer }

// Bytes is the number of bytes to move.
func (l *Leg) Bytes() uint64 { return l.bytes }

// Done is closed when the leg has ended.
func (l *Leg) Done() <-chan struct{} { return l.done }

// Err is nil while the leg waits or is under way, and after success; otherwise why it failed.
func (l *Leg) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Transfer is what moves the bytes, nil until it was begun.
func (l *Leg) Transfer() *transfer.Transfer {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.t
}

// Progress is the share of the leg's bytes that are known to be in place, as that of a Transfer.
func (l *Leg) Progress() float64 {
	if t := l.Transfer(); t != nil {
		return t.Progress()
	}
	return 0
}

// Explain is the account of the leg's transfer; of one that was not begun, only what was asked for
// and the error.
func (l *Leg) Explain() transfer.Explanation {
	if t := l.Transfer(); t != nil {
		return t.Explain()
	}
	return transfer.Explanation{Kind: "put", Peer: l.target.Peer.String(), Bytes: l.bytes, Err: l.Err()}
}

// Cancel asks the leg to end early, as Transfer.Cancel does; the others go on. It returns false
// when it had ended already.
func (l *Leg) Cancel() bool {
	select {
	case <-l.done:
		return false
	default:
	}
	l.cancel()
	if !l.taken.Swap(true) { // its turn has not come
		l.end(transfer.CanceledBy(l.ctx))
	}
	return true
}

// Legs are the parts, in the order of the targets. The slice is the fan-out's: do not change it.
func (f *Fanout) Legs() []*Leg { return f.legs }

// Bytes is the number of bytes to move to all targets together.
func (f *Fanout) Bytes() uint64 { return f.bytes }

// Progress is the share of all bytes that are known to be in place.
func (f *Fanout) Progress() float64 {
	if f.bytes == 0 {
		select {
		case <-f.done:
			return 1
		default:
			return 0
		}
	}
	var moved float64
	for _, l := range f.legs {
		if t := l.Transfer(); t != nil {
			moved += t.Progress() * float64(l.bytes)
		}
	}
	return moved / float64(f.bytes)
}

// Done is closed when all legs have ended and the local memory is free.
func (f *Fanout) Done() <-chan struct{} { return f.done }

// Err joins the errors of the legs that failed until now, each with the name of its peer
// (errors.Join); nil if there are none.
func (f *Fanout) Err() error {
	var errs []error
	for _, l := range f.legs {
		if err := l.Err(); err != nil {
			errs = append(errs, fmt.Errorf("transfer: put to %s: %w", l.target.Peer, err))
		}
	}
	return errors.Join(errs...)
}

// Wait waits for the end of all legs and returns Err, or ctx's error when that comes first; the
// fan-out goes on then.
func (f *Fanout) Wait(ctx context.Context) error { return transfer.WaitFor(ctx, f) }

// Cancel asks all legs that have not ended to end early.
func (f *Fanout) Cancel() {
	for _, l := range f.legs {
		l.Cancel()
	}
}

// closed reports whether there are peers, all of which this side has closed: so has the node.
func closed(targets []Target) bool {
	open := slices.ContainsFunc(targets, func(t Target) bool { return !errors.Is(t.Peer.Err(), transfer.ErrClosed) })
	return len(targets) > 0 && !open
}
