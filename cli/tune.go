package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/penstock-io/penstock/host"
	"github.com/penstock-io/penstock/host/tune"
	"github.com/spf13/cobra"
)

func newTune(s streams) *cobra.Command {
	c := &cobra.Command{
		Use:   "tune",
		Short: "Set this host up for receiving at speed, and put it back as it was",
		Args:  subcommand,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newTuneNic(s), newTuneHost(s), newTuneDriver(s))
	return c
}

// tuning is the flags that all commands of tune have.
type tuning struct {
	apply, undo, force, json bool
	state                    string
}

func (t *tuning) flags(c *cobra.Command, undo, force, json string) {
	f := c.Flags()
	f.BoolVar(&t.apply, "apply", false, "change it")
	f.BoolVar(&t.undo, "undo", false, undo)
	f.BoolVar(&t.force, "force", false, force)
	f.BoolVar(&t.json, "json", false, "print one JSON object: the plan, or with --apply and --undo what was done"+json)
	f.StringVar(&t.state, "state", "",
		"`DIR` of the records of what was changed; default /var/lib/penstock/tune for root, else below the user's "+
			"state directory")
	_ = c.MarkFlagDirname("state") // the flag exists
}

// What --undo and --force do to settings.
const (
	undoSettings  = "restore what was there before the first --apply"
	forceSettings = "with --undo, also what another program has changed since"
)

func (t *tuning) check() error {
	switch {
	case t.apply && t.undo:
		return &usageError{errors.New("--apply and --undo exclude each other")}
	case t.force && !t.undo:
		return &usageError{errors.New("--force needs --undo")}
	}
	return nil
}

// run takes back what was done, or shows what to do, or does it.
func (t *tuning) run(ctx context.Context, s streams, undo func(tune.Options) (tune.Result, error),
	plan func() (tune.Plan, error)) error {
	o := tune.Options{StateDir: t.state, Force: t.force}
	if t.undo {
		res, err := undo(o)
		return t.report(s, res, err)
	}
	p, err := plan()
	if err != nil {
		return err
	}
	return t.show(ctx, s, p, o)
}

// nicTuning is the flags of tune nic.
type nicTuning struct {
	tuning
	goals    tune.Goals
	huge     string
	rps, xps string
}

func newTuneNic(s streams) *cobra.Command {
	var t nicTuning
	c := &cobra.Command{
		Use:   "nic [IF]",
		Short: "What to change on a network interface and its host for AF_XDP, and why; with --apply also do it",
		Long: `Shows what to change on the interface IF and on the host: offloads, MTU, queues, rings, interrupts, huge pages; each with its
current value, its new value, the reason, and the command that sets it by hand. Without --apply nothing changes.

--apply does the steps in order, reads each back, and stops at the first that does not come to be so. Before each change it writes down
what was there, so --undo restores that, also after an error, a kill or several --apply. What another program has changed since stays as
it is and is named; --force restores it too. These settings end with the machine's boot, and the record with them.

Without IF, lists the interfaces with their drivers, queues and what they support of XDP.

Steps that take a right which this process lacks are marked with it, and --apply changes nothing then.`,
		Example: `  penstock tune nic
  penstock tune nic eth0 --queues 4 --mtu 9000
  penstock tune nic eth0 --queues 4 --hugepages 256MiB --skip gro,irq --apply
  penstock tune nic eth0 --undo`,
		Args: argsBetween(0, 1, "at most one interface"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := t.check(c, args); err != nil {
				return err
			}
			if len(args) == 0 {
				return t.list(c.Context(), s)
			}
			return t.run(c.Context(), s, func(o tune.Options) (tune.Result, error) {
				return tune.Undo(c.Context(), args[0], o)
			},
				func() (tune.Plan, error) { return tune.Nic(c.Context(), args[0], t.goals) })
		},
		ValidArgsFunction: func(c *cobra.Command, args []string, _ string) (out []string, _ cobra.ShellCompDirective) {
			if len(args) == 0 {
				out = interfaceNames(c.Context())
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		},
	}
	t.flags(c, undoSettings, forceSettings, "; without IF an array")
	f := c.Flags()
	f.IntVar(&t.goals.Queues, "queues", 0, "receive queues to have; 0: as many as there are")
	f.IntVar(&t.goals.Ring, "rings", 0, "descriptors of each ring; 0: at least 2048 where the device can")
	f.IntVar(&t.goals.MTU, "mtu", 0, "MTU in bytes; 0: unchanged")
	f.StringVar(&t.huge, "hugepages", "",
		"memory to have free in huge pages near the card: `SIZE` or SIZE/PAGE, such as 256MiB or 4GiB/1GiB")
	f.BoolVar(&t.goals.BusyPoll, "busy-poll", false, "put interrupts off while the application polls")
	f.StringVar(&t.rps, "rps", "",
		"processors that the kernel hands packets on to, by flow: `LIST` such as 2-5, or none (RPS)")
	f.StringVar(&t.xps, "xps", "",
		"processors that send, each by a queue of its own as far as there are queues: `LIST`, or none (XPS)")
	f.StringSliceVar(&t.goals.Skip, "skip", nil, "steps to leave out, of "+strings.Join(tune.Names, ", "))
	complete(c, "skip", tune.Names...)
	return c
}

func (t *nicTuning) check(c *cobra.Command, args []string) error {
	bad := func(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }
	if err := t.tuning.check(); err != nil {
		return err
	}
	if len(args) == 0 && (t.apply || t.undo) {
		return bad("which interface? \"penstock tune nic\" lists them")
	}
	for _, f := range []string{"queues", "rings", "mtu", "hugepages", "busy-poll", "rps", "xps", "skip"} {
		if (t.undo || len(args) == 0) && c.Flags().Changed(f) {
			return bad("--%s changes an interface: name IF, and leave out --undo", f)
		}
	}
	for _, x := range []struct {
		flag, text string
		to         *[]int
	}{{"rps", t.rps, &t.goals.RPS}, {"xps", t.xps, &t.goals.XPS}} {
		if x.text == "" {
			continue
		}
		l, err := host.ParseList(strings.Replace(x.text, "none", "", 1))
		if err != nil {
			return bad("--%s: %w, or none", x.flag, err)
		}
		*x.to = append([]int{}, l...) // none is not nil
	}
	if t.huge == "" {
		return nil
	}
	size, page, both := strings.Cut(t.huge, "/")
	var err error
	if t.goals.HugePages.Bytes, err = parseSize(size); err != nil {
		return bad("--hugepages %s: %w", t.huge, err)
	}
	if both {
		n, err := parseSize(page)
		if err != nil || n == 0 || n > 1<<40 {
			return bad("--hugepages %s: size of a page: expected one such as 2MiB or 1GiB", t.huge)
		}
		t.goals.HugePages.Page = int(n)
	}
	return nil
}

// report prints what was done, also when it ended with an error.
func (t *tuning) report(s streams, res tune.Result, err error) error {
	if t.json {
		out := struct {
			tune.Result
			OK    bool   `json:"ok"`
			Error string `json:"error,omitempty"`
		}{Result: res, OK: err == nil}
		if err != nil {
			out.Error = err.Error()
		}
		return errors.Join(err, printJSON(s.out, out))
	}
	var b strings.Builder
	for _, o := range res.Outcomes {
		fmt.Fprintln(&b, o)
	}
	if err == nil && t.apply {
		state := ""
		if t.state != "" {
			state = " --state " + t.state
		}
		fmt.Fprintf(&b, "Done; \"%s --undo%s\" takes it back.\n", tunedCommand(res.Interface), state)
	}
	_, werr := io.WriteString(s.out, printableText(b.String()))
	return errors.Join(err, werr)
}

func (t *nicTuning) list(ctx context.Context, s streams) error {
	all, err := tune.Interfaces(ctx)
	if err != nil {
		return err
	}
	table := list{}
	table.add("interface", "driver", "state", "MTU", "queues", "NUMA", "speed", "AF_XDP", "program",
		"XDP of the driver", "metadata")
	for _, i := range all {
		state, node, speed, program := "down", "-", "-", "-"
		if i.Up {
			state = "up"
		}
		if i.Node >= 0 {
			node = fmt.Sprint(i.Node)
		}
		if i.Speed > 0 {
			speed = fmt.Sprintf("%g Gb/s", float64(i.Speed)/1e9)
		}
		if i.Mode != "" {
			program = fmt.Sprintf("%s, id %d", i.Mode, i.Program)
		}
		xdp := i.XDP
		if i.XDPUnknown {
			xdp = "the kernel does not say"
		}
		table.add(i.Name, dash(i.Driver), state, fmt.Sprint(i.MTU),
			fmt.Sprintf("%d of %d", i.Queues, max(i.Most, i.Queues)), node, speed, i.AFXDP(), program, dash(xdp),
			dash(i.Metadata))
	}
	return printAll(s, t.json, all, "There is no network interface here besides the loopback device.", table)
}

// printAll prints a table of what a machine has, or an array; none is the text where it has
// nothing.
func printAll[T any](s streams, json bool, all []T, none string, table list) error {
	switch {
	case json && all == nil:
		return printJSON(s.out, []T{})
	case json:
		return printJSON(s.out, all)
	case len(all) == 0:
		_, err := fmt.Fprintln(s.out, none)
		return err
	}
	var b strings.Builder
	table.width = widthOf(s.out)
	if err := table.print(&b); err != nil {
		return err
	}
	_, err := io.WriteString(s.out, printableText(b.String()))
	return err
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// printableText is escapeControls for several lines: an interface may have almost any name.
func printableText(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = escapeControls(l)
	}
	return strings.Join(lines, "\n")
}
