package engine

import (
	"encoding/binary"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newPool(t testing.TB, slots int) *mem.Pool {
	t.Helper()
	p, err := mem.NewPool(mem.PoolOptions{Name: "test", SlotSize: 64, Slots: slots})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if n := p.Stats().InUse; n != 0 {
			t.Errorf("%d slots of the pool are still out", n)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// queue is a receive queue whose packets the test pushes: numbers, in order. Any goroutine may
// push.
type queue struct {
	pool *mem.Pool
	src  *burst.Source

	mu     sync.Mutex
	fifo   []uint64
	waker  *Waker
	closed bool
	err    error // returned once, then nothing more
	segs   int   // of each packet; 0 is 1
	arms   int
	lazy   bool // an Arm never says ready: the Wake comes at once instead
	stats  RxStats
}

func newQueue(t testing.TB, slots int) *queue {
	p := newPool(t, slots)
	return &queue{pool: p, src: burst.PoolSource(p)}
}

func (q *queue) push(ns ...uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.fifo = append(q.fifo, ns...)
	q.wake()
}

func (q *queue) fail(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.err = err
	q.wake()
}

func (q *queue) wake() {
	if q.waker != nil {
		q.waker.Wake()
		q.waker = nil
	}
}

func (q *queue) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.fifo)
}

func (q *queue) ID() int { return 0 }

func (q *queue) TryRecv(b *burst.Burst) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	q.stats.Polls++
	segs := max(q.segs, 1)
	for len(q.fifo) > 0 && b.Room() > 0 && b.SegmentRoom() >= segs {
		var hs [4]mem.Handle
		if got := q.pool.GetBatch(hs[:segs]); got < segs {
			q.pool.PutBatch(hs[:got])
			break
		}
		off := q.pool.Offset(hs[0])
		binary.LittleEndian.PutUint64(q.src.Region().All().Bytes()[off:], q.fifo[0])
		b.Builder().Add(q.src, burst.Segment{Handle: hs[0], Off: off, Len: 8, Cap: 64})
		for _, h := range hs[1:segs] {
			b.Builder().AddSegment(q.src, burst.Segment{Handle: h, Off: q.pool.Offset(h), Len: 8, Cap: 64})
		}
		q.fifo = q.fifo[1:]
		n++
	}
	q.stats.Packets += uint64(n)
	if n == 0 && len(q.fifo) == 0 {
		q.stats.Empty++
		if q.err != nil {
			err := q.err
			q.err = nil
			return 0, err
		}
		if q.closed {
			return 0, ErrClosed
		}
	}
	return n, nil
}

func (q *queue) Arm(w *Waker) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.arms++
	if len(q.fifo) > 0 || q.closed || q.err != nil {
		if q.lazy {
			w.Wake()
			return false
		}
		return true
	}
	q.waker = w
	return false
}

func (q *queue) Discard() (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := len(q.fifo)
	q.fifo = nil
	q.stats.Drops[DropFlushed] += uint64(n)
	return n, nil
}

func (q *queue) Stats(s *RxStats) {
	q.mu.Lock()
	defer q.mu.Unlock()
	*s = q.stats
}

// Close leaves what waits to be received, unlike a real queue.
func (q *queue) Close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.wake()
	return nil
}

// deaf is a device that is only polled, behind the front half of receive queues: it has what a
// queue has.
type deaf struct {
	RxFront
	q *queue
}

func newDeaf(q *queue) *deaf {
	d := &deaf{q: q}
	d.Start(RxSpec{Depth: 64}, d)
	return d
}

func (d *deaf) Collect(b *burst.Burst) error { _, err := d.q.TryRecv(b); return err }
func (d *deaf) Watch(*Waker) Armed           { return ArmedPoll }
func (d *deaf) Stop(Drop) error              { return nil }

// number is the content of packet i.
func number(b *burst.Burst, i int) uint64 { return binary.LittleEndian.Uint64(b.Bytes(i, 0)) }

func numbers(b *burst.Burst) []uint64 {
	ns := make([]uint64, b.Len())
	for i := range ns {
		ns[i] = number(b, i)
	}
	return ns
}
