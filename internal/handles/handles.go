// Package handles numbers things that are handed out and returned once, and refuses a second
// return.
package handles

import "sync"

// Handle is a place in a Table and how often it was used. The zero Handle is never handed out.
type Handle uint64

// Table knows which handles are out. The zero value is empty. Its methods may be called from any
// goroutine; they allocate only when more handles are out than ever before.
type Table struct {
	mu   sync.Mutex // guards what follows
	uses []uint32   // of each place; odd while it is out
	free []uint32
}

// Take hands out a handle.
func (t *Table) Take() Handle {
	t.mu.Lock()
	defer t.mu.Unlock()
	var at uint32
	if n := len(t.free); n > 0 {
		at, t.free = t.free[n-1], t.free[:n-1]
	} else {
		at = uint32(len(t.uses))
		t.uses = append(t.uses, 0)
	}
	t.uses[at]++
	return Handle(t.uses[at])<<32 | Handle(at)
}

// Give takes a handle back. It returns false for one that is not out.
func (t *Table) Give(h Handle) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, use := uint32(h), uint32(h>>32)
	if uint64(at) >= uint64(len(t.uses)) || t.uses[at] != use || use&1 == 0 {
		return false
	}
	t.uses[at]++
	t.free = append(t.free, at)
	return true
}
