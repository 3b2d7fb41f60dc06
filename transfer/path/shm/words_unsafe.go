package shm

import (
	"sync/atomic"
	"unsafe"
)

// wordAt returns the 64-bit word at mem[off] for atomic access. The caller keeps mem mapped and off
// a multiple of 8; the index expression checks that all 8 bytes lie inside mem. An atomic.Uint64
// has the layout of a uint64, so the cast is sound for memory outside the Go heap too.
func wordAt(mem []byte, off int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&mem[off : off+8][0]))
}

const _ = uint(8 - unsafe.Sizeof(atomic.Uint64{})) // fails to compile if an atomic word were larger
