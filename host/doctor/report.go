package doctor

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/host"
)

// Verdict is what a finding comes to.
type Verdict string

// Verdicts, from good to bad.
const (
	NotApplicable Verdict = "n/a"
	OK            Verdict = "ok"
	Unknown       Verdict = "unknown"
	Warn          Verdict = "warn"
	Fail          Verdict = "fail"
)

// Finding is what one check found about one thing.
type Finding struct {
	Check   string  `json:"check"` // its id
	Title   string  `json:"title"`
	Subject string  `json:"subject,omitempty"` // what it is about: an interface, a GPU; empty: the machine
	Verdict Verdict `json:"verdict"`
	Read    string  `json:"read,omitempty"`   // what is so
	Needed  string  `json:"needed,omitempty"` // what should be so
	For     string  `json:"for,omitempty"`    // what needs it
	Why     string  `json:"why,omitempty"`    // the reason of the verdict, where the others do not say it
	// Fix are commands, or steps in words, that make it so. They are alternatives only where they
	// say so.
	Fix []string `json:"fix,omitempty"`
	// At is where a configuration asks for it.
	At []Place `json:"at,omitempty"`
}

// Report is what was found.
type Report struct {
	Machine string `json:"machine"` // in a line
	// File is the configuration that the needs are of, and Problems what is to say about it by
	// itself: see ForFile.
	File     string             `json:"file,omitempty"`
	Problems config.Diagnostics `json:"diagnostics,omitempty"`
	Needs    Needs              `json:"needs"`
	Findings []Finding          `json:"findings"`
}

// Machine is what is known of a machine: see Look and Open.
type Machine struct {
	facts *host.Facts
	addrs map[netip.Addr]string // IP addresses with their interfaces; nil for recordings, which have none
}

// Look reads this machine, in the network namespace of the calling thread. It needs no rights, and
// sees more with root.
func Look(ctx context.Context) Machine {
	return Machine{host.Read(ctx, host.Live(ctx, askVerbs)), addresses()}
}

// Record is Look that also writes down what was read, without what identifies the machine, to w.
func Record(ctx context.Context, w io.Writer) (Machine, error) {
	f, r := host.Record(ctx, host.Live(ctx, askVerbs))
	_, err := r.WriteTo(w)
	return Machine{f, addresses()}, err
}

// Open reads a machine from what Record wrote on it.
func Open(r io.Reader) (Machine, error) {
	rec, err := host.Parse(r)
	if err != nil {
		return Machine{}, err
	}
	return Machine{facts: host.Read(context.Background(), rec)}, nil
}

// Run does all checks but those of skip, which names ids. Findings are in the order of Checks, and
// of one check by their subject's order.
func Run(m Machine, n Needs, skip ...string) Report {
	n = n.located(m.addrs)
	r := Report{Machine: summary(m.facts), Needs: n, Findings: []Finding{}}
	for _, c := range checks {
		if slices.Contains(skip, c.ID) {
			continue
		}
		x := &exam{f: m.facts, n: n, id: c.ID, title: c.Title}
		c.run(x)
		if len(x.out) == 0 {
			x.skip("nothing of the kind is here")
		}
		for _, f := range x.out {
			r.join(f)
		}
	}
	return r
}

// ForFile is Run with what a configuration needs, of which problems are what config.Load said about
// it.
func ForFile(m Machine, c *config.Config, problems config.Diagnostics, skip ...string) Report {
	r := Run(m, NeedsOf(c), skip...)
	r.File, r.Problems = c.Name(), problems
	return r
}

// join adds a finding. Findings that differ only in what asks for them become one.
func (r *Report) join(f Finding) {
	for i := range r.Findings {
		o := &r.Findings[i]
		same := f
		if same.At = o.At; !reflect.DeepEqual(same, *o) {
			continue
		}
		for _, p := range f.At {
			if !slices.Contains(o.At, p) {
				o.At = append(o.At, p)
			}
		}
		return
	}
	r.Findings = append(r.Findings, f)
}

// summary is a machine in a line.
func summary(f *host.Facts) string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if f.Product != "" {
		add("%s", f.Product)
	}
	if f.Virtual {
		add("virtual machine")
	}
	if f.Kernel != "" {
		add("Linux %s", f.Kernel)
	}
	add("%s", plural(len(f.CPUs), "processor"))
	if len(f.Nodes) > 1 {
		add("%s", plural(len(f.Nodes), "NUMA node"))
	}
	switch {
	case f.Memory >= 1<<30:
		add("%d GiB", (f.Memory+1<<29)>>30)
	case f.Memory > 0:
		add("%d MiB", f.Memory>>20)
	}
	return strings.Join(parts, ", ")
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Count is how many findings have a verdict.
func (r *Report) Count(v Verdict) (n int) {
	for _, f := range r.Findings {
		if f.Verdict == v {
			n++
		}
	}
	return n
}

// Worst is the worst verdict of all; NotApplicable for a report without findings. What a file needs
// that no machine gives it (a part that is not built, a placeholder), and errors of the file, count
// as Fail, and its warnings as Warn.
func (r *Report) Worst() Verdict {
	order := []Verdict{NotApplicable, OK, Unknown, Warn, Fail}
	worst := 0
	for _, p := range r.Problems {
		switch p.Severity {
		case config.Error, config.Needs:
			return Fail
		case config.Warning:
			worst = slices.Index(order, Warn)
		}
	}
	for _, f := range r.Findings {
		worst = max(worst, slices.Index(order, f.Verdict))
	}
	return order[worst]
}

// mostPlaces is how many places of a file a finding names in the report's text.
const mostPlaces = 4

// textWidth is the width of the report's text, in columns.
const textWidth = 80

// String is the report in lines of at most 80 columns, but for commands and names that cannot be
// broken. A finding that is OK takes one line, and one that does not apply takes none.
func (r Report) String() string { return r.Text(false) }

// Text is String; with all, what does not apply has its line too.
func (r Report) Text(all bool) string {
	var b strings.Builder
	fill(&b, "", "", r.Machine)
	if r.File != "" {
		fill(&b, "", "", "as "+r.File+" needs it")
	}
	b.WriteByte('\n')
	for _, f := range r.Findings {
		if f.Verdict == NotApplicable && !all {
			continue
		}
		head := f.Title
		if f.Subject != "" {
			head += ", " + f.Subject
		}
		quiet := f.Verdict == OK || f.Verdict == NotApplicable
		if say := strings.TrimSpace(f.Read); quiet {
			if say == "" || f.Verdict == NotApplicable {
				say = f.Why
			}
			if say != "" {
				head += ": " + say
			}
		}
		mark := string(f.Verdict)
		if f.Verdict == Fail {
			mark = "FAIL"
		}
		fill(&b, fmt.Sprintf("%-8s", mark), "          ", head)
		if quiet {
			continue
		}
		line := func(name, text string) {
			if text != "" {
				fill(&b, fmt.Sprintf("        %-7s ", name), "                ", text)
			}
		}
		line("read", f.Read)
		needed := f.Needed
		if f.For != "" && needed != "" {
			needed += " (" + f.For + ")"
		}
		line("needed", needed)
		line("why", f.Why)
		for i, p := range f.At[:min(len(f.At), mostPlaces)] {
			line([]string{"file", ""}[min(i, 1)], p.String())
		}
		if n := len(f.At) - mostPlaces; n > 0 {
			line("", fmt.Sprintf("and %d more", n))
		}
		for i, m := range f.Fix {
			name := "fix"
			if i > 0 {
				name = ""
			}
			if isCommand(m) { // whose lines can be copied
				command(&b, fmt.Sprintf("        %-7s ", name), "                ", m)
				continue
			}
			line(name, m)
		}
	}
	fmt.Fprintf(&b, "\n%d fail, %s, %d unknown, %d ok; %d do not apply\n", r.Count(Fail),
		plural(r.Count(Warn), "warning"), r.Count(Unknown), r.Count(OK),
		r.Count(NotApplicable))
	return b.String()
}

// programs are those with which commands in Fix begin.
var programs = []string{"apt-get", "cpupower", "dcb", "driverctl", "echo", "ethtool", "ip", "modprobe", "nvidia-smi",
	"penstock", "rdma", "setpci", "sysctl", "systemctl", "ulimit"}

func isCommand(s string) bool {
	first, rest, _ := strings.Cut(s, " ")
	return slices.Contains(programs, first) && !strings.Contains(rest, ": ") && !strings.Contains(rest, ", ")
}

// command writes a command in lines, each but the last with a backslash at its end, as a shell
// wants it.
func command(b *strings.Builder, head, indent, text string) {
	var lines strings.Builder
	fill(&lines, head, indent, text)
	b.WriteString(strings.ReplaceAll(strings.TrimSuffix(lines.String(), "\n"), "\n", " \\\n") + "\n")
}

// fill writes a text in lines, the first behind head and the others behind indent.
func fill(b *strings.Builder, head, indent, text string) {
	host.Fill(b, textWidth-2, head, indent, text) // room for a backslash
}
