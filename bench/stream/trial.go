package stream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/metrics"
)

// Trial is the outcome of sending for a while at one rate. Sent = Received + Lost.
type Trial struct {
	Size     int
	Rate     float64       // packets per second that were asked for; 0: as fast as possible
	Took     time.Duration // from the first packet to the moment when the last one had left
	Sent     uint64
	Lost     uint64 // numbers that did not come whole, on the way there and, with a reflector, back
	LostFar  uint64 // with a reflector: of them, those that did not reach it
	Counts          // of the analyser
	Span     time.Duration
	Queues   []uint64      // packets that arrived, by receive queue of the far end
	SendCPU  time.Duration // of the sending threads; with a rate it includes looking at the clock
	RecvCPU  time.Duration // of the receiving threads of the far end
	Behind   time.Duration // how late the latest burst was sent
	Complete bool          // everything that was asked for was sent
	// Latency in nanoseconds, from the time at which a packet was due: one way, or there and back
	// with a reflector. Only where Timed.
	Latency metrics.HistogramSnapshot
	Timed   bool
	// Drops are what the engines counted, on the way out at the near end and on the way in at the
	// far one.
	OutDrops, InDrops engine.Drops
	Refused           uint64 // packets that the reflector could not send back
}

// Offered is the rate at which packets were sent, per second.
func (t *Trial) Offered() float64 { return perSecond(t.Sent, t.Took) }

// Came is the rate at which whole packets came, per second: the receiver's count over the time of
// the sender, or of the receiver if it took longer.
func (t *Trial) Came() float64 { return perSecond(t.Received, max(t.Took, t.Span)) }

func perSecond(n uint64, d time.Duration) float64 { return float64(n) / max(d.Seconds(), 1e-9) }

// L2 and L1 are a rate in bits per second: of frames with their check sequence, and with preamble
// and gap on top.
func L2(size int, rate float64) float64 { return 8 * float64(size) * rate }

// L1 is L2 with 20 bytes more for each packet: preamble, start delimiter and gap.
func L1(size int, rate float64) float64 { return 8 * float64(size+gapLen) * rate }

// rig is both ends, ready for trials.
type rig struct {
	cell   cell
	c      *clock
	near   *near
	far    receiver
	timed  bool // both ends have one clock, or packets come back
	run    uint16
	settle time.Duration
	more   []func() error
}

func (g *rig) close() error {
	var err error
	if g.near != nil {
		err = g.near.close()
	}
	if g.far != nil {
		err = errors.Join(err, g.far.close())
	}
	for _, f := range g.more {
		err = errors.Join(err, f())
	}
	return err
}

// order is what a trial is to send.
type order struct {
	rate     float64 // packets per second; 0: as fast as possible
	packets  uint64  // 0: for the duration
	duration time.Duration
	burst    int // 0: the cell's
}

const (
	lead = 2 * time.Millisecond // from the order to the first packet, so that all senders begin together
	// patience is how long a trial may take beyond its duration before it is given up.
	patience = 30 * time.Second
)

// trial makes one trial. The error says that nothing can be said; loss is no error.
func (g *rig) trial(ctx context.Context, o order) (*Trial, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, o.duration+2*g.settle+patience,
		fmt.Errorf("a trial of %v was not over %v after its end", o.duration, patience))
	defer cancel()
	t, err := g.try(ctx, o)
	if err != nil && ctx.Err() != nil {
		err = errors.Join(err, context.Cause(ctx))
	}
	return t, err
}

func (g *rig) try(ctx context.Context, o order) (_ *Trial, err error) {
	g.run++
	if o.burst == 0 {
		o.burst = g.cell.Burst
	}
	if g.near.back != nil {
		if err := g.near.back.begin(ctx, g.run); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, g.near.back.stop()) }()
	}
	if err := g.far.begin(ctx, g.run); err != nil {
		return nil, err
	}
	_, before := g.near.drops()
	n := len(g.near.gens)
	l := load{run: g.run, burst: o.burst, duration: o.duration, wire: g.cell.Size + gapLen, rate: o.rate / float64(n)}
	l.start = g.c.now() + int64(lead)
	out, errs := make([]emitted, n), make([]error, n)
	var wg sync.WaitGroup
	for i, x := range g.near.gens {
		mine := l
		if o.packets > 0 {
			mine.packets = share(o.packets, i, n)
			if mine.packets == 0 {
				continue
			}
		}
		if o.rate > 0 { // bursts of several senders do not fall together
			mine.start += int64(float64(i) * float64(o.burst) / o.rate * 1e9)
		}
		wg.Go(func() { out[i], errs[i] = x.send(ctx, mine) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	sent := make([]uint64, g.cell.streams())
	t := &Trial{Size: g.cell.Size, Rate: o.rate, Timed: g.timed}
	first, last := int64(0), int64(0)
	for i, x := range g.near.gens {
		for _, y := range x.streams {
			if out[i].sent > 0 {
				sent[y.stream] = uint64(y.seq)
			}
		}
		t.Sent += out[i].sent
		t.SendCPU += out[i].cpu
		t.Behind = max(t.Behind, out[i].behind)
		if out[i].sent > 0 {
			if first == 0 || out[i].first < first {
				first = out[i].first
			}
			last = max(last, out[i].last)
		}
	}
	t.Took = time.Duration(last - first)
	for _, k := range sent {
		t.Lost += k
	}
	if t.Lost != t.Sent {
		return nil, fmt.Errorf("stream: %d packets were sent, and their streams count %d", t.Sent, t.Lost)
	}
	if o.rate > 0 && o.packets == 0 {
		// The schedule's own time: the last burst is followed by the pause that belongs to it.
		t.Took = max(t.Took, o.duration)
	}
	want := o.packets
	if o.rate > 0 && want == 0 {
		want = uint64(o.rate * o.duration.Seconds() * (1 - tolerance))
	}
	t.Complete = t.Sent >= want
	a, err := g.far.end(ctx, sent, g.settle)
	if err != nil {
		return nil, err
	}
	_, after := g.near.drops()
	for i := range after {
		t.OutDrops[i] = after[i] - before[i]
	}
	t.Queues, t.RecvCPU, t.InDrops, t.Refused, t.Span = a.Queues, a.CPU, a.Drops, a.Refused, a.Span
	t.Counts, t.Latency = a.Counts, a.Latency
	if g.near.back != nil {
		t.LostFar = t.Sent - a.Received
		if a, err = g.near.back.end(ctx, sent, g.settle); err != nil {
			return nil, err
		}
		t.Counts, t.Latency, t.Span = a.Counts, a.Latency, a.Span
	}
	t.Lost = t.Sent - t.Received
	return t, nil
}

// tolerance is by how much a rate may be missed, as a part, before it counts as not reached: the
// first and the last burst of a trial.
const tolerance = 0.02

// share is the part of n that the i-th of several has.
func share(n uint64, i, of int) uint64 {
	k := n / uint64(of)
	if uint64(i) < n%uint64(of) {
		k++
	}
	return k
}
