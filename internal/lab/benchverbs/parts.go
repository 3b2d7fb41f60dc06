package benchverbs

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/peers"
	"github.com/penstock-io/penstock/mem"
)

// callsAlone is why rows that time only calls check no bytes.
const callsAlone = "times the calls alone"

// cost measures what posting and polling take, and how many small messages go through them.
func (b *verbsBench) cost(ctx context.Context) error {
	many := min(32, max(1, b.o.Depth/2))
	for _, n := range slices.Compact([]int{1, many}) {
		if err := b.postRow(ctx, n); err != nil {
			return err
		}
	}
	if err := b.pollRow(ctx); err != nil {
		return err
	}
	for _, n := range slices.Compact([]int{1, many}) {
		if err := b.smallRow(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// smallWrites is a pair whose chains have n inline writes of 8 bytes.
func (b *verbsBench) smallWrites(n int) (*verbsPair, error) {
	p, err := b.d.pair(verbsShape{size: 4096, depth: max(b.o.Depth, n), chain: n, inline: pingBytes})
	if err != nil {
		return nil, err
	}
	ok := p.a.chains(n, func(c *ibv.SendChain, i int, flags ibv.SendFlags) bool {
		at := uint64(pingBytes * i)
		_, ok := c.Write(uint64(i), flags|ibv.Inline, p.b.mr.Addr()+at, p.b.mr.RKey(), p.a.mr.SGE(at, pingBytes))
		return ok
	})
	if !ok {
		return nil, errors.Join(fmt.Errorf("bench: a chain of %d writes is full", n), p.close())
	}
	return p, nil
}

// postRow is the time of the call that posts, of each request; what is posted is waited for between
// the calls.
func (b *verbsBench) postRow(ctx context.Context, n int) (err error) {
	p, err := b.smallWrites(n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	calls := max(1, b.o.Trips/n)
	ours := paired.Contender{Name: "ibv", Unchecked: callsAlone, Run: func(ctx context.Context) (paired.Sample, error) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var in time.Duration
		for range calls {
			t := time.Now()
			if err := p.a.post(p.a.last); err != nil {
				return paired.Sample{}, err
			}
			in += time.Since(t)
			if _, err := p.a.await(ctx, p.a.sendCQ); err != nil {
				return paired.Sample{}, err
			}
		}
		return paired.Sample{Value: float64(in) / float64(calls*n)}, nil
	}}
	return b.measure(ctx, shape{what: "post", size: pingBytes, blocks: n},
		paired.Plan{Name: fmt.Sprintf("post 8 B inline, %d by one call", n), Unit: paired.Nanoseconds, Ours: ours})
}

// pollRow is the time of a call that finds nothing.
func (b *verbsBench) pollRow(ctx context.Context) (err error) {
	p, err := b.smallWrites(1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	calls := 100 * b.o.Trips
	ours := paired.Contender{Name: "ibv", Unchecked: callsAlone, Run: func(ctx context.Context) (paired.Sample, error) {
		t := time.Now()
		for range calls {
			if n, err := p.a.sendCQ.Poll(p.a.wc); n != 0 || err != nil {
				return paired.Sample{}, errors.Join(fmt.Errorf("%w: %d completions of nothing", paired.ErrFailed, n),
					err)
			}
		}
		return paired.Sample{Value: float64(time.Since(t)) / float64(calls)}, ctx.Err()
	}}
	return b.measure(ctx, shape{what: "poll"}, paired.Plan{Name: "poll, nothing there", Unit: paired.Nanoseconds,
		Ours: ours})
}

// smallRow is how many small writes go through per second, n by one call.
func (b *verbsBench) smallRow(ctx context.Context, chain int) (err error) {
	o := *b.o
	o.Chain = chain
	f := &verbsFlow{op: "write", size: pingBytes, depth: o.Depth, chain: chain, signal: o.signal()}
	if f.p, err = b.smallWrites(f.chain); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.p.close()) }()
	f.src, f.dst = f.p.a.buf[:pingBytes*f.chain], f.p.b.buf[:pingBytes*f.chain]
	n, err := f.count(ctx, b.o.Budget)
	if err != nil {
		return err
	}
	ours := paired.Contender{Name: "ibv", Run: func(ctx context.Context) (paired.Sample, error) {
		s, err := f.sample(ctx, n)
		s.Value, s.Verified = s.Value*1e3/pingBytes, uint64(len(f.dst)) // from GB/s
		return s, err
	}}
	theirs := b.theirs(peers.RDMATest{Program: "ib_write_bw", Size: pingBytes, Iterations: n, Depth: b.o.Depth,
		Inline: pingBytes, List: chain}, func(r peers.RDMARow) float64 {
		return r.MessagesPerS / 1e6
	})
	return b.measure(ctx, shape{what: "write", size: pingBytes},
		paired.Plan{Name: fmt.Sprintf("write 8 B inline, %d by one call", chain), Unit: paired.MopsPerSec,
			Target: bandwidthTarget,
			Ours:   ours, Theirs: theirs})
}

// verbsRegistrar registers memory at a device.
type verbsRegistrar struct{ pd *ibv.PD }

func (r verbsRegistrar) Register(s mem.Span, _ mem.Access) (any, error) {
	b := s.Bytes()
	return r.pd.RegMR(ibv.MRSpec{Addr: dl.Address(b), Length: uint64(len(b)),
		Access: ibv.LocalWrite | ibv.RemoteWrite | ibv.RemoteRead})
}

func (r verbsRegistrar) Deregister(handle any) error { return handle.(*ibv.MR).Close() }

// registration measures what it costs to have memory registered: anew, and kept by a cache.
func (b *verbsBench) registration(ctx context.Context) (err error) {
	c, err := b.d.dev.Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	pd, err := c.AllocPD()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pd.Close()) }()
	for _, size := range b.o.Regions {
		if err := b.registerRow(ctx, verbsRegistrar{pd}, size); err != nil {
			return err
		}
	}
	return nil
}

func (b *verbsBench) registerRow(ctx context.Context, r verbsRegistrar, size uint64) (err error) {
	region, err := bench.Allocate("registration", size, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, region.Close()) }()
	span := region.All()
	clear(span.Bytes()) // so that no page is touched first while the clock runs
	cache, err := mem.NewRegCache(mem.RegCacheOptions{Name: "bench verbs", Registrar: r})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cache.Close()) }()
	hits, misses := max(1, b.o.Trips), max(1, min(b.o.Trips/100, int(64<<20/size)))
	ours := paired.Contender{Name: "mem.RegCache, kept", Unchecked: callsAlone,
		Run: func(ctx context.Context) (paired.Sample, error) {
			t := time.Now()
			for range hits {
				x, err := cache.Get(span, mem.ReadAccess|mem.WriteAccess)
				if err == nil {
					err = x.Release()
				}
				if err != nil {
					return paired.Sample{}, err
				}
			}
			return paired.Sample{Value: float64(time.Since(t)) / 1e3 / float64(hits)}, ctx.Err()
		}}
	theirs := paired.Contender{Name: "registered and given up", Unchecked: callsAlone,
		Run: func(ctx context.Context) (paired.Sample, error) {
			t := time.Now()
			for range misses {
				h, err := r.Register(span, mem.ReadAccess|mem.WriteAccess)
				if err == nil {
					err = r.Deregister(h)
				}
				if err != nil {
					return paired.Sample{}, err
				}
			}
			return paired.Sample{Value: float64(time.Since(t)) / 1e3 / float64(misses)}, ctx.Err()
		}}
	return b.measure(ctx, shape{what: "register", size: size}, paired.Plan{Name: "registration of " +
		bench.FormatSize(size), Unit: paired.Microseconds, Ours: ours, Theirs: []paired.Contender{theirs}})
}
