package tune

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/penstock-io/penstock/host"
)

// Setting names one thing that can be read and set: "mtu", "feature rx-gro", "irq 45". See
// docs/tune.md for all of them.
type Setting string

// Step is one thing to do.
type Step struct {
	Name    string  `json:"name"`              // one of Names
	What    string  `json:"what"`              // in words
	Setting Setting `json:"setting,omitempty"` // empty for advice
	Where   string  `json:"where"`             // where the kernel has it: a file, or the command of ethtool
	Now     string  `json:"now"`               // as it was when the plan was made
	Wanted  string  `json:"wanted"`
	Why     string  `json:"why"`
	Command string  `json:"command"` // that does it by hand
	// Advice is not done by Apply: it is for an administrator to decide.
	Advice bool `json:"advice,omitempty"`
	// Host says that the step is about the whole machine and not only about the interface.
	Host bool `json:"host,omitempty"`
	// Needs is the right that the step takes; Missing is what this process lacks of it, empty if
	// nothing.
	Needs   string `json:"needs,omitempty"`
	Missing string `json:"missing,omitempty"`
	// Reversible: Undo puts it back.
	Reversible bool `json:"reversible"`
}

// Unknown is something that could not be found out.
type Unknown struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// Plan is what to change on an interface and its host, or on the host alone. It is only data.
type Plan struct {
	Interface string    `json:"interface"` // empty: the host; of a plan of Driver the address of the PCI device
	Driver    string    `json:"driver,omitempty"`
	Steps     []Step    `json:"steps"`
	Unknown   []Unknown `json:"unknown,omitempty"`
}

// Changes are the steps that Apply does, without the advice.
func (p *Plan) Changes() (out []Step) {
	for _, s := range p.Steps {
		if !s.Advice {
			out = append(out, s)
		}
	}
	return out
}

// Missing lists what this process lacks for the steps, each once with the steps that need it.
func (p *Plan) Missing() (out []string) {
	by := map[string][]string{}
	var order []string
	for _, s := range p.Changes() {
		if s.Missing == "" {
			continue
		}
		if by[s.Missing] == nil {
			order = append(order, s.Missing)
		}
		by[s.Missing] = append(by[s.Missing], s.What)
	}
	for _, m := range order {
		out = append(out, fmt.Sprintf("%s, for: %s", m, strings.Join(by[m], ", ")))
	}
	return out
}

// String is the plan as a table with its reasons below.
func (p Plan) String() string {
	var b strings.Builder
	b.WriteString(subject(p.Interface))
	if p.Driver != "" {
		fmt.Fprintf(&b, " (%s)", p.Driver)
	}
	changes := p.Changes()
	advice := len(p.Steps) - len(changes)
	switch {
	case len(p.Steps) == 0:
		b.WriteString(": nothing to change\n")
	case len(changes) == 0:
		b.WriteString(": nothing to change; advice:\n")
	default:
		b.WriteString("\n")
	}
	if len(p.Steps) > 0 {
		b.WriteByte('\n')
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		fmt.Fprint(w, "  setting\tnow\twanted\tneeds\n")
		for _, s := range p.Steps {
			needs := s.Needs
			switch {
			case s.Advice:
				needs = "advice"
			case s.Missing != "":
				needs = "MISSING: " + s.Missing
			}
			fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", s.What, short(s.Now), short(s.Wanted), needs)
		}
		w.Flush()
		b.WriteByte('\n')
		for _, s := range p.Steps {
			host.Fill(&b, 100, "  ", "    ", s.What+": "+s.Why)
			fmt.Fprintf(&b, "      %s\n", s.Command)
		}
	}
	if advice > 0 && len(changes) > 0 {
		b.WriteString("\n  Advice is not applied: it is yours to decide.\n")
	}
	for _, u := range p.Unknown {
		fmt.Fprintf(&b, "  unknown: %s: %s\n", u.What, u.Why)
	}
	return b.String()
}

// short cuts a long value (a table of RSS) for people.
func short(s string) string {
	if len(s) > 40 {
		return s[:37] + "..."
	}
	return s
}
