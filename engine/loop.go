package engine

import (
	"sync"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/metrics"
)

// Watcher takes the events of a descriptor that a Loop watches. The Loop's goroutine calls Ready,
// which must not wait; it may do so once more after Remove has returned.
type Watcher interface{ Ready(events uint32) }

// Loop is one goroutine in epoll that calls Watchers. It runs while any descriptor is watched. The
// zero Loop is ready to use, by any goroutine.
type Loop struct {
	mu     sync.Mutex
	epoll  *sys.Epoll // nil while nothing is watched
	stop   int        // eventfd, with tag 0
	who    map[uint64]Watcher
	tag    uint64          // given last
	rounds metrics.Counter // returns of epoll
}

// Add watches a descriptor for the events of mask, and returns its tag.
func (l *Loop) Add(fd int, mask uint32, w Watcher) (tag uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.epoll == nil {
		if err := l.start(); err != nil {
			return 0, err
		}
	}
	l.tag++
	l.who[l.tag] = w
	if err := l.epoll.Add(fd, mask, l.tag); err != nil {
		l.forget(l.tag)
		return 0, err
	}
	return l.tag, nil
}

// Set changes what the descriptor is watched for.
func (l *Loop) Set(fd int, mask uint32, tag uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.who[tag] == nil {
		return ErrClosed
	}
	return l.epoll.Set(fd, mask, tag)
}

// Quiet takes a watched descriptor off the kernel's list of those that wait for it, until Loud.
func (l *Loop) Quiet(fd int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.epoll.Remove(fd)
}

// Loud is Set after Quiet.
func (l *Loop) Loud(fd int, mask uint32, tag uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.epoll.Add(fd, mask, tag)
}

// Remove ends the watch of a descriptor that is still open.
func (l *Loop) Remove(fd int, tag uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.epoll.Remove(fd)
	l.forget(tag)
}

// Drop ends the watch of a descriptor that is closed already, or quiet.
func (l *Loop) Drop(tag uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(tag)
}

func (l *Loop) forget(tag uint64) {
	delete(l.who, tag)
	if len(l.who) == 0 && l.epoll != nil {
		sys.Ring(l.stop)
		l.epoll = nil
	}
}

func (l *Loop) start() error {
	e, err := sys.NewEpoll()
	if err != nil {
		return err
	}
	stop, err := sys.Eventfd()
	if err != nil {
		e.Close()
		return err
	}
	if err := e.Add(stop, sys.EventIn, 0); err != nil {
		e.Close()
		sys.Close(stop)
		return err
	}
	l.epoll, l.stop, l.who = e, stop, map[uint64]Watcher{}
	go l.run(e, stop)
	return nil
}

func (l *Loop) run(epoll *sys.Epoll, stop int) {
	defer sys.Close(stop)
	defer epoll.Close()
	var events [64]sys.EpollEvent
	for {
		n, err := epoll.Wait(events[:], -1)
		if err != nil {
			return // the epoll instance is gone, which only happens at the end of the process
		}
		for i, e := range events[:n] {
			if e.Tag == 0 {
				return
			}
			l.mu.Lock()
			if i == 0 {
				l.rounds.Inc()
			}
			w := l.who[e.Tag]
			l.mu.Unlock()
			if w != nil {
				w.Ready(e.Events)
			}
		}
	}
}
