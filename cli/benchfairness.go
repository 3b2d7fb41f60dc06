package cli

import (
	"os"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/spf13/cobra"
)

func newBenchFairness(s streams) *cobra.Command {
	var out bench.Output
	var o bench.FairnessOptions
	small, large := sizeFlag(4<<10), sizeFlag(256<<20)
	c := &cobra.Command{
		Use:   "fairness",
		Short: "Small puts beside a large one",
		Long: `Measures how long small puts of many streams take while one stream puts large messages on the same path, in pairs with
the same streams alone. The target is a 99th percentile of at most three times that of the streams alone.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			o.Small, o.Large = uint64(small), uint64(large)
			if o.Conditions, err = conditions(s, &out); err != nil {
				return err
			}
			if o.Command = []string{self, "bench", "bench-peer"}; out.Quick {
				o.Pairs, o.Puts = 2, 20
			}
			r, err := bench.Fairness(c.Context(), o)
			return out.Print(s.out, r, err)
		},
	}
	resultFlags(c, out.Flags)
	f := c.Flags()
	f.StringSliceVar(&o.Paths, "path", nil, "paths to measure (default shm,tcp)")
	f.IntVar(&o.Streams, "streams", 100, "streams of small puts")
	f.Var(&small, "small", "size of a small put")
	f.Var(&large, "large", "size of a large put")
	f.DurationSliceVar(&o.Pauses, "pause", []time.Duration{0, 10 * time.Millisecond},
		"time between two puts of a stream, one comparison each")
	f.IntVar(&o.Puts, "puts", 0, "puts of each stream in a run (default 200 without a pause, 50 with one)")
	f.IntVar(&o.Pairs, "pairs", 0, "interleaved pairs of each comparison (default 20, the least that gets a verdict)")
	return c
}
