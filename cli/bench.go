package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/config"
	"github.com/spf13/cobra"
)

func newBench(s streams) *cobra.Command {
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure, beside what you would otherwise use",
		Long: `Measures transfers between two processes and the parts they stand on. Each figure is printed with its physical ceiling,
and each timed run is verified byte by byte at the receiver. Comparisons are interleaved pairs, and say how sure they are.

  penstock bench ring --json before.json     measure and keep the result (docs/bench-format.md)
  penstock bench ring --json after.json      measure again, with another program
  penstock bench compare before.json after.json`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newBenchTransfer(s), newBenchMem(s), newBenchRing(s), newBenchVec(s), newBenchFairness(s), newBenchXDP(s), newBenchVerbs(s), newBenchStream(s), newBenchGPU(s), newBenchCompare(s), newBenchPeer(s))
	return c
}

// benchOutput are the flags that every benchmark has.
type benchOutput struct {
	json  string
	quiet bool
	idle  time.Duration
	seed  uint64
	quick bool
}

const jsonUsage = "write the result to this file as JSON too; - prints it instead of the table"

func (o *benchOutput) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&o.json, "json", "", jsonUsage)
	f.BoolVar(&o.quiet, "quiet", false, "no progress on standard error")
	f.BoolVar(&o.quick, "quick", false, "a smoke run: figures without meaning, no wait for an idle machine")
	f.DurationVar(&o.idle, "idle-wait", 30*time.Second,
		"how long to wait in all for other programs to leave the machine alone; 0: only look how busy it is")
	f.Uint64Var(&o.seed, "seed", 0, "of the order of runs and the statistics (default: a new one)")
}

// conditions are what a benchmark is run under. They are asked for before it starts, so that a result file that cannot be
// written is not found out at its end.
func (o *benchOutput) conditions(s streams) (bench.Conditions, error) {
	c := bench.Conditions{Seed: o.seed}
	if !o.quiet {
		c.Progress = func(line string) { fmt.Fprintln(s.err, line) }
	}
	if o.idle < 0 {
		return c, &usageError{fmt.Errorf("--idle-wait %v: expected a time of 0 or more", o.idle)}
	}
	if !o.quick {
		c.Gate = &paired.Gate{Budget: o.idle}
		if o.idle == 0 {
			c.Gate.Budget = -1
		}
	}
	return c, writable(o.json)
}

// writable fails when a file cannot be written for a reason that can be seen without writing.
func writable(name string) error {
	if name == "" || name == "-" {
		return nil
	}
	switch i, err := os.Stat(name); {
	case err == nil && i.IsDir():
		return fmt.Errorf("--json %s: expected a file, this is a directory", name)
	case err == nil:
		return nil
	}
	dir := filepath.Dir(name)
	if i, err := os.Stat(dir); err != nil || !i.IsDir() {
		return fmt.Errorf("--json %s: there is no directory %s", name, dir)
	}
	return nil
}

// print writes a report, also one that failed: what is wrong with it is in err.
func (o *benchOutput) print(s streams, r *paired.Report, err error) error {
	if r == nil {
		return err
	}
	return errors.Join(err, output(s, o.json, r))
}

// output writes a result as a table, as JSON, or both. The file comes first: whoever reads the table may close it early.
func output(s streams, name string, r interface {
	Write(io.Writer) error
	Table(io.Writer) error
}) error {
	if name == "-" {
		return r.Write(s.out)
	}
	var err error
	if name != "" {
		var b bytes.Buffer
		if err = r.Write(&b); err == nil {
			err = os.WriteFile(name, b.Bytes(), 0o644)
		}
	}
	return errors.Join(err, r.Table(s.out))
}

func newBenchVec(s streams) *cobra.Command {
	var out benchOutput
	c := &cobra.Command{
		Use:   "vec",
		Short: "Copies and checksums beside Go's built-in copy",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			var o bench.VecOptions
			if o.Conditions, err = out.conditions(s); err != nil {
				return err
			}
			if out.quick {
				o.Sizes, o.Pairs, o.Budget = []int{4 << 10, 1 << 20}, 3, time.Millisecond
			}
			r, err := bench.Vec(c.Context(), o)
			return out.print(s, r, err)
		},
	}
	out.flags(c)
	return c
}

func newBenchRing(s streams) *cobra.Command {
	var out benchOutput
	c := &cobra.Command{
		Use:   "ring",
		Short: "Rings beside channels and xsync",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			var o bench.RingOptions
			if o.Conditions, err = out.conditions(s); err != nil {
				return err
			}
			if out.quick {
				o.Bursts, o.Pairs, o.Items = []int{1, 32}, 3, 2000
			}
			r, err := bench.Ring(c.Context(), o)
			return out.print(s, r, err)
		},
	}
	out.flags(c)
	return c
}

func newBenchMem(s streams) *cobra.Command {
	var out benchOutput
	var o bench.MemOptions
	c := &cobra.Command{
		Use:   "mem",
		Short: "Pools, allocation, registration and first touch",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if o.Conditions, err = out.conditions(s); err != nil {
				return err
			}
			if out.quick {
				o.Samples, o.Budget, o.Size = 2, time.Millisecond, 64<<20
			}
			r, err := bench.Mem(c.Context(), o)
			return out.print(s, r, err)
		},
	}
	out.flags(c)
	c.Flags().BoolVar(&o.Huge, "huge", false, "2 MiB pages")
	return c
}

// parseSize reads a number of bytes with an optional unit, as configuration files have it: 64, 4KiB, 1.5GiB.
func parseSize(s string) (uint64, error) {
	n, err := config.ParseSize(strings.TrimSpace(s))
	if err != nil {
		return 0, fmt.Errorf("%w: expected a number of bytes such as 64, 4KiB, 1MiB or 1GiB", err)
	}
	return uint64(n), nil
}
