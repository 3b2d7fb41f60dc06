package rdma

import (
	"errors"
	"runtime"
	"slices"
	"time"

	"github.com/penstock-io/penstock/engine"
)

// Close implements engine.RxQueue. What senders have sent by the time they learn of it is dropped;
// what they send later is for another queue, or waits for one. So Close waits for their answers,
// for as long as Options.Linger; the queue's memory goes back after the last one. Connections by
// rdma_cm (ByCM) end with their queue.
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

// close is Close without the wait. When the port closes, there is nothing to wait for.
func (q *rxQueue) close() error {
	q.port.mu.Lock()
	defer q.port.mu.Unlock()
	_, err := q.port.rx.Remove(q)
	return err
}

// Stop implements engine.RxDevice: the queue is draining until no sender can reach its memory. The
// caller holds p.mu.
func (q *rxQueue) Stop(why engine.Drop) error {
	p := q.port
	q.mu.Lock()
	if q.srq != nil {
		q.look()
		q.drop(why, uint64(q.throw()))
	}
	q.closed = true
	q.mu.Unlock()
	p.draining = append(p.draining, q)
	if q.srq != nil {
		p.control.drain(q) // before the last channel goes, with which it is retired
	}
	for c := range p.conns.All() {
		if c.q == q {
			if c.q = nil; p.rx.Closed() {
				continue // it ends
			}
			if c.plain {
				p.conns.End(c, failed(engine.ErrClosed,
					"receive queue %d, which a connection by rdma_cm stays with, was closed", q.ID()))
				continue
			}
			p.move(c, nil)
			(*host)(p).Assign(c)
		}
	}
	return p.retire(q)
}

// drain drops what still comes to a closed queue, and gives its buffers to the device again.
// Connections that share buffers may have credits for more than there are, and a message that finds
// none would wait for one for ever, and its sender with it. More messages wake w.
func (q *rxQueue) drain(w *engine.Waker) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.retired && q.await(w) == engine.ArmedPoll {
		q.retry.Arm(w)
	}
}

// retire gives up a closed queue whose channels are all gone. The caller holds p.mu.
func (p *Port) retire(q *rxQueue) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed || q.retired || len(q.channels) > 0 {
		return nil
	}
	q.retired = true
	p.control.drained(q)
	defer close(q.over)
	err := q.shut()
	q.late.AddTo(&p.rx.Past().Drops)
	p.draining = slices.DeleteFunc(p.draining, func(o *rxQueue) bool { return o == q })
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
	if q.recvs != nil {
		q.recvs.Close()
	}
	return err
}

// drained takes the sender's count of all messages of a channel, and gives the channel up. The
// caller holds p.mu.
func (q *rxQueue) drained(l *rxChannel, count uint64) {
	q.mu.Lock()
	// The device has acknowledged them, but their completions may be on their way to memory.
	for start := time.Now(); l.g.received < count && time.Since(start) < completionsLate; runtime.Gosched() {
		if q.n == len(q.arrived) {
			break
		}
		q.look()
	}
	if l.g.received < count {
		q.drop(q.port.lossIs(), count-l.g.received)
	}
	q.remove(l)
	q.Wake()
	q.mu.Unlock()
	q.port.retire(q)
}

// lossIs is what messages are counted as that were sent and did not arrive: with RC the device
// alone can have lost them.
func (p *Port) lossIs() engine.Drop {
	if p.o.Transport == RC {
		return engine.DropUnattributed
	}
	return engine.DropNIC
}

// completionsLate is how long a completion may take to be seen after its message was acknowledged.
const completionsLate = 100 * time.Millisecond

// cut gives up a channel at once: what was acknowledged by then has arrived, and nothing more will.
// The caller holds p.mu.
func (q *rxQueue) cut(l *rxChannel) {
	q.mu.Lock()
	q.remove(l)
	q.Wake()
	q.mu.Unlock()
	q.port.retire(q)
}
