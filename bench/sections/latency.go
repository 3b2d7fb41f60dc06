package sections

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/bench/stream"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/flow"
)

// LatencyResult is what bench_latency found for one size of payload. Times are in microseconds.
type LatencyResult struct {
	Payload int    `json:"payload"` // bytes
	Sent    uint64 `json:"sent"`
	Lost    uint64 `json:"lost"`
	// Call is how long the call took that sent, OneWay from before it until the packet was there
	// and checked, Round until one that was sent back was there.
	Call   *paired.Latency `json:"call,omitempty"`
	OneWay *paired.Latency `json:"one_way,omitempty"`
	Round  *paired.Latency `json:"round_trip,omitempty"`
}

// way is one direction of bench_latency.
type way struct {
	tx  engine.TxQueue
	rx  *engine.Rx
	t   *template
	b   *burst.Burst // to send
	got *burst.Burst
	in  *receiver // that knows packets
	at  string
	two bool // the queue has a region for headers and one for the rest
}

func (x *runner) latency(ctx context.Context) error {
	l := x.p.Latency
	if err := stay(l.Tx.Core); err != nil {
		return fmt.Errorf("sections: %s: %w", l.At, err)
	}
	for _, payload := range l.Payloads {
		there, err := x.way(l, payload, l.Tx, l.Rx, false)
		if err != nil {
			return err
		}
		var back *way
		if l.Back {
			if back, err = x.way(l, payload, l.back, l.home, true); err != nil {
				return err
			}
		}
		x.say("bench_latency: payloads of %d bytes", payload)
		if err := x.pings(ctx, payload, there, back); err != nil {
			return err
		}
	}
	return nil
}

// way opens one direction: back has the addresses the other way round.
func (x *runner) way(l *Latency, payload int, from, to Place, back bool) (*way, error) {
	w := &way{at: l.At}
	var err error
	if w.tx, err = x.sys.Tx(from.Interface, from.Queue); err != nil {
		return nil, fmt.Errorf("sections: %s: %w", l.At, err)
	}
	if w.rx, err = x.sys.Rx(to.Interface, to.Queue); err != nil {
		return nil, fmt.Errorf("sections: %s: %w", l.At, err)
	}
	out, in := x.sys.Port(from.Interface), x.sys.Port(to.Interface)
	s := Sender{Place: from, Batch: 1, Header: l.Header, Payload: payload, EthDst: l.EthDst, Src: l.Src, Dst: l.Dst,
		SrcPorts: flow.One(l.SrcPort), DstPorts: flow.One(l.DstPort), Sequence: -1}
	if back || s.EthDst == (packet.MAC{}) {
		s.EthDst = in.Info().MAC
	}
	if back {
		s.Src, s.Dst, s.SrcPorts, s.DstPorts = l.Dst, l.Src, s.DstPorts, s.SrcPorts
	}
	s.Number = room(payload, -1)
	if w.t, err = newTemplate(&s, out.Info().MAC); err != nil {
		return nil, fmt.Errorf("sections: %s: %w", l.At, err)
	}
	for _, f := range x.sys.Plan().Interfaces {
		for _, q := range f.Tx {
			w.two = w.two || f.Name == from.Interface && q.ID == from.Queue && len(q.Regions) == 2
		}
	}
	w.b, w.got = burst.NewSegmented(1, burst.MaxSegments), burst.NewSegmented(64, 4*burst.MaxSegments)
	w.in = newReceiver(&Receiver{Place: to, Batch: 1}, w.rx, newOffice(&Plan{Senders: []Sender{s}}, x.run))
	return w, nil
}

// pings sends one packet after the other, each when the one before it has come or is given up.
func (x *runner) pings(ctx context.Context, payload int, there, back *way) error {
	r := LatencyResult{Payload: payload}
	var call, oneWay, round metrics.Histogram
	name := fmt.Sprintf("bench_latency %d B", payload)
	row, err := x.measure(ctx, name, "latency", paired.Microseconds, "",
		func(ctx context.Context) (paired.Sample, error) {
			var s paired.Sample
			for i := range x.o.Warmup + x.o.Samples {
				if ctx.Err() != nil {
					break
				}
				began := now()
				sent, err := there.send(ctx, uint32(i), x.run)
				if err != nil {
					return s, err
				}
				at, err := there.wait(ctx, uint32(i), x.o.Settle)
				if err != nil {
					return s, err
				}
				var home int64
				if at > 0 && back != nil {
					if _, err := back.send(ctx, uint32(i), x.run); err != nil {
						return s, err
					}
					if home, err = back.wait(ctx, uint32(i), x.o.Settle); err != nil {
						return s, err
					}
				}
				if i < x.o.Warmup {
					continue
				}
				r.Sent++
				if at == 0 || back != nil && home == 0 {
					r.Lost++
				}
				if at > 0 {
					s.Verified += uint64(payload)
					call.Record(uint64(max(0, sent-began)))
					oneWay.Record(uint64(max(0, at-began)))
				}
				if home > 0 {
					round.Record(uint64(max(0, home-began)))
				}
			}
			r.Call, r.OneWay, r.Round = percentiles(&call), percentiles(&oneWay), percentiles(&round)
			x.r.Latency = append(x.r.Latency, r)
			if r.OneWay == nil {
				return s, ErrNothing
			}
			s.Value = max(r.OneWay.P50, 1e-3)
			return s, nil
		})
	if row != nil {
		row.Size, row.Latency = uint64(payload), r.OneWay
		row.Traffic = &paired.Traffic{Sent: r.Sent, Received: r.Sent - r.Lost, Lost: r.Lost}
		if r.Round != nil {
			row.Note = fmt.Sprintf("there and back: p50 %s, p99 %s, p99.9 %s, max %s us", digits(r.Round.P50),
				digits(r.Round.P99), digits(r.Round.P999), digits(r.Round.Max))
		}
		x.r.Rows = append(x.r.Rows, *row)
	}
	return err
}

func percentiles(h *metrics.Histogram) *paired.Latency {
	var s metrics.HistogramSnapshot
	h.Snapshot(&s)
	return inMicroseconds(&s)
}

// send sends packet n, and returns when the call was over.
func (w *way) send(ctx context.Context, n uint32, run uint16) (int64, error) {
	length := len(w.t.frame)
	if w.two {
		length -= w.t.head
	}
	p := &patience{}
	for {
		k, err := w.tx.Alloc(w.b, 1, length)
		if k == 1 {
			break
		}
		if !errors.Is(err, engine.ErrFull) && !errors.Is(err, engine.ErrNoBuffers) {
			return 0, fmt.Errorf("sections: %s: %w", w.at, err)
		}
		if ctx.Err() != nil || !p.pause(ctx, now()) {
			return 0, fmt.Errorf("sections: %s: the queue took no packet: %w", w.at, err)
		}
	}
	w.t.write(w.b, 0, uint64(n), &stream.Header{Run: run, Seq: n, Due: uint64(now()) & (1<<48 - 1)})
	err := w.tx.Send(w.b)
	if errors.Is(err, engine.ErrClosed) {
		return 0, fmt.Errorf("sections: %s: %w", w.at, err)
	}
	return now(), nil
}

// wait waits for packet n, and returns when it was there; 0 if it did not come in time.
func (w *way) wait(ctx context.Context, n uint32, most time.Duration) (int64, error) {
	limit, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for {
		err := w.rx.Recv(limit, w.got)
		t := now()
		found := false
		for i := range w.got.Len() {
			found = w.is(i, n, t) || found
		}
		w.got.Release()
		switch {
		case found:
			return t, nil
		case err != nil && limit.Err() != nil:
			return 0, nil
		case err != nil:
			return 0, fmt.Errorf("sections: %s: %w", w.at, err)
		}
	}
}

// is enters packet i, and reports whether it is packet n: it came once, whole, and is not one that
// was given up before.
func (w *way) is(i int, n uint32, t int64) bool {
	w.in.b = w.got
	p := w.in.whole(i)
	before := w.in.out.Unique
	w.in.packet(p, t)
	if w.in.out.Unique == before {
		return false
	}
	var h stream.Header
	for _, at := range w.in.o.at {
		if len(p) >= at+stream.HeaderLen && h.Parse(p[at:]) == stream.Intact {
			return h.Seq == n
		}
	}
	return false
}

func (p *lines) latencies(r *Result) {
	for i := range r.Latency {
		if i == 0 {
			p.Line("")
			p.Line("%-20s %8s %8s %8s %8s %8s %8s", "latency, us", "sent", "p50", "p90", "p99", "p99.9", "max")
		}
		x := &r.Latency[i]
		for _, y := range []struct {
			name string
			l    *paired.Latency
		}{{"call", x.Call}, {"one way", x.OneWay}, {"there and back", x.Round}} {
			if l := y.l; l != nil {
				p.Line("%-20s %8d %8s %8s %8s %8s %8s", strings.TrimSpace(fmt.Sprintf("%4d %s", x.Payload, y.name)),
					x.Sent, digits(l.P50), digits(l.P90), digits(l.P99), digits(l.P999), digits(l.Max))
			}
		}
		if x.Lost > 0 {
			p.Line("%4d lost             %8d", x.Payload, x.Lost)
		}
	}
}
