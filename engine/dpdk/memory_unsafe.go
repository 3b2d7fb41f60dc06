//go:build dpdk

package dpdk

import "unsafe"

// address is where bytes lie. They are not in Go's heap.
func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// bytesAt are the bytes of an mbuf.
func bytesAt(addr uint64, n int) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))), n)
}
