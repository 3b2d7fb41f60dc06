package penstock

import (
	"sync"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/engine"
)

// guard stands between an application and a receive queue, so that closing the System and receiving do not meet: queues have one user
// at a time. It is an engine.RxQueue.
type guard struct {
	q engine.RxQueue

	mu     sync.Mutex      // held for one call of in, which never waits
	in     engine.Receiver // the queue, or where its poller hands over
	polled *engine.Polled  // nil where the application polls
	closed bool
}

var _ engine.RxQueue = (*guard)(nil)

func (g *guard) ID() int { return g.q.ID() }

func (g *guard) TryRecv(b *burst.Burst) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return 0, engine.ErrClosed
	}
	return g.in.TryRecv(b)
}

func (g *guard) Arm(w *engine.Waker) (ready bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed || g.in.Arm(w)
}

// Discard throws away what waits in the queue; a poller must not have it yet.
func (g *guard) Discard() (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.q.Discard()
}

func (g *guard) Stats(s *engine.RxStats) { g.q.Stats(s) }

// leave ends the application's view, and takes the queue from its poller. It returns how many packets nobody had received. Whoever waits
// in Recv is woken.
func (g *guard) leave() (lost int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return 0
	}
	g.closed = true
	if g.polled != nil {
		lost = g.polled.Close()
	}
	return lost
}

// Close ends the view and closes the queue.
func (g *guard) Close() error {
	g.leave()
	return g.q.Close()
}
