package sections

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/engine"
)

// columns is the width of tables.
const columns = 80

// lines are lines of text with what a result says.
type lines struct{ paired.Lines }

func newLines(w io.Writer) *lines {
	return &lines{paired.Lines{W: w, Label: 9, Width: columns}}
}

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
func known(s string) string {
	if s == "" {
		return "?"
	}
	return s
}

func address(a netip.Addr) string {
	if !a.IsValid() {
		return "?"
	}
	return a.String()
}

// Table writes the plan for people, 80 columns wide, with the changes that Fit made for it.
func (p *Plan) Table(w io.Writer, changes []Change) error {
	t := newLines(w)
	t.Line("plan of the bench sections of %s", p.File)
	t.Line("")
	for i := range p.Senders {
		s := &p.Senders[i]
		text := fmt.Sprintf("%s: %s (%s at %s), %s: packets of %d bytes (%d + %d)", s.Path, s.name(), s.Engine,
			known(s.Address), core(s.Core), s.Size(), s.Header+s.Overhead, s.Payload)
		text += fmt.Sprintf(" in bursts of %d, from %s port %v to %s port %v, %v", s.Batch, address(s.Src), s.SrcPorts,
			address(s.Dst), s.DstPorts, s.EthDst)
		if s.Rate > 0 {
			text += fmt.Sprintf(", at %v", s.Rate)
		}
		if s.Sequence >= 0 {
			text += fmt.Sprintf(", numbers at byte %d of the payload from %d on", s.Sequence, s.Start)
		}
		if s.Number < 0 && room(s.Payload, s.Sequence) < 0 {
			text += ", too short for numbers of ours"
		}
		t.Field("send", text)
	}
	for i := range p.Receivers {
		r := &p.Receivers[i]
		text := fmt.Sprintf("%s: %s (%s at %s), %s: bursts of %d", r.Path, r.name(), r.Engine, known(r.Address),
			core(r.Core), r.Batch)
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
		t.Field("receive", text)
	}
	for i := range p.Sockets {
		s := &p.Sockets[i]
		var does []string
		if s.Send {
			does = append(does, "sends")
		}
		if s.Receive {
			does = append(does, "receives")
		}
		n := "messages"
		if s.Iterations > 0 {
			n = fmt.Sprintf("%d messages", s.Iterations)
		}
		t.Field(s.Role, fmt.Sprintf("%s: %s at %s, %s: %s %s of %d bytes over %s", s.Path, s.Interface, s.Address,
			core(s.Core), strings.Join(does, " and "), n, s.Size, s.Protocol))
	}
	if l := p.Latency; l != nil {
		way := "one way"
		if l.Back {
			way = "one way, and there and back"
		}
		t.Field("latency", fmt.Sprintf("%s: from %s to %s, %s: one packet at a time, %s, payloads %s", l.Path,
			l.Tx.name(), l.Rx.name(), core(l.Tx.Core), way, strings.Trim(fmt.Sprint(l.Payloads), "[]")))
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

// Table writes the result for people, 80 columns wide.
func (r *Result) Table(w io.Writer) error {
	p := newLines(w)
	p.Line("bench stream, %s, %.1f s", r.Began.UTC().Format("2006-01-02 15:04 UTC"), r.Took)
	p.Line("")
	p.Field("file", r.Plan.File)
	m, virtual := r.Machine, ""
	if m.Virtual {
		virtual = ", virtual"
	}
	p.Field("machine", fmt.Sprintf("%s, %d cores%s, Linux %s, load %.2f", m.CPU, m.Cores, virtual, m.Kernel, m.Load[0]))
	if d := r.Disturbance(); d != "" {
		p.Field("others", d)
	}
	for _, c := range r.Changes {
		p.Field("instead", within(r.Plan.File, c.String()))
	}
	p.sent(r)
	p.received(r)
	p.account(r)
	p.latencies(r)
	p.messages(r)
	skip := len(r.Changes)
	if len(r.Notes) > skip {
		p.Line("")
	}
	for _, n := range r.Notes[skip:] {
		p.Field("note", n)
	}
	return p.Err
}

func (p *lines) sent(r *Result) {
	for i := range r.Sent {
		if i == 0 {
			p.Line("")
			p.Line("%-20s %12s %8s %8s %6s %9s", "sent", "packets", "Mpps", "Gb/s", "bytes", "per burst")
		}
		s := &r.Sent[i]
		p.Line("%-20.20s %12d %8s %8s %6d %9s", s.Name, s.Packets, digits(rate(s.Packets, s.Took)),
			strings.TrimSuffix(gbps(s.Bytes, s.Took), " Gb/s"), perPacket(s.Bytes, s.Packets),
			each(s.Packets, s.Bursts))
	}
}

func each(packets, bursts uint64) string {
	if bursts == 0 {
		return "-"
	}
	return digits(float64(packets) / float64(bursts))
}

func (p *lines) received(r *Result) {
	odd := false
	for i := range r.Received {
		if i == 0 {
			p.Line("")
			p.Line("%-20s %12s %8s %8s %6s %9s %8s", "received", "packets", "Mpps", "Gb/s", "bytes", "per burst",
				"at most")
		}
		x := &r.Received[i]
		p.Line("%-20.20s %12d %8s %8s %6d %9s %8d", x.Name, x.Packets, digits(rate(x.Packets, x.Took)),
			strings.TrimSuffix(gbps(x.Bytes, x.Took), " Gb/s"), perPacket(x.Bytes, x.Packets),
			each(x.Packets, x.Bursts), x.MaxBurst)
		odd = odd || x.Duplicates+x.Late+x.Damaged+x.Foreign > 0
	}
	if odd {
		p.Line("")
		p.Line("%-20s %12s %12s %10s %10s", "disorder", "duplicate", "late", "damaged", "foreign")
		for _, x := range r.Received {
			p.Line("%-20.20s %12d %12d %10d %10d", x.Name, x.Duplicates, x.Late, x.Damaged, x.Foreign)
		}
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

func (p *lines) account(r *Result) {
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
			"without a reason: %d", dropsText(&a.Drops), a.Kernel, a.Unattributed)
	}
	p.Field("account", text)
	if a.Drops[engine.DropQueueFull]+a.Drops[engine.DropNoBuffers]+a.Drops[engine.DropKernel] > 0 &&
		!slices.ContainsFunc(r.Plan.Senders, func(s Sender) bool {
			return s.Rate > 0
		}) {
		p.Field("hint", fmt.Sprintf("senders without a rate send what they can: --set "+
			"'interfaces[%s].tx.queues[*].rate=1Gbps' paces them", r.Plan.Senders[0].Interface))
	}
}
