package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/spf13/cobra"
)

func newBenchXDP(s streams) *cobra.Command {
	var out benchOutput
	var o bench.XDPOptions
	var touched, packets string
	c := &cobra.Command{
		Use:   "xdp",
		Short: "Packets by AF_XDP beside C on libxdp and DPDK",
		Long: `Receives, sends and forwards packets over veth between two network namespaces, beside a program in C on libxdp and DPDK's
net_af_xdp in testpmd, in interleaved pairs. Load and sink are the program in C for everybody. The ends count every packet and
check every byte that arrives; a run whose ends disagree by more than the counted drops fails. It takes root.

Held rows tell the processor time of the thread under test alone: everything lies in the rings before it begins. Path rows are held
ones with the sender's processor time, in which the kernel's part of receiving is on veth. Live rows tell packets that arrive
while all work at once.

  penstock bench xdp --mode held --size 64
  penstock bench xdp --packets 1e8             forward so many, and account for each packet and each slot`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			switch touched {
			case "both":
			case "yes", "no":
				o.Touched = []bool{touched == "yes"}
			default:
				return &usageError{fmt.Errorf("--touched %q: expected yes, no or both", touched)}
			}
			if o.Conditions, err = out.conditions(s); err != nil {
				return err
			}
			if out.quick {
				o.Pairs, o.Burst, o.Bursts, o.Time = 3, 512, 1, 20*time.Millisecond
			}
			if packets != "" {
				n, err := parseCount(packets)
				if err != nil {
					return &usageError{err}
				}
				if out.json != "" {
					return &usageError{errors.New("--packets prints an account: --json does not go with it")}
				}
				a, err := bench.AccountXDP(c.Context(), o, n)
				if a != nil {
					err = errors.Join(err, a.Table(s.out))
				}
				return err
			}
			r, err := bench.XDP(c.Context(), o)
			return out.print(s, r, err)
		},
	}
	out.flags(c)
	f := c.Flags()
	f.StringVar(&o.Engine, "engine", "", "ours: "+strings.Join(bench.XDPEngines(), ", "))
	f.StringSliceVar(&o.Ops, "op", nil, "of receive, send, forward (default all)")
	f.IntSliceVar(&o.Sizes, "size", nil, "bytes of a frame (default 64,1400,8900)")
	f.StringVar(&touched, "touched", "both", "whether headers are read or written: yes, no, both")
	f.StringSliceVar(&o.Modes, "mode", nil, "of held, path, live (default all)")
	f.StringSliceVar(&o.Against, "against", nil, "of c, testpmd (default both)")
	f.IntVar(&o.Pairs, "pairs", 0, "interleaved pairs of each row (default 20, the least that gets a verdict)")
	f.IntVar(&o.Bursts, "bursts", 0, "bursts of a held sample (default 8)")
	f.DurationVar(&o.Time, "time", 0, "of a live sample (default 1s)")
	f.BoolVar(&o.Wall, "wall", false, "held rows by the clock on the wall")
	f.BoolVar(&o.Huge, "huge", false, "huge pages for everybody")
	f.StringVar(&packets, "packets", "", "forward so many packets of the first size, such as 1e8, and account for each")
	return c
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
