package xdp

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// A chunk that was received into does not go back to its pool when its packet is released, but to
// the queue of the interface that it came from, which gives it to the kernel again: the pool sees
// it only when it comes and when it goes for good. So a packet costs no change of the pool's list
// and of a generation, and chunks come round in the order in which they were used.

// entry says who has a chunk, in one word, because each packet changes it several times, and
// thousands of them must fit into the processor's cache beside the packets: the state in the low
// half, with the number of the sender while it is sent, above it the number of the nicQueue that
// received into it (1 to maxNICQueues, 0 for none), and at the top how often it was delivered.
//
// An entry is changed under the mutex of the nicQueue that has the chunk; one that is idle or lent,
// by the queue that gets it from the application. No nicQueue looks at the entries of another one,
// but Memory.leave, which holds all these mutexes.
type entry uint64

const (
	queueBits    = 10
	maxNICQueues = 1<<queueBits - 1

	oneQueue    entry = 1 << 32 // of the number of the nicQueue
	queueMask   entry = maxNICQueues * oneQueue
	oneDelivery entry = oneQueue << queueBits // of the count of deliveries

	low       entry = oneQueue - 1 // what a handle has the number of the chunk in place of
	stateMask entry = 1<<3 - 1

	// While it is sent:
	lastChunk  entry = 1 << 3 // of its packet
	senderBits       = 16
	oneSender  entry = 1 << 8 // of the number of its sender
	senders    entry = (1<<senderBits - 1) * oneSender
)

// The states of a chunk.
const (
	idle     entry = iota
	filled         // given to the kernel to receive into, and not delivered yet
	toRefill       // to be given to the kernel again to receive into
	lent           // delivered, and not released yet
	sending        // given to the kernel to send, from idle
	// the same, from lent: it had gone back to its pool past its queue, and the application has it
	// from there
	sendingLent
	// given to the kernel to send by the one that it was delivered to: the entry says what takes it
	// back
	forwarding
)

// handle is what a packet carries in which chunk i was delivered: the entry, with the number of the
// chunk in the place of the state. That of another delivery is another one.
func (e entry) handle(i uint64) mem.Handle { return mem.Handle(e&^low | entry(i)) }

// delivered is the entry after the delivery of a chunk that is filled.
func (e entry) delivered() entry { return e + oneDelivery + lent - filled }

// sent is the entry after a chunk was sent.
func (e entry) sent() entry {
	if e&stateMask == sending {
		return e &^ low
	}
	return e&^low | lent
}

// lentAs is the entry of a chunk that is lent by this handle.
func lentAs(h mem.Handle) entry { return entry(h)&^low | lent }

// handle is what a packet will carry in which the chunk of an address is delivered.
func (m *Memory) handle(addr uint64) mem.Handle {
	i := addr >> m.shift
	return m.table[i].delivered().handle(i)
}

// sentBy is the entry of a chunk that is given to the kernel to send, in the state that it goes
// into.
func (e entry) sentBy(s *sender, state entry, last bool) entry {
	e = e&^low | state | entry(s.number)*oneSender
	if last {
		e |= lastChunk
	}
	return e
}

// unused reports whether chunk i can be sent for an owner who has it from src by this handle: not
// if the kernel has it, nor if it was released. The entry of one that went back to its pool past
// its queue still says that it is lent: that does not matter to an owner that has it from the pool.
func (m *Memory) unused(i uint64, src *burst.Source, h mem.Handle) bool {
	e := m.table[i]
	if src == m.source {
		return e&^queueMask == lentAs(h)&^queueMask && uint64(uint32(h)) == i
	}
	return e&stateMask == idle || e&stateMask == lent
}

// origin is what else is to be known of a chunk that the application has.
type origin struct {
	home mem.Handle // of the pool that it was taken from to receive into
	pool *mem.Pool

	// What takes it back when it was sent, unless the entry says it: nil for the spare pool.
	handle mem.Handle
	src    *burst.Source
}

// recycler takes packets back that the kernel received into a Memory. It implements burst.Owner.
type recycler struct{ m *Memory }

// Reclaim implements burst.Owner. What was released before is refused when the chunk is to go to
// the kernel, and then counted by its pool; with -tags invariants it panics at once, because all
// chunks go through their pools then, which know who released them.
func (r *recycler) Reclaim(handles []mem.Handle) {
	m := r.m
	for len(handles) > 0 {
		of := entry(handles[0]) & queueMask
		k := 1
		for k < len(handles) && entry(handles[k])&queueMask == of {
			k++
		}
		if n := m.nicQueue(of); invariants.Enabled || n == nil || !n.returns.add(handles[:k]) {
			m.giveBack(handles[:k])
		}
		handles = handles[k:]
	}
}

// giveBack gives chunks back to their pools whose nicQueue is gone. Their entries stay: only their
// new owner looks at them.
func (m *Memory) giveBack(handles []mem.Handle) {
	var batch poolBatch
	for _, h := range handles {
		l := &m.origins[uint32(h)]
		if invariants.Enabled {
			if e := entry(atomic.LoadUint64((*uint64)(&m.table[uint32(h)]))); (e^lentAs(h))&^queueMask != 0 {
				// see leave
				panic(fmt.Sprintf("xdp: released twice: chunk %d", uint32(h)))
			}
		}
		batch.add(l.pool, l.home)
	}
	batch.end()
}

// poolBatch gives slots back to pools, many at once.
type poolBatch struct {
	pool    *mem.Pool
	n       int
	handles [rxBatch]mem.Handle
}

func (b *poolBatch) add(p *mem.Pool, h mem.Handle) {
	if p != b.pool || b.n == len(b.handles) {
		b.end()
		b.pool = p
	}
	b.handles[b.n] = h
	b.n++
}

func (b *poolBatch) end() {
	if b.n > 0 {
		if _, err := b.pool.PutBatch(b.handles[:b.n]); err != nil && invariants.Enabled {
			panic(fmt.Sprintf("xdp: released twice: %v", err))
		}
		b.n = 0
	}
}

// returns are the chunks that were released and that their nicQueue has not taken yet. Its mutex is
// taken last.
type returns struct {
	some atomic.Bool

	mu          sync.Mutex
	list, other []mem.Handle
	closed      bool
}

// add is false when the nicQueue is closed.
func (r *returns) add(handles []mem.Handle) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.list = append(r.list, handles...)
	if !r.some.Load() {
		r.some.Store(true)
	}
	return true
}

// take takes all of them, which stay as they are until the next take.
func (r *returns) take() []mem.Handle {
	if !r.some.Load() {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.some.Store(false)
	r.list, r.other = r.other[:0], r.list
	return r.other
}

// close takes all of them for the last time.
func (r *returns) close() []mem.Handle {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.some.Store(false)
	left := r.list
	r.list, r.other = nil, nil
	return left
}

// recycle gives chunks that were released to the kernel again, as long as it is to have more, and
// the others to their pools. The caller holds mu.
func (n *nicQueue) recycle() {
	in := n.returns.take()
	if len(in) == 0 {
		return
	}
	m, fill := n.memory, n.queue.Fill()
	table, shift := m.table, m.shift
	for len(in) > 0 && n.out < n.target {
		room := fill.Reserve(min(len(in), n.target-n.out))
		if len(room) == 0 {
			break // the kernel says late what it has taken
		}
		k := 0
		for i, h := range in[:len(room)] {
			at := uint64(uint32(h))
			if at >= uint64(len(table)) || table[at] != lentAs(h) {
				n.toPools(in[i : i+1])
				continue
			}
			table[at] -= lent - filled
			room[k] = at << shift
			k++
		}
		fill.Submit(k)
		n.out += k
		in = in[len(room):]
	}
	n.toPools(in)
}

// toPools gives chunks that were released to their pools, or refuses what was released before. The
// caller holds mu.
func (n *nicQueue) toPools(handles []mem.Handle) {
	m := n.memory
	var batch poolBatch
	for _, h := range handles {
		at := uint64(uint32(h))
		if at >= uint64(len(m.table)) {
			continue
		}
		l := &m.origins[at]
		switch m.table[at] {
		case lentAs(h), lentAs(h) &^ queueMask: // that of a queue that was closed, and whose number this one has now
			m.table[at] -= lent - idle
			batch.add(l.pool, l.home)
		default:
			if l.pool != nil {
				one := [1]mem.Handle{mem.Handle(at) & (1<<32 - 1)} // of no generation that is out: the pool counts it
				l.pool.PutBatch(one[:])
			}
		}
	}
	batch.end()
}
