package paired

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

// CompareFormat is in the output of compare.
const CompareFormat = "penstock-bench-compare"

// DefaultMargin is the margin of Compare when none is given: between two runs machines differ by a
// few per cent by themselves.
const DefaultMargin = 0.05

// significant is the p-value below which two sets of samples count as different.
const significant = 1 - Confidence

// Comparison is what two result files say about each other: B against A.
type Comparison struct {
	Format   string     `json:"format"`
	Schema   int        `json:"schema"`
	A        Origin     `json:"a"`
	B        Origin     `json:"b"`
	Margin   float64    `json:"margin"`
	Warnings []string   `json:"warnings,omitempty"`
	Rows     []Compared `json:"rows"`
	OnlyA    []string   `json:"only_a,omitempty"` // names of rows
	OnlyB    []string   `json:"only_b,omitempty"`
	Skipped  []string   `json:"skipped,omitempty"` // rows in both that cannot be compared, and why
}

// Origin is where one side of a comparison comes from.
type Origin struct {
	File    string    `json:"file"`
	Bench   string    `json:"bench"`
	Began   time.Time `json:"began"`
	Machine Machine   `json:"machine"`
	Build   Build     `json:"build"`
}

// Compared is one row of both files.
type Compared struct {
	Name   string    `json:"name"`
	Unit   Unit      `json:"unit"`
	Better Direction `json:"better"`
	A      Stats     `json:"a"`
	B      Stats     `json:"b"`
	Ratio  Ratio     `json:"ratio"` // B/A
	P      float64   `json:"p"`     // two-sided, of the Mann–Whitney U test
	// Others are programs that both files measured beside this row, with how their medians changed:
	// what changed for them too was the machine.
	Others []Other `json:"others,omitempty"`
}

// Other is another program's change from A to B.
type Other struct {
	Name  string  `json:"name"`
	Ratio float64 `json:"ratio"` // of its medians, B/A
}

// Compare compares ours of every row that both reports have, sample against sample. nameA and nameB
// are what they are called.
//
// The samples were not taken in pairs, so what the machine did between the two runs is part of the
// difference. Better and Worse take both: the interval of the ratio of the medians lies beyond the
// margin, and the U test finds p < 0.05. Where both reports measured the same other programs, it
// must also lie there after what changed for those was taken out.
func Compare(nameA string, a *Report, nameB string, b *Report, margin float64) (*Comparison, error) {
	if !(margin >= 0 && margin < 1) {
		return nil, fmt.Errorf("paired: margin %v: expected a part from 0 up to 1", margin)
	}
	c := &Comparison{Format: CompareFormat, Schema: Schema, Margin: margin, Rows: []Compared{},
		A: Origin{nameA, a.Bench, a.Began, a.Machine, a.Build}, B: Origin{nameB, b.Bench, b.Began, b.Machine, b.Build}}
	c.warn(a, b)
	rows := map[string]*Row{}
	for i := range b.Rows {
		rows[b.Rows[i].Name] = &b.Rows[i]
	}
	for i := range a.Rows {
		x := &a.Rows[i]
		y, ok := rows[x.Name]
		if !ok {
			c.OnlyA = append(c.OnlyA, x.Name)
			continue
		}
		delete(rows, x.Name)
		if why := incomparable(x, y); why != "" {
			c.Skipped = append(c.Skipped, x.Name+": "+why)
			continue
		}
		m, err := compareRow(x, y, margin)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", x.Name, err)
		}
		c.Rows = append(c.Rows, m)
	}
	for i := range b.Rows {
		if _, ok := rows[b.Rows[i].Name]; ok {
			c.OnlyB = append(c.OnlyB, b.Rows[i].Name)
		}
	}
	return c, nil
}

// warn collects what makes the whole comparison doubtful.
func (c *Comparison) warn(a, b *Report) {
	say := func(format string, args ...any) { c.Warnings = append(c.Warnings, fmt.Sprintf(format, args...)) }
	if d := a.Machine.differences(b.Machine); len(d) > 0 {
		say("DIFFERENT MACHINES or settings (A / B): a difference below may be the machine's\n%s",
			strings.Join(d, "\n"))
	}
	if a.Bench != b.Bench {
		say("A is of bench %s, B of bench %s", a.Bench, b.Bench)
	}
	if a.Build.Flags != b.Build.Flags {
		say("built differently (A / B): %q / %q", a.Build.Flags, b.Build.Flags)
	}
	for _, r := range []struct {
		name string
		*Report
	}{{"A", a}, {"B", b}} {
		if strings.Contains(r.Build.Flags, "-race=true") {
			say("%s was measured by a program with the race detector: its figures mean nothing", r.name)
		}
		if worst := r.busiest(); worst > 1 {
			say("%s was measured while other programs used up to %.1f processors", r.name, worst)
		}
	}
	if a.Began.Equal(b.Began) && a.Method.Seed == b.Method.Seed && len(a.Rows) > 0 {
		say("A and B are of the same run")
	}
}

// busiest is how many processors others used in the median of the row that was disturbed most.
func (r *Report) busiest() float64 {
	worst := 0.0
	for i := range r.Rows {
		if g := r.Rows[i].Gate; g != nil {
			worst = max(worst, g.Median)
		}
	}
	return worst
}

func incomparable(x, y *Row) string {
	switch {
	case x.Unit != y.Unit:
		return fmt.Sprintf("in %s in A and in %s in B", x.Unit, y.Unit)
	case x.Failed != "":
		return "failed in A: " + x.Failed
	case y.Failed != "":
		return "failed in B: " + y.Failed
	case (x.Memory == nil) != (y.Memory == nil):
		return "memory of an accelerator in one of them only"
	case x.Memory != nil && (x.Memory.LocalDevice != y.Memory.LocalDevice ||
		x.Memory.RemoteDevice != y.Memory.RemoteDevice):
		return fmt.Sprintf("memory of %s in A and of %s in B", x.Memory.devices(), y.Memory.devices())
	}
	return ""
}

func compareRow(x, y *Row, margin float64) (Compared, error) {
	m := Compared{Name: x.Name, Unit: x.Unit, Better: x.Better, A: *x.Ours.Stats, B: *y.Ours.Stats}
	m.Ratio = Ratio{Target: 1, Margin: margin}
	for _, s := range x.Theirs {
		k := slices.IndexFunc(y.Theirs, func(o Side) bool { return o.Name == s.Name })
		if k >= 0 && s.Stats != nil && y.Theirs[k].Stats != nil && s.Version == y.Theirs[k].Version {
			m.Others = append(m.Others, Other{s.Name, y.Theirs[k].Stats.Median / s.Stats.Median})
		}
	}
	var err error
	if _, m.P, err = MannWhitney(x.Ours.Samples, y.Ours.Samples); err != nil {
		return m, err
	}
	r := &m.Ratio
	if r.Median, r.Interval, err = UnpairedRatio(x.Ours.Samples, y.Ours.Samples, x.Seed^y.Seed); err != nil {
		return m, err
	}
	if slices.Equal(x.Ours.Samples, y.Ours.Samples) {
		// The same measurement twice is one measurement: there is nothing between them, whatever
		// its spread.
		r.Interval.Low, r.Interval.High, r.Verdict = 1, 1, Same
		return m, nil
	}
	low, high := band(1, margin)
	r.Verdict = Judge(r.Interval, 1, margin, x.Better)
	switch n := min(m.A.N, m.B.N); {
	case n < minForInterval:
		r.Verdict, r.Why = Inconclusive, fmt.Sprintf("%s; a verdict takes %d on each side", count(n, "sample"),
			minForInterval)
	case r.Verdict == Inconclusive:
		r.Why = fmt.Sprintf("the interval reaches across %.4g or %.4g", low, high)
	case r.Verdict != Same && !(m.P < significant):
		r.Verdict, r.Why = Inconclusive, fmt.Sprintf("p = %.2g", m.P)
	case r.Verdict != Same && len(m.Others) > 0:
		// What changed for programs that are the same in both files was the machine: less that, the
		// verdict must stand.
		d := m.drift()
		if Judge(Interval{r.Interval.Low / d, r.Interval.High / d, r.Interval.Level}, 1, margin,
			x.Better) != r.Verdict {
			r.Verdict, r.Why = Inconclusive,
				"others, which are the same in both files, changed as much: it was the machine"
		}
	}
	return m, nil
}

// drift is the median of how the other programs changed.
func (m *Compared) drift() float64 {
	var v []float64
	for _, o := range m.Others {
		v = append(v, o.Ratio)
	}
	slices.Sort(v)
	return middle(v)
}

// Count is the number of rows with a verdict.
func (c *Comparison) Count(v Verdict) int {
	n := 0
	for i := range c.Rows {
		if c.Rows[i].Ratio.Verdict == v {
			n++
		}
	}
	return n
}

// Write writes the comparison as JSON.
func (c *Comparison) Write(w io.Writer) error { return writeJSON(w, c) }

// Table writes the comparison for people.
func (c *Comparison) Table(w io.Writer) error {
	p := &printer{Lines{W: w, Label: 10, Width: width}}
	p.Line("bench compare: B against A, by what each measured of ours")
	p.Line("")
	for _, s := range []struct {
		name string
		*Origin
	}{{"A", &c.A}, {"B", &c.B}} {
		p.Field(s.name, fmt.Sprintf("%s: bench %s of %s, penstock %s, commit %s, %s", s.File, s.Bench,
			s.Began.UTC().Format(dateFormat),
			s.Build.Version, s.Build.short(), s.Build.Go))
	}
	for _, l := range c.Warnings {
		p.Line("")
		for i, part := range strings.Split(l, "\n") {
			p.Line("%s %s", pick(i == 0, "WARNING:", "        "), part)
		}
	}
	p.Line("")
	others := slices.ContainsFunc(c.Rows, func(m Compared) bool { return len(m.Others) > 0 })
	head := []string{"what", "A", "B", "unit", "B/A", "95%", "p", "verdict"}
	if others {
		head = append(head, "others")
	}
	cells, why := [][]string{head}, []string(nil)
	for i := range c.Rows {
		m := &c.Rows[i]
		line := []string{m.Name, figure(m.A.Median), figure(m.B.Median), string(m.Unit), ratio(m.Ratio.Median),
			span(m.Ratio.Interval),
			pValue(m.P), string(m.Ratio.Verdict)}
		if others {
			line = append(line, changes(m.Others))
		}
		cells, why = append(cells, line), append(why, m.Ratio.Why)
	}
	if len(c.Rows) > 0 {
		p.table(cells)
		p.reasons(why)
		p.Line("")
	}
	p.names("only in A", c.OnlyA)
	p.names("only in B", c.OnlyB)
	p.names("not compared", c.Skipped)
	p.Field("in all", fmt.Sprintf("%s: %d better, %d worse, %d same, %d inconclusive", count(len(c.Rows), "row"),
		c.Count(Better),
		c.Count(Worse), c.Count(Same), c.Count(Inconclusive)))
	p.Line("")
	p.Field("A, B", "medians of the samples; GB/s and Mop/s: more is better; ns, us, ms: less is better")
	p.Field("95%", "the interval that holds the true ratio B/A with 95% certainty, of these two runs; with a ?, the "+
		"samples are too few for that")
	p.Field("p", "how likely such different samples are if nothing changed (Mann-Whitney U test)")
	p.Field("verdict", fmt.Sprintf("better, worse: the whole interval is more than %s beyond 1 on that side, and p < "+
		"0.05; same: it "+
		"lies within %s; inconclusive: measure again, with more samples or on a quieter machine", percent(c.Margin),
		percent(c.Margin)))
	if others {
		p.Field("others", "B/A of the programs that both files measured beside it; what changed for them too was the "+
			"machine")
	}
	return p.Err
}

func changes(o []Other) string {
	if len(o) == 0 {
		return "-"
	}
	low, high := math.Inf(1), 0.0
	for _, x := range o {
		low, high = min(low, x.Ratio), max(high, x.Ratio)
	}
	if len(o) == 1 {
		return ratio(low)
	}
	return figure(low) + "-" + ratio(high)
}

func pValue(p float64) string {
	if p < 0.001 {
		return "<0.001"
	}
	return fmt.Sprintf("%.3f", p)
}
