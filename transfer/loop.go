package transfer

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// loop is the owner of a node's lanes when nobody else is: one goroutine that sleeps in epoll over the descriptors of all
// paths and serves those that are ready. After activity it keeps polling for the node's spin time before it sleeps again.
type loop struct {
	ep   *sys.Epoll
	wake int // eventfd
	spin time.Duration

	mu     sync.Mutex // guards lanes and kicked
	lanes  map[uint64]*lane
	next   uint64
	kicked []*lane // to be served although their descriptors may be silent

	stop   atomic.Bool
	exited chan struct{}
}

const wakeTag = 0

func newLoop(spin time.Duration) (*loop, error) {
	ep, err := sys.NewEpoll()
	if err != nil {
		return nil, err
	}
	wake, err := sys.Eventfd()
	if err != nil {
		ep.Close()
		return nil, err
	}
	if err := ep.Add(wake, sys.EventIn, wakeTag); err != nil {
		ep.Close()
		sys.Close(wake)
		return nil, err
	}
	l := &loop{ep: ep, wake: wake, spin: spin, lanes: map[uint64]*lane{}, exited: make(chan struct{})}
	go l.run()
	return l, nil
}

// add gives a lane to the loop.
func (l *loop) add(ln *lane) error {
	ln.mu.Lock() // the path may be closed meanwhile, and its descriptor be another file's
	defer ln.unlock()
	if ln.gone {
		return ln.down
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next++
	ln.tag = l.next
	if err := l.ep.Add(ln.p.FD(), sys.EventIn, ln.tag); err != nil {
		return fmt.Errorf("transfer: watch the %s path: %w", ln.p.Name(), err)
	}
	l.lanes[ln.tag] = ln
	l.kicked = append(l.kicked, ln) // serve it once: this arms it
	sys.Ring(l.wake)
	return nil
}

// remove forgets a lane whose path is closed; the closed descriptor has left the epoll set by itself.
func (l *loop) remove(ln *lane) {
	l.mu.Lock()
	delete(l.lanes, ln.tag)
	l.mu.Unlock()
}

// watch turns the readiness of a lane's descriptor on or off. The lane's mutex is held.
func (l *loop) watch(ln *lane, on bool) {
	var events uint32
	if on {
		events = sys.EventIn
	}
	l.ep.Set(ln.p.FD(), events, ln.tag)
}

// kick has the loop serve a lane soon although its descriptor may be silent.
func (l *loop) kick(ln *lane) {
	l.mu.Lock()
	l.kicked = append(l.kicked, ln)
	l.mu.Unlock()
	sys.Ring(l.wake)
}

func (l *loop) close() {
	l.stop.Store(true)
	sys.Ring(l.wake)
	<-l.exited
	l.ep.Close()
	sys.Close(l.wake)
}

func (l *loop) run() {
	defer close(l.exited)
	if l.spin > 0 {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	var events [64]sys.EpollEvent
	hot := map[*lane]bool{} // lanes that had something to do a moment ago
	var active time.Time    // when a lane last had something to do
	spinning := false
	for round := 0; !l.stop.Load(); round++ {
		// While lanes are hot the kernel is asked only now and then: that is the expensive part of a round.
		if look := round%16 == 0; look || len(hot) == 0 {
			timeout := -1
			if len(hot) > 0 {
				timeout = 0
			}
			n, err := l.ep.Wait(events[:], timeout)
			if err != nil {
				return // the descriptor is gone: the node is closing
			}
			if l.collect(events[:n], hot) {
				active = time.Now()
			}
			spinning = l.spin > 0 && time.Since(active) < l.spin
		}
		busy := false
		for ln := range hot {
			more := ln.serve(!spinning)
			busy = busy || more
			if !more && !spinning {
				delete(hot, ln)
			}
		}
		if busy && l.spin > 0 {
			active = time.Now()
		}
	}
}

// collect adds the lanes that are ready, or were kicked, to hot and reports whether there were any.
func (l *loop) collect(events []sys.EpollEvent, hot map[*lane]bool) (any bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range events {
		if e.Tag == wakeTag {
			sys.Unring(l.wake)
			continue
		}
		if ln := l.lanes[e.Tag]; ln != nil {
			hot[ln], any = true, true
		}
	}
	for _, ln := range l.kicked {
		hot[ln], any = true, true
	}
	l.kicked = l.kicked[:0]
	return any
}
