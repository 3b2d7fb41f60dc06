package handles

import (
	"math/rand/v2"
	"sync"
	"testing"
)

// TestTable compares a table with a set: each handle can be given back once, whatever happens in
// between.
func TestTable(t *testing.T) {
	var table Table
	if table.Give(0) {
		t.Error("the zero handle was taken back")
	}
	out, past := map[Handle]bool{}, []Handle{}
	random := rand.New(rand.NewPCG(1, 1))
	for range 10000 {
		if random.IntN(2) == 0 {
			h := table.Take()
			if h == 0 || out[h] {
				t.Fatalf("handle %#x is out twice", uint64(h))
			}
			out[h] = true
			past = append(past, h)
		} else if len(past) > 0 {
			h := past[random.IntN(len(past))]
			if table.Give(h) != out[h] {
				t.Fatalf("handle %#x, which is out: %v, was treated otherwise", uint64(h), out[h])
			}
			delete(out, h)
		}
	}
}

// TestRace: of many goroutines that give the same handle back one succeeds.
func TestRace(t *testing.T) {
	var table Table
	for range 1000 {
		h := table.Take()
		var wg sync.WaitGroup
		var given [4]bool
		for i := range given {
			wg.Go(func() { given[i] = table.Give(h) })
		}
		wg.Wait()
		n := 0
		for _, ok := range given {
			if ok {
				n++
			}
		}
		if n != 1 {
			t.Fatalf("%d returns succeeded", n)
		}
	}
}

func TestNoAllocations(t *testing.T) {
	var table Table
	if n := testing.AllocsPerRun(100, func() { table.Give(table.Take()) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
