package system

import (
	"fmt"
	"strings"

	"github.com/penstock-io/penstock/config"
)

// columns is the width of Plan.Text.
const columns = 80

// Text is the plan for people, in lines of up to 80 columns.
func (p *Plan) Text() string {
	t := &planText{}
	name := p.File
	if name == "" {
		name = "the configuration"
	}
	t.line(0, "plan of "+name)
	if p.MasterCore >= 0 {
		t.line(1, fmt.Sprintf("opened on core %d", p.MasterCore))
	}
	if len(p.Regions) > 0 {
		t.line(0, "memory")
		for i := range p.Regions {
			t.line(1, p.Regions[i].text())
		}
	}
	if g := p.GPU; g != nil {
		t.line(0, "accelerators")
		for _, d := range g.Devices {
			t.line(1, d)
		}
		if g.Note != "" {
			t.line(1, g.Note)
		}
	}
	if len(p.Interfaces) > 0 {
		t.line(0, "interfaces")
		for i := range p.Interfaces {
			p.Interfaces[i].text(t)
		}
	}
	if len(p.Pollers) > 0 {
		t.line(0, "pollers")
		for _, x := range p.Pollers {
			on := "on any core"
			if x.Core >= 0 {
				on = fmt.Sprintf("on core %d", x.Core)
			}
			t.line(1, fmt.Sprintf("%s: %s, %s, serves %s", x.Name, on, x.Mode, strings.Join(x.Queues, ", ")))
		}
	}
	if p.Node != nil {
		p.Node.text(t)
	}
	if p.Metrics != "" {
		t.line(0, "metrics at http://"+p.Metrics+"/metrics")
	}
	if len(p.Applications) > 0 {
		t.line(0, "applications")
		for i := range p.Applications {
			t.line(1, p.Applications[i].text())
		}
	}
	for _, l := range []struct {
		title string
		all   config.Diagnostics
	}{{"notes", p.Notes}, {"missing", p.Missing}} {
		if len(l.all) > 0 {
			t.line(0, l.title)
		}
		for i := range l.all {
			d := &l.all[i]
			s := d.Message
			if !d.At.IsZero() {
				s = fmt.Sprintf("line %d: %s", d.At.Line, s)
			}
			if d.Expected != "" {
				s += "; expected " + d.Expected
			}
			if d.Hint != "" {
				s += "; " + d.Hint
			}
			t.line(1, s)
		}
	}
	if len(p.Missing) > 0 {
		t.line(0, "this cannot be opened here")
	}
	return t.b.String()
}

// planText writes lines, which it breaks at spaces.
type planText struct{ b strings.Builder }

func (t *planText) line(depth int, s string) {
	indent := strings.Repeat("  ", depth)
	at := 0
	for i, w := range strings.Fields(s) {
		n := len([]rune(w))
		switch {
		case i == 0:
			t.b.WriteString(indent)
			at = len(indent)
		case at+1+n > columns:
			t.b.WriteString("\n" + indent + "    ")
			at = len(indent) + 4
		default:
			t.b.WriteByte(' ')
			at++
		}
		t.b.WriteString(w)
		at += n
	}
	t.b.WriteByte('\n')
}

func (r *RegionPlan) text() string {
	s := fmt.Sprintf("%s: %d slots of %s, %s", r.Name, r.Slots, config.Size(r.SlotSize), r.Kind)
	if r.Area != "" {
		s += ", in the memory " + r.Area
	}
	if r.Device != "" && !r.Given {
		device, _, _ := strings.Cut(r.Device, ":")
		s += " of " + device
	}
	if r.Given {
		s += ", of the program"
	} else {
		if r.Node >= 0 {
			s += fmt.Sprintf(", NUMA node %d", r.Node)
		}
		s += fmt.Sprintf(", %.1f MiB", float64(r.Bytes)/(1<<20))
	}
	if len(r.Uses) > 0 {
		s += " (" + strings.Join(r.Uses, ", ") + ")"
	}
	return s
}

func (p *InterfacePlan) text(t *planText) {
	s := fmt.Sprintf("%s: %s at %s", p.Name, p.Engine, p.Address)
	if p.MTU > 0 {
		s += fmt.Sprintf(", MTU %d", p.MTU)
	}
	if p.Isolated {
		s += ", the rest stays with the kernel"
	}
	if p.Memory != "" {
		s += ", memory " + p.Memory
	}
	if len(p.Options) > 0 {
		s += ", " + strings.Join(p.Options, " ")
	}
	t.line(1, s)
	for _, q := range p.Rx {
		s := fmt.Sprintf("receive queue %d (%s): %s, %d deep", q.ID, q.Name, strings.Join(q.Regions, " + "), q.Depth)
		if len(q.Regions) == 2 {
			s += fmt.Sprintf(", split at %d", q.SplitAt)
		}
		s += fmt.Sprintf(", bursts of %d", q.Burst)
		if q.Timeout > 0 {
			s += fmt.Sprintf(" within %v", q.Timeout)
		}
		if q.Poller == "" {
			s += ", the application polls"
		} else {
			s += ", poller " + q.Poller
		}
		if len(q.Stages) > 0 {
			s += ", stages " + strings.Join(q.Stages, ", ")
		}
		t.line(2, s)
		if q.Copies != "" {
			t.line(3, q.Copies)
		}
	}
	for _, q := range p.Tx {
		s := fmt.Sprintf("transmit queue %d (%s): %s, %d deep", q.ID, q.Name, strings.Join(q.Regions, " + "), q.Depth)
		if q.Rate > 0 {
			s += fmt.Sprintf(", at most %s", config.Rate(q.Rate))
		}
		if q.Headroom > 0 {
			s += fmt.Sprintf(", headroom %d", q.Headroom)
		}
		if q.Timed {
			s += ", at given times"
		}
		if len(q.Offloads) > 0 {
			s += ", " + strings.Join(q.Offloads, " ")
		}
		t.line(2, s)
		if q.Copies != "" {
			t.line(3, q.Copies)
		}
	}
	for _, f := range p.Flows {
		t.line(2, fmt.Sprintf("flow %s, id %d: %s", f.Name, f.ID, f.Rule))
	}
}

func (n *NodePlan) text(t *planText) {
	name := n.Name
	if name == "" {
		name = "(named by the program)"
	}
	t.line(0, "node "+name)
	if n.Identity != "" {
		t.line(1, "identity in "+n.Identity)
	}
	for _, l := range n.Listen {
		s := l.Address + ": "
		switch {
		case l.Encrypted:
			s += "TLS"
		case l.Local:
			s += "for this machine"
		default:
			s += "PLAINTEXT, for everybody who reaches this machine"
		}
		t.line(1, s)
	}
	if len(n.Paths) > 0 {
		t.line(1, "paths "+strings.Join(n.Paths, ", "))
	}
	if x := n.Share; x != nil {
		s := "shares " + x.Path
		if x.Writable {
			s += ", writable"
			if x.MaxBytes > 0 {
				s += fmt.Sprintf(" up to %s", config.Size(x.MaxBytes))
			}
		}
		t.line(1, s)
	}
	for _, x := range n.Peers {
		t.line(1, fmt.Sprintf("connects to %s at %s", x.Name, x.Address))
	}
}
