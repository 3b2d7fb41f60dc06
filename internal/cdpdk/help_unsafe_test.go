//go:build dpdk

package cdpdk

import "unsafe"

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
