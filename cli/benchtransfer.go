package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path/verbs"
	"github.com/spf13/cobra"
)

// newBenchPeer is the second process of bench transfer.
func newBenchPeer(s streams) *cobra.Command {
	return &cobra.Command{
		Use:    "bench-peer",
		Short:  "The second process of the benchmarks",
		Hidden: true,
		Args:   noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return bench.ServePeer(c.Context(), s.in, s.out, nil)
		},
	}
}

func newBenchTransfer(s streams) *cobra.Command {
	var out bench.Output
	var o bench.TransferOptions
	var older []string
	var report bool
	var memory, local, remote string
	var device gpuFlags
	c := &cobra.Command{
		Use:   "transfer",
		Short: "Puts, gets and borrows between two processes",
		Long: `Measures puts, gets and borrows between two processes, over each path and in each way to wait.

With --memory device (of an accelerator) or --memory pinned (page-locked for one), on both sides or on one, it measures puts and
gets between those memories, each in interleaved pairs with the same one between host memories. A machine without a GPU uses
a substitute, and the output says so: such figures say nothing about a card.

  penstock bench transfer --path "verbs?device=mlx5_0&queue_pairs=2"`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			if o.Local, err = device.place(memory, local); err != nil {
				return err
			}
			if o.Remote, err = device.place(memory, remote); err != nil {
				return err
			}
			if report && (o.Local.Kind != mem.Host || o.Remote.Kind != mem.Host) {
				return &usageError{errors.New("--report is the table of targets between host memories: leave out " +
					"either it or --memory")}
			}
			if o.Paths, err = withOlder(o.Paths, older, []string{verbs.Name}); err != nil {
				return err
			}
			if report && strings.Contains(strings.Join(o.Paths, ","), "?") {
				return &usageError{errors.New("--report is the table of targets of shm and tcp: leave out either it or " +
					"the options of paths")}
			}
			if o.Conditions, err = conditions(s, &out); err != nil {
				return err
			}
			o.OpenSSL = s.lab.OpenSSL
			o.Command, o.Quick = []string{self, "bench", "bench-peer"}, out.Quick
			if !report {
				r, err := bench.Transfer(c.Context(), o)
				return out.Print(s.out, r, err)
			}
			if o.Network == "" {
				o.Isolated = []string{self, "bench", "transfer", "--report", "--json",
					fmt.Sprintf("--idle-wait=%v", out.Idle), fmt.Sprintf("--pairs=%d", o.Pairs),
					fmt.Sprintf("--budget=%v", o.Budget),
					fmt.Sprintf("--quick=%v", o.Quick), fmt.Sprintf("--huge=%v", o.Huge),
					fmt.Sprintf("--no-pin=%v", o.NoPin), fmt.Sprintf("--quiet=%v", out.Quiet)}
				if o.Against != nil {
					o.Isolated = append(o.Isolated, "--against="+strings.Join(o.Against, ","))
				}
			}
			r, err := bench.Targets(c.Context(), o)
			return out.Print(s.out, r, err)
		},
	}
	resultFlags(c, out.Flags)
	f := c.Flags()
	f.BoolVar(&o.Huge, "huge", false, "2 MiB pages on both sides (reserve them first: sysctl vm.nr_hugepages=600)")
	f.BoolVar(&o.NoPin, "no-pin", false, "leave spinning threads where the kernel puts them")
	pathFlag(c, &o.Paths, &older, "`PATHS` to measure", "shm,tcp")
	f.StringSliceVar(&o.Modes, "mode", nil, "how both sides wait: spin, event (default both)")
	f.Var((*sizesFlag)(&o.Sizes), "size", "sizes, such as 64,4KiB,1MiB (default 64 B to 256 MiB)")
	f.IntSliceVar(&o.Peers, "peers", nil, "how many peers at once (default 1,16)")
	f.IntVar(&o.Samples, "samples", 0, "samples of each row (default 10)")
	f.DurationVar(&o.Budget, "budget", 0, "time of one sample (default 50ms)")
	f.IntVar(&o.Pairs, "pairs", 0, "interleaved pairs of each comparison (default 20, the least that gets a verdict)")
	f.StringSliceVar(&o.Against, "against", nil,
		"compare with the peers' own tools: ucx, fi, iperf3; openssl in the lab's tool (go run ./internal/lab bench "+
			"transfer)")
	f.StringVar(&o.Congestion, "congestion", "",
		"TCP congestion control of ours (default: the system's, not paced on loopback)")
	f.BoolVar(&report, "report", false, "the table of targets, each beside the best peer that is installed")
	f.StringVar(&memory, "memory", "host", "memory on both sides: host, pinned, device")
	f.StringVar(&local, "local-memory", "", "memory of this process (default that of --memory)")
	f.StringVar(&remote, "remote-memory", "", "memory of the second process (default that of --memory)")
	device.flags(c)
	f.StringVar(&o.Network, "network", "", "")
	f.StringVar(&o.Outside, "outside", "", "")
	f.MarkHidden("network")
	f.MarkHidden("outside")
	return c
}
