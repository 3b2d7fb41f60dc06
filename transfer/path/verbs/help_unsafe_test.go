package verbs

import "unsafe"

// cAddress is where a C string is.
func cAddress(b *byte) uintptr { return uintptr(unsafe.Pointer(b)) }
