package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/mem"
)

// MemOptions describe a run of Mem.
type MemOptions struct {
	Conditions
	Samples int           // of each row; 0: paired.MinPairs
	Budget  time.Duration // of one sample; 0: 20 ms
	Size    uint64        // bytes of memory to use; 0: 256 MiB
	Huge    bool
}

// Mem measures package mem: slots of a pool per second, blocks of a warm allocator, registrations,
// and first touch.
func Mem(ctx context.Context, o MemOptions) (*paired.Report, error) {
	if o.Samples == 0 {
		o.Samples = paired.MinPairs
	}
	if o.Budget == 0 {
		o.Budget = 20 * time.Millisecond
	}
	if o.Size == 0 {
		o.Size = 256 << 20
	}
	r := o.Begin("mem", fmt.Sprintf("samples of about %v", o.Budget),
		"a warm pool or allocator has memory that was touched before; first touch, which registration pays, is a row "+
			"of its own")
	r.Method.Alone = o.Samples
	for _, f := range []func(context.Context, *Suite) error{o.pool, o.alloc, o.register, o.touch} {
		if err := f(ctx, r); err != nil {
			return r.End(err)
		}
	}
	return r.End(nil)
}

// alone measures something that moves no bytes and has no rival.
func (o *MemOptions) alone(ctx context.Context, r *Suite, p paired.Plan, run func() (paired.Sample, error),
	fill func(*paired.Row) error) error {
	o.Progress.Say("%s", p.Name)
	if p.Pairs == 0 {
		p.Pairs = o.Samples
	}
	p.Ours = paired.Contender{Name: "package mem", Unchecked: noBytes,
		Run: func(context.Context) (paired.Sample, error) {
			return run()
		}}
	return r.Measure(ctx, p, fill)
}

// pool counts get+put pairs through a cache of one goroutine, and through one cache for each core
// at the same time.
func (o *MemOptions) pool(ctx context.Context, r *Suite) error {
	p, err := mem.NewPool(mem.PoolOptions{Name: "bench", SlotSize: 4096, Slots: 4096})
	if err != nil {
		return err
	}
	defer p.Close()
	for _, cores := range dedupe([]int{1, runtime.GOMAXPROCS(0)}) {
		name := "pool get+put, one core"
		if cores > 1 {
			name = fmt.Sprintf("pool get+put, 1 core of %d working", cores)
		}
		var ops, mallocs uint64
		err := o.alone(ctx, r, paired.Plan{Name: name, Unit: paired.MopsPerSec, Goal: 5},
			func() (paired.Sample, error) {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				n, d, err := o.poolSample(p, cores)
				runtime.ReadMemStats(&after)
				ops += n
				mallocs += after.Mallocs - before.Mallocs
				return paired.Sample{Value: float64(n) / float64(cores) / d.Seconds() / 1e6}, err
			}, func(x *paired.Row) error {
				x.Note = fmt.Sprintf("%.4f allocations per get+put, those of starting the goroutines and caches "+
					"included",
					float64(mallocs)/float64(ops))
				return nil
			})
		if err != nil {
			return err
		}
	}
	return nil
}

func (o *MemOptions) poolSample(p *mem.Pool, cores int) (n uint64, d time.Duration, err error) {
	errs, counts := make([]error, cores), make([]uint64, cores)
	var wg sync.WaitGroup
	t := time.Now()
	for i := range cores {
		wg.Go(func() {
			c := p.Cache()
			defer c.Close()
			for counts[i] == 0 || time.Since(t) < o.Budget { // a goroutine may begin late
				for range 1000 {
					s, err := c.Get()
					if err == nil {
						err = c.Put(s)
					}
					if err != nil {
						errs[i] = err
						return
					}
				}
				counts[i] += 1000
			}
		})
	}
	wg.Wait()
	d = time.Since(t)
	for i := range cores {
		if errs[i] != nil {
			return 0, 0, errs[i]
		}
		n += counts[i]
	}
	return n, d, nil
}

// alloc times Alloc from an allocator that has free blocks of the class: the warm-up round touched
// the memory.
func (o *MemOptions) alloc(ctx context.Context, r *Suite) error {
	a, err := mem.NewAllocator(mem.AllocatorOptions{Name: "bench", Budget: o.Size, Memory: o.memory()})
	if err != nil {
		return err
	}
	defer a.Close()
	for _, size := range []uint64{64 << 10, 1 << 20} {
		h := shape{class: "Alloc " + FormatSize(size) + " from a warm pool, p99", what: "alloc", size: size}
		err := o.alone(ctx, r, paired.Plan{Name: h.title(), Unit: paired.Microseconds, Goal: 100},
			func() (paired.Sample, error) {
				v := make([]float64, 0, 10000)
				for start := time.Now(); len(v) == 0 || len(v) < cap(v) && time.Since(start) < o.Budget; {
					t := time.Now()
					b, err := a.Alloc(size)
					d := time.Since(t)
					if err != nil {
						return paired.Sample{}, err
					}
					v = append(v, float64(d)/1e3)
					if err := a.Free(b); err != nil {
						return paired.Sample{}, err
					}
				}
				slices.Sort(v)
				return paired.Sample{Value: paired.Percentile(v, 99), Single: v}, nil
			}, func(x *paired.Row) error { h.describe(x); return nil })
		if err != nil {
			return err
		}
	}
	return nil
}

func (o *MemOptions) memory() mem.Options {
	if o.Huge {
		return mem.Options{Kind: mem.Huge}
	}
	return mem.Options{}
}

// register times a registration that is known (a hit) and one that is not (a miss), of 1 MiB.
func (o *MemOptions) register(ctx context.Context, r *Suite) error {
	m := o.memory()
	m.Name, m.Size = "bench registered", 1<<20
	if o.Huge {
		m.Size = 2 << 20
	}
	region, err := mem.Alloc(m)
	if err != nil {
		return err
	}
	defer region.Close()
	for _, hit := range []bool{true, false} {
		p := paired.Plan{Name: "registration, miss", Unit: paired.Nanoseconds}
		if hit {
			p.Name, p.Goal = "registration, hit", 1000
		}
		err := o.alone(ctx, r, p, func() (paired.Sample, error) {
			d, err := o.registerSample(region, hit)
			return paired.Sample{Value: d}, err
		}, nil)
		if err != nil {
			return err
		}
	}
	return nil
}

func (o *MemOptions) registerSample(region *mem.Region, hit bool) (float64, error) {
	c, err := mem.NewRegCache(mem.RegCacheOptions{Name: "bench", Registrar: mem.Populate})
	if err != nil {
		return 0, err
	}
	defer func() { c.Close() }()
	once := func() error {
		g, err := c.Get(region.All(), mem.ReadAccess|mem.WriteAccess)
		if err != nil {
			return err
		}
		return g.Release()
	}
	if hit {
		if err := once(); err != nil {
			return 0, err
		}
		n := 0
		t := time.Now()
		for ; time.Since(t) < o.Budget; n += 100 {
			for range 100 {
				if err := once(); err != nil {
					return 0, err
				}
			}
		}
		d := time.Since(t)
		if s := c.Stats(); s.Misses != 1 {
			return 0, fmt.Errorf("%w: %d registrations where one was expected", paired.ErrFailed, s.Misses)
		}
		return float64(d.Nanoseconds()) / float64(n), nil
	}
	t := time.Now()
	err = once()
	d := time.Since(t)
	if s := c.Stats(); err == nil && s.Misses != 1 {
		err = fmt.Errorf("%w: the registration was not a miss", paired.ErrFailed)
	}
	return float64(d.Nanoseconds()), err
}

// touch measures how fast memory comes into being.
func (o *MemOptions) touch(ctx context.Context, r *Suite) error {
	h := shape{what: "first touch", size: o.Size}
	m := o.memory()
	m.Name, m.Size = "bench first touch", int(o.Size)
	return o.alone(ctx, r, paired.Plan{Name: h.title(), Unit: paired.GBs, Pairs: min(o.Samples, 7)},
		func() (paired.Sample, error) {
			t := time.Now()
			region, err := mem.Alloc(m)
			if err != nil {
				return paired.Sample{}, err
			}
			v := GBps(o.Size, time.Since(t))
			return paired.Sample{Value: v}, region.Close()
		}, func(x *paired.Row) error { h.describe(x); return nil })
}
