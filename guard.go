package penstock

import (
	"sync"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/engine"
)

// guard stands between an application and a receive queue with its stages, so that closing the System and receiving do not meet: queues
// have one user at a time. It is an engine.Receiver.
type guard struct {
	q      engine.RxQueue
	stages []engine.Stage // on the queue, one on the other

	mu     sync.Mutex      // held for one call of in, which never waits
	in     engine.Receiver // the queue, its last stage, or where its poller hands over
	polled *engine.Polled  // nil where the application polls
	closed bool
}

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

// discard throws away what waits in the queue. Nobody has received yet: no stage has anything.
func (g *guard) discard() (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.q.Discard()
}

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
