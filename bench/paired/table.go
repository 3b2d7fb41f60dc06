package paired

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// width is how many columns text is broken at. Tables keep below it unless a name is very long.
const width = 120

const dateFormat = "2006-01-02 15:04 UTC"

// Table writes the report for people: one table of figures, then those of comparisons, single
// operations and costs where there are any, and what the words mean.
func (r *Report) Table(w io.Writer) error {
	p := &printer{Lines{W: w, Label: 10, Width: width}}
	m, virtual := r.Machine, ""
	if m.Virtual {
		virtual = ", virtual"
	}
	b := r.Build
	fields := [][2]string{{"machine",
		fmt.Sprintf("%s, %s%s, %s, %s, %d MiB (%d available, %d huge pages free), Linux %s, governor %s, turbo %s, "+
			"TCP %s, load %.2f", m.CPU, count(m.Cores, "core"), virtual, m.caches(), count(m.NUMANodes, "NUMA node"),
			m.MemoryMiB, m.FreeMiB,
			m.HugeFree, m.Kernel, m.Governor, m.Turbo, m.Congestion, m.Load[0])}}
	if m.Accelerator != "" {
		fields = append(fields, [2]string{"device", m.Accelerator})
	}
	fields = append(fields, [][2]string{{"program",
		strings.TrimSpace(fmt.Sprintf("penstock %s, commit %s, %s %s", b.Version, b.short(), b.Go, b.Flags))},
		{"method", r.Method.summary()}}...)
	for _, l := range r.Method.Notes {
		fields = append(fields, [2]string{"", l})
	}
	r.Head(&p.Lines, fields...)
	if len(r.Rows) > 0 {
		r.figures(p)
		r.goals(p)
		r.comparisons(p)
		r.latencies(p)
		r.costs(p)
		p.Line("")
		r.legend(p)
	}
	r.footnotes(p)
	return p.Err
}

// summary is the method in a sentence.
func (m *Method) summary() string {
	var parts []string
	if m.Pairs > 0 {
		parts = append(parts, count(m.Pairs, "interleaved pair")+" of each comparison")
	}
	if m.Alone > 0 {
		parts = append(parts, count(m.Alone, "sample")+" of each row without one")
	}
	s := strings.Join(parts, ", ")
	if m.Warmup > 0 {
		s += ", after " + count(m.Warmup, "warm-up round") + " thrown away"
	}
	return strings.TrimPrefix(fmt.Sprintf("%s; seed %d", s, m.Seed), "; ")
}

// Disturbance says in a sentence how busy other programs kept the machine while rows were measured;
// "" where no gate looked.
func (r *Report) Disturbance() string {
	looks, waited, worst := 0, 0.0, ""
	top := -1.0
	for i := range r.Rows {
		g := r.Rows[i].Gate
		if g == nil {
			continue
		}
		if g.Error != "" {
			return "how busy the machine was is not known: " + g.Error
		}
		looks += g.Looks
		waited += g.Waited
		if g.Median > top {
			top, worst = g.Median, r.Rows[i].Name
		}
	}
	if looks == 0 {
		return ""
	}
	s := fmt.Sprintf("other programs used %.2f processors or less when a run began (median of the row that was "+
		"disturbed most)", top)
	if g := r.Method.Gate; g != nil && top > g.Busy {
		s = fmt.Sprintf("NOT IDLE: other programs used %.2f processors when a run of %q began (median): figures may "+
			"be worse than they should be", top, worst)
	}
	return s + fmt.Sprintf("; waited %.1f s for them", waited)
}

func (r *Report) figures(p *printer) {
	head := []string{"figures", "median", "unit", "95%", "range", "samples", "verified"}
	ceiling := slices.ContainsFunc(r.Rows, func(x Row) bool { return x.Ceiling != nil })
	if ceiling {
		head = append(head, "ceiling")
	}
	cells := [][]string{head}
	for i := range r.Rows {
		x := &r.Rows[i]
		s := x.Ours.Stats
		line := []string{r.marked(i), figure(s.Median), string(x.Unit), span(s.Interval),
			figure(s.Min) + "-" + figure(s.Max), fmt.Sprint(s.N), x.verified()}
		if ceiling {
			line = append(line, x.ceiling())
		}
		cells = append(cells, line)
	}
	p.Line("")
	p.table(cells)
}

func (r *Report) goals(p *printer) {
	cells := [][]string{{"goals", "median", "unit", "goal", "verdict"}}
	for i := range r.Rows {
		if x := &r.Rows[i]; x.Goal != nil {
			goal := pick(x.Better == Higher, ">= ", "<= ") + figure(x.Goal.Value)
			cells = append(cells, []string{x.Name, figure(x.Ours.Stats.Median), string(x.Unit), goal,
				string(x.Goal.Verdict)})
		}
	}
	if len(cells) > 1 {
		p.Line("")
		p.table(cells)
	}
}

// marked is the name of a row, with the number of its footnote where it has one.
func (r *Report) marked(i int) string {
	n := 0
	for k := range r.Rows[:i+1] {
		if len(r.Rows[k].remarks()) > 0 {
			n++
		}
	}
	if len(r.Rows[i].remarks()) > 0 {
		return fmt.Sprintf("%s [%d]", r.Rows[i].Name, n)
	}
	return r.Rows[i].Name
}

// remarks are what is to be said about a row besides its figures.
func (x *Row) remarks() (lines []string) {
	if x.Failed != "" {
		lines = append(lines, "FAILED: "+x.Failed)
	}
	for _, s := range x.Theirs {
		if s.Error != "" {
			lines = append(lines, fmt.Sprintf("not compared with %s: %s", s.Name, s.Error))
		} else if s.Failures > 0 {
			lines = append(lines, fmt.Sprintf("%s of %s failed; those rounds were made again", count(s.Failures, "run"),
				s.Name))
		}
	}
	if m := x.Memory; m != nil {
		lines = append(lines, fmt.Sprintf("copies per byte: %d in user space, %d in the kernel, %d by devices",
			m.UserCopies, m.KernelCopies, m.DeviceCopies))
	}
	if x.Note != "" {
		lines = append(lines, x.Note)
	}
	return lines
}

func (r *Report) footnotes(p *printer) {
	n := 0
	for i := range r.Rows {
		lines := r.Rows[i].remarks()
		if len(lines) == 0 {
			continue
		}
		if n++; n == 1 {
			p.Line("")
		}
		p.Field(fmt.Sprintf("[%d]", n), strings.Join(lines, "; "))
	}
	if len(r.Notes) > 0 {
		p.Line("")
	}
	for _, l := range r.Notes {
		p.Line("%s", l)
	}
}

func (x *Row) ceiling() string {
	if x.Ceiling == nil {
		return "-"
	}
	top := x.Ceiling.Stats.Median
	return fmt.Sprintf("%.0f%% of %s", 100*x.Ours.Stats.Median/top, figure(top))
}

func (x *Row) verified() string {
	if x.Ours.Unchecked != "" {
		return "-"
	}
	return FormatBytes(x.Ours.Verified)
}

func (r *Report) comparisons(p *printer) {
	cells := [][]string{{"ours, and beside it", "median", "unit", "ours/theirs", "95%", "target", "pairs", "verdict"}}
	var why []string
	for i := range r.Rows {
		x := &r.Rows[i]
		for k, s := range x.Theirs {
			if k == 0 {
				cells = append(cells, []string{x.Name, figure(x.Ours.Stats.Median), string(x.Unit), "", "", "", "", ""})
			}
			if s.Ratio == nil {
				cells = append(cells, []string{"  " + s.Name, "-", string(x.Unit), "-", "-", "-", "-", "not compared"})
				continue
			}
			q := s.Ratio
			why = append(why, q.Why)
			target := fmt.Sprintf("%s %.4g", pick(x.Better == Higher, ">=", "<="), q.Target)
			if q.Margin > 0 {
				target += fmt.Sprintf(" +-%s", percent(q.Margin))
			}
			cells = append(cells, []string{"  " + s.Name, figure(s.Stats.Median), string(x.Unit), ratio(q.Median),
				span(q.Interval), target,
				fmt.Sprint(len(s.Samples)), string(q.Verdict)})
		}
	}
	if len(cells) > 1 {
		p.Line("")
		p.table(cells)
		p.reasons(why)
	}
}

func (r *Report) latencies(p *printer) {
	cells := [][]string{{"single operations", "p50", "p90", "p99", "p99.9", "longest", "unit", "number"}}
	for i := range r.Rows {
		if l := r.Rows[i].Latency; l != nil {
			cells = append(cells, []string{r.Rows[i].Name, figure(l.P50), figure(l.P90), figure(l.P99), figure(l.P999),
				figure(l.Max),
				string(r.Rows[i].Unit), fmt.Sprint(l.N)})
		}
	}
	if len(cells) > 1 {
		p.Line("")
		p.table(cells)
	}
}

func (r *Report) costs(p *printer) {
	cells := [][]string{{"cost of ours", "CPU s/GB", "CPU us/op", "allocations/op", "system calls/op"}}
	for i := range r.Rows {
		if c := r.Rows[i].Cost; c != nil {
			cells = append(cells, []string{r.Rows[i].Name, figure(c.CPUPerGB), figure(c.CPUPerOp),
				fmt.Sprintf("%.2f", c.Allocs),
				fmt.Sprintf("%.2f", c.Syscalls)})
		}
	}
	if len(cells) > 1 {
		p.Line("")
		p.table(cells)
	}
}

func (r *Report) legend(p *printer) {
	p.Field("units", "GB/s: 10^9 bytes a second; Mop/s: 10^6 operations a second (more is better); ns, us, ms: time "+
		"(less is better)")
	p.Field("95%", "the interval that holds the true value with 95% certainty; with a ?, there are too few samples "+
		"for that, and it is their range")
	var methods []string
	checked, compared, cost, goal := false, false, false, false
	for _, x := range r.Rows {
		checked = checked || x.Ours.Unchecked == ""
		compared = compared || len(x.Theirs) > 0
		cost, goal = cost || x.Cost != nil, goal || x.Goal != nil
		if x.Ceiling != nil && !slices.Contains(methods, x.Ceiling.Method) {
			methods = append(methods, x.Ceiling.Method)
		}
	}
	if methods != nil {
		p.Field("ceiling", "what this machine could do at most, measured between the samples: "+
			strings.Join(methods, "; or "))
	}
	if checked {
		p.Field("verified", "bytes that the receiver compared with what was sent, outside the timed part")
	}
	if goal {
		p.Field("goal", "met, missed: the whole 95% interval is on that side; inconclusive: it contains the goal, or "+
			"the samples are too few")
	}
	if compared {
		p.Field("verdict", fmt.Sprintf("better, worse: the whole interval of ours/theirs is on that side of the "+
			"target, beyond its margin; same: it lies "+
			"within the margin; inconclusive: neither, or fewer than %d pairs", MinPairs))
		for _, why := range r.unchecked() {
			p.Field("", why)
		}
	}
	if cost {
		p.Field("cost", "of both processes together; waiting by polling is CPU too")
	}
}

// unchecked returns the reasons why bytes of theirs are not verified, each once.
func (r *Report) unchecked() (lines []string) {
	for _, x := range r.Rows {
		for _, s := range x.Theirs {
			if l := "not verified: " + s.Unchecked; s.Unchecked != "" && !slices.Contains(lines, l) {
				lines = append(lines, l)
			}
		}
	}
	return lines
}

// printer writes the parts of reports.
type printer struct{ Lines }

// reasons writes why verdicts are inconclusive, each reason once with how often it holds.
func (p *printer) reasons(why []string) {
	times := map[string]int{}
	var order []string
	for _, w := range why {
		if times[w]++; w != "" && times[w] == 1 {
			order = append(order, w)
		}
	}
	for _, w := range order {
		p.Line("inconclusive, %s: %s", count(times[w], "time"), w)
	}
}

// names writes a list of names, one to a line.
func (p *printer) names(title string, names []string) {
	if len(names) == 0 {
		return
	}
	p.Line("%s:", title)
	for _, n := range names {
		p.Line("  %s", n)
	}
	p.Line("")
}

// table writes cells in columns.
func (p *printer) table(cells [][]string) {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, line := range cells {
		fmt.Fprintln(t, strings.Join(line, "\t"))
	}
	t.Flush()
	for l := range strings.Lines(b.String()) {
		p.Line("%s", strings.TrimRight(l, "\n"))
	}
}

// figure prints three digits, which is more than any figure here is worth.
func figure(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%.3g", v)
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 1:
		return fmt.Sprintf("%.2f", v)
	case v >= 0.01 || v == 0:
		return fmt.Sprintf("%.3f", v)
	}
	return fmt.Sprintf("%.2g", v)
}

func ratio(v float64) string { return figure(v) + "x" }

// span prints an interval, with a question mark where it covers less than it should.
func span(i Interval) string {
	return figure(i.Low) + "-" + figure(i.High) + pick(i.Level < Confidence, "?", "")
}

func percent(part float64) string { return fmt.Sprintf("%.3g%%", 100*part) }

// FormatBytes writes a number of bytes with three digits and a decimal unit.
func FormatBytes(n uint64) string {
	units := []string{"B", "kB", "MB", "GB", "TB", "PB", "EB"}
	v, k := float64(n), 0
	for ; v >= 999.5 && k < len(units)-1; k++ {
		v /= 1000
	}
	if k == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.3g %s", v, units[k])
}
