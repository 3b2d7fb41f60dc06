package cudatest

import (
	"sync/atomic"
	"unsafe"
)

// word is the 32-bit word at b, which is memory of C and aligned, for the CPU beside a device.
func word(b []byte) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&b[:4][0])) }
