package verbs

import (
	"errors"
	"runtime"
	"slices"
	"time"

	"github.com/penstock-io/penstock/engine"
)

// Close implements engine.RxQueue. What senders have sent by the time they hear of it is dropped; what they send later is for another
// queue, or waits for one. So Close waits for them to hear, for as long as Options.Linger; the queue's memory goes back when the last one has.
// Connections by rdma_cm (ByCM) end with their queue.
func (q *rxQueue) Close() error {
	err := q.close()
	late := time.NewTimer(q.port.o.Linger)
	defer late.Stop()
	select {
	case <-q.over:
	case <-late.C:
	}
	return err
}

// close does what Close does, but does not wait. With a port that is closed there is nothing to wait for.
func (q *rxQueue) close() error {
	p := q.port
	p.mu.Lock()
	defer p.mu.Unlock()
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return nil
	}
	q.look()
	q.retry.Stop()
	q.throw(engine.DropClosed)
	q.closed = true
	q.wake()
	q.mu.Unlock()
	p.rx = slices.DeleteFunc(p.rx, func(o *rxQueue) bool { return o == q })
	p.fading = append(p.fading, q)
	p.control.ebb(q) // before the last lane goes, with which it is buried
	for _, c := range p.conns {
		if c.q == q {
			if c.q = nil; p.closed {
				continue // it ends
			}
			if c.plain {
				p.end(c, failed(engine.ErrClosed, "receive queue %d, which a connection by rdma_cm stays with, was closed", q.id))
				continue
			}
			p.move(c, nil)
			p.assign(c)
		}
	}
	return p.bury(q)
}

// ebb drops what still comes to a closed queue, and gives its buffers to the device again. Connections that share buffers may have been told of
// more than there are, and a message that finds none would wait for one for ever, and its sender with it. w is woken when more comes.
func (q *rxQueue) ebb(w *engine.Waker) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.buried {
		q.await(w)
	}
}

// bury gives up a closed queue whose lanes are all gone. The caller holds p.mu.
func (p *Port) bury(q *rxQueue) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed || q.buried || len(q.lanes) > 0 {
		return nil
	}
	q.buried = true
	p.control.ebbed(q)
	defer close(q.over)
	err := q.shut()
	var s engine.RxStats
	q.Stats(&s)
	p.old.Rx.Add(&s)
	p.fading = slices.DeleteFunc(p.fading, func(o *rxQueue) bool { return o == q })
	return err
}

// shut gives up what open has made.
func (q *rxQueue) shut() (err error) {
	q.retry.Stop()
	if q.watched {
		engine.Events.Remove(q.events.FD())
	}
	if q.srq != nil {
		err = q.srq.Close()
	}
	if q.cq != nil {
		err = errors.Join(err, q.cq.Close())
	}
	if q.events != nil {
		err = errors.Join(err, q.events.Close())
	}
	if q.chain != nil {
		q.chain.Close()
	}
	if q.slots != nil {
		q.slots.close()
	}
	return err
}

// drained hears how many messages came on a lane in all, and gives it up. The caller holds p.mu.
func (q *rxQueue) drained(l *inLane, count uint64) {
	q.mu.Lock()
	// The device has acknowledged them, but their completions may be on their way to memory.
	for start := time.Now(); l.g.received < count && time.Since(start) < completionsLate; runtime.Gosched() {
		if q.n == len(q.arrived) {
			break
		}
		q.look()
	}
	if l.g.received < count {
		q.drops.Add(q.port.lossIs(), count-l.g.received)
	}
	q.remove(l)
	q.wake()
	q.mu.Unlock()
	q.port.bury(q)
}

// lossIs is what messages are counted as that were sent and did not arrive: with RC the device alone can have lost them.
func (p *Port) lossIs() engine.Drop {
	if p.o.Transport == RC {
		return engine.DropUnattributed
	}
	return engine.DropNIC
}

// completionsLate is how long a completion may take to be seen after its message was acknowledged.
const completionsLate = 100 * time.Millisecond

// cut gives up a lane at once: what was acknowledged by then has arrived, and nothing more will. The caller holds p.mu.
func (q *rxQueue) cut(l *inLane) {
	q.mu.Lock()
	q.remove(l)
	q.wake()
	q.mu.Unlock()
	q.port.bury(q)
}
