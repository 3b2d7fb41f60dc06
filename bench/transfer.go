package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/mem/vec"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/drivers"
)

// TransferOptions describe a run of Transfer.
type TransferOptions struct {
	Conditions
	// Command starts the second process, which must call ServePeer on its standard streams.
	Command []string
	Paths   []string // each NAME or NAME?KEY=VALUE&... as drivers.New takes it; nil: shm and tcp
	Modes   []string // nil: Spin and Event
	Sizes   []uint64 // bytes; nil: 64 B to 256 MiB
	Peers   []int    // how many at once; nil: 1 and 16
	Samples int      // of each row; 0: 10
	Budget  time.Duration
	Pairs   int           // of each comparison; 0: paired.MinPairs
	RowTime time.Duration // a comparison that takes longer for each of theirs ends with the pairs it has; 0: 45 s
	Against []string      // the peers to compare with: "ucx", "fi", "iperf3", "openssl"
	// OpenSSL returns the path of the program in C that streams with OpenSSL. nil: there is none,
	// and a comparison with "openssl" is reported as missing.
	OpenSSL func() (program string, err error)
	Huge    bool // 2 MiB pages on both sides
	NoPin   bool // leave spinning threads where the kernel puts them
	// Congestion is the TCP congestion control of ours: "" lets package transfer/path/tcp choose by
	// measurement.
	Congestion string
	shaped     []string // those of Paths that have options; Paths has their names
	Quick      bool     // a smoke run of a few seconds; its figures mean nothing
	Drivers    Drivers  // nil except in tests

	// Local and Remote are the memories of this process and of the second one. Where one is not
	// host memory, Transfer measures puts and gets between these memories in pairs with the same
	// ones between host memories, and nothing else.
	Local, Remote Place

	// For Targets. Isolated is the command line of this program that calls Targets again, prints
	// the report as JSON, and takes the flags --network and --outside for the fields of those
	// names; nil leaves that part out.
	Isolated []string
	Network  string // the congestion control for everybody
	Outside  string // the network namespace of the program that started this one
}

func (o *TransferOptions) defaults() error {
	if o.Paths == nil {
		o.Paths = []string{"shm", "tcp"}
	}
	o.Paths = slices.Clone(o.Paths)
	for i, p := range o.Paths {
		if _, _, err := drivers.Find(p); err != nil && o.Drivers == nil {
			return fmt.Errorf("%w: path %q: %w", ErrOptions, p, err)
		}
		name, _, asked := strings.Cut(p, "?")
		if o.Paths[i] = name; asked {
			o.shaped = append(o.shaped, p)
		}
	}
	if err := errors.Join(o.Local.check(), o.Remote.check()); err != nil {
		return err
	}
	if o.Modes == nil {
		o.Modes = []string{Spin, Event}
		if o.placed() {
			o.Modes = []string{Event}
		}
	}
	for _, m := range o.Modes {
		if m != Spin && m != Event {
			return fmt.Errorf("%w: mode %q: expected %s or %s", ErrOptions, m, Spin, Event)
		}
	}
	if o.Sizes == nil {
		o.Sizes = []uint64{64, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20}
		switch {
		case o.placed() && o.Quick:
			o.Sizes = []uint64{64 << 10, 1 << 20}
		case o.placed(): // where staging costs what it does
			o.Sizes = []uint64{64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20}
		case o.Quick:
			o.Sizes = []uint64{64, 64 << 10, 1 << 20}
		}
	}
	for _, s := range o.Sizes {
		if s < 8 || s > 1<<32 {
			return fmt.Errorf("%w: size %d: expected 8 bytes to 4 GiB", ErrOptions, s)
		}
	}
	if o.Peers == nil {
		o.Peers = []int{1, 16}
		if o.Quick {
			o.Peers = []int{1, 3}
		}
	}
	for _, n := range o.Peers {
		if n < 1 || n > 1000 {
			return fmt.Errorf("%w: %d peers: expected 1 to 1000", ErrOptions, n)
		}
	}
	if o.Samples == 0 {
		o.Samples = 10
		if o.Quick {
			o.Samples = 2
		}
	}
	if o.Pairs == 0 {
		o.Pairs = paired.MinPairs
		if o.Quick {
			o.Pairs = 2
		}
	}
	if o.Budget == 0 {
		o.Budget = 50 * time.Millisecond
		if o.Quick {
			o.Budget = 3 * time.Millisecond
		}
	}
	if o.RowTime == 0 {
		o.RowTime = 45 * time.Second
	}
	o.Paths, o.Modes, o.Sizes, o.Peers = dedupe(o.Paths), dedupe(o.Modes), dedupe(o.Sizes), dedupe(o.Peers)
	if o.Samples < 1 || o.Pairs < 1 {
		return fmt.Errorf("%w: samples and pairs: expected at least 1", ErrOptions)
	}
	if o.placed() && len(o.Against) > 0 {
		return fmt.Errorf("%w: the peers' own tools are compared on host memory: leave out either them or the memory "+
			"of an accelerator", ErrOptions)
	}
	if slices.Contains(o.Modes, Spin) && runtime.GOMAXPROCS(0) < 2 {
		return errors.New("bench: spinning on both sides needs two processors; use mode event")
	}
	return nil
}

// node is what both processes' nodes have in common.
func (o *TransferOptions) node() nodeOptions {
	n := nodeOptions{Paths: slices.Clone(o.shaped)}
	if o.Congestion != "" {
		n.Paths = append(n.Paths, "tcp?congestion="+o.Congestion)
	}
	return n
}

// probe says what this machine lacks for the paths that are measured, before anything is.
func (o *TransferOptions) probe() error {
	n := o.node()
	all, err := n.drivers(o.Drivers)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	for _, d := range all {
		if slices.Contains(o.Paths, d.Name()) {
			if err := drivers.Probe(d); err != nil {
				return fmt.Errorf("bench: %w", err)
			}
		}
	}
	return nil
}

// method says how figures came about, for the report.
func (o *TransferOptions) method() []string {
	pages := "4 KiB pages"
	if o.Huge {
		pages = "2 MiB pages"
	}
	pin := "spinning threads pinned to one processor each"
	if o.NoPin {
		pin = "threads not pinned"
	}
	return []string{
		fmt.Sprintf("two processes, %s, %s, samples of about %v each", pages, pin, o.Budget),
		"every message carries a stamp; after each sample the receiving side checks every byte of the last message " +
			"of every slot, outside the timed part",
		"ceiling: a figure above it fails the run from 128 MiB; smaller sizes fit the caches and say how warm they were",
		"cost: from getrusage, the runtime and the path",
	}
}

// placed reports whether a side uses other memory than the host's.
func (o *TransferOptions) placed() bool { return o.Local.Kind != mem.Host || o.Remote.Kind != mem.Host }

// memoryCopyMethod is method where a side uses other memory than the host's.
func (o *TransferOptions) memoryCopyMethod() []string {
	return []string{
		fmt.Sprintf("two processes, Peer.Put and Peer.Get one at a time, samples of about %v each, in pairs with the "+
			"same between host memories", o.Budget),
		"two messages are sent in turn; after each sample the receiving side checks every byte of the last one, " +
			"outside the timed part: memory of a device is read back, and summed by its own kernel",
		"cost: from getrusage, the runtime and the path",
	}
}

// slotsFor is how many operations of a size are outstanding at once on a path, each with memory of
// its own. Puts over shared memory are done when they are posted, and the peers' tools use the same
// memory for every message: one slot then asks as much of the caches as they do.
func slotsFor(driver string, size uint64) int {
	switch {
	case driver == "shm" && size >= 64<<10:
		return 1
	case size >= 1<<20:
		return 2
	case size >= 64<<10:
		return 4
	case size >= 4<<10:
		return 16
	}
	return 64
}

// Transfer measures puts, gets, borrows, small round trips and lists of blocks between two
// processes. A report comes with every error that was found after the first row, so that what was
// measured is not lost.
func Transfer(ctx context.Context, o TransferOptions) (*paired.Report, error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	if err := o.probe(); err != nil {
		return nil, err
	}
	if o.placed() {
		r := o.Begin("transfer", o.memoryCopyMethod()...)
		r.Method.Pairs = o.Pairs
		vec.Calibrate()
		return r.End(o.memoryCopies(ctx, r))
	}
	r := o.Begin("transfer", o.method()...)
	r.Method.Alone = o.Samples
	vec.Calibrate()
	l, err := o.dial(ctx, o.node())
	if err != nil {
		return nil, err
	}
	err = o.transfer(ctx, r, l)
	err = errors.Join(err, l.close())
	if err == nil && len(o.Against) > 0 {
		r.Method.Pairs = o.Pairs
		err = o.against(ctx, r)
	}
	return r.End(err)
}

func (o *TransferOptions) transfer(ctx context.Context, r *Suite, l *link) error {
	for _, driver := range o.Paths {
		for _, mode := range o.Modes {
			if err := o.pingRow(ctx, r, l, driver, mode); err != nil {
				return err
			}
			for _, n := range o.Peers {
				if err := o.sweep(ctx, r, l, driver, mode, n); err != nil {
					return fmt.Errorf("%s %s, %d peers: %w", driver, mode, n, err)
				}
			}
		}
		if err := o.borrowRows(ctx, r, l, driver); err != nil {
			return err
		}
		for _, mode := range o.Modes {
			if err := o.apiRows(ctx, r, driver, mode); err != nil {
				return fmt.Errorf("%s %s api: %w", driver, mode, err)
			}
		}
	}
	return nil
}

// sweep measures puts and gets of every size, and the list of blocks, over n peers.
func (o *TransferOptions) sweep(ctx context.Context, r *Suite, l *link, driver, mode string, n int) (err error) {
	if err := l.openQueues(ctx, driver, mode, n, 0); err != nil {
		return err
	}
	defer func() {
		_, e := l.closeQueues()
		err = errors.Join(err, e)
	}()
	for _, size := range o.Sizes {
		if n > 1 && size > 1<<20 {
			continue // many peers share the same memory bandwidth: one says it all
		}
		for _, kind := range []path.OpKind{path.Put, path.Get} {
			if err := o.moveRow(ctx, r, l, kind, shape{what: kindName(kind), path: driver, mode: mode, size: size,
				peers: n}); err != nil {
				return err
			}
		}
	}
	if n == 1 {
		for _, kind := range []path.OpKind{path.Put, path.Get} {
			if err := o.moveRow(ctx, r, l, kind, shape{what: kindName(kind), path: driver, mode: mode,
				size: 1024 * 4096, blocks: 1024, peers: 1}); err != nil {
				return err
			}
		}
	}
	if len(r.Notes) == 0 || n == 1 && mode == o.Modes[0] {
		for _, s := range l.queues[0].Path().Explain() {
			r.Notes = append(r.Notes, driver+": "+s)
		}
	}
	return nil
}

func kindName(k path.OpKind) string {
	if k == path.Get {
		return "get"
	}
	return "put"
}

// subject is ours in a row of two processes.
type subject struct {
	unit paired.Unit
	run  func(context.Context) (paired.Sample, error)
	// finish completes the row; nil: there is nothing to add.
	finish  func(*paired.Row) error
	ceiling *paired.Ceiling
	close   func() error
}

// row measures a subject, beside theirs where there are any.
func (o *TransferOptions) row(ctx context.Context, r *Suite, l *link, h shape, s *subject, p paired.Plan) (err error) {
	defer func() { err = errors.Join(err, s.close()) }()
	p.Name, p.Unit, p.Ceiling, p.Alone = h.title(), s.unit, s.ceiling, l.alone
	p.Ours = paired.Contender{Name: "penstock", Run: s.run}
	if p.Pairs == 0 {
		p.Pairs = o.Samples
	}
	return r.Measure(ctx, p, func(x *paired.Row) error {
		h.describe(x)
		if len(l.queues) > 0 {
			x.Carrier = carrierOf(l.queues[0].Path())
		}
		if s.finish == nil {
			return nil
		}
		return s.finish(x)
	})
}

// sampler takes verified samples of one load.
type sampler struct {
	meter
	x        *load
	bytes    uint64 // of one message of every flow
	messages int    // per flow and sample
}

// newSampler prepares a load. The caller closes it, also after an error of sample.
func (o *TransferOptions) newSampler(ctx context.Context, l *link, kind path.OpKind, h shape) (_ *sampler, err error) {
	slots := slotsFor(h.path, h.size)
	if h.what == "list" {
		slots = 1
	}
	x, err := l.newLoad(ctx, kind, h.mode, h.size, max(h.blocks, 1), slots)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, x.close())
		}
	}()
	s := &sampler{meter: meter{l: l}, x: x, bytes: h.size * uint64(len(l.queues)), messages: slots}
	// The first run touches everything; the second tells how many messages fill the budget.
	if err := x.prepare(); err != nil {
		return nil, err
	}
	for range 8 {
		d, err := x.run(ctx, s.messages)
		if err != nil {
			return nil, err
		}
		if d >= o.Budget/4 {
			s.messages = int(float64(s.messages) * float64(o.Budget) / float64(d))
			break
		}
		s.messages *= 4
	}
	s.messages = max(s.messages, len(x.flows[0].ops))
	return s, s.begin()
}

// sample makes one verified run, in GB/s.
func (s *sampler) sample(ctx context.Context) (paired.Sample, error) {
	return s.sampleBy(ctx, s.x.run, true)
}

// sampleBy makes one verified run by a function that moves so many messages; what it uses is
// counted if it is ours. Fresh bytes are filled in before it, so that nothing of an earlier run can
// pass.
func (s *sampler) sampleBy(ctx context.Context, run func(context.Context, int) (time.Duration, error),
	ours bool) (paired.Sample, error) {
	if err := s.x.prepare(); err != nil {
		return paired.Sample{}, err
	}
	// Warm up: filling put the source into this core's caches and took the destination out of the
	// other's.
	if _, err := run(ctx, max(1, s.messages/10)); err != nil {
		return paired.Sample{}, err
	}
	var d time.Duration
	moved := uint64(s.messages) * s.bytes
	timed := func() (err error) {
		d, err = run(ctx, s.messages)
		return err
	}
	var err error
	if ours {
		err = s.during(s.messages*len(s.x.flows), moved, timed)
	} else {
		err = timed()
	}
	if err != nil {
		return paired.Sample{}, err
	}
	n, err := s.x.verify()
	return paired.Sample{Value: GBps(moved, d), Verified: n}, err
}

// flowSubject is a load over the open queues, with the ceiling of its size.
func (o *TransferOptions) flowSubject(ctx context.Context, l *link, kind path.OpKind, h shape) (*subject, error) {
	s, err := o.newSampler(ctx, l, kind, h)
	if err != nil {
		return nil, err
	}
	c, err := NewCopyCeiling(h.size, o.Huge, !o.NoPin)
	if err != nil {
		return nil, errors.Join(err, s.x.close())
	}
	copies := ceilingCopies(h.size, o.Quick)
	return &subject{unit: paired.GBs, run: s.sample,
		ceiling: &paired.Ceiling{Method: CopyCeilingMethod, Enforce: CopyCeilingHolds(h.size),
			Measure: func(context.Context) (float64, error) { return c.Sample(copies) }},
		finish: func(x *paired.Row) error { x.Cost = s.cost(); return nil },
		close: func() error {
			c.Close()
			return s.x.close()
		}}, nil
}

func (o *TransferOptions) moveRow(ctx context.Context, r *Suite, l *link, kind path.OpKind, h shape) error {
	o.Progress.Say("%s", h.title())
	s, err := o.flowSubject(ctx, l, kind, h)
	if err != nil {
		return fmt.Errorf("%s: %w", h.title(), err)
	}
	return o.row(ctx, r, l, h, s, paired.Plan{})
}

// ceilingCopies is how many copies of a size make a sample of about 10 ms.
func ceilingCopies(size uint64, quick bool) int {
	total := uint64(256 << 20)
	if quick {
		total = 16 << 20
	}
	return int(max(1, total/max(size, 4<<10)))
}

func (o *TransferOptions) pingRow(ctx context.Context, r *Suite, l *link, driver, mode string) error {
	h := shape{what: "put + seen, one way", path: driver, mode: mode, size: pingSize, peers: 1}
	o.Progress.Say("%s", h.title())
	s, err := o.pingSubject(ctx, l, driver, mode, 50)
	if err != nil {
		return fmt.Errorf("%s: %w", h.title(), err)
	}
	return o.row(ctx, r, l, h, s, paired.Plan{})
}
