package benchverbs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/peers"
)

// Classes are the parts of a run, in their order.
var Classes = []string{"cost", "write", "read", "send", "latency", "registration", "path"}

// Options describe a run.
type Options struct {
	bench.Conditions
	Device  string        // "" is the first one with an active port
	Port    int           // 0: the first one that is active
	GID     int           // index of the address to use; AnyGID: the best of the port's table
	Library string        // file of libibverbs; "" is the loader's
	Classes []string      // of Classes; nil: all
	Sizes   []uint64      // of messages in rows of bandwidth; nil: 4 KiB, 64 KiB, 1 MiB
	Regions []uint64      // of memory in rows of registration; nil: 4 KiB, 1 MiB, 64 MiB
	Pairs   int           // of each comparison; 0: paired.MinPairs
	Budget  time.Duration // of one sample of bandwidth; 0: 500 ms
	Depth   int           // requests under way at once; 0: 128, as perftest has it
	Chain   int           // requests that are posted by one call, at most Depth; 0: 1, as perftest does it
	Trips   int           // round trips of one sample of latency; 0: 1000
	Alone   bool          // without perftest also where it is installed
}

// AnyGID in Options.GID leaves the choice to the port's table.
const AnyGID = -1

// Check fills in what is left to the program, and says what is wrong with the rest.
func (o *Options) Check() error {
	if o.Classes == nil {
		o.Classes = Classes
	}
	for _, c := range o.Classes {
		if !slices.Contains(Classes, c) {
			return fmt.Errorf("bench: no part of the benchmark is called %q: expected some of %s", c,
				strings.Join(Classes, ", "))
		}
	}
	if o.Sizes == nil {
		o.Sizes = []uint64{4 << 10, 64 << 10, 1 << 20}
	}
	if o.Regions == nil {
		o.Regions = []uint64{4 << 10, 1 << 20, 64 << 20}
	}
	for _, s := range o.Sizes {
		if s == 0 || s > 1<<30 || s&(s-1) != 0 {
			return fmt.Errorf("bench: messages of %d bytes: expected a power of two up to 1 GiB, as perftest has them",
				s)
		}
	}
	for _, s := range o.Regions {
		if s == 0 || s > 1<<40 {
			return fmt.Errorf("bench: regions of %d bytes: expected 1 byte to 1 TiB", s)
		}
	}
	if o.Pairs == 0 {
		o.Pairs = paired.MinPairs
	}
	if o.Budget == 0 {
		o.Budget = 500 * time.Millisecond
	}
	if o.Depth == 0 {
		o.Depth = 128
	}
	if o.Depth < 1 || o.Depth > 1<<14 {
		return fmt.Errorf("bench: %d requests under way at once: expected 1 to %d", o.Depth, 1<<14)
	}
	if o.Chain == 0 {
		o.Chain = 1
	}
	if o.Chain < 1 || o.Chain > o.Depth {
		return fmt.Errorf("bench: %d requests by one call: expected 1 to %d, as many as are under way at once", o.Chain,
			o.Depth)
	}
	if o.Trips == 0 {
		o.Trips = 1000
	}
	if o.Pairs < 1 || o.Trips < 1 || o.Budget < 0 {
		return fmt.Errorf("bench: %d pairs, %d round trips, samples of %v: expected more than nothing of each", o.Pairs,
			o.Trips, o.Budget)
	}
	return nil
}

// Run measures package internal/ibv on an RDMA device of this machine, which talks to itself: what
// posting and polling cost, the bandwidth of writes, reads and sends, the time of small messages
// there and back, and registration. Where perftest is installed, its programs do the same in
// interleaved pairs. Without a device the error wraps ibv.ErrUnavailable and says how to get one.
func Run(ctx context.Context, o Options) (*paired.Report, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	d, err := o.find()
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	r := o.Begin("verbs", "two queue pairs (RC) of one device, in one process; perftest has two processes",
		fmt.Sprintf("bandwidth: samples of about %v, %d requests under way, %d posted by one call, one of %d "+
			"signaled; before each the source gets new bytes, after it "+
			"every byte of the destination is compared", o.Budget, o.Depth, o.Chain, o.signal()),
		fmt.Sprintf("latency: %d round trips of 8 bytes, each a number that both sides check; perftest tells one "+
			"way, which is taken twice", o.Trips),
		fmt.Sprintf("path: operations of transfer/path/verbs between two ends in this process, one of which sleeps; "+
			"done is what the path says is done; of bandwidth, "+
			"up to %d are handed over by one Post, when there is room for them", pathBatch))
	r.Method.Pairs = o.Pairs
	r.Notes = append(r.Notes, d.String())
	perftest := ""
	if !o.Alone {
		p, err := peers.Get("perftest")
		if err != nil {
			return nil, err
		}
		switch v, err := p.Version(ctx); {
		case errors.Is(err, peers.ErrAbsent):
			r.Notes = append(r.Notes, fmt.Sprintf("without perftest, which is not installed: %s", p.Install()))
		case err != nil:
			return nil, fmt.Errorf("bench: %w", err)
		default:
			perftest = v
			r.Notes = append(r.Notes, "perftest: "+v)
		}
	}
	b := &verbsBench{o: &o, r: r, d: d, perftest: perftest, clock: clockTakes()}
	r.Notes = append(r.Notes, fmt.Sprintf("the clock takes %v, which is taken off each round trip", b.clock))
	for _, c := range o.Classes {
		if err := b.class(ctx, c); err != nil {
			return r.End(err)
		}
	}
	return r.End(nil)
}

// signal is how many requests have one completion together: a multiple of a chain. perftest has 100
// of 128.
func (o *Options) signal() int { return o.Chain * max(1, min(64, o.Depth/2)/o.Chain) }

// verbsBench is a run.
type verbsBench struct {
	o        *Options
	r        *bench.Suite
	d        *verbsDevice
	perftest string        // its version; "": it is not there
	clock    time.Duration // what it takes to read it
}

// class measures one of Classes.
func (b *verbsBench) class(ctx context.Context, name string) error {
	switch name {
	case "cost":
		return b.cost(ctx)
	case "latency":
		return b.latency(ctx)
	case "registration":
		return b.registration(ctx)
	case "path":
		return b.paths(ctx)
	}
	for _, size := range b.o.Sizes {
		if err := b.flowRow(ctx, name, size); err != nil {
			return err
		}
	}
	return nil
}

// verbsDevice is the port that is measured.
type verbsDevice struct {
	dev  *ibv.Device
	attr ibv.DeviceAttr
	port ibv.PortAttr
	gid  ibv.GID // of InfiniBand and RoCE
	why  string
}

func (d *verbsDevice) String() string {
	return fmt.Sprintf("device: %s port %d, %s, path MTU %d; %s", d.dev.Name(), d.port.Port, d.port.Link,
		d.port.ActiveMTU.Bytes(), d.why)
}

// find looks for the device and the port, which are closed again.
func (o *Options) find() (*verbsDevice, error) {
	lib, err := ibv.Load(ibv.Options{Path: o.Library})
	if err != nil {
		return nil, err
	}
	all, err := lib.Devices()
	if err != nil {
		return nil, err
	}
	var names, refused []string
	for _, dev := range all {
		names = append(names, dev.Name())
		if o.Device != "" && dev.Name() != o.Device {
			continue
		}
		d, why, err := o.look(dev)
		if err != nil {
			return nil, err
		}
		if d != nil {
			return d, nil
		}
		refused = append(refused, why)
	}
	if refused == nil {
		return nil, fmt.Errorf("there is no RDMA device %q: expected one of %s: %w", o.Device,
			strings.Join(names, ", "), ibv.ErrUnavailable)
	}
	return nil, fmt.Errorf("no port is active: %s; \"penstock doctor rdma\" says what to do: %w",
		strings.Join(refused, ", "), ibv.ErrUnavailable)
}

// look opens a device and finds the port; why is why it has none.
func (o *Options) look(dev *ibv.Device) (d *verbsDevice, why string, err error) {
	c, err := dev.Open()
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	d = &verbsDevice{dev: dev}
	if d.attr, err = c.Attr(); err != nil {
		return nil, "", err
	}
	if o.Port > d.attr.Ports || o.Port < 0 {
		return nil, "", fmt.Errorf("%s has no port %d: expected 1 to %d", dev.Name(), o.Port, d.attr.Ports)
	}
	var states []string
	for n := 1; n <= d.attr.Ports; n++ {
		if o.Port != 0 && n != o.Port {
			continue
		}
		if d.port, err = c.Port(n); err != nil {
			return nil, "", err
		}
		if d.port.State != ibv.PortActive {
			states = append(states, fmt.Sprintf("%s port %d is %v", dev.Name(), n, d.port.State))
			continue
		}
		want := ibv.GIDWant{}
		if o.GID != AnyGID {
			want.Index = &o.GID
		}
		d.gid, d.why, err = c.ChooseGID(n, want)
		if err != nil {
			return nil, "", err
		}
		return d, "", nil
	}
	return nil, strings.Join(states, ", "), nil
}

// theirs is a run of a program of perftest with the same device, and what of its row counts.
func (b *verbsBench) theirs(t peers.RDMATest, value func(peers.RDMARow) float64) []paired.Contender {
	if b.perftest == "" {
		return nil
	}
	t.Device, t.GIDIndex = b.d.dev.Name(), b.d.gid.Index
	return []paired.Contender{{Name: t.Program, Version: b.perftest, Command: t.Command(),
		Unchecked: "perftest does not look at the bytes",
		Run: func(ctx context.Context) (paired.Sample, error) {
			rows, err := peers.RDMA(ctx, t)
			if err != nil {
				return paired.Sample{}, err
			}
			if len(rows) != 1 {
				return paired.Sample{}, fmt.Errorf("%w: perftest printed %d rows: expected 1", paired.ErrFailed,
					len(rows))
			}
			return paired.Sample{Value: value(rows[0])}, nil
		}}}
}

// shape is what a row measures.
type shape struct {
	what   string // "write", "ping", "post"
	mode   string // bench.Spin or bench.Event; "": no one waits
	size   uint64 // bytes of one operation
	blocks int    // operations of one call
}

// measure adds a row.
func (b *verbsBench) measure(ctx context.Context, h shape, p paired.Plan) error {
	if p.Pairs == 0 {
		p.Pairs = b.o.Pairs
	}
	b.o.Progress.Say("%s", p.Name)
	return b.r.Measure(ctx, p, func(x *paired.Row) error {
		x.What, x.Path, x.Mode, x.Size, x.Blocks = h.what, "verbs", h.mode, h.size, h.blocks
		return nil
	})
}
