package prog

import (
	"fmt"

	"github.com/penstock-io/penstock/packet/flow"
)

// Bounds of a Spec.
const (
	// MaxRules is how many rules one program takes: the candidates are a bit vector on its stack.
	MaxRules = 1024
	// MaxSlots is how many logical queues there can be.
	MaxSlots = 1 << 12
	// MaxSockets is how many entries the map of sockets may have: NIC queues times slots.
	MaxSockets = 1 << 20
)

// Capabilities is what the program can do with rules, for flow.Check and flow.TableOptions: every
// field of a match, and every action but transformations.
var Capabilities = flow.Capabilities{
	Engine:     "XDP program",
	Fields:     flow.AllFields,
	Ranges:     flow.AllFields,
	Prefixes:   true,
	IPv6:       true,
	Actions:    flow.ActionKinds(flow.ToQueue, flow.RSS, flow.Drop, flow.ToKernel),
	Priorities: true,
	MaxRules:   MaxRules,
	FlexOffset: flow.MaxFlexOffset,
	FlexMasks:  true,
}

// Spec says what to load. It is inert.
type Spec struct {
	Name      string // of the interface, for messages
	Interface int    // index, in the network namespace of the thread that calls Attach
	Queues    int    // NIC queues that can have sockets: 0 to Queues-1
	Slots     int    // logical queues that can have sockets: 0 to Slots-1

	Rules     []flow.Rule    // with IDs as the engine's table gives them
	Isolation flow.Isolation // what happens to packets that no rule accepts

	// Frags says that frames may lie in several buffers (jumbo frames): the driver must support
	// that, and the sockets must be bound for it.
	Frags bool
	// Metadata asks for a Meta in front of each packet that goes to a socket. With Sparse there is
	// none before the first rule, unless Hash or Time are asked for: there is nothing to say.
	Metadata, Sparse bool
	// Uncounted says that packets which go to a socket are not counted, neither as Redirected nor
	// as Unmatched, as long as there are no rules and nothing to say in front of them: who has the
	// sockets knows these numbers. The program is the least that there can be then.
	Uncounted bool
	// Hash and Time ask for the NIC's hash and receive time in each Meta. The program is bound to
	// the interface then: Load and Apply must be called on a thread in its network namespace, and
	// Attach takes it in native mode only. Where the kernel or the driver does not take such a
	// program it goes on without, and Info.Notes says why.
	Hash, Time bool
}

func (s *Spec) check() error {
	switch {
	case s.Queues < 1 || s.Slots < 1 || s.Slots > MaxSlots || s.Queues > MaxSockets/s.Slots:
		return fmt.Errorf("prog: %w: %d NIC queues with %d slots: expected at least 1 of each, at most %d slots and "+
			"%d sockets in all", ErrSpec, s.Queues, s.Slots,
			MaxSlots, MaxSockets)
	case s.Interface < 1:
		return fmt.Errorf("prog: %w: interface %d: expected the index of an interface, as net.InterfaceByName gives it",
			ErrSpec, s.Interface)
	}
	return nil
}
