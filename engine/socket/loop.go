package socket

import (
	"sync"

	"github.com/penstock-io/penstock/internal/sys"
)

// watcher is told when its descriptor is ready. It is called by the loop's goroutine and must not wait; it may be called once more
// after remove has returned.
type watcher interface {
	ready(events uint32)
}

// loop is one goroutine in epoll for what all ports wait for besides packets: connections to accept, connections being made, room to
// send. It runs while anything is watched.
type loop struct {
	mu  sync.Mutex
	run *loopRun
	n   int    // watched
	tag uint64 // given last
}

// events is the one loop.
var events loop

type loopRun struct {
	epoll *sys.Epoll
	stop  int // eventfd, with tag 0

	mu  sync.Mutex
	who map[uint64]watcher
}

// add watches a descriptor and returns its tag.
func (l *loop) add(fd int, mask uint32, w watcher) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.run == nil {
		r, err := newLoopRun()
		if err != nil {
			return 0, err
		}
		l.run = r
		go r.serve()
	}
	l.tag++
	l.n++
	l.run.mu.Lock()
	l.run.who[l.tag] = w
	l.run.mu.Unlock()
	if err := l.run.epoll.Add(fd, mask, l.tag); err != nil {
		l.forget(l.tag)
		return 0, err
	}
	return l.tag, nil
}

// set changes what the descriptor is watched for.
func (l *loop) set(fd int, mask uint32, tag uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.run != nil {
		l.run.epoll.Set(fd, mask, tag)
	}
}

// remove ends the watch; the descriptor is still open.
func (l *loop) remove(fd int, tag uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.run.epoll.Remove(fd)
	l.forget(tag)
}

// drop ends the watch of a descriptor that is closed already.
func (l *loop) drop(tag uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(tag)
}

func (l *loop) forget(tag uint64) {
	l.run.mu.Lock()
	delete(l.run.who, tag)
	l.run.mu.Unlock()
	if l.n--; l.n == 0 {
		sys.Ring(l.run.stop)
		l.run = nil
	}
}

func newLoopRun() (*loopRun, error) {
	e, err := sys.NewEpoll()
	if err != nil {
		return nil, err
	}
	stop, err := sys.Eventfd()
	if err != nil {
		e.Close()
		return nil, err
	}
	if err := e.Add(stop, sys.EventIn, 0); err != nil {
		e.Close()
		sys.Close(stop)
		return nil, err
	}
	return &loopRun{epoll: e, stop: stop, who: map[uint64]watcher{}}, nil
}

func (r *loopRun) serve() {
	defer sys.Close(r.stop)
	defer r.epoll.Close()
	var es [64]sys.EpollEvent
	for {
		n, err := r.epoll.Wait(es[:], -1)
		if err != nil {
			return // only at the end of the process
		}
		for _, e := range es[:n] {
			if e.Tag == 0 {
				return
			}
			r.mu.Lock()
			w := r.who[e.Tag]
			r.mu.Unlock()
			if w != nil {
				w.ready(e.Events)
			}
		}
	}
}
