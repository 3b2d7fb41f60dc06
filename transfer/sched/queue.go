package sched

import "math"

// OpCost is what each operation is charged beyond its bytes, in bytes: about what an operation
// without any costs a path.
const OpCost = 512

// Unlimited is the grant of an item without competition.
const Unlimited uint64 = math.MaxUint64

// Item is one piece of work in a Queue: usually a field of what it stands for, so that queueing it
// allocates nothing. It is in at most one Queue, once.
type Item[T any] struct {
	Value      T // of the caller
	flow       *Flow[T]
	prev, next *Item[T]
}

// Queued reports whether the item is in a Queue.
func (it *Item[T]) Queued() bool { return it.flow != nil }

// Flow is what fairness is between: work that keeps its order. It belongs to the caller, for
// example as a field of a stream or of a single transfer, and to at most one Queue and class while
// Active. The zero value is ready.
type Flow[T any] struct {
	head, tail *Item[T]
	class      *class[T] // nil: the queue knows nothing of it
	list       *flowList[T]
	prev, next *Flow[T]
	credit     int64 // bytes that it may take now; below 0: what it took too much
}

// Active reports whether a Queue refers to the flow: it has items, or had some a moment ago. A flow
// must not be used in another Queue, nor its memory be used again, before that.
func (f *Flow[T]) Active() bool { return f.class != nil }

// flowList is a list of flows in the order of their turns.
type flowList[T any] struct{ head, tail *Flow[T] }

func (l *flowList[T]) pushBack(f *Flow[T]) {
	f.list, f.prev, f.next = l, l.tail, nil
	if l.tail != nil {
		l.tail.next = f
	} else {
		l.head = f
	}
	l.tail = f
}

func (l *flowList[T]) pushFront(f *Flow[T]) {
	f.list, f.prev, f.next = l, nil, l.head
	if l.head != nil {
		l.head.prev = f
	} else {
		l.tail = f
	}
	l.head = f
}

func (l *flowList[T]) remove(f *Flow[T]) {
	if f.prev != nil {
		f.prev.next = f.next
	} else {
		l.head = f.next
	}
	if f.next != nil {
		f.next.prev = f.prev
	} else {
		l.tail = f.prev
	}
	f.list, f.prev, f.next = nil, nil, nil
}

// tagShift makes virtual time finer than bytes, so that dividing by a weight loses nothing that
// matters.
const tagShift = 16

// class holds the flows of one priority.
type class[T any] struct {
	weight  uint64
	tag     uint64      // virtual time at which its next operation starts; compared with wrap-around
	busy    int         // flows with items
	fresh   flowList[T] // flows in their first turn
	old     flowList[T] // all others
	sparse  int64       // bytes that fresh flows may still take before an old one's turn
	turning *Flow[T]    // head of old whose turn was opened and is not over
}

// Queue orders items; see the package comment for what it promises. It is not safe for concurrent
// use, and allocates nothing after New.
type Queue[T any] struct {
	quantum int64
	classes []class[T]
	virtual uint64 // start of the operation that was served last
	flows   int    // with items
	items   int
}

// New makes an empty queue. The quantum, 1 to 2^40 bytes, is the most that an item gets at a time
// while others wait. Each weight, 1 to 65536, makes a class, numbered from 0: there are at most 64.
func New[T any](quantum uint64, weights ...uint64) *Queue[T] {
	q := &Queue[T]{quantum: int64(quantum), classes: make([]class[T], len(weights))}
	for i, w := range weights {
		q.classes[i].weight = w
	}
	return q
}

// Len is the number of items.
func (q *Queue[T]) Len() int { return q.items }

// Flows is the number of flows that have items.
func (q *Queue[T]) Flows() int { return q.flows }

// Push puts an item at the end of a flow. A flow that is active keeps the class it has. The item
// must not be queued.
func (q *Queue[T]) Push(f *Flow[T], class int, it *Item[T]) {
	it.flow, it.prev, it.next = f, f.tail, nil
	if f.tail != nil {
		f.tail.next = it
	} else {
		f.head = it
	}
	f.tail = it
	q.items++
	if f.head == it {
		q.begin(f, class, false)
	}
}

// PushFront puts an item that was removed back to the head of its flow, because an operation was
// not accepted that it was charged so much for.
func (q *Queue[T]) PushFront(f *Flow[T], class int, it *Item[T], charged Charge) {
	it.flow, it.prev, it.next = f, nil, f.head
	if f.head != nil {
		f.head.prev = it
	} else {
		f.tail = it
	}
	f.head = it
	q.items++
	known := f.class != nil
	if f.head == f.tail {
		q.begin(f, class, true)
	}
	if known {
		q.Refund(it, charged)
	}
}

// begin makes a flow that has its first item take part.
func (q *Queue[T]) begin(f *Flow[T], class int, front bool) {
	q.flows++
	c := f.class
	if c == nil {
		c = &q.classes[class]
	}
	if c.busy++; c.busy == 1 && ahead(q.virtual, c.tag) {
		c.tag = q.virtual // time in which it had nothing to do is not saved
	}
	if f.class != nil { // empty for a moment only: it keeps its place
		return
	}
	f.class, f.credit = c, q.quantum
	if front {
		c.fresh.pushFront(f)
	} else {
		c.fresh.pushBack(f)
	}
}

// lag is how many quanta of what it could have been charged a class may make good that Next passed
// over.
const lag = 4

// Next is the item whose turn it is, nil when there is none, and how many bytes of it may be taken
// now: Unlimited when no other flow has work. Say what was done by Took, and Remove the item when
// it is finished; without either, Next answers the same again as long as nothing is pushed. Only
// classes whose bits are set have a turn: the others cannot go on for now. What they miss meanwhile
// they may make good, up to four quanta.
func (q *Queue[T]) Next(classes uint64) (it *Item[T], grant uint64) {
	if q.flows == 1 {
		grant = Unlimited
	} else {
		grant = uint64(q.quantum)
	}
	var best *class[T]
	for i := range q.classes {
		c := &q.classes[i]
		switch {
		case c.busy == 0:
		case classes&(1<<i) == 0:
			if most := c.span(lag * q.quantum); ahead(q.virtual-most, c.tag) {
				c.tag = q.virtual - most
			}
		case best == nil || ahead(best.tag, c.tag):
			best = c
		}
	}
	if best == nil {
		return nil, 0
	}
	return q.pick(best).head, grant
}

// ahead reports whether virtual time a is later than b.
func ahead(a, b uint64) bool { return int64(a-b) > 0 }

// pick finds the flow of a class whose turn it is. The class has one with items.
func (q *Queue[T]) pick(c *class[T]) *Flow[T] {
	for {
		if f := c.fresh.head; f != nil {
			if f.head != nil && f.credit > 0 && (c.sparse > 0 || c.old.head == nil) {
				return f
			}
			// Its first turn is over, or too many go first already. Also when it is empty it has to
			// wait for one turn of the others before it is new again.
			c.fresh.remove(f)
			c.old.pushBack(f)
			continue
		}
		f := c.old.head
		if f.head == nil {
			q.Drop(f)
			continue
		}
		if c.turning != f {
			c.turning = f
			c.sparse = q.quantum
			f.credit = min(f.credit+q.quantum, q.quantum)
		}
		if f.credit > 0 {
			return f
		}
		c.turning = nil
		c.old.remove(f)
		c.old.pushBack(f)
	}
}

// Charge is what an operation was charged; 0 when no other flow competed.
type Charge int64

// Took charges the item that Next returned for an operation of so many bytes, at most what was
// granted.
func (q *Queue[T]) Took(it *Item[T], bytes uint64) Charge {
	if q.flows <= 1 {
		return 0
	}
	f := it.flow
	c, n := f.class, int64(min(bytes, uint64(q.quantum)))+OpCost
	if ahead(c.tag, q.virtual) { // not so when it makes something good
		q.virtual = c.tag
	}
	c.tag += c.span(n)
	f.credit -= n
	if f.list == &c.fresh && c.old.head != nil {
		c.sparse -= n
	}
	return Charge(n)
}

// span is how far an operation moves a class's virtual time.
func (c *class[T]) span(n int64) uint64 { return uint64(n) << tagShift / c.weight }

// Refund takes a charge back, because the operation was not accepted. The item is still queued.
func (q *Queue[T]) Refund(it *Item[T], charged Charge) {
	f := it.flow
	f.credit += int64(charged)
	f.class.tag -= f.class.span(int64(charged))
}

// Remove takes an item out, wherever in its flow it is; it does nothing when the item is not
// queued.
func (q *Queue[T]) Remove(it *Item[T]) {
	f := it.flow
	if f == nil {
		return
	}
	if it.prev != nil {
		it.prev.next = it.next
	} else {
		f.head = it.next
	}
	if it.next != nil {
		it.next.prev = it.prev
	} else {
		f.tail = it.prev
	}
	it.flow, it.prev, it.next = nil, nil, nil
	q.items--
	if f.head == nil {
		c := f.class
		q.flows--
		if c.busy--; c.busy == 0 {
			q.rest(c)
		}
	}
}

// rest forgets the flows of a class that has no items left, so that none is referred to for longer
// than others have work.
func (q *Queue[T]) rest(c *class[T]) {
	for _, l := range [...]*flowList[T]{&c.fresh, &c.old} {
		for f := l.head; f != nil; f = l.head {
			l.remove(f)
			f.class = nil
		}
	}
	c.turning, c.sparse = nil, 0
}

// Drop forgets a flow that has no items, so that its memory can be used for something else at once.
// One that ends for good, such as that of a single transfer, is dropped instead of waiting for its
// turn.
func (q *Queue[T]) Drop(f *Flow[T]) {
	if f.class == nil || f.head != nil {
		return
	}
	if f.class.turning == f {
		f.class.turning = nil
	}
	f.list.remove(f)
	f.class = nil
}

// Each calls do for every item, flow by flow; do may remove the item it is called with.
func (q *Queue[T]) Each(do func(*Item[T])) {
	for i := range q.classes {
		c := &q.classes[i]
		for _, l := range [...]*flowList[T]{&c.fresh, &c.old} {
			for f := l.head; f != nil; {
				next := f.next
				for it := f.head; it != nil; {
					after := it.next
					do(it)
					it = after
				}
				f = next
			}
		}
	}
}
