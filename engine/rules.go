package engine

import "github.com/penstock-io/penstock/packet/flow"

// Rules is the table of steering rules of a port. It has the methods of flow.Table, which steers in
// software; an engine whose rules are in a NIC, or in a program in the kernel, keeps a flow.Table
// as its record: it has a batch checked there against its flow.Capabilities, gives it to the
// device, and takes it back when the device refuses. Any goroutine may use it.
type Rules interface {
	// Apply makes all changes, in order, as one version, or none: a packet sees the whole batch or
	// nothing of it. It returns when they are in force. The error says which changes are wrong
	// (flow.Problems), or wraps ErrUnsupported or ErrFull where the device cannot do what it was
	// asked.
	Apply(changes ...flow.Change) (flow.Result, error)
	// List returns the rules in force, highest priority first.
	List() []flow.Rule
	// Stats are the packets and bytes of each rule in force, and of those that no rule accepted.
	Stats() flow.Stats
}

// RuleChecker is Rules that can say beforehand what Apply would say, as far as it is known without
// the device: a caller that changes the rules of several ports asks all of them before the first
// change.
type RuleChecker interface {
	Check(changes ...flow.Change) error
}
