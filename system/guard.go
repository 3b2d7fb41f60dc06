package system

import (
	"maps"
	"sync"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/flow"
)

// guard stands between an application and a receive queue with its stages, so that closing the
// System and receiving do not meet: queues have one user at a time. It is an engine.Receiver.
type guard struct {
	q      engine.RxQueue
	stages []engine.Stage // on the queue, one on the other

	mu     sync.Mutex      // held for one call of in, which never waits
	in     engine.Receiver // the queue, its last stage, or where its poller hands over
	polled *engine.Polled  // nil where the application polls
	closed bool
	waited map[uint32]flow.Count // when it was closed, by flow
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

// discard throws away what waits in the queue. The application has received nothing yet: no stage
// holds a packet.
func (g *guard) discard() (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.q.Discard()
}

// leave ends the application's view, and takes the queue from its poller. It throws away and counts
// what the application has not received: what the poller has handed over, and up to depth packets
// of the queue. The goroutine that waits in Recv wakes.
func (g *guard) leave(depth int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}
	g.closed, g.waited = true, map[uint32]flow.Count{}
	if g.polled != nil {
		g.polled.Close(g.count)
	}
	below := engine.Receiver(g.q)
	if n := len(g.stages); n > 0 {
		below = g.stages[n-1]
	}
	b := burst.NewSegmented(256, 512)
	for n, err := 0, error(nil); depth > 0 && err == nil; depth -= n {
		if n, err = below.TryRecv(b); n == 0 {
			break
		}
		g.count(b)
		b.Release()
	}
}

// count counts packets that are thrown away.
func (g *guard) count(b *burst.Burst) {
	for i := range b.Len() {
		c := g.waited[b.Flow(i)]
		c.Packets++
		c.Bytes += uint64(b.PacketLen(i))
		g.waited[b.Flow(i)] = c
	}
}

// thrown is what leave threw away, nil if that is nothing.
func (g *guard) thrown() map[uint32]flow.Count {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.waited)
}
