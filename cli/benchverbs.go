package cli

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/spf13/cobra"
)

func newBenchVerbs(s streams) *cobra.Command {
	var out benchOutput
	var o bench.VerbsOptions
	var sizes, regions []string
	c := &cobra.Command{
		Use:   "verbs",
		Short: "RDMA on a device of this machine, beside perftest",
		Long: `Measures RDMA (libibverbs, called from Go) on one device of this machine, which talks to itself: what posting and polling cost, the bandwidth of
writes, reads and sends, the time of small messages there and back, and what registration costs anew and kept. Where perftest is installed, its
programs do the same on the same device, in interleaved pairs. Every byte that arrives is compared.

Without an RDMA device it says how to get one; "penstock doctor rdma" looks at what it stands on.

  penstock bench verbs --device mlx5_0 --json verbs.json
  penstock bench verbs --classes write,read --sizes 64KiB,1MiB`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if o.Conditions, err = out.conditions(s); err != nil {
				return err
			}
			if out.quick { // what is asked for by name stays
				o.Pairs, o.Budget, o.Trips = cmp.Or(o.Pairs, 3), cmp.Or(o.Budget, 5*time.Millisecond), cmp.Or(o.Trips, 20)
				o.Sizes, o.Regions = []uint64{4 << 10, 64 << 10}, []uint64{4 << 10, 1 << 20}
			}
			for _, x := range []struct {
				flag string
				from []string
				to   *[]uint64
			}{{"sizes", sizes, &o.Sizes}, {"regions", regions, &o.Regions}} {
				if x.from == nil {
					continue
				}
				*x.to = nil
				for _, text := range x.from {
					n, err := parseSize(text)
					if err != nil {
						return &usageError{fmt.Errorf("--%s: %w", x.flag, err)}
					}
					*x.to = append(*x.to, n)
				}
			}
			if err := o.Check(); err != nil {
				return &usageError{err}
			}
			r, err := bench.Verbs(c.Context(), o)
			return out.print(s, r, err)
		},
	}
	out.flags(c)
	f := c.Flags()
	f.StringVar(&o.Device, "device", "", "RDMA device `NAME`, such as mlx5_0; default: the first with an active port")
	f.IntVar(&o.Port, "port", 0, "its port, counted from 1; 0: the first that is active")
	f.IntVar(&o.GID, "gid", bench.AnyGID, "index of the port's address to use; -1: the best of its table")
	f.StringVar(&o.Library, "library", "", "`FILE` of libibverbs; default: the system's")
	f.StringSliceVar(&o.Classes, "classes", nil, "what to measure: "+strings.Join(bench.VerbsClasses, ", ")+"; default: all")
	f.StringSliceVar(&sizes, "sizes", nil, "`SIZES` of messages, powers of two; default: 4KiB,64KiB,1MiB")
	f.StringSliceVar(&regions, "regions", nil, "`SIZES` of memory to register; default: 4KiB,1MiB,64MiB")
	f.IntVar(&o.Pairs, "pairs", 0, "pairs of each comparison; default: 20")
	f.DurationVar(&o.Budget, "time", 0, "of one sample of bandwidth; default: 500ms")
	f.IntVar(&o.Depth, "depth", 0, "requests under way at once; default: 128, as perftest has it")
	f.IntVar(&o.Chain, "chain", 0, "requests that are posted by one call; default: 1, as perftest does it")
	f.IntVar(&o.Trips, "trips", 0, "round trips of one sample of latency; default: 1000")
	f.BoolVar(&o.Alone, "alone", false, "without perftest, also where it is installed")
	complete(c, "classes", bench.VerbsClasses...)
	_ = c.MarkFlagFilename("library", "so") // the flag exists
	return c
}
