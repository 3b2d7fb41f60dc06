package engine

import (
	"fmt"
	"sync"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/metrics"
)

// Waker wakes one goroutine that sleeps on C. A Wake that no goroutine waits for is kept, one at most.
type Waker struct{ c chan struct{} }

// NewWaker makes a Waker.
func NewWaker() *Waker { return &Waker{make(chan struct{}, 1)} }

// Wake wakes the goroutine. It never blocks and may be called by any goroutine.
func (w *Waker) Wake() {
	select {
	case w.c <- struct{}{}:
	default:
	}
}

// C is what to sleep on.
func (w *Waker) C() <-chan struct{} { return w.c }

// Reactor wakes Wakers when descriptors become readable: one goroutine in epoll for all queues of a process that sleep. The
// goroutine runs while any descriptor is registered. The zero Reactor is ready to use.
type Reactor struct {
	mu  sync.Mutex
	on  *reactorLoop
	ids map[int]*watched // by descriptor
	id  uint64
}

// watched is a registered descriptor.
type watched struct {
	id    uint64
	quiet bool // not with the kernel
}

// Events is the Reactor that the engines share.
var Events Reactor

// reactorLoop is one run of the goroutine.
type reactorLoop struct {
	epoll *sys.Epoll
	stop  int // eventfd, with tag 0

	mu     sync.Mutex
	armed  map[uint64]*Waker
	rounds metrics.Counter // returns of epoll
}

// Add registers a descriptor, which must stay open until Remove.
func (r *Reactor) Add(fd int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ids[fd] != nil {
		return fmt.Errorf("engine: descriptor %d is registered already: %w", fd, ErrExists)
	}
	if r.on == nil {
		l, err := newReactorLoop()
		if err != nil {
			return err
		}
		r.on, r.ids = l, map[int]*watched{}
		go l.run()
	}
	r.id++
	// One shot also now: a hang-up is reported without being asked for, again and again.
	if err := r.on.epoll.Add(fd, sys.EventOneShot, r.id); err != nil {
		r.rest()
		return err
	}
	r.ids[fd] = &watched{id: r.id}
	return nil
}

func newReactorLoop() (*reactorLoop, error) {
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
	return &reactorLoop{epoll: e, stop: stop, armed: map[uint64]*Waker{}}, nil
}

// Arm asks for one Wake of w when fd is readable, was hung up or has failed; at once if it is so now. Arming again replaces w.
func (r *Reactor) Arm(fd int, w *Waker) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.ids[fd]
	if x == nil {
		return ErrClosed
	}
	r.on.mu.Lock()
	r.on.armed[x.id] = w
	r.on.mu.Unlock()
	if !x.quiet {
		return r.on.epoll.Set(fd, sys.EventIn|sys.EventOneShot, x.id)
	}
	err := r.on.epoll.Add(fd, sys.EventIn|sys.EventOneShot, x.id)
	x.quiet = err != nil
	return err
}

// Quiet takes a registered descriptor off the kernel's list of who waits for it, until it is armed again, and reports whether it is off. One
// that is armed stays on. Between Arm and Arm a descriptor is on that list although no goroutine waits, and the kernel looks through the list
// for each packet: some 40 ns on a veth pair. A queue whose owner polls calls this, once in a while; it is a system call, and so
// is arming anyway.
func (r *Reactor) Quiet(fd int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.ids[fd]
	if x == nil || x.quiet {
		return true
	}
	r.on.mu.Lock()
	_, armed := r.on.armed[x.id]
	r.on.mu.Unlock()
	if !armed { // no other goroutine arms: that takes r.mu
		x.quiet = r.on.epoll.Remove(fd) == nil
	}
	return x.quiet
}

// Remove ends the watch. A Waker that is armed is not woken any more, unless that is happening now.
func (r *Reactor) Remove(fd int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.ids[fd]
	if x == nil {
		return
	}
	delete(r.ids, fd)
	if !x.quiet {
		r.on.epoll.Remove(fd)
	}
	r.on.mu.Lock()
	delete(r.on.armed, x.id)
	r.on.mu.Unlock()
	r.rest()
}

// rest ends the goroutine when nothing is registered.
func (r *Reactor) rest() {
	if len(r.ids) == 0 {
		sys.Ring(r.on.stop)
		r.on = nil
	}
}

func (l *reactorLoop) run() {
	defer sys.Close(l.stop)
	defer l.epoll.Close()
	var events [64]sys.EpollEvent
	for {
		n, err := l.epoll.Wait(events[:], -1)
		l.rounds.Inc()
		if err != nil {
			return // the epoll instance is gone, which only happens at the end of the process
		}
		for _, e := range events[:n] {
			if e.Tag == 0 {
				return
			}
			l.mu.Lock()
			w := l.armed[e.Tag]
			delete(l.armed, e.Tag)
			l.mu.Unlock()
			if w != nil {
				w.Wake()
			}
		}
	}
}
