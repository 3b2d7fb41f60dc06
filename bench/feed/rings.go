package feed

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/mem/ring"
)

// What rings between two cores have to reach.
const (
	goalSeen      = 150.0 // ns from publish to seen
	goalRate      = 20.0  // million descriptors a second, one to one
	targetSharing = 0.7   // of that with two consumers
)

const noBytes = "moves descriptors, whose numbers or count are compared"

// rings measures rings of descriptors between goroutines.
func (g *rig) rings(ctx context.Context) error {
	if runtime.GOMAXPROCS(0) < 2 {
		g.s.Missing = append(g.s.Missing, "rings between cores: there is one core")
		return nil
	}
	err := g.measure(ctx, paired.Plan{Name: "ring, publish to seen by another core", Unit: paired.Nanoseconds,
		Goal: goalSeen, Ours: paired.Contender{Name: "ring.Descriptors", Unchecked: noBytes,
			Run: func(context.Context) (paired.Sample, error) { return g.pingPong() }},
		Theirs: []paired.Contender{{Name: "a word alone", Unchecked: noBytes,
			Run: func(context.Context) (paired.Sample, error) {
				return g.words()
			}}}}, "ring")
	if err != nil {
		return err
	}
	one := func(context.Context) (paired.Sample, error) { return g.stream(1) }
	two := func(context.Context) (paired.Sample, error) { return g.stream(2) }
	err = g.measure(ctx, paired.Plan{Name: "ring, one to one", Unit: paired.MopsPerSec, Goal: goalRate,
		Ours: paired.Contender{Name: "ring.Descriptors", Unchecked: noBytes, Run: one}}, "ring")
	if err != nil {
		return err
	}
	return g.measure(ctx, paired.Plan{Name: "ring, one to two", Unit: paired.MopsPerSec, Target: targetSharing,
		Ours:   paired.Contender{Name: "two consumers", Unchecked: noBytes, Run: two},
		Theirs: []paired.Contender{{Name: "one consumer", Unchecked: noBytes, Run: one}}}, "ring")
}

// newRing is a ring in memory of its own, which free gives back.
func newRing(n int) (_ *ring.Descriptors, free func() error, err error) {
	r, err := mem.Alloc(mem.Options{Name: "bench feed", Size: ring.DescriptorsSize(n)})
	if err != nil {
		return nil, nil, err
	}
	l, err := r.Lease()
	if err != nil {
		return nil, nil, err
	}
	free = func() error {
		l.Release()
		return r.Close()
	}
	d, err := ring.NewDescriptors(l.Bytes()[:ring.DescriptorsSize(n)], 1<<20)
	return d, free, err
}

// pingPong is half of the time in which a descriptor goes to another thread and comes back.
func (g *rig) pingPong() (_ paired.Sample, err error) {
	there, free1, err := newRing(slots)
	if err != nil {
		return paired.Sample{}, err
	}
	defer free1()
	back, free2, err := newRing(slots)
	if err != nil {
		return paired.Sample{}, err
	}
	defer free2()
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var d [1]ring.Desc
		for {
			switch t, n, err := there.Claim(d[:]); {
			case err != nil:
				return
			case n == 1:
				there.Release(t, 1)
				_, _ = back.Publish(d[:])
			}
		}
	})
	var d [1]ring.Desc
	sample, err := g.halves(func() error {
		d[0].Tag++
		sent := d[0].Tag
		if _, err := there.Publish(d[:]); err != nil {
			return err
		}
		for {
			t, n, err := back.Claim(d[:])
			if err != nil {
				return err
			}
			if n == 1 {
				if back.Release(t, 1); d[0].Tag != sent {
					return fmt.Errorf("%w: descriptor %d came back as %d", paired.ErrFailed, sent, d[0].Tag)
				}
				return nil
			}
		}
	})
	there.CloseProducers()
	wg.Wait()
	return sample, err
}

// halves is half of what a round trip takes, made again and again on a thread of its own.
func (g *rig) halves(trip func() error) (paired.Sample, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var single []float64
	const per = 16 // round trips of one time, since reading the clock takes as long as a part of one
	for began := time.Now(); time.Since(began) < g.o.Budget; {
		at := time.Now()
		for range per {
			if err := trip(); err != nil {
				return paired.Sample{}, err
			}
		}
		single = append(single, max(1, float64(time.Since(at)))/per/2)
	}
	slices.Sort(single)
	return paired.Sample{Value: paired.Percentile(single, 50), Single: single}, nil
}

// words is pingPong with one atomic word in each direction, which is what the processor needs at
// least to tell another core anything.
func (g *rig) words() (paired.Sample, error) {
	var to, from struct {
		atomic.Uint64
		_ [120]byte // two lines
	}
	const end = 1 << 63
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for seen := uint64(0); seen != end; {
			if v := to.Load(); v != seen {
				seen = v
				from.Store(v)
			}
		}
	})
	sent := uint64(0)
	sample, err := g.halves(func() error {
		sent++
		for to.Store(sent); from.Load() != sent; {
		}
		return nil
	})
	to.Store(end)
	wg.Wait()
	return sample, err
}

// stream is the rate of descriptors from one producer to some consumers, in bursts of 32.
func (g *rig) stream(consumers int) (_ paired.Sample, err error) {
	r, free, err := newRing(slots)
	if err != nil {
		return paired.Sample{}, err
	}
	defer free()
	var got atomic.Uint64
	var wg sync.WaitGroup
	for range consumers {
		wg.Go(func() {
			var d [32]ring.Desc
			n := uint64(0)
			for {
				t, k, err := r.Claim(d[:])
				if err != nil {
					break
				}
				if k > 0 {
					r.Release(t, k)
					n += uint64(k)
				} else if consumers > 1 {
					runtime.Gosched() // they are more than the cores
				}
			}
			got.Add(n)
		})
	}
	var d [32]ring.Desc
	sent, began := uint64(0), time.Now()
	for i := 0; ; i++ {
		n, err := r.Publish(d[:])
		if err != nil {
			return paired.Sample{}, err
		}
		if sent += uint64(n); n == 0 && consumers > 1 {
			runtime.Gosched()
		}
		if i%256 == 0 && time.Since(began) > g.o.Budget {
			break
		}
	}
	r.CloseProducers()
	wg.Wait()
	took := time.Since(began)
	if got.Load() != sent {
		return paired.Sample{}, fmt.Errorf("%w: %d of %d descriptors came out of the ring", paired.ErrFailed,
			got.Load(), sent)
	}
	return paired.Sample{Value: float64(sent) / float64(took) * 1e3}, nil
}
