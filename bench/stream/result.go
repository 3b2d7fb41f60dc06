package stream

import (
	"fmt"
	"io"
	"strings"

	"github.com/penstock-io/penstock/bench/paired"
)

// Result is what Run found: a report, which is what is written to a file, and what its table needs
// besides.
type Result struct {
	*paired.Report
	lines []line
}

// line is one line of a table.
type line struct {
	cell    cell
	test    string
	row     int     // in the report; -1: none
	rate    float64 // that was asked for
	at      float64 // that was reached, of the last trial
	points  []LossPoint
	longest uint64
	trials  int
}

// columns is the width of the table.
const columns = 80

// Table writes the result for people, 80 columns wide.
func (r *Result) Table(w io.Writer) error {
	p := &writer{paired.Lines{W: w, Label: 9, Width: columns}}
	fields := [][2]string{{"machine", r.Machine.Summary()}}
	for _, l := range r.Method.Notes {
		fields = append(fields, [2]string{"method", l})
	}
	r.Head(&p.Lines, fields...)
	p.rates(r, Throughput, "throughput")
	p.rates(r, Flood, "flood")
	p.latencies(r)
	p.losses(r)
	p.bursts(r)
	p.disorder(r)
	p.remarks(r)
	for _, x := range r.Rows {
		for _, t := range x.Theirs {
			p.against(&x, &t)
		}
	}
	if len(r.lines) > 0 {
		p.Line("")
		p.Field("words", "Mpps: 10^6 packets/s; L2: bits/s of frames with check sequence; L1: with preamble and gap; "+
			"limit: what a higher rate fails by, loss or a sender that does not reach it; ns/pkt: processor time of "+
			"a packet in the threads that send and receive")
	}
	for _, n := range r.Notes {
		if !strings.Contains(n, ": longest burst") && !strings.Contains(n, ": lost at parts") { // those have tables
			p.Field("note", n)
		}
	}
	return p.Err
}

// writer writes the parts of a result.
type writer struct{ paired.Lines }

// where is the beginning of each line.
const where = "%-11.11s %5d %5d %2d"

func at(c *cell) string {
	name := c.name()
	if c.Workload != NoWork { // two words of which the second says most
		name, _, _ = strings.Cut(name, " ")
		name += " " + c.Workload.String()
	}
	return fmt.Sprintf(where, name, c.Size, c.Burst, c.Queues)
}

func head(title string) string { return fmt.Sprintf("%-11s %5s %5s %2s", title, "size", "burst", "q") }

func (p *writer) rates(r *Result, test, title string) {
	first := true
	for _, l := range r.lines {
		if l.test != test {
			continue
		}
		if first {
			p.Line("")
			p.Line("%s %8s %7s %7s %7s %6s %6s %6s", head(title), "Mpps", "L2 Gb/s", "L1 Gb/s", "loss", "limit",
				"tx ns", "rx ns")
			first = false
		}
		x := &r.Rows[l.row]
		t, rate := x.Traffic, x.Ours.Stats.Median*1e6
		tx := "-"
		if t.SendNS > 0 {
			tx = fmt.Sprintf("%.0f", t.SendNS)
		}
		limit := t.Limit
		if limit == "" {
			limit = "-"
		}
		p.Line("%s %8s %7s %7s %7s %6s %6s %6.0f", at(&l.cell), paired.Digits(rate/1e6),
			paired.Digits(L2(l.cell.Size, rate)/1e9),
			paired.Digits(L1(l.cell.Size, rate)/1e9),
			part(t.Lost, t.Sent), limit, tx, t.ReceiveNS)
	}
}

func (p *writer) latencies(r *Result) {
	first := true
	for _, l := range r.lines {
		if l.test != Latency {
			continue
		}
		x := &r.Rows[l.row]
		if first {
			p.Line("")
			p.Line("%s %8s %6s %6s %6s %6s %6s %7s", head("latency, us"), "at Mpps", "p50", "p90", "p99", "p99.9",
				"max", "loss")
			first = false
		}
		y := x.Latency
		p.Line("%s %8s %6s %6s %6s %6s %6s %7s", at(&l.cell), paired.Digits(l.rate/1e6), paired.Digits(y.P50),
			paired.Digits(y.P90),
			paired.Digits(y.P99), paired.Digits(y.P999), paired.Digits(y.Max),
			part(x.Traffic.Lost, x.Traffic.Sent))
	}
	if !first && len(r.lines) > 0 && r.lines[0].cell.Reflect {
		p.Line("(there and back)")
	}
}

func (p *writer) losses(r *Result) {
	first := true
	for _, l := range r.lines {
		if l.test != LossTest {
			continue
		}
		if first {
			p.Line("")
			p.Line("%s %8s %6s %10s %10s %8s", head("loss"), "Mpps", "part", "sent", "lost", "loss")
			first = false
		}
		for _, x := range l.points {
			p.Line("%s %8s %5.0f%% %10d %10d %8s", at(&l.cell), paired.Digits(x.Rate/1e6), 100*x.Part, x.Sent, x.Lost,
				part(x.Lost, x.Sent))
		}
	}
}

func (p *writer) bursts(r *Result) {
	first := true
	for _, l := range r.lines {
		if l.test != Burst {
			continue
		}
		if first {
			p.Line("")
			p.Line("%s %20s %8s", head("burst"), "longest, packets", "trials")
			first = false
		}
		p.Line("%s %20d %8d", at(&l.cell), l.longest, l.trials)
	}
}

// disorder lists the rows in which something else than loss happened.
func (p *writer) disorder(r *Result) {
	first := true
	for _, l := range r.lines {
		if l.row < 0 {
			continue
		}
		t := r.Rows[l.row].Traffic
		if t.Duplicates+t.Reordered+t.Damaged+t.Foreign == 0 {
			continue
		}
		if first {
			p.Line("")
			p.Line("%s %10s %10s %10s %10s", head("disorder"), "duplicate", "reordered", "damaged", "foreign")
			first = false
		}
		p.Line("%s %10d %10d %10d %10d", at(&l.cell), t.Duplicates, t.Reordered, t.Damaged, t.Foreign)
	}
}

// remarks are those of rows that lost packets or have several queues.
func (p *writer) remarks(r *Result) {
	first := true
	for _, l := range r.lines {
		if l.row < 0 || r.Rows[l.row].Traffic.Lost == 0 && l.cell.Queues == 1 {
			continue
		}
		if first {
			p.Line("")
			first = false
		}
		p.Field("rows", r.Rows[l.row].Name+": "+r.Rows[l.row].Note)
	}
}

func (p *writer) against(x *paired.Row, t *paired.Side) {
	p.Line("")
	if t.Error != "" {
		p.Field("beside", fmt.Sprintf("%s: %s: %s", x.Name, t.Name, t.Error))
		return
	}
	q := t.Ratio
	p.Field("beside", fmt.Sprintf("%s: ours %s Mpps, %s %s Mpps; ratio %.2f, 95%% from %.2f to %.2f over %d pairs: %s",
		x.Name, paired.Digits(x.Ours.Stats.Median),
		t.Name, paired.Digits(t.Stats.Median), q.Median, q.Interval.Low, q.Interval.High, len(t.Samples), q.Verdict))
}

// part writes a loss; the smallest that is not 0 is seen as such.
func part(lost, sent uint64) string {
	if lost == 0 {
		return "0"
	}
	v := 100 * float64(lost) / float64(max(sent, 1))
	if v < 0.01 {
		return fmt.Sprintf("%.0e", v/100)
	}
	return fmt.Sprintf("%.2f%%", v)
}
