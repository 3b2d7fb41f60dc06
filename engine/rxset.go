package engine

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// RxSet are the receive queues of one port, the same for all engines: their ids, those that are
// open, and the counts of those that were. Q is the engine's type of queue, which embeds RxFront.
//
// Queues come and go with the set's lock held (Lock), so that an engine guards with it whatever of
// the port changes with them; an engine whose ports share a lock may hold that instead. Live may be
// called without.
type RxSet[Q RxOwner] struct {
	sync.Mutex
	live   atomic.Pointer[[]Q]
	past   RxStats
	closed bool
}

// RxOwner is a receive queue of an engine: a pointer to a struct that embeds RxFront.
type RxOwner interface {
	comparable
	RxQueue
	Front() *RxFront
}

// Front is the front itself, for those that embed it.
func (f *RxFront) Front() *RxFront { return f }

// Live are the open queues by id. The slice is not changed.
func (s *RxSet[Q]) Live() []Q {
	if l := s.live.Load(); l != nil {
		return *l
	}
	return nil
}

// Find is the open queue with that id; the zero Q if there is none.
func (s *RxSet[Q]) Find(id int) (q Q) {
	for _, x := range s.Live() {
		if x.ID() == id {
			return x
		}
	}
	return q
}

// Closed reports whether Close was called. The caller holds the lock.
func (s *RxSet[Q]) Closed() bool { return s.closed }

// Number sets spec.ID to the id of the next queue: the one that spec asks for, or the lowest that
// is free. A port has at most that many queues. The error is ErrClosed, ErrInvalid for an id out of
// range, ErrExists for one that is open, ErrInUse when all are open. The caller holds the lock.
func (s *RxSet[Q]) Number(spec *RxSpec, most int) error {
	if s.closed {
		return ErrClosed
	}
	id, err := queueID(spec.ID, most, s.Live())
	if err != nil {
		return fmt.Errorf("receive %w", err)
	}
	spec.ID = Queue(id)
	return nil
}

// Admit is Number and then CheckRx, for engines that have no options of a queue.
func (s *RxSet[Q]) Admit(spec *RxSpec, can *Capabilities) error {
	if err := s.Number(spec, can.RxQueues); err != nil {
		return err
	}
	if err := CheckRx(spec, can); err != nil {
		return fmt.Errorf("receive queue %v: %w", spec.ID, err)
	}
	return nil
}

// TxID is Number for a transmit queue: it returns the id, given those that are open.
func TxID[Q interface{ ID() int }](ask QueueID, most int, open []Q) (int, error) {
	id, err := queueID(ask, most, open)
	if err != nil {
		return 0, fmt.Errorf("transmit %w", err)
	}
	return id, nil
}

// leastIDs is the least number of ids of queues of one kind: a port that has fewer queues at a time
// still numbers them as it is asked.
const leastIDs = 64

func queueID[Q interface{ ID() int }](want QueueID, most int, open []Q) (int, error) {
	ask := want.Number()
	ids := max(most, leastIDs)
	used := func(id int) bool { return slices.ContainsFunc(open, func(q Q) bool { return q.ID() == id }) }
	switch {
	case ask < -1 || ask >= ids:
		return 0, fmt.Errorf("queue %d: expected 0 to %d: %w", ask, ids-1, ErrInvalid)
	case ask >= 0 && used(ask):
		return 0, fmt.Errorf("queue %d: %w", ask, ErrExists)
	case ask >= 0 && len(open) < most:
		return ask, nil
	}
	for id := range ids {
		if !used(id) && len(open) < most {
			return id, nil
		}
	}
	return 0, fmt.Errorf("queues: all %d of the port are open: %w", most, ErrInUse)
}

// Add makes a queue live. The caller holds the lock, and has called the queue's Start.
func (s *RxSet[Q]) Add(q Q) {
	live := append(slices.Clone(s.Live()), q)
	slices.SortFunc(live, func(a, b Q) int { return a.ID() - b.ID() })
	s.live.Store(&live)
}

// Remove ends what Add began: the queue is not live, gets no more packets of others, is shut
// (RxFront.Shut), and its counts become part of the port's. It is false when the queue was not
// live. The caller holds the lock.
func (s *RxSet[Q]) Remove(q Q) (removed bool, err error) {
	rest := slices.DeleteFunc(slices.Clone(s.Live()), func(o Q) bool { return o == q })
	if len(rest) == len(s.Live()) {
		return false, nil
	}
	s.live.Store(&rest)
	err = q.Front().Shut()
	var one RxStats
	q.Front().counted(&one)
	s.past.Add(&one)
	return true, err
}

// Close is what RxQueue.Close does: Remove with the lock held.
func (s *RxSet[Q]) Close(q Q) error {
	s.Lock()
	defer s.Unlock()
	_, err := s.Remove(q)
	return err
}

// Sum adds the counts of all queues that are and were to sum. The caller holds the lock.
func (s *RxSet[Q]) Sum(sum *RxStats) {
	sum.Add(&s.past)
	SumRx(sum, s.Live())
}

// Past are the counts of the queues that were. An engine adds what it learns of one after its end.
// The caller holds the lock.
func (s *RxSet[Q]) Past() *RxStats { return &s.past }

// End says that no queue is added any more, and returns those to close; nil and false if it was
// called before.
func (s *RxSet[Q]) End() (live []Q, first bool) {
	s.Lock()
	defer s.Unlock()
	if s.closed {
		return nil, false
	}
	s.closed = true
	return s.Live(), true
}
