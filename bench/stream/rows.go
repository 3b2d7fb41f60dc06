package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/peers"
	"github.com/penstock-io/penstock/metrics"
)

// measured is a cell while it is measured.
type measured struct {
	*runner
	g     *rig
	title string
	rate  float64 // its throughput, packets per second; 0: not known
}

// errNothing says that a search found no rate at all.
var errNothing = errors.New("no rate passed")

// tally sums trials up.
type tally struct {
	paired.Traffic
	sendCPU, recvCPU int64 // ns
	timedSends       uint64
	at               float64 // packets sent per second, of the last trial
	latency          metrics.HistogramSnapshot
	checked          uint64
	notes            []string
	drops            engine.Drops // that both ends counted
	refused          uint64
	queues           []uint64 // of the far end
}

func (y *tally) add(t *Trial) {
	y.Sent += t.Sent
	y.Received += t.Received
	y.Lost += t.Lost
	y.Duplicates += t.Duplicates
	y.Reordered += t.Reordered
	y.Damaged += t.Damaged
	y.Foreign += t.Foreign + t.Stale
	y.checked += t.Checked
	y.recvCPU += int64(t.RecvCPU)
	if t.Rate == 0 { // a paced sender looks at the clock most of the time
		y.sendCPU += int64(t.SendCPU)
		y.timedSends += t.Sent
	}
	y.at = t.Offered()
	y.drops.Add(&t.InDrops)
	y.drops.Add(&t.OutDrops)
	y.refused += t.Refused
	y.spread(t.Queues)
	if t.Timed {
		y.latency.Merge(&t.Latency)
	}
}

// spread adds packets by queue.
func (y *tally) spread(queues []uint64) {
	for q, n := range queues {
		if q == len(y.queues) {
			y.queues = append(y.queues, 0)
		}
		y.queues[q] += n
	}
}

// remarks are where packets were lost, as far as the engines know, and how they came to the queues.
func (y *tally) remarks() []string {
	out := slices.Clone(y.notes)
	if y.drops.Total() > 0 {
		out = append(out, "dropped by the engines: "+y.drops.String())
	}
	if y.refused > 0 {
		out = append(out, fmt.Sprintf("%d were not sent back", y.refused))
	}
	if len(y.queues) > 1 {
		out = append(out, "by queue: "+strings.Trim(fmt.Sprint(y.queues), "[]"))
	}
	return out
}

// traffic is what the row tells.
func (y *tally) traffic() *paired.Traffic {
	t := y.Traffic
	if y.timedSends > 0 {
		t.SendNS = float64(y.sendCPU) / float64(y.timedSends)
	}
	if t.Received > 0 {
		t.ReceiveNS = float64(y.recvCPU) / float64(t.Received)
	}
	return &t
}

// judged is the outcome of a trial for a search. Damaged packets are lost ones.
func judged(t *Trial) Outcome { return Outcome{Sent: t.Sent, Lost: t.Lost, Reached: t.Complete} }

// row runs a plan and keeps its row.
func (y *measured) row(ctx context.Context, test string, p paired.Plan, sum *tally, l line) error {
	p.Name = y.title + ": " + test
	p.Gate, p.Seed = y.o.Gate, y.seeds.Uint64()>>(64-seedBits)
	p.Ours.Name = "engine/" + y.g.cell.Engine
	x, err := paired.Run(ctx, p)
	if x == nil {
		return err
	}
	c := &y.g.cell
	x.What, x.Path, x.Size, x.Blocks = test, c.name(), uint64(c.Size), c.Burst
	x.Peers, x.Traffic = c.Queues, sum.traffic()
	x.Note = strings.Join(sum.remarks(), "; ")
	if test == Latency {
		x.Latency = paired.HistogramLatency(&sum.latency)
	}
	y.r.Rows = append(y.r.Rows, *x)
	l.row = len(y.r.Rows) - 1
	l.cell, l.test, l.at = *c, test, sum.at
	y.r.lines = append(y.r.lines, l)
	return nil
}

// unlimited is a trial without a rate, and what it was like.
func (y *measured) unlimited(ctx context.Context) (*Trial, error) {
	t, err := y.g.trial(ctx, order{duration: y.o.Trial})
	if err == nil && t.Sent == 0 {
		err = errors.New("the sender sent nothing")
	}
	return t, err
}

// throughput searches; each sample is a search of its own, from what the sender reaches without a
// rate.
func (y *measured) throughput(ctx context.Context) error {
	var sum tally
	unstable, trials := 0, 0
	one := func(ctx context.Context) (paired.Sample, error) {
		t, err := y.unlimited(ctx)
		if err != nil {
			return paired.Sample{}, err
		}
		sum.sendCPU += int64(t.SendCPU)
		sum.timedSends += t.Sent
		before := sum.checked
		var last tally // of the trials that passed at the highest rate
		top := 0.0
		o := SearchOptions{High: min(t.Offered(), maxRate), Resolution: y.o.Resolution, MaxLoss: y.o.MaxLoss,
			Verify: y.o.Verify, Retry: y.o.Retry}
		o.Low = o.High / 1000
		f, err := Search(ctx, o, func(ctx context.Context, rate float64) (Outcome, error) {
			t, err := y.g.trial(ctx, order{rate: rate, duration: y.o.Trial})
			if err != nil {
				return Outcome{}, err
			}
			if rate != top {
				top, last = rate, tally{}
			}
			last.add(t)
			return judged(t), nil
		})
		if err != nil {
			return paired.Sample{}, err
		}
		if f.Limit == ByLow {
			return paired.Sample{}, fmt.Errorf("%w down to %.0f packets/s", errNothing, o.Low)
		}
		unstable, trials = unstable+f.Unstable, trials+f.Trials
		merge(&sum, &last)
		if sum.Limit = f.Limit.String(); f.Limit == ByHigh {
			sum.Limit = BySender.String() // High is what it reaches without a rate
		}
		sum.notes = []string{fmt.Sprintf("%d trials", trials),
			fmt.Sprintf("%d rates passed once and not again", unstable)}[:1+min(unstable, 1)]
		return paired.Sample{Value: f.Rate / 1e6, Verified: sum.checked - before}, nil
	}
	err := y.row(ctx, Throughput, paired.Plan{Unit: paired.MopsPerSec, Pairs: y.o.Samples, Warmup: -1,
		Ours: paired.Contender{Run: one}}, &sum, line{})
	if errors.Is(err, errNothing) {
		y.r.Missing = append(y.r.Missing, fmt.Sprintf("%s: %v with no more loss than %g", y.title, errNothing,
			y.o.MaxLoss))
		return nil
	}
	if err == nil {
		y.rate = y.r.Rows[len(y.r.Rows)-1].Ours.Stats.Median * 1e6
	}
	return err
}

// merge adds the trials of one tally to another.
func merge(to, from *tally) {
	to.Sent += from.Sent
	to.Received += from.Received
	to.Lost += from.Lost
	to.Duplicates += from.Duplicates
	to.Reordered += from.Reordered
	to.Damaged += from.Damaged
	to.Foreign += from.Foreign
	to.recvCPU += from.recvCPU
	to.checked += from.checked
	to.at = from.at
	to.drops.Add(&from.drops)
	to.refused += from.refused
	to.spread(from.queues)
	to.latency.Merge(&from.latency)
}

// latency is measured at one rate. A sample is the median of a trial; the row's percentiles are of
// all packets.
func (y *measured) latency(ctx context.Context) error {
	rate := y.o.Rate
	if rate == 0 {
		rate = y.o.Load * y.rate
	}
	switch {
	case rate == 0:
		y.r.Missing = append(y.r.Missing, y.title+": latency: the throughput is not known; give a rate")
		return nil
	case !y.g.timed:
		y.r.Missing = append(y.r.Missing, y.title+": latency: the ends have no common clock; ask for round trips")
		return nil
	}
	var sum tally
	p := paired.Plan{Unit: paired.Microseconds, Pairs: y.o.Samples, Warmup: -1}
	p.Ours.Run = func(ctx context.Context) (paired.Sample, error) {
		t, err := y.g.trial(ctx, order{rate: rate, duration: y.o.Trial})
		if err != nil {
			return paired.Sample{}, err
		}
		if t.Latency.Count == 0 {
			return paired.Sample{}, fmt.Errorf("%w: of %d packets none came", paired.ErrFailed, t.Sent)
		}
		sum.add(t)
		return paired.Sample{Value: float64(max(t.Latency.Quantile(0.5), 1)) / 1e3, Verified: t.Checked}, nil
	}
	return y.row(ctx, Latency, p, &sum, line{rate: rate})
}

// loss tells the loss at falling rates, from what the sender reaches.
func (y *measured) loss(ctx context.Context) error {
	t, err := y.unlimited(ctx)
	if err != nil {
		return fmt.Errorf("%s: loss: %w", y.title, err)
	}
	l := line{cell: y.g.cell, test: LossTest, row: -1, rate: t.Offered()}
	l.points, err = LossTable(ctx, l.rate, y.o.Step, func(ctx context.Context, rate float64) (Outcome, error) {
		t, err := y.g.trial(ctx, order{rate: rate, duration: y.o.Trial})
		if err != nil {
			return Outcome{}, err
		}
		return judged(t), nil
	})
	if err != nil {
		return fmt.Errorf("%s: loss: %w", y.title, err)
	}
	y.r.lines = append(y.r.lines, l)
	var parts []string
	for _, p := range l.points {
		parts = append(parts, fmt.Sprintf("%.0f%%: %d of %d", 100*p.Part, p.Lost, p.Sent))
	}
	y.r.Notes = append(y.r.Notes, fmt.Sprintf("%s: lost at parts of %.0f packets/s: %s", y.title, l.rate,
		strings.Join(parts, ", ")))
	return nil
}

// burst looks for the longest burst without loss.
func (y *measured) burst(ctx context.Context) error {
	l := line{cell: y.g.cell, test: Burst, row: -1}
	var err error
	l.longest, l.trials, err = BackToBack(ctx, y.o.Longest, func(ctx context.Context, n uint64) (Outcome, error) {
		t, err := y.g.trial(ctx, order{packets: n, duration: y.o.Trial})
		if err != nil {
			return Outcome{}, err
		}
		return judged(t), nil
	})
	if err != nil {
		return fmt.Errorf("%s: burst: %w", y.title, err)
	}
	y.r.lines = append(y.r.lines, l)
	y.r.Notes = append(y.r.Notes, fmt.Sprintf("%s: longest burst without loss: %d packets (at most %d were tried)",
		y.title, l.longest, y.o.Longest))
	return nil
}

// flood tells what comes when the sender does what it can, beside iperf3 where it does the same.
func (y *measured) flood(ctx context.Context) error {
	var sum tally
	c := &y.g.cell
	p := paired.Plan{Unit: paired.MopsPerSec, Pairs: y.o.Samples, Warmup: -1}
	p.Ours.Run = func(ctx context.Context) (paired.Sample, error) {
		t, err := y.unlimited(ctx)
		if err != nil {
			return paired.Sample{}, err
		}
		sum.add(t)
		return paired.Sample{Value: t.Came() / 1e6, Verified: t.Checked}, nil
	}
	if y.iperf3 != "" && !c.frames() && c.Queues == 1 && c.Workload == NoWork && !c.Reflect && y.client == nil &&
		y.o.To == "" {
		p.Pairs, p.Warmup = y.o.Pairs, 0
		size := uint64(PayloadLen(c.Size))
		p.Theirs = []paired.Contender{{Name: "iperf3", Version: y.iperf3,
			Unchecked: "iperf3 looks at numbers of datagrams, and at no other byte",
			Run: func(ctx context.Context) (paired.Sample, error) {
				// As many bytes as ours sends in a trial.
				n := max(uint64(sum.at*y.o.Trial.Seconds()), 1000)
				r, err := peers.Iperf3(ctx, peers.Iperf3Test{Size: size, Bytes: n * size, UDP: !c.bytes(), NoPin: true})
				return paired.Sample{Value: r.GBps * 1e3 / float64(size)}, err
			}}}
	}
	return y.row(ctx, Flood, p, &sum, line{})
}

// bears says whether a note of a port's is about what is measured.
func bears(note string) bool { return strings.Contains(note, "buffer has") }
