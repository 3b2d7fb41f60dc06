package share

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// scanShare bounds the part of the time that scans take while the kernel reports no change: one in
// so many.
const scanShare = 1000

// scanPause is how many times as long as the last scan took no scan begins that peers ask for.
const scanPause = 3

// maxEventReads bounds how often events are read before a scan: as often as all that the kernel
// keeps by default take.
const maxEventReads = 512

// watch has the kernel report changes in the directories that a scan has been in, so that a tree in
// which nothing happens is not scanned each time, and that listings have what has changed. What the
// kernel does not report, such as what another machine writes to a network file system, is seen by
// the scans that come all the same.
type watch struct {
	in   *sys.Inotify
	all  atomic.Bool   // every directory of the scan is watched
	wake chan struct{} // buffered: a request waits for a scan

	mu          sync.Mutex    // guards what follows
	begun, over uint64        // scans
	last        time.Time     // when the last scan ended, or the one under way began
	cost        time.Duration // of the last scan
	ended       chan struct{} // closed at the end of the scan under way, or of the next one
}

// newWatch returns nil where the kernel has no room for one.
func newWatch() *watch {
	in, err := sys.NewInotify()
	if err != nil {
		return nil
	}
	return &watch{in: in, wake: make(chan struct{}, 1), ended: make(chan struct{})}
}

func (w *watch) close() {
	if w != nil {
		w.in.Close() // without writes, it has nothing to fail at
	}
}

// dir watches an open directory.
func (w *watch) dir(d *os.File) {
	if w == nil || !w.all.Load() {
		return
	}
	raw, err := d.SyscallConn()
	if err == nil {
		var werr error
		err = raw.Control(func(fd uintptr) { _, werr = w.in.WatchDirectory(fmt.Sprintf("/proc/self/fd/%d", fd)) })
		if err == nil {
			err = werr
		}
	}
	if err != nil { // fs.inotify.max_user_watches, or no /proc
		w.all.Store(false)
	}
}

// changed reports whether the kernel has reported a change since the last scan began.
func (w *watch) changed() bool {
	if w == nil || !w.all.Load() {
		return false
	}
	n, err := w.in.Pending()
	return n > 0 || err != nil
}

// needed reports whether it is time for a scan.
func (w *watch) needed() bool {
	if w == nil || !w.all.Load() || w.changed() {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Since(w.last) >= scanShare*w.cost
}

// pause is how long no scan begins that peers ask for.
func (w *watch) pause() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Until(w.last.Add(scanPause * w.cost))
}

// begins is called before a scan, and ends after it.
func (w *watch) begins() {
	if w == nil {
		return
	}
	w.mu.Lock()
	w.begun++ // before the events are taken: see caughtUp
	w.last = time.Now()
	w.mu.Unlock()
	w.all.Store(true)
	for range maxEventReads { // a program that writes all the time does not hold it up
		if n, err := w.in.Pending(); n == 0 || err != nil {
			return
		}
		if _, err := w.in.Read(); err != nil { // it is closed
			return
		}
	}
}

func (w *watch) ends() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	w.last, w.cost, w.over = now, now.Sub(w.last), w.begun
	close(w.ended)
	w.ended = make(chan struct{})
}

// wanted is ready when a request waits for a scan.
func (w *watch) wanted() <-chan struct{} {
	if w == nil {
		return nil
	}
	return w.wake
}

// caughtUp waits, until ctx ends, for a scan that sees what the kernel has reported so far: for 0,
// one that begins from now on; else the scan of that number. It returns 0 if nothing is new any
// more, or the number of the scan that is not over. Without patience it does not wait for the pause
// between scans.
func (w *watch) caughtUp(ctx context.Context, scan uint64, patient bool) uint64 {
	if w == nil {
		return 0
	}
	for {
		changed := w.changed() // before begun is read: events are taken while a scan has begun
		w.mu.Lock()
		if scan == 0 || scan > w.begun+1 {
			scan = w.begun + 1
		}
		idle, over, ended := w.begun == w.over, w.over >= scan, w.ended
		w.mu.Unlock()
		if over || idle && !changed {
			return 0
		}
		if idle && !patient && w.pause() > 0 {
			return scan
		}
		select {
		case w.wake <- struct{}{}:
		default:
		}
		select {
		case <-ended:
		case <-ctx.Done():
			return scan
		}
	}
}
