// Package cdpdk calls DPDK by cgo, with the build tag dpdk: EAL, ports, bursts, external buffers.
// Without the build tag dpdk it holds no more than its types of data.
//
// DPDK is a library with one state for the process: Start begins it (EAL), Attach gives it devices.
// Its burst functions are inline functions in C, so that a small part in C (shim.c, burst.c) hands
// whole bursts over in one call from Go: Rx.Burst and Tx.Burst. All arrays that both sides use are
// C memory.
//
// # Memory
//
// An mbuf is DPDK's descriptor of a piece of memory. A Pool of slots has one mbuf for each slot of
// memory that the caller owns, with the slot as its external buffer, for ever; what is in its
// mempool are the slots that the driver may fill. A Pool of its own has mbufs with data behind
// them, for drivers that take no external buffers. A transmit queue has mbufs that are pointed at
// what is sent; a driver frees an mbuf when it has sent it, which puts it into the queue's mempool:
// the mempool is the completion queue.
//
// Sources: the DPDK programmer's guide (mbuf, mempool, ethdev) and the headers of DPDK 22.11.
package cdpdk

import (
	"fmt"
	"syscall"
)

// Error is what DPDK refused.
type Error struct {
	Call  string        // the function
	Errno syscall.Errno // why
	Log   string        // what DPDK has written to its log meanwhile
}

// Error implements error.
func (e *Error) Error() string {
	if e.Log != "" {
		return fmt.Sprintf("%s: %v (%s)", e.Call, e.Errno, e.Log)
	}
	return fmt.Sprintf("%s: %v", e.Call, e.Errno)
}

// Unwrap is the error number.
func (e *Error) Unwrap() error { return e.Errno }
