package verbs

import "unsafe"

// address is where bytes outside the Go heap are, for a request.
func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
