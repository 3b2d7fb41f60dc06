package soak

import (
	"context"
	"fmt"
	"sync"

	"github.com/penstock-io/penstock/transfer/observe"
)

// eventsKept is how many events may wait for a ledger: it is slower than the node only while the
// machine is very busy.
const eventsKept = 1 << 16

// ledger follows the events of a node and compares them with what became of the transfers that the
// worker began, and in the end with the totals of the node's snapshot. Transfers that the worker
// did not begin itself, such as pieces of jobs, are in the events and totals only.
type ledger struct {
	sub  *observe.Subscription
	done sync.WaitGroup

	mu   sync.Mutex               // guards what follows
	open map[observe.ID]bool      // begun, by the events
	told map[observe.ID]bool      // ended, by the events; true: without an error. Not yet in mine
	mine map[observe.ID]bool      // the same as the futures said; not yet in told
	sums map[string]*ledgerCounts // by kind
	hops uint64
}

type ledgerCounts struct{ begun, good, bad, bytes uint64 }

func (b *ledger) follow(h *host) {
	b.open, b.told, b.mine, b.sums = map[observe.ID]bool{}, map[observe.ID]bool{}, map[observe.ID]bool{},
		map[string]*ledgerCounts{}
	b.sub = h.n.Events(context.Background(), eventsKept)
	b.done.Go(func() {
		for e := range b.sub.C() {
			if text := b.event(&e); text != "" {
				h.complain("%s", text)
			}
		}
	})
}

func (b *ledger) kind(k string) *ledgerCounts {
	c := b.sums[k]
	if c == nil {
		c = &ledgerCounts{}
		b.sums[k] = c
	}
	return c
}

// event enters what the node says, and returns what is wrong about it.
func (b *ledger) event(e *observe.Event) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.kind(e.Operation)
	switch e.Kind {
	case observe.EventTransferBegun:
		if b.open[e.Transfer] {
			return fmt.Sprintf("by the events transfer %v began twice", e.Transfer)
		}
		b.open[e.Transfer] = true
		c.begun++
	case observe.EventTransferEnded:
		if !b.open[e.Transfer] && len(b.sub.Missed()) == 0 {
			return fmt.Sprintf("by the events transfer %v ended twice, or had not begun", e.Transfer)
		}
		delete(b.open, e.Transfer)
		good := e.Reason == ""
		if good {
			c.good++
			c.bytes += e.Bytes
		} else {
			c.bad++
		}
		return b.match(e.Transfer, good, b.told, b.mine)
	case observe.EventTransferFailedOver:
		b.hops++
	}
	return ""
}

// ended enters what a future says.
func (b *ledger) ended(id observe.ID, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.match(id, err == nil, b.mine, b.told) // what differs stays, for balance
}

func (b *ledger) match(id observe.ID, good bool, here, there map[observe.ID]bool) string {
	other, ok := there[id]
	if !ok {
		here[id] = good
		return ""
	}
	if other != good {
		here[id] = good
		return fmt.Sprintf("transfer %v ended once with an error and once without, by the events and by its future", id)
	}
	delete(there, id)
	return ""
}

// balance compares the events with the totals of a node that is closed and whose transfers have all
// ended. It returns the totals to be reported, and what is wrong.
func (b *ledger) balance(h *host) (sums map[string]uint64, wrong []string) {
	if !h.patiently(b.done.Wait) {
		return nil, []string{"the events of the node do not end"}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	s := h.n.Snapshot()
	missed := len(b.sub.Missed()) > 0
	sums = map[string]uint64{"events missed": 0, "requests refused": s.Node.Refused,
		"connections refused": s.Node.Rejected, "failovers": 0,
		"retries": 0, "rejected calls": 0, "transfers": 0}
	if missed {
		sums["events missed"] = 1
	}
	if n := s.Node.TransfersRunning; n != 0 || len(s.Transfers) != 0 {
		complain("by its snapshot %d transfers run on the closed node", n)
	}
	if n := len(s.Peers); n != 0 {
		complain("by its snapshot the closed node has %d peers", n)
	}
	for _, p := range s.Paths {
		if p.Up != 0 {
			complain("by its snapshot %d paths %s are up on the closed node", p.Up, p.Path)
		}
	}
	if m := s.Memory; m.LandingUsed != 0 || m.LandingReserved != 0 || m.Registrations != 0 {
		complain("by its snapshot the closed node holds %d bytes for tensors, %d reserved, %d registrations",
			m.LandingUsed, m.LandingReserved, m.Registrations)
	}
	hops := uint64(0)
	for _, t := range s.Totals {
		sums["failovers"] += t.Failovers
		sums["retries"] += t.Retries
		sums["transfers"] += t.Begun
		for _, n := range t.Rejected {
			sums["rejected calls"] += n
		}
		hops += t.Failovers
		if t.Running != 0 || t.Begun != t.Completed+t.Canceled+t.Failed {
			complain("totals of %s: %d begun, %d running, %d completed, %d canceled, %d failed", t.Kind, t.Begun,
				t.Running, t.Completed, t.Canceled, t.Failed)
		}
		c := b.kind(t.Kind)
		if !missed && (c.begun != t.Begun || c.good != t.Completed || c.bad != t.Canceled+t.Failed ||
			c.bytes != t.Bytes) {
			complain("totals of %s: %d begun, %d completed, %d not, %d bytes; by the events %d, %d, %d and %d", t.Kind,
				t.Begun, t.Completed,
				t.Canceled+t.Failed, t.Bytes, c.begun, c.good, c.bad, c.bytes)
		}
	}
	if missed {
		return sums, wrong
	}
	if hops != b.hops {
		complain("%d failovers by the totals, %d by the events", hops, b.hops)
	}
	for id := range b.open {
		complain("by the events transfer %v never ended", id)
	}
	for id, good := range b.mine {
		complain("transfer %v ended (success: %v), which no event says, or another outcome", id, good)
	}
	return sums, wrong
}
