package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/penstock-io/penstock/config"
	root "github.com/penstock-io/penstock/system"
	"github.com/spf13/cobra"
)

type runOptions struct {
	duration time.Duration
	interval time.Duration
	dryRun   bool
	json     bool
	quiet    bool
	noReload bool
	gpu      gpuFlags
}

func newRun(s streams) *cobra.Command {
	var o runOptions
	c := &cobra.Command{
		Use:   "run FILE",
		Short: "Run a configuration file: its streams, applications and node",
		Long: `Opens what a configuration file describes, runs its applications (count, echo, forward, sink), and serves its node. The plan is printed first;
with --dry-run nothing else happens.

On a terminal one screen shows rates, drops by reason, applications, queues, memory, peers and rules; q or Ctrl-C ends it. Elsewhere a line is
printed for each interval. At the end all that was received, sent and dropped is added up.

When the file changes, or on SIGHUP, its flows are put in force: all of them or none. A receive queue without an application is counted
and emptied, with a warning. On SIGUSR1 recordings begin new files, and rings are written. docs/run.md and docs/record.md say more.

The exit status is 0 for a run that ended in order, also by Ctrl-C; 10 if something that the file needs is not here.`,
		Example: `  penstock run pair.yaml
  penstock run pair.yaml --dry-run
  penstock run pair.yaml --duration 10s --json`,
		Args: argsBetween(1, 1, "one file"),
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case o.duration < 0:
				return &usageError{fmt.Errorf("--duration %v: expected more than 0, or 0 for no end", o.duration)}
			case c.Flags().Changed("interval") && o.interval < 100*time.Millisecond:
				return &usageError{fmt.Errorf("--interval %v: expected 100ms or more", o.interval)}
			case c.Flags().Changed("json") && c.Flags().Changed("quiet"):
				return &usageError{errors.New("--json and --quiet exclude each other")}
			}
			if err := o.gpu.check(); err != nil {
				return err
			}
			return runFile(c.Context(), s, o, args[0])
		},

		ValidArgsFunction: completeFiles,
	}
	f := c.Flags()
	f.DurationVar(&o.duration, "duration", 0, "how long to run; 0: until interrupted")
	f.DurationVar(&o.interval, "interval", 0, "how often to show something (default 1s on a terminal, else 10s)")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the plan and end; the exit status says whether it could be run here")
	f.BoolVar(&o.json, "json", false, "print one JSON object per interval and event (penstock help json)")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print errors and warnings only")
	o.gpu.runtimeFlag(c, "runtime of the accelerators, with host to try a file without one", "gpu_runtime of the file")
	fromEnvironment(c, "quiet")
	f.BoolVar(&o.noReload, "no-reload", false,
		"leave the flows as they are when the file changes; SIGHUP still asks for it")
	return c
}

// runFile is the command.
func runFile(ctx context.Context, s streams, o runOptions, name string) error {
	out := newRunOutput(s, o)
	cfg, text, err := loadRun(s, name, out)
	if err != nil {
		return err
	}
	r := &runner{ctx: ctx, o: o, out: out, cfg: cfg, name: name, failed: make(chan error, 1)}
	plan, err := root.MakePlan(cfg, r.options())
	if err != nil {
		return err
	}
	if o.dryRun {
		return out.dryRun(plan)
	}
	if err := plan.Err(); err != nil {
		return out.missing(plan, text)
	}
	out.plan(plan)
	err = r.run()
	return out.ended(interruption(ctx, err))
}

// loadRun reads the file and says everything that is wrong with it, as config check does. A file of
// benchmarks has nothing to run.
func loadRun(s streams, name string, out *runOutput) (*config.Config, []byte, error) {
	shown, text, err := readConfig(s, name)
	if err != nil {
		return nil, nil, err
	}
	cfg, problems := config.Load(shown, text, config.Options{})
	if said := problems.Only(config.Error); len(said) > 0 {
		return nil, nil, out.problems(shown, said, text)
	}
	if said := problems.Only(config.Warning); len(said) > 0 {
		out.warnings(said, text)
	}
	if bench := benchSections(cfg); bench != "" {
		if len(cfg.Applications) == 0 && cfg.Transfers == nil {
			return nil, nil, fmt.Errorf("%s describes a benchmark (%s), which penstock bench stream drives; penstock "+
				"run needs applications or transfers", shown, bench)
		}
		out.warn(fmt.Sprintf("%s is for penstock bench stream: it does nothing here", bench))
	}
	return cfg, text, nil
}

// benchSections names the first section of a benchmark in the file, "" without any.
func benchSections(c *config.Config) string {
	for _, x := range []struct {
		there bool
		name  string
	}{{len(c.BenchRx) > 0, "bench_rx"}, {len(c.BenchTx) > 0, "bench_tx"},
		{c.SocketServer != nil, "socket_bench_server"}, {c.SocketClient != nil, "socket_bench_client"},
		{c.RDMAServer != nil, "rdma_bench_server"}, {c.RDMAClient != nil, "rdma_bench_client"},
		{c.Quantize != nil, "bench_reorder_quantize"}, {c.Latency != nil, "bench_latency"}} {
		if x.there {
			return x.name
		}
	}
	return ""
}

// stdin reports that the file is the standard input, which cannot be read again.
func (r *runner) stdin() bool { return r.name == "-" }

// terminalColor reports whether the terminal may be coloured.
func terminalColor() bool { return os.Getenv("NO_COLOR") == "" }
