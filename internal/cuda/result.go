package cuda

import (
	"errors"
	"fmt"
)

// Kinds of errors, for errors.Is.
var (
	// no driver, no device, or this process may not use it now
	ErrUnavailable = errors.New("CUDA is not available")
	// of the device, or pinned memory of the machine
	ErrOutOfMemory = errors.New("out of memory")
	// it failed; all contexts on it are of no use until the process restarts
	ErrLost = errors.New("the device is lost to this process")
	ErrArch = errors.New("no code for this device") // a module for other architectures
	// a function is missing, or PTX is too new for it
	ErrDriver      = errors.New("NVIDIA's driver is too old or broken")
	ErrUnsupported = errors.New("not supported by this device")
)

// Result is a result of the driver (CUresult). 0 is success.
type Result int32

// The results that this package and its users compare with.
const (
	Success                 Result = 0
	ErrorInvalidValue       Result = 1
	ErrorNotInitialized     Result = 3
	ErrorInvalidPTX         Result = 218
	ErrorNotFound           Result = 500
	ErrorNotReady           Result = 600
	ErrorPeerAlreadyEnabled Result = 704
	ErrorContextDestroyed   Result = 709
	ErrorNotSupported       Result = 801
)

// String is the result's name in the manual.
func (r Result) String() string {
	if r == Success {
		return "CUDA_SUCCESS"
	}
	if row, ok := resultTable[r]; ok {
		return row.name
	}
	return fmt.Sprintf("CUDA result %d, which is newer than this program", int32(r))
}

// Kind is the kind of error that the result is: one of the Err variables, or nil.
func (r Result) Kind() error { return resultTable[r].kind }

// Hint says what to do about the result, "" where there is nothing general to say.
func (r Result) Hint() string { return resultTable[r].hint }

// Error is a call of the driver that failed.
type Error struct {
	Call   string // the function, by its name in the library
	Result Result
	Detail string // what it was about: "4096 bytes"; the compiler's log; may be empty
}

// Error has the call, what it was about, the result, and what to do.
func (e *Error) Error() string {
	s := "cuda: " + e.Call
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	s += fmt.Sprintf(": %v (%d)", e.Result, int32(e.Result))
	if h := e.Result.Hint(); h != "" {
		s += ": " + h
	}
	return s
}

// Is makes the error one of its kind.
func (e *Error) Is(target error) bool {
	k := e.Result.Kind()
	return k != nil && k == target
}

// check is the error of a call that returned r; nil for success.
func check(op fn, r uintptr) error {
	if int32(r) == int32(Success) {
		return nil
	}
	return &Error{Call: symbolTable[op].name, Result: Result(int32(r))}
}

// about adds what a call was about to its error.
func about(err error, format string, args ...any) error {
	if e, ok := err.(*Error); ok {
		e.Detail = fmt.Sprintf(format, args...)
	}
	return err
}
