package transfer

import (
	"sync"

	"github.com/penstock-io/penstock/path"
)

// streams keep the order of the transfers of a peer that were begun with the same PutOptions.Stream. The order holds across
// paths: a path promises none between its operations, and two transfers may take different ones. So each is begun when the one
// before it has ended.
type streams struct {
	mu     sync.Mutex
	active map[uint32]*stream
	spare  []*stream
}

// stream is there while a transfer of it is under way.
type stream struct {
	waiting []*Transfer
	first   int // of waiting
}

// The turn of a transfer in its stream. One that ends while it is begun leaves the next one to the goroutine that begins it: thousands may
// wait, and each would be begun deeper in the stack.
const (
	turnTaken  uint32 = iota // begun, or not waiting for a turn
	turnBegins               // advance begins it
	turnEnded                // it ended meanwhile
)

// keepStreams is how many unused streams are kept for later ones.
const keepStreams = 64

// enter adds a transfer to its stream, and reports whether it may begin at once.
func (s *streams) enter(t *Transfer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.active[t.stream]
	if x != nil && !t.canceled() {
		x.waiting = append(x.waiting, t)
		return false
	}
	if x != nil {
		t.stream = 0 // canceled already: it ends without waiting, and so is not a part of the stream
		return true
	}
	if n := len(s.spare); n > 0 {
		x, s.spare = s.spare[n-1], s.spare[:n-1]
	} else {
		x = &stream{}
	}
	if s.active == nil {
		s.active = map[uint32]*stream{}
	}
	s.active[t.stream] = x
	return true
}

// leave ends a transfer's turn and returns the one whose turn it is now, nil when none waits.
func (s *streams) leave(id uint32) *Transfer {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.active[id]
	if x.first == len(x.waiting) {
		delete(s.active, id)
		x.waiting, x.first = x.waiting[:0], 0
		if len(s.spare) < keepStreams && cap(x.waiting) <= keepCopies {
			s.spare = append(s.spare, x)
		}
		return nil
	}
	t := x.waiting[x.first]
	x.waiting[x.first] = nil
	if x.first++; x.first > 32 && 2*x.first > len(x.waiting) {
		n := copy(x.waiting, x.waiting[x.first:])
		clear(x.waiting[n:])
		x.waiting, x.first = x.waiting[:n], 0
	}
	return t
}

// remove takes a transfer out that waits for its turn, and reports whether it did wait.
func (s *streams) remove(t *Transfer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.active[t.stream]
	if x == nil {
		return false
	}
	for i := x.first; i < len(x.waiting); i++ {
		if x.waiting[i] == t {
			x.waiting = append(x.waiting[:i], x.waiting[i+1:]...)
			t.stream = 0 // it has no turn to give up
			return true
		}
	}
	return false
}

// advance begins the next transfer of a stream, whose last one has ended.
func (p *Peer) advance(t *Transfer) {
	for t = p.streams.leave(t.stream); t != nil; t = p.streams.leave(t.stream) {
		err := p.Err()
		if err == nil && t.canceled() {
			err = path.ErrCanceled
		}
		if err == nil {
			t.turn.Store(turnBegins)
			p.start(t)
			if t.turn.CompareAndSwap(turnBegins, turnTaken) {
				return // its end begins the next one
			}
			continue
		}
		t.finish(err) // here, not by complete: thousands may wait
	}
}
