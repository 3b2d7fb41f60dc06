package word

import (
	"sync/atomic"
	"testing"
)

// Readers see whole values, never an older one after a newer one, and the last one once they have
// synchronized. Compare-and-swaps that expect a value that is not there change nothing, whenever
// they come.
func TestStore(t *testing.T) {
	const readers, changes = 2, 20 // that each reader sees at least
	var w, last, satisfied atomic.Uint64
	done := make(chan string)
	read := func() string {
		for before, seen := uint64(0), 0; ; {
			end := last.Load()
			v := w.Load()
			switch {
			case v>>32 != v&(1<<32-1):
				return "half a value"
			case v < before:
				return "an older value after a newer one"
			case end > 0 && v != end:
				return "not the last value after synchronizing"
			case end > 0:
				return ""
			case v > before:
				if seen++; seen == changes {
					satisfied.Add(1)
				}
			}
			before = v
			w.CompareAndSwap(v|1<<63, 7)
		}
	}
	for range readers {
		go func() {
			what := read()
			satisfied.Add(changes) // the writer need not go on for it
			done <- what
		}()
	}
	v := uint64(0)
	for i := uint64(1); satisfied.Load() < readers; i++ {
		v = i<<32 | i
		Store(&w, v)
	}
	last.Store(v)
	for range readers {
		if what := <-done; what != "" {
			t.Error(what)
		}
	}
}
