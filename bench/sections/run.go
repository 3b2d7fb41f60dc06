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
	o      *Options
	p      *Plan
	r      *Result
	sys    *system.System
	before counts // before the latest exchange
	run    uint16
	gen    *rand.Rand
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
		x.r.note("the file has no bench_tx: what was sent elsewhere is known by the numbers of penstock's packets only")
	}
	// The system of each kind of section is opened for itself: queues have one user, and what waits
	// from one must not meet the other.
	var err error
	for _, part := range []struct {
		here, record bool
		run          func(context.Context) error
	}{{len(p.Senders)+len(p.Receivers) > 0, len(p.Receivers) > 0, x.raw}, {p.Latency != nil, false, x.latency},
		{len(p.Sockets) > 0, len(p.Receivers) == 0, x.sockets}} {
		if err == nil && part.here {
			err = x.with(ctx, c, part.record, part.run)
		}
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
func (x *runner) with(ctx context.Context, c *config.Config, record bool, f func(context.Context) error) error {
	c = x.p.part(c)
	if record && x.o.Record != "" {
		x.recording(c, len(x.p.Receivers) == 0)
	}
	s, err := system.Open(ctx, c, system.Options{Logger: slog.New(slog.DiscardHandler), Engines: x.o.Engines})
	if err != nil {
		return err
	}
	x.sys = s
	err = errors.Join(f(ctx), s.Close())
	after := s.Snapshot()
	x.r.recorded(&after)
	return err
}

// part is what a benchmark opens of a configuration: regions and interfaces, without the tags and
// tunnels that senders put on themselves, and of sockets only the ends that run, with queues as
// deep as rdma_bench_* says.
func (p *Plan) part(c *config.Config) *config.Config {
	out := *c
	out.Transfers, out.Registry, out.Security, out.Metrics, out.Applications = nil, nil, nil, nil, nil
	out.Interfaces = nil
	for _, f := range c.Interfaces {
		if !p.opens(f.Name) {
			continue
		}
		if f.Tx != nil && len(f.Tx.Flows) > 0 {
			tx := *f.Tx
			tx.Flows = nil
			f.Tx = &tx
		}
		for _, s := range p.Sockets {
			if s.Interface == f.Name && s.rxDepth > 0 && f.Rx != nil {
				rx := *f.Rx
				rx.Queues = slices.Clone(rx.Queues)
				for k := range rx.Queues {
					rx.Queues[k].Depth = s.rxDepth
				}
				f.Rx = &rx
			}
			if s.Interface == f.Name && s.txDepth > 0 && f.Tx != nil {
				tx := *f.Tx
				tx.Queues = slices.Clone(tx.Queues)
				for k := range tx.Queues {
					tx.Queues[k].Depth = s.txDepth
				}
				f.Tx = &tx
			}
		}
		out.Interfaces = append(out.Interfaces, f)
	}
	return &out
}

// counts are those of the interfaces at one time.
type counts struct {
	drops  engine.Drops
	kernel uint64
	ports  map[string]engine.Drops   // on the way in, by interface
	queues map[string]engine.Drops   // of receive queues and their stages, by interface/queue
	stages map[string][]engine.Count // likewise, since the interfaces were opened
}

func (x *runner) counts() counts {
	c := counts{ports: map[string]engine.Drops{}, queues: map[string]engine.Drops{},
		stages: map[string][]engine.Count{}}
	for _, f := range x.sys.Snapshot().Interfaces {
		in := f.Stats.Drops
		in.Add(&f.Stats.Rx.Drops)
		c.ports[f.Name] = in
		c.drops.Add(&in)
		c.drops.Add(&f.Stats.Tx.Drops)
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

// since are the counts of what happened after others were taken.
func (c counts) since(before *counts) *counts {
	less := func(d, b engine.Drops) engine.Drops {
		for i := range d {
			d[i] -= b[i]
		}
		return d
	}
	c.drops = less(c.drops, before.drops)
	c.kernel -= before.kernel
	for name, d := range c.ports {
		c.ports[name] = less(d, before.ports[name])
	}
	for name, d := range c.queues {
		c.queues[name] = less(d, before.queues[name])
	}
	return &c
}

// direction is what receivers of this process receive, from senders of this process or of others.
type direction struct {
	receivers []*receiver
	l         *ledgers
	local     bool // both ends are in this process
	from      []*sender
	iface     string // that drops what is lost; "": any
	// over reports that nothing more is to come from senders elsewhere, so long after the begin.
	over func(since time.Duration) bool

	got, lost uint64
	changed   time.Time // got or lost; zero: the senders have not ended
}

// got and last are how many packets have come in all, and when the last of them did; 0: never.
func seen(all []*receiver) (n uint64, last int64) {
	for _, r := range all {
		n += r.seen.Load()
		last = max(last, r.last.Load())
	}
	return n, last
}

// done reports whether nothing more is to come: every packet that was sent has come or was dropped,
// or nothing has happened for as long as the options say. It reads the counts of all ports, which
// makes it slow.
func (x *runner) done(f *direction, since time.Duration) bool {
	switch {
	case len(f.receivers) == 0:
		return true
	case !f.local:
		return f.over(since)
	}
	sent := uint64(0)
	for _, s := range f.from {
		if s.running.Load() {
			return false
		}
		sent += s.sent.Load()
	}
	c := x.counts().since(&x.before)
	drops := c.drops
	if f.iface != "" {
		drops = c.ports[f.iface]
	}
	got, lost := f.l.total(), drops.Total()
	if got != f.got || lost != f.lost || f.changed.IsZero() {
		f.got, f.lost, f.changed = got, lost, time.Now()
	}
	quiet := time.Since(f.changed)
	// More than was sent: some that were dropped were not ours.
	return got >= sent || got+lost == sent || quiet > x.o.Settle || got+lost > sent && quiet > x.o.Settle/4
}

// exchange runs senders and receivers until everything has come that will. Who interrupts it stops
// the senders; what they had sent to this process is still waited for.
func (x *runner) exchange(ctx context.Context, senders []*sender, flows ...*direction) error {
	x.before = x.counts()
	rctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	sctx, halt := context.WithCancel(ctx)
	defer halt()
	sent, failed, receiving := make(chan error), make(chan error), 0
	for _, s := range senders {
		s.running.Store(true)
	}
	for _, f := range flows {
		for _, r := range f.receivers {
			receiving++
			go func() { failed <- r.serve(rctx) }()
		}
	}
	for _, s := range senders {
		go func() { sent <- s.send(sctx, x.o.Duration) }()
	}
	began := time.Now()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	interrupted, stopped := ctx.Done(), false
	var limit <-chan time.Time
	var err error
	sending := len(senders)
	for busy := true; busy && err == nil; {
		select {
		case err = <-sent:
			sending--
		case err = <-failed:
			receiving--
		case <-interrupted:
			interrupted, stopped = nil, true
		case <-limit:
			busy = false
		case <-look.C:
			busy = sending > 0
			for _, f := range flows {
				busy = busy || (!stopped || f.local) && !x.done(f, time.Since(began))
			}
		}
		if stopped && sending == 0 && limit == nil {
			t := time.NewTimer(x.o.Settle)
			defer t.Stop()
			limit = t.C
		}
	}
	for halt(); sending > 0; sending-- {
		err = errors.Join(err, <-sent)
	}
	for stop(); receiving > 0; receiving-- {
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

// raw runs bench_tx and bench_rx.
func (x *runner) raw(ctx context.Context) error {
	f := &direction{l: newLedgers(x.p.Senders, x.run), local: len(x.p.Senders) > 0}
	for i := range x.p.Receivers {
		r := &x.p.Receivers[i]
		in, err := x.sys.Rx(r.Interface, r.Queue)
		if err != nil {
			return r.err(err)
		}
		y := newReceiver(r, in, f.l)
		if y.checkers, err = newCheckers(r, f.l); err != nil {
			return err
		}
		f.receivers = append(f.receivers, y)
	}
	for i := range x.p.Senders {
		s := &x.p.Senders[i]
		tx, err := x.sys.Tx(s.Interface, s.Queue)
		if err != nil {
			return s.err(err)
		}
		t, err := newTemplate(s, x.sys.Port(s.Interface).Info().MAC)
		if err != nil {
			return s.err(err)
		}
		y := newSender(s, tx, t, x.run, uint16(i))
		y.most = x.o.Packets
		f.from = append(f.from, y)
	}
	f.over = func(since time.Duration) bool {
		n, _ := seen(f.receivers)
		return x.o.Packets > 0 && n >= x.o.Packets || x.o.Duration > 0 && since >= x.o.Duration
	}
	unchecked, doing := "", "sending"
	switch {
	case len(f.receivers) == 0:
		unchecked = nothingReceived
	case len(f.from) == 0:
		unchecked, doing = "packets of other programs", "receiving"
	}
	row, err := x.measure(ctx, "bench_tx and bench_rx", "raw", paired.MopsPerSec, unchecked,
		func(ctx context.Context) (paired.Sample, error) {
			x.say("%s%s", doing, x.until())
			began := time.Now()
			err := x.exchange(ctx, f.from, f)
			x.r.addRaw(f, x.counts().since(&x.before), time.Since(began))
			if err != nil {
				return paired.Sample{}, err
			}
			return x.r.rawSample()
		})
	if row != nil {
		row.Traffic = x.r.traffic()
		if l := latencyOf(f.receivers); l != nil {
			x.r.note("from a packet's burst until it was looked at: p50 %s us, p99 %s us, max %s us (not paced "+
				"unless the file says so)",
				digits(l.P50), digits(l.P99), digits(l.Max))
		}
		x.r.Rows = append(x.r.Rows, *row)
	}
	x.r.rawRows()
	return err
}
