package cli

import (
	"cmp"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/bench/device"
	"github.com/spf13/cobra"
)

func newBenchGPU(s streams) *cobra.Command {
	var out bench.Output
	var o device.Options
	var gpu gpuFlags
	c := &cobra.Command{
		Use:   "gpu",
		Short: "What an accelerator does: copies of every kind, pipelines, launches, events, allocation",
		Long: `Measures an accelerator through Penstock's own runtimes: copies between its memory and pageable, pinned, mapped and registered memory of the
host each way, both ways at once, and within the device, by its copy engine and by a kernel; a pipeline of pieces through a few pinned slots
beside one plain large copy, in interleaved pairs; launches, events, allocation. Every byte that is moved is read back and compared.

It needs the driver and nothing else. Copies of a card are printed beside the rate of its link; what runs on the processor (the runtime host,
OpenCL on the CPU) beside the speed at which two cores copy memory. Without --gpu-runtime the first runtime that is here is measured, and the
result says what it was taken instead of: on a machine without a GPU the figures are those of its processor.

Exit status 10: the runtime or device that was named is not here, and nothing was measured.`,
		Example: `  penstock bench gpu
  penstock bench gpu --gpu-runtime cuda --output gpu.json
  penstock bench gpu --gpu-runtime opencl --gpu 1 --size 4KiB,1MiB --total 64MiB`,
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
				quickGPU(&o)
			}
			r, err := device.Run(c.Context(), o)
			return out.Print(s.out, r, err)
		},
	}
	resultFlags(c, out.Flags)
	gpu.flags(c)
	f := c.Flags()
	f.Var((*sizesFlag)(&o.Sizes), "size", "bytes of a copy (default 64KiB,1MiB,16MiB, and 256MiB of a card or 128MiB)")
	f.Var((*sizeFlag)(&o.Total), "total", "bytes that go through a pipeline (default 256MiB of a card, else 64MiB)")
	f.IntVar(&o.Pairs, "pairs", 0, "interleaved pairs of each comparison (default 20, the least that gets a verdict)")
	f.IntVar(&o.Samples, "samples", 0, "samples of each row without a comparison (default 20)")
	return c
}

// quickGPU makes a smoke run of what the flags leave open.
func quickGPU(o *device.Options) {
	o.Budget = time.Millisecond
	o.Pairs, o.Samples = cmp.Or(o.Pairs, 3), cmp.Or(o.Samples, 2)
	if o.Sizes == nil {
		o.Sizes = []uint64{4 << 10, 1 << 20}
	}
	o.Total = cmp.Or(o.Total, 4<<20)
}
