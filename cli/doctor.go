package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/host"
	"github.com/penstock-io/penstock/host/doctor"
	"github.com/penstock-io/penstock/host/tune"
	"github.com/spf13/cobra"
)

// errUnfit is the end of a doctor that found something wrong, which it has printed.
var errUnfit = errors.New("the machine is not fit for this")

// examination is the flags of doctor.
type examination struct {
	file                    string // "": none
	json, all, strict, list bool
	skip                    []string
	record, from            string
	interfaces              []string
	engine, cores           string
	queues, mtu, rings      int
	huge                    []string
	locked, receive, send   string
	gpus                    []string
	hardwareTime, clock     bool
	rdma                    bool     // only what RDMA depends on
	devices                 []string // for these; none: for any
}

func newDoctor(s streams) *cobra.Command {
	var d examination
	c := &cobra.Command{
		Use:   "doctor [FILE]",
		Short: "What this machine is, what is wrong with it for what you want of it, and how to fix it",
		Long: `Reads the machine (processors, memory, kernel, network and GPU cards, PCI Express, clocks, rights) and says of each check what was
read, what is needed and for what, and how to fix it. Nothing is changed. It needs no rights; as root it sees more (PCI Express).

Without FILE and flags doctor checks the machine in general: nothing fails, and what costs most users speed is a warning. Flags name
requirements; a requirement that the machine does not meet fails. "unknown" is what doctor could not read, with the reason.

FILE is a configuration, in Penstock's format or DAQIRI's (- is the standard input): doctor checks what it needs, and each finding names the
place in the file. Errors of the file come first, with what penstock run would miss here, as "penstock config check --here" prints
them.

Exit status: 0 if nothing fails, 10 if something does, or if FILE asks for a part that is not built or has a placeholder; with --strict also if
there is a warning. 1 if FILE has an error: the machine is not looked at then.

--record writes what was read to a file, for a report of a problem, without names, addresses and serial numbers (docs/doctor.md says just
what is in it); --from looks at such a file instead of this machine.`,
		Example: `  penstock doctor
  penstock doctor rx.yaml
  penstock doctor rx.yaml --from server.txt --json
  penstock doctor --interface eth0 --engine xdp --queues 4 --cores 2-5
  penstock doctor --interface ens1f0np0 --engine dpdk --hugepages 4GiB/1GiB@0 --gpu any --json
  penstock doctor --record machine.txt`,
		Args: argsBetween(0, 1, "at most one file"),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				d.file = args[0]
				for _, f := range needFlags {
					if c.Flags().Changed(f) {
						return &usageError{fmt.Errorf("--%s says what is needed, and so does %s: one of them", f,
							d.file)}
					}
				}
			}
			return d.run(c.Context(), s)
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
		},
	}
	f := c.Flags()
	f.BoolVar(&d.json, "json", false, "print one JSON object: the report")
	f.BoolVar(&d.all, "all", false, "also what does not apply")
	f.BoolVar(&d.strict, "strict", false, "a warning ends with status 10, too")
	f.BoolVar(&d.list, "list", false, "list the checks and why they matter, and look at nothing")
	f.StringSliceVar(&d.skip, "skip", nil, "checks to leave out, by the names that --list gives")
	f.StringVar(&d.record, "record", "", "also write what was read to `FILE`, which must not be there yet")
	f.StringVar(&d.from, "from", "", "look at the recording `FILE` instead of this machine; -: the standard input")
	f.StringSliceVar(&d.interfaces, "interface", nil,
		"network interface `IF` that is used, or the PCI address of its card; may be repeated")
	f.StringVar(&d.engine, "engine", "", "engine of these interfaces: "+strings.Join(doctor.Engines(), ", "))
	f.IntVar(&d.queues, "queues", 0, "receive queues of each interface; 0: as many as there are")
	f.IntVar(&d.mtu, "mtu", 0, "MTU of each interface, in bytes, at least; 0: any")
	f.IntVar(&d.rings, "rings", 0, "descriptors of each receive ring at least; 0: 2048 where the card can")
	f.StringVar(&d.cores, "cores", "", "processors that are used: `LIST` such as 2-5,8")
	f.StringArrayVar(&d.huge, "hugepages", nil,
		"memory in huge pages: `SIZE`, SIZE/PAGE or SIZE/PAGE@NODE, such as 4GiB/1GiB@0; may be repeated")
	f.StringVar(&d.locked, "locked", "", "memory that is locked or registered: `SIZE`; default: what is in huge pages")
	f.StringVar(&d.receive, "receive-buffer", "", "receive buffer of a socket: `SIZE`")
	f.StringVar(&d.send, "send-buffer", "", "send buffer of a socket: `SIZE`")
	f.StringSliceVar(&d.gpus, "gpu", nil, "GPU whose memory takes part: its PCI `ADDRESS`, or any")
	f.BoolVar(&d.hardwareTime, "hardware-time", false, "hardware timestamps of packets")
	f.BoolVar(&d.clock, "clock", false, "the system's clock must be synchronised")
	complete(c, "engine", doctor.Engines()...)
	var ids []string
	for _, x := range doctor.Checks() {
		ids = append(ids, x.ID)
	}
	complete(c, "skip", ids...)
	// The error says that there is no such flag.
	_ = c.RegisterFlagCompletionFunc("interface", func(c *cobra.Command, _ []string, _ string) ([]string,
		cobra.ShellCompDirective) {
		return interfaceNames(c.Context()), cobra.ShellCompDirectiveNoFileComp
	})
	for _, name := range []string{"record", "from"} {
		_ = c.MarkFlagFilename(name, "txt") // the flag exists
	}
	c.AddCommand(newDoctorRDMA(s))
	return c
}

// needFlags are the flags that say what is needed of a machine.
var needFlags = []string{"interface", "engine", "queues", "mtu", "rings", "cores", "hugepages", "locked",
	"receive-buffer", "send-buffer", "gpu", "hardware-time", "clock"}

// interfaceNames are the interfaces of this machine with their drivers, for completion.
func interfaceNames(ctx context.Context) (out []string) {
	all, _ := tune.Interfaces(ctx) // none is an answer too
	for _, i := range all {
		out = append(out, i.Name+"\t"+i.Driver)
	}
	return out
}

// needs are the flags as needs of a machine.
func (d *examination) needs() (n doctor.Needs, err error) {
	bad := func(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }
	for _, name := range d.interfaces {
		n.Interfaces = append(n.Interfaces, doctor.Interface{Name: name, Engine: d.engine, Queues: d.queues, MTU: d.mtu,
			Ring: d.rings, HardwareTime: d.hardwareTime})
	}
	if len(d.interfaces) == 0 && (d.engine != "" || d.queues != 0 || d.mtu != 0 || d.rings != 0 || d.hardwareTime) {
		return n, bad("--engine, --queues, --mtu, --rings and --hardware-time say how an interface is used: they go " +
			"with --interface")
	}
	if n.Cores, err = host.ParseList(d.cores); err != nil {
		return n, bad("--cores: %w", err)
	}
	for _, h := range d.huge {
		x, err := parseHuge(h)
		if err != nil {
			return n, bad("--hugepages %s: %w", h, err)
		}
		n.Huge = append(n.Huge, x)
	}
	for _, x := range []struct {
		flag, text string
		to         *uint64
	}{{"locked", d.locked, &n.Locked}, {"receive-buffer", d.receive, &n.Receive}, {"send-buffer", d.send, &n.Send}} {
		if x.text == "" {
			continue
		}
		if *x.to, err = parseSize(x.text); err != nil {
			return n, bad("--%s %s: %w", x.flag, x.text, err)
		}
	}
	n.GPUs, n.Clock, n.RDMA = d.gpus, d.clock, d.devices
	if err := n.Check(); err != nil {
		return n, &usageError{err}
	}
	known := doctor.Checks()
	for _, id := range d.skip {
		if !slices.ContainsFunc(known, func(c doctor.Check) bool { return c.ID == id }) {
			return n, bad("--skip: no check is called %q; \"penstock doctor --list\" lists them", id)
		}
	}
	if d.from != "" && d.record != "" {
		return n, bad("--from and --record exclude each other")
	}
	if d.file == "-" && d.from == "-" {
		return n, bad("the standard input can be the configuration or the recording, not both")
	}
	return n, nil
}

// parseHuge reads SIZE, SIZE/PAGE and both with @NODE behind it.
func parseHuge(s string) (h doctor.Huge, err error) {
	h.Node = doctor.AnyNode
	s, node, has := strings.Cut(s, "@")
	if has {
		if h.Node, err = strconv.Atoi(node); err != nil || h.Node < 0 {
			return h, fmt.Errorf("node %q: expected a number such as 0", node)
		}
	}
	size, page, has := strings.Cut(s, "/")
	if h.Bytes, err = parseSize(size); err != nil {
		return h, err
	}
	if has {
		if h.Page, err = parseSize(page); err != nil {
			return h, fmt.Errorf("size of a page: %w", err)
		}
	}
	return h, nil
}

func (d *examination) run(ctx context.Context, s streams) error {
	n, err := d.needs()
	if err != nil {
		return err
	}
	if d.list {
		return d.listChecks(s)
	}
	var cfg *config.Config
	var problems config.Diagnostics
	said := ""
	var text []byte
	if d.file != "" {
		var name string
		name, text, err = readConfig(s, d.file)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w; a network interface is looked at with --interface %s", err, d.file)
		}
		if err != nil {
			return err
		}
		cfg, problems = config.Load(name, text, config.Options{})
		said = problemsText(name, problems, text)
		if cfg == nil {
			return d.invalid(s, name, problems, said)
		}
	}
	m, err := d.machine(ctx, s)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if cfg != nil && d.from == "" {
		if problems, err = withPlan(cfg, problems); err != nil {
			return err
		}
		said = problemsText(cfg.Name(), problems, text)
	}
	var r doctor.Report
	switch {
	case d.rdma:
		r = doctor.RunRDMA(m, n, d.devices, d.skip...)
	case cfg != nil:
		r = doctor.ForFile(m, cfg, problems, d.skip...)
	default:
		r = doctor.Run(m, n, d.skip...)
	}
	if d.json {
		err = printJSON(s.out, r)
	} else {
		if said != "" {
			said += "\n"
		}
		_, err = io.WriteString(s.out, printableText(said+r.Text(d.all)))
	}
	if err != nil {
		return err
	}
	if w := r.Worst(); w == doctor.Fail || d.strict && w == doctor.Warn {
		if r.Count(doctor.Fail) == 0 && problems.Count(config.Needs) > 0 {
			return fmt.Errorf("%w: %s asks for what is not here, or is not filled in", errUnfit, r.File)
		}
		return errUnfit
	}
	return nil
}

// invalid says what is wrong with a file that has errors.
func (d *examination) invalid(s streams, name string, problems config.Diagnostics, said string) error {
	var err error
	if d.json {
		err = printJSON(s.out, doctor.Report{File: name, Problems: problems, Findings: []doctor.Finding{}})
	} else {
		_, err = io.WriteString(s.out, printableText(said))
	}
	if err != nil {
		return err
	}
	return errReported
}

// machine reads this machine or a recording.
func (d *examination) machine(ctx context.Context, s streams) (doctor.Machine, error) {
	if d.from != "" {
		return openMachine(s, d.from)
	}
	if d.record == "" {
		return doctor.Look(ctx), nil
	}
	f, err := os.OpenFile(d.record, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return doctor.Machine{}, err
	}
	m, err := doctor.Record(ctx, f)
	if err = errors.Join(err, f.Close()); err != nil {
		os.Remove(d.record)
	}
	return m, err
}

func openMachine(s streams, name string) (doctor.Machine, error) {
	if name == "-" {
		return doctor.Open(s.in)
	}
	f, err := os.Open(name)
	if err != nil {
		return doctor.Machine{}, err
	}
	defer f.Close()
	m, err := doctor.Open(f)
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return m, err
}

func (d *examination) listChecks(s streams) error {
	all := doctor.Checks()
	if d.json {
		return printJSON(s.out, all)
	}
	var b strings.Builder
	for _, c := range all {
		fmt.Fprintf(&b, "%-18s %s\n%s\n", c.ID, c.Title, wrapped(c.Why, 19, 80))
	}
	_, err := io.WriteString(s.out, b.String())
	return err
}

// wrapped is a text in lines of at most so many columns, each behind so many blanks.
func wrapped(text string, indent, width int) string {
	var b strings.Builder
	n := width
	for w := range strings.FieldsSeq(text) {
		switch {
		case n+1+columns(w) > width:
			if b.Len() > 0 {
				b.WriteByte('\n')
			}
			b.WriteString(strings.Repeat(" ", indent))
			n = indent
		default:
			b.WriteByte(' ')
			n++
		}
		b.WriteString(w)
		n += columns(w)
	}
	return b.String()
}
