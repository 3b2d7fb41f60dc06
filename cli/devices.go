package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/gpu/runtimes"
	"github.com/penstock-io/penstock/host"
	"github.com/penstock-io/penstock/host/cards"
	"github.com/spf13/cobra"
)

func newDevices(s streams) *cobra.Command {
	var from string
	var asJSON bool
	c := &cobra.Command{
		Use:   "devices",
		Short: "The accelerators of this machine: what each can do, what is missing and how to get it",
		Long: `Opens every runtime of accelerators that this build has (CUDA, OpenCL, the host itself), and says of each of its devices: architecture,
driver, memory, bus and NUMA node, link, what the card says of its clocks and its BAR1, the network cards by their distance, and of each
capability whether the device has it or why not. A runtime that is not here has its reason and how to get it, and so has a GPU on the bus
that no runtime uses. Nothing is changed; a context is opened on each device, for its free memory.

Distances are those of "nvidia-smi topo": PIX and PXB are below one switch, so that a network card reaches the device without the processor;
PHB and NODE are over the processor, SYS over the connection between processors.

Exit status 0, also where nothing but the host is here: the host is always there.`,
		Example: `  penstock devices
  penstock devices --json
  penstock devices --from recording.txt`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			r, err := lookForDevices(c.Context(), s, from)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(s.out, r)
			}
			return printDevices(s.out, r)
		},
	}
	f := c.Flags()
	f.BoolVar(&asJSON, "json", false, "print one JSON object")
	f.StringVar(&from, "from", "",
		"look at the recording `FILE` of \"penstock doctor --record\", which has the cards and no runtimes; -: the "+
			"standard input")
	_ = c.MarkFlagFilename("from", "txt") // the flag exists
	return c
}

func lookForDevices(ctx context.Context, s streams, from string) (*cards.Report, error) {
	if from == "" {
		r := cards.Look(ctx, runtimes.Table(), host.Read(ctx, host.Live(ctx)))
		return r, ctx.Err()
	}
	in := s.in
	if from != "-" {
		f, err := os.Open(from)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	rec, err := host.Parse(in)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	return cards.Of(host.Read(ctx, rec)), nil
}

const (
	deviceLabel = 13
	deviceWidth = 80
)

// printDevices writes the report in lines of at most 80 columns, but for words that cannot be
// broken.
func printDevices(w io.Writer, r *cards.Report) error {
	p := &paired.Lines{W: w, Label: deviceLabel, Width: deviceWidth}
	field := func(name, text string) { p.Field("  "+name, escapeControls(text)) }
	for i, x := range r.Runtimes {
		if i > 0 {
			p.Line("")
		}
		if x.Missing != "" {
			p.Line("%s: not here", x.Name)
			field("why", x.Missing)
			for _, g := range x.Get {
				field("get it", g)
			}
		} else {
			p.Line("%s: %s", x.Name, count(len(x.Devices), "device", "devices"))
			field("version", x.Version)
		}
		for _, d := range x.Devices {
			p.Line("")
			p.Field(fmt.Sprintf("%s %d", x.Name, d.Index), escapeControls(d.Name))
			printDevice(field, &d)
		}
	}
	if r.NoNVML != "" && hasNVIDIA(r) {
		p.Line("")
		p.Field("NVML", escapeControls(r.NoNVML))
	}
	for i, c := range r.Cards {
		if c.UsedBy != nil {
			continue
		}
		if r.Runtimes != nil || i > 0 {
			p.Line("")
		}
		p.Field("card", escapeControls(c.Bus+" "+c.Name))
		switch {
		case c.Missing != "":
			field("unused", c.Missing)
		case r.Runtimes == nil:
			field("runtimes", "not known: this is a recording")
		}
		for _, g := range c.Get {
			field("get it", g)
		}
		if c.Driver != "" {
			field("driver", c.Driver)
		}
		if c.Integrated {
			field("memory", "the machine's")
		} else if c.Window > 0 {
			field("window", formatBytes(c.Window)+" of its memory at once, for other cards and the processor")
		}
		printBus(field, "", c.Node, c.Link, c.Near)
	}
	if r.Runtimes == nil && len(r.Cards) == 0 {
		p.Line("no GPU is in this recording")
	}
	return p.Err
}

func hasNVIDIA(r *cards.Report) bool {
	for _, c := range r.Cards {
		if strings.HasPrefix(c.Name, "NVIDIA") {
			return true
		}
	}
	return false
}

func printDevice(field func(name, text string), d *cards.Device) {
	if d.Error != "" {
		field("error", d.Error)
	}
	field("is", fmt.Sprintf("%s, driver %s, %s", d.Arch, d.Driver, count(d.Units, "unit", "units")))
	memory := fmt.Sprintf("%s free of %s", formatBytes(d.Free), formatBytes(d.Memory))
	if d.Error != "" {
		memory = formatBytes(d.Memory)
	}
	if d.MaxAlloc < d.Memory {
		memory += fmt.Sprintf(", at most %s at once", formatBytes(d.MaxAlloc))
	}
	field("memory", memory)
	if d.Bus == "" {
		field("bus", "none that the runtime tells of; a processor has none")
	} else {
		printBus(field, d.Bus, d.Node, d.Link, d.Near)
	}
	if n := d.NVML; n != nil {
		var parts []string
		add := func(ok bool, format string, a ...any) {
			if ok {
				parts = append(parts, fmt.Sprintf(format, a...))
			}
		}
		add(n.SMClock != nil && n.MaxSMClock != nil, "processors at %d of %d MHz", deref(n.SMClock),
			deref(n.MaxSMClock))
		add(n.MemoryClock != nil, "memory at %d MHz", deref(n.MemoryClock))
		add(n.Temperature != nil, "%d degrees", deref(n.Temperature))
		add(n.Power != nil, "%.0f W", deref(n.Power))
		add(n.BAR1Total != nil, "BAR1 %s", formatBytes(deref(n.BAR1Total)))
		add(n.BAR1Free != nil, "%s of it free", formatBytes(deref(n.BAR1Free)))
		if parts != nil {
			field("now", strings.Join(parts, ", "))
		}
		if n.Throttle != nil {
			field("slowed by", strings.Join(n.Throttle, ", "))
		}
	}
	var can []string
	for _, c := range d.Capabilities {
		if c.OK {
			can = append(can, c.Name)
		}
	}
	field("can", strings.Join(can, " "))
	for i, c := range d.Capabilities {
		if c.OK {
			continue
		}
		label := "cannot"
		for _, b := range d.Capabilities[:i] {
			if !b.OK {
				label = "" // the word stands above
			}
		}
		field(label, c.Name+": "+c.Why)
	}
}

// deref is what p points to, or nothing.
func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// printBus writes where a card is, and which network cards are near.
func printBus(field func(name, text string), bus string, node int, link *cards.Link, near []cards.Near) {
	if bus != "" {
		if node >= 0 {
			bus += fmt.Sprintf(", NUMA node %d", node)
		}
		field("bus", bus)
	} else if node >= 0 {
		field("NUMA node", fmt.Sprint(node))
	}
	if link != nil {
		text := link.Now.String()
		if link.Now != link.Max {
			text += ", at most " + link.Max.String()
		}
		if r := link.Max.BytesPerSecond(); r > 0 {
			text += fmt.Sprintf(": %s each way", formatRate(r))
		}
		field("link", text)
	}
	if len(near) == 0 {
		field("network", "no card on a bus that is known")
		return
	}
	for i, n := range near {
		label := "network"
		if i > 0 {
			label = ""
		}
		name := strings.Join(append([]string{n.Interface}, n.RDMA...), " ")
		text := fmt.Sprintf("%s %s, %s, %s", n.Distance, strings.TrimSpace(name), n.Name, n.PCI)
		if n.Direct {
			text += ": reached without the processor"
		}
		field(label, text)
	}
}
