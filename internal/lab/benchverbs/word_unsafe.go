package benchverbs

import (
	"sync/atomic"
	"unsafe"
)

// loadWord reads 8 bytes that a device writes at any time, in one piece; b is aligned to them.
func loadWord(b []byte) uint64 {
	_ = b[7]
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(unsafe.SliceData(b))))
}
