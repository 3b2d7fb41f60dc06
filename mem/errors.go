package mem

import "errors"

// Errors of this package; match them with errors.Is.
var (
	ErrUnavailable     = errors.New("memory kind not available on this machine")
	ErrClosed          = errors.New("region is closed")
	ErrBounds          = errors.New("span outside its region")
	ErrReleased        = errors.New("released already") // a slot, a lease, or borrowed memory
	ErrInUse           = errors.New("memory is still in use")
	ErrExhausted       = errors.New("pool is exhausted")
	ErrPoolClosed      = errors.New("pool is closed")
	ErrForeign         = errors.New("slot of another pool")
	ErrBudget          = errors.New("over budget")
	ErrAllocatorClosed = errors.New("allocator is closed")
	ErrFreed           = errors.New("block was freed already, or is not of this allocator")
	ErrRegCacheClosed  = errors.New("registration cache is closed")
	ErrDeregistered    = errors.New("registration was released")
	// ErrFault means that memory could not be touched: the file behind it was truncated, a huge
	// page was taken away, or it is not mapped.
	ErrFault = errors.New("memory fault")
)
