package engine

import "sync/atomic"

// LinkState is how the link of a port is.
type LinkState struct {
	Up bool
	// Gone says that the interface was removed or the device has failed: the port does nothing any more, and has to be opened again.
	Gone     bool
	Changes  uint64 // how often Up has changed
	Reopened uint64 // how often the port has opened its interface again, see package engine/reopen
}

// LinkTeller is a Port that reports changes of its link.
type LinkTeller interface {
	// LinkState is how the link is now. w is woken when that has changed; it replaces the Waker of the call before. Any goroutine may
	// call it.
	LinkState(w *Waker) LinkState
}

// LinkBell keeps the Waker of a LinkTeller. It is for implementations of engines; the zero value is ready. Its methods may be called from any
// goroutine, and do not wait.
type LinkBell struct{ w atomic.Pointer[Waker] }

// Set has w woken from now on.
func (b *LinkBell) Set(w *Waker) { b.w.Store(w) }

// Ring wakes it. The caller has changed the state before.
func (b *LinkBell) Ring() {
	if w := b.w.Load(); w != nil {
		w.Wake()
	}
}
