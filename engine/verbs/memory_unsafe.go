package verbs

import "unsafe"

// addressOf is where the bytes lie, as a device is told.
func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
