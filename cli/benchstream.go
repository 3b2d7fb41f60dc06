package cli

import (
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/bench/stream"
	"github.com/penstock-io/penstock/engine"
	"github.com/spf13/cobra"
)

func newBenchStream(s streams) *cobra.Command {
	var out bench.Output
	var o stream.Options
	var workloads []string
	var sizes []string
	var rate, listen string
	var serve bool
	var file streamFile
	c := &cobra.Command{
		Use:   "stream [FILE]",
		Short: "Packets a second, loss and latency of the engines",
		Long: `Sends numbered packets from one end to another and accounts for each: rate without loss (RFC 2544, 26.1, found by halving and
verified), latency from the time at which a packet was due, loss at given rates, the longest burst. Each byte is compared at the
receiver. docs/bench-stream.md says how, and what the packets look like.

Without options both ends are in this process: over a network in memory and sockets on loopback. Packet sockets and AF_XDP take
two interfaces, --from and --to. With --serve this is the far end for another process, with --server the near end of one.

With FILE it runs what the sections bench_tx, bench_rx, bench_latency, socket_bench_* and rdma_bench_* of a configuration file say, DAQIRI's
or ours, over the file's own interfaces, queues, memory and flows. What this machine does not have (memory of GPUs, cores,
huge pages) is replaced by what it has, and listed; --strict refuses it. --address fills in the addresses of network interfaces.`,
		Example: `  penstock bench stream --engine socket --size 64,1518 --burst 1,32
  penstock bench stream --serve --engine xdp --to eth0 --listen 192.0.2.2:7788
  penstock bench stream --server 192.0.2.2:7788 --engine xdp --from eth0 --round-trip
  penstock bench stream --dry-run --address tx_port=eth0 --address rx_port=eth1 daqiri_bench_raw_tx_rx.yaml`,
		Args: argsBetween(0, 1, "one configuration file, or none"),
		RunE: func(c *cobra.Command, args []string) (err error) {
			if err := misplaced(c, len(args) > 0); err != nil {
				return err
			}
			if len(args) > 0 {
				return runStreamFile(c, s, &file, args[0], o.Engines, o.Settle, o.Samples, &out)
			}
			if serve {
				return serveStream(c, s, &o, listen, out.Quiet)
			}
			if c.Flags().Changed("listen") {
				return &usageError{errors.New("--listen is of --serve; a near end takes --server")}
			}
			for _, name := range workloads {
				w, err := stream.ParseWorkload(name)
				if err != nil {
					return &usageError{err}
				}
				o.Workloads = append(o.Workloads, w)
			}
			for _, z := range sizes {
				if z == "all" {
					o.Sizes = append(o.Sizes, stream.Sizes()...)
					continue
				}
				n, err := parseSize(z)
				if err != nil || n > 1<<20 {
					return &usageError{fmt.Errorf("--size %q: expected bytes of a frame, such as 64 or 1KiB, or all",
						z)}
				}
				o.Sizes = append(o.Sizes, int(n))
			}
			if rate != "" {
				if o.Rate, err = strconv.ParseFloat(rate, 64); err != nil || !(o.Rate > 0) || math.IsInf(o.Rate, 0) {
					return &usageError{fmt.Errorf("--rate %q: expected packets per second, such as 200000 or 2e5",
						rate)}
				}
			}
			if o.Conditions, err = conditions(s, &out); err != nil {
				return err
			}
			if out.Quick {
				quickStream(c, &o)
			}
			o.Cable = s.lab.Cable
			r, err := stream.Run(c.Context(), o)
			if r == nil && errors.Is(err, engine.ErrInvalid) {
				return &usageError{err}
			}
			if r == nil {
				return err
			}
			return errors.Join(err, out.Write(s.out, r))
		},
	}
	resultFlags(c, out.Flags)
	f := c.Flags()
	file.flags(f)
	f.StringSliceVar(&o.Engines, "engine", nil, "of "+strings.Join(stream.Engines(), ", ")+
		" (default all that can run here)")
	f.StringSliceVar(&o.Protocols, "protocol", nil, "of sockets: udp, tcp (default udp)")
	f.StringVar(&o.From, "from", "",
		"where to send from: an interface, or host:port of sockets (default: both ends are made)")
	f.StringVar(&o.To, "to", "", "where to receive, likewise")
	f.BoolVar(&serve, "serve", false, "be the far end, for one --server after the other, until interrupted")
	f.StringVar(&listen, "listen", "127.0.0.1:7788",
		"where --serve takes control connections (not encrypted, open to every host that reaches it)")
	f.StringVar(&o.Server, "server", "", "the far end is a --serve with this control address, host:port")
	f.StringSliceVar(&sizes, "size", nil,
		"bytes of a frame with check sequence, 64 to 9018, or all (default 64,512,1518)")
	f.IntSliceVar(&o.Bursts, "burst", nil, "packets sent back to back, 1 to 512 (default 32)")
	f.IntSliceVar(&o.Queues, "queues", nil, "receive queues of the far end, 1 to 64 (default 1)")
	f.IntVar(&o.Flows, "flows", 0, "streams for each queue (default 1; with several queues of sockets 4)")
	f.StringSliceVar(&workloads, "workload", nil, "what the receiver does with each packet: "+
		strings.Join(stream.Workloads(), ", ")+" (default none)")
	f.StringSliceVar(&o.Tests, "test", nil, "of "+strings.Join(stream.Tests(), ", ")+" (default throughput,latency)")
	f.BoolVar(&o.RoundTrip, "round-trip", false, "the far end sends everything back: latency there and back")
	f.StringVar(&rate, "rate", "", "of the latency test, packets per second (default: --load of the throughput)")
	f.Float64Var(&o.Load, "load", 0.5, "of the latency test, a part of the throughput")
	f.DurationVar(&o.Trial, "trial", 0, "duration of a trial (default 50ms; RFC 2544 asks for 60s)")
	f.DurationVar(&o.Settle, "settle", 0,
		"how long to wait for late packets after a trial (default 50ms, with --server 2s)")
	f.IntVar(&o.Samples, "samples", 0, "samples of each row (default 3; bench compare wants 6 or more)")
	f.Float64Var(&o.MaxLoss, "max-loss", 0, "part of the packets that may be lost")
	f.Float64Var(&o.Resolution, "resolution", 0.02,
		"part of the highest rate by which the throughput may be found too low")
	f.IntVar(&o.Verify, "verify", 2, "how often the found rate must pass once more; negative: never")
	f.IntVar(&o.Retry, "retry", 0, "how often a failed trial is made again before it counts")
	f.Float64Var(&o.Step, "step", 0.1, "of the rates of the loss test, a part of the highest")
	f.Uint64Var(&o.Longest, "longest", 1<<17, "packets of the longest burst that the burst test tries")
	f.DurationVar(&o.Spin, "spin", 0, "how long receivers look before they sleep")
	f.StringSliceVar(&o.Against, "against", nil, "pair flood with other tools: iperf3 (sockets)")
	f.IntVar(&o.Pairs, "pairs", 0, "interleaved pairs of such a row (default 20, the least that gets a verdict)")
	return c
}

// quickStream makes a smoke run of what was not asked for otherwise.
func quickStream(c *cobra.Command, o *stream.Options) {
	for name, set := range map[string]func(){
		"trial":      func() { o.Trial = 5e6 },
		"settle":     func() { o.Settle = 10e6 },
		"samples":    func() { o.Samples = 1 },
		"resolution": func() { o.Resolution = 0.2 },
		"verify":     func() { o.Verify = 1 },
		"pairs":      func() { o.Pairs = 2 },
	} {
		if !c.Flags().Changed(name) {
			set()
		}
	}
}

// serveStream is the far end.
func serveStream(c *cobra.Command, s streams, o *stream.Options, listen string, quiet bool) error {
	if len(o.Engines) != 1 {
		return &usageError{errors.New("--serve: expected one --engine: socket, afpacket or xdp")}
	}
	for _, name := range []string{"from", "server", "size", "burst", "queues", "flows", "workload", "test",
		"round-trip", "rate", "load", "trial", "settle", "samples", "max-loss",
		"resolution", "verify", "retry", "step", "longest", "spin", "against", "pairs", "protocol", "json", "output",
		"quick", "idle-wait", "seed"} {
		if c.Flags().Changed(name) {
			return &usageError{fmt.Errorf("--%s is for the near end, which tells --serve what it needs", name)}
		}
	}
	x := stream.ServeOptions{Engine: o.Engines[0], Listen: listen, Address: o.To}
	x.Ready = func(a net.Addr) { fmt.Fprintf(s.out, "serving %s, control at %s\n", x.Engine, a) }
	if !quiet {
		x.Progress = func(line string) { fmt.Fprintln(s.err, line) }
	}
	return stream.Serve(c.Context(), x)
}
