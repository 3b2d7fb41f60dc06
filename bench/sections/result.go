package sections

import (
	"context"
	"errors"
	"fmt"
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
	// Refused is how many packets were given to queues, part of Sent, that say that they have not
	// left.
	Refused uint64
}

// Exact reports whether every packet that was sent came or was dropped for a reason that is known,
// and nothing else was dropped.
func (a *Account) Exact() bool { return a.Lost == a.Drops.Total() }

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
		nothing("bench_tx and bench_rx", a.Sent,
			" (dropped: %s; left to the kernel: %d; unattributed: %d): check the addresses of the packets, the "+
				"flows, and the link", dropsText(&a.Drops), a.Kernel, a.Unattributed)
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
		if m.Here && m.Received == 0 {
			nothing(fmt.Sprintf("%s, from %s to %s", m.Section, m.From, m.To), m.Sent, "")
		}
	}
	return errors.Join(errs...)
}

// measure makes one row, of one run of f. Without a figure there is none.
func (x *runner) measure(ctx context.Context, name, what string, unit paired.Unit, unchecked string,
	f func(context.Context) (paired.Sample, error)) (*paired.Row, error) {
	row, err := paired.Run(ctx, paired.Plan{Name: name, Unit: unit, Pairs: 1, Warmup: -1, Seed: x.gen.Uint64() >> 11,
		Gate: x.o.Gate,
		Ours: paired.Contender{Name: "penstock", Unchecked: unchecked, Run: f}})
	if errors.Is(err, ErrNothing) {
		return nil, nil
	}
	if row != nil {
		row.What = what
	}
	return row, err
}

// alone is a row of one sample that was taken together with others.
func alone(name, what string, size uint64, value float64, verified uint64, unchecked, note string) (paired.Row, bool) {
	s, err := paired.Summarize([]float64{value})
	if err != nil || !(value > 0) {
		return paired.Row{}, false
	}
	side := paired.Side{Name: "penstock", Samples: []float64{value}, Stats: &s, Verified: verified,
		Unchecked: unchecked}
	if verified == 0 {
		side.Unverified = 1
	}
	return paired.Row{Name: name, What: what, Size: size, Unit: paired.MopsPerSec, Better: paired.MopsPerSec.Better(),
		Ours: side, Note: note}, true
}

// rate is a number in d, in millions a second; 0 where there is no time.
func rate(n uint64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / 1e6 / d.Seconds()
}

// addRaw enters what senders and receivers counted.
func (r *Result) addRaw(o *office, receivers []*receiver, senders []*sender, c *counts, took time.Duration) {
	for _, s := range senders {
		r.Sent = append(r.Sent, s.out)
	}
	for _, x := range receivers {
		x.out.Drops, x.out.Stages = c.queues[x.r.name()], c.stages[x.r.name()]
		if x.out.Took == 0 && x.out.Packets > 0 {
			x.out.Took = took // all came at once
		}
		r.Received = append(r.Received, x.out)
	}
	if len(senders) > 0 && len(receivers) > 0 {
		a := &Account{Drops: c.drops, Kernel: c.kernel, Received: o.total()}
		for _, s := range r.Sent {
			a.Sent += s.Packets
			a.Refused += s.Packets - min(s.Left, s.Packets)
		}
		a.Lost = a.Sent - min(a.Received, a.Sent)
		if known := c.drops.Total() + c.kernel; known < a.Lost {
			a.Unattributed = a.Lost - known
		}
		r.Account = a
	}
	if missing, n := o.gaps(); n > 0 {
		r.Notes = append(r.Notes,
			fmt.Sprintf("packets of %d senders of other processes of penstock came, by their numbers %d are missing "+
				"between the first and the last", n, missing))
	}
	if n := o.unlisted.Load(); n > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%d packets were of senders beyond the first %d, and count as foreign", n,
			maxStrange))
	}
}

// rawSample is the rate of all packets that came, or that left where there are no receivers.
func (r *Result) rawSample() (paired.Sample, error) {
	var s paired.Sample
	n, took := uint64(0), time.Duration(0)
	for i := range r.Received {
		n += r.Received[i].Packets
		took = max(took, r.Received[i].Took)
		s.Verified += r.Received[i].Checked
	}
	if len(r.Received) == 0 {
		for i := range r.Sent {
			n += r.Sent[i].Left
			took = max(took, r.Sent[i].Took)
		}
	}
	if s.Value = rate(n, took); !(s.Value > 0) {
		return s, ErrNothing
	}
	return s, nil
}

// rawRows are the rows of senders and receivers.
func (r *Result) rawRows() {
	for i := range r.Sent {
		s := &r.Sent[i]
		note := fmt.Sprintf("%d packets in %d bursts, %s", s.Packets, s.Bursts, gbps(s.Bytes, s.Took))
		if row, ok := alone(fmt.Sprintf("sent by %s (%s)", s.Name, s.Sender), "bench_tx", perPacket(s.Bytes, s.Packets),
			rate(s.Packets, s.Took), 0, "a sender looks at nothing: receivers do", note); ok {
			r.Rows = append(r.Rows, row)
		}
	}
	for i := range r.Received {
		x := &r.Received[i]
		unchecked := ""
		if x.Checked == 0 {
			unchecked = "packets of other programs"
		}
		note := fmt.Sprintf("%d packets in %d bursts of up to %d, %s", x.Packets, x.Bursts, x.MaxBurst,
			gbps(x.Bytes, x.Took))
		if text := countsText(x.Stages); text != "" {
			note += "; batches: " + text
		}
		if x.Drops.Total() > 0 {
			note += "; dropped by the queue: " + x.Drops.String()
		}
		if row, ok := alone(fmt.Sprintf("received by %s (%s)", x.Name, x.Receiver), "bench_rx",
			perPacket(x.Bytes, x.Packets), rate(x.Packets, x.Took), x.Checked, unchecked, note); ok {
			r.Rows = append(r.Rows, row)
		}
	}
}

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

func perPacket(bytes, packets uint64) uint64 { return bytes / max(packets, 1) }

// gbps is a rate in words.
func gbps(bytes uint64, d time.Duration) string {
	if d <= 0 {
		return "in no time"
	}
	return fmt.Sprintf("%s Gb/s", digits(float64(bytes)*8/1e9/d.Seconds()))
}

// digits writes a figure with three digits that mean something.
func digits(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

// inMicroseconds are the percentiles of a histogram in nanoseconds.
func inMicroseconds(h *metrics.HistogramSnapshot) *paired.Latency {
	if h.Count == 0 {
		return nil
	}
	q := func(p float64) float64 { return float64(h.Quantile(p)) / 1e3 }
	return &paired.Latency{N: int(h.Count), P50: q(0.5), P90: q(0.9), P99: q(0.99), P999: q(0.999),
		Max: float64(h.Max) / 1e3}
}

// dropsText lists reasons, or says that there are none.
func dropsText(d *engine.Drops) string {
	if d.Total() == 0 {
		return "none"
	}
	return strings.TrimSpace(d.String())
}
