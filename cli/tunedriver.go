package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/penstock-io/penstock/host/tune"
	"github.com/spf13/cobra"
)

// driverTuning is the flags of tune driver.
type driverTuning struct {
	tuning
	driver string
}

func newTuneDriver(s streams) *cobra.Command {
	var t driverTuning
	c := &cobra.Command{
		Use:   "driver [PCI|IF]",
		Short: "Give a network card to a driver for programs in user space, or back; with --apply also do it",
		Long: `Shows what it takes that the network card at a PCI address, or that of an interface, gets the driver that --driver names: vfio-pci (DPDK, behind an
IOMMU), uio_pci_generic (without one: nothing keeps the card from any memory), another one that is loaded, or kernel for the one that the kernel
itself chooses. Nothing is changed without --apply, and no module is loaded: a driver that is missing is named with the command that loads it.

It is refused, and there is no flag against it, while the card carries the default route, an IP address that is in use, part of a bond or bridge,
another interface (VLAN) or virtual functions; where its interface is in another network namespace; where other devices of its IOMMU group have
drivers of the kernel; and while a program has the card open in user space.

The kernel loses the interface with everything that is set on it. --undo gives the card the driver that it had before the first --apply, also after a kill
in the middle; the interface comes back switched off and as new. A reboot undoes it, too.

Without PCI and IF, lists the network cards.`,
		Example: `  penstock tune driver
  penstock tune driver eth1 --driver vfio-pci
  penstock tune driver 0000:01:00.0 --driver vfio-pci --apply
  penstock tune driver 0000:01:00.0 --undo`,
		Args: argsBetween(0, 1, "at most one card"),
		RunE: func(c *cobra.Command, args []string) error {
			bad := func(text string) error { return &usageError{errors.New(text)} }
			if t.force && !t.undo {
				return bad("--force needs --undo: it does not override a refusal")
			}
			if err := t.check(); err != nil {
				return err
			}
			switch {
			case len(args) == 0 && (t.apply || t.undo || t.driver != ""):
				return bad("which card? \"penstock tune driver\" lists them")
			case t.undo && t.driver != "":
				return bad("--driver says what to change: it does not go with --undo")
			case len(args) == 1 && !t.undo && t.driver == "":
				return bad("which driver? --driver vfio-pci, say, or --undo")
			case len(args) == 0:
				return t.list(c.Context(), s)
			}
			return t.run(c.Context(), s, func(o tune.Options) (tune.Result, error) {
				return tune.UndoDriver(c.Context(), args[0], o)
			},
				func() (tune.Plan, error) { return tune.Driver(c.Context(), args[0], t.driver) })
		},
		ValidArgsFunction: func(c *cobra.Command, args []string, _ string) (out []string, _ cobra.ShellCompDirective) {
			if len(args) == 0 {
				all, _ := tune.Cards(c.Context()) // none is an answer too
				for _, x := range all {
					out = append(out, x.Addr+"\t"+x.Name)
				}
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		},
	}
	t.flags(c, "restore the driver that was there before the first --apply",
		"with --undo, also if another program has changed it since", "; without PCI and IF an array")
	c.Flags().StringVar(&t.driver, "driver", "", "the driver that the card gets: "+strings.Join(tune.UserDrivers, ", ")+
		", another one, or "+tune.KernelDriver+" for the kernel's choice")
	complete(c, "driver", append([]string{tune.KernelDriver}, tune.UserDrivers...)...)
	return c
}

func (t *driverTuning) list(ctx context.Context, s streams) error {
	all, err := tune.Cards(ctx)
	if err != nil {
		return err
	}
	table := list{}
	table.add("address", "driver", "override", "IOMMU group", "interfaces", "card")
	for _, c := range all {
		group := "-"
		if c.Group >= 0 {
			group = fmt.Sprint(c.Group)
		}
		table.add(c.Addr, dash(c.Driver), dash(c.Override), group, dash(strings.Join(c.Interfaces, ", ")), c.Name)
	}
	return printAll(s, t.json, all, "There is no network card on PCI here.", table)
}
