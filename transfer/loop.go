package transfer

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// loop owns a node's lanes when no other goroutine does: one goroutine that sleeps in epoll over
// the descriptors of all paths and serves those that are ready. After activity it keeps polling for
// the node's spin time before it sleeps again.
//
// While it polls it gives its processor away all the time. After a round that ended something it
// yields to the goroutines of this process: the one whose transfer has just ended runs next, on
// this thread, without a wake-up by the kernel. After a round in vain it yields to other threads
// and processes, such as the one at the other end. With nothing else to run both return at once, so
// the same loop does for two processors and for many (docs/measurements/transfer.md).
type loop struct {
	ep     *sys.Epoll
	wake   int // eventfd
	spin   time.Duration
	failed func(error) // called once, if the loop ends by itself

	mu sync.Mutex // guards lanes, closed, kicked and err
	// why the loop has ended: its descriptors are not used any more, their numbers may be other
	// files'
	err    error
	lanes  map[uint64]*lane
	closed map[uint64]func() // what to call when the descriptor of a closed path is ready; nil: the loop has ended
	next   uint64
	kicked []*lane // to be served although their descriptors may be silent

	stop   atomic.Bool
	exited chan struct{}
}

const wakeTag = 0

func newLoop(spin time.Duration, failed func(error)) (*loop, error) {
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
	l := &loop{ep: ep, wake: wake, spin: spin, failed: failed, lanes: map[uint64]*lane{}, closed: map[uint64]func(){},
		exited: make(chan struct{})}
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
	if l.err != nil {
		return l.err
	}
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

// remove forgets a lane whose path is closed; the closed descriptor has left the epoll set by
// itself.
func (l *loop) remove(ln *lane) {
	l.mu.Lock()
	delete(l.lanes, ln.tag)
	l.mu.Unlock()
}

// addClosed has look called on the loop's goroutine each time that the descriptor of a closed path
// is readable. It returns a tag for removeClosed. The owner of the path calls it.
func (l *loop) addClosed(fd int, look func()) (tag uint64) {
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

// removeClosed undoes addClosed. The closed descriptor has left the epoll set by itself.
func (l *loop) removeClosed(tag uint64) {
	l.mu.Lock()
	delete(l.closed, tag)
	l.mu.Unlock()
}

// watch turns the readiness of a lane's descriptor on or off. The lane's mutex is held.
func (l *loop) watch(ln *lane, on bool) {
	var events uint32
	if on {
		events = sys.EventIn
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.ep.Set(ln.p.FD(), events, ln.tag)
	}
}

// kick has the loop serve a lane soon although its descriptor may be silent.
func (l *loop) kick(ln *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	l.kicked = append(l.kicked, ln)
	sys.Ring(l.wake)
}

func (l *loop) close() {
	l.stop.Store(true)
	sys.Ring(l.wake)
	<-l.exited
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = nil
	if l.err == nil {
		l.err = ErrClosed
	}
	l.ep.Close()
	sys.Close(l.wake)
}

// run serves lanes until close. An error of epoll ends it too; then nothing moves any more, and run
// reports it to the node.
func (l *loop) run() {
	defer close(l.exited)
	if err := l.serve(); err != nil {
		err = fmt.Errorf("%w: its loop cannot wait for events any more: %w", ErrFailed, err)
		l.mu.Lock()
		l.err, l.closed = err, nil
		l.mu.Unlock()
		l.failed(err)
	}
}

// lookRounds is how many rounds pass between two looks at the kernel, and two turns of other
// goroutines, while lanes are hot: both are the expensive part of a round.
const lookRounds = 16

func (l *loop) serve() error {
	var events [64]sys.EpollEvent
	hot := map[*lane]bool{} // lanes that had something to do a moment ago
	var active time.Time    // when a lane last had something to do
	spinning := false
	for round := 0; !l.stop.Load(); round++ {
		look := round%lookRounds == 0
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
		for ln := range hot {
			if ln.attended.Load() {
				delete(hot, ln)
				continue
			}
			more, ended := ln.serve(!spinning)
			busy, woke = busy || more, woke || ended
			if !more && !spinning {
				delete(hot, ln)
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

// collect adds the lanes that are ready, or were kicked, to hot and reports whether there were any.
// It returns what is to be called for closed paths.
func (l *loop) collect(events []sys.EpollEvent, hot map[*lane]bool) (any bool, closed []func()) {
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
		if look := l.closed[e.Tag]; look != nil {
			closed = append(closed, look)
		}
	}
	for _, ln := range l.kicked {
		hot[ln], any = true, true
	}
	clear(l.kicked) // lanes that are gone are not kept by it
	l.kicked = l.kicked[:0]
	return any, closed
}
