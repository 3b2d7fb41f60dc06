// Package filewatch reports when the content of a file may have changed, also behind symbolic
// links.
//
//	w, err := filewatch.New("rx.yaml")
//	defer w.Close()
//	for range w.C() {
//		text, err := os.ReadFile("rx.yaml")
//		...
//	}
//
// It watches directories, not the file: editors write a new file and give it the old name, and
// orchestrators change a symbolic link somewhere on the way to it. All directories on that way that
// hold a link are watched, and the way is looked at again after each change. A directory further up
// that is renamed is not noticed.
//
// The Watcher reports a burst of changes once, when it has been quiet for a moment (Quiet), or has
// gone on for a while (Longest). It may report a change that was none: a caller that wants to know
// reads the file and compares.
package filewatch

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

const (
	// Quiet is how long nothing must have happened before the Watcher reports a change.
	Quiet = 100 * time.Millisecond
	// Longest is after how long the Watcher reports a change although more happens.
	Longest = 2 * time.Second
	// maxLinks is how many symbolic links are followed, as the kernel does.
	maxLinks = 40
)

// Watcher watches one file.
type Watcher struct {
	path  string
	in    *sys.Inotify
	names map[int32]map[string]bool // of each directory that is watched: what of it lies on the way
	c     chan struct{}
	done  chan struct{}
	wg    sync.WaitGroup
	once  sync.Once
}

// New begins to watch a file, which need not be there. The Watcher reports what happens from now
// on.
func New(path string) (*Watcher, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("filewatch: %w", err)
	}
	in, err := sys.NewInotify()
	if err != nil {
		return nil, fmt.Errorf("filewatch: %s: %w: sysctl fs.inotify.max_user_instances allows more of them", path, err)
	}
	w := &Watcher{path: abs, in: in, c: make(chan struct{}, 1), done: make(chan struct{})}
	if err := w.follow(); err != nil {
		in.Close()
		return nil, fmt.Errorf("filewatch: %s: %w", path, err)
	}
	events := make(chan struct{}, 1)
	w.wg.Go(func() { w.read(events) })
	w.wg.Go(func() { w.debounce(events) })
	return w, nil
}

// C tells that the file may have another content; changes that come before the last one was taken
// are one.
func (w *Watcher) C() <-chan struct{} { return w.c }

// Close ends the watch, and C with it. It may be called again.
func (w *Watcher) Close() error {
	var err error
	w.once.Do(func() {
		close(w.done)
		err = w.in.Close()
		w.wg.Wait()
		close(w.c)
	})
	return err
}

// follow watches the directories on the way to the file: that of each part of the path that is a
// symbolic link, or the file.
func (w *Watcher) follow() error {
	names := map[int32]map[string]bool{}
	note := func(dir, name string) error {
		id, err := w.in.WatchDirectory(dir)
		if err != nil {
			return err
		}
		if names[id] == nil {
			names[id] = map[string]bool{}
		}
		names[id][name] = true
		return nil
	}
	path := w.path
	for range maxLinks {
		// The first part of the path that is no directory: a link, the file, or not there.
		at, name, rest := "/", "", path[1:]
		for {
			name, rest, _ = strings.Cut(rest, "/")
			info, err := os.Lstat(filepath.Join(at, name))
			if rest == "" || err != nil || !info.IsDir() {
				break
			}
			at = filepath.Join(at, name)
		}
		if err := note(at, name); err != nil {
			if len(names) > 0 { // the directory went meanwhile; an event reports its removal
				break
			}
			return err
		}
		to, err := os.Readlink(filepath.Join(at, name)) // now that a change of it would be noticed
		if err != nil {
			break // it is no link
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(at, to)
		}
		path = filepath.Join(to, rest)
	}
	w.names = names
	return nil
}

// read reads events until Close, and passes on those that matter.
func (w *Watcher) read(events chan<- struct{}) {
	defer close(events)
	for {
		list, err := w.in.Read()
		if err != nil {
			return
		}
		matters := false
		for _, e := range list {
			names := w.names[e.Watch]
			matters = matters || e.Lost || names != nil && (e.Name == "" || names[e.Name])
		}
		if !matters {
			continue
		}
		_ = w.follow() // without a way, what was watched before is watched on
		select {
		case events <- struct{}{}:
		default: // one is on its way
		}
	}
}

// debounce reports a burst of events once.
func (w *Watcher) debounce(events <-chan struct{}) {
	for range events {
		quiet, longest := time.NewTimer(Quiet), time.NewTimer(Longest)
		for waiting := true; waiting; {
			select {
			case _, ok := <-events:
				if waiting = ok; ok {
					quiet.Reset(Quiet)
				}
			case <-quiet.C:
				waiting = false
			case <-longest.C:
				waiting = false
			case <-w.done:
				waiting = false
			}
		}
		quiet.Stop()
		longest.Stop()
		select {
		case w.c <- struct{}{}:
		default:
		}
	}
}
