package transfer

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/invariants"
)

// EventKind says what an event reports.
type EventKind uint8

// The kinds of events. The names that String gives are stable: they are what JSON and metrics show.
const (
	EventPeerUp             EventKind = iota + 1 // a peer is connected: Peer, PeerID, Address, Security
	EventPeerDown                                // it was closed or lost: Reason
	EventPathUp                                  // a path to a peer is set up: Path, PathID, Security
	EventPathDown                                // it ended, also with its peer: Reason
	EventTransferBegun                           // Transfer, Operation, Bytes
	EventTransferEnded                           // the same with the Path taken; Bytes are those known to be in place; Reason if it failed
	EventTransferFailedOver                      // a transfer goes on by another path: Path is the new one, Reason names the old one
	EventExportAdded                             // Name, Bytes
	EventExportRevoked                           // Name, Bytes: peers cannot name it any more
	EventRefused                                 // something that a peer asked for was refused: Operation, Reason
	EventIdentityReloaded                        // the node uses other certificates from now on: Name
	EventIdentityRefused                         // changed certificates or rules cannot be used: Name, Reason; again each minute until they can
	EventPlaintext                               // the node listens or dials without encryption beyond this machine: Address
	EventNodeFailed                              // the node moves nothing any more, and every peer is ended: Name, Reason
	eventKinds
)

var eventNames = [eventKinds]string{EventPeerUp: "peer_up", EventPeerDown: "peer_down", EventPathUp: "path_up", EventPathDown: "path_down",
	EventTransferBegun: "transfer_begun", EventTransferEnded: "transfer_ended", EventTransferFailedOver: "transfer_failed_over",
	EventExportAdded: "export_added", EventExportRevoked: "export_revoked", EventRefused: "refused",
	EventIdentityReloaded: "identity_reloaded", EventIdentityRefused: "identity_refused", EventPlaintext: "plaintext", EventNodeFailed: "node_failed"}

func (k EventKind) String() string {
	if k > 0 && k < eventKinds {
		return eventNames[k]
	}
	return fmt.Sprintf("event(%d)", uint8(k))
}

// MarshalText gives the name.
func (k EventKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads a name.
func (k *EventKind) UnmarshalText(b []byte) error {
	i := slices.Index(eventNames[:], string(b))
	if i <= 0 {
		return fmt.Errorf("transfer: event kind %q is not known", b)
	}
	*k = EventKind(i)
	return nil
}

// Event is something that happened at a node. Which fields are set depends on Kind. Texts that came from a peer (its name, the
// reasons it gives) may hold any characters: quote them for a terminal. No event holds a key, token or other secret.
type Event struct {
	Time      time.Time `json:"time"`
	Kind      EventKind `json:"kind"`
	Peer      string    `json:"peer,omitempty"`
	PeerID    uint64    `json:"peer_id,omitempty"` // the node's own number of the connection, never used again
	Address   string    `json:"address,omitempty"`
	Security  string    `json:"security,omitempty"`
	Path      string    `json:"path,omitempty"` // the driver's name
	PathID    uint64    `json:"path_id,omitempty"`
	Queue     string    `json:"queue,omitempty"` // the path belongs to the queue of that name
	Transfer  ID        `json:"transfer,omitzero"`
	Operation string    `json:"operation,omitempty"` // "put", "get", "notify", or the request that was refused
	Name      string    `json:"name,omitempty"`
	Bytes     uint64    `json:"bytes,omitempty"`
	Reason    string    `json:"reason,omitempty"`
	// Missed is the number of events that this subscriber missed since the one before, because it was too slow.
	Missed uint64 `json:"missed,omitempty"`
}

// MarshalText gives the 32 hexadecimal digits of String.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads them.
func (id *ID) UnmarshalText(b []byte) error {
	if n, err := hex.Decode(id[:], b[:min(len(b), 2*len(id))]); err != nil || n != len(id) || len(b) != 2*len(id) {
		return fmt.Errorf("transfer: id %q: expected %d hexadecimal digits", b, 2*len(id))
	}
	return nil
}

// maxEventBuffer is the largest number of events that one subscriber may have waiting.
const maxEventBuffer = 1 << 16

// Subscription is one listener to the events of a node.
type Subscription struct {
	bus  *bus
	c    chan Event
	stop func() bool // forgets the context

	// Guarded by the mutex of the bus.
	closed bool
	gap    uint64
	missed [eventKinds]uint64
}

// Events begins to collect the node's events: at most size of them (at least 1, at most 65,536) wait to be read. What comes while
// so many wait is dropped for this subscriber alone and counted (Event.Missed, Subscription.Missed): the node never waits for
// a subscriber. Events that concern one peer come in the order in which they happened. The subscription ends with ctx, with Close,
// or with the node.
func (n *Node) Events(ctx context.Context, size int) *Subscription {
	s := &Subscription{bus: &n.obs.bus, c: make(chan Event, min(max(size, 1), maxEventBuffer))}
	n.obs.bus.add(s)
	if invariants.Context(ctx, "transfer.Node.Events") != nil {
		s.Close()
		return s
	}
	stop := context.AfterFunc(ctx, s.Close)
	s.bus.mu.Lock()
	s.stop = stop
	s.bus.mu.Unlock()
	return s
}

// C brings the events. It is closed when the subscription has ended; events that were waiting can still be read.
func (s *Subscription) C() <-chan Event { return s.c }

// Missed is how many events of each kind this subscriber missed so far; kinds of which it missed none are not in it.
func (s *Subscription) Missed() map[EventKind]uint64 {
	s.bus.mu.Lock()
	defer s.bus.mu.Unlock()
	out := map[EventKind]uint64{}
	for k, n := range s.missed {
		if n > 0 {
			out[EventKind(k)] = n
		}
	}
	return out
}

// Close ends the subscription. It may be called more than once, from anywhere.
func (s *Subscription) Close() {
	s.bus.mu.Lock()
	stop := s.stop
	s.bus.drop(s)
	s.bus.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// bus passes events on to subscribers. Its mutex is a leaf: nothing else is locked while it is held.
type bus struct {
	active atomic.Int32 // subscribers; events are not even made when there are none

	mu     sync.Mutex // guards what follows
	closed bool
	subs   map[*Subscription]struct{}
	missed [eventKinds]uint64 // by all subscribers that there ever were
}

func (b *bus) add(s *Subscription) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		s.closed = true
		close(s.c)
		return
	}
	if b.subs == nil {
		b.subs = map[*Subscription]struct{}{}
	}
	b.subs[s] = struct{}{}
	b.active.Add(1)
}

// drop ends a subscription. The mutex is held.
func (b *bus) drop(s *Subscription) {
	if s.closed {
		return
	}
	s.closed = true
	delete(b.subs, s)
	b.active.Add(-1)
	close(s.c)
}

// on reports whether there is a subscriber.
func (b *bus) on() bool { return b.active.Load() > 0 }

// emit gives an event to every subscriber. It never blocks.
func (b *bus) emit(e Event) {
	if !b.on() {
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

// close ends all subscriptions: no event comes after the node is closed.
func (b *bus) close() {
	b.mu.Lock()
	var stops []func() bool
	for s := range maps.Clone(b.subs) {
		if s.stop != nil {
			stops = append(stops, s.stop)
		}
		b.drop(s)
	}
	b.closed = true
	b.mu.Unlock()
	for _, stop := range stops {
		stop()
	}
}

// missedEvents is how many events subscribers missed, by kind.
func (b *bus) missedEvents() (out [eventKinds]uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.missed
}

// eventBuffer is how many events may wait for Options.OnEvent.
const eventBuffer = 1024

// callOnEvent gives the node's events to Options.OnEvent, in order and one at a time, until the node is closed.
func (n *Node) callOnEvent(f func(Event)) {
	s := n.Events(context.Background(), eventBuffer)
	go func() { // not waited for by Close, which f may call
		for e := range s.C() {
			f(e)
		}
	}()
}
