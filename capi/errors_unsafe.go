package main

/*
#define PENSTOCK_NO_PROTOTYPES
#include "penstock.h"
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
)

// codes are in the order in which they are looked for: an error may wrap several.
var codes = []struct {
	code C.int32_t
	is   []error
}{
	{C.PENSTOCK_INVALID, []error{errInvalid, engine.ErrInvalid, gpu.ErrArgument}},
	{C.PENSTOCK_CANCELED, []error{path.ErrCanceled, context.Canceled}},
	{C.PENSTOCK_CLOSED, []error{transfer.ErrClosed, mem.ErrClosed, engine.ErrClosed}},
	{C.PENSTOCK_INTEGRITY, []error{path.ErrIntegrity, control.Integrity}},
	{C.PENSTOCK_REVOKED, []error{path.ErrRevoked, control.Revoked}},
	{C.PENSTOCK_NOT_FOUND, []error{control.NotFound, path.ErrKey}},
	{C.PENSTOCK_RIGHTS, []error{path.ErrRights, control.NotPermitted}},
	{C.PENSTOCK_BOUNDS, []error{path.ErrBounds, mem.ErrBounds, gpu.ErrBounds}},
	{C.PENSTOCK_LOST, []error{transfer.ErrPeerLost}},
	{C.PENSTOCK_FULL, []error{path.ErrFull, control.Busy, control.TooMany, control.TooManyBytes, engine.ErrFull, engine.ErrNoBuffers}},
	{C.PENSTOCK_UNREACHABLE, []error{path.ErrUnreachable, path.ErrDown}},
	{C.PENSTOCK_MISSING, []error{penstock.ErrMissing, path.ErrUnavailable, mem.ErrUnavailable, gpu.ErrUnavailable, gpu.ErrUnsupported}},
	{C.PENSTOCK_TIMEOUT, []error{context.DeadlineExceeded, os.ErrDeadlineExceeded}},
}

// fail is the code of an error, which it also leaves with the caller.
func fail(out *C.penstock_error, err error) C.int32_t {
	if err == nil {
		return C.PENSTOCK_OK
	}
	code := C.int32_t(C.PENSTOCK_OTHER)
find:
	for _, c := range codes {
		for _, is := range c.is {
			if errors.Is(err, is) {
				code = c.code
				break find
			}
		}
	}
	if out != nil {
		out.code, out.retriable = code, 0
		if transfer.Retriable(err) {
			out.retriable = 1
		}
		text(err.Error(), &out.text[0], C.size_t(len(out.text)))
	}
	return code
}

// guarded runs a call of C and makes an error of a panic: no call ends the process.
func guarded[T any](f func() (T, error)) (x T, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("penstock: a mistake in the library: %v", r)
		}
	}()
	return f()
}

// made is a call that makes something, and returns its handle.
func made[T any](out *C.penstock_error, f func() (T, error)) C.penstock_handle {
	x, err := guarded(f)
	if err != nil {
		fail(out, err)
		return 0
	}
	return C.penstock_handle(keep(x))
}

// counted is a call that returns a number of 0 or more.
func counted[N C.int32_t | C.int64_t](out *C.penstock_error, f func() (N, error)) N {
	n, err := guarded(f)
	if err != nil {
		return N(fail(out, err))
	}
	return n
}

// done is a call that succeeds or fails.
func done(out *C.penstock_error, f func() error) C.int32_t {
	return counted(out, func() (C.int32_t, error) { return C.PENSTOCK_OK, f() })
}

// text writes s to C and returns its length.
func text(s string, to *C.char, n C.size_t) C.int64_t {
	if to != nil && n > 0 {
		b := unsafe.Slice((*byte)(unsafe.Pointer(to)), n)
		k := copy(b[:n-1], s)
		b[k] = 0
	}
	return C.int64_t(len(s))
}

// within is a context for a time in milliseconds.
func within(ms C.int64_t) (context.Context, context.CancelFunc) {
	if ms < 0 || int64(ms) > int64(time.Duration(1<<63-1)/time.Millisecond) {
		return context.WithCancel(context.Background())
	}
	return context.WithTimeout(context.Background(), time.Duration(ms)*time.Millisecond)
}

func str(s *C.char) string {
	if s == nil {
		return ""
	}
	return C.GoString(s)
}
