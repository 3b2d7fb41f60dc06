package sections

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/metrics"
)

// Result is what Run found: a report, which is what is written to a file, and the counts behind its
// rows.
type Result struct {
	*paired.Report
	Plan     *Plan
	Changes  []Change
	Sent     []Sent
	Received []Received
	Account  *Account // of bench_tx and bench_rx, where both ran
	Sockets  []Messages
	Latency  []LatencyResult
}

func newResult(p *Plan, changes []Change, o *Options) *Result {
	r := &Result{Report: paired.NewReport("stream"), Plan: p, Changes: changes}
	r.Method = paired.Method{Alone: 1, Seed: o.Seed, Notes: []string{"the bench sections of " + p.File}}
	for _, c := range changes {
		r.note("instead: %s", c)
	}
	r.Notes = append(r.Notes, p.Notes...)
	return r
}

func (r *Result) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// Account is what became of the packets that the senders of this process sent: Sent = Received +
// Lost.
type Account struct {
	Sent, Received, Lost uint64
	// Drops are what all ports dropped meanwhile, of ours and of others, and Kernel is what they
	// left to the kernel.
	Drops  engine.Drops
	Kernel uint64
	// Unattributed is how many of Lost no port knows anything of.
	Unattributed uint64
}

// Exact reports whether every packet that was sent came or was dropped for a reason that is known,
// and nothing else was dropped.
func (a *Account) Exact() bool { return a.Lost == a.Drops.Total() }

// reasons says what the ports dropped and know nothing of; "": neither.
func (a *Account) reasons() string {
	switch {
	case a.Lost == 0 && a.Drops.Total() == 0:
		return ""
	case a.Exact():
		return ", all of them dropped for a reason: " + dropsText(&a.Drops)
	}
	return fmt.Sprintf("; dropped by the ports, of ours and of others: %s; left to the kernel: %d; of ours without a "+
		"reason: %d", dropsText(&a.Drops), a.Kernel, a.Unattributed)
}

// ErrNothing is wrapped by the error of a run in which a section had only loss.
var ErrNothing = errors.New("sections: no packet came")

// lossOnly is nil, or an error that wraps ErrNothing and lists the sections of which nothing
// arrived.
func (r *Result) lossOnly() error {
	var errs []error
	nothing := func(what string, sent uint64, format string, args ...any) {
		if sent > 0 {
			what += fmt.Sprintf(": all %d that were sent were lost", sent)
		}
		errs = append(errs, fmt.Errorf("%w: %s%s", ErrNothing, what, fmt.Sprintf(format, args...)))
	}
	var came, left uint64
	for i := range r.Received {
		came += r.Received[i].Packets
	}
	for i := range r.Sent {
		left += r.Sent[i].Left
	}
	switch a := r.Account; {
	case a != nil && a.Received == 0:
		nothing("bench_tx and bench_rx", a.Sent, " (dropped: %s; left to the kernel: %d; unattributed: %d): check the "+
			"addresses of the packets, the flows, and the link", dropsText(&a.Drops), a.Kernel, a.Unattributed)
	case a == nil && len(r.Received) > 0 && came == 0:
		nothing("bench_rx", 0, ": start the sender in the meantime, and check its addresses and the flows")
	case a == nil && len(r.Sent) > 0 && left == 0:
		nothing("bench_tx", 0, ": none left its queue")
	}
	for _, l := range r.Latency {
		if l.Sent > 0 && l.Lost == l.Sent {
			nothing(fmt.Sprintf("bench_latency, packets of %d bytes", l.Payload), l.Sent, "")
		}
	}
	for _, m := range r.Sockets {
		if m.Here && m.Packets == 0 {
			nothing(fmt.Sprintf("%s, from %s to %s", m.Section, m.From, m.To), m.Sent, "")
		}
	}
	return errors.Join(errs...)
}

const nothingReceived = "nothing is received here"

// measure makes one row, of one run of f. Without a figure there is none.
func (x *runner) measure(ctx context.Context, name, what string, unit paired.Unit, unchecked string,
	f func(context.Context) (paired.Sample, error)) (*paired.Row, error) {
	row, err := paired.Run(ctx, paired.Plan{Name: name, Unit: unit, Pairs: 1, Warmup: -1, Seed: x.gen.Uint64() >> 11,
		Gate: x.o.Gate, Ours: paired.Contender{Name: "penstock", Unchecked: unchecked, Run: f}})
	if errors.Is(err, ErrNothing) {
		return nil, nil
	}
	if row != nil {
		row.What = what
	}
	return row, err
}

// amount is a number of packets or messages, and in what time they came or were sent.
type amount struct {
	packets, bytes uint64
	took           time.Duration
	verified       uint64 // bytes
}

// mops is how many there were, in millions a second; 0 where there is no time.
func (n amount) mops() float64 {
	if n.took <= 0 {
		return 0
	}
	return float64(n.packets) / 1e6 / n.took.Seconds()
}

// gbps is the rate of their bytes in words.
func (n amount) gbps() string {
	if n.took <= 0 {
		return "in no time"
	}
	return digits(float64(n.bytes)*8/1e9/n.took.Seconds()) + " Gb/s"
}

func (x *Received) amount() amount { return amount{x.Packets, x.Bytes, x.Took, x.Checked} }

// amount is what came, or what was sent where the receiver is elsewhere.
func (m *Messages) amount() amount {
	if m.Here {
		return amount{m.Packets, m.Packets * uint64(m.Size), m.Took, m.Checked}
	}
	return amount{packets: m.Sent, bytes: m.Sent * uint64(m.Size), took: m.SentTook}
}

// sample is the rate of all that came together, or of all that was sent where nothing is received.
func sample(came, sent []amount) (paired.Sample, error) {
	if len(came) == 0 {
		came = sent
	}
	var n amount
	for _, x := range came {
		n.packets += x.packets
		n.took = max(n.took, x.took)
		n.verified += x.verified
	}
	s := paired.Sample{Value: n.mops(), Verified: n.verified}
	if !(s.Value > 0) {
		return s, ErrNothing
	}
	return s, nil
}

// rawSample is the rate of all packets that came, or that left where there are no receivers.
func (r *Result) rawSample() (paired.Sample, error) {
	var came, left []amount
	for i := range r.Received {
		came = append(came, r.Received[i].amount())
	}
	for _, s := range r.Sent {
		left = append(left, amount{packets: s.Left, took: s.Took})
	}
	return sample(came, left)
}

// socketSample is the rate of all messages that came, or that were sent where nothing is received.
func (r *Result) socketSample() (paired.Sample, error) {
	var came, sent []amount
	for i := range r.Sockets {
		if m := &r.Sockets[i]; m.Here {
			came = append(came, m.amount())
		} else {
			sent = append(sent, m.amount())
		}
	}
	return sample(came, sent)
}

// remarks are what the note of a row says of a receiver besides its rate.
func (x *Received) remarks() string {
	note := ""
	if text := countsText(x.Stages); text != "" {
		note += "; batches: " + text
	}
	if x.Drops.Total() > 0 {
		note += "; dropped: " + x.Drops.String()
	}
	if x.Duplicates+x.Late+x.Damaged+x.Foreign > 0 {
		note += fmt.Sprintf("; %d duplicates, %d late, %d damaged, %d of other programs", x.Duplicates, x.Late,
			x.Damaged, x.Foreign)
	}
	if x.Rest > 0 {
		note += fmt.Sprintf("; %d bytes of a message that was cut off", x.Rest)
	}
	return note
}

// alone adds a row of one sample that was taken together with others, if there is a rate.
func (r *Result) alone(name, what string, n amount, unchecked, note string) *paired.Row {
	s, err := paired.Summarize([]float64{n.mops()})
	if err != nil || !(n.mops() > 0) {
		return nil
	}
	side := paired.Side{Name: "penstock", Samples: []float64{n.mops()}, Stats: &s, Verified: n.verified}
	if n.verified == 0 {
		side.Unverified, side.Unchecked = 1, unchecked
	}
	r.Rows = append(r.Rows, paired.Row{Name: name, What: what, Size: n.bytes / max(n.packets, 1),
		Unit: paired.MopsPerSec, Better: paired.MopsPerSec.Better(), Ours: side, Note: note})
	return &r.Rows[len(r.Rows)-1]
}

// addRaw enters what senders and receivers counted.
func (r *Result) addRaw(f *direction, c *counts, took time.Duration) {
	for _, s := range f.from {
		r.Sent = append(r.Sent, s.out)
	}
	for _, x := range f.receivers {
		x.out.Drops, x.out.Stages = c.queues[x.r.name()], c.stages[x.r.name()]
		if x.out.Took == 0 && x.out.Packets > 0 {
			x.out.Took = took // all came at once
		}
		r.Received = append(r.Received, x.out)
	}
	if len(f.from) > 0 && len(f.receivers) > 0 {
		a := &Account{Drops: c.drops, Kernel: c.kernel, Received: f.l.total()}
		for _, s := range r.Sent {
			a.Sent += s.Packets
		}
		a.Lost = a.Sent - min(a.Received, a.Sent)
		if known := c.drops.Total() + c.kernel; known < a.Lost {
			a.Unattributed = a.Lost - known
		}
		r.Account = a
		r.note("account: %d sent = %d received + %d lost%s", a.Sent, a.Received, a.Lost, a.reasons())
		if a.Drops[engine.DropQueueFull]+a.Drops[engine.DropNoBuffers]+a.Drops[engine.DropKernel] > 0 &&
			!slices.ContainsFunc(r.Plan.Senders, func(s Sender) bool { return s.Rate > 0 }) {
			r.note("hint: senders without a rate send what they can: --set 'interfaces[%s].tx.queues[*].rate=1Gbps' "+
				"paces them", r.Plan.Senders[0].Interface)
		}
	}
	if missing, n := f.l.gaps(); n > 0 {
		r.note("packets of %d senders of other processes of penstock came, by their numbers %d are missing between "+
			"the first and the last",
			n, missing)
	}
	if n := f.l.unlisted.Load(); n > 0 {
		r.note("%d packets were of senders beyond the first %d, and count as foreign", n, maxOthers)
	}
}

// rawRows are the rows of senders and receivers.
func (r *Result) rawRows() {
	for i := range r.Sent {
		s := &r.Sent[i]
		n := amount{packets: s.Packets, bytes: s.Bytes, took: s.Took}
		r.alone(fmt.Sprintf("sent by %s (%s)", s.Name, s.Sender), "bench_tx", n,
			"a sender looks at nothing: receivers do",
			fmt.Sprintf("%d packets in %d bursts, %s", s.Packets, s.Bursts, n.gbps()))
	}
	for i := range r.Received {
		x, n := &r.Received[i], r.Received[i].amount()
		r.alone(fmt.Sprintf("received by %s (%s)", x.Name, x.Receiver), "bench_rx", n, "packets of other programs",
			fmt.Sprintf("%d packets in %d bursts of up to %d, %s", x.Packets, x.Bursts, x.MaxBurst, n.gbps())+
				x.remarks())
	}
}

// socketRows are the rows of the directions between sockets.
func (r *Result) socketRows() {
	for i := range r.Sockets {
		m, n := &r.Sockets[i], r.Sockets[i].amount()
		unchecked := "messages of other programs"
		if !m.Here {
			unchecked = "received by another process"
		}
		got := min(m.Unique, m.Sent)
		note := fmt.Sprintf("%d messages of %d bytes, %s", n.packets, m.Size, n.gbps())
		if m.Here && r.both() {
			note += fmt.Sprintf("; %d sent = %d received + %d lost", m.Sent, got, m.Sent-got)
		}
		if l := m.Latency; l != nil {
			note += fmt.Sprintf("; latency p50 %s us, p99 %s us", digits(l.P50), digits(l.P99))
		}
		if m.Missing > 0 {
			note += fmt.Sprintf("; %d missing by their numbers", m.Missing)
		}
		row := r.alone(fmt.Sprintf("%s to %s over %s (%s)", m.From, m.To, m.Protocol, m.Section), "sockets", n,
			unchecked, note+m.remarks())
		if row != nil && m.Here && r.both() {
			row.Traffic = &paired.Traffic{Sent: m.Sent, Received: got, Lost: m.Sent - got, Duplicates: m.Duplicates,
				Reordered: m.Late, Damaged: m.Damaged, Foreign: m.Foreign}
		}
	}
}

// both reports whether both ends of the sockets were in this process.
func (r *Result) both() bool { return len(r.Plan.Sockets) == 2 }

// traffic is the account as a row tells it.
func (r *Result) traffic() *paired.Traffic {
	a := r.Account
	if a == nil {
		return nil
	}
	t := &paired.Traffic{Sent: a.Sent, Received: min(a.Received, a.Sent), Lost: a.Lost}
	for _, x := range r.Received {
		t.Duplicates += x.Duplicates + x.Drops[engine.DropDuplicate]
		t.Reordered += x.Late
		t.Damaged += x.Damaged
		t.Foreign += x.Foreign
	}
	return t
}

// digits writes a figure with three digits that mean something.
func digits(v float64) string { return paired.Digits(v) }

// latency are the percentiles of a histogram, nil without packets.
func latency(h *metrics.Histogram) *paired.Latency {
	var s metrics.HistogramSnapshot
	h.Snapshot(&s)
	return paired.HistogramLatency(&s)
}

// latencyOf is the latency of all packets that some receivers know.
func latencyOf(all []*receiver) *paired.Latency {
	var h, one metrics.HistogramSnapshot
	for _, r := range all {
		r.latency.Snapshot(&one)
		h.Merge(&one)
	}
	return paired.HistogramLatency(&h)
}

// dropsText lists reasons, or says that there are none.
func dropsText(d *engine.Drops) string {
	if d.Total() == 0 {
		return "none"
	}
	return strings.TrimSpace(d.String())
}
