package setup

import (
	"errors"
	"sync"
)

// Listeners are the accepting sides of the drivers of a node, opened when first needed. Its methods
// may be called from any goroutine. The zero value is empty.
type Listeners struct {
	mu     sync.Mutex // guards what follows
	open   map[Place]*acceptor
	closed error
}

// Place is a listener of a driver: one with an address of its own, or the one whose connections
// come to the ports of the node.
type Place struct {
	Driver string
	ByPort bool
}

// acceptor is the accepting side of a driver, once done is closed; err is why there is none.
type acceptor struct {
	done chan struct{}
	l    Listener
	err  error
}

// Opened is the listener at a place; nil if there is none.
func (ls *Listeners) Opened(at Place) Listener {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if a := ls.open[at]; a != nil {
		return a.l
	}
	return nil
}

// Places are those that have a listener, or get one.
func (ls *Listeners) Places() (out []Place) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for at := range ls.open {
		out = append(out, at)
	}
	return out
}

// Open opens the accepting side of a driver when a peer first asks for it. To open devices may take
// long, so it delays only those that ask for the same listener meanwhile. A failure is for them;
// the next one that asks tries again.
func (ls *Listeners) Open(d ListenDriver, byPort bool) (Listener, error) {
	at := Place{d.Name(), byPort}
	ls.mu.Lock()
	if ls.closed != nil {
		ls.mu.Unlock()
		return nil, ls.closed
	}
	if a := ls.open[at]; a != nil {
		ls.mu.Unlock()
		<-a.done
		return a.l, a.err
	}
	a := &acceptor{done: make(chan struct{})}
	if ls.open == nil {
		ls.open = map[Place]*acceptor{}
	}
	ls.open[at] = a
	ls.mu.Unlock()
	defer close(a.done)
	var l Listener
	var err error
	if byPort {
		l, err = d.(PortDriver).Receiver()
	} else {
		l, err = d.Listen()
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if err == nil && ls.closed != nil { // End has not seen it
		err = errors.Join(ls.closed, l.Close())
	}
	if err != nil {
		a.err = err
		delete(ls.open, at)
		return nil, err
	}
	a.l = l
	return l, nil
}

// End has Open fail with the error from now on, and returns the listeners that are open, which the
// caller closes.
func (ls *Listeners) End(because error) (open []Listener) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.closed = because
	for _, a := range ls.open {
		if a.l != nil {
			open = append(open, a.l)
		}
	}
	return open
}
