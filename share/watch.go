package share

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// scanShare bounds the part of the time that scans take while the kernel reports no change: one in so many.
const scanShare = 1000

// watch has the kernel report changes in the directories that a scan has been in, so that a tree in which nothing happens is not scanned each time.
// What the kernel does not report, such as what another machine writes to a network file system, is seen by the scans that come all the same.
type watch struct {
	in     *sys.Inotify
	resume chan struct{} // has the reader look for more
	all    atomic.Bool   // every directory of the scan is watched
	due    atomic.Bool   // something happened
	last   time.Time     // of the last scan: when it ended. The goroutine of poll owns it, and cost
	cost   time.Duration // of the last scan
}

// newWatch returns nil where the kernel has no room for one.
func newWatch() *watch {
	in, err := sys.NewInotify()
	if err != nil {
		return nil
	}
	return &watch{in: in, resume: make(chan struct{}, 1)}
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

// read notes that something happened, until the Inotify is closed. What follows in the kernel's queue says nothing new until the next scan.
func (w *watch) read(done <-chan struct{}) {
	for w != nil {
		if _, err := w.in.Read(); err != nil {
			return
		}
		w.due.Store(true)
		select {
		case <-w.resume:
		case <-done:
			return
		}
	}
}

// needed reports whether it is time for a scan.
func (w *watch) needed() bool {
	return w == nil || !w.all.Load() || w.due.Load() || time.Since(w.last) >= scanShare*w.cost
}

// begins is called before a scan, and ends after it.
func (w *watch) begins() {
	if w == nil {
		return
	}
	w.last = time.Now()
	w.all.Store(true)
	w.due.Store(false)
	select {
	case w.resume <- struct{}{}:
	default:
	}
}

func (w *watch) ends() {
	if w != nil {
		now := time.Now()
		w.last, w.cost = now, now.Sub(w.last)
	}
}
