package engine

import (
	"fmt"
	"slices"

	"github.com/penstock-io/penstock/mem"
)

// MemoryUse says what queues of a port do with memory.
type MemoryUse uint8

// The uses.
const (
	UseUnknown    MemoryUse = iota // the engine does not say
	UseCopied                      // packets are copied between it and memory of the engine or of the kernel
	UseInPlace                     // packets are received into it and sent from it where it is
	UseParts                       // the same, where the device takes one region for all, cut into chunks (UMEM)
	UseRegistered                  // the same, after the device was given the region (RDMA, DMA)
	UseReached                     // the same for memory of accelerators, as far as the card reaches it (DeviceReacher)
)

var memoryUses = [...]string{"unknown", "copied", "in place", "part of UMEM", "registered", "reached"}

func (u MemoryUse) String() string {
	if int(u) < len(memoryUses) {
		return memoryUses[u]
	}
	return fmt.Sprintf("use %d", uint8(u))
}

// MemoryNeeds are ports of one engine with the memories of their queues, before any of it is open.
// It is inert.
type MemoryNeeds struct {
	Ports    []PortSpec
	Memories []MemoryNeed
	// Forwards are pairs of ports, by place: what the first receives is sent by the second.
	Forwards [][2]int
}

// MemoryNeed is a memory to be: the region and the slots of a pool.
type MemoryNeed struct {
	Name   string
	Kind   mem.Kind
	CPU    bool  // the CPU, and with it the kernel, reaches it
	Stride int   // bytes from one slot to the next
	Alike  int   // memories with the same number, more than 0, can be parts of one region; 0: it is a region as it is
	Ports  []int // that use it, by place
}

// MemoryPlan is what an engine makes of memories.
type MemoryPlan struct {
	Answers []MemoryAnswer // by place in MemoryNeeds.Memories
	Shares  []MemoryShare
}

// MemoryAnswer is what the ports do with one memory.
type MemoryAnswer struct {
	Use MemoryUse
	// Why says in a sentence what of this memory is the reason that packets are copied, Hint what
	// to change; "" where nothing would help.
	Why, Hint string
}

// MemoryShare is memory that ports share, so that what one of them receives another one sends
// without a copy. It is made before they are opened.
type MemoryShare struct {
	Ports []int // by place; a port is in one share at most
	Home  int   // the memory whose region it is made of, by place
	// Parts are the memories that are made as parts of one region, one behind the other in this
	// order; nil: the region of Home is as it is.
	Parts []int
	// Open makes it of the region of Home.
	Open func(home *mem.Region) (SharedMemory, error)
}

// SharedMemory is memory that ports of an engine share.
type SharedMemory interface {
	// AddTo changes the spec of a port, so that it uses the memory.
	AddTo(spec *PortSpec) error
	// Close gives the memory up; ports that were opened with it keep it until they are closed.
	Close() error
}

// MemoryPlanner is an Engine that says more of memories than Capabilities do: what it does with
// each one, and which its ports share.
type MemoryPlanner interface {
	// PlanMemory opens nothing, and asks nothing of the machine. Options of ports that OpenPort
	// would refuse count as none.
	PlanMemory(n *MemoryNeeds) MemoryPlan
}

// PlanMemory asks an engine what its ports do with memories: by MemoryPlanner, or by its
// Capabilities.
func PlanMemory(e Engine, n *MemoryNeeds) MemoryPlan {
	if p, ok := e.(MemoryPlanner); ok {
		return p.PlanMemory(n)
	}
	can := e.Capabilities()
	plan := MemoryPlan{Answers: make([]MemoryAnswer, len(n.Memories))}
	for i := range n.Memories {
		plan.Answers[i] = can.use(&n.Memories[i])
	}
	return plan
}

// use is what ports with these capabilities do with a memory.
func (c *Capabilities) use(n *MemoryNeed) MemoryAnswer {
	switch {
	case n.Kind == mem.Device && slices.Contains(c.Memory, mem.Device):
		return MemoryAnswer{Use: UseReached}
	case !n.CPU:
		return MemoryAnswer{Use: UseCopied}
	}
	return MemoryAnswer{Use: c.MemoryUse}
}
