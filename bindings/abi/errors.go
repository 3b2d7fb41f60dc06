package abi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/system"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
)

// ErrInvalid is a mistake of the caller.
var ErrInvalid = errors.New("invalid")

// The codes of penstock.h.
const (
	OK          int32 = 0
	Other       int32 = -1
	Invalid     int32 = -2
	Timeout     int32 = -3
	Canceled    int32 = -4
	Closed      int32 = -5
	Lost        int32 = -6
	NotFound    int32 = -7
	Rights      int32 = -8
	Revoked     int32 = -9
	Bounds      int32 = -10
	Unreachable int32 = -11
	Integrity   int32 = -12
	Full        int32 = -13
	Missing     int32 = -14
)

// codes are in the order in which they are looked for: an error may wrap several.
var codes = []struct {
	code int32
	is   []error
}{
	{Invalid, []error{ErrInvalid, engine.ErrInvalid, gpu.ErrArgument}},
	{Canceled, []error{path.ErrCanceled, context.Canceled}},
	{Closed, []error{transfer.ErrClosed, mem.ErrClosed, engine.ErrClosed}},
	{Integrity, []error{path.ErrIntegrity, control.Integrity}},
	{Revoked, []error{path.ErrRevoked, control.Revoked}},
	{NotFound, []error{control.NotFound, path.ErrKey}},
	{Rights, []error{path.ErrRights, control.NotPermitted}},
	{Bounds, []error{path.ErrBounds, mem.ErrBounds, gpu.ErrBounds}},
	{Lost, []error{transfer.ErrPeerLost}},
	{Full, []error{path.ErrFull, control.Busy, control.TooMany, control.TooManyBytes, engine.ErrFull, engine.ErrNoBuffers}},
	{Unreachable, []error{path.ErrUnreachable, path.ErrDown}},
	{Missing, []error{system.ErrMissing, path.ErrUnavailable, mem.ErrUnavailable, gpu.ErrUnavailable, gpu.ErrUnsupported}},
	{Timeout, []error{context.DeadlineExceeded, os.ErrDeadlineExceeded}},
}

// CodeOf is the code of an error, and whether the same call may succeed later.
func CodeOf(err error) (code int32, retriable bool) {
	if err == nil {
		return OK, false
	}
	for _, c := range codes {
		for _, is := range c.is {
			if errors.Is(err, is) {
				return c.code, transfer.Retriable(err)
			}
		}
	}
	return Other, transfer.Retriable(err)
}

// Guarded makes an error of a panic of f: no call ends the process.
func Guarded[T any](f func() (T, error)) (x T, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("penstock: a mistake in the library: %v", r)
		}
	}()
	return f()
}

// Within is a context for a time in milliseconds; a negative one is without a limit.
func Within(ms int64) (context.Context, context.CancelFunc) {
	if ms < 0 || ms > int64(time.Duration(1<<63-1)/time.Millisecond) {
		return context.WithCancel(context.Background())
	}
	return context.WithTimeout(context.Background(), time.Duration(ms)*time.Millisecond)
}
