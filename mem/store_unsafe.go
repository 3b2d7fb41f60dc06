//go:build !race

package mem

import (
	"sync/atomic"
	"unsafe"
)

// store writes a word that no other goroutine writes at the same time: a plain store, where an atomic one is an exchange that waits for all stores
// before it. Who needs the value has synchronized with the writer since; who reads it without (pop) can use any value.
func store(w *atomic.Uint64, v uint64) { *(*uint64)(unsafe.Pointer(w)) = v }
