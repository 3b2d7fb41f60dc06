package transfer

import (
	"slices"
	"sync"

	"github.com/penstock-io/penstock/transfer/path"
)

// streams keep the order of the transfers of a peer that were begun with the same
// PutOptions.Stream. The order holds across paths: a path promises none between its operations, and
// two transfers may take different ones. So each is begun when the one before it has ended.
type streams struct {
	mu     sync.Mutex
	active map[uint32][]*Transfer // those that wait, by the streams of which a transfer is under way
}

// The turn of a transfer in its stream. One that ends while it is begun leaves the next one to the
// goroutine that begins it: thousands may wait, and each would be begun deeper in the stack.
const (
	turnTaken  uint32 = iota // begun, or not waiting for a turn
	turnBegins               // advance begins it
	turnEnded                // it ended meanwhile
)

// enter adds a transfer to its stream, and reports whether it may begin at once.
func (s *streams) enter(t *Transfer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting, busy := s.active[t.stream]
	switch {
	case busy && t.canceled():
		t.stream = 0 // it ends without waiting, and so is not a part of the stream
		return true
	case busy:
		s.active[t.stream] = append(waiting, t)
		return false
	}
	if s.active == nil {
		s.active = map[uint32][]*Transfer{}
	}
	s.active[t.stream] = nil
	return true
}

// leave ends a transfer's turn and returns the one whose turn it is now, nil when none waits.
func (s *streams) leave(id uint32) *Transfer {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := s.active[id]
	if len(waiting) == 0 {
		delete(s.active, id)
		return nil
	}
	t := waiting[0]
	waiting[0] = nil
	s.active[id] = waiting[1:]
	return t
}

// remove takes a transfer out that waits for its turn, and reports whether it did wait.
func (s *streams) remove(t *Transfer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := s.active[t.stream]
	i := slices.Index(waiting, t)
	if i < 0 {
		return false
	}
	s.active[t.stream] = slices.Delete(waiting, i, i+1)
	t.stream = 0 // it has no turn to give up
	return true
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
