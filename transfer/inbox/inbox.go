package inbox

import (
	"slices"
	"sync"
)

const (
	// Max is the number of notifications of one peer that may wait for the application. A peer that
	// has more under way is not polled until there is room, so that its path pushes back.
	Max = 1024
	// MaxFenced is that number while a fence of the peer's paths is under way: what they hold
	// before the end of the fence has to go somewhere.
	MaxFenced = 4 * Max
)

// Inbox holds what a peer's paths delivered until the application has taken it, on a goroutine that
// lives only while there is something to take. T is a notification and P a path. Its methods may be
// called from any goroutine.
type Inbox[T any, P comparable] struct {
	mu      sync.Mutex // guards what follows
	queue   []T
	long    int // bytes of messages that no path carried and that the application has not taken
	running bool
	full    []P    // not served until the inbox has room
	last    func() // called once when everything was taken, after the peer's end
}

// Put takes a notification, with so many bytes that no path carried, unless nothing runs that takes
// it and wanted says no. It reports whether it took it, and whether the caller has to start the
// goroutine that takes all, by Next.
func (b *Inbox[T, P]) Put(v T, long int, wanted func(T) bool) (taken, start bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if start = !b.running; start && !wanted(v) { // no goroutine has to start for it
		return false, false
	}
	b.queue = append(b.queue, v)
	b.long += long
	b.running = true
	return true, start
}

// Next takes the oldest notification, and returns the paths to serve again, for which there is room
// now. One poll brings many, so few of those that are taken have any. When nothing waits, or with
// drop, it returns false and what is left, and the goroutine that calls it ends.
func (b *Inbox[T, P]) Next(drop bool) (v T, room []P, rest []T, ok bool) {
	b.mu.Lock()
	if len(b.queue) == 0 || drop {
		var last func()
		rest, last = b.queue, b.last
		b.queue, b.last, b.running = nil, nil, false
		b.mu.Unlock()
		if last != nil {
			defer last()
		}
		return v, nil, rest, false
	}
	defer b.mu.Unlock()
	var none T
	v, b.queue[0] = b.queue[0], none
	if b.queue = b.queue[1:]; len(b.queue) == 0 {
		b.queue = nil
	}
	if len(b.queue) < Max {
		room, b.full = b.full, nil
	}
	return v, room, nil, true
}

// Took gives back so many bytes that no path carried.
func (b *Inbox[T, P]) Took(long int) {
	b.mu.Lock()
	b.long -= long
	b.mu.Unlock()
}

// Drained calls f when everything that was put has been taken: now or after the application has
// returned from the last one. Nothing is put any more.
func (b *Inbox[T, P]) Drained(f func()) {
	b.mu.Lock()
	if b.running {
		b.last = f
		f = nil
	}
	b.mu.Unlock()
	if f != nil {
		f()
	}
}

// Long is how many bytes that no path carried wait for the application.
func (b *Inbox[T, P]) Long() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.long
}

// Len is how many notifications wait for the application.
func (b *Inbox[T, P]) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queue)
}

// Hold reports whether the inbox is full; Next then returns the path when it has room again.
func (b *Inbox[T, P]) Hold(p P) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) < Max {
		return false
	}
	if !slices.Contains(b.full, p) {
		b.full = append(b.full, p)
	}
	return true
}

// Crowded reports whether the inbox is so full that not even a fence is a reason to poll the peer.
func (b *Inbox[T, P]) Crowded() bool { return b.Len() >= MaxFenced }
