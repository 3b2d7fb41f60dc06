package stream

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/drivers"
	"github.com/penstock-io/penstock/internal/peers"
)

// seedBits are those of a number that every reader of JSON keeps exactly.
const seedBits = 53

// runner is a run of the benchmark.
type runner struct {
	o       *Options
	r       *Result
	seeds   *rand.Rand
	cables  map[int]*cable     // by MTU
	client  *client            // to the server; nil: the far end is here
	iperf3  string             // its version; "" where it is not asked for or not here
	unpaced map[string]float64 // what the sender of a cell reached, packets per second
}

// Run measures everything that the options ask for. An error comes with the Result when there is
// one, so that what was measured is not lost.
func Run(ctx context.Context, o Options) (*Result, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	x := &runner{o: &o, cables: map[int]*cable{}, unpaced: map[string]float64{}}
	if o.Seed == 0 {
		o.Seed = rand.Uint64() >> (64 - seedBits)
	}
	x.seeds = rand.New(rand.NewPCG(o.Seed, 0))
	x.r = &Result{Report: paired.NewReport("stream")}
	m := &x.r.Method
	*m = paired.Method{Alone: o.Samples, Seed: o.Seed, Notes: []string{
		fmt.Sprintf("trials of %v; every byte of every packet is compared, and every number accounted for", o.Trial),
		"sizes are those of Ethernet frames with check sequence; L1 is with preamble and gap",
	}}
	if len(o.Against) > 0 {
		m.Pairs = o.Pairs
	}
	if o.Gate != nil {
		g := o.Gate.Method()
		m.Gate = &g
	}
	err := x.all(ctx)
	for _, l := range x.cables {
		err = errors.Join(err, l.close())
	}
	if x.client != nil {
		err = errors.Join(err, x.client.hangUp())
	}
	x.r.Took = time.Since(x.r.Began).Seconds()
	return x.r, errors.Join(err, x.r.Check())
}

func (x *runner) say(format string, a ...any) {
	if x.o.Progress != nil {
		x.o.Progress(fmt.Sprintf(format, a...))
	}
}

func (x *runner) all(ctx context.Context) error {
	o := x.o
	asked := o.Engines != nil
	engines := o.Engines
	if !asked {
		engines = Engines()
	}
	cells, missing, err := o.cells(engines)
	x.r.Missing = append(x.r.Missing, missing...)
	if err != nil {
		return err
	}
	if err := x.lookUp(ctx); err != nil {
		return err
	}
	if o.Server != "" {
		if x.client, err = dial(ctx, o.Server); err != nil {
			return err
		}
	}
	gone := map[string]bool{}
	for _, c := range cells {
		if gone[c.Engine] {
			continue
		}
		err := x.cell(ctx, c)
		if err != nil && !asked && ctx.Err() == nil && errors.Is(err, engine.ErrUnavailable) {
			gone[c.Engine] = true
			x.r.Missing = append(x.r.Missing, fmt.Sprintf("engine %s: %v", c.Engine, err))
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// lookUp looks for iperf3.
func (x *runner) lookUp(ctx context.Context) error {
	if !slices.Contains(x.o.Against, "iperf3") {
		return nil
	}
	p, err := peers.Get("iperf3")
	if err != nil {
		return err
	}
	v, err := p.Version(ctx)
	switch {
	case errors.Is(err, peers.ErrAbsent):
		x.r.Missing = append(x.r.Missing, "iperf3: not installed: "+p.Install())
		return nil
	case err != nil:
		v = "version unknown: " + err.Error()
	}
	x.iperf3 = v
	x.r.Method.Peers = append(x.r.Method.Peers, paired.Peer{Name: "iperf3", Version: v})
	return nil
}

// places are where a cell's ends are opened.
func (x *runner) places(c *cell) (from, to *place, more []func() error, err error) {
	o := x.o
	from, to = &place{address: o.From}, &place{address: o.To}
	spec := drivers.Get(c.Engine)
	switch {
	case !c.frames():
		if from.address == "" {
			from.address = ":0"
		}
		to.address = socketAddress(c, o.To)
		return from, to, nil, nil
	case spec.Pair != nil && o.From == "" && o.To == "":
		e, a, b, done, err := spec.Pair(o.Seed)
		if err != nil {
			return nil, nil, nil, err
		}
		return &place{address: a, engine: e}, &place{address: b, engine: e}, append(more, done), nil
	}
	switch {
	case x.client != nil && o.From == "":
		return nil, nil, nil, fmt.Errorf("%w: stream: engine %s: expected the interface to send from",
			engine.ErrInvalid, c.Engine)
	case x.client == nil && (o.From == "") != (o.To == ""):
		return nil, nil, nil, fmt.Errorf("%w: stream: engine %s from %q to %q: expected both interfaces, or none "+
			"of them", engine.ErrInvalid, c.Engine, o.From, o.To)
	}
	if o.From != "" {
		return from, to, nil, nil
	}
	l, err := x.cable(c)
	if err != nil {
		return nil, nil, nil, err
	}
	return &place{address: "eth0", do: l.near}, &place{address: "eth0", do: l.far}, nil, nil
}

// socketAddress is that of a receiving socket.
func socketAddress(c *cell, at string) string {
	orIf(&at, "127.0.0.1:0")
	if c.bytes() {
		return "tcp://" + at + "?listen=1"
	}
	return "udp://" + at
}

// cable is two hosts that Options.Cable joined.
type cable struct {
	near, far func(func() error) error
	close     func() error
}

// cable joins two hosts so that packets of a cell fit.
func (x *runner) cable(c *cell) (_ *cable, err error) {
	if x.o.Cable == nil {
		return nil, fmt.Errorf("%w: stream: engine %s: expected the interfaces to send from and to receive at; `go "+
			"run ./internal/lab bench stream` makes a veth pair",
			engine.ErrUnavailable, c.Engine)
	}
	mtu := 1500
	if c.Size > 1518 {
		mtu = 9000
	}
	if l := x.cables[mtu]; l != nil {
		return l, nil
	}
	l := &cable{}
	if l.near, l.far, l.close, err = x.o.Cable(mtu); err != nil {
		return nil, fmt.Errorf("%w: stream: engine %s: %w", engine.ErrUnavailable, c.Engine, err)
	}
	x.cables[mtu] = l
	return l, nil
}

// open opens both ends of a cell.
func (x *runner) open(ctx context.Context, c cell) (_ *rig, err error) {
	c.Seed = x.seeds.Uint64()
	g := &rig{cell: c, c: newClock(), settle: x.o.Settle, run: uint16(x.seeds.Uint64()), timed: true}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.close())
		}
	}()
	from, to, more, err := x.places(&c)
	g.more = more
	if err != nil {
		return g, err
	}
	var t target
	if x.client != nil {
		h, err := x.client.prepare(ctx, &c, x.o.Trial)
		if err != nil {
			return g, err
		}
		g.far, t, g.timed = h, h.target, h.sharedClock || c.Reflect
	} else {
		h, at, err := openFar(ctx, to, &c, g.c)
		if err != nil {
			return g, err
		}
		g.far, t = h, at
		x.note(h.notes)
	}
	g.near, err = openNear(ctx, from, t, &c, g.c, min(c.Queues, max(1, runtime.NumCPU()/2)))
	return g, err
}

// note keeps what an end says of itself, where it bears on the figures.
func (x *runner) note(notes []string) {
	for _, n := range notes {
		if len(x.r.Notes) < 32 && !slices.Contains(x.r.Notes, n) && bears(n) {
			x.r.Notes = append(x.r.Notes, n)
		}
	}
}

func (x *runner) cell(ctx context.Context, c cell) (err error) {
	g, err := x.open(ctx, c)
	if err != nil {
		return fmt.Errorf("%s: %w", c.title(), err)
	}
	defer func() { err = errors.Join(err, g.close()) }()
	y := &measured{runner: x, g: g, title: c.title()}
	// What is not timed comes first: it makes the far end's memory and the processor's caches warm.
	if _, err := g.trial(ctx, order{duration: min(x.o.Trial, 20*time.Millisecond)}); err != nil {
		return fmt.Errorf("%s: first trial: %w", y.title, err)
	}
	latency := slices.Contains(x.o.Tests, Latency)
	for _, test := range Tests() {
		// Latency at a part of the throughput needs to know that.
		if !slices.Contains(x.o.Tests, test) && !(test == Throughput && latency && x.o.Rate == 0) {
			continue
		}
		x.say("%s: %s", y.title, test)
		run := map[string]func(context.Context) error{Throughput: y.throughput, Latency: y.latency, LossTest: y.loss,
			Burst: y.burst, Flood: y.flood}[test]
		if err := run(ctx); err != nil {
			return err
		}
	}
	return nil
}
