//go:build race

package mem

import "sync/atomic"

// store is an atomic store where the race detector looks on.
func store(w *atomic.Uint64, v uint64) { w.Store(v) }
