package reopen

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet/burst"
)

// rxQueue is a receive queue that stays when its port is opened again.
type rxQueue struct {
	port *Port
	spec engine.RxSpec // with its ID

	mu     sync.Mutex // over what follows
	cur    engine.RxQueue
	away   bool          // cur is closed or has failed, and another one will follow
	waker  *engine.Waker // of the owner, which waits for that
	past   engine.RxStats
	closed bool
}

// ID implements engine.RxQueue.
func (q *rxQueue) ID() int { return q.spec.ID.Number() }

// TryRecv implements engine.RxQueue.
func (q *rxQueue) TryRecv(b *burst.Burst) (int, error) {
	n, cur, err := q.try(b)
	if err == nil || n > 0 {
		return n, err
	}
	lost := q.port.lost() // without the queue's lock
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || !lost && q.cur == cur {
		return 0, err
	}
	return 0, nil // leave follows, if it was not there yet: Arm waits for the queue that comes then
}

func (q *rxQueue) try(b *burst.Burst) (int, engine.RxQueue, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.away && !q.closed {
		return 0, q.cur, nil
	}
	n, err := q.cur.TryRecv(b)
	return n, q.cur, err
}

// Arm implements engine.RxQueue.
func (q *rxQueue) Arm(w *engine.Waker) (ready bool) {
	gone := q.port.lost()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waker = w
	return q.closed || !q.away && !gone && q.cur.Arm(w)
}

// Discard implements engine.RxQueue.
func (q *rxQueue) Discard() (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.away && !q.closed {
		return 0, nil
	}
	return q.cur.Discard()
}

// Stats implements engine.RxQueue.
func (q *rxQueue) Stats(s *engine.RxStats) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.cur.Stats(s)
	s.Add(&q.past)
}

// Close implements engine.RxQueue.
func (q *rxQueue) Close() error {
	q.mu.Lock()
	q.closed = true
	err := q.cur.Close()
	if q.waker != nil {
		q.waker.Wake()
	}
	q.mu.Unlock()
	q.port.mu.Lock()
	defer q.port.mu.Unlock()
	q.port.rx = slices.DeleteFunc(q.port.rx, func(o *rxQueue) bool { return o == q })
	return err
}

// leave closes the queue of the interface that is gone.
func (q *rxQueue) leave() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.away = true
	return q.cur.Close()
}

// adopt goes on with another queue.
func (q *rxQueue) adopt(next engine.RxQueue) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var was engine.RxStats
	q.cur.Stats(&was)
	q.past.Add(&was)
	q.cur, q.away = next, false
	if q.waker != nil {
		q.waker.Wake()
	}
}

// txQueue is a transmit queue that stays when its port is opened again.
type txQueue struct {
	port *Port
	spec engine.TxSpec // with its ID

	mu     sync.RWMutex // over what follows
	cur    engine.TxQueue
	past   engine.TxStats
	closed bool
}

func (q *txQueue) now() engine.TxQueue {
	q.mu.RLock()
	defer q.mu.RUnlock()
	return q.cur
}

// instead is the error of cur, or away where the interface is, or was when cur was asked.
func (q *txQueue) instead(cur engine.TxQueue, err, away error) error {
	if err == nil || !errors.Is(err, engine.ErrClosed) && !errors.Is(err, engine.ErrDown) {
		return err
	}
	lost := q.port.lost()
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.closed || !lost && q.cur == cur {
		return err
	}
	return away
}

// ID implements engine.TxQueue.
func (q *txQueue) ID() int { return q.spec.ID.Number() }

// Alloc implements engine.TxQueue.
func (q *txQueue) Alloc(b *burst.Burst, n, length int) (int, error) {
	cur := q.now()
	n, err := cur.Alloc(b, n, length)
	return n, q.instead(cur, err, engine.ErrFull)
}

// Forward implements engine.TxQueue.
func (q *txQueue) Forward(b *burst.Burst) (int, error) {
	cur := q.now()
	n, err := cur.Forward(b)
	return n, q.instead(cur, err, engine.ErrFull)
}

// Send implements engine.TxQueue. Packets that were allocated before the interface was lost are not
// sent any more.
func (q *txQueue) Send(b *burst.Burst) error {
	cur := q.now()
	return q.instead(cur, cur.Send(b), engine.ErrDown)
}

// Drain implements engine.TxQueue.
func (q *txQueue) Drain(ctx context.Context) error { return q.now().Drain(ctx) }

// Stats implements engine.TxQueue.
func (q *txQueue) Stats(s *engine.TxStats) {
	q.mu.RLock()
	defer q.mu.RUnlock()
	q.cur.Stats(s)
	s.Add(&q.past)
}

// Close implements engine.TxQueue.
func (q *txQueue) Close() error {
	q.mu.Lock()
	q.closed = true
	cur := q.cur
	q.mu.Unlock()
	err := cur.Close()
	q.port.mu.Lock()
	defer q.port.mu.Unlock()
	q.port.tx = slices.DeleteFunc(q.port.tx, func(o *txQueue) bool { return o == q })
	return err
}

// adopt goes on with another queue.
func (q *txQueue) adopt(next engine.TxQueue) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var was engine.TxStats
	q.cur.Stats(&was)
	q.past.Add(&was)
	q.cur = next
}
