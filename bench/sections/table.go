package sections

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/engine"
)

// newLines are lines of text, 80 columns wide.
func newLines(w io.Writer) *paired.Lines { return &paired.Lines{W: w, Label: 9, Width: 80} }

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
	does := []string{"sends", "receives", "sends and receives"}[1:]
	switch {
	case s.Send && !s.Receive:
		does = []string{"sends"}
	case s.Send:
		does = does[1:]
	}
	n := "messages"
	if s.Iterations > 0 {
		n = fmt.Sprintf("%d messages", s.Iterations)
	}
	return fmt.Sprintf("%s: %s at %s, %s: %s %s of %d bytes over %s", s.Path, s.Interface, s.Address, core(s.Core),
		does[0], n, s.Size, s.Protocol)
}

// Table writes the plan for people, 80 columns wide, with the changes that Fit made for it.
func (p *Plan) Table(w io.Writer, changes []Change) error {
	t := newLines(w)
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

// table writes lines under a head, if there are any.
func table(p *paired.Lines, head string, lines []string) {
	for i, l := range lines {
		if i == 0 {
			p.Line("\n%s", head)
		}
		p.Line("%s", l)
	}
}

// Table writes the result for people, 80 columns wide.
func (r *Result) Table(w io.Writer) error {
	p := newLines(w)
	r.Head(p, [2]string{"file", r.Plan.File}, [2]string{"machine", r.Machine.Summary()})
	for _, c := range r.Changes {
		p.Field("instead", within(r.Plan.File, c.String()))
	}
	r.packets(p)
	r.account(p)
	var lines []string
	for i := range r.Latency {
		x := &r.Latency[i]
		for _, y := range []struct {
			name string
			l    *paired.Latency
		}{{"call", x.Call}, {"one way", x.OneWay}, {"there and back", x.Round}} {
			if l := y.l; l != nil {
				lines = append(lines, fmt.Sprintf("%-20s %8d %8s %8s %8s %8s %8s",
					strings.TrimSpace(fmt.Sprintf("%4d %s", x.Payload, y.name)),
					x.Sent, digits(l.P50), digits(l.P90), digits(l.P99), digits(l.P999), digits(l.Max)))
			}
		}
		if x.Lost > 0 {
			lines = append(lines, fmt.Sprintf("%4d lost             %8d", x.Payload, x.Lost))
		}
	}
	table(p, fmt.Sprintf("%-20s %8s %8s %8s %8s %8s %8s", "latency, us", "sent", "p50", "p90", "p99", "p99.9", "max"),
		lines)
	r.messages(p)
	skip := len(r.Changes)
	if len(r.Notes) > skip {
		p.Line("")
	}
	for _, n := range r.Notes[skip:] {
		p.Field("note", n)
	}
	return p.Err
}

// text is the number, its rates, and the bytes of each and how many came in a burst.
func (n amount) text(bursts uint64) string {
	each := "-"
	if bursts > 0 {
		each = digits(float64(n.packets) / float64(bursts))
	}
	return fmt.Sprintf("%12d %8s %8s %6d %9s", n.packets, digits(n.mops()), strings.TrimSuffix(n.gbps(), " Gb/s"),
		n.size(), each)
}

func (r *Result) packets(p *paired.Lines) {
	const head = "%-20s %12s %8s %8s %6s %9s"
	var sent, received, odd []string
	for i := range r.Sent {
		s := &r.Sent[i]
		sent = append(sent, fmt.Sprintf("%-20.20s %s", s.Name, s.amount().text(s.Bursts)))
	}
	strange := false
	for i := range r.Received {
		x := &r.Received[i]
		received = append(received, fmt.Sprintf("%-20.20s %s %8d", x.Name, x.amount().text(x.Bursts), x.MaxBurst))
		odd = append(odd, fmt.Sprintf("%-20.20s %12d %12d %10d %10d", x.Name, x.Duplicates, x.Late, x.Damaged,
			x.Foreign))
		strange = strange || x.Duplicates+x.Late+x.Damaged+x.Foreign > 0
	}
	table(p, fmt.Sprintf(head, "sent", "packets", "Mpps", "Gb/s", "bytes", "per burst"), sent)
	table(p, fmt.Sprintf(head+" %8s", "received", "packets", "Mpps", "Gb/s", "bytes", "per burst", "at most"), received)
	if strange {
		table(p, fmt.Sprintf("%-20s %12s %12s %10s %10s", "disorder", "duplicate", "late", "damaged", "foreign"), odd)
	}
	for i := range r.Received {
		if text := countsText(r.Received[i].Stages); text != "" {
			p.Field("batches", r.Received[i].Name+": "+text)
		}
	}
	for i := range r.Received {
		if x := &r.Received[i]; x.Drops.Total() > 0 {
			p.Field("dropped", x.Name+": "+dropsText(&x.Drops))
		}
	}
}

func (r *Result) account(p *paired.Lines) {
	a := r.Account
	if a == nil {
		return
	}
	p.Line("")
	text := fmt.Sprintf("%d sent = %d received + %d lost", a.Sent, a.Received, a.Lost)
	switch {
	case a.Lost == 0 && a.Drops.Total() == 0:
	case a.Exact():
		text += ", all of them dropped for a reason: " + dropsText(&a.Drops)
	default:
		text += fmt.Sprintf("; dropped by the ports, of ours and of others: %s; left to the kernel: %d; of ours "+
			"without a reason: %d",
			dropsText(&a.Drops), a.Kernel, a.Unattributed)
	}
	p.Field("account", text)
	if a.Drops[engine.DropQueueFull]+a.Drops[engine.DropNoBuffers]+a.Drops[engine.DropKernel] > 0 &&
		!slices.ContainsFunc(r.Plan.Senders, func(s Sender) bool { return s.Rate > 0 }) {
		p.Field("hint", fmt.Sprintf("senders without a rate send what they can: --set "+
			"'interfaces[%s].tx.queues[*].rate=1Gbps' paces them",
			r.Plan.Senders[0].Interface))
	}
}

func (r *Result) messages(p *paired.Lines) {
	const columns = "%-22.22s %11s %11s %8s %8s %7s %7s"
	var lines []string
	for i := range r.Sockets {
		m, n := &r.Sockets[i], r.Sockets[i].amount()
		l := paired.Latency{}
		if m.Latency != nil {
			l = *m.Latency
		}
		at := func(v float64) string { return strings.ReplaceAll(known(m.Latency != nil, digits(v)), "?", "-") }
		lines = append(lines, fmt.Sprintf(columns, m.name()+", "+m.Protocol, elsewhere(!m.Here || r.both(), m.Sent),
			elsewhere(m.Here, m.Packets),
			digits(n.mops()), strings.TrimSuffix(n.gbps(), " Gb/s"), at(l.P50), at(l.P99)))
	}
	table(p, fmt.Sprintf(columns, "messages", "sent", "received", "Mop/s", "Gb/s", "p50 us", "p99 us"), lines)
	for i := range r.Sockets {
		m := &r.Sockets[i]
		switch {
		case !m.Here:
			continue
		case r.both():
			lost := m.Sent - min(m.Unique, m.Sent)
			text := fmt.Sprintf("%s: %d sent = %d received + %d lost", m.name(), m.Sent, m.Unique, lost)
			if lost > 0 {
				text += ", dropped: " + dropsText(&m.Drops)
			}
			p.Field("account", text)
		case m.Missing > 0:
			p.Field("missing", fmt.Sprintf("%s: %d by their numbers", m.name(), m.Missing))
		}
		if m.Duplicates+m.Late+m.Damaged+m.Foreign > 0 || m.Rest > 0 {
			p.Field("disorder",
				fmt.Sprintf("%s: %d duplicates, %d late, %d damaged, %d of other programs, %d bytes of a message "+
					"that was cut off",
					m.name(), m.Duplicates, m.Late, m.Damaged, m.Foreign, m.Rest))
		}
	}
}

// elsewhere writes a number that this process knows.
func elsewhere(here bool, n uint64) string {
	if !here {
		return "elsewhere"
	}
	return fmt.Sprint(n)
}
