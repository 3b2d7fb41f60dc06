package benchdpdk

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
	"github.com/penstock-io/penstock/internal/peers"
)

// Options say what Run measures. Zero values get defaults.
type Options struct {
	bench.Conditions
	Ops     []string      // of Ops; nil: all
	Batches []int         // packets that both take and send at a time; nil: 32, 64
	Pairs   int           // of each row; 0: paired.MinPairs
	Time    time.Duration // of a sample; 0: 100 ms
}

// size is that of a packet of net_null.
const size = 64

// modes are the operations, and the forwarding modes of testpmd that do the same.
var modes = map[string]string{"receive": "rxonly", "send": "txonly", "forward": "io", "swap": "macswap"}

// Ops are the operations: receive, send, forward, and swap, which is to forward with the MAC
// addresses exchanged.
func Ops() []string { return slices.Sorted(maps.Keys(modes)) }

func (o *Options) defaults() error {
	if o.Ops == nil {
		o.Ops = Ops()
	}
	if o.Batches == nil {
		o.Batches = []int{32, 64}
	}
	o.Pairs, o.Time = cmp.Or(o.Pairs, paired.MinPairs), cmp.Or(o.Time, 100*time.Millisecond)
	for _, op := range o.Ops {
		if modes[op] == "" {
			return fmt.Errorf("bench: operation %q: expected one of %s", op, strings.Join(Ops(), ", "))
		}
	}
	for _, n := range o.Batches {
		if n < 1 || n > 512 {
			return fmt.Errorf("bench: %d packets at a time: expected 1 to 512", n)
		}
	}
	if o.Time < time.Millisecond {
		return fmt.Errorf("bench: samples of %v: expected a millisecond or more", o.Time)
	}
	return nil
}

// Run measures nanoseconds for each packet. Every sample opens a port of its own and closes it, and
// fails when a slot is missing then, or when the port counted other packets than the loop.
func Run(ctx context.Context, o Options) (*paired.Report, error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	r := o.Begin("dpdk",
		"net_null, packets of 64 bytes, one queue, one thread on processor 1, ordinary pages",
		fmt.Sprintf("ours: nanoseconds of the clock on the wall for each packet, over %v; testpmd: by its own "+
			"packets per second", o.Time),
		"swap exchanges the MAC addresses of each packet, as macswap does; send writes 42 bytes of headers, as "+
			"txonly does")
	r.Method.Pairs = o.Pairs
	p, err := peers.Get("testpmd")
	if err != nil {
		return nil, err
	}
	version, err := p.Version(ctx)
	switch {
	case errors.Is(err, peers.ErrAbsent):
		r.Missing = append(r.Missing, "testpmd: not installed: "+p.Install())
	case err != nil:
		return nil, err
	default:
		r.Method.Peers = append(r.Method.Peers, paired.Peer{Name: "dpdk-testpmd net_null", Version: version})
	}
	return r.End(o.rows(ctx, r, version))
}

func (o *Options) rows(ctx context.Context, r *bench.Suite, version string) error {
	for _, op := range o.Ops {
		for _, n := range o.Batches {
			if err := o.row(ctx, r, op, n, version); err != nil {
				return err
			}
		}
	}
	return nil
}

// row measures one operation. version is testpmd's; "": it is not here.
func (o *Options) row(ctx context.Context, r *bench.Suite, op string, batch int, version string) error {
	p := paired.Plan{Name: fmt.Sprintf("%s, bursts of %d", op, batch), Unit: paired.Nanoseconds, Pairs: o.Pairs,
		Margin: 0.05}
	o.Progress.Say("%s", p.Name)
	p.Ours = paired.Contender{Name: "engine/dpdk", Unchecked: "net_null writes no bytes into packets and reads none",
		Run: func(ctx context.Context) (paired.Sample, error) {
			return sample(ctx, op, batch, o.Time)
		}}
	if version != "" {
		p.Theirs = []paired.Contender{{Name: "testpmd " + modes[op], Version: version, Unchecked: p.Ours.Unchecked,
			Run: func(ctx context.Context) (paired.Sample, error) {
				return testpmd(ctx, op, batch, o.Time)
			}}}
	}
	return r.Measure(ctx, p, func(x *paired.Row) error {
		x.What, x.Size = op, size
		if len(x.Theirs) > 0 && x.Theirs[0].Error == "" {
			x.Note = strings.TrimPrefix(x.Note+"; "+onTop(x.Ours.Samples, x.Theirs[0].Samples), "; ")
		}
		return nil
	})
}

// onTop says what ours takes on top of theirs, pair by pair.
func onTop(ours, theirs []float64) string {
	d := make([]float64, len(ours))
	for i := range d {
		d[i] = ours[i] - theirs[i]
	}
	slices.Sort(d)
	return fmt.Sprintf("%+.1f ns on top of testpmd, the median of pairs (quartiles %+.1f to %+.1f)",
		paired.Percentile(d, 50), paired.Percentile(d, 25), paired.Percentile(d, 75))
}

// testpmd is a run of dpdk-testpmd.
func testpmd(ctx context.Context, op string, batch int, d time.Duration) (out paired.Sample, err error) {
	ports, err := peers.Packets(ctx, peers.PacketTest{Devices: []string{"net_null0"}, Forward: modes[op], Duration: d,
		CPUs: bench.CPUs(), NoFirst: true, Burst: batch})
	if err != nil {
		return out, err
	}
	rate := ports[0].RXPerSecond
	if op == "send" {
		rate = ports[0].TXPerSecond
	}
	if len(ports) != 1 || !(rate > 0) {
		return out, fmt.Errorf("%w: testpmd: %+v: expected one port with a rate", paired.ErrFailed, ports)
	}
	return paired.Sample{Value: 1e9 / rate}, nil
}
