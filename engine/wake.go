package engine

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/internal/sys"
)

// Waker wakes one goroutine that sleeps on C. A Wake that no goroutine waits for is kept, one at
// most.
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

// Reactor wakes Wakers when descriptors become readable: one Loop for all queues of a process that
// sleep. The zero Reactor is ready to use.
type Reactor struct {
	loop Loop
	mu   sync.Mutex
	ids  map[int]*watched // by descriptor
}

// watched is a registered descriptor.
type watched struct {
	tag   uint64
	quiet bool // not with the kernel
	armed atomic.Pointer[Waker]
}

// Ready implements Watcher.
func (x *watched) Ready(uint32) {
	if w := x.armed.Swap(nil); w != nil {
		w.Wake()
	}
}

// Events is the Reactor that the engines share.
var Events Reactor

// Add registers a descriptor, which must stay open until Remove.
func (r *Reactor) Add(fd int) (err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ids[fd] != nil {
		return fmt.Errorf("engine: descriptor %d is registered already: %w", fd, ErrExists)
	}
	x := new(watched)
	// One shot also now: a hang-up is reported without being asked for, again and again.
	if x.tag, err = r.loop.Add(fd, sys.EventOneShot, x); err != nil {
		return err
	}
	if r.ids == nil {
		r.ids = map[int]*watched{}
	}
	r.ids[fd] = x
	return nil
}

// Arm asks for one Wake of w when fd is readable, was hung up or has failed; at once if it is so
// now. Arming again replaces w.
func (r *Reactor) Arm(fd int, w *Waker) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.ids[fd]
	if x == nil {
		return ErrClosed
	}
	x.armed.Store(w)
	if !x.quiet {
		return r.loop.Set(fd, sys.EventIn|sys.EventOneShot, x.tag)
	}
	err := r.loop.Loud(fd, sys.EventIn|sys.EventOneShot, x.tag)
	x.quiet = err != nil
	return err
}

// Quiet takes a registered descriptor off the kernel's list of waiters, until it is armed again,
// and reports whether it is off. One that is armed stays on. Between Arm and Arm a descriptor is on
// that list although no goroutine waits, and the kernel looks through the list for each packet:
// some 40 ns on a veth pair. A queue whose owner polls calls this, once in a while; it is a system
// call, and so is arming anyway.
func (r *Reactor) Quiet(fd int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.ids[fd]
	if x == nil || x.quiet {
		return true
	}
	if x.armed.Load() == nil { // no other goroutine arms: that takes r.mu
		x.quiet = r.loop.Quiet(fd) == nil
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
	x.armed.Store(nil)
	if x.quiet {
		r.loop.Drop(x.tag)
	} else {
		r.loop.Remove(fd, x.tag)
	}
}
