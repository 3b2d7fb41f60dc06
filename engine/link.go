package engine

import "sync/atomic"

// LinkState is how the link of a port is.
type LinkState struct {
	Up bool
	// Gone says that the interface was removed or the device has failed: the port does nothing any
	// more, and has to be opened again.
	Gone     bool
	Changes  uint64 // how often Up has changed
	Reopened uint64 // how often the port has opened its interface again, see package engine/reopen
}

// LinkUp is whether a link is up and how often that has changed, as one word: no reader sees the
// one without the other. It is for implementations of engines. Its methods may be called from any
// goroutine.
type LinkUp struct{ w atomic.Uint64 } // twice the changes, and 1 while it is up

// Begin sets how the link is when its port is opened.
func (l *LinkUp) Begin(up bool) {
	l.w.Store(0)
	if up {
		l.w.Store(1)
	}
}

// Set sets how the link is now, and reports whether that is a change.
func (l *LinkUp) Set(up bool) bool {
	for {
		w := l.w.Load()
		if up == (w&1 != 0) {
			return false
		}
		if l.w.CompareAndSwap(w, (w+2)^1) {
			return true
		}
	}
}

// State is how the link is now.
func (l *LinkUp) State() LinkState {
	w := l.w.Load()
	return LinkState{Up: w&1 != 0, Changes: w >> 1}
}

// LinkReporter is a Port that reports changes of its link.
type LinkReporter interface {
	// LinkState is how the link is now. w is woken when that has changed; it replaces the Waker of
	// the call before. Any goroutine may call it.
	LinkState(w *Waker) LinkState
}

// LinkBell keeps the Waker of a LinkReporter. It is for implementations of engines; the zero value
// is ready. Its methods may be called from any goroutine, and do not wait.
type LinkBell struct{ w atomic.Pointer[Waker] }

// Set has w woken from now on.
func (b *LinkBell) Set(w *Waker) { b.w.Store(w) }

// Ring wakes it. The caller has changed the state before.
func (b *LinkBell) Ring() {
	if w := b.w.Load(); w != nil {
		w.Wake()
	}
}
