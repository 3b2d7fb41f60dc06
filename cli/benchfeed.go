package cli

import (
	"cmp"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/bench/feed"
	"github.com/spf13/cobra"
)

func newBenchFeed(s streams) *cobra.Command {
	var out bench.Output
	var o feed.Options
	var gpu gpuFlags
	c := &cobra.Command{
		Use:   "feed",
		Short: "Packets to a persistent kernel, and back: rates by work-items, one packet by stages",
		Long: `Measures how packets get to a persistent kernel on an accelerator, and answers from it: rings of descriptors between two cores; a kernel of 1, 64,
1024 and 4096 work-items that reads and sums each byte, beside goroutines that do the same work, beside the same kernel by a launch for each burst of 64
with as many packets under way, and with a ring for each group beside one ring for all, in interleaved pairs; one packet at a time by stages (slot
written, seen by the kernel, answered), also after a pause. Each packet comes back once, with its sum, which is compared.

More work-items than the device keeps at once are noted and not run: the rest would wait for ever. On a processor (the runtime host, OpenCL on the
CPU) a work-item is a group of its own, and the figures are those of the processor.

Exit status 10: the runtime or device that was named is not here, and nothing was measured.`,
		Example: `  penstock bench feed
  penstock bench feed --gpu-runtime cuda --output feed.json
  penstock bench feed --gpu-runtime opencl --size 64B,1400B --threads 1`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if err := gpu.check(); err != nil {
				return err
			}
			o.Runtime, o.Device = gpu.name(), gpu.device
			if o.Conditions, err = conditions(s, &out); err != nil {
				return err
			}
			if out.Quick {
				o.Budget, o.Pairs = time.Millisecond, cmp.Or(o.Pairs, 2)
			}
			r, err := feed.Run(c.Context(), o)
			return out.Print(s.out, r, err)
		},
	}
	resultFlags(c, out.Flags)
	gpu.flags(c)
	f := c.Flags()
	f.Var((*sizesFlag)(&o.Sizes), "size", "bytes of a packet (default 64B,1400B,8900B)")
	f.IntSliceVar(&o.Threads, "threads", nil, "work-items of the persistent kernel (default 1,64,1024,4096)")
	f.IntVar(&o.Pairs, "pairs", 0, "interleaved pairs of each row (default 20, the least that gets a verdict)")
	return c
}
