package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"time"

	root "github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/app"
	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/share"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
)

// How long the end may take: for packets that were given to be sent, and for peers to let go of tensors.
const (
	drainLimit = time.Second
	closeLimit = 2 * time.Second
)

// runner runs one file.
type runner struct {
	ctx     context.Context
	o       runOptions
	out     *runOutput
	cfg     *config.Config
	name    string
	planned []plannedApp

	sys  *root.System
	apps []*app.App

	mu    sync.Mutex // guards what follows
	ended []string   // why an application has ended, by its index; "" while it runs
	over  bool
	wg    sync.WaitGroup // of the peers; added to under the mutex while over is not set
}

// run opens everything, shows it until the end is wanted, and closes it.
func (r *runner) run() (err error) {
	var limit <-chan time.Time
	if r.sys, err = root.Open(r.ctx, r.cfg, root.Options{Logger: r.out.logger(r.cfg), OnPeer: r.come, OnLink: r.out.link, GPURuntime: r.o.gpu.runtime}); err != nil {
		return err
	}
	m := newSampler(r.sys.Plan(), time.Now())
	ctx, stop := context.WithCancel(r.ctx)
	var work sync.WaitGroup
	failed := make(chan error, len(r.planned))
	r.ended = make([]string, len(r.planned))
	defer func() { err = errors.Join(err, r.close(m, stop, &work)) }()
	for i := range r.planned {
		a, err := r.planned[i].open(r.sys)
		if err != nil {
			return err
		}
		r.apps = append(r.apps, a)
	}
	for i, a := range r.apps {
		work.Go(func() {
			defer r.out.rescue()
			if err := a.Run(ctx); err != nil {
				r.mu.Lock()
				r.ended[i] = err.Error()
				r.mu.Unlock()
				failed <- err
			}
		})
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, sys.Hangup)
	defer signal.Stop(hup)
	reload := func() { r.out.message("the configuration came from the standard input: it cannot be read again") }
	if !r.stdin() {
		l, err := root.NewReloader(r.sys, r.name, root.ReloaderOptions{NoWatch: r.o.noReload, Report: r.out.reload})
		if err != nil {
			return err
		}
		defer l.Close()
		reload = l.Trigger
	}
	if r.o.duration > 0 {
		t := time.NewTimer(r.o.duration)
		defer t.Stop()
		limit = t.C
	}
	r.out.started(r, m)
	defer r.out.closeScreen() // before all else, so that the second Ctrl-C finds the terminal as it was
	defer r.out.rescue()
	var tick <-chan time.Time // never, where nothing is shown
	if r.out.mode != displayQuiet {
		t := time.NewTicker(r.out.interval)
		defer t.Stop()
		tick = t.C
	}
	size, stopSize := resizes()
	defer stopSize()
	for {
		select {
		case <-r.ctx.Done():
			return nil
		case <-limit:
			return nil
		case <-r.out.quit:
			return nil
		case err := <-failed:
			return err
		case <-hup:
			if r.out.hungUp() {
				return nil
			}
			reload()
		case <-size:
			r.out.redraw()
		case <-r.out.log.more:
			r.out.redraw()
		case <-tick:
			r.out.show(m.sample(r.read()))
		}
	}
}

// read reads all counts.
func (r *runner) read() *runRaw {
	raw := &runRaw{at: time.Now(), cpu: cpuNow(), sys: r.sys.Snapshot()}
	r.readApps(raw)
	return raw
}

func (r *runner) readApps(raw *runRaw) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, a := range r.apps {
		raw.apps = append(raw.apps, runAppRaw{a.Snapshot(), r.planned[i].From, r.planned[i].To, r.ended[i]})
	}
}

// close ends everything in order, and hands the last counts, which are exact, to the output.
func (r *runner) close(m *sampler, stop func(), work *sync.WaitGroup) (err error) {
	stop()
	work.Wait()
	// What applications sent leaves first; what a peer does not take in that time counts as dropped.
	ctx, cancel := context.WithTimeout(context.Background(), drainLimit)
	for _, f := range r.sys.Interfaces() {
		for _, q := range f.Tx {
			q.Queue.Drain(ctx)
		}
	}
	cancel()
	raw := r.read()
	node := raw.sys.Node
	ctx, cancel = context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	for _, a := range r.apps {
		err = errors.Join(err, a.Close(ctx))
	}
	err = errors.Join(err, r.sys.Close())
	raw.sys = r.sys.Snapshot()
	if node != nil {
		raw.sys.Node = node // a closed node has no peers
	}
	r.mu.Lock()
	r.over = true
	r.mu.Unlock()
	r.wg.Wait()
	r.out.last = m.sample(raw)
	return err
}

// come says that a peer has come, and that it goes.
func (r *runner) come(p *transfer.Peer) {
	name := share.Printable(nameOf(p))
	r.out.message(fmt.Sprintf("peer %s: connected", name))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return
	}
	r.wg.Go(func() {
		<-p.Gone()
		text := "gone"
		if err := p.Err(); err != nil && !errors.Is(err, control.Shutdown) && !errors.Is(err, control.OK) {
			text = "gone: " + escapeControls(err.Error())
		}
		r.out.message(fmt.Sprintf("peer %s: %s", name, text))
	})
}
