package control

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestBatcherRules(t *testing.T) {
	var b Batcher
	if w := b.Wait(t0, 0); w != Idle {
		t.Errorf("empty: %v", w)
	}
	if w := b.Add(t0, 64, 0); w != 0 {
		t.Errorf("alone with nothing in flight it waits %v", w)
	}
	b.Reset()
	if w := b.Add(t0, 64, 1); w != BatchDelay {
		t.Errorf("first: %v", w)
	}
	if w := b.Add(at(20*time.Microsecond), 64, 1); w != 30*time.Microsecond {
		t.Errorf("second: %v, the age of the oldest counts", w)
	}
	if w := b.Wait(at(30*time.Microsecond), 0); w != 0 {
		t.Errorf("nothing in flight any more: %v", w)
	}
	if w := b.Wait(at(50*time.Microsecond), 1); w != 0 {
		t.Errorf("deadline: %v", w)
	}
	if w := b.Wait(at(time.Second), 1); w != 0 {
		t.Errorf("past the deadline: %v", w)
	}
	b.Reset()
	for i := range BatchCount {
		w := b.Add(t0, 1, 1)
		if full := i == BatchCount-1; full != (w == 0) {
			t.Errorf("operation %d: %v", i+1, w)
		}
	}
	b.Reset()
	if w := b.Add(t0, BatchBytes-1, 1); w == 0 {
		t.Error("below the limit of bytes it does not wait")
	}
	if w := b.Add(t0, 1, 1); w != 0 {
		t.Errorf("limit of bytes: %v", w)
	}
	b.Reset()
	b.Add(t0, 1, 1)
	if w := b.Add(t0, ^uint64(0), 1); w != 0 {
		t.Errorf("a sum that overflows: %v", w)
	}
	one := Batcher{Count: 1}
	if w := one.Add(t0, 1, 5); w != 0 {
		t.Errorf("without batching: %v", w)
	}
	if n := testing.AllocsPerRun(100, func() { b.Add(t0, 1, 1); b.Wait(t0, 0); b.Reset() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestBatcherInVirtualTime runs a destination with random arrivals and random service times. Every
// operation is handed over at its deadline at the latest, in order, in batches within the limits,
// and at once when nothing is in flight.
func TestBatcherInVirtualTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Batcher{Count: rapid.IntRange(1, 8).Draw(t, "count"), Bytes: rapid.Uint64Range(1, 100).Draw(t, "bytes"),
			Delay: time.Duration(rapid.IntRange(1, 50).Draw(t, "delay"))}
		type op struct {
			id    int
			bytes uint64
			at    time.Time
		}
		var queue []op
		var inflight []time.Time // when they complete
		next, now, due := 0, t0, time.Time{}
		flush := func() {
			n, sum := len(queue), uint64(0)
			for i, o := range queue {
				if o.id != next {
					t.Fatalf("operation %d when %d is due", o.id, next)
				}
				next++
				if wait := now.Sub(o.at); wait > b.Delay {
					t.Fatalf("operation %d waited %v, at most %v", o.id, wait, b.Delay)
				}
				if i < n-1 {
					sum += o.bytes
				}
				inflight = append(inflight, now.Add(time.Duration(rapid.IntRange(1, 100).Draw(t, "service"))))
			}
			if n > b.Count || sum >= b.Bytes {
				t.Fatalf("batch of %d operations, %d bytes before the last; limits %d and %d", n, sum, b.Count, b.Bytes)
			}
			b.Reset()
			queue, due = queue[:0], time.Time{}
		}
		act := func(w time.Duration) {
			switch {
			case w == Idle:
				if len(queue) != 0 {
					t.Fatalf("idle with %d queued", len(queue))
				}
			case w == 0:
				flush()
			case len(inflight) == 0:
				t.Fatalf("waits %v although nothing is in flight", w)
			default:
				due = now.Add(w)
			}
			if b.queued != len(queue) {
				t.Fatalf("counts %d of %d", b.queued, len(queue))
			}
		}
		total := rapid.IntRange(1, 60).Draw(t, "operations")
		for k := 0; k < total || len(queue) > 0; {
			arrival := now.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "pause")))
			for { // what happens before the next arrival: completions and the deadline
				first := -1
				for i, c := range inflight {
					if !c.After(arrival) && (first < 0 || c.Before(inflight[first])) {
						first = i
					}
				}
				if !due.IsZero() && !due.After(arrival) && (first < 0 || due.Before(inflight[first])) {
					now = due
					flush()
					continue
				}
				if first < 0 {
					break
				}
				now = inflight[first]
				inflight = append(inflight[:first], inflight[first+1:]...)
				act(b.Wait(now, len(inflight)))
			}
			now = arrival
			if k < total {
				o := op{k, rapid.Uint64Range(0, 120).Draw(t, "size"), now}
				queue = append(queue, o)
				k++
				act(b.Add(now, o.bytes, len(inflight)))
			}
		}
		if next != total {
			t.Fatalf("%d of %d operations were handed over", next, total)
		}
	})
}
