package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/penstock-io/penstock/host"
	"github.com/penstock-io/penstock/host/tune"
	"github.com/spf13/cobra"
)

// hostTuning is the flags of tune host.
type hostTuning struct {
	tuning
	goals   tune.HostGoals
	buffers string
	sysctls []string
	huge    []string
	cores   string
}

func newTuneHost(s streams) *cobra.Command {
	var t hostTuning
	c := &cobra.Command{
		Use:   "host",
		Short: "What to change on the machine apart from its interfaces, and why; with --apply also do it",
		Long: `Shows what to change on the machine: how large sockets' buffers may be, what the kernel may receive at once (if it was cut off), NUMA
balancing, other parameters of the kernel, huge pages by size and NUMA node, the governor of the processors' frequency; each with its current value,
its new value, the reason, and the command that sets it by hand. Without --apply nothing changes.

--apply and --undo work as those of "penstock tune nic": tune records each value before it changes it, so --undo restores it also after an
error, a kill or several --apply. --undo names and keeps what another program has changed since; --force restores it too. These settings end
with the machine's boot, and the record with them.`,
		Example: `  penstock tune host
  penstock tune host --hugepages 4GiB/1GiB@0 --hugepages 512MiB@1 --apply
  penstock tune host --sysctl net.core.busy_poll=50 --cores 2-9 --skip numa-balancing
  penstock tune host --undo`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := t.check(c); err != nil {
				return err
			}
			return t.run(c.Context(), s, func(o tune.Options) (tune.Result, error) {
				return tune.UndoHost(c.Context(), o)
			},
				func() (tune.Plan, error) { return tune.Host(c.Context(), t.goals) })
		},
	}
	t.flags(c, undoSettings, forceSettings, "")
	f := c.Flags()
	f.StringVar(&t.buffers, "buffers", "64MiB", "how large a socket's buffers may be, at least: `SIZE`")
	f.StringArrayVar(&t.sysctls, "sysctl", nil,
		"parameter of the kernel: `NAME=VALUE`, of those that docs/tune.md lists; may be repeated")
	f.StringArrayVar(&t.huge, "hugepages", nil,
		"memory to have free in huge pages: `SIZE`, SIZE/PAGE or SIZE/PAGE@NODE, such as 4GiB/1GiB@0; may be repeated")
	f.StringVar(&t.goals.Governor, "governor", "",
		"governor of the processors' frequency; default performance, where there are governors")
	f.StringVar(&t.cores, "cores", "", "processors whose governor it is: `LIST` such as 2-5,8; default all")
	f.StringSliceVar(&t.goals.Skip, "skip", nil, "steps to leave out, of "+strings.Join(tune.HostNames, ", "))
	complete(c, "skip", tune.HostNames...)
	var names []string
	for _, n := range tune.HostSysctls {
		names = append(names, n+"=")
	}
	complete(c, "sysctl", names...)
	return c
}

func (t *hostTuning) check(c *cobra.Command) error {
	bad := func(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }
	if err := t.tuning.check(); err != nil {
		return err
	}
	for _, f := range []string{"buffers", "sysctl", "hugepages", "governor", "cores", "skip"} {
		if t.undo && c.Flags().Changed(f) {
			return bad("--%s says what to change: it does not go with --undo", f)
		}
	}
	var err error
	if t.goals.Buffers, err = parseSize(t.buffers); err != nil {
		return bad("--buffers %s: %w", t.buffers, err)
	}
	if t.goals.Cores, err = host.ParseList(t.cores); err != nil {
		return bad("--cores: %w", err)
	}
	for _, x := range t.sysctls {
		name, value, ok := strings.Cut(x, "=")
		if _, twice := t.goals.Sysctls[name]; !ok || twice {
			return bad("--sysctl %s: expected NAME=VALUE, each name once", x)
		}
		if t.goals.Sysctls == nil {
			t.goals.Sysctls = map[string]string{}
		}
		t.goals.Sysctls[name] = value
	}
	for _, x := range t.huge {
		h, err := parseHuge(x)
		if err != nil {
			return bad("--hugepages %s: %w", x, err)
		}
		if h.Page > 1<<40 {
			return bad("--hugepages %s: size of a page: expected one such as 2MiB or 1GiB", x)
		}
		t.goals.HugePages = append(t.goals.HugePages,
			tune.HostHuge{Huge: tune.Huge{Bytes: h.Bytes, Page: int(h.Page)}, Node: h.Node})
	}
	return nil
}

// show prints a plan, or carries it out.
func (t *tuning) show(ctx context.Context, s streams, plan tune.Plan, o tune.Options) error {
	if t.apply {
		res, err := plan.Apply(ctx, o)
		if err == nil && len(res.Outcomes) == 0 && !t.json {
			_, err := fmt.Fprintf(s.out, "%s: nothing to change\n", tunedName(plan.Interface))
			return err
		}
		return t.report(s, res, err)
	}
	if t.json {
		return printJSON(s.out, plan)
	}
	text := plan.String()
	if len(plan.Changes()) > 0 {
		text += "\nNothing was changed; --apply does it, and --undo takes it back.\n"
		for _, m := range plan.Missing() {
			text += "Missing: " + m + ".\n"
		}
	}
	_, err := io.WriteString(s.out, printableText(text))
	return err
}

// tunedName is what was tuned, in words; tunedCommand is the command for it.
func tunedName(iface string) string {
	if iface == "" {
		return "host"
	}
	return iface
}

func tunedCommand(iface string) string {
	switch {
	case iface == "":
		return "penstock tune host"
	case strings.Contains(iface, ":"): // an address: no interface has a colon in its name
		return "penstock tune driver " + iface
	}
	return "penstock tune nic " + iface
}
