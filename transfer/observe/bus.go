package observe

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/invariants"
)

// maxEventBuffer is the largest number of events that one subscriber may have waiting.
const maxEventBuffer = 1 << 16

// Subscription is one listener to the events of a node.
type Subscription struct {
	bus  *Bus
	c    chan Event
	stop func() bool // forgets the context

	// Guarded by the mutex of the bus.
	closed bool
	gap    uint64
	missed [eventKinds]uint64
}

// C brings the events. It is closed when the subscription has ended; events that were waiting can
// still be read.
func (s *Subscription) C() <-chan Event { return s.c }

// Missed is how many events of each kind this subscriber missed so far; kinds of which it missed
// none are not in it.
func (s *Subscription) Missed() map[EventKind]uint64 {
	s.bus.mu.Lock()
	defer s.bus.mu.Unlock()
	return missed(&s.missed)
}

// Close ends the subscription. It may be called more than once, from anywhere.
func (s *Subscription) Close() {
	s.bus.mu.Lock()
	defer s.bus.mu.Unlock()
	s.bus.drop(s)
}

// drop ends a subscription. The mutex is held.
func (b *Bus) drop(s *Subscription) {
	if s.closed {
		return
	}
	s.closed = true
	s.stop()
	delete(b.subs, s)
	b.active.Add(-1)
	close(s.c)
}

// Bus passes events on to subscribers; the zero value is ready for use. Its mutex is a leaf: only
// those of the subscribers' contexts are locked while it is held.
type Bus struct {
	active atomic.Int32 // subscribers; events are not even made when there are none

	mu     sync.Mutex // guards what follows
	closed bool
	subs   map[*Subscription]struct{}
	missed [eventKinds]uint64 // by all subscribers that there ever were
}

// Subscribe adds a subscriber for whom at most size events (at least 1, at most 65,536) wait to be
// read. It ends with ctx.
func (b *Bus) Subscribe(ctx context.Context, size int) *Subscription {
	s := &Subscription{bus: b, c: make(chan Event, min(max(size, 1), maxEventBuffer))}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || invariants.Context(ctx, "transfer.Node.Events") != nil {
		s.closed = true
		close(s.c)
		return s
	}
	if b.subs == nil {
		b.subs = map[*Subscription]struct{}{}
	}
	b.subs[s] = struct{}{}
	b.active.Add(1)
	s.stop = context.AfterFunc(ctx, s.Close) // on a goroutine of its own
	return s
}

// On reports whether there is a subscriber: without one no event need be made.
func (b *Bus) On() bool { return b.active.Load() > 0 }

// Emit gives an event to every subscriber. It never blocks.
func (b *Bus) Emit(e Event) {
	if !b.On() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	e.Time = time.Now()
	for s := range b.subs {
		e.Missed = s.gap
		select {
		case s.c <- e:
			s.gap = 0
		default:
			s.gap++
			s.missed[e.Kind]++
			b.missed[e.Kind]++
		}
	}
}

// Close ends all subscriptions: no event comes after the node is closed.
func (b *Bus) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.subs {
		b.drop(s)
	}
	b.closed = true
}

// Missed is how many events subscribers missed, by kind; kinds of which none was missed are not in
// it.
func (b *Bus) Missed() map[EventKind]uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return missed(&b.missed)
}

func missed(all *[eventKinds]uint64) map[EventKind]uint64 {
	out := map[EventKind]uint64{}
	for k, n := range all {
		if n > 0 {
			out[EventKind(k)] = n
		}
	}
	return out
}
