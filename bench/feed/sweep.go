package feed

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/gpu"
)

// targetBursts is what a persistent kernel is to reach of the rate of a launch for each burst.
const targetBursts = 3

// on runs f with a line that lives for one sample, after a few packets that warm it.
func on(p *place, mode gpu.ResidentMode, groups, items, rings uint32, depth int, size uint64,
	f func(*line) (paired.Sample, error)) (_ paired.Sample, err error) {
	l, err := newLine(p, mode, groups, items, rings, depth, size)
	if err != nil {
		return paired.Sample{}, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	if err := errors.Join(l.publish(1), l.drain(context.Background())); err != nil {
		return paired.Sample{}, err
	}
	return f(l)
}

// sweep measures rates of kernels with more and more work-items.
func (g *rig) sweep(ctx context.Context) error {
	if err := g.own.stays(); err != nil {
		g.s.Missing = append(g.s.Missing, "kernels that stay: "+err.Error())
		return nil
	}
	g.s.Notes = append(g.s.Notes, fmt.Sprintf("%d groups of %d work-items of the kernel are on the device at once",
		g.own.limit, g.own.most))
	var tried []uint32
	for _, threads := range g.o.Threads {
		groups, items, all := g.own.groups(threads)
		if !all {
			g.s.Notes = append(g.s.Notes,
				fmt.Sprintf("%d threads do not fit: more than %d groups of %d would wait for ever", threads,
					g.own.limit, items))
		}
		if items*groups > 1 && slices.Contains(tried, items*groups) || !all && slices.Contains(tried, items*groups) {
			continue
		}
		tried = append(tried, items*groups)
		for _, size := range g.o.Sizes {
			if err := g.rate(ctx, groups, items, size); err != nil {
				return err
			}
		}
	}
	return nil
}

// depth is how many packets a ring holds: fewer where there are many.
func depth(groups uint32) int { return max(burst, min(slots, 64*slots/int(groups))) }

// feeders is how many goroutines feed and empty full rings: a core each, and no more than a quarter
// of them.
func feeders() int { return max(1, min(4, runtime.GOMAXPROCS(0)/4)) }

// rate is the rows of the sweep for a persistent kernel: with full rings, beside goroutines; at
// equal latency, with as many packets under way as a launch for each burst has, beside that; and
// with a ring for each group, beside one for all.
func (g *rig) rate(ctx context.Context, groups, items uint32, size uint64) error {
	flow := func(p *place, mode gpu.ResidentMode, groups, items, rings uint32,
		most uint64) func(context.Context) (paired.Sample, error) {
		return func(ctx context.Context) (paired.Sample, error) {
			return on(p, mode, groups, items, rings, depth(rings), size, func(l *line) (paired.Sample, error) {
				if most == math.MaxUint64 {
					return l.full(ctx, g.o.Budget, feeders())
				}
				return l.flow(ctx, g.o.Budget, most, mode == gpu.ResidentBatch)
			})
		}
	}
	name := fmt.Sprintf("%d threads, %s", groups*items, bench.FormatSize(size))
	stays := func(rings uint32, most uint64) paired.Contender {
		return paired.Contender{Name: "persistent kernel",
			Run: flow(g.own, gpu.ResidentStay, groups, items, rings, most)}
	}
	full := paired.Plan{Name: name, Unit: paired.MopsPerSec, Ours: stays(groups, math.MaxUint64)}
	if g.cpu != nil {
		workers := uint32(max(1, runtime.GOMAXPROCS(0)-feeders()))
		full.Theirs = []paired.Contender{{Name: fmt.Sprintf("pool of %d goroutines", workers),
			Run: flow(g.cpu, gpu.ResidentStay, workers, 1, workers, math.MaxUint64)}}
	}
	if err := g.measure(ctx, full, "feed"); err != nil {
		return err
	}
	err := g.measure(ctx, paired.Plan{Name: fmt.Sprintf("%s, %d under way", name, burst), Unit: paired.MopsPerSec,
		Target: targetBursts, Ours: stays(groups, burst),
		Theirs: []paired.Contender{{Name: fmt.Sprintf("launch per burst of %d", burst),
			Run: flow(g.own, gpu.ResidentBatch, groups, items, groups, burst)}}}, "feed")
	if err != nil || groups == 1 {
		return err
	}
	one := stays(1, math.MaxUint64)
	one.Name = "one ring for all groups"
	return g.measure(ctx, paired.Plan{Name: name + ", a ring for each group", Unit: paired.MopsPerSec,
		Ours: stays(groups, math.MaxUint64), Theirs: []paired.Contender{one}}, "feed")
}

// stage is how far a single packet is.
type stage int

const (
	inSlot stage = iota
	seen
	answered
)

func (s stage) String() string {
	return [...]string{"slot written", "seen by the kernel", "answered"}[s]
}

// stages measures one packet at a time: for producers that spin, and once for one that sends after
// a pause.
func (g *rig) stages(ctx context.Context) error {
	if g.own.stays() != nil {
		return nil // sweep has said why
	}
	items := g.own.most
	for _, size := range g.o.Sizes {
		for s := inSlot; s <= answered; s++ {
			if err := g.latency(ctx, fmt.Sprintf("one packet of %s, %s", bench.FormatSize(size), s), s, size, items,
				0); err != nil {
				return err
			}
		}
	}
	return g.latency(ctx, fmt.Sprintf("one packet of %s after a pause of %v, %s", bench.FormatSize(g.o.Sizes[0]), pause,
		answered), answered, g.o.Sizes[0], items, pause)
}

// pause is how long a producer that waits for events is silent. A kernel on a processor has left by
// then.
const pause = 5 * time.Millisecond

// latency is a row of the times from the arrival of a packet to a stage.
func (g *rig) latency(ctx context.Context, name string, s stage, size uint64, items uint32, pause time.Duration) error {
	run := func(ctx context.Context) (paired.Sample, error) {
		return on(g.own, gpu.ResidentStay, 1, items, 1, 2, size, func(l *line) (paired.Sample, error) {
			var single []float64
			arrived := make([]byte, size) // as if from a socket
			for began := time.Now(); len(single) < 3 || time.Since(began) < g.o.Budget; {
				select {
				case <-ctx.Done():
					return paired.Sample{}, ctx.Err()
				case <-time.After(pause):
				}
				d, err := l.one(s, arrived)
				if err != nil {
					return paired.Sample{}, err
				}
				single = append(single, max(1, float64(d))/1e3)
			}
			slices.Sort(single)
			return paired.Sample{Value: paired.Percentile(single, 50), Single: single,
				Verified: uint64(len(single)) * size}, nil
		})
	}
	return g.measure(ctx, paired.Plan{Name: name, Unit: paired.Microseconds,
		Ours: paired.Contender{Name: "persistent kernel", Run: run}}, "latency")
}

// one sends a packet and returns when it was at the stage.
func (l *line) one(s stage, arrived []byte) (d time.Duration, err error) {
	place := l.sent % uint64(len(l.sums))
	arrived[0] = byte(l.sent)
	sum := uint64(0)
	for _, b := range arrived {
		sum += uint64(b)
	}
	at := time.Now()
	copy(l.payload[place*l.stride():], arrived)
	if l.sums[place] = sum; s == inSlot {
		d = time.Since(at)
	}
	if err := l.publish(1); err != nil {
		return 0, err
	}
	for s == seen && d == 0 {
		if n := l.in[0].Stats(); n.InRing == 0 || n.Claimed > 0 {
			d = time.Since(at)
		} else if err := l.r.Err(); err != nil {
			return 0, err
		} else {
			runtime.Gosched()
		}
	}
	for l.got < l.sent {
		if err := l.collect(); err != nil {
			return 0, err
		}
	}
	if s == answered {
		d = time.Since(at)
	}
	return d, nil
}
