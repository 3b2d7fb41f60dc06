package sections

import (
	"fmt"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
)

// socketSample is the rate of all messages that came, or that were sent where nothing is received.
func (r *Result) socketSample() (paired.Sample, error) {
	var s paired.Sample
	n, took := uint64(0), time.Duration(0)
	received := false
	for _, m := range r.Sockets {
		received = received || m.Here
	}
	for _, m := range r.Sockets {
		if m.Here != received {
			continue
		}
		k, d := m.rate()
		n += k
		took = max(took, d)
		s.Verified += m.Checked
	}
	if s.Value = rate(n, took); !(s.Value > 0) {
		return s, ErrNothing
	}
	return s, nil
}

// rate is a number of messages, and in what time they came or were sent.
func (m *Messages) rate() (uint64, time.Duration) {
	switch {
	case !m.Here:
		return m.Sent, m.SentTook
	case m.Took > 0:
		return m.Received, m.Took
	}
	return m.Received, m.SentTook // all came at once
}

func (m *Messages) name() string { return fmt.Sprintf("%s to %s", m.From, m.To) }

func (r *Result) socketRows() {
	for i := range r.Sockets {
		m := &r.Sockets[i]
		n, took := m.rate()
		unchecked := ""
		switch {
		case !m.Here:
			unchecked = "received by another process"
		case m.Checked == 0:
			unchecked = "messages of other programs"
		}
		note := fmt.Sprintf("%d messages of %d bytes, %s", n, m.Size, gbps(n*uint64(m.Size), took))
		if m.Drops.Total() > 0 {
			note += "; dropped: " + m.Drops.String()
		}
		if m.Missing > 0 {
			note += fmt.Sprintf("; %d missing by their numbers", m.Missing)
		}
		row, ok := alone(fmt.Sprintf("%s over %s (%s)", m.name(), m.Protocol, m.Section), "sockets", uint64(m.Size),
			rate(n, took), m.Checked, unchecked, note)
		if !ok {
			continue
		}
		if m.Here && r.both() {
			got := min(m.Unique, m.Sent)
			row.Traffic = &paired.Traffic{Sent: m.Sent, Received: got, Lost: m.Sent - got, Duplicates: m.Duplicates,
				Reordered: m.Late, Damaged: m.Damaged, Foreign: m.Foreign}
		}
		r.Rows = append(r.Rows, row)
	}
}

// both reports whether both ends of the sockets were in this process.
func (r *Result) both() bool { return len(r.Plan.Sockets) == 2 }

func (p *lines) messages(r *Result) {
	for i := range r.Sockets {
		if i == 0 {
			p.Line("")
			p.Line("%-22s %11s %11s %8s %8s %7s %7s", "messages", "sent", "received", "Mop/s", "Gb/s", "p50 us",
				"p99 us")
		}
		m := &r.Sockets[i]
		n, took := m.rate()
		sent, received, p50, p99 := "elsewhere", "elsewhere", "-", "-"
		if !m.Here || r.both() {
			sent = fmt.Sprint(m.Sent)
		}
		if m.Here {
			received = fmt.Sprint(m.Received)
		}
		if l := m.Latency; l != nil {
			p50, p99 = digits(l.P50), digits(l.P99)
		}
		p.Line("%-22.22s %11s %11s %8s %8s %7s %7s", m.name()+", "+m.Protocol, sent, received, digits(rate(n, took)),
			strings.TrimSuffix(gbps(n*uint64(m.Size), took), " Gb/s"), p50, p99)
	}
	for i := range r.Sockets {
		m := &r.Sockets[i]
		if !m.Here {
			continue
		}
		if r.both() {
			lost := m.Sent - min(m.Unique, m.Sent)
			text := fmt.Sprintf("%s: %d sent = %d received + %d lost", m.name(), m.Sent, m.Unique, lost)
			if lost > 0 {
				text += ", dropped: " + dropsText(&m.Drops)
			}
			p.Field("account", text)
		} else if m.Missing > 0 {
			p.Field("missing", fmt.Sprintf("%s: %d by their numbers", m.name(), m.Missing))
		}
		if m.Duplicates+m.Late+m.Damaged+m.Foreign > 0 || m.Rest > 0 {
			p.Field("disorder",
				fmt.Sprintf("%s: %d duplicates, %d late, %d damaged, %d of other programs, %d bytes of a message "+
					"that was cut off", m.name(), m.Duplicates, m.Late, m.Damaged, m.Foreign, m.Rest))
		}
	}
}
