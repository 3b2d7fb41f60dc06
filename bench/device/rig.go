package device

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/host"
	"github.com/penstock-io/penstock/host/cards"
	"github.com/penstock-io/penstock/internal/cuda"
	"github.com/penstock-io/penstock/internal/nvml"
)

// rig is the device that is measured, and what is open on it.
type rig struct {
	o    *Options
	s    *bench.Suite
	dev  *gpu.Device
	c    *gpu.Context
	st   *gpu.Stream // what is timed goes here
	aux  *gpu.Stream // what fills and checks, and the other direction
	info gpu.Info
	is   cards.Device
	card bool // its memory is its own, behind a link

	most      uint64 // bytes of the largest row
	look      *gpu.Memory
	bandwidth float64 // of its memory in GB/s, reading and writing together; 0: not known
	cache     uint64  // bytes of its second-level cache
}

func newRig(ctx context.Context, o *Options, dev *gpu.Device) (_ *rig, err error) {
	g := &rig{o: o, dev: dev, info: dev.Info()}
	g.describe(ctx)
	if g.c, err = dev.Open(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.close())
		}
	}()
	if g.st, err = g.c.NewStream(gpu.StreamOptions{Name: "bench"}); err != nil {
		return nil, err
	}
	if g.aux, err = g.c.NewStream(gpu.StreamOptions{Name: "bench, the other"}); err != nil {
		return nil, err
	}
	if o.Sizes == nil {
		o.Sizes = []uint64{64 << 10, 1 << 20, 16 << 20, 128 << 20}
		if g.card {
			o.Sizes[3] = 256 << 20
		}
	}
	if o.Total == 0 {
		o.Total = o.Sizes[len(o.Sizes)-1]
		if !g.card {
			o.Total = 64 << 20
		}
	}
	for _, n := range append([]uint64{o.Total}, o.Sizes...) {
		if g.fits(n) {
			g.most = max(g.most, n)
		}
	}
	if g.most == 0 {
		return nil, fmt.Errorf("bench: %s: %w: the device has %d bytes", dev, gpu.ErrOutOfMemory, g.info.Memory)
	}
	g.look, err = g.alloc(gpu.PinnedMemory, g.most)
	return g, err
}

// fits reports whether a row of so many bytes has room: two of them on the device, and on a device
// that is the host's memory all that rows have.
func (g *rig) fits(n uint64) bool {
	copies := uint64(3)
	if !g.card {
		copies = 10
	}
	return n <= g.info.MaxAlloc && n <= g.info.Memory/copies
}

func (g *rig) close() error {
	var errs []error
	if g.look != nil {
		errs = append(errs, g.look.Close())
	}
	for _, s := range []*gpu.Stream{g.st, g.aux} {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	if g.c != nil {
		errs = append(errs, g.c.Close())
	}
	return errors.Join(errs...)
}

// idle waits until nothing is under way, before memory is given back. The call that saw a failure
// first has reported it.
func (g *rig) idle() {
	_, _ = g.st.Wait(context.Background()), g.aux.Wait(context.Background())
}

// describe finds out what bounds the device.
func (g *rig) describe(ctx context.Context) {
	g.card = g.info.Bus != ""
	lib, err := nvml.Load("")
	if err != nil {
		lib = nil // not an NVIDIA card, or one that tells less
	} else {
		defer lib.Close()
	}
	facts := &host.Facts{}
	if g.card {
		facts = host.Read(ctx, host.Live(ctx))
	}
	g.is = cards.Describe(&g.info, facts, lib)
	if g.info.Runtime != "cuda" {
		return
	}
	d, err := cuda.Load("")
	if err != nil {
		return
	}
	dev, err := d.Device(g.info.Index)
	if err != nil {
		return
	}
	clock, err1 := dev.Attribute(cuda.MemoryClockRate)
	width, err2 := dev.Attribute(cuda.MemoryBusWidth)
	cache, err3 := dev.Attribute(cuda.L2CacheSize)
	integrated, err4 := dev.Attribute(cuda.Integrated)
	if errors.Join(err1, err2, err3, err4) != nil {
		return
	}
	g.card = integrated == 0
	g.bandwidth, g.cache = 2*float64(clock)*1e3*float64(width)/8/1e9, uint64(cache) // two transfers in each clock
}

// title is the device in a line, for the machine of the report.
func (g *rig) title() string {
	parts := []string{fmt.Sprintf("%s %d: %s", g.info.Runtime, g.info.Index, g.info.Name), g.info.Arch, g.info.Driver}
	if g.info.Bus != "" {
		parts = append(parts, g.info.Bus)
	}
	if g.is.Link != nil {
		parts = append(parts, g.is.Link.Max.String())
	}
	return strings.Join(parts, ", ")
}

// notes are what else is to be said of the device.
func (g *rig) notes() (out []string) {
	if n := g.is.NVML; n != nil {
		s := fmt.Sprintf("%s, %d MiB of memory", n.UUID, n.MemoryTotal>>20)
		if n.SMClock != nil && n.MaxSMClock != nil && n.MemoryClock != nil {
			s += fmt.Sprintf("; processors at %d of %d MHz before the run, memory at %d MHz", *n.SMClock, *n.MaxSMClock,
				*n.MemoryClock)
		}
		if n.Temperature != nil {
			s += fmt.Sprintf(", %d degrees", *n.Temperature)
		}
		for _, t := range n.Throttle {
			s += "; slowed down: " + t
		}
		out = append(out, s)
	}
	if l := g.is.Link; l != nil {
		out = append(out, fmt.Sprintf("link of the card: %s before the run, %s at most (%s)", l.Now, l.Max, l.Source))
	}
	return out
}

func (g *rig) alloc(kind gpu.Kind, n uint64) (*gpu.Memory, error) {
	return g.c.Alloc(gpu.MemoryOptions{Name: "bench", Kind: kind, Size: n})
}

// missing notes what is not measured.
func (g *rig) missing(format string, a ...any) {
	g.s.Missing = append(g.s.Missing, fmt.Sprintf(format, a...))
}

// seen asks until everything in the stream is done.
func seen(ctx context.Context, s *gpu.Stream) error {
	const between = 1 << 10 // looks between two at ctx
	for n := 1; ; n++ {
		done, err := s.Query()
		if done || err != nil {
			return err
		}
		if n%between == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		runtime.Gosched() // a device in Go needs a processor too
	}
}

// repeats is how often run must do its work to last about the budget; it is called with a number
// and returns how long that took.
func (g *rig) repeats(run func(n int) (time.Duration, error)) (int, error) {
	const most = 1 << 16
	if _, err := run(1); err != nil { // for caches, clocks and pages
		return 0, err
	}
	for n := 1; ; n *= 4 {
		d, err := run(n)
		if err != nil {
			return 0, err
		}
		if d >= g.o.Budget/8 || n >= most {
			return min(max(1, int(float64(n)*float64(g.o.Budget)/float64(d+1))), most), nil
		}
	}
}

// alone measures a row that has no rival.
func (g *rig) alone(ctx context.Context, p paired.Plan, fill func(*paired.Row) error) error {
	p.Pairs = g.o.Samples
	return g.measure(ctx, p, fill)
}

// measure measures a row.
func (g *rig) measure(ctx context.Context, p paired.Plan, fill func(*paired.Row) error) error {
	g.o.Progress.Say("%s", p.Name)
	p.Ours.Name = "package gpu"
	return g.s.Measure(ctx, p, func(x *paired.Row) error {
		x.Path = g.info.Runtime
		if fill == nil {
			return nil
		}
		return fill(x)
	})
}
