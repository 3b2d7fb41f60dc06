package ibv

import (
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/internal/sys"
)

// Errors of this package; match them with errors.Is. The message says which object, what was
// expected and how to fix it.
var (
	ErrUnavailable = errors.New("RDMA is not available on this machine")
	ErrLayout      = errors.New("libibverbs does not have the binary interface that this program was built for")
	ErrInvalid     = errors.New("invalid verbs request")
	ErrState       = errors.New("illegal transition of a queue pair")
	ErrInUse       = errors.New("still in use")
	ErrClosed      = errors.New("closed")
	ErrUnsupported = errors.New("not supported by this device")
	ErrMemlock     = errors.New("limit of locked memory reached")
	ErrNoRoom      = errors.New("no room left for this registration")
	ErrRefused     = errors.New("not permitted")
	ErrFull        = errors.New("the queue is full")
	ErrOverrun     = errors.New("completion queue overrun")
	ErrNoGID       = errors.New("no fitting GID")
)

// Error is a verb that failed: which one, on what, the error number, and what to do about it.
type Error struct {
	Op    string    // the verb, without ibv_
	On    string    // the object
	Errno sys.Errno // 0 where the library gave none
	Hint  string    // how to fix it, or ""
	Kind  error     // one of the errors of this package, or nil
}

func (e *Error) Error() string {
	s := "ibv: " + e.Op
	if e.On != "" {
		s += " of " + e.On
	}
	switch {
	case e.Errno != 0:
		s += ": " + e.Errno.Error()
	case e.Kind != nil:
		s += ": " + e.Kind.Error()
	default:
		s += ": failed"
	}
	if e.Hint != "" {
		s += ": " + e.Hint
	}
	return s
}

// Unwrap gives the error number and the kind to errors.Is.
func (e *Error) Unwrap() []error {
	var out []error
	if e.Errno != 0 {
		out = append(out, e.Errno)
	}
	if e.Kind != nil {
		out = append(out, e.Kind)
	}
	return out
}

// failed is the error of a verb, with what is generally known of its error number.
func failed(op, on string, errno sys.Errno) *Error {
	e := &Error{Op: op, On: on, Errno: errno}
	switch errno {
	case sys.EOPNOTSUPP, sys.ENOSYS:
		e.Kind = ErrUnsupported
		e.Hint = "this device, its driver or this kernel does not have it"
	}
	return e
}

// invalid is an argument that is wrong before any call.
func invalid(op, on, format string, args ...any) *Error {
	return &Error{Op: op, On: on, Kind: ErrInvalid, Hint: fmt.Sprintf(format, args...)}
}

func unsupported(op, on, hint string) *Error {
	return &Error{Op: op, On: on, Errno: sys.EOPNOTSUPP, Kind: ErrUnsupported, Hint: hint}
}

// layoutError says what of the library was not as expected. Nothing was done with it.
func layoutError(what string, got, want any) error {
	return fmt.Errorf("ibv: %w: %s is %v, expected %v: use libibverbs.so.1 of rdma-core for this processor (apt-get "+
		"install libibverbs1)",
		ErrLayout, what, got, want)
}
