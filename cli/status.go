package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/share"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/spf13/cobra"
)

func newStatus(s streams) *cobra.Command {
	var o statusOptions
	c := &cobra.Command{
		Use:   "status ADDR",
		Short: "Show the status of a node: peers, paths, transfers and memory",
		Long: `Connects to the node at ADDR (tcp://HOST:PORT, HOST:PORT or unix://PATH), asks it for its snapshot and prints it. The node must let this
side see its status. With --watch it is printed again and again, with the rates in between, and as much of it as the terminal has room
for: peers first, then totals. All fields, and many more with --json,
are explained in docs/observability.md.`,
		Args: argsBetween(1, 1, "one address, such as tcp://127.0.0.1:7070"),
		RunE: func(c *cobra.Command, args []string) error { return runStatus(c.Context(), s, args[0], o) },
	}
	o.flags.add(c)
	c.Flags().BoolVar(&o.json, "json", false, "print JSON; with --watch one document per line")
	c.Flags().BoolVar(&o.watch, "watch", false, "print again and again, with rates, until interrupted")
	c.Flags().DurationVar(&o.every, "every", time.Second, "with --watch: how often")
	c.Flags().IntVar(&o.count, "count", 0, "with --watch: how many times; 0: until interrupted")
	return c
}

type statusOptions struct {
	flags       clientFlags
	json, watch bool
	every       time.Duration
	count       int
}

func runStatus(ctx context.Context, s streams, addr string, o statusOptions) error {
	switch {
	case o.every < 100*time.Millisecond:
		return &usageError{fmt.Errorf("--every %v: expected 100ms or more", o.every)}
	case o.count < 0:
		return &usageError{fmt.Errorf("--count %d: expected 0 or more", o.count)}
	case o.count > 0 && !o.watch:
		return &usageError{errors.New("--count needs --watch")}
	}
	t, err := parseTarget(addr)
	if err != nil {
		return err
	}
	if t.name != "" {
		return &usageError{fmt.Errorf("%s: expected an address without a name", addr)}
	}
	client, err := o.flags.dial(ctx, newDisplay(s, displayFlags{}), t.addr)
	if err != nil {
		return err
	}
	defer client.close()
	tick := time.NewTicker(o.every)
	defer tick.Stop()
	var last *observe.Snapshot
	for n := 1; ; n++ {
		now, err := client.peer.Status(ctx)
		if err != nil {
			if o.watch && ctx.Err() != nil {
				return nil // interrupted, as it is meant to be
			}
			return err
		}
		if err := printStatus(s.out, &now, last, o); err != nil {
			return err
		}
		if !o.watch || n == o.count {
			return nil
		}
		last = &now
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func printStatus(w io.Writer, now, last *observe.Snapshot, o statusOptions) error {
	if o.json {
		if o.watch {
			return printJSONLine(w, now)
		}
		return printJSON(w, now)
	}
	var b bytes.Buffer // all at once: a screen must not flicker
	height := 0
	if o.watch && terminalWidth(w) > 0 {
		b.WriteString("\x1b[H\x1b[2J")
		height = max(terminalRows(w)-1, 1) // the cursor goes to the last one
	} else if last != nil {
		b.WriteString("\n")
	}
	(&screen{w: &b, width: widthOf(w), height: height, s: now, r: rates(now, last)}).print()
	_, err := w.Write(b.Bytes())
	return err
}

// safeText makes a text from a peer fit for a table: at most max columns, and never nothing.
func safeText(s string, max int) string {
	if s == "" {
		return "-"
	}
	return shorten(share.Printable(s), max)
}

// statusRate is what changed per second between two snapshots.
type statusRate struct {
	known   bool
	seconds float64
	last    *observe.Snapshot
}

// rates compares with the snapshot before, unless the node was restarted in between.
func rates(now, last *observe.Snapshot) statusRate {
	if last == nil || last.Node.Instance != now.Node.Instance {
		return statusRate{}
	}
	s := now.Node.UptimeSeconds - last.Node.UptimeSeconds // the node's own clock
	return statusRate{s > 0, s, last}
}

// of is the rate of a counter that was at before; "-" if that is not known.
func (r statusRate) of(now, before uint64, known bool) string {
	if !r.known || !known || now < before {
		return "-"
	}
	return formatRate(float64(now-before) / r.seconds)
}

func (r statusRate) peer(id uint64) (observe.PeerStatus, bool) {
	if r.known {
		for _, p := range r.last.Peers {
			if p.ID == id {
				return p, true
			}
		}
	}
	return observe.PeerStatus{}, false
}

func (r statusRate) kind(name string) (observe.KindTotals, bool) {
	if r.known {
		for _, k := range r.last.Totals {
			if k.Kind == name {
				return k, true
			}
		}
	}
	return observe.KindTotals{}, false
}

// screenRows is how many rows of a list are shown where the terminal sets no limit.
const screenRows = 20

// screen is a snapshot for people. All of it comes from a peer: texts go through safeText.
type screen struct {
	w      *bytes.Buffer
	width  int // columns
	height int // lines that there may be; 0: any number, and rows may take several
	s      *observe.Snapshot
	r      statusRate
	tables []statusTable
}

// statusTable is one list of a screen.
type statusTable struct {
	what string // a row of it is
	head []string
	rows []string // of a screen with a height one line each
	more int      // rows that there are besides
}

// print puts first what changes: who is connected and how fast it goes.
func (c *screen) print() {
	s := c.s
	c.line("node %s   instance %s   up %s", safeText(s.Node.Name, 60), safeText(s.Node.Instance, 16),
		formatAge(s.Node.UptimeSeconds))
	if c.height == 0 {
		for _, a := range s.Node.Addresses[:min(len(s.Node.Addresses), screenRows)] {
			c.line("  listens on %s", safeText(a, 120))
		}
	}
	c.line("  peers %d now, %d total, %d rejected; %d of their requests refused", len(s.Peers)+s.Omitted.Peers,
		s.Node.PeersTotal, s.Node.Rejected, s.Node.Refused)
	if id := s.Node.Identity; id != nil && id.LoadError != "" {
		c.line("  ERROR: changed certificates or rules cannot be used: %s", safeText(id.LoadError, 300))
	}
	m := s.Memory
	c.line("  memory for pushed tensors %s of %s; %s registered in %d ranges", formatBytes(m.LandingUsed),
		formatBytes(m.LandingBudget), formatBytes(m.Registered), m.Registrations)
	c.peers()
	c.totals()
	c.transfers()
	c.paths()
	c.latency()
	c.exports()
	if c.height > 0 {
		c.fit()
		return
	}
	for _, t := range c.tables {
		c.w.WriteString(strings.Join(append(t.head, t.rows...), ""))
		if t.more > 0 {
			c.line("  ... and %d more", t.more)
		}
	}
}

func (c *screen) line(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if c.height > 0 {
		text = cut(text, c.width)
	}
	c.w.WriteString(text + "\n")
}

// fit writes as much of the tables as there is room for. The peers leave room for the totals, and
// all of them for a line that counts what is missing.
func (c *screen) fit() {
	room := c.height - bytes.Count(c.w.Bytes(), []byte("\n")) - 1
	var missing []string
	for i, t := range c.tables {
		here, all := room, len(t.head)+len(t.rows)+min(t.more, 1)
		if i+1 < len(c.tables) && t.what == "peer" {
			next := c.tables[i+1]
			if n := room - len(next.head) - len(next.rows); n >= min(all, len(t.head)+2) {
				here = n
			}
		}
		switch shown := here - len(t.head) - 1; {
		case all <= here:
		case shown > 0:
			t.more += len(t.rows) - shown
			t.rows = t.rows[:shown]
		default:
			missing = append(missing, count(t.more+len(t.rows), t.what, t.what+"s"))
			continue
		}
		c.w.WriteString(strings.Join(append(t.head, t.rows...), ""))
		if t.more > 0 {
			c.line("  ... and %d more", t.more)
		}
		room -= min(all, here)
	}
	if missing != nil {
		c.line("... and more: %s", strings.Join(missing, ", "))
	}
	if lines := bytes.SplitAfter(c.w.Bytes(), []byte("\n")); len(lines) > c.height+1 {
		c.w.Truncate(len(bytes.Join(lines[:c.height], nil)))
	}
}

func (c *screen) table(what, title, header string, rows, omitted int, row func(i int) []any) {
	if rows+omitted == 0 {
		return
	}
	shown := min(rows, max(screenRows, c.height))
	l := list{indent: "  ", width: c.width, single: c.height > 0}
	l.add(strings.Split(header, "\t")...)
	for i := range shown {
		var cells []string
		for _, x := range row(i) {
			cells = append(cells, fmt.Sprint(x))
		}
		l.add(cells...)
	}
	if c.height > 0 {
		title = cut(title, c.width)
	}
	var b strings.Builder
	l.print(&b)
	lines := slices.Collect(strings.Lines(b.String()))
	c.tables = append(c.tables, statusTable{what, []string{"\n", title + "\n", lines[0]}, lines[1:],
		rows + omitted - shown})
}

func (c *screen) totals() {
	all := c.s.Totals
	c.table("total", "transfers that this node began, and those of its peers",
		"kind\trate\tbytes\trunning\tcompleted\tfailed\tcanceled\trejected\tfailovers\tof peers", len(all), 0,
		func(i int) []any {
			k := all[i]
			var rejected uint64
			for _, n := range k.Rejected {
				rejected += n
			}
			before, ok := c.r.kind(k.Kind)
			return []any{safeText(k.Kind, 10), c.r.of(k.Bytes, before.Bytes, ok), formatBytes(k.Bytes), k.Running,
				k.Completed, k.Failed, k.Canceled,
				rejected, k.Failovers, k.Received}
		})
}

func (c *screen) latency() {
	all := c.s.Latency
	c.table("duration", "from the call until done", "kind\tpath\tcount\tmean\tp50\tp99\tp99.9\tmost", len(all), 0,
		func(i int) []any {
			l := all[i]
			return []any{safeText(l.Kind, 10), safeText(l.Path, 16), l.Count, formatSeconds(l.Mean),
				formatSeconds(l.P50),
				formatSeconds(l.P99), formatSeconds(l.P999), formatSeconds(l.Max)}
		})
}

func (c *screen) peers() {
	all := c.s.Peers
	c.table("peer", "peers", "#\tname\tin rate\tout rate\tin\tout\tactive\tround "+
		"trip\tsince\tsecurity\tcertificate\taddress", len(all), c.s.Omitted.Peers, func(i int) []any {
		p := all[i]
		before, ok := c.r.peer(p.ID)
		name := 32
		if c.height > 0 { // the rates have to fit
			name = max(c.width/4, leastName)
		}
		return []any{p.ID, safeText(p.Name, name), c.r.of(p.BytesIn, before.BytesIn, ok),
			c.r.of(p.BytesOut, before.BytesOut, ok), formatBytes(p.BytesIn), formatBytes(p.BytesOut),
			p.Transfers, formatSeconds(p.RoundTripSeconds), formatAge(c.s.Time.Sub(p.Since).Seconds()),
			safeText(p.Security, 12), safeText(p.Certificate, 32), safeText(p.Address, 48)}
	})
}

func (c *screen) paths() {
	type row struct {
		peer observe.PeerStatus
		observe.PathStatus
	}
	var all []row
	for _, p := range c.s.Peers {
		for _, x := range p.Paths {
			all = append(all, row{p, x})
		}
	}
	c.table("path", "paths", "peer\tpath\tqueue\tsecurity\tproof\twindow "+
		"used\twaiting\texpected\tput\tgot\tplaced\tserved\tfailed", len(all), c.s.Omitted.Paths, func(i int) []any {
		x := all[i]
		cost := "-"
		if x.Cost.BytesPerSecond > 0 && x.Cost.BytesPerSecond < 1e15 {
			cost = fmt.Sprintf("%s + %.1f GB/s", formatSeconds(x.Cost.LatencySeconds), x.Cost.BytesPerSecond/1e9)
			if !x.Cost.Measured {
				cost += " (not measured)"
			}
		}
		return []any{fmt.Sprintf("#%d %s", x.peer.ID, safeText(x.peer.Name, 24)), safeText(x.Path, 16),
			safeText(x.Queue, 16), safeText(x.Security, 12),
			safeText(x.Proof, 12), fmt.Sprintf("%d of %d", x.InFlight, x.Window), x.Queued, cost,
			formatBytes(x.Counters.BytesPut), formatBytes(x.Counters.BytesGot),
			formatBytes(x.Counters.BytesPlaced), formatBytes(x.Counters.BytesServed), x.Counters.OpsFailed}
	})
}

func (c *screen) transfers() {
	all := c.s.Transfers
	c.table("transfer", "under way", "transfer\tkind\tpeer\tpath\tmoved\tof\tage", len(all), c.s.Omitted.Transfers,
		func(i int) []any {
			t := all[i]
			return []any{t.ID, safeText(t.Kind, 10), fmt.Sprintf("#%d %s", t.PeerID, safeText(t.Peer, 24)),
				safeText(t.Path, 16), formatBytes(t.Moved), formatBytes(t.Bytes), formatAge(t.AgeSeconds)}
		})
}

func (c *screen) exports() {
	all := c.s.Exports
	c.table("export", "exports", "name\tbytes\trights\ttensor", len(all), c.s.Omitted.Exports, func(i int) []any {
		x := all[i]
		return []any{safeText(x.Name, 60), formatBytes(x.Bytes), safeText(x.Rights, 12), safeText(x.Tensor, 40)}
	})
}

// formatSeconds is a short duration; "-" for none.
func formatSeconds(s float64) string {
	if s <= 0 || s > 1e9 {
		return "-"
	}
	return formatTime(time.Duration(s * 1e9))
}

// formatAge is a duration in whole seconds, or finer below one.
func formatAge(s float64) string {
	if s < 0 || s > 1e9 {
		return "-"
	}
	d := time.Duration(s * 1e9)
	if d >= time.Second {
		return d.Round(time.Second).String()
	}
	return d.Round(time.Millisecond).String()
}
