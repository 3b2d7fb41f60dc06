package engine

import (
	"context"

	"github.com/penstock-io/penstock/flow"
	"github.com/penstock-io/penstock/mem"
)

// PortChecker is an Engine that says beforehand what OpenPort refuses, as far as that is known without opening the port.
type PortChecker interface {
	// CheckPort is the error that OpenPort of this spec returns for its options, for a device that is not there, and for rights that
	// the process lacks. It looks in the network namespace of the calling thread, connects to nothing, and leaves nothing open.
	//
	// holds names what the port has for itself, such as "interface eth0": two ports of this engine that hold the same are not open at
	// once. It is "" where any number of ports is open at the same address.
	CheckPort(ctx context.Context, spec PortSpec) (holds string, err error)
}

// QueueChecker is an Engine that says beforehand what AddRxQueue and AddTxQueue of its ports refuse by rules of the engine's own. What
// Capabilities say already is not repeated.
type QueueChecker interface {
	// CheckRxQueue and CheckTxQueue are the errors for this queue of this port. pools stand for spec.Pools, which are not looked at.
	CheckRxQueue(port PortSpec, spec RxSpec, pools []PoolSpec) error
	CheckTxQueue(port PortSpec, spec TxSpec, pools []PoolSpec) error
}

// RuleDescriber is an Engine that says beforehand which rules its ports take.
type RuleDescriber interface {
	RuleCapabilities(port PortSpec) flow.Capabilities
}

// PoolSpec describes the memory of a queue before it is there: what a mem.Pool will be.
type PoolSpec struct {
	Name     string
	Kind     mem.Kind
	Slots    int
	SlotSize int // bytes
	Stride   int // bytes from one slot to the next
}
