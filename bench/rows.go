package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor/synth"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/path"
)

// ping is a ping-pong of 64 bytes with the second process.
type ping struct {
	l       *link
	mode    string
	p       *pinger
	src     *mem.Region
	pong    *mem.Region
	export  *transfer.Export
	next    uint64
	n       int
	checked uint64 // by this side
	meter   meter
}

const pingSize = 64

func (o *TransferOptions) newPing(ctx context.Context, l *link, driver, mode string) (_ *ping, err error) {
	g := &ping{l: l, mode: mode, next: 1, n: 10000, meter: meter{l: l}}
	if driver == "tcp" {
		g.n = 4000
	}
	if mode == Event {
		g.n = 500
	}
	if o.Quick {
		g.n = 50
	}
	defer func() {
		if err != nil {
			// Queues first: an open queue that no side serves keeps what it maps.
			if len(l.queues) > 0 {
				l.closeQueues()
			}
			g.freeLocal(ctx)
		}
	}()
	if g.src, err = Allocate("ping source", pingSize, false); err != nil {
		return nil, err
	}
	if g.pong, err = Allocate("pong", pingSize, false); err != nil {
		return nil, err
	}
	if g.export, err = l.node.Export(g.pong.All(),
		transfer.ExportOptions{Name: "pong", Rights: path.Read | path.Write}); err != nil {
		return nil, err
	}
	if _, err = l.ask(request{Do: "alloc", Name: "ping", Size: pingSize}); err != nil {
		return nil, err
	}
	remote, err := l.peers[0].Lookup(ctx, "ping")
	if err != nil {
		return nil, err
	}
	if err = l.openQueues(ctx, driver, mode, 1, pingSize); err != nil {
		return nil, err
	}
	if g.p, err = newPinger(l.queues[0], g.src, remote, pingSize); err != nil {
		return nil, err
	}
	return g, g.meter.begin()
}

// pingSubject is a percentile of the times of one way.
func (o *TransferOptions) pingSubject(ctx context.Context, l *link, driver, mode string, percentile float64) (*subject,
	error) {
	g, err := o.newPing(ctx, l, driver, mode)
	if err != nil {
		return nil, err
	}
	closed := false
	end := func() error {
		if closed {
			return nil
		}
		closed = true
		return g.close()
	}
	return &subject{unit: paired.Microseconds,
		run: func(ctx context.Context) (paired.Sample, error) {
			v, err := g.sample(ctx)
			slices.Sort(v)
			// Both directions of every round trip were checked.
			return paired.Sample{Value: paired.Percentile(v, percentile), Verified: 2 * pingSize * uint64(len(v)),
				Single: v}, err
		},
		// The other side tells at the end how many bytes it checked; a row without that is not one.
		finish: func(x *paired.Row) error { x.Cost = g.meter.cost(); return end() },
		close:  end}, nil
}

// sample makes n round trips and returns half their times in microseconds. All bytes of all
// messages are checked on both sides while the clock runs.
func (g *ping) sample(ctx context.Context) (v []float64, err error) {
	v = make([]float64, 0, g.n)
	in := g.pong.All().Bytes()[:pingSize]
	err = g.meter.during(2*g.n, 2*pingSize*uint64(g.n), func() error {
		return pinned(g.l.pin && g.mode == Spin, func() (err error) {
			v, err = g.p.pingPong(ctx, in, g.next, g.n, g.mode, v)
			return err
		})
	})
	g.next += uint64(g.n)
	g.checked += uint64(len(v) * pingSize)
	return v, err
}

func (g *ping) close() error {
	seen, err := g.l.closeQueues()
	if err == nil && seen != g.checked {
		err = fmt.Errorf("%w: ping-pong: the other side checked %d bytes, this one %d", paired.ErrFailed, seen,
			g.checked)
	}
	g.checked += seen
	_, e := g.l.ask(request{Do: "free", Name: "ping"})
	g.freeLocal(context.Background())
	return errors.Join(err, e)
}

func (g *ping) freeLocal(ctx context.Context) {
	if g.export != nil {
		g.export.Revoke(ctx)
	}
	for _, r := range []*mem.Region{g.src, g.pong} {
		if r != nil {
			r.Close()
		}
	}
}

// lender borrows memory of the second process.
type lender struct {
	l      *link
	b      path.Borrower
	q      *transfer.Queue
	remote *transfer.Remote
	size   uint64
	seed   uint64
	n      int
}

func (o *TransferOptions) newLender(ctx context.Context, l *link, size uint64) (*lender, error) {
	b, ok := l.queues[0].Path().(path.Borrower)
	if !ok {
		return nil, nil
	}
	if _, err := l.ask(request{Do: "alloc", Name: "lent", Size: size, Huge: l.huge}); err != nil {
		return nil, err
	}
	a := area{Seed: rand.Uint64(), Slot: size, Stamps: make([]uint64, 1)}
	if _, err := l.ask(request{Do: "fill", Name: "lent", Area: a}); err != nil {
		return nil, err
	}
	r, err := l.peers[0].Lookup(ctx, "lent")
	if err != nil {
		return nil, err
	}
	x := &lender{l: l, b: b, q: l.queues[0], remote: r, size: size, seed: a.Seed, n: 20000}
	if o.Quick {
		x.n = 200
	}
	v, err := x.attach(ctx)
	if err != nil {
		return nil, err
	}
	defer v.Release()
	_, err = a.verify(v.Bytes)
	return x, err
}

// attach borrows for the first time, for which the memory has to be mapped.
func (x *lender) attach(ctx context.Context) (path.View, error) {
	// No event reports that the memory is mapped, so attach polls the path; the peer takes a
	// moment.
	wait, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var events [8]path.Event
	for {
		v, err := x.b.Borrow(x.remote.Desc.Key, 0, x.size)
		if !errors.Is(err, path.ErrFull) {
			return v, err
		}
		if wait.Err() != nil {
			return path.View{}, fmt.Errorf("bench: borrow: the memory was not mapped in time: %w", wait.Err())
		}
		x.q.Poll(events[:])
		runtime.Gosched()
	}
}

// sample borrows, reads the last bytes and gives back, n times; it returns nanoseconds of one
// borrow.
func (x *lender) sample() (float64, error) {
	var want [8]byte
	at := x.size - 8
	synth.FillAt(want[:], x.seed, at)
	if x.size < 16 {
		return 0, fmt.Errorf("bench: borrow of %d bytes: expected at least 16", x.size)
	}
	t := time.Now()
	for i := range x.n {
		v, err := x.b.Borrow(x.remote.Desc.Key, 0, x.size)
		if err != nil {
			return 0, err
		}
		ok := [8]byte(v.Bytes[at:]) == want
		v.Release()
		if !ok {
			return 0, fmt.Errorf("%w: borrow %d shows other bytes than the peer's", paired.ErrFailed, i)
		}
	}
	return float64(time.Since(t).Nanoseconds()) / float64(x.n), nil
}

func (x *lender) close() error {
	_, err := x.l.serveAsk(request{Do: "free", Name: "lent"})
	return err
}

// lendSubject borrows memory of the second process over the open queue; nil where the path cannot
// lend.
func (o *TransferOptions) lendSubject(ctx context.Context, l *link, size uint64) (*subject, error) {
	x, err := o.newLender(ctx, l, size)
	if err != nil || x == nil {
		return nil, err
	}
	return &subject{unit: paired.Nanoseconds,
		run: func(context.Context) (paired.Sample, error) {
			v, err := x.sample()
			return paired.Sample{Value: v, Verified: 8 * uint64(x.n)}, err
		},
		finish: func(r *paired.Row) error {
			r.Ours.Verified += size // all of it, when it was attached
			return nil
		},
		close: x.close}, nil
}

func (o *TransferOptions) borrowRows(ctx context.Context, r *Suite, l *link, driver string) (err error) {
	if err := l.openQueues(ctx, driver, Event, 1, 0); err != nil {
		return err
	}
	defer func() {
		_, e := l.closeQueues()
		err = errors.Join(err, e)
	}()
	for _, size := range o.Sizes {
		if size < 16 {
			continue
		}
		h := shape{what: "borrow", path: driver, size: size}
		s, err := o.lendSubject(ctx, l, size)
		if err != nil {
			return fmt.Errorf("%s: %w", h.title(), err)
		}
		if s == nil {
			return nil // this path cannot lend
		}
		o.Progress.Say("%s", h.title())
		if err := o.row(ctx, r, l, h, s, paired.Plan{}); err != nil {
			return err
		}
	}
	return nil
}

// apiRows measures the convenience interface: Peer.Put and its future, one at a time.
func (o *TransferOptions) apiRows(ctx context.Context, r *Suite, driver, mode string) (err error) {
	n := o.node()
	if mode == Spin {
		if runtime.NumCPU() < 4 {
			r.Missing = append(r.Missing, driver+
				" api put, spin: both nodes' goroutines and both callers need 4 processors")
			return nil
		}
		n.Spin = time.Millisecond
	}
	l, err := o.dial(ctx, n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	for _, size := range o.Sizes {
		h := shape{what: "api put", path: driver, mode: mode, size: size, peers: 1}
		o.Progress.Say("%s", h.title())
		s, err := o.apiSubject(ctx, l, h)
		if err != nil {
			return fmt.Errorf("%s: %w", h.title(), err)
		}
		if err := o.row(ctx, r, l, h, s, paired.Plan{}); err != nil {
			return err
		}
	}
	return nil
}

func (o *TransferOptions) apiSubject(ctx context.Context, l *link, h shape) (_ *subject, err error) {
	b, err := l.allocate(ctx, h.size)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.free())
		}
	}()
	s, err := b.local.Span(0, h.size)
	if err != nil {
		return nil, err
	}
	bytes := s.Bytes()
	copies := []path.Copy{b.remote[0].At(0, s)}
	put := transfer.PutOptions{Paths: []string{h.path}}
	a := newArea(h.size, 1)
	n := uint64(0)
	var last *transfer.Transfer
	run := func(ctx context.Context, count int) (time.Duration, error) {
		t := time.Now()
		for range count {
			n++
			a.stamp(bytes, 0, n)
			x, err := l.peers[0].Put(ctx, copies, put)
			if err != nil {
				return 0, err
			}
			if err := x.Wait(ctx); err != nil {
				return 0, err
			}
			last = x
		}
		return time.Since(t), nil
	}
	count := 4
	d, err := run(ctx, 1) // opens the path
	for range 8 {
		if err != nil {
			return nil, err
		}
		if d, err = run(ctx, count); err != nil || d > o.Budget/4 {
			break
		}
		count *= 4
	}
	if err != nil {
		return nil, err
	}
	count = max(1, int(float64(count)*float64(o.Budget)/float64(d)))
	m := &meter{l: l}
	if err := m.begin(); err != nil {
		return nil, err
	}
	sample := func(ctx context.Context) (paired.Sample, error) {
		a = newArea(h.size, 1)
		a.fill(bytes)
		if _, err := l.ask(request{Do: "scribble", Name: "memory"}); err != nil {
			return paired.Sample{}, err
		}
		if _, err := run(ctx, max(1, count/10)); err != nil {
			return paired.Sample{}, err
		}
		var d time.Duration
		err := m.during(count, uint64(count)*h.size, func() (err error) {
			d, err = run(ctx, count)
			return err
		})
		if err != nil {
			return paired.Sample{}, err
		}
		v, err := l.ask(request{Do: "verify", Name: "memory", Area: a})
		return paired.Sample{Value: GBps(uint64(count)*h.size, d), Verified: v.Checked}, err
	}
	return &subject{unit: paired.GBs, run: sample, close: b.free, finish: func(x *paired.Row) error {
		x.Cost, x.Carrier = m.cost(), last.Explain().Carrier
		return nil
	}}, nil
}
