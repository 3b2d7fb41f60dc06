package ibv

import (
	"fmt"
	"sync"
)

// tree guards what a context records of its objects: which are open, and which depends on which.
type tree struct {
	mu     sync.Mutex
	serial uint64
	byAddr map[uintptr]*object // queue pairs, completion queues and shared receive queues, for events
}

// object is what all objects of a device share. It knows the objects that it was made of, its
// parents, so that closing one that is still used is an error that names the user, and never a call
// that leaves a dangling pointer in the library.
type object struct {
	tree     *tree
	kind     string // "queue pair"
	name     string // "queue pair 0x11 of fake0"
	h        uintptr
	serial   uint64
	parents  []*object
	children map[*object]struct{}
	closing  bool
	self     any // *QP, *CQ or *SRQ: what an event is about
}

// open makes an object of the C object at h, below its parents. On an error nothing is entered, and
// the caller destroys h.
func (o *object) open(t *tree, kind, name string, h uintptr, self any, parents ...*object) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range parents {
		if p.h == 0 || p.closing {
			return fmt.Errorf("ibv: %s cannot be made of %s: %w", kind, p.name, ErrClosed)
		}
	}
	t.serial++
	*o = object{tree: t, kind: kind, name: name, h: h, serial: t.serial, parents: parents, self: self}
	for _, p := range parents {
		if p.children == nil {
			p.children = map[*object]struct{}{}
		}
		p.children[o] = struct{}{}
	}
	if self != nil {
		if t.byAddr == nil {
			t.byAddr = map[uintptr]*object{}
		}
		t.byAddr[h] = o
	}
	return nil
}

// usable is the error of using an object that is closed.
func (o *object) usable(op string) error {
	if o.h != 0 {
		return nil
	}
	if o.kind == "" {
		return fmt.Errorf("ibv: %s: %w: the object was never made", op, ErrClosed)
	}
	return &Error{Op: op, On: o.name, Kind: ErrClosed}
}

// close destroys the object unless others stand on it. A second close is fine. destroy runs without
// the lock, since it may wait until events are acknowledged; when it fails, the object stays open.
func (o *object) close(op string, destroy func(h uintptr) error) error {
	if o.tree == nil {
		return nil
	}
	t := o.tree
	t.mu.Lock()
	if o.h == 0 || o.closing {
		t.mu.Unlock()
		return nil
	}
	if child := o.firstChild(); child != nil {
		n := len(o.children)
		t.mu.Unlock()
		more := ""
		if n > 1 {
			more = fmt.Sprintf(" and %d others", n-1)
		}
		return &Error{Op: op, On: o.name, Kind: ErrInUse, Hint: "close " + child.name + more + " first"}
	}
	o.closing = true
	h := o.h
	t.mu.Unlock()

	err := destroy(h)

	t.mu.Lock()
	defer t.mu.Unlock()
	o.closing = false
	if err != nil {
		return err
	}
	o.h = 0
	if t.byAddr[h] == o {
		delete(t.byAddr, h)
	}
	for _, p := range o.parents {
		delete(p.children, o)
	}
	return nil
}

// firstChild is the oldest open child. The lock is held.
func (o *object) firstChild() *object {
	var first *object
	for c := range o.children {
		if first == nil || c.serial < first.serial {
			first = c
		}
	}
	return first
}

// find is the object at a C address, or nil.
func (t *tree) find(h uintptr) *object {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byAddr[h]
}
