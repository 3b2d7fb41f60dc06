package device

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
	// Sizes are bytes of a copy; nil: 64 KiB, 1 MiB, 16 MiB, and 256 MiB of a card or 128 MiB.
	Sizes []uint64
	// Total is how many bytes go through a pipeline, rounded down to 64 KiB; 0: 256 MiB of a card,
	// else 64 MiB.
	Total   uint64
	Pairs   int           // of each comparison; 0: paired.MinPairs
	Samples int           // of each row without one; 0: paired.MinPairs
	Budget  time.Duration // of one sample; 0: 10 ms
}

func (o *Options) complete() error {
	if o.Table == nil {
		o.Table = runtimes.Table()
	}
	if o.Pairs == 0 {
		o.Pairs = paired.MinPairs
	}
	if o.Samples == 0 {
		o.Samples = paired.MinPairs
	}
	if o.Budget == 0 {
		o.Budget = 10 * time.Millisecond
	}
	slices.Sort(o.Sizes)
	o.Sizes = slices.Compact(o.Sizes)
	switch {
	case o.Pairs < 0 || o.Samples < 0 || o.Budget < 0:
		return fmt.Errorf("%w: %d pairs, %d samples of %v: expected numbers above 0", ErrOptions, o.Pairs, o.Samples,
			o.Budget)
	case o.Sizes != nil && (len(o.Sizes) == 0 || o.Sizes[0] < leastSize || o.Sizes[len(o.Sizes)-1] > mostSize):
		return fmt.Errorf("%w: copies of %v bytes: expected sizes from %d bytes to %s", ErrOptions, o.Sizes, leastSize,
			bench.FormatSize(mostSize))
	case o.Total != 0 && (o.Total < leastTotal || o.Total > mostSize):
		return fmt.Errorf("%w: a pipeline of %d bytes: expected %s to %s", ErrOptions, o.Total,
			bench.FormatSize(leastTotal), bench.FormatSize(mostSize))
	}
	return nil
}

// ErrOptions is wrapped by errors about options that cannot be.
var ErrOptions = errors.New("bench gpu")

const (
	leastSize  = 64       // a pattern in fewer bytes could be right by chance
	leastTotal = 64 << 10 // so that there are pieces
	mostSize   = 64 << 30
)

// Run measures a device. The error of a runtime or device that is not here wraps
// gpu.ErrUnavailable; one that is found after the first row comes with the report, so that what was
// measured is not lost.
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
	g, err := newRig(ctx, &o, devices[o.Device])
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	g.s = o.Begin("gpu", fmt.Sprintf("samples of about %v; before each the source gets new bytes, after it every "+
		"byte of the destination is read back and compared", o.Budget),
		"pageable memory is Go's heap; registered memory was there before and was pinned for the device (Context.Adopt)",
		"seen: the caller asks until the device says that it is done (Stream.Query); a wait sleeps where that "+
			"takes longer")
	g.s.Method.Pairs, g.s.Method.Alone = o.Pairs, o.Samples
	g.s.Machine.Accelerator = g.title()
	if choice.Skipped != nil {
		g.s.Notes = append(g.s.Notes, "measured: "+choice.String())
	}
	g.s.Notes = append(g.s.Notes, g.notes()...)
	for _, f := range []func(context.Context) error{g.copies, g.pipelines, g.launches, g.events, g.reorders,
		g.allocations} {
		if err := f(ctx); err != nil {
			return g.s.End(err)
		}
	}
	return g.s.End(nil)
}
