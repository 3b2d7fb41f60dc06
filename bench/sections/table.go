package sections

import (
	"fmt"
	"io"
	"strings"

	"github.com/penstock-io/penstock/bench/paired"
)

// within shortens a place in a file that was named before: line:column.
func within(file, text string) string {
	if rest, ok := strings.CutPrefix(text, file+":"); ok && file != "" {
		return strings.TrimSpace(rest)
	}
	return text
}

// core writes where something runs.
func core(n int) string {
	if n < 0 {
		return "any core"
	}
	return fmt.Sprintf("core %d", n)
}

// known writes a value, or that it is not there yet.
func known(there bool, s any) string {
	if !there {
		return "?"
	}
	return fmt.Sprint(s)
}

func (p *Place) text() string {
	return fmt.Sprintf("%s: %s (%s at %s), %s", p.Path, p.name(), p.Engine, known(p.Address != "", p.Address),
		core(p.Core))
}

func (s *Sender) text() string {
	text := fmt.Sprintf("%s: packets of %d bytes (%d + %d) in bursts of %d, from %s port %v to %s port %v, %v",
		s.Place.text(), s.Size(),
		s.Header+s.Overhead, s.Payload, s.Batch, known(s.Src.IsValid(), s.Src), s.SrcPorts,
		known(s.Dst.IsValid(), s.Dst), s.DstPorts, s.EthDst)
	if s.Rate > 0 {
		text += fmt.Sprintf(", at %v", s.Rate)
	}
	if s.Sequence >= 0 {
		text += fmt.Sprintf(", numbers at byte %d of the payload from %d on", s.Sequence, s.Start)
	}
	if s.Number < 0 && room(s.Payload, s.Sequence) < 0 {
		text += ", too short for numbers of ours"
	}
	return text
}

func (r *Receiver) text() string {
	text := fmt.Sprintf("%s: bursts of %d", r.Place.text(), r.Batch)
	if r.Timeout > 0 {
		text += fmt.Sprintf(" within %v", r.Timeout)
	}
	text += " into " + strings.Join(r.Regions, " and ")
	if len(r.Regions) == 2 {
		text += fmt.Sprintf(", split at %d", r.SplitAt)
	}
	for _, plan := range r.reorders {
		text += ", batches of " + plan.Name
		if t := plan.DataTypes; t != nil {
			text += fmt.Sprintf(" (%s to %s)", t.Input, t.Output)
		}
	}
	return text
}

func (s *Socket) text() string {
	does := "receives"
	switch {
	case s.Send && s.Receive:
		does = "sends and receives"
	case s.Send:
		does = "sends"
	}
	n := "messages"
	if s.Iterations > 0 {
		n = fmt.Sprintf("%d messages", s.Iterations)
	}
	return fmt.Sprintf("%s: %s at %s, %s: %s %s of %d bytes over %s", s.Path, s.Interface, s.Address, core(s.Core),
		does, n, s.Size, s.Protocol)
}

// Table writes the plan for people, 80 columns wide, with the changes that Fit made for it.
func (p *Plan) Table(w io.Writer, changes []Change) error {
	t := &paired.Lines{W: w, Label: 9, Width: 80}
	t.Line("plan of the bench sections of %s", p.File)
	t.Line("")
	for i := range p.Senders {
		t.Field("send", p.Senders[i].text())
	}
	for i := range p.Receivers {
		t.Field("receive", p.Receivers[i].text())
	}
	for i := range p.Sockets {
		t.Field(p.Sockets[i].Role, p.Sockets[i].text())
	}
	if l := p.Latency; l != nil {
		way := "one way"
		if l.Back {
			way = "one way, and there and back"
		}
		t.Field("latency", fmt.Sprintf("%s: from %s to %s, %s: one packet at a time, %s, payloads %s", l.Path,
			l.Tx.name(), l.Rx.name(),
			core(l.Tx.Core), way, strings.Trim(fmt.Sprint(l.Payloads), "[]")))
	}
	for _, c := range changes {
		t.Field("instead", within(p.File, c.String()))
	}
	for _, n := range p.Notes {
		t.Field("note", n)
	}
	for _, m := range p.Missing {
		t.Field("missing", within(p.File, m.String()))
	}
	return t.Err
}
