package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/packet/filter"
	"github.com/penstock-io/penstock/packet/pcap"
	"github.com/penstock-io/penstock/stage/app"
	"github.com/penstock-io/penstock/stage/record"
	root "github.com/penstock-io/penstock/system"
	"github.com/spf13/cobra"
)

// inBlock is longer than a packet stays in a block of afpacket.
const inBlock = 60 * time.Millisecond

// captureOptions are the flags of penstock capture.
type captureOptions struct {
	write, format, engine, direction string
	flow                             []string
	all, notPromiscuous              bool
	hex, numeric, force              bool
	count                            uint64
	snap                             int
	size, every                      string
	files                            int
	keep, buffer                     sizeFlag
	ring                             string
	after                            time.Duration

	expression string
}

func newCapture(s streams) *cobra.Command {
	o := captureOptions{buffer: 32 << 20}
	c := &cobra.Command{
		Use:   "capture IF|URL|FILE.yaml [FILTER...]",
		Short: "Write the packets of an interface to files, to a pipe, or a line each to the terminal",
		Long: `Records what an interface receives and sends, or the packets of a port of any engine: sim://, udp://, or the one interface of a
configuration file, whose applications do not run. FILTER is an expression in tcpdump's language, and needs libpcap. The short flags mean what
they mean in tcpdump.

An interface is read by packet sockets (engine afpacket): the host gets its packets as ever. --engine xdp takes packets away from the host,
so it needs --flow, which says which ones, or --all.

Without -w a line is printed for each packet. The numbers of packets that were captured, filtered and dropped, with the reasons, are at the end.
SIGUSR1 begins another file. docs/record.md says what is in the files.

The exit status is 0 for a capture that ended in order, also by Ctrl-C or when the reader of a pipe has gone; 10 if something is not here: the
interface, a right, libpcap.`,
		Example: `  penstock capture eth0 udp port 4791
  penstock capture eth0 -w trace-%H%M%S.pcapng -G 1h --keep 100GB
  penstock capture eth0 -w - vlan 100 | tshark -r -`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &usageError{errors.New("expected an interface, a URL or a configuration file")}
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return o.run(c.Context(), s, args) },
	}
	f := c.Flags()
	f.StringVarP(&o.write, "write", "w", "",
		"write packets to this `FILE`, whose name may have %H and so on; -: to the standard output")
	f.StringVar(&o.format, "format", "pcapng", "format of files: pcapng, pcap or raw")
	f.BoolVar(&o.force, "force", false, "replace a file that has the name")
	f.Uint64VarP(&o.count, "count", "c", 0, "end after so many packets; 0: do not")
	f.IntVarP(&o.snap, "snap", "s", 0, "bytes of each packet to keep; 0: all")
	f.StringVarP(&o.size, "rotate-size", "C", "",
		"begin another file before this `SIZE` is exceeded: in units of 10^6 bytes, or 1GiB")
	f.StringVarP(&o.every, "rotate-time", "G", "",
		"begin another file each `TIME` of the clock: in seconds, or 1h (on the hour)")
	f.IntVarP(&o.files, "files", "W", 0, "with -C, how many files to keep; with -G alone, end after so many files")
	f.Var(&o.keep, "keep", "remove the oldest files when all take more than this, those of earlier runs included")
	f.StringVar(&o.ring, "ring", "",
		"keep the last packets in memory, those of a `TIME OR SIZE` such as 30s or 1GiB, and write "+
			"them to a file at SIGUSR1, and when the interface loses its first packet")
	f.DurationVar(&o.after, "after", time.Second, "with --ring: how long to go on writing then")
	f.StringVarP(&o.direction, "direction", "Q", "inout",
		"packets that the host receives, sends, or both: in, out or inout")
	f.BoolVarP(&o.notPromiscuous, "no-promiscuous", "p", false, "leave out frames for other hosts")
	f.BoolVarP(&o.hex, "hex", "x", false, "without -w: print the bytes of each packet, too")
	f.BoolVarP(&o.numeric, "numeric", "n", false, "for tcpdump's users: addresses are printed as numbers always")
	f.StringVar(&o.engine, "engine", "afpacket", "engine of an interface")
	f.StringArrayVar(&o.flow, "flow", nil,
		"engines that take packets from the host: take those of this `FLOW`, such as "+
			"udp_dst=4791,ip_src=10.0.0.0/8 (repeat for more)")
	f.BoolVar(&o.all, "all", false, "engines that take packets from the host: take all, so that the host gets none")
	f.Var(&o.buffer, "buffer", "memory for packets that wait, of an interface")
	return c
}

// run is the command.
func (o *captureOptions) run(ctx context.Context, s streams, args []string) error {
	o.expression = strings.Join(args[1:], " ")
	if len(args) == 2 && !strings.Contains(args[0], "/") {
		if _, err := net.InterfaceByName(args[1]); err == nil {
			return &usageError{fmt.Errorf("%s and %s: expected one interface, and a filter", args[0], args[1])}
		}
	}
	rotate, limits, err := o.limits()
	if err != nil {
		return err
	}
	cfg, err := o.config(s, args[0])
	if err != nil {
		return err
	}
	a := &cfg.Applications[0]
	a.Recording = config.Recording{Record: o.write, Format: o.format, Filter: o.expression, Overwrite: o.force,
		Rotate: rotate, After: o.after}
	if o.ring != "" {
		if a.Ring, err = record.ParseRing(o.ring); err != nil {
			return &usageError{fmt.Errorf("--ring %w", err)}
		}
	}
	if o.write == "" {
		a.Record = "-"
	}
	done := make(chan error, 2)
	limits.Ended = func(err error) { done <- err }
	var lines *linePrinter
	kinds := app.Kinds()
	sink := kinds[app.Sink]
	kinds[app.Sink] = func(x *app.Options) (engine.Consumer, error) {
		switch {
		case o.write == "":
			var err error
			lines, err = newLinePrinter(s.out, o, x, limits.Ended)
			return lines, err
		case o.write == "-":
			limits.To = s.out
		}
		x.Record.Limits = limits
		return sink(x)
	}
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, sys.BrokenPipe) // so that writes say it
	defer signal.Stop(broken)
	again := make(chan os.Signal, 1)
	signal.Notify(again, sys.User1)
	defer signal.Stop(again)
	opt := root.Options{Applications: kinds, Logger: slog.New(slog.DiscardHandler),
		OnApplication: func(_ string, err error) {
			select {
			case done <- err:
			default: // it has ended
			}
		}}
	plan, err := root.MakePlan(cfg, opt)
	if err != nil {
		return err
	}
	if err := plan.Err(); err != nil {
		return missingOf(plan, err)
	}
	system, err := root.Open(ctx, cfg, opt)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.err, "capturing from %s\n", printableLines(args[0]))
	for ended := false; !ended; {
		select {
		case <-again:
			system.RotateRecordings()
			continue
		case <-ctx.Done():
			if cfg.Interfaces[0].Engine == "afpacket" { // what came by now may be in a block that the kernel keeps
				select {
				case <-time.After(inBlock):
				case err = <-done:
				}
			}
		case err = <-done:
		}
		ended = true
	}
	err = errors.Join(err, system.Close())
	if is(sys.EPIPE, io.ErrClosedPipe)(err) {
		err = nil // who reads has what it wants
	}
	snap := system.Snapshot()
	o.report(s.err, &snap, lines)
	return err
}

// missingOf is an error for what is not here, in the words of the plan: the file was made here, so
// its places say nothing.
func missingOf(p *root.Plan, err error) error {
	var said []string
	for _, d := range p.Missing {
		text := d.Message
		if d.Hint != "" {
			text += ": " + d.Hint
		}
		said = append(said, text)
	}
	return &worded{strings.Join(said, "\n"), err}
}

// limits reads the flags that say when files and the capture end.
func (o *captureOptions) limits() (*config.Rotate, record.Limits, error) {
	l := record.Limits{SnapLen: o.snap, Count: o.count}
	r := &config.Rotate{Keep: config.Size(o.keep)}
	bad := func(format string, args ...any) (*config.Rotate, record.Limits, error) {
		return nil, l, &usageError{fmt.Errorf(format, args...)}
	}
	if o.size != "" {
		text := o.size
		switch n, err := strconv.ParseUint(text, 10, 32); {
		case err == nil:
			r.Size = config.Size(n * 1e6)
		default:
			if strings.ContainsAny(text[len(text)-1:], "kKmMgG") { // of tcpdump
				text = strings.ToUpper(text) + "iB"
			}
			n, err := parseSize(text)
			if err != nil {
				return bad("-C %s: %w", o.size, err)
			}
			r.Size = config.Size(n)
		}
		if r.Size < record.MinBytes {
			return bad("-C %s: expected at least 64KiB", o.size)
		}
	}
	if o.every != "" {
		n, err := strconv.ParseUint(o.every, 10, 20)
		if r.Time = time.Duration(n) * time.Second; err != nil {
			r.Time, err = time.ParseDuration(o.every)
		}
		if err != nil || r.Time <= 0 || r.Time > 24*time.Hour {
			return bad("-G %s: expected seconds, or a time such as 10m, up to 24h", o.every)
		}
	}
	switch {
	case o.files < 0 || o.snap < 0:
		return bad("-W %d, -s %d: expected 0 or more", o.files, o.snap)
	case o.files > 0 && r.Size == 0 && r.Time == 0:
		return bad("-W %d: expected -C or -G, which begin files", o.files)
	case r.Size > 0:
		l.KeepFiles = o.files
	default:
		l.Files = uint64(o.files)
	}
	switch {
	case o.write == "" && (r.Size > 0 || r.Time > 0 || r.Keep > 0 || o.force || o.format != "pcapng"):
		return bad("-C, -G, --keep, --force and --format are about files: expected -w")
	case o.write == "-" && (r.Size > 0 || r.Time > 0 || r.Keep > 0):
		return bad("-C, -G and --keep are about files, and -w - is a pipe")
	case o.ring != "" && (o.write == "" || o.write == "-" || r.Size > 0 || r.Time > 0 || o.count > 0):
		return bad("--ring writes a file each time: expected -w with the name of a file, without -c, -C and -G")
	case o.after < 0:
		return bad("--after %v: expected 0s or more", o.after)
	case o.hex && o.write != "":
		return bad("-x prints packets, and -w writes them")
	case !slices.Contains([]string{"pcapng", "pcap", "raw"}, o.format):
		return bad("--format %s: expected pcapng, pcap or raw", o.format)
	case !utf8.ValidString(o.write):
		return bad("-w %q: expected a name in UTF-8", o.write)
	}
	if *r == (config.Rotate{}) {
		r = nil
	}
	return r, l, nil
}

// config is the configuration of what is named: one interface with one receive queue, and a sink.
func (o *captureOptions) config(s streams, where string) (*config.Config, error) {
	var text []byte
	name := where
	if strings.HasSuffix(where, ".yaml") || strings.HasSuffix(where, ".yml") || where == "-" {
		var err error
		if name, text, err = readConfig(s, where); err != nil {
			return nil, err
		}
	} else if t, err := o.generate(where); err != nil {
		return nil, err
	} else {
		text = []byte(t)
	}
	cfg, problems := config.Load(name, text, config.Options{})
	if err := problems.Err(); err != nil {
		return nil, err
	}
	if n := len(cfg.Interfaces); n != 1 || cfg.Interfaces[0].Rx == nil || len(cfg.Interfaces[0].Rx.Queues) != 1 {
		return nil, fmt.Errorf("%s has %s: expected one, with one receive queue; a sink with record: or the stage "+
			"record is for several (docs/record.md)", name, count(n, "interface", "interfaces"))
	}
	f := &cfg.Interfaces[0]
	if spec := f.Engine.Spec(); spec != nil && spec.Capabilities.Timestamps && !strings.HasPrefix(where, "tcp://") {
		f.Rx.Timestamps = true
	}
	cfg.Applications = []config.Application{{Name: "capture", Kind: string(app.Sink), Interface: f.Name,
		Queue: f.Rx.Queues[0].ID, CPUCore: -1}}
	return cfg, nil
}

// generate is a configuration file for an interface or a URL.
func (o *captureOptions) generate(where string) (string, error) {
	bad := func(format string, args ...any) (string, error) { return "", &usageError{fmt.Errorf(format, args...)} }
	const pool = "  memory_regions: [{name: packets, kind: host, num_bufs: 4096, buf_size: 10KiB}]\n"
	if strings.Contains(where, "://") {
		return fmt.Sprintf("penstock:\n%s  interfaces: [{name: capture, address: %q, rx: {queues: "+
			"[{memory_regions: [packets]}]}}]\n", pool, where), nil
	}
	spec := config.Engine(o.engine).Spec()
	if spec == nil || !spec.Needs.Interface {
		return bad("--engine %s: expected one of interfaces: %s", o.engine, strings.Join(config.RawEngines(), ", "))
	}
	if o.engine != "afpacket" {
		return o.takes(where, pool, spec)
	}
	if o.all || o.flow != nil {
		return bad("--flow and --all are for engines that take packets from the host; afpacket receives copies: a " +
			"filter says which")
	}
	direction, ok := map[string]string{"in": "in", "out": "out", "inout": "both"}[o.direction]
	if !ok {
		return bad("-Q %s: expected in, out or inout", o.direction)
	}
	if f, err := net.InterfaceByName(where); err == nil && f.Flags&net.FlagLoopback != 0 && direction == "both" {
		direction = "in" // where all that is sent comes in
	}
	var program strings.Builder
	// A filter that cannot be compiled the plan refuses.
	if f, err := filter.Compile(o.expression, pcap.Ethernet); err == nil && o.expression != "" {
		for _, i := range f.Kernel() {
			fmt.Fprintf(&program, "%q, ", fmt.Sprint(i.Op, i.JT, i.JF, i.K))
		}
	}
	return fmt.Sprintf("penstock:\n  interfaces: [{name: capture, engine: afpacket, address: %q, afpacket: "+
		"{direction: %s, promiscuous: %v, blocks: %dB, filter: [%s]}, rx: {queues: "+
		"[{poll_mode: direct, afpacket: {keep_truncated: true}}]}}]\n", where, direction,
		!o.notPromiscuous, min(o.buffer, 1<<30), program.String()), nil
}

// takes is the configuration for an engine that takes packets away from the host.
func (o *captureOptions) takes(where, pool string, spec *engine.Spec) (string, error) {
	if o.all == (o.flow != nil) {
		return "", &usageError{fmt.Errorf("--engine %s takes packets away from the host: expected --flow, which says "+
			"which ones, or --all, after which the host gets none of this interface", o.engine)}
	}
	if o.direction == "out" {
		return "", &usageError{fmt.Errorf("-Q out: the engine %s receives only: expected --engine afpacket", o.engine)}
	}
	rx := "take_over: true"
	if !o.all {
		rx = "flow_isolation: true, flows: ["
		for i, f := range o.flow {
			rx += fmt.Sprintf("{name: flow%d, id: %d, match: {%s}, action: {type: queue, id: 0}}, ", i, i+1,
				strings.ReplaceAll(strings.ReplaceAll(f, "=", ": "), ",", ", "))
		}
		rx += "]"
	}
	return fmt.Sprintf("penstock:\n%s  interfaces: [{name: capture, engine: %s, address: %q, rx: {%s, queues: "+
		"[{memory_regions: [packets]}]}}]\n", pool, spec.Name, where, rx), nil
}

// report says what was captured, and what was not.
func (o *captureOptions) report(w io.Writer, s *root.Snapshot, lines *linePrinter) {
	captured, filtered := uint64(0), uint64(0)
	var reasons []string
	if lines != nil {
		captured, filtered = lines.printed.Load(), lines.filtered.Load()
	} else if r := s.Applications[0].Record; r != nil {
		captured, filtered = r.Packets, r.Filtered
		for l := range record.NumLosses {
			if n := r.Lost[l.String()]; n > 0 {
				reasons = append(reasons, fmt.Sprintf("%v %d", l, n))
			}
		}
	}
	drops := s.Interfaces[0].Stats.Drops
	drops.Add(&s.Interfaces[0].Stats.Rx.Drops)
	for d, n := range drops {
		// what came behind the end is no loss
		if d := engine.Drop(d); n > 0 && d != engine.DropClosed && d != engine.DropNoQueue {
			reasons = append(reasons, fmt.Sprintf("%v %d", d, n))
		}
	}
	text := count(int(captured), "packet", "packets") + " captured"
	if o.expression != "" {
		text += fmt.Sprintf(", %d filtered", filtered)
		if s.Interfaces[0].Info.Engine == "afpacket" {
			text += " besides those that the kernel refused"
		}
	}
	if reasons == nil {
		reasons = []string{"nothing"}
	}
	fmt.Fprintf(w, "%s, dropped: %s\n", text, strings.Join(reasons, ", "))
}
