package conns

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/engine"
)

// Conn is what all connections have. An engine's type of connection embeds it, and fills in the
// addresses and Main before Set.Add.
type Conn struct {
	ID            uint32
	Local, Remote netip.AddrPort
	Main          bool  // it is the one to the peer of the port's address
	Met           bool  // Set.Up was called
	Over          bool  // Set.End was
	Cause         error // of the end
}

// Base is the connection itself, for those that embed it.
func (c *Conn) Base() *Conn { return c }

// Connection is an engine's type of connection: a pointer to a struct that embeds Conn.
type Connection interface {
	comparable
	Base() *Conn
}

// Port is what an engine adds: C are its connections, made of sessions S. A Set calls the methods
// with the port's lock held.
type Port[C, S any] interface {
	// Dialer is what makes a session to the peer of the port's address. It is called without the
	// lock, and waits until its context ends. nil: not now, the engine calls Set.Dial when it can.
	Dialer() func(context.Context) (S, error)
	// Admit makes a connection, which is Main or not, of a session, and adds it. With an error the
	// session has ended.
	Admit(s S, main bool) (C, error)
	// Refuse ends a session that becomes no connection. why is for the peer.
	Refuse(s S, why string)
	// Assign gives a connection to a receive queue.
	Assign(c C)
	// Sever ends what a connection has, and returns why it ended, and whether that was in order.
	Sever(c C, err error) (why error, orderly bool)
	// Fail has the receive queues that are bound to the connection of that id end with an error;
	// all of them if it is 0.
	Fail(id uint32, err error)
	// Changed says that a connection has come or gone: what waits to be sent is tried again.
	Changed()
}

// Pick is the receive queue that a connection of that id belongs to: the one that is bound to it,
// or else the one of the unbound that has the fewest connections, as load says; one with a negative
// load takes none.
func Pick[Q interface {
	comparable
	Spec() *engine.RxSpec
}](live []Q, id uint32, load func(Q) int) (to Q) {
	least := 0
	for _, q := range live {
		n, bound := load(q), q.Spec().Conn
		switch {
		case n < 0:
		case bound == id:
			return q
		case bound == 0 && (to == *new(Q) || n < least):
			to, least = q, n
		}
	}
	return to
}

// Connections are what applications ask of a port's connections; a Set is them. Ports embed it.
type Connections interface {
	// Find is the id of the connection to a peer; 0 when there is none. For a port that connects,
	// the peer is the address that it connects to.
	Find(remote netip.AddrPort) uint32
	// WaitConnected waits until the port has a connection, or will have none, or the context ends.
	// A port that accepts waits for one, too.
	WaitConnected(ctx context.Context) error
	// CloseConn closes a connection at once. What waits to be sent on it is dropped. An id that is
	// not there is engine.ErrNotFound.
	CloseConn(id uint32) error
	// Counts are counts of the connections.
	Counts() Counts
}

// Set are the connections of one port. "The lock" is the port's, which is taken before that of the
// table.
type Set[C Connection, S any] struct {
	port   Port[C, S]
	lock   sync.Locker
	o      *Options
	engine string
	peer   netip.AddrPort

	begun   time.Time   // the attempts to connect
	dialing bool        // an attempt is under way
	again   *time.Timer // the next one
	pause   engine.Backoff
	cause   error         // why the last attempt or connection failed
	change  chan struct{} // closed and replaced when a connection comes or goes
	last    uint32        // id given last
	life    context.Context
	die     context.CancelFunc
	running sync.WaitGroup

	table  sync.RWMutex // besides the lock for writing
	conns  map[uint32]C
	byAddr map[netip.AddrPort]uint32
	main   C    // the connection to the peer, once it is up
	gone   bool // there will be no connection to the peer any more

	accepted, connected, refused, attempts, failures atomic.Uint64
}

// Open makes a Set ready. name is the engine's, for errors; peer is who the port connects to,
// invalid for none.
func (s *Set[C, S]) Open(name string, p Port[C, S], lock sync.Locker, o *Options, peer netip.AddrPort) {
	s.engine, s.port, s.lock, s.o, s.peer = name, p, lock, o, peer
	s.conns, s.byAddr, s.change = map[uint32]C{}, map[netip.AddrPort]uint32{}, make(chan struct{})
	s.pause = engine.Backoff{Least: o.BackoffMin, Most: o.BackoffMax}
	s.life, s.die = context.WithCancel(context.Background())
}

// Counts implements Connections.
func (s *Set[C, S]) Counts() Counts {
	return Counts{s.accepted.Load(), s.connected.Load(), s.refused.Load(), s.attempts.Load(), s.failures.Load()}
}

// Refused counts a connection that the engine has refused.
func (s *Set[C, S]) Refused() { s.refused.Add(1) }

// Len is the number of connections, All are the connections. The caller holds the lock.
func (s *Set[C, S]) Len() int { return len(s.conns) }

// All are the connections, in no order; each may be ended meanwhile. The caller holds the lock.
func (s *Set[C, S]) All() iter.Seq[C] { return maps.Values(s.conns) }

// Read is All for callers that do not hold the lock: no connection comes or goes meanwhile.
func (s *Set[C, S]) Read() iter.Seq[C] {
	return func(yield func(C) bool) {
		s.table.RLock()
		defer s.table.RUnlock()
		s.All()(yield)
	}
}

// List is what Read gives.
func (s *Set[C, S]) List() []C { return slices.Collect(s.Read()) }

// Get is the connection of an id, the zero C if there is none.
func (s *Set[C, S]) Get(id uint32) C {
	s.table.RLock()
	defer s.table.RUnlock()
	return s.conns[id]
}

// Find implements Connections.
func (s *Set[C, S]) Find(remote netip.AddrPort) uint32 {
	s.table.RLock()
	defer s.table.RUnlock()
	return s.byAddr[Unmapped(remote)]
}

// Main is the connection to the peer of the port's address, the zero C if there is none.
func (s *Set[C, S]) Main() C {
	s.table.RLock()
	defer s.table.RUnlock()
	return s.main
}

// Wait is no reason to drop a packet: there will be a connection.
const Wait = engine.NumDrops

// To is the connection that packets for an id leave by, or why there is none: a reason to drop
// them, or Wait. A port that connects to one peer takes 0, and what is no id of its, for that one.
func (s *Set[C, S]) To(id uint32) (c C, why engine.Drop) {
	s.table.RLock()
	defer s.table.RUnlock()
	var none C
	if c = s.conns[id]; c == none {
		c = s.main
	}
	switch {
	case c != none:
		return c, 0
	case !s.peer.IsValid() && id == 0:
		return none, engine.DropNoRoute // a packet without a destination
	case !s.peer.IsValid() || s.gone:
		return none, engine.DropDown
	}
	return none, Wait
}

// Gone is why there will be no connection to the peer any more; nil while there may be. The caller
// holds the lock.
func (s *Set[C, S]) Gone() error {
	if !s.gone {
		return nil
	}
	return s.cause
}

// Add gives a connection an id that none has. The caller holds the lock.
func (s *Set[C, S]) Add(c C) {
	s.table.Lock()
	defer s.table.Unlock()
	b := c.Base()
	var none C
	for b.ID == 0 || s.conns[b.ID] != none {
		s.last++
		b.ID = s.last
	}
	s.conns[b.ID], s.byAddr[b.Remote] = c, b.ID
}

// Up says that a connection has a peer. The caller holds the lock.
func (s *Set[C, S]) Up(c C) {
	b := c.Base()
	b.Met = true
	if b.Main {
		s.pause.Reset()
		s.table.Lock()
		s.main = c
		s.table.Unlock()
	}
	s.port.Assign(c)
	s.changed()
	s.tell(b, true, nil)
}

// End ends a connection, because of err. What waits to be sent on it is dropped. The caller holds
// the lock.
func (s *Set[C, S]) End(c C, err error) {
	b := c.Base()
	if b.Over {
		return
	}
	b.Over, b.Cause = true, err
	var none C
	s.table.Lock()
	delete(s.conns, b.ID)
	if s.byAddr[b.Remote] == b.ID {
		delete(s.byAddr, b.Remote)
	}
	if s.main == c {
		s.main = none
	}
	s.table.Unlock()
	err, orderly := s.port.Sever(c, err)
	failure := &Error{s.engine, b.ID, b.Remote, err}
	s.port.Fail(b.ID, failure)
	switch again := b.Main && s.life.Err() == nil; {
	case again && !b.Met:
		s.missed(err)
	case again:
		if s.cause = failure; s.o.Reconnect {
			s.retry()
		} else {
			s.giveUp()
		}
	}
	s.changed()
	switch {
	case !b.Met:
	case orderly:
		s.tell(b, false, nil)
	default:
		s.tell(b, false, failure)
	}
}

// Finish is End for callers that do not hold the lock.
func (s *Set[C, S]) Finish(c C, err error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.End(c, err)
}

// CloseConn implements Connections.
func (s *Set[C, S]) CloseConn(id uint32) error {
	return s.With(id, func(c C) error {
		s.End(c, engine.ErrClosed)
		return nil
	})
}

// With calls do for a connection, with the lock held.
func (s *Set[C, S]) With(id uint32, do func(c C) error) error {
	s.lock.Lock()
	defer s.lock.Unlock()
	c, ok := s.conns[id]
	if !ok {
		return fmt.Errorf("%s: connection %d: %w", s.engine, id, engine.ErrNotFound)
	}
	return do(c)
}

// tell calls OnConn.
func (s *Set[C, S]) tell(b *Conn, up bool, err error) {
	if s.o.OnConn != nil {
		s.o.OnConn(Event{ID: b.ID, Local: b.Local, Remote: b.Remote, Up: up, Err: err})
	}
}

// changed wakes the goroutines that wait for a connection, and what waits to be sent.
func (s *Set[C, S]) changed() {
	close(s.change)
	s.change = make(chan struct{})
	s.port.Changed()
}

// Stop says that no connection is made any more. The caller holds the lock.
func (s *Set[C, S]) Stop() {
	s.die()
	if s.again != nil {
		s.again.Stop()
	}
}

// EndAll ends all connections. The caller holds the lock, and has called Stop.
func (s *Set[C, S]) EndAll() {
	for _, c := range s.conns {
		s.End(c, engine.ErrClosed)
	}
	s.changed()
}

// Wait waits for all goroutines of the Set. Stop and EndAll come before, and the listener is
// closed.
func (s *Set[C, S]) Wait() { s.running.Wait() }
