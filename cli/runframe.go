package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/penstock-io/penstock/share"
)

// runFrame is all that a screen of `penstock run` is made of.
type runFrame struct {
	title    string // the file
	sample   *runSample
	messages []string // the newest last
	left     time.Duration
	limited  bool // left means something
	color    bool
}

// The least screen that is drawn; smaller ones say so.
const (
	leastColumns = 40
	leastRows    = 6
)

// section is a part of the screen: a title line, and rows of which as many are shown as there is
// room for.
type frameSection struct {
	title string
	rows  []string
	shown int
	what  string // that the rows are, in the plural
	least int    // rows that are worth a title
}

// height is the number of lines that the section takes.
func (s *frameSection) height() int {
	if s.shown == 0 {
		return 0
	}
	return 1 + s.shown
}

// heading is the title, with how many rows are not shown at its right end.
func (s *frameSection) heading(columns int) string {
	more := len(s.rows) - s.shown
	if more == 0 {
		return cut(s.title, columns)
	}
	text := fmt.Sprintf(" +%d more", more)
	return pad(cut(s.title, columns-len(text)), columns-len(text)) + text
}

// lines draws the screen: at most rows lines of at most columns columns, pure. What does not fit is
// folded, and how much that is stands in its place.
func (f *runFrame) lines(columns, rows int) []string {
	if columns < leastColumns || rows < leastRows {
		return fit([]string{"penstock run", fmt.Sprintf("this terminal has %d x %d characters,", columns, rows),
			fmt.Sprintf("at least %d x %d are needed", leastColumns, leastRows)}, columns, rows)
	}
	head := f.head(columns)
	all := f.sections(columns)
	foot := f.foot(columns, rows)
	room := rows - 1 - len(foot)
	hidden := fold(all, room)
	lines := []string{head}
	height := 0
	for _, s := range all {
		height += s.height()
	}
	// Blank lines between the sections, if there is room for all of them.
	parts := 0
	for _, s := range all {
		if s.height() > 0 {
			parts++
		}
	}
	blank := height+parts <= room && hidden == ""
	for _, s := range all {
		if s.height() == 0 {
			continue
		}
		if blank {
			lines = append(lines, "")
		}
		lines = append(lines, f.strong(s.heading(columns)))
		lines = append(lines, s.rows[:s.shown]...)
	}
	if hidden != "" && len(lines) < rows-len(foot) {
		lines = append(lines, cut("not shown: "+hidden, columns))
	}
	for len(foot) > 0 && len(lines) < rows-len(foot) {
		lines = append(lines, "")
	}
	return fit(append(lines, foot...), columns, rows)
}

// fit cuts what runs over the edges. Lines with attributes are as long as they may be already.
func fit(lines []string, columns, rows int) []string {
	lines = lines[:min(len(lines), rows)]
	for i, l := range lines {
		if !strings.Contains(l, "\x1b") {
			lines[i] = strings.TrimRight(cut(l, columns), " ")
		}
	}
	return lines
}

// fold shows fewer rows of the longest sections, and then none of the last ones, until all of them
// have at most room lines. It returns what is not shown at all.
func fold(all []*frameSection, room int) string {
	for _, s := range all {
		s.shown = len(s.rows)
	}
	total := func() (n int) {
		for _, s := range all {
			n += s.height()
		}
		return n
	}
	for total() > room {
		var most *frameSection
		for _, s := range all {
			if s.shown > s.least && (most == nil || s.shown >= most.shown) {
				most = s
			}
		}
		if most == nil {
			break
		}
		most.shown--
	}
	var gone []string
	for i := len(all) - 1; i > 0 && total()+min(len(gone), 1) > room; i-- {
		all[i].shown = 0
		gone = append([]string{fmt.Sprintf("%d %s", len(all[i].rows), all[i].what)}, gone...)
	}
	for len(all) > 0 && all[0].shown > 1 && total()+min(len(gone), 1) > room {
		all[0].shown--
	}
	return strings.Join(gone, ", ")
}

// strong is bold where the terminal may be coloured.
func (f *runFrame) strong(s string) string {
	if !f.color {
		return s
	}
	return "\x1b[1m" + s + "\x1b[0m"
}

// warned is for what a person should look at.
func (f *runFrame) warned(s string) string {
	if !f.color {
		return s
	}
	return "\x1b[33m" + s + "\x1b[0m"
}

// head says what runs, for how long, and what it costs.
func (f *runFrame) head(columns int) string {
	s := f.sample
	right := fmt.Sprintf("up %s  cpu %.0f %%  q: quit", formatETA(time.Duration(s.Seconds)*time.Second), 100*s.CPU)
	if f.limited {
		right = fmt.Sprintf("%s left  ", formatETA(max(f.left, 0))) + right
	}
	name := shorten(share.Printable(f.title), max(columns-len(right)-len("penstock run ")-2, 8))
	gap := columns - len("penstock run ") - len([]rune(name)) - len(right)
	return f.strong(cut("penstock run "+name+strings.Repeat(" ", max(gap, 1))+right, columns))
}

// foot is the newest messages.
func (f *runFrame) foot(columns, rows int) []string {
	most := min(max(rows/8, 1), 4)
	var out []string
	for _, m := range f.messages[max(len(f.messages)-most, 0):] {
		out = append(out, shorten(share.Printable(m), columns))
	}
	return out
}

// sections are the parts of the screen, the most important first.
func (f *runFrame) sections(columns int) []*frameSection {
	s := f.sample
	wide := columns - 80 // more or less than what the columns below are made for
	var out []*frameSection
	add := func(what string, least int, title string, rows []string) {
		if len(rows) > 0 {
			out = append(out, &frameSection{title: cut(title, columns), rows: rows, what: what,
				least: min(least, len(rows))})
		}
	}
	name := max(16+wide/2, 8)

	var rows []string
	row := func(format string, args ...any) { rows = append(rows, cut(fmt.Sprintf(format, args...), columns)) }
	col := func(s string, n int) string { return pad(shorten(share.Printable(s), n), n) }
	short := wide < 0
	for _, x := range s.Interfaces {
		state := ""
		if !x.Up {
			state = "DOWN"
		}
		for k, d := range []runFlow{x.In, x.Out} {
			title, way, note := x.Name, "in", state
			if k == 1 {
				title, way, note = "", "out", ""
			}
			if short {
				row("  %s %-3s %7s %10s %7s  %s", col(title, name), way, formatPerSecond(d.PacketsPerSecond),
					formatBits(d.BitsPerSecond), formatCount(d.Packets), note)
			} else {
				row("  %s %-3s %9s %11s %10s %11s  %s", col(title, name), way, formatPerSecond(d.PacketsPerSecond),
					formatBits(d.BitsPerSecond), formatCount(d.Packets), formatBytes(d.Bytes), note)
			}
		}
	}
	if short {
		add("lines of interfaces", 1, fmt.Sprintf("%s     %7s %10s %7s", pad("interfaces", name+2), "pkt/s", "bits/s",
			"packets"), rows)
	} else {
		add("lines of interfaces", 2, fmt.Sprintf("%s     %9s %11s %10s %11s", pad("interfaces", name+2), "packets/s",
			"bits/s", "packets", "bytes"), rows)
	}

	rows = nil
	for _, x := range s.Applications {
		what := fmt.Sprintf("%s %s", x.Kind, x.From)
		if x.To != "" && x.To != x.From {
			what += " -> " + x.To
		}
		sent := ""
		if x.Sent > 0 {
			sent = fmt.Sprintf("sent %s/s", formatPerSecond(x.SentPerSecond))
		}
		if x.Ended != "" {
			sent = "ENDED: " + x.Ended
		}
		row("  %s %s %8s %8s  %s", col(x.Name, name), col(what, max(22+wide-wide/2, 12)),
			formatPerSecond(x.PacketsPerSecond), formatCount(x.Packets), sent)
		if t := x.Tensor; t != nil {
			row("    tensor %s %s: %s made, %d of %d rows, %s missing%s", share.Printable(t.Name), t.Tensor,
				formatCount(t.Generations), t.Filled, t.Of, formatCount(t.Missing), batchesText(t))
		}
		if r := x.Record; r != nil {
			row("    recorded %s", recordText(r))
		}
	}
	add("lines of applications", 1, fmt.Sprintf("%s %s %8s %8s", pad("applications", name+2),
		pad("what", max(22+wide-wide/2, 12)), "pkt/s", "packets"), rows)

	rows = nil
	for _, d := range s.Drops {
		row("  %s %s %9s %9s", col(d.Where, name+4), col(d.Reason, 16), formatPerSecond(d.PacketsPerSecond),
			formatCount(d.Packets))
		if d.PacketsPerSecond > 0 {
			rows[len(rows)-1] = f.warned(rows[len(rows)-1])
		}
	}
	add("places of drops", 1, fmt.Sprintf("%s %s %9s %9s", pad("drops", name+6), pad("reason", 16), "pkt/s", "packets"),
		rows)

	rows = nil
	for _, x := range s.Stages {
		if x.Count > 0 {
			row("  %s %s %9s %9s", col(x.Where, name+4), col(x.Event, 24), formatPerSecond(x.PerSecond),
				formatCount(x.Count))
		}
	}
	add("counts of stages", 1, fmt.Sprintf("%s %s %9s %9s", pad("stages", name+6), pad("", 24), "/s", "count"), rows)

	rows = nil
	for _, x := range s.Recordings {
		row("  %s recorded %s", col(x.Where, name+4), recordText(x.Snapshot))
	}
	add("recordings", 1, "recordings", rows)

	rows = nil
	for _, q := range s.Queues {
		who := "polled by the application"
		if q.Direction == "out" {
			who = ""
		} else if q.Poller != "" {
			who = "poller on any core"
			if q.Core >= 0 {
				who = fmt.Sprintf("poller on core %d", q.Core)
			}
		}
		held := "-"
		if q.Of > 0 {
			held = fmt.Sprintf("%d/%d", q.Held, q.Of)
		}
		row("  %s %-4s%10s %8s  %s", col(fmt.Sprintf("%s/%d", q.Interface, q.ID), name), q.Direction, held,
			formatCount(q.Stalls), who)
	}
	add("queues", 1, fmt.Sprintf("%s     %9s %8s", pad("queues", name+2), "held", "stalls"), rows)

	rows = nil
	for _, p := range s.Pools {
		row("  %s %s %9d %9d %8s  %s", col(p.Name, name), col(p.Kind, 4), p.Slots-p.Used, p.Lowest,
			formatCount(p.Exhausted), bar(p.Used, p.Slots, max(20+wide-wide/2, 4)))
	}
	add("pools", 1, fmt.Sprintf("%s      %9s %9s %8s  %s", pad("pools", name+2), "free", "lowest", "empty", "used"),
		rows)

	rows = nil
	if n := s.Node; n != nil {
		for _, p := range n.Peers {
			if short {
				row("  %s %10s %10s  %s", col(p.Name, name), formatRate(p.InPerSecond), formatRate(p.OutPerSecond),
					p.Paths)
			} else {
				row("  %s %11s %11s %9s %9s  %s", col(p.Name, name), formatRate(p.InPerSecond),
					formatRate(p.OutPerSecond), formatBytes(p.In), formatBytes(p.Out), p.Paths)
			}
		}
		if len(rows) == 0 {
			row("  no peer is connected; at %s", share.Printable(strings.Join(n.Addresses, ", ")))
		}
		if short {
			add("peers", 1, fmt.Sprintf("%s %10s %10s  %s", pad("peers", name+2), "in/s", "out/s", "paths"), rows)
		} else {
			add("peers", 1, fmt.Sprintf("%s %11s %11s %9s %9s  %s", pad("peers", name+2), "in/s", "out/s", "in", "out",
				"paths"), rows)
		}
	}

	rows = nil
	for _, r := range s.Rules {
		rule := r.Rule
		if r.ID != 0 && r.Name != "" {
			rule = r.Name + ": " + rule
		}
		row("  %s %s %8s %8s", col(fmt.Sprintf("%s/%d", r.Interface, r.ID), name), col(rule, max(columns-name-30, 8)),
			formatPerSecond(r.PacketsPerSecond), formatCount(r.Packets))
	}
	add("rules", 1, fmt.Sprintf("%s %s %8s %8s", pad("rules", name+2), pad("", max(columns-name-30, 8)), "pkt/s",
		"packets"), rows)
	return out
}

// pad fills s up to n columns.
func pad(s string, n int) string { return s + strings.Repeat(" ", max(n-columns(s), 0)) }

// bar is a bar of n characters that shows part of whole.
func bar(part, whole, n int) string {
	full := 0
	if whole > 0 {
		full = min((part*n+whole-1)/whole, n)
	}
	return strings.Repeat("#", full) + strings.Repeat(".", n-full)
}
