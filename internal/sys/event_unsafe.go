package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Ring adds one to an eventfd, which wakes the threads that wait for it. It does not block and does
// not allocate.
func Ring(fd int) Errno {
	one := uint64(1)
	_, _, e := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&one)), 8)
	if e == EAGAIN { // the counter is full: it has been rung already
		return 0
	}
	return e
}

// Unring empties an eventfd so that it is silent until the next Ring.
func Unring(fd int) Errno {
	var n uint64
	_, _, e := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&n)), 8)
	if e == EAGAIN {
		return 0
	}
	return e
}
