package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/share"
	"github.com/penstock-io/penstock/stage/app"
	root "github.com/penstock-io/penstock/system"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
)

// runner runs one file.
type runner struct {
	ctx    context.Context
	o      runOptions
	out    *runOutput
	cfg    *config.Config
	name   string
	failed chan error // has room for the first error of an application

	sys *root.System

	mu   sync.Mutex // guards what follows
	over bool
	wg   sync.WaitGroup // of the peers; added to under the mutex while over is not set
}

// options are those of the plan and of the System. A receive queue without an application is
// counted and emptied.
func (r *runner) options() root.Options {
	return root.Options{OnPeer: r.come, OnLink: r.out.link, GPURuntime: r.o.gpu.runtime, Unclaimed: app.Count,
		OnApplication: func(_ string, err error) {
			select {
			case r.failed <- err:
			default:
			}
		}}
}

// run opens everything, shows it until the end is wanted, and closes it.
func (r *runner) run() (err error) {
	var limit <-chan time.Time
	o := r.options()
	o.Logger = r.out.logger(r.cfg)
	if r.sys, err = root.Open(r.ctx, r.cfg, o); err != nil {
		return err
	}
	m := newSampler(r.sys.Plan(), time.Now())
	defer func() { err = errors.Join(err, r.close(m)) }()
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, sys.Hangup)
	defer signal.Stop(hup)
	rotate := make(chan os.Signal, 1)
	signal.Notify(rotate, sys.User1)
	defer signal.Stop(rotate)
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
		case err := <-r.failed:
			return err
		case <-hup:
			if r.out.hungUp() {
				return nil
			}
			reload()
		case <-rotate:
			r.out.message(fmt.Sprintf("SIGUSR1: %s", count(r.sys.RotateRecordings(), "recording begins a file",
				"recordings begin a file")))
		case <-size:
			r.out.redraw()
		case <-r.out.log.more:
			r.out.redraw()
		case <-tick:
			raw := r.read()
			r.out.notes(r.sys.Plan(), &raw.sys) // those of flows that were reloaded among them
			r.out.show(m.sample(raw))
		}
	}
}

// read reads all counts.
func (r *runner) read() *runRaw {
	return &runRaw{at: time.Now(), cpu: cpuNow(), sys: r.sys.Snapshot()}
}

// close ends everything in order, and hands the last counts, which are exact, to the output.
func (r *runner) close(m *sampler) error {
	raw := r.read()
	node := raw.sys.Node
	err := r.sys.Close()
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
