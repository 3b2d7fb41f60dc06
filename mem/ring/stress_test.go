package ring

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// item travels through the stressed rings by pointer. Its fields are plain memory:
// the race detector sees any missing order between Put and Get.
type item struct {
	producer int
	number   int
	got      int // how often
}

// ledger bounds, from outside, what can be in a ring at any moment of a call.
type ledger struct {
	min   atomic.Int64 // items moved by calls that returned
	max   atomic.Int64 // the same, plus all that calls in progress could move
	begun atomic.Int64 // calls begun
	done  atomic.Int64 // calls returned
}

// call wraps one call that offers to move n items and returns how many it moved.
// verdict is asked when it moved fewer.
func (own *ledger) call(other *ledger, n int, move func() int, verdict func(own, other, begun, done int64)) int {
	doneBefore := other.done.Load()
	otherMin := other.min.Load()
	own.begun.Add(1)
	own.max.Add(int64(n))
	k := move()
	own.max.Add(int64(k - n))
	own.min.Add(int64(k))
	own.done.Add(1)
	ownMax := own.max.Load()
	if k < n {
		verdict(ownMax, otherMin, other.begun.Load(), doneBefore)
	}
	return k
}

// stress moves items from producers to consumers and checks that each arrives once,
// in the order of its producer as far as one consumer sees it, and that no answer
// of "full" or "empty" is a lie.
//
// laxEmpty permits "empty" while a Put is in progress, laxFull permits "full" while
// a Get is: what the package documentation says of MPSC and MPMC.
func stress(t *testing.T, r heapRing[*item], producers, consumers, each int, laxEmpty, laxFull bool) {
	var puts, gets ledger
	var wg sync.WaitGroup
	var failed atomic.Bool
	fail := func(format string, args ...any) {
		failed.Store(true)
		t.Errorf(format, args...)
	}
	size := int64(r.Cap())
	all := make([][]item, producers)
	for p := range all {
		all[p] = make([]item, each)
	}
	var left atomic.Int64
	left.Store(int64(producers * each))
	deadline := time.Now().Add(time.Minute)
	idle := func() bool {
		runtime.Gosched()
		if time.Now().After(deadline) && !failed.Load() {
			fail("stuck: %d items left, ring holds %d", left.Load(), r.Len())
		}
		return failed.Load()
	}

	// The ring was full during the whole call only if what may have come in,
	// less what has surely gone out, reaches its size.
	full := func(putMax, getMin, begun, done int64) {
		if putMax-getMin < size && !(laxFull && begun != done) {
			fail("Put answered full, but at most %d of %d items were in the ring", putMax-getMin, size)
		}
	}
	empty := func(getMax, putMin, begun, done int64) {
		if putMin-getMax > 0 && !(laxEmpty && begun != done) {
			fail("Get answered empty, but at least %d items were in the ring", putMin-getMax)
		}
	}

	for p := range producers {
		wg.Go(func() {
			batch := make([]*item, 0, 16)
			for i := 0; i < each; {
				batch = batch[:0]
				for n := 1 + (i+p)%cap(batch); len(batch) < n && i+len(batch) < each; {
					it := &all[p][i+len(batch)]
					it.producer, it.number = p, i+len(batch)
					batch = append(batch, it)
				}
				var k int
				if len(batch) == 1 {
					k = puts.call(&gets, 1, func() int {
						if r.Put(batch[0]) {
							return 1
						}
						return 0
					}, full)
				} else {
					k = puts.call(&gets, len(batch), func() int { return r.PutBatch(batch) }, func(a, b, c, d int64) {
						if len(batch) <= int(size) { // more than a ring can hold is never taken
							full(a, b, c, d)
						}
					})
				}
				i += k
				if k == 0 && idle() {
					return
				}
			}
		})
	}
	for c := range consumers {
		wg.Go(func() {
			last := make([]int, producers)
			for p := range last {
				last[p] = -1
			}
			buf := make([]*item, 16)
			for turn := c; left.Load() > 0; turn++ {
				n := 1 + turn%len(buf)
				var k int
				if n == 1 {
					k = gets.call(&puts, 1, func() int {
						v, ok := r.Get()
						if !ok {
							return 0
						}
						buf[0] = v
						return 1
					}, empty)
				} else {
					k = gets.call(&puts, n, func() int { return r.GetBatch(buf[:n]) }, func(a, b, c, d int64) {
						if n <= int(size) {
							empty(a, b, c, d)
						}
					})
				}
				for _, it := range buf[:k] {
					it.got++
					if it.number <= last[it.producer] {
						fail("item %d of producer %d came after %d", it.number, it.producer, last[it.producer])
					}
					last[it.producer] = it.number
				}
				left.Add(int64(-k))
				if k == 0 && idle() {
					return
				}
			}
		})
	}
	wg.Wait()
	for p := range all {
		for i := range all[p] {
			if n := all[p][i].got; n != 1 {
				t.Fatalf("item %d of producer %d was got %d times", i, p, n)
			}
		}
	}
	if n := r.Len(); n != 0 {
		t.Errorf("Len %d at the end", n)
	}
}

func TestStress(t *testing.T) {
	for _, capacity := range []int{2, 8, 256} {
		// On a busy machine a hand-over costs a time slice, and a small ring needs
		// one for every few items.
		total := map[int]int{2: 8_000, 8: 24_000, 256: 60_000}[capacity]
		for _, c := range []struct {
			ring                 string
			producers, consumers int
		}{
			{"SPSC", 1, 1},
			{"MPSC", 1, 1}, {"MPSC", 4, 1},
			{"MPMC", 1, 1}, {"MPMC", 4, 1}, {"MPMC", 1, 4}, {"MPMC", 3, 3},
		} {
			t.Run(fmt.Sprintf("%s/%d/%dto%d", c.ring, capacity, c.producers, c.consumers), func(t *testing.T) {
				r := heapRings[*item](t, capacity, ^uint64(0)-uint64(total/2))[c.ring] // wraps half-way
				stress(t, r, c.producers, c.consumers, total/c.producers, c.ring != "SPSC", c.ring == "MPMC")
			})
		}
	}
}

// TestEmptyPolls lets many consumers poll an empty ring while one item at a time
// comes in: polling must neither lose nor invent anything.
func TestEmptyPolls(t *testing.T) {
	r, err := NewMPMC[int](4)
	if err != nil {
		t.Fatal(err)
	}
	const items = 2000
	var sum, got atomic.Int64
	var polls atomic.Int64
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			for got.Load() < items {
				if v, ok := r.Get(); ok {
					sum.Add(int64(v))
					got.Add(1)
				} else {
					polls.Add(1)
					runtime.Gosched()
				}
			}
		})
	}
	for i := 1; i <= items; i++ {
		for !r.Put(i) {
			runtime.Gosched()
		}
		for got.Load() < int64(i) { // the ring is empty again before the next
			runtime.Gosched()
		}
	}
	wg.Wait()
	if n := sum.Load(); n != items*(items+1)/2 {
		t.Errorf("sum of items %d, want %d", n, items*(items+1)/2)
	}
	if polls.Load() == 0 {
		t.Error("no consumer ever found the ring empty: nothing was tested")
	}
}

// TestRetries: no retry without contention, and some with it.
func TestRetries(t *testing.T) {
	p, _ := NewMPSC[int](64)
	m, _ := NewMPMC[int](64)
	buf := make([]int, 32)
	for range 100 {
		p.Put(1)
		p.PutBatch(buf)
		m.Put(1)
		m.PutBatch(buf)
		p.GetBatch(buf)
		m.GetBatch(buf)
		p.Get()
		m.Get()
	}
	if put, get := m.Retries(); put+get+p.Retries() != 0 {
		t.Errorf("one goroutine had %d, %d and %d retries", put, get, p.Retries())
	}
	if runtime.GOMAXPROCS(0) < 2 {
		t.Log("one processor: contention not tried")
		return
	}
	deadline := time.Now().Add(30 * time.Second)
	for time.Now().Before(deadline) {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 5000 {
					p.Put(1)
					m.Put(1)
					m.Get()
				}
			})
		}
		wg.Go(func() {
			for range 20000 {
				p.Get()
			}
		})
		wg.Wait()
		if put, get := m.Retries(); put > 0 && get > 0 && p.Retries() > 0 {
			return
		}
	}
	put, get := m.Retries()
	t.Errorf("after 30 s of contention: retries MPMC %d put, %d get, MPSC %d", put, get, p.Retries())
}

// TestStaleTicket puts a claim where a pause between its two looks would leave it:
// the ticket that it read has been taken, published and released by others since.
// That is neither full nor empty; the claim has to look again. Under stress this
// happens too rarely to rely on.
func TestStaleTicket(t *testing.T) {
	const size = 4
	for range 200 {
		m, err := NewMPMC[int](size)
		if err != nil {
			t.Fatal(err)
		}
		for i := range size + 1 { // slot 0 is free for ticket 4, then filled by it
			if i == size {
				m.Get()
			}
			m.Put(i)
		}
		for range size {
			m.Get() // tickets 1 to 4; now slot 0 is free for ticket 8
		}
		m.Put(5)
		for what, ready := range map[string]uint64{"Put": 0, "Get": 1} {
			var c cursor // still at ticket 0
			now := map[uint64]uint64{0: 6, 1: 5}[ready]
			go c.ticket.Store(now)
			if first, n := m.claim(&c, 1, ready); n != 1 || first != now {
				t.Fatalf("MPMC: %s with a ticket long taken claimed %d from %d, want 1 from %d", what, n, first, now)
			}
		}

		p, err := NewMPSC[int](size)
		if err != nil {
			t.Fatal(err)
		}
		p.head.Store(3)
		p.seen.Store(3) // tail is still 0: as a producer read it before the others got ahead
		go p.tail.Store(5)
		if first, n := p.claim(1); n != 1 || first != 5 {
			t.Fatalf("MPSC: Put with a ticket long taken claimed %d from %d, want 1 from 5", n, first)
		}
	}
}
