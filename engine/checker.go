package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/flow"
)

// Checker is an Engine that says before a port is open what the port can do and what OpenPort
// refuses. OpenPort itself asks the same code, so that a plan and opening agree up to what only
// opening can know.
type Checker interface {
	// PortCapabilities is the most that a port of this spec can do. It looks at the spec alone, and
	// asks nothing of the machine. The error is that of OpenPort for the address and the options.
	PortCapabilities(spec PortSpec) (Capabilities, error)
	// CheckPort is the error that OpenPort of this spec returns for its options, for a device that
	// is not there, and for rights that the process lacks. It looks in the network namespace of the
	// calling thread, connects to nothing, and leaves nothing open.
	//
	// holds names what the port has for itself, such as "interface eth0": two ports of this engine
	// that hold the same are not open at once. It is "" where any number of ports is open at the
	// same address.
	CheckPort(ctx context.Context, spec PortSpec) (holds string, err error)
}

// Noter is a Checker that knows of notes before a port is open.
type Noter interface {
	// PortNotes are those of Capabilities().Notes that an open port of this spec would have for
	// these rules and for its device, as far as that is known without opening it. It looks in the
	// network namespace of the calling thread, and leaves nothing open.
	PortNotes(spec PortSpec, rules []flow.Rule) []string
}

// Ask is a port with its queues, before any of it is open. It is inert.
type Ask struct {
	Port PortSpec
	Rx   []RxAsk
	Tx   []TxAsk
}

// RxAsk is a receive queue whose Pools are not there yet: Memory stands for them. With nil it is
// not known, and the check skips it.
type RxAsk struct {
	RxSpec
	Memory []PoolSpec
}

// TxAsk is the same for a transmit queue.
type TxAsk struct {
	TxSpec
	Memory []PoolSpec
}

// PoolSpec describes the memory of a queue before it is there: what a mem.Pool will be.
type PoolSpec struct {
	Name     string
	Kind     mem.Kind
	SlotSize int // bytes
	Stride   int // bytes from one slot to the next; 0: not known
}

func poolSpecs(pools []*mem.Pool) []PoolSpec {
	out := make([]PoolSpec, len(pools))
	for i, p := range pools {
		if p != nil {
			out[i] = PoolSpec{p.Name(), p.Region().Kind(), p.SlotSize(), p.Stride()}
		}
	}
	return out
}

// Check is what an engine refuses of a port and its queues, as far as their specs say it: by
// PortCapabilities, and by the same checks of queues that AddRxQueue and AddTxQueue run. Each of
// found has a Path in an interface of a file. err is that of the port itself; found is nil then.
func Check(e Engine, ask *Ask) (can Capabilities, found []*SettingError, err error) {
	can = e.Capabilities()
	if c, ok := e.(Checker); ok {
		if can, err = c.PortCapabilities(ask.Port); err != nil {
			return can, nil, err
		}
	}
	add := func(err *SettingError, half string, k int) {
		if err == nil {
			return
		}
		if err.Engine = e.Name(); !strings.Contains(err.Path, ".") {
			err.Path = strings.TrimSuffix(fmt.Sprintf("%s.queues[%d].%s", half, k, err.Path), ".")
		}
		found = append(found, err)
	}
	var rx, tx []QueueID
	for k := range ask.Rx {
		q := &ask.Rx[k]
		spec := q.RxSpec
		spec.Options = nil // PortCapabilities of none says anything of them: the options of a file are of their type
		add(can.checkRx(&spec, q.Memory), "rx", k)
		rx = append(rx, q.ID)
	}
	for k := range ask.Tx {
		q := &ask.Tx[k]
		spec := q.TxSpec
		spec.Options = nil
		add(can.checkTx(&spec, q.Memory), "tx", k)
		tx = append(tx, q.ID)
	}
	if k, err := can.checkIDs("receive", rx, can.RxQueues, can.RxQueuesHint); err != nil {
		add(err, "rx", k)
	}
	if k, err := can.checkIDs("transmit", tx, can.TxQueues, ""); err != nil {
		add(err, "tx", k)
	}
	if can.RxNeeded != "" && len(ask.Rx) == 0 {
		found = append(found, &SettingError{Engine: e.Name(), Path: "rx.queues",
			Wrong: "the port has no receive queue: " + can.RxNeeded, Expected: "a small one where nothing is received"})
	}
	return can, found, nil
}

// checkIDs says which queue, by its place, is more than the port has, or has a number that no queue
// of it has.
func (c *Capabilities) checkIDs(what string, ids []QueueID, most int, hint string) (k int, err *SettingError) {
	if hint == "" {
		hint = "remove the others, or divide them between ports"
	}
	if len(ids) > most {
		return most, &SettingError{Wrong: fmt.Sprintf("%d %s queues, and the port has %d", len(ids), what, most),
			Expected: fmt.Sprintf("at most %d", most), Hint: hint, Err: ErrUnsupported}
	}
	k = slices.IndexFunc(ids, func(id QueueID) bool { return c.Frames && id.Number() >= most })
	if k < 0 { // rules name queues by these numbers
		return 0, nil
	}
	return k, &SettingError{Path: "id", Wrong: fmt.Sprintf("the port has no %s queue %v", what, ids[k]),
		Expected: fmt.Sprintf("0 to %d", most-1), Hint: "without id a queue has its place in the list",
		Err: ErrUnsupported}
}
