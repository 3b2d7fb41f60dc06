package cli

import (
	"slices"

	"github.com/penstock-io/penstock/host/doctor"
	"github.com/spf13/cobra"
)

func newDoctorRDMA(s streams) *cobra.Command {
	d := examination{rdma: true}
	c := &cobra.Command{
		Use:   "rdma [DEVICE]...",
		Short: "Whether programs can use RDMA here: devices, addresses, MTU, loss, rights, libraries",
		Long: `Checks what RDMA depends on, and nothing else: devices and the state of their ports, which address (GID) of a port RDMA uses and why,
the MTU of the port beside that of its interface, counters of loss and repeats, flow control and congestion control, modules of the kernel, files
and rights, libraries and their parts, the limit of locked memory, GPU memory for cards, PCI Express. Nothing is changed, and nothing is sent.

With DEVICE, such as mlx5_0, that device must have an active port; without, any device. What the machine lacks fails.

Exit status: 0 if nothing fails, 10 if something does; with --strict also if there is a warning.`,
		Example: `  penstock doctor rdma
  penstock doctor rdma mlx5_0 --locked 8GiB --gpu any
  penstock doctor rdma --from server.txt --json`,
		Args: argsBetween(0, 64, "at most 64 devices"),
		RunE: func(c *cobra.Command, args []string) error {
			d.devices = args
			return d.run(c.Context(), s)
		},
		ValidArgsFunction: func(c *cobra.Command, args []string, _ string) (out []string, _ cobra.ShellCompDirective) {
			for _, name := range doctor.Look(c.Context()).RDMADevices() {
				if !slices.Contains(args, name) {
					out = append(out, name)
				}
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		},
	}
	f := c.Flags()
	f.BoolVar(&d.json, "json", false, "print one JSON object: the report")
	f.BoolVar(&d.all, "all", false, "also what does not apply")
	f.BoolVar(&d.strict, "strict", false, "a warning ends with status 10, too")
	f.StringSliceVar(&d.skip, "skip", nil, "checks to leave out, by the names that \"penstock doctor --list\" gives")
	f.StringVar(&d.record, "record", "", "also write what was read to `FILE`, which must not be there yet")
	f.StringVar(&d.from, "from", "", "look at the recording `FILE` instead of this machine; -: the standard input")
	f.StringVar(&d.locked, "locked", "", "memory that is registered: `SIZE`; default: 64 MiB")
	f.StringSliceVar(&d.gpus, "gpu", nil, "GPU whose memory takes part: its PCI `ADDRESS`, or any")
	for _, name := range []string{"record", "from"} {
		_ = c.MarkFlagFilename(name, "txt") // the flag exists
	}
	return c
}
