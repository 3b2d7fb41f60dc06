package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/path"
)

// FairnessOptions describe a run of Fairness.
type FairnessOptions struct {
	Conditions
	// Command starts the second process, which must call ServePeer on its standard streams.
	Command []string
	Paths   []string        // nil: shm and tcp
	Streams int             // that put small messages; 0: 100
	Small   uint64          // bytes of each of those; 0: 4 KiB
	Large   uint64          // bytes of each large put; 0: 256 MiB
	Pauses  []time.Duration // between two puts of a stream; nil: none, and 10 ms
	Puts    int             // of each stream in a run; 0: 200 without a pause, 50 with one
	Pairs   int             // 0: paired.MinPairs
	Drivers Drivers         // nil except in tests
}

// fairTarget is how much longer the 99th percentile of small puts may be beside a large one than
// without.
const fairTarget = 3

// Fairness measures how long small puts of many streams take beside a large put, as interleaved
// pairs with the same without it: one large stream puts one message after the other all the time,
// on the same connection and path. Every byte is checked.
func Fairness(ctx context.Context, o FairnessOptions) (*paired.Report, error) {
	if o.Paths == nil {
		o.Paths = []string{"shm", "tcp"}
	}
	if o.Streams == 0 {
		o.Streams = 100
	}
	if o.Small == 0 {
		o.Small = 4 << 10
	}
	if o.Large == 0 {
		o.Large = 256 << 20
	}
	if o.Pauses == nil {
		o.Pauses = []time.Duration{0, 10 * time.Millisecond}
	}
	if o.Pairs == 0 {
		o.Pairs = paired.MinPairs
	}
	if o.Streams < 1 || o.Streams > 10000 || o.Small < stampSize || o.Small > 1<<20 || o.Large < 1<<20 ||
		o.Large > 1<<32 || o.Puts < 0 {
		return nil, fmt.Errorf("%w: %d streams of %d bytes, %d puts of each, beside one of %d bytes: expected 1 to "+
			"10000 streams, 8 bytes to 1 MiB, and 1 MiB to 4 GiB", ErrOptions,
			o.Streams, o.Small, o.Puts, o.Large)
	}
	r := o.Begin("fairness",
		fmt.Sprintf("two processes; %d streams put %s each, one put at a time per stream, from the call to the end "+
			"of its future; p99 of all puts of a run", o.Streams, FormatSize(o.Small)),
		fmt.Sprintf("loaded: beside one stream that puts %s again and again on the same path", FormatSize(o.Large)),
		"after each run the receiver checks every byte of the last message of each stream")
	r.Method.Pairs = o.Pairs
	t := TransferOptions{Conditions: o.Conditions, Command: o.Command, Drivers: o.Drivers, NoPin: true}
	l, err := t.dial(ctx, nodeOptions{})
	if err != nil {
		return nil, err
	}
	f := &fairness{o: o, l: l}
	err = f.run(ctx, r)
	return r.End(errors.Join(err, l.close()))
}

// fairness is the memory of the load, on both sides.
type fairness struct {
	o            FairnessOptions
	l            *link
	small, large *buffers
	smalls       area
	larges       area
	number       uint64 // of the last message
}

func (f *fairness) run(ctx context.Context, r *Suite) (err error) {
	if f.small, err = f.l.allocateNamed(ctx, "small", uint64(f.o.Streams)*f.o.Small); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.small.free()) }()
	if f.large, err = f.l.allocateNamed(ctx, "large", f.o.Large); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.large.free()) }()
	for _, p := range f.o.Paths {
		for _, pause := range f.o.Pauses {
			if err := f.row(ctx, r, p, pause); err != nil {
				return err
			}
		}
	}
	return nil
}

// row compares the loaded streams with the same streams alone.
func (f *fairness) row(ctx context.Context, r *Suite, driver string, pause time.Duration) error {
	name := fmt.Sprintf("%s, %d x %s", driver, f.o.Streams, FormatSize(f.o.Small))
	if pause > 0 {
		name += fmt.Sprintf(", every %v", pause)
	}
	f.o.Progress.Say("%s", name)
	puts := f.o.Puts
	if puts == 0 {
		puts = 200
		if pause > 0 {
			puts = 50
		}
	}
	var medians [2][]float64
	var rates []float64
	contender := func(what int, name string) paired.Contender {
		return paired.Contender{Name: name, Run: func(ctx context.Context) (paired.Sample, error) {
			x, err := f.sample(ctx, driver, pause, puts, what == 1)
			if err != nil {
				return paired.Sample{}, err
			}
			medians[what] = append(medians[what], x.p50)
			if what == 1 {
				rates = append(rates, x.rate)
			}
			return paired.Sample{Value: x.p99, Verified: x.checked}, nil
		}}
	}
	return r.Measure(ctx, paired.Plan{Name: name + ", p99", Unit: paired.Microseconds, Pairs: f.o.Pairs,
		Target: fairTarget,
		Ours:   contender(1, "beside a large put"), Theirs: []paired.Contender{contender(0, "alone")}},
		func(x *paired.Row) error {
			shape{what: "small put beside a large one", path: driver, mode: Event, size: f.o.Small,
				peers: 1}.describe(x)
			r.Notes = append(r.Notes,
				fmt.Sprintf("%s: p50 %.3g us beside the large put, %.3g us alone; the large one went at %.3g GB/s "+
					"(medians of runs)",
					name, quantile(medians[1], 0.5), quantile(medians[0], 0.5), quantile(rates, 0.5)))
			return nil
		})
}

// fairSample is what one run found out.
type fairSample struct {
	p50, p99 float64 // us
	rate     float64 // of the large put, GB/s
	checked  uint64
}

func (f *fairness) sample(ctx context.Context, driver string, pause time.Duration, puts int, loaded bool) (s fairSample,
	err error) {
	f.smalls = newArea(f.o.Small, f.o.Streams)
	f.smalls.fill(f.small.local.All().Bytes())
	var big *heavy
	if loaded {
		f.larges = newArea(f.o.Large, 1)
		f.larges.fill(f.large.local.All().Bytes())
		if big, err = f.begin(ctx, driver); err != nil {
			return s, err
		}
	}
	first := f.number
	f.number += uint64(puts)
	times, err := f.streams(ctx, driver, pause, puts, first)
	if big != nil {
		rate, berr := big.end()
		s.rate, err = rate, errors.Join(err, berr)
	}
	if err != nil {
		return s, err
	}
	slices.Sort(times)
	s.p50, s.p99 = quantile(times, 0.5), quantile(times, 0.99)
	if s.checked, err = f.verify(f.small, f.smalls); err == nil && loaded {
		var n uint64
		n, err = f.verify(f.large, f.larges)
		s.checked += n
	}
	return s, err
}

func (f *fairness) verify(b *buffers, a area) (uint64, error) {
	got, err := f.l.ask(request{Do: "verify", Name: b.name, Area: a})
	if err == nil && got.Checked != a.len() {
		err = fmt.Errorf("%w: the receiver checked %d bytes of %d", paired.ErrFailed, got.Checked, a.len())
	}
	return got.Checked, err
}

// heavy is the stream of large puts.
type heavy struct {
	stop  atomic.Bool
	ready chan struct{} // closed when the first one is under way
	done  chan struct{}
	moved uint64
	took  time.Duration
	err   error
}

func (f *fairness) begin(ctx context.Context, driver string) (*heavy, error) {
	h := &heavy{ready: make(chan struct{}), done: make(chan struct{})}
	copies := []path.Copy{f.large.remote[0].At(0, f.large.local.All())}
	bytes := f.large.local.All().Bytes()
	put := func(n uint64) error {
		f.larges.stamp(bytes, 0, n)
		x, err := f.l.peers[0].Put(ctx, copies, transfer.PutOptions{Paths: []string{driver}})
		if n == 1 {
			close(h.ready)
		}
		if err != nil {
			return err
		}
		if err := x.Wait(ctx); err != nil {
			return err
		}
		h.moved += f.o.Large
		return nil
	}
	go func() {
		defer close(h.done)
		begin := time.Now()
		for n := uint64(1); h.err == nil && !h.stop.Load(); n++ {
			h.err = put(n)
		}
		h.took = time.Since(begin)
	}()
	<-h.ready
	return h, nil
}

// end lets the put under way end, and returns how fast they went.
func (h *heavy) end() (float64, error) {
	h.stop.Store(true)
	<-h.done
	return GBps(h.moved, h.took), h.err
}

// streams has every stream make its puts, and returns how long each took in microseconds.
func (f *fairness) streams(ctx context.Context, driver string, pause time.Duration, puts int, first uint64) ([]float64,
	error) {
	all := make([]float64, f.o.Streams*puts)
	errs := make([]error, f.o.Streams)
	bytes := f.small.local.All().Bytes()
	var wg sync.WaitGroup
	for i := range f.o.Streams {
		span, err := f.small.local.Span(uint64(i)*f.o.Small, f.o.Small)
		if err != nil {
			return nil, err
		}
		wg.Go(func() {
			errs[i] = f.stream(ctx, i, []path.Copy{f.small.remote[0].At(span.Off, span)},
				transfer.PutOptions{Paths: []string{driver}, Stream: uint32(i) + 1},
				pause, all[i*puts:][:puts], bytes, first)
		})
	}
	wg.Wait()
	return all, errors.Join(errs...)
}

func (f *fairness) stream(ctx context.Context, i int, copies []path.Copy, o transfer.PutOptions, pause time.Duration,
	took []float64, bytes []byte, first uint64) error {
	var rest *time.Timer
	if pause > 0 {
		// They do not all begin at once.
		rest = time.NewTimer(pause * time.Duration(i) / time.Duration(f.o.Streams))
		defer rest.Stop()
	}
	for k := range took {
		if rest != nil {
			select {
			case <-rest.C:
				rest.Reset(pause)
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		f.smalls.stamp(bytes, i, first+uint64(k)+1)
		begin := time.Now()
		x, err := f.l.peers[0].Put(ctx, copies, o)
		if err == nil {
			err = x.Wait(ctx)
		}
		if err != nil {
			return fmt.Errorf("stream %d, put %d: %w", i, k, err)
		}
		took[k] = float64(time.Since(begin)) / 1e3
	}
	return nil
}

// quantile of values, by the nearest rank.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	return s[min(int(q*float64(len(s))), len(s)-1)]
}
