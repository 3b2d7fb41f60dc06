package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/cli"
	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/internal/lab/benchdpdk"
	"github.com/penstock-io/penstock/internal/lab/benchverbs"
	"github.com/penstock-io/penstock/internal/lab/benchxdp"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/lab/testenv/peers"
)

// exitStatus ends the tool with a status other than 0, without a word.
type exitStatus int

func (e exitStatus) Error() string { return "exit status " + strconv.Itoa(int(e)) }

// benchmark runs the benchmarks that need programs in C, and those of penstock with what they lack
// without the lab.
func benchmark(ctx context.Context, args []string, out io.Writer) error {
	switch {
	case len(args) > 0 && args[0] == "xdp":
		return benchXDP(ctx, args[1:], out)
	case len(args) > 0 && args[0] == "verbs":
		return benchVerbs(ctx, args[1:], out)
	case len(args) > 0 && args[0] == "dpdk":
		return benchDPDK(ctx, args[1:], out)
	case len(args) > 0 && args[0] == "files":
		return benchFiles(ctx, args[1:], out)
	}
	if status := cli.Bench(cli.Lab{OpenSSL: peers.OpenSSLStream, Cable: netns.Cable}, args, os.Stdin, out,
		os.Stderr); status != 0 {
		return exitStatus(status)
	}
	return nil
}

// list adds a flag whose value is a list with commas; parse reads an element.
func list[T any](f *flag.FlagSet, to *[]T, name, usage string, parse func(string) (T, error)) {
	f.Func(name, usage, func(s string) error {
		*to = nil
		for part := range strings.SplitSeq(s, ",") {
			v, err := parse(part)
			if err != nil {
				return err
			}
			*to = append(*to, v)
		}
		return nil
	})
}

func word(s string) (string, error) { return s, nil }

func bytesOf(s string) (uint64, error) {
	n, err := config.ParseSize(strings.TrimSpace(s))
	return uint64(n), err
}

// parsed reads the flags of a benchmark, which takes no arguments.
func parsed(f *flag.FlagSet, args []string) error {
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("%s: unexpected argument %q", f.Name(), f.Arg(0))
	}
	return nil
}

// benchXDP receives, sends and forwards packets over veth between two network namespaces, beside a
// program in C on libxdp and DPDK's net_af_xdp in testpmd, in interleaved pairs:
// docs/measurements/xdp.md says how. It takes root.
func benchXDP(ctx context.Context, args []string, out io.Writer) (err error) {
	f := flag.NewFlagSet("bench xdp", flag.ContinueOnError)
	var result bench.Output
	var o benchxdp.Options
	result.Flags(f)
	f.StringVar(&o.Engine, "engine", "", "ours: "+strings.Join(benchxdp.Engines(), ", ")+" (default xdp)")
	list(f, &o.Ops, "op", "of receive, send, forward (default all)", word)
	list(f, &o.Sizes, "size", "bytes of a frame (default 64,1400,8900; dpdk 64,1400)", strconv.Atoi)
	touched := f.String("touched", "both", "whether headers are read or written: yes, no, both")
	list(f, &o.Modes, "mode", "of held (all lies in the rings before the thread under test begins), path (held, with "+
		"the sender's time), live (default all)", word)
	list(f, &o.Against, "against", "of c, testpmd (default both)", word)
	f.IntVar(&o.Pairs, "pairs", 0, "interleaved pairs of each row (default 20, the least that gets a verdict)")
	f.IntVar(&o.Batch, "batch", 0, "packets that each takes and sends at a time (default 64)")
	f.IntVar(&o.Bursts, "bursts", 0, "bursts of a held sample (default 8)")
	f.DurationVar(&o.Time, "time", 0, "of a live sample (default 1s)")
	f.BoolVar(&o.Wall, "wall", false, "held rows by the clock on the wall")
	f.BoolVar(&o.Huge, "huge", false, "huge pages for both sides")
	packets := f.String("packets", "",
		"forward so many packets of the first size, such as 1e8, and account for each packet and each slot")
	if err := parsed(f, args); err != nil {
		return err
	}
	switch *touched {
	case "both":
	case "yes", "no":
		o.Touched = []bool{*touched == "yes"}
	default:
		return fmt.Errorf("--touched %q: expected yes, no or both", *touched)
	}
	if o.Conditions, err = result.Conditions(os.Stderr); err != nil {
		return err
	}
	if result.Quick {
		o.Pairs, o.Burst, o.Bursts, o.Time = 3, 512, 1, 20*time.Millisecond
	}
	if *packets != "" {
		n, err := parseCount(*packets)
		if err != nil {
			return err
		}
		if result.JSON || result.File != "" {
			return errors.New("--packets prints an account: --json and --output do not go with it")
		}
		a, err := benchxdp.Account(ctx, o, n)
		if a != nil {
			err = errors.Join(err, a.Table(out))
		}
		return err
	}
	r, err := benchxdp.Run(ctx, o)
	return result.Print(out, r, err)
}

// benchDPDK measures what engine/dpdk costs for each packet over net_null, beside dpdk-testpmd:
// docs/measurements/dpdk.md says how.
func benchDPDK(ctx context.Context, args []string, out io.Writer) (err error) {
	f := flag.NewFlagSet("bench dpdk", flag.ContinueOnError)
	var result bench.Output
	var o benchdpdk.Options
	result.Flags(f)
	list(f, &o.Ops, "op", "of "+strings.Join(benchdpdk.Ops(), ", ")+" (default all)", word)
	list(f, &o.Batches, "batch", "packets taken and sent at a time (default 32,64)", strconv.Atoi)
	f.IntVar(&o.Pairs, "pairs", 0, "interleaved pairs of each row (default 20, the least that gets a verdict)")
	f.DurationVar(&o.Time, "time", 0, "of a sample (default 100ms)")
	if err := parsed(f, args); err != nil {
		return err
	}
	if o.Conditions, err = result.Conditions(os.Stderr); err != nil {
		return err
	}
	if result.Quick {
		o.Pairs, o.Time = cmp.Or(o.Pairs, 3), cmp.Or(o.Time, 10*time.Millisecond)
	}
	r, err := benchdpdk.Run(ctx, o)
	return result.Print(out, r, err)
}

// parseCount reads a whole number, also as 1e8.
func parseCount(s string) (uint64, error) {
	if n, err := strconv.ParseUint(s, 10, 62); err == nil && n > 0 {
		return n, nil
	}
	if v, err := strconv.ParseFloat(s, 64); err == nil && v >= 1 && v <= 1e15 && v == float64(uint64(v)) {
		return uint64(v), nil
	}
	return 0, fmt.Errorf("--packets %q: expected a whole number such as 1000000 or 1e8", s)
}

// benchVerbs measures RDMA on one device of this machine, which talks to itself, beside perftest
// where it is installed: docs/measurements/verbs-perftest.md says how.
func benchVerbs(ctx context.Context, args []string, out io.Writer) (err error) {
	f := flag.NewFlagSet("bench verbs", flag.ContinueOnError)
	var result bench.Output
	var o benchverbs.Options
	result.Flags(f)
	f.StringVar(&o.Device, "device", "", "RDMA device `NAME`, such as mlx5_0 (default the first with an active port)")
	f.IntVar(&o.Port, "port", 0, "its port, counted from 1; 0: the first that is active")
	f.IntVar(&o.GID, "gid", benchverbs.AnyGID, "index of the port's address to use; -1: the best of its table")
	f.StringVar(&o.Library, "library", "", "`FILE` of libibverbs (default the system's)")
	list(f, &o.Classes, "classes", "what to measure, of "+strings.Join(benchverbs.Classes, ", ")+" (default all)", word)
	list(f, &o.Sizes, "size", "`SIZES` of messages, powers of two (default 4KiB,64KiB,1MiB)", bytesOf)
	list(f, &o.Regions, "regions", "`SIZES` of memory to register (default 4KiB,1MiB,64MiB)", bytesOf)
	f.IntVar(&o.Pairs, "pairs", 0, "pairs of each comparison (default 20)")
	f.DurationVar(&o.Budget, "time", 0, "of one sample of bandwidth (default 500ms)")
	f.IntVar(&o.Depth, "depth", 0, "requests under way at once (default 128, as perftest has it)")
	f.IntVar(&o.Chain, "chain", 0, "requests that are posted by one call (default 1, as perftest does it)")
	f.IntVar(&o.Trips, "trips", 0, "round trips of one sample of latency (default 1000)")
	f.BoolVar(&o.Alone, "alone", false, "without perftest, also where it is installed")
	if err := parsed(f, args); err != nil {
		return err
	}
	if o.Conditions, err = result.Conditions(os.Stderr); err != nil {
		return err
	}
	if result.Quick { // what a flag set stays
		o.Pairs, o.Budget, o.Trips = cmp.Or(o.Pairs, 3), cmp.Or(o.Budget, 5*time.Millisecond), cmp.Or(o.Trips, 20)
		if o.Sizes == nil {
			o.Sizes = []uint64{4 << 10, 64 << 10}
		}
		if o.Regions == nil {
			o.Regions = []uint64{4 << 10, 1 << 20}
		}
	}
	r, err := benchverbs.Run(ctx, o)
	return result.Print(out, r, err)
}
