package benchverbs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	randv2 "math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/internal/peers"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor/synth"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/path/verbs"
)

// paths measures what transfer/path/verbs makes of the device: operations of a path beside the same
// requests of perftest.
func (b *verbsBench) paths(ctx context.Context) error {
	for _, op := range []path.OpKind{path.Put, path.Get} {
		for _, size := range b.o.Sizes {
			if err := b.pathFlowRow(ctx, op, size); err != nil {
				return err
			}
		}
	}
	for _, notify := range []bool{false, true} {
		if err := b.pathPingRow(ctx, notify); err != nil {
			return err
		}
	}
	return nil
}

// verbsPaths is two ends of a path over the device, each with memory that the other may write and
// read.
type verbsPaths struct {
	ends [2]verbsSide
}

// verbsSide is one end.
type verbsSide struct {
	p      path.Path
	region *mem.Region
	export *path.Export
	events [64]path.Event
}

// open connects the two ends. The caller closes them.
func (b *verbsBench) openPaths(ctx context.Context, size uint64) (v *verbsPaths, err error) {
	v = &verbsPaths{}
	defer func() {
		if err != nil {
			err = errors.Join(err, v.close())
		}
	}()
	o := verbs.Options{Library: b.o.Library, Device: b.d.dev.Name(), Port: b.d.port.Port}
	if b.o.GID != AnyGID {
		o.GID = &b.o.GID
	}
	d := verbs.New(o)
	var cfg [2]setup.Config
	for i := range v.ends {
		e := &v.ends[i]
		if e.region, err = bench.Allocate("path", size, false); err != nil {
			return v, err
		}
		x := new(path.Exports)
		if e.export, err = x.Add(e.region.All(), path.Read|path.Write); err != nil {
			return v, err
		}
		cfg[i] = setup.Config{Rights: path.Read | path.Write, Exports: x}
	}
	asks, err := d.Endpoint(cfg[0], nil)
	if err != nil {
		return v, err
	}
	asked, err := d.Endpoint(cfg[1], asks.Description())
	if err != nil {
		return v, errors.Join(err, asks.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	connected := make(chan error, 1)
	go func() {
		p, err := asked.Connect(ctx, asks.Description())
		v.ends[1].p = p
		connected <- err
	}()
	v.ends[0].p, err = asks.Connect(ctx, asked.Description())
	if err != nil {
		cancel()
	}
	return v, errors.Join(err, <-connected)
}

func (v *verbsPaths) close() (err error) {
	for i := range v.ends {
		if p := v.ends[i].p; p != nil {
			err = errors.Join(err, p.Close())
		}
	}
	for i := range v.ends {
		if r := v.ends[i].region; r != nil {
			err = errors.Join(err, r.Close())
		}
	}
	return err
}

// serve has the second end do what a path owes its peer, asleep between, until f is over.
func (v *verbsPaths) serve(ctx context.Context, f func(context.Context) error) error {
	serving, stop := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() {
		w, err := path.NewWaiter()
		if err != nil {
			served <- err
			return
		}
		defer w.Close()
		z := &v.ends[1]
		for {
			n, err := w.Wait(serving, z.p, z.events[:], 0)
			if err != nil {
				if serving.Err() != nil {
					err = nil
				}
				served <- err
				return
			}
			for _, ev := range z.events[:n] {
				if ev.Kind == path.EventDown {
					served <- errors.Join(path.ErrDown, ev.Err)
					return
				}
			}
		}
	}()
	err := f(serving)
	stop()
	return errors.Join(err, <-served)
}

// pathFlowRow measures the bandwidth of puts or gets of a size.
func (b *verbsBench) pathFlowRow(ctx context.Context, op path.OpKind, size uint64) (err error) {
	v, err := b.openPaths(ctx, size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.close()) }()
	f := &pathFlow{v: v, depth: b.o.Depth}
	for range max(1, min(pathBatch, b.o.Depth/2)) {
		f.ops = append(f.ops, path.Op{Kind: op, Copies: []path.Copy{{Local: v.ends[0].region.All(),
			Key: v.ends[1].export.Key()}}})
	}
	name, program := "put", "ib_write_bw"
	if op == path.Get {
		name, program = "get", "ib_read_bw"
	}
	n := 1
	for { // as many as take about as long as a sample
		took, err := f.run(ctx, n)
		if err != nil {
			return err
		}
		if took >= b.o.Budget/8 || n >= 1<<22 {
			n = max(1, min(int(float64(n)*float64(b.o.Budget)/float64(took+1)), 1<<22))
			break
		}
		n *= 4
	}
	ours := paired.Contender{Name: "transfer/path/verbs", Run: func(ctx context.Context) (paired.Sample, error) {
		return f.sample(ctx, n)
	}}
	theirs := b.theirs(peers.RDMATest{Program: program, Size: size, Iterations: max(n, 5), Depth: b.o.Depth},
		func(r peers.RDMARow) float64 {
			return r.MessagesPerS * float64(r.Size) / 1e9
		})
	return b.measure(ctx, shape{what: name, size: size},
		paired.Plan{Name: fmt.Sprintf("path: %s %s", name, bench.FormatSize(size)), Unit: paired.GBs,
			Target: bandwidthTarget,
			Ours:   ours, Theirs: theirs})
}

// pathBatch is how many operations one Post hands over, as soon as there is room for them. perftest
// posts as many writes as have ended, and sees 100 end at a time.
const pathBatch = 16

// pathFlow is puts or gets of one size, one after the other.
type pathFlow struct {
	v     *verbsPaths
	depth int
	ops   []path.Op // of one Post
}

// sample moves n times new bytes and compares what arrived.
func (f *pathFlow) sample(ctx context.Context, n int) (s paired.Sample, err error) {
	src, dst := f.v.ends[0].region.All().Bytes(), f.v.ends[1].region.All().Bytes()
	if f.ops[0].Kind == path.Get {
		src, dst = dst, src
	}
	seed := randv2.Uint64()
	synth.Fill(src, seed)
	clear(dst)
	took, err := f.run(ctx, n)
	if err != nil {
		return s, err
	}
	if bad, ok := synth.Verify(dst, seed, 0); !ok {
		return s, fmt.Errorf("%w: byte %d of %d is wrong", paired.ErrFailed, bad, len(dst))
	}
	return paired.Sample{Value: bench.GBps(uint64(n)*uint64(len(dst)), took), Verified: uint64(len(dst))}, nil
}

// run makes n operations, and returns how long that took until the last was done.
func (f *pathFlow) run(ctx context.Context, n int) (took time.Duration, err error) {
	err = f.v.serve(ctx, func(ctx context.Context) error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		a := &f.v.ends[0]
		begin := time.Now()
		for posted, done, idle := 0, 0, 0; done < n; {
			for posted < n {
				ops := f.ops[:min(len(f.ops), n-posted)]
				if posted-done+len(ops) > f.depth {
					break
				}
				k, err := a.p.Post(ops)
				posted += k
				if errors.Is(err, path.ErrFull) {
					break
				}
				if err != nil {
					return err
				}
			}
			got := a.p.Poll(a.events[:])
			if got == 0 {
				if idle++; idle%patience == 0 && ctx.Err() != nil {
					return ctx.Err()
				}
			}
			k, err := doneOf(a.events[:got])
			if err != nil {
				return err
			}
			done += k
		}
		took = time.Since(begin)
		return nil
	})
	return took, err
}

// doneOf counts the operations that are done.
func doneOf(events []path.Event) (n int, err error) {
	for i := range events {
		switch e := &events[i]; {
		case e.Kind == path.EventDown:
			return n, errors.Join(path.ErrDown, e.Err)
		case e.Kind == path.EventDone && e.Err != nil:
			return n, e.Err
		case e.Kind == path.EventDone:
			n++
		}
	}
	return n, nil
}

// pathPingRow measures one put of 8 bytes: until the adapter of the other side has acknowledged it,
// or, with a notification, until the other side has put its answer. Both are beside two writes of
// perftest, there and back; the first also beside its writes one at a time, each acknowledged.
func (b *verbsBench) pathPingRow(ctx context.Context, notify bool) (err error) {
	v, err := b.openPaths(ctx, 4096)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.close()) }()
	g := &pathPing{v: v, clock: b.clock}
	name, sample := "path: put 8 B and its acknowledgement", g.acknowledged
	if notify {
		name, sample = "path: put 8 B, notified, and one back", g.answered
	}
	ours := paired.Contender{Name: "transfer/path/verbs", Run: func(ctx context.Context) (paired.Sample, error) {
		t, err := sample(ctx, b.o.Trips)
		if err != nil {
			return paired.Sample{}, err
		}
		slices.Sort(t)
		return paired.Sample{Value: paired.Percentile(t, 50), Verified: pingBytes * uint64(len(t)), Single: t}, nil
	}}
	theirs := b.theirs(peers.RDMATest{Program: "ib_write_lat", Size: pingBytes, Iterations: max(b.o.Trips, 5),
		Inline: pingBytes}, func(r peers.RDMARow) float64 {
		return 2 * r.Typical
	})
	if !notify { // what ib_write_lat does not wait for: the acknowledgement of each write, and its completion
		one := b.theirs(peers.RDMATest{Program: "ib_write_bw", Size: pingBytes, Iterations: max(b.o.Trips, 5),
			Inline: pingBytes, Depth: 1}, func(r peers.RDMARow) float64 {
			return 1e6 / r.MessagesPerS
		})
		theirs = append(theirs, one...)
	}
	return b.measure(ctx, shape{what: "ping", mode: bench.Spin, size: pingBytes},
		paired.Plan{Name: name, Unit: paired.Microseconds, Target: latencyTarget, Ours: ours, Theirs: theirs})
}

// pathPing is numbers that an end puts into the other's memory.
type pathPing struct {
	v     *verbsPaths
	clock time.Duration // what it takes to read it
	next  uint64
}

// say puts number k into the other end's memory, from the middle of this one's.
func (v *verbsPaths) say(end int, k uint64, notify bool) error {
	e, to := &v.ends[end], &v.ends[1-end]
	from, err := e.region.Span(pingOut, pingBytes)
	if err != nil {
		return err
	}
	binary.NativeEndian.PutUint64(from.Bytes(), k)
	ops := [1]path.Op{{Kind: path.Put, Copies: []path.Copy{{Local: from, Key: to.export.Key()}}, Notify: notify,
		Imm: k & 0xffffffff}}
	_, err = e.p.Post(ops[:])
	return err
}

// until polls an end until so many operations are done and as many notifications have come.
func (v *verbsPaths) until(ctx context.Context, end, done, notes int) error {
	e := &v.ends[end]
	for idle := 1; done > 0 || notes > 0; idle++ {
		n := e.p.Poll(e.events[:])
		k, err := doneOf(e.events[:n])
		if err != nil {
			return err
		}
		done -= k
		for i := range e.events[:n] {
			if e.events[i].Kind == path.EventNotify {
				notes--
			}
		}
		if n == 0 && idle%patience == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// acknowledged puts n numbers, and returns the microseconds from each Post to the event that says
// that it is done.
func (g *pathPing) acknowledged(ctx context.Context, n int) (t []float64, err error) {
	far := g.v.ends[1].region.All().Bytes()
	err = g.v.serve(ctx, func(ctx context.Context) error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for range n {
			g.next++
			begin := time.Now()
			if err := errors.Join(g.v.say(0, g.next, false), g.v.until(ctx, 0, 1, 0)); err != nil {
				return err
			}
			t = append(t, microseconds(time.Since(begin), g.clock))
			if got := loadWord(far); got != g.next {
				return fmt.Errorf("%w: put %d is done, and its bytes are those of %d", paired.ErrFailed, g.next, got)
			}
		}
		return nil
	})
	return t, err
}

// answered has n numbers go to the other end and come back, and returns the microseconds of each
// trip.
func (g *pathPing) answered(ctx context.Context, n int) (t []float64, err error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	first := g.next + 1
	g.next += uint64(n)
	answers := make(chan error, 1)
	hear := func(end int, k uint64, done int) error {
		if err := g.v.until(ctx, end, done, 1); err != nil {
			return err
		}
		if got := loadWord(g.v.ends[end].region.All().Bytes()); got != k {
			return fmt.Errorf("%w: number %d came where %d was due", paired.ErrFailed, got, k)
		}
		return nil
	}
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var err error
		for k := first; k < first+uint64(n) && err == nil; k++ {
			done := 1 // of the answer before, which the other end has seen
			if k == first {
				done = 0
			}
			if err = hear(1, k, done); err == nil {
				err = g.v.say(1, k, true)
			}
		}
		if err == nil {
			err = g.v.until(ctx, 1, 1, 0)
		}
		if err != nil {
			stop(err)
		}
		answers <- err
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for k := first; k < first+uint64(n) && err == nil; k++ {
		begin := time.Now()
		if err = g.v.say(0, k, true); err == nil {
			err = hear(0, k, 1)
		}
		t = append(t, microseconds(time.Since(begin), g.clock))
	}
	if err != nil {
		stop(err)
	}
	return t, errors.Join(err, <-answers)
}
