package ring

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// shareAlign is the alignment in bytes that shared memory must have: one cache line.
const shareAlign = 64

// wordAt returns the 64-bit word at mem[off], for atomic access. The caller has
// checked that mem is aligned and off is a multiple of 8; the index expression
// checks that all 8 bytes lie inside mem.
//
// An atomic.Uint64 is 8 bytes with the layout of a uint64, so the cast is sound
// for memory outside the Go heap too. The caller keeps mem alive and mapped.
func wordAt(mem []byte, off int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&mem[off : off+8][0]))
}

// checkAligned says whether mem starts on a cache line.
func checkAligned(name string, mem []byte) error {
	if r := uintptr(unsafe.Pointer(unsafe.SliceData(mem))) % shareAlign; r != 0 {
		return fmt.Errorf("ring: %s: memory starts %d bytes after a multiple of %d: pass a mapping, or an aligned "+
			"part of one",
			name, r, shareAlign)
	}
	return nil
}

// The casts above rely on these sizes; either line fails to compile if they change.
const (
	_ = uint(unsafe.Sizeof(atomic.Uint64{}) - 8)
	_ = uint(8 - unsafe.Sizeof(atomic.Uint64{}))
)
