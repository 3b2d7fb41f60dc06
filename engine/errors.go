package engine

import (
	"errors"

	"github.com/penstock-io/penstock/internal/option"
)

// Errors of engines, ports and queues; match them with errors.Is. Errors that are met in a loop
// (ErrFull, ErrNoBuffers, ErrClosed) come bare, so that they cost nothing.
var (
	ErrNil         = errors.New("engine: nil burst or spec")
	ErrNotReady    = errors.New("engine: nothing there now")
	ErrInvalid     = option.ErrInvalid
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
