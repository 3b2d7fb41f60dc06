package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/mem"
)

// Errors of engines, ports and queues; match them with errors.Is. Errors that are met in a loop
// (ErrFull, ErrNoBuffers, ErrClosed) come bare, so that they cost nothing.
var (
	ErrNil         = errors.New("engine: nil burst or spec")
	ErrNotReady    = errors.New("engine: nothing there now")
	ErrInvalid     = errors.New("engine: invalid")
	ErrNoBursts    = errors.New("engine: no burst free: release those that were received")
	ErrNoBuffers   = errors.New("engine: no packet memory free: release bursts, or give the pool more slots")
	ErrFull        = errors.New("engine: no descriptor free: the queue has as many packets as its depth")
	ErrUnsupported = errors.New("engine: not supported")
	ErrUnavailable = errors.New("engine: not available on this machine")
	ErrNotBuilt    = errors.New("engine: not in this build")
	ErrConnect     = errors.New("engine: cannot connect")
	ErrInUse       = errors.New("engine: in use")
	ErrExists      = errors.New("engine: exists already")
	ErrNotFound    = errors.New("engine: not found")
	ErrClosed      = errors.New("engine: closed")
	ErrDown        = errors.New("engine: link or peer is down")
	ErrUnreserved  = errors.New("engine: packets without a descriptor: send what Alloc or Forward of the same queue " +
		"prepared")
	ErrInternal = errors.New("engine: internal error")
)

// Status is an outcome as DAQIRI's users know it; bindings return it.
type Status uint8

// The status codes of DAQIRI, by the same names and in the same order.
const (
	Success Status = iota
	NullPtr
	NoFreeBurstBuffers
	NoFreePacketBuffers
	NotReady
	InvalidParameter
	NoSpaceAvailable
	NotSupported
	GenericFailure
	ConnectFailure
	InternalError
	ResourceInUse
	AlreadyExists
)

var statusNames = [...]string{"SUCCESS", "NULL_PTR", "NO_FREE_BURST_BUFFERS", "NO_FREE_PACKET_BUFFERS", "NOT_READY",
	"INVALID_PARAMETER",
	"NO_SPACE_AVAILABLE", "NOT_SUPPORTED", "GENERIC_FAILURE", "CONNECT_FAILURE", "INTERNAL_ERROR", "RESOURCE_IN_USE",
	"ALREADY_EXISTS"}

func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return fmt.Sprintf("status %d", uint8(s))
}

var statuses = []struct {
	err error
	s   Status
}{
	{ErrNil, NullPtr},
	{ErrNoBursts, NoFreeBurstBuffers},
	{ErrNoBuffers, NoFreePacketBuffers},
	{mem.ErrExhausted, NoFreePacketBuffers},
	{mem.ErrBudget, NoFreePacketBuffers},
	{ErrNotReady, NotReady},
	{context.DeadlineExceeded, NotReady},
	{context.Canceled, NotReady},
	{ErrClosed, NotReady},
	{ErrInvalid, InvalidParameter},
	{ErrUnreserved, InvalidParameter},
	{ErrNotFound, InvalidParameter},
	{ErrFull, NoSpaceAvailable},
	{ErrUnsupported, NotSupported},
	{ErrNotBuilt, NotSupported},
	{ErrUnavailable, NotSupported},
	{mem.ErrUnavailable, NotSupported},
	{ErrConnect, ConnectFailure},
	{ErrDown, ConnectFailure},
	{ErrInUse, ResourceInUse},
	{mem.ErrInUse, ResourceInUse},
	{ErrExists, AlreadyExists},
	{ErrInternal, InternalError},
}

// StatusOf is the status code that says the same as err, the most specific one that it wraps;
// GenericFailure for others.
func StatusOf(err error) Status {
	if err == nil {
		return Success
	}
	for _, m := range statuses {
		if errors.Is(err, m.err) {
			return m.s
		}
	}
	return GenericFailure
}
