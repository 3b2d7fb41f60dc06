package sys

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Address is the address of the first byte of b, for arithmetic on alignment. It must not be turned
// back into a pointer.
func Address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// Populate makes every page that b touches present now, for reading or also for writing
// (MADV_POPULATE_READ and MADV_POPULATE_WRITE, Linux 5.14). Where memory is short, or the file
// behind b ends before b does, it returns an error where an access would have been a SIGBUS. EINVAL
// means that the kernel does not know the call, or that the mapping does not permit it (writing to
// a read-only mapping is EFAULT or EINVAL).
func Populate(b []byte, write bool) error {
	if len(b) == 0 {
		return nil
	}
	advice, name := uintptr(unix.MADV_POPULATE_READ), "MADV_POPULATE_READ"
	if write {
		advice, name = unix.MADV_POPULATE_WRITE, "MADV_POPULATE_WRITE"
	}
	page := uintptr(PageSize)
	start := Address(b) &^ (page - 1)
	end := (Address(b) + uintptr(len(b)) + page - 1) &^ (page - 1)
	for {
		_, _, e := unix.Syscall(unix.SYS_MADVISE, start, end-start, advice)
		switch e {
		case 0:
			return nil
		case EINTR, EAGAIN: // cut short by a signal: pages done so far stay
			continue
		}
		return callError("madvise", fmt.Sprintf("%s of %d bytes", name, len(b)), e)
	}
}
