package path

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// spinCheck is how many fruitless Polls pass between two looks at the clock while a Waiter spins. A
// look costs about as much as an idle Poll, and each one also lets other goroutines run, so that
// spinning never starves them.
const spinCheck = 32

// Pollable is what a Waiter needs of a Path; see there.
type Pollable interface {
	Poll(events []Event) int
	Arm() (ready bool)
	FD() int
}

// Waiter waits for events of a path: first by spinning, then by sleeping on the path's FD. It
// belongs to the path's owner and serves one Wait at a time; only Interrupt may be called from
// other goroutines. Waiting does not allocate, except for the first Wait with a new cancelable
// context.
type Waiter struct {
	fd          int // an eventfd: rung by Interrupt and by the end of the context
	interrupted atomic.Bool

	mu     sync.Mutex // guards closed against a late ring
	closed bool

	done <-chan struct{} // of the context that stop belongs to
	stop func() bool     // takes back the wake-up at that context's end
}

// NewWaiter makes a Waiter; Close it when it is no longer needed.
func NewWaiter() (*Waiter, error) {
	fd, err := sys.Eventfd()
	if err != nil {
		return nil, err
	}
	return &Waiter{fd: fd}, nil
}

// Wait returns the next events of p, n > 0 of them, as Poll would. It polls for up to spin and then
// sleeps until the path has something to do; each time the path had work that yielded no event it
// sleeps again without spinning. n is 0 with a nil error after Interrupt, and 0 with ctx's error
// once ctx has ended. Events come before both: an event that is there is never held back. After the
// path's EventDown there is nothing to wait for; Wait would then last until ctx ends.
func (w *Waiter) Wait(ctx context.Context, p Pollable, events []Event, spin time.Duration) (int, error) {
	if len(events) == 0 { // Poll could never report anything
		return 0, ctx.Err()
	}
	if n := p.Poll(events); n > 0 {
		return n, nil
	}
	w.watch(ctx)
	if spin > 0 {
		for start := time.Now(); ; {
			for range spinCheck {
				if n := p.Poll(events); n > 0 {
					return n, nil
				}
			}
			if w.interrupted.Load() || ctx.Err() != nil || time.Since(start) >= spin {
				break
			}
			runtime.Gosched()
		}
	}
	for {
		if w.interrupted.Swap(false) {
			return 0, nil
		}
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		if !p.Arm() {
			// Interrupt sets the flag before it rings, and Wait reads the flag after it has emptied
			// the eventfd: PollIn finds a ring between the check above and here, the next check
			// finds the flag of one after Unring.
			i, err := sys.PollIn(-1, w.fd, p.FD())
			if err != nil {
				return 0, err
			}
			if i == 0 {
				sys.Unring(w.fd)
			}
		}
		if n := p.Poll(events); n > 0 {
			return n, nil
		}
	}
}

// Interrupt makes the Wait that runs now, or else the next one, return 0 events. Several calls
// before that count as one. It may be called from any goroutine, also after Close, when it does
// nothing.
func (w *Waiter) Interrupt() {
	w.interrupted.Store(true)
	w.wake()
}

func (w *Waiter) wake() {
	w.mu.Lock()
	if !w.closed {
		sys.Ring(w.fd)
	}
	w.mu.Unlock()
}

// watch arranges that the end of ctx wakes the waiter. It knows a context by its Done channel; the
// arrangement stays for the next Wait with the same one, so that it costs nothing again.
func (w *Waiter) watch(ctx context.Context) {
	d := ctx.Done()
	if d == w.done {
		return
	}
	if w.stop != nil {
		w.stop()
		w.stop = nil
	}
	w.done = d
	if d != nil {
		w.stop = context.AfterFunc(ctx, w.wake)
	}
}

// Close gives the eventfd back. No Wait may be running.
func (w *Waiter) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	if w.stop != nil {
		w.stop()
	}
	return sys.Close(w.fd)
}
