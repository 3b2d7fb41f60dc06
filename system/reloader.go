package system

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/internal/filewatch"
)

// ReloaderOptions are the choices for a Reloader. The zero value is good.
type ReloaderOptions struct {
	// Load is how the file is read.
	Load config.Options
	// NoWatch leaves reloading to Trigger.
	NoWatch bool
	// Report is called after each attempt, by one goroutine, which reloads nothing meanwhile.
	Report func(Reloaded)
}

// Reloaded is an attempt to reload. Exactly one of Changes and Err is set; with an error everything
// is as it was.
type Reloaded struct {
	Asked    bool               // by Trigger; otherwise the file has changed
	Text     []byte             // of the file, for excerpts in Problems; nil if it could not be read
	Problems config.Diagnostics // that the file has, also when it was taken
	Changes  *Changes
	Err      error
}

// Reloader puts the flows of a file in force when the file changes, or when Trigger asks for it.
type Reloader struct {
	s     *System
	path  string
	o     ReloaderOptions
	watch *filewatch.Watcher // nil with NoWatch
	asked chan struct{}
	over  chan struct{}
	once  sync.Once
	err   error // of Close
	wg    sync.WaitGroup
}

// NewReloader begins to watch the file that the System was opened from, and looks at it at once,
// for it may have changed since it was read. Changes that come in a burst are one. A file that is
// gone, or is wrong, or differs in more than flows, is reported and changes nothing. Close it
// before the System.
func NewReloader(s *System, path string, o ReloaderOptions) (*Reloader, error) {
	r := &Reloader{s: s, path: path, o: o, asked: make(chan struct{}, 1), over: make(chan struct{})}
	var changed <-chan struct{}
	if !o.NoWatch {
		var err error
		if r.watch, err = filewatch.New(path); err != nil {
			return nil, fmt.Errorf("penstock: the file cannot be watched: %w", err)
		}
		changed = r.watch.C()
	}
	r.wg.Go(func() { r.run(changed) })
	return r, nil
}

// Trigger asks for a reload, also of a file that has not changed; several before it begins are one.
// It does not wait.
func (r *Reloader) Trigger() {
	select {
	case r.asked <- struct{}{}:
	default:
	}
}

// Close ends the watch, and waits for a reload that is under way and its Report. Calling it again
// does nothing.
func (r *Reloader) Close() error {
	r.once.Do(func() {
		close(r.over)
		if r.watch != nil {
			r.err = r.watch.Close()
		}
		r.wg.Wait()
	})
	return r.err
}

func (r *Reloader) run(changed <-chan struct{}) {
	var last []byte // text that was looked at
	known := false  // whether there is one; a file that is gone counts as such, without text
	if !r.o.NoWatch {
		last, known = r.look(nil, false), true
	}
	for {
		select {
		case <-r.over:
			return
		default:
		}
		select {
		case <-r.over:
			return
		case <-r.asked:
			last, known = r.load(true), true
		case _, ok := <-changed:
			if !ok {
				return
			}
			last = r.look(last, known)
		}
	}
}

// look reloads if the file has another text than the last, and returns it.
func (r *Reloader) look(last []byte, known bool) []byte {
	text, err := os.ReadFile(r.path)
	switch {
	case known && err != nil && last == nil, known && err == nil && last != nil && bytes.Equal(text, last):
		return last
	case !known && err == nil: // the first look
		if cfg, _ := config.Load(r.path, text, r.o.Load); cfg != nil && cfg.Equal(r.s.Config()) {
			return text
		}
	}
	return r.load(false)
}

// load reads the file and puts it in force, and returns its text, nil without one.
func (r *Reloader) load(asked bool) []byte {
	out := Reloaded{Asked: asked}
	var cfg *config.Config
	if out.Text, out.Err = os.ReadFile(r.path); out.Err != nil {
		out.Text = nil
		if errors.Is(out.Err, fs.ErrNotExist) {
			out.Err = fmt.Errorf("penstock: the file is gone: what was in force stays: %w", out.Err)
		}
	} else {
		if out.Text == nil {
			out.Text = []byte{}
		}
		if cfg, out.Problems = config.Load(r.path, out.Text, r.o.Load); cfg == nil {
			out.Err = out.Problems.Err()
		} else {
			out.Changes, out.Err = r.s.Reload(cfg)
		}
	}
	if r.o.Report != nil {
		r.o.Report(out)
	}
	return out.Text
}
