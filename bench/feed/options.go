package feed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/runtimes"
)

// Options say what Run measures. Zero values get defaults.
type Options struct {
	bench.Conditions
	Table   gpu.Table // the runtimes there are; nil: those of this build
	Runtime string    // one of the table; "": the first that is here, and the report says what it was taken instead of
	Device  int       // of the runtime, from 0
	Sizes   []uint64  // bytes of a packet; nil: 64, 1400 and 8900
	// work-items of the persistent kernel; nil: 1, 64, 1024 and 4096. What does not fit on the
	// device is noted
	Threads []int
	Pairs   int // of each row; 0: paired.MinPairs
	Budget  time.Duration
}

// ErrOptions is wrapped by errors about options that cannot be.
var ErrOptions = errors.New("bench feed")

const (
	mostSize    = 64 << 10
	mostThreads = 1 << 16
	warp        = 32 // work-items of a group, where there are so many
	slots       = 1 << 10
	burst       = 64
)

func (o *Options) complete() error {
	if o.Table == nil {
		o.Table = runtimes.Table()
	}
	if o.Sizes == nil {
		o.Sizes = []uint64{64, 1400, 8900}
	}
	if o.Threads == nil {
		o.Threads = []int{1, 64, 1024, 4096}
	}
	if o.Pairs == 0 {
		o.Pairs = paired.MinPairs
	}
	if o.Budget == 0 {
		o.Budget = 20 * time.Millisecond
	}
	switch {
	case len(o.Sizes) == 0 || slices.Min(o.Sizes) < 1 || slices.Max(o.Sizes) > mostSize:
		return fmt.Errorf("%w: packets of %v bytes: expected sizes from 1 byte to %s", ErrOptions, o.Sizes,
			bench.FormatSize(mostSize))
	case len(o.Threads) == 0 || slices.Min(o.Threads) < 1 || slices.Max(o.Threads) > mostThreads:
		return fmt.Errorf("%w: %v threads: expected numbers from 1 to %d", ErrOptions, o.Threads, mostThreads)
	case o.Pairs < 0 || o.Budget < 0:
		return fmt.Errorf("%w: %d pairs, samples of %v: expected numbers above 0", ErrOptions, o.Pairs, o.Budget)
	}
	return nil
}

// Run measures rings of the CPU, and the device. The error of a runtime or device that is not here
// wraps gpu.ErrUnavailable; one that is found after the first row comes with the report, so that
// what was measured is not lost.
func Run(ctx context.Context, o Options) (_ *paired.Report, err error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	choice, err := o.Table.Open(o.Runtime)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, choice.Close()) }()
	devices := choice.Devices()
	if o.Device < 0 || o.Device >= len(devices) {
		return nil, fmt.Errorf("bench: %w: device %d of runtime %s: it has %d, counted from 0", gpu.ErrUnavailable,
			o.Device, choice.Name(), len(devices))
	}
	g, err := newRig(&o, devices[o.Device])
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	g.s = o.Begin("feed", fmt.Sprintf("samples of about %v; each packet comes back once, with the sum of its bytes, "+
		"which is compared", o.Budget),
		fmt.Sprintf("threads are work-items in groups of %d at most, on a processor of one; a group has a ring of %d "+
			"packets of its own (fewer where there are more than 64) unless the row says one ring for all groups, "+
			"and %d goroutines feed and empty full rings, one the others", warp, slots, feeders()),
		"stages of one packet: slot, its bytes are written where the kernel reads them; seen, the ring shows that "+
			"the kernel has claimed it; answered, the CPU has its result. What the kernel does in between has no "+
			"clock that the CPU could compare",
		fmt.Sprintf("a launch for each burst: %d packets are published and announced, the kernel is launched, drains "+
			"them and ends, and all answers are there before the next burst; beside it the persistent kernel has at "+
			"most as many packets under way, and by Little's law its latency is lower where its rate is higher", burst))
	g.s.Method.Pairs = o.Pairs
	g.s.Machine.Accelerator = g.dev.String()
	if choice.Skipped != nil {
		g.s.Notes = append(g.s.Notes, "measured: "+choice.String())
	}
	for _, f := range []func(context.Context) error{g.rings, g.sweep, g.stages} {
		if err := f(ctx); err != nil {
			return g.s.End(err)
		}
	}
	return g.s.End(nil)
}
