package sys

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Errno is the kernel's error number. The zero value means success on calls that return an Errno by
// itself.
type Errno = unix.Errno

// The error numbers that callers act upon.
const (
	EAGAIN     = unix.EAGAIN
	EINTR      = unix.EINTR
	EBADF      = unix.EBADF
	EPERM      = unix.EPERM
	ESRCH      = unix.ESRCH
	EINVAL     = unix.EINVAL
	ENOMEM     = unix.ENOMEM
	ENOBUFS    = unix.ENOBUFS
	ENOSYS     = unix.ENOSYS
	EPIPE      = unix.EPIPE
	ECONNRESET = unix.ECONNRESET
	EOPNOTSUPP = unix.EOPNOTSUPP
	EROFS      = unix.EROFS
)

// CallError is a system call that failed: which call, on what, and the kernel's answer.
type CallError struct {
	Call string // name of the system call
	What string // its argument in words
	Err  error
}

func (e *CallError) Error() string {
	if e.What == "" {
		return fmt.Sprintf("%s: %v", e.Call, e.Err)
	}
	return fmt.Sprintf("%s %s: %v", e.Call, e.What, e.Err)
}

func (e *CallError) Unwrap() error { return e.Err }

func callError(call, what string, err error) error {
	if err == nil {
		return nil
	}
	return &CallError{Call: call, What: what, Err: err}
}

// IsErrno reports whether err wraps the error number n.
func IsErrno(err error, n Errno) bool { return errors.Is(err, n) }
