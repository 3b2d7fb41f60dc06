//go:build !race && (amd64 || arm64)

package word

import (
	"sync/atomic"
	"unsafe"
)

// Store writes v to w.
func Store(w *atomic.Uint64, v uint64) { *(*uint64)(unsafe.Pointer(w)) = v }
