package loop

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// Source is a path with its owner, which serializes those who call Serve.
type Source interface {
	// Serve polls the path once. It returns whether there may be more to do at once, and whether
	// goroutines of the application can go on now. With arm the descriptor is readable when there
	// is more to do later.
	Serve(arm bool) (more, woke bool)
	// Attended reports whether another goroutine serves the path. That goroutine kicks the path
	// when it stops.
	Attended() bool
}

// Loop is one goroutine that sleeps in epoll over the descriptors of all paths and serves those
// that are ready. After activity it keeps polling for the spin time before it sleeps again.
//
// While it polls it gives its processor away all the time. After a round that ended something it
// yields to the goroutines of this process: the one whose transfer has just ended runs next, on
// this thread, without a wake-up by the kernel. After a round without work it yields to other
// threads and processes, such as the one at the other end. With nothing else to run both return at
// once, so the same loop does for two processors and for many (docs/measurements/transfer.md).
type Loop struct {
	ep     *sys.Epoll
	wake   int // eventfd
	spin   time.Duration
	failed func(error) // called once, if the loop ends by itself
	// with which Add fails after Close, and after the loop ended by itself
	errClosed, errFailed error

	mu sync.Mutex // guards what follows
	// why the loop has ended: its descriptors are not used any more, their numbers may be other
	// files'
	err     error
	sources map[uint64]Source
	closed  map[uint64]func() // what to call when the descriptor of a closed path is ready; nil: the loop has ended
	next    uint64
	kicked  []Source // to be served although their descriptors may be silent

	stop   atomic.Bool
	exited chan struct{}
}

const wakeTag = 0

// New starts a loop. It calls failed once if it cannot wait for events any more; its error wraps
// errFailed. Add fails with that from then on, and with errClosed after Close.
func New(spin time.Duration, failed func(error), errClosed, errFailed error) (*Loop, error) {
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
	l := &Loop{ep: ep, wake: wake, spin: spin, failed: failed, errClosed: errClosed, errFailed: errFailed,
		sources: map[uint64]Source{},
		closed:  map[uint64]func(){},
		exited:  make(chan struct{})}
	go l.run()
	return l, nil
}

// Spin is how long the loop keeps polling after activity.
func (l *Loop) Spin() time.Duration { return l.spin }

// Add gives a path to the loop, which serves it soon. It returns a tag for Watch and Remove. The
// owner of the path calls it, so that the path is not closed meanwhile.
func (l *Loop) Add(s Source, fd int) (tag uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return 0, l.err
	}
	l.next++
	if err := l.ep.Add(fd, sys.EventIn, l.next); err != nil {
		return 0, fmt.Errorf("transfer: watch the descriptor of a path: %w", err)
	}
	l.sources[l.next] = s
	l.kicked = append(l.kicked, s) // serve it once: this arms it
	sys.Ring(l.wake)
	return l.next, nil
}

// Remove forgets a path that is closed; the closed descriptor has left the epoll set by itself.
func (l *Loop) Remove(tag uint64) {
	l.mu.Lock()
	delete(l.sources, tag)
	l.mu.Unlock()
}

// AddClosed has look called on the loop's goroutine each time that the descriptor of a closed path
// is readable. It returns a tag for RemoveClosed. The owner of the path calls it.
func (l *Loop) AddClosed(fd int, look func()) (tag uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed == nil {
		return 0
	}
	l.next++
	if l.ep.Add(fd, sys.EventIn, l.next) != nil {
		return 0 // the next fence looks
	}
	l.closed[l.next] = look
	return l.next
}

// RemoveClosed undoes AddClosed. The closed descriptor has left the epoll set by itself.
func (l *Loop) RemoveClosed(tag uint64) {
	l.mu.Lock()
	delete(l.closed, tag)
	l.mu.Unlock()
}

// Watch turns the readiness of a path's descriptor on or off. The owner of the path calls it.
func (l *Loop) Watch(fd int, tag uint64, on bool) {
	var events uint32
	if on {
		events = sys.EventIn
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.ep.Set(fd, events, tag)
	}
}

// Kick has the loop serve a path soon although its descriptor may be silent.
func (l *Loop) Kick(s Source) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	l.kicked = append(l.kicked, s)
	sys.Ring(l.wake)
}

// Close ends the loop and returns when it serves nothing any more.
func (l *Loop) Close() {
	l.stop.Store(true)
	sys.Ring(l.wake)
	<-l.exited
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = nil
	if l.err == nil {
		l.err = l.errClosed
	}
	l.ep.Close()
	sys.Close(l.wake)
}

// run serves paths until Close. An error of epoll ends it too; then nothing moves any more.
func (l *Loop) run() {
	defer close(l.exited)
	if err := l.serve(); err != nil {
		err = fmt.Errorf("%w: its loop cannot wait for events any more: %w", l.errFailed, err)
		l.mu.Lock()
		l.err, l.closed = err, nil
		l.mu.Unlock()
		l.failed(err)
	}
}

// LookRounds is how many rounds pass between two looks at the kernel, and two turns of other
// goroutines, while paths are hot: both are the expensive part of a round.
const LookRounds = 16

func (l *Loop) serve() error {
	var events [64]sys.EpollEvent
	hot := map[Source]bool{} // paths that had something to do a moment ago
	var active time.Time     // when a path last had something to do
	spinning := false
	for round := 0; !l.stop.Load(); round++ {
		look := round%LookRounds == 0
		if look || len(hot) == 0 {
			timeout := -1
			if len(hot) > 0 {
				timeout = 0
			}
			n, err := l.ep.Wait(events[:], timeout)
			if err != nil {
				return err
			}
			any, closed := l.collect(events[:n], hot)
			if any {
				active = time.Now()
			}
			for _, look := range closed {
				look()
			}
			spinning = l.spin > 0 && time.Since(active) < l.spin
		}
		busy, woke := false, false
		for s := range hot {
			if s.Attended() {
				delete(hot, s)
				continue
			}
			more, ended := s.Serve(!spinning)
			busy, woke = busy || more, woke || ended
			if !more && !spinning {
				delete(hot, s)
			}
		}
		if busy && l.spin > 0 {
			active = time.Now()
		}
		if spinning {
			if woke || look {
				runtime.Gosched()
			}
			if !busy {
				sys.Yield()
			}
		}
	}
	return nil
}

// collect adds the paths that are ready, or were kicked, to hot and reports whether there were
// any. It returns what is to be called for closed paths.
func (l *Loop) collect(events []sys.EpollEvent, hot map[Source]bool) (any bool, closed []func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range events {
		if e.Tag == wakeTag {
			sys.Unring(l.wake)
			continue
		}
		if s := l.sources[e.Tag]; s != nil {
			hot[s], any = true, true
		}
		if look := l.closed[e.Tag]; look != nil {
			closed = append(closed, look)
		}
	}
	for _, s := range l.kicked {
		hot[s], any = true, true
	}
	clear(l.kicked) // paths that are gone are not kept by it
	l.kicked = l.kicked[:0]
	return any, closed
}
