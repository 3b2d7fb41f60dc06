package benchxdp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/bench/paired"
	xdpref "github.com/penstock-io/penstock/internal/lab/testenv/peers/xdp"
	"github.com/penstock-io/penstock/internal/peers"
)

// Options say what Run measures. Zero values get defaults.
type Options struct {
	bench.Conditions
	// Engine is ours: "xdp", "dpdk" (engine/dpdk with net_af_xdp), or "afpacket" (engine/afpacket),
	// to compare or where there is no XDP.
	Engine  string
	Ops     []string // of receive, send, forward; nil: all
	Sizes   []int    // bytes of a frame, 64 to 8,900; nil: 64, 1400, 8900; dpdk has no more than 3,560
	Touched []bool   // whether headers are read (receive), read and changed (forward), or written (send); nil: both
	Modes   []string // of held, path (receive alone), live; nil: all
	Against []string // of c, testpmd; nil: both. testpmd takes part in live rows of up to 3,560 bytes only
	Pairs   int      // of each row; 0: paired.MinPairs
	Burst   int      // held: packets of a burst; 0: 8,192, or 2,048 of those that take several chunks
	Bursts  int      // held: bursts of a sample; 0: 8
	Batch   int      // packets that all take and send at a time; 0: 64
	Time    time.Duration
	Wall    bool // held rows by the clock on the wall, in place of the thread's processor time
	Huge    bool // huge pages, for both sides
	RowTime time.Duration
}

// Engines are the names that Options.Engine may have.
func Engines() []string { return slices.Sorted(maps.Keys(xdpSides)) }

// Targets of the rows: a part of what the program in C reaches.
const (
	xdpTarget        = 0.97
	xdpTouchedTarget = 0.9
	dpdkTarget       = 0.95 // of engine/dpdk, touched or not: of testpmd by the same driver
)

const defaultBatch = 64

func (o *Options) defaults() error {
	o.Engine = cmp.Or(o.Engine, "xdp")
	if o.Ops == nil {
		o.Ops = []string{"receive", "send", "forward"}
	}
	if o.Sizes == nil {
		if o.Sizes = []int{64, 1400, 8900}; o.Engine == "dpdk" {
			o.Sizes = o.Sizes[:2]
		}
	}
	if o.Touched == nil {
		o.Touched = []bool{false, true}
	}
	if o.Modes == nil {
		o.Modes = []string{"held", "path", "live"}
	}
	if o.Against == nil {
		o.Against = []string{"c", "testpmd"}
	}
	o.Pairs, o.Bursts, o.Time, o.Batch = cmp.Or(o.Pairs, paired.MinPairs), cmp.Or(o.Bursts, 8),
		cmp.Or(o.Time, time.Second), cmp.Or(o.Batch, defaultBatch)
	if xdpSides[o.Engine] == nil {
		return fmt.Errorf("bench: engine %q: expected one of %s", o.Engine, strings.Join(Engines(), ", "))
	}
	for _, x := range []struct {
		what  string
		given []string
		known []string
	}{{"operation", o.Ops, []string{"receive", "send", "forward"}}, {"mode", o.Modes, []string{"held", "path", "live"}},
		{"--against", o.Against, []string{"c", "testpmd"}}} {
		for _, g := range x.given {
			if !slices.Contains(x.known, g) {
				return fmt.Errorf("bench: %s %q: expected one of %s", x.what, g, strings.Join(x.known, ", "))
			}
		}
	}
	for _, n := range o.Sizes {
		if n < 64 || n > 8900 {
			return fmt.Errorf("bench: frames of %d bytes: expected 64 to 8900", n)
		}
		if o.Engine == "dpdk" && n > maxTestpmd {
			return fmt.Errorf("bench: frames of %d bytes: net_af_xdp has no multi-buffer: expected %d at most", n,
				maxTestpmd)
		}
	}
	if o.Batch < 1 || o.Batch > 1024 {
		return fmt.Errorf("bench: %d packets at a time: expected 1 to 1024", o.Batch)
	}
	if o.Burst < 0 || o.Burst > 1<<16 || o.Bursts < 1 || o.Time < time.Millisecond || o.Time%time.Millisecond != 0 {
		return fmt.Errorf("bench: %d bursts of %d packets, %v: expected up to 65536 packets and whole milliseconds",
			o.Bursts, o.Burst, o.Time)
	}
	return nil
}

// rows are all that the options ask for, with those of the tables in docs/measurements/xdp.md
// first.
func (o *Options) rows() (out []xdpRow) {
	names := map[string]xdpref.Op{"receive": xdpref.Receive, "send": xdpref.Send, "forward": xdpref.Forward}
	for _, mode := range o.Modes {
		for _, op := range o.Ops {
			for _, size := range o.Sizes {
				for _, touch := range o.Touched {
					r := o.row(names[op], size, touch, mode == "live")
					if r.path = mode == "path"; !r.path || r.op == xdpref.Receive {
						out = append(out, r)
					}
				}
			}
		}
	}
	return out
}

func (o *Options) row(op xdpref.Op, size int, touch, live bool) xdpRow {
	r := xdpRow{op: op, size: size, touch: touch, live: live, burst: uint64(o.Burst), bursts: o.Bursts, time: o.Time,
		cpu: !o.Wall, batch: o.Batch}
	if r.burst == 0 {
		r.burst = 8192
		if live || o.Engine == "dpdk" || (&sideSpec{size: size}).chains() {
			// net_af_xdp's rings have 2,048 entries always: live, all have the same
			r.burst = 2048
		}
	}
	return r
}

// Run measures an engine's packets beside a program in C on libxdp and DPDK's net_af_xdp, on a veth
// pair between two network namespaces. The load and the sink are the program in C for all of them.
// Every packet is counted at both ends, and every byte of those that reach the sink is checked; one
// that the side under test receives is checked in a burst before the timed ones. It takes root.
//
// Held rows are processor time of the thread under test alone (see xdpRig), live rows are packets
// that arrive while all work.
func Run(ctx context.Context, o Options) (*paired.Report, error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	if _, err := xdpref.Program(); err != nil {
		return nil, err
	}
	clock := "processor time of the thread under test, the kernel's on its behalf included"
	if o.Wall {
		clock = "the clock on the wall"
	}
	r := o.Begin("xdp",
		"veth between two network namespaces, queue 0; load and sink: the program in C, on processor 0; under test: "+
			"processor 1",
		fmt.Sprintf("held: packets lie in the rings before and after, %d bursts, rate by %s", o.Bursts, clock),
		fmt.Sprintf("live: all work at once for %v; receive by the load's clock, send by the side's own until all "+
			"had left, forward from the load's start to the forwarder's end; testpmd sends by the sink's clock and "+
			"forwards by the load's", o.Time),
		"on veth the kernel's part of receiving runs on the sender's processor: held receive rows are without it, "+
			"path rows are held ones with all processor time of the sender",
		"every sample opens and closes the side under test; ends that disagree by more than the counted drops fail "+
			"the run")
	r.Method.Pairs, r.Method.Alone = o.Pairs, o.Pairs
	rivals, err := o.rivals(ctx, r)
	if err != nil {
		return nil, err
	}
	return r.End(o.measure(ctx, r, rivals))
}

// rivals are the versions of those that are here.
func (o *Options) rivals(ctx context.Context, r *bench.Suite) (map[string]string, error) {
	here := map[string]string{}
	for _, name := range o.Against {
		if name == "c" {
			here[name] = xdpref.Version()
			r.Method.Peers = append(r.Method.Peers, paired.Peer{Name: "xdpref on libxdp", Version: here[name]})
			continue
		}
		p, err := peers.Get(name)
		if err != nil {
			return nil, err
		}
		v, err := p.Version(ctx)
		switch {
		case errors.Is(err, peers.ErrAbsent):
			r.Missing = append(r.Missing, fmt.Sprintf("%s: not installed: %s", name, p.Install()))
			continue
		case err != nil:
			return nil, err
		}
		here[name] = v
		r.Method.Peers = append(r.Method.Peers, paired.Peer{Name: "dpdk-testpmd net_af_xdp", Version: v})
	}
	return here, nil
}

func (o *Options) measure(ctx context.Context, r *bench.Suite, rivals map[string]string) error {
	for _, row := range o.rows() {
		if err := o.measureRow(ctx, r, row, rivals); err != nil {
			return fmt.Errorf("%s: %w", row.title(), err)
		}
	}
	return nil
}

func (o *Options) measureRow(ctx context.Context, r *bench.Suite, row xdpRow, rivals map[string]string) (err error) {
	o.Progress.Say("%s", row.title())
	g, err := openXDPRig(ctx, row, o.Huge)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	p := paired.Plan{Name: row.title(), Unit: row.unit(), Pairs: o.Pairs, Limit: o.RowTime, Target: xdpTarget,
		Margin: 0.03}
	if row.touch {
		p.Target = xdpTouchedTarget
	}
	if o.Engine == "dpdk" {
		p.Target = dpdkTarget
	}
	p.Ours = paired.Contender{Name: "engine/" + o.Engine, Run: func(ctx context.Context) (paired.Sample, error) {
		if o.Engine != "dpdk" {
			return g.sample(ctx, xdpSides[o.Engine])
		}
		return o.anew(ctx, row)
	}}
	if v, ok := rivals["c"]; ok {
		p.Theirs = append(p.Theirs, paired.Contender{Name: "C on libxdp", Version: v,
			Run: func(ctx context.Context) (paired.Sample, error) {
				return g.sample(ctx, openReference)
			}})
	}
	note := ""
	if v, ok := rivals["testpmd"]; ok && row.live {
		if row.size <= maxTestpmd {
			p.Theirs = append(p.Theirs, paired.Contender{Name: "testpmd net_af_xdp", Version: v,
				Unchecked: "testpmd looks at no byte, and does not count packets that found its ring full",
				Run:       func(ctx context.Context) (paired.Sample, error) { return g.testpmd(ctx) }})
		} else {
			note = fmt.Sprintf("net_af_xdp has no multi-buffer: its largest packet is %d bytes", maxTestpmd)
		}
	}
	return r.Measure(ctx, p, func(x *paired.Row) error {
		x.What, x.Size = xdpOps[row.op], uint64(row.size)
		if note != "" && x.Note != "" {
			note = "; " + note
		}
		x.Note += note
		return nil
	})
}

// anew is a sample of engine/dpdk on cables of its own: net_af_xdp keeps the queue of an interface
// until the process ends.
func (o *Options) anew(ctx context.Context, row xdpRow) (_ paired.Sample, err error) {
	g, err := openXDPRig(ctx, row, o.Huge)
	if err != nil {
		return paired.Sample{}, err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	return g.sample(ctx, xdpSides[o.Engine])
}
