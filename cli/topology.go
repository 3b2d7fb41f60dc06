package cli

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/penstock-io/penstock/host/doctor"
	"github.com/spf13/cobra"
)

func newTopology(s streams) *cobra.Command {
	var from, svg string
	c := &cobra.Command{
		Use: "topology",
		Short: "A picture of this machine: NUMA nodes, PCI Express, network cards, GPUs, and the processors of " +
			"their queues",
		Long: `Prints the machine as a tree: each NUMA node with its memory and processors, below it its root complexes, switches, network cards, GPUs
and NVMe disks with their links, the interfaces with the processors that their queues' interrupts go to, and how far each GPU and interface
are apart. --svg writes the same as a drawing, with each processor in it. For programs, "penstock doctor --json" has the machine.`,
		Example: `  penstock topology
  penstock topology --svg machine.svg
  penstock topology --from recording.txt`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return topology(c.Context(), s, from, svg) },
	}
	f := c.Flags()
	f.StringVar(&from, "from", "",
		"draw the recording `FILE` of \"penstock doctor --record\" instead of this machine; -: the standard input")
	f.StringVar(&svg, "svg", "", "write a drawing to `FILE` instead; -: the standard output")
	_ = c.MarkFlagFilename("from", "txt") // the flags exist
	_ = c.MarkFlagFilename("svg", "svg")
	return c
}

func topology(ctx context.Context, s streams, from, svg string) error {
	m := doctor.Machine{}
	if from == "" {
		m = doctor.Look(ctx)
	} else {
		var err error
		if m, err = openMachine(s, from); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	switch svg {
	case "":
		_, err := io.WriteString(s.out, printableText(m.Picture()))
		return err
	case "-":
		_, err := io.WriteString(s.out, m.SVG())
		return err
	}
	f, err := os.Create(svg)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, m.SVG())
	return errors.Join(err, f.Close())
}
