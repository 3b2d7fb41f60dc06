package device

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/internal/kernels"
	"github.com/penstock-io/penstock/mem"
)

// mover moves the bytes of a row.
type mover struct {
	way    string
	how    string // "pinned"
	size   uint64 // bytes of one copy
	moved  uint64 // bytes of one repetition, where it is more than one copy
	hot    bool   // see ceilings.of
	kernel bool
	fill   func(seed uint64) error
	run    func(ctx context.Context, n int) error // n times; returns when it is done
	check  func(seed uint64) (verified uint64, err error)
}

func (m *mover) name() string { return m.way + " " + m.how + " " + bench.FormatSize(m.size) }

// sample makes n copies of new bytes.
func (m *mover) sample(ctx context.Context, n int) (paired.Sample, time.Duration, error) {
	seed := rand.Uint64()
	if err := m.fill(seed); err != nil {
		return paired.Sample{}, 0, err
	}
	t := time.Now()
	err := m.run(ctx, n)
	d := max(time.Since(t), 1)
	if err != nil {
		return paired.Sample{}, 0, err
	}
	checked, err := m.check(seed)
	// bytes per nanosecond: GB/s
	return paired.Sample{Value: float64(max(m.moved, m.size)) * float64(n) / float64(d), Verified: checked}, d, err
}

// contender is the mover in a plan, calibrated.
func (g *rig) contender(ctx context.Context, name string, m *mover) (paired.Contender, error) {
	n, err := g.repeats(func(n int) (time.Duration, error) {
		_, d, err := m.sample(ctx, n)
		return d, err
	})
	if err != nil {
		return paired.Contender{}, fmt.Errorf("%s: %w", m.name(), err)
	}
	return paired.Contender{Name: name, Run: func(ctx context.Context) (paired.Sample, error) {
		s, _, err := m.sample(ctx, n)
		return s, err
	}}, nil
}

// batch is how many operations go into a stream by one call.
const batch = 256

// enqueue puts n copies into a stream, in batches.
func enqueue(s *gpu.Stream, ops []gpu.Op, n int) error {
	for n > 0 {
		k := min(n, len(ops))
		if _, err := s.Enqueue(ops[:k]); err != nil {
			return err
		}
		n -= k
	}
	return nil
}

// copies measures copies of every size.
func (g *rig) copies(ctx context.Context) error {
	for _, size := range g.o.Sizes {
		if !g.fits(size) {
			g.missing("copies of %s: %s has room for %s", bench.FormatSize(size), g.dev, bench.FormatSize(g.most))
			continue
		}
		if err := g.copiesOf(ctx, size); err != nil {
			return err
		}
	}
	return nil
}

// ends is the memory of copies of one size.
type ends struct {
	g        *rig
	size     uint64
	dev, two *gpu.Memory
	pin, in  *gpu.Memory
	heap     []byte
	region   *mem.Region
	reg      *gpu.Memory // region, registered
	mapped   *gpu.Memory
	mod      *gpu.Module
	calls    []*gpu.Call
}

func (g *rig) newEnds(size uint64) (_ *ends, err error) {
	e := &ends{g: g, size: size, heap: make([]byte, size)}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	get := func(kind gpu.Kind) (m *gpu.Memory) {
		if err == nil {
			m, err = g.alloc(kind, size)
		}
		return m
	}
	e.dev, e.two, e.pin, e.in = get(gpu.DeviceMemory), get(gpu.DeviceMemory), get(gpu.PinnedMemory),
		get(gpu.PinnedMemory)
	if g.info.Capabilities.Has(gpu.CapMapped) {
		e.mapped = get(gpu.MappedMemory)
	}
	if err != nil || !g.info.Capabilities.Has(gpu.CapAdopt) {
		return e, err
	}
	if e.region, err = mem.Alloc(mem.Options{Name: "bench registered", Size: int(size)}); err == nil {
		e.reg, err = g.c.Adopt("bench registered", e.region.All().Bytes()[:size])
	}
	return e, err
}

func (e *ends) close() error {
	e.g.idle()
	var errs []error
	for _, c := range e.calls {
		errs = append(errs, c.Close())
	}
	if e.mod != nil {
		errs = append(errs, e.mod.Close())
	}
	for _, m := range []*gpu.Memory{e.dev, e.two, e.pin, e.in, e.reg, e.mapped} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	if e.region != nil {
		errs = append(errs, e.region.Close())
	}
	return errors.Join(errs...)
}

func (g *rig) copiesOf(ctx context.Context, size uint64) (err error) {
	e, err := g.newEnds(size)
	if err != nil {
		return fmt.Errorf("copies of %s: %w", bench.FormatSize(size), err)
	}
	defer func() { err = errors.Join(err, e.close()) }()
	top, err := g.ceilings(size)
	if err != nil {
		return err
	}
	defer top.close()
	all := []*mover{e.pageable(toDevice), e.pageable(fromDevice), e.copier(toDevice, "pinned", e.dev, e.pin),
		e.copier(fromDevice, "pinned", e.pin, e.dev)}
	if e.mapped != nil {
		all = append(all, e.copier(toDevice, "mapped", e.dev, e.mapped),
			e.copier(fromDevice, "mapped", e.mapped, e.dev))
	}
	if e.reg != nil {
		all = append(all, e.copier(toDevice, "registered", e.dev, e.reg),
			e.copier(fromDevice, "registered", e.reg, e.dev))
	}
	all = append(all, e.both(), e.copier(onDevice, "copy", e.two, e.dev))
	byKernel, err := e.kernelMovers()
	if err != nil {
		return err
	}
	for _, m := range append(all, byKernel...) {
		ours, err := g.contender(ctx, m.name(), m)
		if err != nil {
			return err
		}
		err = g.alone(ctx, paired.Plan{Name: m.name(), Unit: paired.GBs, Ours: ours,
			Ceiling: top.of(m.way, m.hot, m.kernel)}, func(x *paired.Row) error {
			x.What, x.Mode, x.Size = m.way, m.how, m.size
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// pageable copies from or to Go's heap, which the driver cannot reach by itself.
func (e *ends) pageable(way string) *mover {
	m := &mover{way: way, how: "pageable", size: e.size}
	all := e.dev.All()
	once := func() error { return e.g.st.Write(all, e.heap) }
	m.fill = func(seed uint64) error { pattern(e.heap, seed); return nil }
	m.check = func(seed uint64) (uint64, error) { return e.size, e.g.holds(all, seed) }
	if way == fromDevice {
		once = func() error { return e.g.st.Read(e.heap, all) }
		m.fill = func(seed uint64) error { return e.g.fill(all, seed) }
		m.check = func(seed uint64) (uint64, error) { return e.size, verify(e.heap, seed, 0) }
	}
	m.run = func(_ context.Context, n int) error {
		for range n {
			if err := once(); err != nil {
				return err
			}
		}
		return nil
	}
	return m
}

// copier copies by a stream.
func (e *ends) copier(way, how string, dst, src *gpu.Memory) *mover {
	ops := slices.Repeat([]gpu.Op{gpu.CopyOp(dst.All(), src.All())}, batch)
	return e.streamed(&mover{way: way, how: how, size: e.size}, ops, dst.All(), src.All())
}

// streamed completes a mover whose work is the first n of ops.
func (e *ends) streamed(m *mover, ops []gpu.Op, dst, src gpu.Span) *mover {
	m.fill = func(seed uint64) error { return e.g.fill(src, seed) }
	m.check = func(seed uint64) (uint64, error) { return m.size, e.g.holds(dst, seed) }
	m.run = func(ctx context.Context, n int) error {
		if err := enqueue(e.g.st, ops, n); err != nil {
			return err
		}
		return seen(ctx, e.g.st)
	}
	return m
}

// both copies to the device and from it at once, by two streams. Its figure is both together.
func (e *ends) both() *mover {
	up := slices.Repeat([]gpu.Op{gpu.CopyOp(e.dev.All(), e.pin.All())}, batch)
	down := slices.Repeat([]gpu.Op{gpu.CopyOp(e.in.All(), e.two.All())}, batch)
	return &mover{way: bothWays, how: "pinned", size: e.size, moved: 2 * e.size,
		fill: func(seed uint64) error { return errors.Join(e.g.fill(e.pin.All(), seed), e.g.fill(e.two.All(), ^seed)) },
		run: func(ctx context.Context, n int) error {
			// In turns, so that no direction waits for the other one's room in the driver.
			for left := n; left > 0; left -= batch {
				k := min(left, batch)
				if err := errors.Join(enqueue(e.g.st, up, k), enqueue(e.g.aux, down, k)); err != nil {
					return err
				}
			}
			return errors.Join(seen(ctx, e.g.st), seen(ctx, e.g.aux))
		},
		check: func(seed uint64) (uint64, error) {
			return 2 * e.size, errors.Join(e.g.holds(e.dev.All(), seed), e.g.holds(e.in.All(), ^seed))
		}}
}

// kernelMovers copy by a kernel: within the device, and over the bus from and to memory that the
// device maps.
func (e *ends) kernelMovers() (all []*mover, err error) {
	if e.mod, err = e.g.c.Load(kernels.Copy); err != nil {
		return nil, err
	}
	k, err := e.mod.Kernel("copy")
	if err != nil {
		return nil, err
	}
	add := func(way, how string, dst, src *gpu.Memory) error {
		c, err := k.Prepare(gpu.Buffer(dst.All()), gpu.U64(0), gpu.Buffer(src.All()), gpu.U64(0), gpu.U64(e.size))
		if err != nil {
			return err
		}
		e.calls = append(e.calls, c)
		group := min(256, e.g.info.MaxGroup)
		grid := gpu.Grid{Groups: uint32(min(uint64(e.g.info.Units)*8, e.size/uint64(group)+1)), Group: group}
		ops := slices.Repeat([]gpu.Op{gpu.LaunchOp(c, grid)}, batch)
		all = append(all, e.streamed(&mover{way: way, how: how, size: e.size, kernel: true}, ops, dst.All(), src.All()))
		return nil
	}
	if err := add(onDevice, "kernel", e.two, e.dev); err != nil {
		return nil, err
	}
	if e.mapped == nil {
		return all, nil
	}
	return all, errors.Join(add(toDevice, "kernel, mapped", e.dev, e.mapped),
		add(fromDevice, "kernel, mapped", e.mapped, e.dev))
}
