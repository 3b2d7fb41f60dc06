package engine

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/penstock-io/penstock/burst"
)

// Group receives from any of several Receivers: the queues of a port, the ports of a machine, connections, or all of them, through
// a Poller or not. Members come and go while it runs, from any goroutine; one goroutine at a time calls Recv and TryRecv, and by
// that is the user of all members.
//
// Members take turns: each is asked once before any of them is asked again after it had something, so that a busy one does not
// hold up the others.
type Group struct {
	waker *Waker
	spin  spinner

	// mu is held while members are asked, which never waits: so a member is left alone once Remove has returned.
	mu      sync.Mutex
	members []Receiver
	turn    int // of the member to ask first
	closed  bool
}

var errNotEmpty = fmt.Errorf("engine: the burst holds packets already: a group does not mix those of two members; release it first: %w", ErrInvalid)

// NewGroup makes a group. With spin it looks for that long, at most, before it sleeps; see Batching.Spin.
func NewGroup(spin time.Duration, members ...Receiver) (*Group, error) {
	g := &Group{waker: NewWaker(), spin: newSpinner(spin)}
	for _, m := range members {
		if err := g.Add(m); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// Add adds a member. The error is ErrNil, ErrExists or ErrClosed.
func (g *Group) Add(m Receiver) error {
	if m == nil {
		return ErrNil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return ErrClosed
	case slices.Contains(g.members, m):
		return ErrExists
	}
	g.members = append(g.members, m)
	g.waker.Wake() // whoever waits looks at it
	return nil
}

// Remove takes a member out. When it returns the group does not use it any more. The error is ErrNotFound.
func (g *Group) Remove(m Receiver) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.members, m)
	if i < 0 {
		return ErrNotFound
	}
	g.remove(i)
	return nil
}

func (g *Group) remove(i int) {
	g.members = slices.Delete(g.members, i, i+1)
	if g.turn > i {
		g.turn--
	}
}

// Len is the number of members.
func (g *Group) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.members)
}

// Close ends the group: Recv returns ErrClosed. The members are left as they are. Any goroutine may call it.
func (g *Group) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed, g.members = true, nil
	g.waker.Wake()
}

// TryRecv adds what the next member has that has anything to b, which must be empty, and says which one it is; nil and nil
// when none has. A member that answers an error is taken out of the group, and the error is told once, with the member.
func (g *Group) TryRecv(b *burst.Burst) (from Receiver, err error) {
	switch {
	case b == nil:
		return nil, ErrNil
	case b.Len() > 0:
		return nil, errNotEmpty
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, ErrClosed
	}
	for range len(g.members) {
		if g.turn >= len(g.members) {
			g.turn = 0
		}
		m := g.members[g.turn]
		n, err := m.TryRecv(b)
		if err != nil && n == 0 {
			g.remove(g.turn)
			return m, err
		}
		g.turn++
		if n > 0 {
			return m, nil // an error besides comes again the next time
		}
	}
	return nil, nil
}

// arm arms all members, or reports that one has something.
func (g *Group) arm() (ready bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return true
	}
	for _, m := range g.members {
		if m.Arm(g.waker) {
			return true
		}
	}
	return false
}

// Recv waits until a member has something, and delivers what it has in b, which must be empty. It says which member that is. It
// does not wait for more packets: let a Poller make batches where they are wanted.
//
// When a member ends or fails, it is taken out of the group, and the error comes with the member. An error without a member is
// that of the context, or ErrClosed when the group was closed. A group without members waits for one.
func (g *Group) Recv(ctx context.Context, b *burst.Burst) (from Receiver, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for again := false; ; {
		if from, err := g.TryRecv(b); from != nil || err != nil {
			return from, err
		}
		if from, err := g.look(ctx, b); from != nil || err != nil {
			return from, err
		}
		if g.arm() {
			if again {
				runtime.Gosched()
				if err := ctx.Err(); err != nil {
					return nil, err
				}
			}
			again = true
			continue
		}
		again = false
		select {
		case <-g.waker.C():
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// look looks for a while.
func (g *Group) look(ctx context.Context, b *burst.Burst) (from Receiver, err error) {
	if g.spin.most == 0 {
		return nil, nil
	}
	for g.spin.begin(math.MaxInt64); g.spin.again(); {
		if from, err := g.TryRecv(b); from != nil || err != nil {
			g.spin.hit()
			return from, err
		}
		if g.spin.looks&15 == 0 && ctx.Err() != nil {
			return nil, nil // the sleep says so
		}
	}
	g.spin.miss()
	return nil, nil
}
