package engine

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/penstock-io/penstock/packet/burst"
)

// TxFront is what applications call of a transmit queue that sends from pools, the same in engines
// whose packets go through an Outbox: engines embed it, and add how packets of others get in
// (Forward), their own counts, and Close. Any goroutine may use it after Start.
type TxFront struct {
	id    int
	slots *TxSlots
	box   *Outbox
	reap  func()
	off   offload

	shut      atomic.Bool
	forwarded atomic.Uint64
}

// Start gives it its parts, before anything else is called. reap takes back what the device has
// done with; it is called when there are fewer descriptors than a caller wants, and may be nil.
func (f *TxFront) Start(id int, slots *TxSlots, box *Outbox, reap func()) {
	f.id, f.slots, f.box, f.reap = id, slots, box, reap
}

// ID implements TxQueue.
func (f *TxFront) ID() int { return f.id }

// Alloc implements TxQueue.
func (f *TxFront) Alloc(b *burst.Burst, n, length int) (int, error) {
	if f.shut.Load() {
		return 0, ErrClosed
	}
	f.want(n)
	return f.slots.Alloc(f.box, b, n, length)
}

// want looks for descriptors where there are fewer than n.
func (f *TxFront) want(n int) {
	if f.reap != nil && f.box.Free() < n {
		f.reap()
	}
}

// ForwardReached is Forward of a queue whose device reads what the CPU reads, wherever it lies.
func (f *TxFront) ForwardReached(b *burst.Burst) (int, error) {
	if b != nil {
		f.want(b.Len())
	}
	return f.count(f.box.ClaimReached(b))
}

// ForwardAny is Forward of a queue whose device knows all memory that b is in.
func (f *TxFront) ForwardAny(b *burst.Burst) (int, error) {
	f.want(b.Len())
	return f.count(f.box.Claim(b))
}

func (f *TxFront) count(n int, err error) (int, error) {
	if err == ErrFull {
		f.slots.CountFull()
	}
	f.forwarded.Add(uint64(n))
	return n, err
}

// Drain implements TxQueue.
func (f *TxFront) Drain(ctx context.Context) error { return f.box.Drain(ctx) }

// AddStats adds to s what was counted in front of the device. Engines add their own counts first:
// what is queued is not among those.
func (f *TxFront) AddStats(s *TxStats) {
	s.Forwarded += f.forwarded.Load()
	s.Queued += uint64(f.box.Queued())
	f.slots.AddStats(s)
	f.box.AddDrops(&s.Drops)
	for i := range f.off.drops {
		s.Drops[i] += f.off.drops[i].Load()
	}
}

// Shut closes the Outbox: what is queued is dropped, and nothing more is taken.
func (f *TxFront) Shut() {
	f.shut.Store(true)
	f.box.Close()
}

// IsShut reports whether Shut was called.
func (f *TxFront) IsShut() bool { return f.shut.Load() }

// keepRetired is the number of closed queues that a port remembers apart.
const keepRetired = 16

// RetireTx moves a closed queue from the open ones of a port to those that were: what is given to
// it later counts too. Of the oldest only the counts remain, in past. It changes neither of the
// lists that it is given, and nothing where the queue is not open.
func RetireTx[Q interface {
	comparable
	Stats(*TxStats)
}](q Q, open, gone []Q, past *TxStats) (stillOpen, wereOpen []Q) {
	i := slices.Index(open, q)
	if i < 0 {
		return open, gone
	}
	open, gone = slices.Delete(slices.Clone(open), i, i+1), append(slices.Clone(gone), q)
	if over := len(gone) - keepRetired; over > 0 {
		SumTx(past, gone[:over])
		gone = slices.Delete(gone, 0, over)
	}
	return open, gone
}
