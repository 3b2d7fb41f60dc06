package sections

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/bench/stream"
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/flow"
)

// LatencyResult is what bench_latency found for one size of payload. Times are in microseconds.
type LatencyResult struct {
	Payload int // bytes
	Sent    uint64
	Lost    uint64
	// Call is how long the call took that sent, OneWay from before it until the packet was there
	// and checked, Round until one that was sent back was there.
	Call, OneWay, Round *paired.Latency
}

// way is one direction of bench_latency.
type way struct {
	out *sender
	in  *receiver
}

func (x *runner) latency(ctx context.Context) error {
	l := x.p.Latency
	if err := stay(l.Tx.Core); err != nil {
		return l.Tx.err(err)
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
	tx, err := x.sys.Tx(from.Interface, from.Queue)
	if err != nil {
		return nil, from.err(err)
	}
	rx, err := x.sys.Rx(to.Interface, to.Queue)
	if err != nil {
		return nil, to.err(err)
	}
	s := &Sender{Place: from, Batch: 1, Header: l.Header, Payload: payload, EthDst: l.EthDst, Src: l.Src, Dst: l.Dst,
		SrcPorts: flow.One(l.SrcPort), DstPorts: flow.One(l.DstPort), Sequence: -1, Number: room(payload, -1)}
	if back {
		s.Src, s.Dst, s.SrcPorts, s.DstPorts = l.Dst, l.Src, s.DstPorts, s.SrcPorts
	}
	if back || s.EthDst == (packet.MAC{}) {
		s.EthDst = x.sys.Port(to.Interface).Info().MAC
	}
	t, err := newTemplate(s, x.sys.Port(from.Interface).Info().MAC)
	if err != nil {
		return nil, from.err(err)
	}
	w := &way{newSender(s, tx, t, x.run, 0), newReceiver(&Receiver{Place: to, Batch: 1}, rx,
		newLedgers([]Sender{*s}, x.run))}
	w.in.b = burst.NewSegmented(64, 4*burst.MaxSegments)
	return w, nil
}

// pings sends one packet after the other, each when the one before it has come or is given up.
func (x *runner) pings(ctx context.Context, payload int, there, back *way) error {
	r := LatencyResult{Payload: payload}
	var call, oneWay, round metrics.Histogram
	run := func(ctx context.Context) (s paired.Sample, err error) {
		for i := 0; i < x.o.Warmup+x.o.Samples && ctx.Err() == nil; i++ {
			began := now()
			sent, at, err := there.ping(ctx, x.o.Settle)
			var home int64
			if err == nil && at > 0 && back != nil {
				_, home, err = back.ping(ctx, x.o.Settle)
			}
			if err != nil {
				return s, err
			}
			if i < x.o.Warmup || sent == 0 {
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
		r.Call, r.OneWay, r.Round = latency(&call), latency(&oneWay), latency(&round)
		x.r.Latency = append(x.r.Latency, r)
		if r.OneWay == nil {
			return s, ErrNothing
		}
		s.Value = max(r.OneWay.P50, 1e-3)
		return s, nil
	}
	row, err := x.measure(ctx, fmt.Sprintf("bench_latency %d B", payload), "latency", paired.Microseconds, "", run)
	if row != nil {
		row.Size, row.Latency = uint64(payload), r.OneWay
		row.Traffic = &paired.Traffic{Sent: r.Sent, Received: r.Sent - r.Lost, Lost: r.Lost}
		row.Note = percentiles("call", r.Call) + percentiles("; there and back", r.Round)
		x.r.Rows = append(x.r.Rows, *row)
	}
	return err
}

// ping sends one packet, and returns when the call was over, 0 if the context ended before it, and
// when the packet was there, 0 if it did not come in time.
func (w *way) ping(ctx context.Context, most time.Duration) (sent, at int64, err error) {
	n := w.out.sent.Load()
	if err := w.out.give(ctx, 1, now()); err != nil || w.out.sent.Load() == n {
		return 0, 0, err
	}
	sent = now()
	limit, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for {
		err := w.in.in.Recv(limit, w.in.b)
		t := now()
		for i := range w.in.b.Len() {
			if w.is(i, uint32(n), t) {
				at = t
			}
		}
		w.in.b.Release()
		switch {
		case at > 0 || err != nil && limit.Err() != nil:
			return sent, at, nil
		case err != nil:
			return sent, 0, w.in.r.err(err)
		}
	}
}

// is enters packet i, and reports whether it is packet n: it came once, whole, and is not one that
// was given up before.
func (w *way) is(i int, n uint32, t int64) bool {
	p := w.in.whole(i)
	before := w.in.out.Unique
	w.in.packet(p, t)
	var h stream.Header
	for _, at := range w.in.l.at {
		if w.in.out.Unique > before && len(p) >= at+stream.HeaderLen && h.Parse(p[at:]) == stream.Intact {
			return h.Seq == n
		}
	}
	return false
}

// percentiles writes a name and times in microseconds, "" where there are none.
func percentiles(name string, l *paired.Latency) string {
	if l == nil {
		return ""
	}
	return fmt.Sprintf("%s: p50 %s, p99 %s, p99.9 %s, max %s us", name, digits(l.P50), digits(l.P99), digits(l.P999),
		digits(l.Max))
}
