package vec

import "unsafe"

// offsetIn is the position of address a in b.
func offsetIn(b []byte, a uintptr) int {
	return int(a) - int(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}
