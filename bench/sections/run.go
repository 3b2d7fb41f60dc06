package sections

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/system"
)

// ErrMissing is wrapped by the error of a file that cannot run here.
var ErrMissing = errors.New("sections: the file cannot run here")

// Err is nil, or an error that wraps ErrMissing and lists everything that is missing.
func (p *Plan) Err() error {
	if len(p.Missing) == 0 {
		return nil
	}
	lines := make([]string, len(p.Missing))
	for i, m := range p.Missing {
		lines[i] = m.String()
	}
	return fmt.Errorf("%w:\n\t%s", ErrMissing, strings.Join(lines, "\n\t"))
}

// runner is a run of the sections of one file.
type runner struct {
	o   *Options
	p   *Plan
	r   *Result
	sys *system.System
	run uint16
	gen *rand.Rand
}

// Run opens what the plan's sections work on and runs them: bench_tx and bench_rx at once, then
// bench_latency, then the sockets. An error comes with the Result when there is one, so that what
// was counted is not lost; a section of which nothing arrived is one (ErrNothing). changes are
// those of Fit; the result tells them.
func Run(ctx context.Context, c *config.Config, p *Plan, changes []Change, o Options) (*Result, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64() >> 11 // every reader of JSON keeps so much exactly
	}
	x := &runner{o: &o, p: p, r: newResult(p, changes, &o), gen: rand.New(rand.NewPCG(o.Seed, 0))}
	// another one each time, whatever the seed: packets of an earlier run are none of ours
	x.run = uint16(rand.Uint32())
	if len(p.Senders) == 0 && len(p.Receivers) > 0 {
		x.r.Notes = append(x.r.Notes,
			"the file has no bench_tx: what was sent elsewhere is known by the numbers of penstock's packets only")
	}
	var err error
	// The system of each kind of section is opened for itself: queues have one user, and what waits
	// from one must not meet the other.
	if len(p.Senders)+len(p.Receivers) > 0 {
		err = x.with(ctx, c, func() error { return x.raw(ctx) })
	}
	if err == nil && p.Latency != nil {
		err = x.with(ctx, c, func() error { return x.latency(ctx) })
	}
	if err == nil && len(p.Sockets) > 0 {
		err = x.with(ctx, c, func() error { return x.sockets(ctx) })
	}
	x.r.Took = time.Since(x.r.Began).Seconds()
	return x.r, errors.Join(err, x.r.lossOnly(), x.r.Check())
}

func (x *runner) say(format string, args ...any) {
	if x.o.Progress != nil {
		x.o.Progress(fmt.Sprintf(format, args...))
	}
}

// with opens the interfaces, calls f, and closes them.
func (x *runner) with(ctx context.Context, c *config.Config, f func() error) error {
	s, err := system.Open(ctx, x.part(c), system.Options{Logger: slog.New(slog.DiscardHandler), Engines: x.o.Engines})
	if err != nil {
		return err
	}
	x.sys = s
	return errors.Join(f(), s.Close())
}

// part is what a benchmark opens of a configuration: regions and interfaces, without the tags and
// tunnels that senders put on themselves, and of sockets only the ends that run.
func (x *runner) part(c *config.Config) *config.Config {
	out := *c
	out.Transfers, out.Registry, out.Security, out.Metrics, out.Applications = nil, nil, nil, nil, nil
	out.Interfaces = nil
	for _, f := range c.Interfaces {
		if len(x.p.Sockets) > 0 && len(x.p.Senders)+len(x.p.Receivers) == 0 && x.p.Latency == nil &&
			!slices.ContainsFunc(x.p.Sockets, func(s Socket) bool { return s.Interface == f.Name }) {
			continue
		}
		if f.Tx != nil && len(f.Tx.Flows) > 0 {
			tx := *f.Tx
			tx.Flows = nil
			f.Tx = &tx
		}
		x.depths(&f)
		out.Interfaces = append(out.Interfaces, f)
	}
	return &out
}

// counts are those of the interfaces at one time.
type counts struct {
	drops  engine.Drops
	kernel uint64
	queues map[string]engine.Drops   // of receive queues and their stages, by interface/queue
	stages map[string][]engine.Count // likewise, since the interfaces were opened
}

func (x *runner) counts() counts {
	c := counts{queues: map[string]engine.Drops{}, stages: map[string][]engine.Count{}}
	s := x.sys.Snapshot()
	for _, f := range s.Interfaces {
		for _, d := range []*engine.Drops{&f.Stats.Drops, &f.Stats.Rx.Drops, &f.Stats.Tx.Drops} {
			c.drops.Add(d)
		}
		c.kernel += f.Stats.Kernel
		for _, q := range f.Rx {
			name, drops := fmt.Sprintf("%s/%d", f.Name, q.ID), q.Stats.Drops
			for _, g := range q.Stages {
				drops.Add(&g.Stats.Drops)
				g.Stats.Drops[engine.DropDuplicate] = 0 // none of those that were sent: the first of its number came
				c.drops.Add(&g.Stats.Drops)
				c.stages[name] = append(c.stages[name], g.Counts...)
			}
			c.queues[name] = drops
		}
	}
	return c
}

func (c *counts) since(before *counts) {
	for i := range c.drops {
		c.drops[i] -= before.drops[i]
	}
	c.kernel -= before.kernel
	for name, d := range c.queues {
		for i := range d {
			d[i] -= before.queues[name][i]
		}
		c.queues[name] = d
	}
}

// raw runs bench_tx and bench_rx.
func (x *runner) raw(ctx context.Context) error {
	o := newOffice(x.p, x.run)
	var receivers []*receiver
	var senders []*sender
	for i := range x.p.Receivers {
		r := &x.p.Receivers[i]
		in, err := x.sys.Rx(r.Interface, r.Queue)
		if err != nil {
			return fmt.Errorf("sections: %s: %w", r.At, err)
		}
		y := newReceiver(r, in, o)
		if y.checkers, err = newCheckers(r, o); err != nil {
			return err
		}
		receivers = append(receivers, y)
	}
	for i := range x.p.Senders {
		s := &x.p.Senders[i]
		tx, err := x.sys.Tx(s.Interface, s.Queue)
		if err != nil {
			return fmt.Errorf("sections: %s: %w", s.At, err)
		}
		t, err := newTemplate(s, x.sys.Port(s.Interface).Info().MAC)
		if err != nil {
			return fmt.Errorf("sections: %s: %w", s.At, err)
		}
		senders = append(senders, newSender(s, tx, t, x.run, uint16(i)))
	}
	unchecked := ""
	switch {
	case len(receivers) == 0:
		unchecked = "nothing is received here"
	case len(senders) == 0:
		unchecked = "packets of other programs"
	}
	row, err := x.measure(ctx, "bench_tx and bench_rx", "raw", paired.MopsPerSec, unchecked,
		func(ctx context.Context) (paired.Sample, error) {
			before := x.counts()
			began := time.Now()
			err := x.exchange(ctx, o, receivers, senders, &before)
			after := x.counts()
			after.since(&before)
			x.r.addRaw(o, receivers, senders, &after, time.Since(began))
			if err != nil {
				return paired.Sample{}, err
			}
			return x.r.rawSample()
		})
	if row != nil {
		row.Traffic = x.r.traffic()
		if a := x.r.Account; a != nil && a.Lost > 0 {
			row.Note = fmt.Sprintf("dropped: %s; unattributed: %d", dropsText(&a.Drops), a.Unattributed)
		}
		var h, one metrics.HistogramSnapshot
		for _, r := range receivers {
			r.latency.Snapshot(&one)
			h.Merge(&one)
		}
		if l := inMicroseconds(&h); l != nil {
			x.r.Notes = append(x.r.Notes,
				fmt.Sprintf("from a packet's burst until it was looked at: p50 %s us, p99 %s us, max %s us (not "+
					"paced unless the file says so)", digits(l.P50), digits(l.P99), digits(l.Max)))
		}
		x.r.Rows = append(x.r.Rows, *row)
	}
	x.r.rawRows()
	return err
}

// exchange runs senders and receivers until everything has come that will.
func (x *runner) exchange(ctx context.Context, o *office, receivers []*receiver, senders []*sender,
	before *counts) error {
	// Receivers end when exchange cancels rctx, senders by themselves or when anything fails.
	rctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	sctx, halt := context.WithCancel(ctx)
	defer halt()
	failed, sent := make(chan error, len(receivers)), make(chan error, len(senders))
	for _, r := range receivers {
		go func() { failed <- r.serve(rctx) }()
	}
	for _, s := range senders {
		go func() { sent <- s.send(sctx, x.o.Packets, x.o.Duration) }()
	}
	var err error
	left, running := len(senders), len(receivers)
	if left == 0 {
		x.say("receiving%s", x.until())
		n, e := x.listen(ctx, o, receivers, failed)
		running -= n
		err = errors.Join(err, e)
	} else {
		x.say("sending%s", x.until())
	}
	for left > 0 {
		select {
		case e := <-sent:
			left--
			if err = errors.Join(err, e); e != nil {
				halt()
			}
		case e := <-failed:
			running--
			err = errors.Join(err, e)
			halt()
		}
	}
	if err == nil && len(senders) > 0 && running > 0 {
		total := uint64(0)
		for _, s := range senders {
			total += s.sent
		}
		n, e := x.settle(o, total, before, failed)
		running -= n
		err = errors.Join(err, e)
	}
	stop()
	for ; running > 0; running-- {
		err = errors.Join(err, <-failed)
	}
	return err
}

// until says in words when it ends.
func (x *runner) until() string {
	switch {
	case x.o.Packets > 0 && len(x.p.Senders) > 0:
		return fmt.Sprintf(": %d packets each", x.o.Packets)
	case x.o.Packets > 0 && len(x.p.Receivers) > 0:
		return fmt.Sprintf(" until %d packets have come", x.o.Packets)
	case x.o.Duration > 0:
		return fmt.Sprintf(" for %v", x.o.Duration)
	}
	return " until interrupted"
}

// listen waits for the end of a file without senders, which is a time or a number of packets, or
// for the first receiver that fails, and returns how many have ended.
func (x *runner) listen(ctx context.Context, o *office, receivers []*receiver, failed <-chan error) (ended int,
	err error) {
	var over <-chan time.Time
	if x.o.Duration > 0 {
		t := time.NewTimer(x.o.Duration)
		defer t.Stop()
		over = t.C
	}
	for {
		select {
		case <-o.came:
			n := uint64(0)
			for _, r := range receivers {
				n += r.seen.Load()
			}
			if x.o.Packets > 0 && n >= x.o.Packets {
				return 0, nil
			}
		case <-over:
			return 0, nil
		case <-ctx.Done():
			return 0, nil
		case err := <-failed:
			return 1, err
		}
	}
}

// settle waits until every packet that was sent has come or was dropped, or nothing has happened
// for so long as the options say. Who interrupts a run stops its senders; what they had sent is
// accounted for all the same.
func (x *runner) settle(o *office, sent uint64, before *counts, failed <-chan error) (ended int, err error) {
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	seen, dropped, quiet := uint64(0), uint64(0), time.Now()
	for {
		got := o.total()
		c := x.counts()
		c.since(before)
		lost := c.drops.Total()
		if got != seen || lost != dropped {
			seen, dropped, quiet = got, lost, time.Now()
		}
		switch {
		case got >= sent, got+lost == sent:
			return 0, nil
		case got+lost > sent && time.Since(quiet) > x.o.Settle/4: // some that were dropped were not ours
			return 0, nil
		case time.Since(quiet) > x.o.Settle:
			return 0, nil
		}
		select {
		case <-look.C: // not for each burst: the counts of the ports take a while to read
		case err := <-failed:
			return 1, err
		}
	}
}

// newResult begins a result.
func newResult(p *Plan, changes []Change, o *Options) *Result {
	r := &Result{Report: paired.NewReport("stream"), Plan: p, Changes: changes}
	r.Method = paired.Method{Alone: 1, Seed: o.Seed, Notes: []string{"the bench sections of " + p.File}}
	for _, c := range changes {
		r.Notes = append(r.Notes, "instead: "+c.String())
	}
	r.Notes = append(r.Notes, p.Notes...)
	return r
}
