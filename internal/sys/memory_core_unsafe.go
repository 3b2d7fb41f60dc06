package sys

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// InCore reports whether every page of b, which is mapped from a file, is in memory, so that
// reading b makes none. pages has an element for each page that b touches.
func InCore(b []byte, pages []byte) (bool, error) {
	page := uintptr(PageSize)
	start := Address(b) &^ (page - 1)
	n := (Address(b) + uintptr(len(b)) - start + page - 1) / page
	if n == 0 {
		return true, nil
	}
	if uintptr(len(pages)) < n {
		return false, fmt.Errorf("mincore: %d elements for %d pages: %w", len(pages), n, EINVAL)
	}
	if _, _, e := unix.Syscall(unix.SYS_MINCORE, start, n*page,
		uintptr(unsafe.Pointer(unsafe.SliceData(pages)))); e != 0 {
		return false, callError("mincore", fmt.Sprintf("%d bytes", len(b)), e)
	}
	for _, p := range pages[:n] {
		if p&1 == 0 {
			return false, nil
		}
	}
	return true, nil
}
