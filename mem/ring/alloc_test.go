package ring

import "testing"

// TestNoAllocation: no call of any ring allocates, whether it moves something or not.
func TestNoAllocation(t *testing.T) {
	type big struct {
		P *int
		B [5]uint64
	}
	check := func(name string, f func()) {
		t.Helper()
		if n := testing.AllocsPerRun(200, f); n != 0 {
			t.Errorf("%s: %v allocations per run", name, n)
		}
	}
	vs, dst := make([]big, 40), make([]big, 40)
	vs[0] = big{new(int), [5]uint64{1}}
	for name, r := range heapRings[big](t, 32, 0) {
		check(name, func() {
			for range 40 {
				r.Put(vs[0])
			}
			for range 40 {
				r.Get()
			}
			r.PutBatch(vs)
			r.GetBatch(dst)
			r.GetBatch(dst)
			r.Len()
		})
	}
	mw, mr, mem := messagesPair(t, 32, 0)
	payload := make([]byte, MaxPayload)
	var m Message
	check("Messages", func() {
		for range 4 {
			mw.Put(1, 2, 3, 4, 5, payload)
		}
		for mr.Ready() {
			mr.Get(&m)
		}
		mr.Get(&m)
	})
	wordAt(mem, messagesCells+int(mr.ticket&mr.mask)*cellSize).Store(^uint64(0))
	wordAt(mem, messagesHead).Store(1 << 60)
	check("corrupt Messages", func() {
		for range 40 {
			mw.Put(1, 2, 3, 4, 5, payload)
		}
		if _, err := mr.Get(&m); err == nil {
			t.Error("corruption not noticed")
		}
	})
}
