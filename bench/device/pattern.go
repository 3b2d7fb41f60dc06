package device

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/tensor/synth"
)

// fill puts the pattern of seed into memory. What is the device's gets it by a copy, also where the
// CPU sees it: so it is on a card.
func (g *rig) fill(to gpu.Span, seed uint64) error {
	if to.Memory.Kind() != gpu.DeviceMemory {
		pattern(to.Bytes(), seed)
		return nil
	}
	from, err := g.look.Span(0, to.Len)
	if err != nil {
		return err
	}
	pattern(from.Bytes(), seed)
	if err := g.aux.Copy(to, from); err != nil {
		return err
	}
	return g.aux.Wait(context.Background())
}

// holds fails where memory does not hold the pattern of seed. What is the device's is read back
// into bytes that were something else before.
func (g *rig) holds(m gpu.Span, seed uint64) error {
	if m.Memory.Kind() != gpu.DeviceMemory {
		return verify(m.Bytes(), seed, 0)
	}
	to, err := g.look.Span(0, m.Len)
	if err != nil {
		return err
	}
	clear(to.Bytes())
	if err := g.aux.Copy(to, m); err != nil {
		return err
	}
	if err := g.aux.Wait(context.Background()); err != nil {
		return err
	}
	return verify(to.Bytes(), seed, 0)
}

// grain is how many bytes a core fills or checks before it takes others.
const grain = 1 << 20

// parts gives b to all cores in pieces. It is not part of what is timed, and most of what a run
// takes.
func parts(b []byte, f func(part []byte, off uint64)) {
	n := (len(b) + grain - 1) / grain
	var next atomic.Int64
	var wg sync.WaitGroup
	work := func() {
		for i := int(next.Add(1) - 1); i < n; i = int(next.Add(1) - 1) {
			f(b[i*grain:min((i+1)*grain, len(b))], uint64(i)*grain)
		}
	}
	for range min(n, runtime.GOMAXPROCS(0)) - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
}

// pattern writes the pattern of seed.
func pattern(b []byte, seed uint64) {
	parts(b, func(p []byte, off uint64) { synth.FillAt(p, seed, off) })
}

// verify fails where b is not the part of the pattern of seed from off on.
func verify(b []byte, seed, off uint64) error {
	var first atomic.Int64
	first.Store(-1)
	parts(b, func(p []byte, at uint64) {
		if bad, ok := synth.Verify(p, seed, off+at); !ok {
			first.CompareAndSwap(-1, int64(at)+int64(bad))
		}
	})
	if bad := first.Load(); bad >= 0 {
		return fmt.Errorf("%w: byte %d of %d is wrong", paired.ErrFailed, bad, len(b))
	}
	return nil
}
