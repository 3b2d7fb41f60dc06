package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/path"
)

// deathRows measures how soon this side, waiting in event mode, learns that the second process was
// killed: while puts are under way, and while nothing is.
func (o *TransferOptions) deathRows(ctx context.Context, r *Suite, driver string) error {
	for _, busy := range []bool{true, false} {
		h := shape{class: driver + " peer killed while idle, until the error", what: "peer killed", path: driver,
			mode: Event}
		if busy {
			h.class = driver + " peer killed midway, until the error"
		}
		o.Progress.Say("%s", h.title())
		var cpu, wall time.Duration
		run := func(ctx context.Context) (paired.Sample, error) {
			d, c, w, err := o.death(ctx, driver, busy)
			cpu, wall = cpu+c, wall+w
			return paired.Sample{Value: float64(d) / 1e6}, err
		}
		// Nothing gets warm by being killed.
		p := paired.Plan{Name: h.title(), Unit: paired.Milliseconds, Pairs: o.Pairs, Warmup: -1, Goal: 100,
			Ours: paired.Contender{Name: "penstock", Unchecked: "the peer dies before it could tell", Run: run}}
		err := r.Measure(ctx, p, func(x *paired.Row) error {
			h.describe(x)
			if !busy {
				x.Note = fmt.Sprintf("CPU of the wait: %.1f %% of a core over %v", 100*cpu.Seconds()/wall.Seconds(),
					wall.Round(time.Millisecond))
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// death lets a second process live for a moment and kills it. It returns the time from the kill to
// the error, and how much processor time this process used over the whole wait.
func (o *TransferOptions) death(ctx context.Context, driver string, busy bool) (late, cpu, wall time.Duration,
	err error) {
	l, err := o.dial(ctx, o.node())
	if err != nil {
		return 0, 0, 0, err
	}
	killed := false
	defer func() {
		if killed {
			for _, n := range l.nodes {
				n.Close()
			}
			l.in.Close()
		} else {
			err = errors.Join(err, l.close())
		}
	}()
	if err := l.openQueues(ctx, driver, Event, 1, 0); err != nil {
		return 0, 0, 0, err
	}
	x, err := l.newLoad(ctx, path.Put, Event, 1<<20, 1, 2)
	if err != nil {
		return 0, 0, 0, err
	}
	defer x.b.local.Close()
	if err := x.prepare(); err != nil {
		return 0, 0, 0, err
	}
	if _, err := x.run(ctx, 8); err != nil {
		return 0, 0, 0, err
	}
	life := 20 * time.Millisecond
	if !busy {
		life = 100 * time.Millisecond // long enough to tell a sleeping process from a spinning one
	}
	bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	type end struct {
		at  time.Time
		cpu time.Duration
		err error
	}
	ended := make(chan end, 1)
	begin, err := sys.ProcessCPU()
	if err != nil {
		return 0, 0, 0, err
	}
	start := time.Now()
	go func() {
		var err error
		if busy {
			_, err = x.run(bounded, 1<<30)
		} else {
			err = waitDown(bounded, x.flows[0])
		}
		t := time.Now()
		c, _ := sys.ProcessCPU()
		ended <- end{t, c, err}
	}()
	select {
	case e := <-ended:
		return 0, 0, 0, fmt.Errorf("bench: the path ended before the peer was killed: %w", e.err)
	case <-time.After(life):
	}
	t := time.Now()
	killed = true
	if err := l.cmd.Process.Kill(); err != nil {
		return 0, 0, 0, err
	}
	e := <-ended
	l.cmd.Wait() // "signal: killed"
	for _, q := range l.queues {
		q.Close()
	}
	if !errors.Is(e.err, path.ErrDown) && !strings.Contains(fmt.Sprint(e.err), "lost") {
		return 0, 0, 0, fmt.Errorf("%w: the peer was killed, and the wait ended with: %v", paired.ErrFailed, e.err)
	}
	return e.at.Sub(t), e.cpu - begin, e.at.Sub(start), nil
}

func waitDown(ctx context.Context, f *flow) error {
	for {
		n, err := f.q.Wait(ctx, f.events[:], 0)
		if err != nil {
			return err
		}
		for i := range n {
			if err := downOf(&f.events[i]); err != nil {
				return err
			}
		}
	}
}

// congestionNote finds what a path says about its congestion control.
func congestionNote(lines []string) string {
	for _, l := range lines {
		if strings.Contains(l, "congestion") {
			return l
		}
	}
	return ""
}
