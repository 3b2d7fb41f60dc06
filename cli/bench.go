package cli

import (
	"io"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/spf13/cobra"
)

// Lab is what the lab's tool adds to the benchmarks, and the shipped program has not: it needs a
// compiler for C, or packages for tests.
type Lab struct {
	// bench.TransferOptions.OpenSSL
	OpenSSL func() (program string, err error)
	Cable   func(mtu int) (near, far func(func() error) error, end func() error, err error) // stream.Options.Cable
}

// Bench runs "penstock bench" with args and what the lab adds, and returns the exit status as
// [Main] does.
func Bench(lab Lab, args []string, in io.Reader, out, errOut io.Writer) int {
	return execute(append([]string{"bench"}, args...), streams{in, out, errOut, lab})
}

func newBench(s streams) *cobra.Command {
	s.out = printableJSON{s.out} // package bench writes its results by itself
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure, compared with other tools",
		Long: `Measures transfers between two processes and the parts they stand on. Each figure is printed with its physical ceiling,
and each timed run is verified byte by byte at the receiver. Comparisons are interleaved pairs, and say how sure they are.

  penstock bench ring --output before.json     measure and keep the result (docs/bench-format.md)
  penstock bench ring --output after.json      measure again, with another program
  penstock bench compare before.json after.json`,
		Args: subcommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newBenchTransfer(s), newBenchMem(s), newBenchRing(s), newBenchVec(s), newBenchFairness(s),
		newBenchStream(s), newBenchGPU(s), newBenchFeed(s), newBenchCompare(s), newBenchPeer(s))
	return c
}

// conditions are those that the flags of a benchmark ask for.
func conditions(s streams, o *bench.Output) (bench.Conditions, error) {
	c, err := o.Conditions(s.err)
	if o.Idle < 0 {
		err = &usageError{err}
	}
	return c, err
}

func newBenchVec(s streams) *cobra.Command {
	var out bench.Output
	c := &cobra.Command{
		Use:   "vec",
		Short: "Copies, checksums, searches and conversions beside plain code and the memory's bandwidth",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			var o bench.VecOptions
			if o.Conditions, err = conditions(s, &out); err != nil {
				return err
			}
			if out.Quick {
				o.Sizes, o.Pairs, o.Budget = []int{4 << 10, 1 << 20}, 3, time.Millisecond
			}
			r, err := bench.Vec(c.Context(), o)
			return out.Print(s.out, r, err)
		},
	}
	resultFlags(c, out.Flags)
	return c
}

func newBenchRing(s streams) *cobra.Command {
	var out bench.Output
	c := &cobra.Command{
		Use:   "ring",
		Short: "Rings beside channels and xsync",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			var o bench.RingOptions
			if o.Conditions, err = conditions(s, &out); err != nil {
				return err
			}
			if out.Quick {
				o.Bursts, o.Pairs, o.Items = []int{1, 32}, 3, 2000
			}
			r, err := bench.Ring(c.Context(), o)
			return out.Print(s.out, r, err)
		},
	}
	resultFlags(c, out.Flags)
	return c
}

func newBenchMem(s streams) *cobra.Command {
	var out bench.Output
	var o bench.MemOptions
	c := &cobra.Command{
		Use:   "mem",
		Short: "Pools, allocation, registration and first touch",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if o.Conditions, err = conditions(s, &out); err != nil {
				return err
			}
			if out.Quick {
				o.Samples, o.Budget, o.Size = 2, time.Millisecond, 64<<20
			}
			r, err := bench.Mem(c.Context(), o)
			return out.Print(s.out, r, err)
		},
	}
	resultFlags(c, out.Flags)
	c.Flags().BoolVar(&o.Huge, "huge", false, "2 MiB pages")
	return c
}
