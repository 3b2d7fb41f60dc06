package transfer

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// loop owns a node's channels when no other goroutine does: one goroutine that sleeps in epoll over
// the descriptors of all paths and serves those that are ready. After activity it keeps polling for
// the node's spin time before it sleeps again.
//
// While it polls it gives its processor away all the time. After a round that ended something it
// yields to the goroutines of this process: the one whose transfer has just ended runs next, on
// this thread, without a wake-up by the kernel. After a round without work it yields to other
// threads and processes, such as the one at the other end. With nothing else to run both return at
// once, so the same loop does for two processors and for many (docs/measurements/transfer.md).
type loop struct {
	ep     *sys.Epoll
	wake   int // eventfd
	spin   time.Duration
	failed func(error) // called once, if the loop ends by itself

	mu sync.Mutex // guards channels, closed, kicked and err
	// why the loop has ended: its descriptors are not used any more, their numbers may be other
	// files'
	err      error
	channels map[uint64]*channel
	closed   map[uint64]func() // what to call when the descriptor of a closed path is ready; nil: the loop has ended
	next     uint64
	kicked   []*channel // to be served although their descriptors may be silent

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
	l := &loop{ep: ep, wake: wake, spin: spin, failed: failed, channels: map[uint64]*channel{},
		closed: map[uint64]func(){},
		exited: make(chan struct{})}
	go l.run()
	return l, nil
}

// add gives a channel to the loop.
func (l *loop) add(ch *channel) error {
	ch.mu.Lock() // the path may be closed meanwhile, and its descriptor be another file's
	defer ch.unlock()
	if ch.gone {
		return ch.down
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	l.next++
	ch.tag = l.next
	if err := l.ep.Add(ch.p.FD(), sys.EventIn, ch.tag); err != nil {
		return fmt.Errorf("transfer: watch the %s path: %w", ch.p.Name(), err)
	}
	l.channels[ch.tag] = ch
	l.kicked = append(l.kicked, ch) // serve it once: this arms it
	sys.Ring(l.wake)
	return nil
}

// remove forgets a channel whose path is closed; the closed descriptor has left the epoll set by
// itself.
func (l *loop) remove(ch *channel) {
	l.mu.Lock()
	delete(l.channels, ch.tag)
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

// watch turns the readiness of a channel's descriptor on or off. The channel's mutex is held.
func (l *loop) watch(ch *channel, on bool) {
	var events uint32
	if on {
		events = sys.EventIn
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.ep.Set(ch.p.FD(), events, ch.tag)
	}
}

// kick has the loop serve a channel soon although its descriptor may be silent.
func (l *loop) kick(ch *channel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	l.kicked = append(l.kicked, ch)
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

// run serves channels until close. An error of epoll ends it too; then nothing moves any more, and
// run reports it to the node.
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
// goroutines, while channels are hot: both are the expensive part of a round.
const lookRounds = 16

func (l *loop) serve() error {
	var events [64]sys.EpollEvent
	hot := map[*channel]bool{} // channels that had something to do a moment ago
	var active time.Time       // when a channel last had something to do
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
		for ch := range hot {
			if ch.attended.Load() {
				delete(hot, ch)
				continue
			}
			more, ended := ch.serve(!spinning)
			busy, woke = busy || more, woke || ended
			if !more && !spinning {
				delete(hot, ch)
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

// collect adds the channels that are ready, or were kicked, to hot and reports whether there were
// any. It returns what is to be called for closed paths.
func (l *loop) collect(events []sys.EpollEvent, hot map[*channel]bool) (any bool, closed []func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range events {
		if e.Tag == wakeTag {
			sys.Unring(l.wake)
			continue
		}
		if ch := l.channels[e.Tag]; ch != nil {
			hot[ch], any = true, true
		}
		if look := l.closed[e.Tag]; look != nil {
			closed = append(closed, look)
		}
	}
	for _, ch := range l.kicked {
		hot[ch], any = true, true
	}
	clear(l.kicked) // channels that are gone are not kept by it
	l.kicked = l.kicked[:0]
	return any, closed
}
