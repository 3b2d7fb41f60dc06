package device

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/internal/kernels"
	"github.com/penstock-io/penstock/internal/sys"
)

// noBytes is the reason for no check of bytes where none are moved.
const noBytes = "moves no bytes"

// perBatch is how many launches one call of Enqueue takes in the row of batches.
const perBatch = 64

func maxProcs() int { return runtime.GOMAXPROCS(0) }

func cores(n int) string {
	if n == 1 {
		return "1 core"
	}
	return fmt.Sprintf("%d cores", n)
}

// usage sums up what operations cost this process.
type usage struct {
	ops     uint64
	mallocs uint64
	cpu     time.Duration
}

// during counts what f costs.
func (u *usage) during(f func() error) error {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	c, err := sys.ProcessCPU()
	if err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	d, err := sys.ProcessCPU()
	runtime.ReadMemStats(&after)
	u.mallocs += after.Mallocs - before.Mallocs
	u.cpu += d - c
	return err
}

func (u *usage) cost() *paired.Cost {
	return &paired.Cost{Allocs: float64(u.mallocs) / float64(u.ops), CPUPerOp: u.cpu.Seconds() * 1e6 / float64(u.ops)}
}

// mostSingles is how many operations a sample has at most.
const mostSingles = 10000

// singles makes operations for the time of a sample, of which each does per things, and returns the
// time of one thing in microseconds, ascending. buf is used again.
func (g *rig) singles(ctx context.Context, buf []float64, u *usage, per int,
	once func(context.Context) (time.Duration, error)) ([]float64, error) {
	buf = buf[:0]
	start := time.Now()
	err := u.during(func() error {
		for len(buf) < mostSingles && (len(buf) == 0 || time.Since(start) < g.o.Budget) {
			if err := ctx.Err(); err != nil {
				return err
			}
			d, err := once(ctx)
			if err != nil {
				return err
			}
			buf = append(buf, max(float64(d), 1)/float64(per)/1e3)
		}
		return nil
	})
	u.ops += uint64(len(buf) * per)
	slices.Sort(buf)
	return buf, err
}

// timed is a row of single operations, whose value is their median time.
func (g *rig) timed(ctx context.Context, name, what string, size uint64, once func() (time.Duration, error)) error {
	var u usage
	single := make([]float64, 0, mostSingles)
	run := func(ctx context.Context) (_ paired.Sample, err error) {
		if single, err = g.singles(ctx, single, &u, 1, func(context.Context) (time.Duration, error) {
			return once()
		}); err != nil {
			return paired.Sample{}, err
		}
		return paired.Sample{Value: paired.Percentile(single, 50), Single: single}, nil
	}
	return g.alone(ctx, paired.Plan{Name: name, Unit: paired.Microseconds,
		Ours: paired.Contender{Unchecked: noBytes, Run: run}}, func(x *paired.Row) error {
		x.What, x.Size, x.Cost = what, size, u.cost()
		return nil
	})
}

// tiny is a kernel of one item that stores 8 bytes, which is how a launch is seen to have done
// something.
type tiny struct {
	g    *rig
	m    *gpu.Memory
	mod  *gpu.Module
	call *gpu.Call
	ops  []gpu.Op
}

var oneItem = gpu.Grid{Groups: 1, Group: 1}

func (g *rig) newTiny() (_ *tiny, err error) {
	t := &tiny{g: g}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	if t.m, err = g.alloc(gpu.DeviceMemory, 8); err != nil {
		return nil, err
	}
	if t.mod, err = g.c.Load(kernels.Fill); err != nil {
		return nil, err
	}
	k, err := t.mod.Kernel("fill")
	if err != nil {
		return nil, err
	}
	if t.call, err = k.Prepare(gpu.Buffer(t.m.All()), gpu.U64(0), gpu.U64(8), gpu.U64(0)); err != nil {
		return nil, err
	}
	t.ops = slices.Repeat([]gpu.Op{gpu.LaunchOp(t.call, oneItem)}, perBatch)
	return t, nil
}

func (t *tiny) close() error {
	t.g.idle()
	var errs []error
	if t.call != nil {
		errs = append(errs, t.call.Close())
	}
	if t.mod != nil {
		errs = append(errs, t.mod.Close())
	}
	if t.m != nil {
		errs = append(errs, t.m.Close())
	}
	return errors.Join(errs...)
}

// stores runs f with launches that store a number that no launch before has stored, and fails where
// it is not there afterwards.
func (t *tiny) stores(f func() error) (verified uint64, err error) {
	want := rand.Uint64()
	if err := t.call.Set(3, gpu.U64(want)); err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	var got [8]byte
	if err := t.g.st.Read(got[:], t.m.All()); err != nil {
		return 0, err
	}
	if v := binary.LittleEndian.Uint64(got[:]); v != want {
		return 0, fmt.Errorf("%w: the kernel has left %#x: expected %#x", paired.ErrFailed, v, want)
	}
	return uint64(len(got)), nil
}

// launches measures how long a kernel of one item takes.
func (g *rig) launches(ctx context.Context) (err error) {
	t, err := g.newTiny()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	for _, x := range []struct {
		name string
		per  int // launches of an operation
		once func(ctx context.Context) (time.Duration, error)
	}{
		{"launch of one item, seen", 1, func(ctx context.Context) (time.Duration, error) {
			at := time.Now()
			err := errors.Join(g.st.Launch(t.call, oneItem), seen(ctx, g.st))
			return time.Since(at), err
		}},
		{"launch of one item, waited for", 1, func(context.Context) (time.Duration, error) {
			at := time.Now()
			err := errors.Join(g.st.Launch(t.call, oneItem), g.st.Wait(context.Background()))
			return time.Since(at), err
		}},
		{fmt.Sprintf("Enqueue of %d launches, a launch", perBatch), perBatch,
			func(ctx context.Context) (time.Duration, error) {
				at := time.Now()
				err := enqueue(g.st, t.ops, perBatch)
				d := time.Since(at)
				return d, errors.Join(err, seen(ctx, g.st))
			}},
		{fmt.Sprintf("Enqueue of %d launches, seen, a launch", perBatch), perBatch,
			func(ctx context.Context) (time.Duration, error) {
				at := time.Now()
				err := errors.Join(enqueue(g.st, t.ops, perBatch), seen(ctx, g.st))
				return time.Since(at), err
			}},
	} {
		if err := g.launch(ctx, t, x.name, x.per, x.once); err != nil {
			return err
		}
	}
	return nil
}

// launch is a row of launches, per of them in one operation.
func (g *rig) launch(ctx context.Context, t *tiny, name string, per int,
	once func(context.Context) (time.Duration, error)) error {
	var u usage
	single := make([]float64, 0, mostSingles)
	run := func(ctx context.Context) (paired.Sample, error) {
		n, err := t.stores(func() (err error) {
			single, err = g.singles(ctx, single, &u, per, once)
			return err
		})
		if err != nil {
			return paired.Sample{}, err
		}
		return paired.Sample{Value: paired.Percentile(single, 50), Single: single, Verified: n}, nil
	}
	// Once before anything is counted: queues of the runtime grow at their first use.
	if _, err := run(ctx); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	u = usage{}
	return g.alone(ctx, paired.Plan{Name: name, Unit: paired.Microseconds, Ours: paired.Contender{Run: run}},
		func(x *paired.Row) error {
			x.What, x.Blocks, x.Cost = "launch", per, u.cost()
			return nil
		})
}

// events measures how long it takes to see that an event has happened.
func (g *rig) events(ctx context.Context) (err error) {
	e, err := g.c.NewEvent(gpu.EventOptions{Name: "bench"})
	if err != nil {
		return err
	}
	defer func() {
		g.idle()
		err = errors.Join(err, e.Close())
	}()
	err = g.timed(ctx, "event recorded, seen", "event", 0, func() (time.Duration, error) {
		at := time.Now()
		if err := g.st.Record(e); err != nil {
			return 0, err
		}
		for {
			done, err := e.Query()
			if done || err != nil {
				return time.Since(at), err
			}
			runtime.Gosched() // a device in Go needs a processor too
		}
	})
	if err != nil {
		return err
	}
	const queries = 100
	return g.timed(ctx, "query of an event that happened", "event", 0, func() (time.Duration, error) {
		at := time.Now()
		for range queries {
			if done, err := e.Query(); err != nil || !done {
				return 0, errors.Join(err, fmt.Errorf("%w: an event that happened has not happened", paired.ErrFailed))
			}
		}
		return time.Since(at) / queries, nil
	})
}

// allocations measures how long it takes to allocate memory and give it back.
func (g *rig) allocations(ctx context.Context) error {
	for _, kind := range []gpu.Kind{gpu.DeviceMemory, gpu.PinnedMemory} {
		for _, size := range []uint64{4 << 10, 1 << 20, 64 << 20} {
			if !g.fits(size) || size > g.most {
				continue
			}
			name := fmt.Sprintf("allocate and free %s memory, %s", kind, bench.FormatSize(size))
			err := g.timed(ctx, name, "alloc", size, func() (time.Duration, error) {
				at := time.Now()
				m, err := g.alloc(kind, size)
				if err != nil {
					return 0, err
				}
				err = m.Close()
				return time.Since(at), err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}
