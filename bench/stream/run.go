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
	"github.com/penstock-io/penstock/engine/sim"
	"github.com/penstock-io/penstock/internal/testenv/netns"
	"github.com/penstock-io/penstock/internal/testenv/peers"
)

// seedBits are those of a number that every reader of JSON keeps exactly.
const seedBits = 53

// runner is a run of the benchmark.
type runner struct {
	o       *Options
	r       *Result
	seeds   *rand.Rand
	nets    map[int]*netns.Net // by MTU
	client  *client            // to the server; nil: the far end is here
	iperf3  string             // its version; "" where it is not asked for or not here
	unpaced map[string]float64 // what the sender of a cell reached, packets per second
}

// Run measures everything that the options ask for. An error comes with the Result when there is one, so that what was measured is not lost.
func Run(ctx context.Context, o Options) (*Result, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	x := &runner{o: &o, nets: map[int]*netns.Net{}, unpaced: map[string]float64{}}
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
	for _, n := range x.nets {
		err = errors.Join(err, n.Close())
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
		if err != nil && !asked && ctx.Err() == nil && unavailable(err) {
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

// unavailable says whether an engine cannot run here.
func unavailable(err error) bool {
	return errors.As(err, new(*netns.MissingError)) || errors.Is(err, engine.ErrUnavailable)
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
	switch c.Engine {
	case "socket":
		if from.address == "" {
			from.address = ":0"
		}
		to.address = socketAddress(c, o.To)
		return from, to, nil, nil
	case "sim":
		orIf(&from.address, "from")
		orIf(&to.address, "to")
		n := o.network
		if n == nil {
			if n, err = sim.NewNetwork(sim.Options{Seed: o.Seed}); err != nil {
				return nil, nil, nil, err
			}
			more = append(more, n.Close)
			if _, err = n.Link(from.address, to.address); err != nil {
				return nil, nil, more, err
			}
		}
		from.network, to.network = n, n
		return from, to, more, nil
	}
	switch {
	case x.client != nil && o.From == "":
		return nil, nil, nil, fmt.Errorf("%w: stream: engine %s: expected the interface to send from", engine.ErrInvalid, c.Engine)
	case x.client == nil && (o.From == "") != (o.To == ""):
		return nil, nil, nil, fmt.Errorf("%w: stream: engine %s from %q to %q: expected both interfaces, or none of them for a veth pair", engine.ErrInvalid, c.Engine, o.From, o.To)
	}
	if o.From != "" {
		return from, to, nil, nil
	}
	n, err := x.net(c)
	if err != nil {
		return nil, nil, nil, err
	}
	return &place{address: "eth0", do: n.Hosts[0].Do}, &place{address: "eth0", do: n.Hosts[1].Do}, nil, nil
}

// socketAddress is that of a receiving socket.
func socketAddress(c *cell, at string) string {
	orIf(&at, "127.0.0.1:0")
	if c.bytes() {
		return "tcp://" + at + "?listen=1"
	}
	return "udp://" + at
}

// net is two hosts on a cable that carries packets of a cell.
func (x *runner) net(c *cell) (*netns.Net, error) {
	mtu := 1500
	if c.Size > 1518 {
		mtu = 9000
	}
	if n := x.nets[mtu]; n != nil {
		return n, nil
	}
	n, err := netns.Open(netns.Topology{Neighbours: true, Link: netns.LinkSpec{MTU: mtu}})
	if err != nil {
		return nil, err
	}
	x.nets[mtu] = n
	for _, h := range n.Hosts { // no stack of the kernel's says anything by itself
		if err := h.Sysctl("net.ipv6.conf.eth0.disable_ipv6", "1"); err != nil {
			return nil, err
		}
	}
	return n, nil
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
		run := map[string]func(context.Context) error{Throughput: y.throughput, Latency: y.latency, LossTest: y.loss, Burst: y.burst, Flood: y.flood}[test]
		if err := run(ctx); err != nil {
			return err
		}
	}
	return nil
}
