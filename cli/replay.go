package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/drivers"
	"github.com/penstock-io/penstock/internal/input"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/pcap"
	"github.com/penstock-io/penstock/packet/pcapread"
	"github.com/penstock-io/penstock/stage/replay"
	root "github.com/penstock-io/penstock/system"
	"github.com/spf13/cobra"
)

// replayFlags are those of replay.
type replayFlags struct {
	engine, speed, rate, from, to, rewrite, check string
	pps                                           float64
	loop                                          int
	pad, json                                     bool
}

func newReplay(s streams) *cobra.Command {
	var f replayFlags
	c := &cobra.Command{
		Use:   "replay FILE... IF|URL",
		Short: "Send the packets of capture files, and check that they come",
		Long: `Sends the packets of capture files (pcap and pcapng, - for the standard input) through a network interface or any other port,
at the times of the files, which are merged. All times count from one start. docs/replay.md says more.

Packets of another link type than the port's, and longer ones than it takes, are skipped and counted. Packets that the capture cut
off are refused without --pad.

With --check the packets are received at a second port, and the command counts those that are missing, repeated, reordered, changed or extra,
with the error of their times. The exit status is 1 if one was not sent, is missing or changed.`,
		Example: `  penstock replay a.pcapng eth0
  penstock replay a.pcap b.pcapng eth0 --speed max --engine xdp
  penstock replay a.pcapng eth0 --pps 20000 --loop 0 --rewrite eth-dst=02:00:00:00:00:01,ip=10.0.0.1:192.0.2.1
  penstock replay a.pcapng eth0 --from 10s --to 20s --check eth1`,
		Args: argsBetween(2, 1<<16, "files and then a network interface, or the address of another port"),
		RunE: func(c *cobra.Command, args []string) error {
			files, port := args[:len(args)-1], args[len(args)-1]
			o, err := f.source(c, files)
			if err != nil {
				return &usageError{err}
			}
			return replayFiles(c.Context(), s, &f, o, files, port)
		},
		ValidArgsFunction: completeFiles,
	}
	x := c.Flags()
	x.StringVar(&f.engine, "engine", "afpacket", "`NAME` of the engine for network interfaces: "+
		strings.Join(config.RawEngines(), ", "))
	x.StringVar(&f.speed, "speed", "recorded", "recorded, a multiple such as 2x or 0.5x, or max")
	x.Float64Var(&f.pps, "pps", 0, "packets a second, whatever the times of the files")
	x.StringVar(&f.rate, "rate", "",
		"bits a second of frames without check sequences, such as 1Gbps, whatever the times of the files")
	x.IntVar(&f.loop, "loop", 1, "how often the files are sent; 0: until interrupted")
	x.StringVar(&f.from, "from", "",
		"`TIME` of the first packet: 10s from the first of the files, 15:04:05, or RFC 3339")
	x.StringVar(&f.to, "to", "", "`TIME` behind the last packet, likewise")
	x.StringVar(&f.rewrite, "rewrite", "",
		"`LIST` of eth-src=MAC, eth-dst=MAC, ip=A:B and port=A:B (B in place of A, at both ends)")
	x.BoolVar(&f.pad, "pad", false, "fill up packets that the capture cut off with zeros")
	x.StringVar(&f.check, "check", "", "`IF|URL` where the packets should come")
	x.BoolVar(&f.json, "json", false, "print one JSON object at the end")
	return c
}

// source is what the flags say of the packets.
func (f *replayFlags) source(c *cobra.Command, files []string) (o replay.Source, err error) {
	given := 0
	for _, name := range []string{"speed", "pps", "rate"} {
		if c.Flags().Changed(name) {
			given++
		}
	}
	o = replay.Source{Rounds: f.loop, Pad: f.pad, PPS: f.pps}
	switch x, e := strconv.ParseFloat(strings.TrimSuffix(f.speed, "x"), 64); {
	case given > 1:
		return o, errors.New("--speed, --pps and --rate exclude each other")
	case f.loop < 0 || f.loop != 1 && slices.Contains(files, "-"):
		return o, fmt.Errorf("--loop %d: expected 0 or more, and 1 with the standard input", f.loop)
	case f.pps < 0 || f.pps > 1e9:
		return o, fmt.Errorf("--pps %v: expected up to 1000000000", f.pps)
	case f.pps > 0 || f.rate != "" || f.speed == "max":
	case f.speed == "recorded":
		o.Speed = 1
	case e != nil || x < 1e-6 || x > 1e6:
		return o, fmt.Errorf("--speed %q: expected recorded, a multiple such as 2x or 0.5x, or max", f.speed)
	default:
		o.Speed = x
	}
	if f.rate != "" {
		bits, err := input.Quantity(strings.Replace(f.rate, "bit", "bps", 1), input.Rates, 0)
		if err != nil || bits < 1 {
			return o, fmt.Errorf("--rate %q: expected bits a second, such as 500Mbit or 1Gbps", f.rate)
		}
		o.Rate = float64(bits)
	}
	if o.From, err = limitOf("from", f.from); err == nil {
		o.To, err = limitOf("to", f.to)
	}
	if err == nil && f.rewrite != "" {
		if o.Rewrite, err = replay.ParseRewrite(f.rewrite); err != nil {
			err = fmt.Errorf("--rewrite: %w", err)
		}
	}
	return o, err
}

// limitOf reads a time of the files.
func limitOf(flag, text string) (func(first int64) int64, error) {
	if text == "" {
		return nil, nil
	}
	if d, err := time.ParseDuration(text); err == nil {
		return func(first int64) int64 { return first + int64(d) }, nil
	}
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return func(int64) int64 { return t.UnixNano() }, nil
	}
	t, err := time.Parse("15:04:05", text)
	if err != nil {
		return nil, fmt.Errorf("--%s %q: expected 10s (from the first packet), 15:04:05 (of its day here) or "+
			"2006-01-02T15:04:05Z", flag, text)
	}
	return func(first int64) int64 {
		y, m, d := time.Unix(0, first).Date()
		return time.Date(y, m, d, t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.Local).UnixNano()
	}, nil
}

// captureFiles are the files of a replay.
type captureFiles struct {
	names []string
	in    io.Reader
	open  []io.Closer
	live  bool // one of them is no plain file
}

// merger opens the files anew.
func (f *captureFiles) merger() (*pcapread.Merger, error) {
	f.close()
	var all []*pcapread.Reader
	for _, name := range f.names {
		in := f.in
		if name == "-" {
			f.live = true
		} else {
			file, err := os.Open(name)
			if err != nil {
				return nil, err
			}
			f.open = append(f.open, file)
			info, err := file.Stat()
			f.live = f.live || err == nil && !info.Mode().IsRegular()
			in = file
		}
		r, err := pcapread.Open(name, in)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return pcapread.Merge(all...), nil
}

func (f *captureFiles) close() {
	for _, c := range f.open {
		c.Close()
	}
	f.open = nil
}

// replayPorts is a configuration with the port "out", and "check" unless its address is "" or the
// same one. slot is the room for a packet that is sent.
func replayPorts(name, out, check string) (text string, slot int) {
	place := func(address string) (size int, where, rx string) {
		where = "address: " + strconv.Quote(address)
		scheme, _, isURL := strings.Cut(address, "://")
		if !isURL {
			where = "engine: " + strconv.Quote(name) + ", " + where
		}
		size, rx = 9216, ", rx: {queues: [{memory_regions: [rx], depth: 2048}]}"
		for _, s := range drivers.Table() {
			if isURL && !slices.Contains(s.Schemes, scheme) || !isURL && s.Name != name {
				continue
			}
			if s.Capabilities.Timestamps {
				rx = strings.Replace(rx, "{queues", "{timestamps: true, queues", 1)
			}
			if i, err := net.InterfaceByName(s.Device(address)); err == nil {
				size = (i.MTU + 127) &^ 63 // with the header and tags
			}
			if at := slices.IndexFunc(s.Slots, func(n int) bool { return n >= size+256 }); at >= 0 {
				size = s.Slots[at] // a card keeps some bytes before a frame
			} else if s.Slots != nil {
				size = s.Slots[len(s.Slots)-1]
			}
		}
		return size, where, rx
	}
	slot, where, rx := place(out)
	regions := fmt.Sprintf("{name: tx, kind: host, buf_size: %d, num_bufs: 2048, align: %d}", slot, slot&-slot)
	ports := "{name: out, " + where + ", tx: {queues: [{memory_regions: [tx]}]}"
	size, where, rxCheck := place(check)
	switch check {
	case "":
		ports += "}"
	case out:
		ports += rx + "}"
	default:
		ports += "}, {name: check, " + where + rxCheck + "}"
	}
	if check != "" {
		regions += fmt.Sprintf(", {name: rx, kind: host, buf_size: %d, num_bufs: 8192, align: %d}", size, size&-size)
	}
	return "memory_regions: [" + regions + "]\ninterfaces: [" + ports + "]\n", slot
}

func replayFiles(ctx context.Context, s streams, f *replayFlags, o replay.Source, files []string,
	port string) (err error) {
	in := &captureFiles{names: files, in: s.in}
	defer in.close()
	first, err := in.merger() // before a port is opened
	if err != nil {
		return err
	}
	o.Live = in.live
	o.Open = func() (m *pcapread.Merger, err error) {
		if m = first; m == nil {
			return in.merger()
		}
		first = nil
		return m, nil
	}
	text, slot := replayPorts(f.engine, port, f.check)
	cfg, problems := config.Load("replay", []byte(text), config.Options{})
	if said := problems.Only(config.Error); len(said) > 0 {
		return fmt.Errorf("%s: %w", port, said.Err())
	}
	system, err := root.Open(ctx, cfg, root.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, system.Close()) }()
	x := replay.Options{Source: o, Slot: slot}
	if x.Queue, err = system.Tx("out", 0); err != nil {
		return err
	}
	p := system.Port("out")
	can := p.Capabilities()
	if x.Link, x.Max = pcap.User0, slot; can.Frames {
		x.Link, x.Max = pcap.Ethernet, p.Info().MTU+packet.EthernetLen+packet.VLANLen
	}
	if can.MaxPacket > 0 {
		x.Max = min(x.Max, can.MaxPacket)
	}
	if !can.Chains {
		x.Max = min(x.Max, slot)
	}
	checked, end := "check", func() error { return nil }
	if f.check != "" {
		if f.check == port {
			checked = "out"
		}
		rx, err := system.Rx(checked, 0)
		if err != nil {
			return err
		}
		x.Check = replay.NewChecker()
		receiving, cancel := context.WithCancel(context.WithoutCancel(ctx))
		failed := make(chan error, 1)
		go func() { failed <- x.Check.Receive(receiving, rx) }()
		end = func() error {
			x.Check.Wait(ctx, time.Second)
			cancel()
			return <-failed
		}
	}
	r, err := replay.Run(ctx, x)
	if err = errors.Join(err, end()); o.Rounds == 0 && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil // this is how it ends
	}
	if x.Check != nil {
		c, stats := x.Check.Report(), engine.PortStats{}
		system.Port(checked).Stats(&stats)
		stats.Rx.Drops.Add(&stats.Drops)
		c.Dropped = replay.DropsOf(&stats.Rx.Drops)
		r.Check = &c
	}
	if f.json {
		err = errors.Join(err, printJSON(s.out, r))
	} else {
		printReplay(s.out, &r)
	}
	switch c := r.Check; {
	case err != nil:
	case len(r.Dropped) > 0:
		err = fmt.Errorf("%s did not send all packets: %s", port, words(r.Dropped))
	case r.Packets == 0 && len(r.Skipped) > 0:
		err = fmt.Errorf("no packet was sent: %s", words(r.Skipped))
	case c != nil && c.Missing+c.Changed > 0:
		err = fmt.Errorf("of %d packets %d did not come to %s, and %d came changed", r.Packets, c.Missing, f.check,
			c.Changed)
	}
	return err
}

// words are counts by reason in a line.
func words(m map[string]uint64) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fmt.Sprintf("%d %s", m[k], k))
	}
	return strings.Join(out, ", ")
}

func printReplay(w io.Writer, r *replay.Result) {
	per := max(r.Seconds, 1e-9)
	fmt.Fprintf(w, "sent        %d packets, %d bytes in %.6f s: %.0f packets/s, %.3f Mbit/s\n", r.Packets, r.Bytes,
		r.Seconds, float64(r.Packets)/per, 8*float64(r.Bytes)/per/1e6)
	if r.Late > 0 {
		fmt.Fprintf(w, "latest      %.1f us behind its time\n", r.Late)
	}
	if len(r.Skipped) > 0 {
		fmt.Fprintf(w, "skipped     %s\n", words(r.Skipped))
	}
	if len(r.Dropped) > 0 {
		fmt.Fprintf(w, "not sent    %s\n", words(r.Dropped))
	}
	if r.Unread > 0 {
		fmt.Fprintf(w, "unchanged   %d packets, whose headers cannot be read\n", r.Unread)
	}
	if c := r.Check; c != nil {
		fmt.Fprintf(w, "came        %d packets: %d missing, %d changed, %d repeated, %d reordered, %d extra\n", c.Came,
			c.Missing, c.Changed, c.Repeated, c.Reordered, c.Extra)
		if len(c.Dropped) > 0 {
			fmt.Fprintf(w, "dropped     %s, by the port that receives\n", words(c.Dropped))
		}
		fmt.Fprintf(w, "time error  p50 %.1f us, p99 %.1f us, max %.1f us\n", c.ErrorP50, c.ErrorP99, c.ErrorMax)
	}
}
