package sys

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// Uninherited calls open, for descriptors that a library makes without close-on-exec, and sets it
// before any child of this program can be started: no child inherits the descriptor. It returns
// what open does.
func Uninherited(open func() (fd int, err error)) (int, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, err := open()
	if err == nil {
		unix.CloseOnExec(fd)
	}
	return fd, err
}
