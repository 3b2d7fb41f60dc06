package account

import (
	"context"
	"errors"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
)

const numOps = 3 // kinds of operations that are a transfer: path.Put, path.Get and path.Notify

var opNames = [numOps]string{"put", "get", "notify"}

func opIndex(k path.OpKind) int { return int(k - path.Put) }

// KindName is the name of a kind of transfers in snapshots, events and metrics.
func KindName(k path.OpKind) string { return opNames[opIndex(k)] }

// reason is a cause of failures.
type reason struct {
	name string
	err  error
}

// failureReasons are the causes of failures as snapshots and metrics tell them apart, after those
// of the session; the first that matches counts. They are few and fixed: a peer cannot make more of
// them.
var failureReasons = []reason{
	{"integrity", path.ErrIntegrity},
	{"protocol", path.ErrProtocol},
	{"path_down", path.ErrDown},
	{"revoked", path.ErrRevoked},
	{"not_permitted", path.ErrRights},
	{"unknown_export", path.ErrKey},
	{"bounds", path.ErrBounds},
	{"too_large", path.ErrTooLarge},
	{"unreachable", path.ErrUnreachable},
	{"unavailable", path.ErrUnavailable},
	{"bad_memory", mem.ErrBounds},
	{"over_budget", control.OverBudget},
	{"too_many", control.TooMany},
	{"too_many_bytes", control.TooManyBytes},
	{"transfer_too_large", control.TooLarge},
	{"dtype", control.DType},
	{"rate", control.OverRate},
	{"busy", control.Busy},
	{"timeout", context.DeadlineExceeded},
	{"timeout", control.Timeout},
	{"canceled", path.ErrCanceled},
	{"canceled", context.Canceled},
}

// numReasons counts those of the session (2) and of the table (22), "refused" (by the peer, for
// another reason) and "other".
const numReasons = 26

// reasonOf is the index of what an error comes from.
func (n *Node) reasonOf(err error) int {
	for i := range n.reasons {
		if errors.Is(err, n.reasons[i].err) {
			return i
		}
	}
	if errors.As(err, new(control.Code)) {
		return numReasons - 2
	}
	return numReasons - 1
}

func (n *Node) reasonName(i int) string {
	switch {
	case i < len(n.reasons):
		return n.reasons[i].name
	case i == len(n.reasons):
		return "refused"
	}
	return "other"
}

// opCounts count the transfers of one kind. They are guarded by the mutex of what holds them.
type opCounts struct {
	begun, completed, canceled uint64
	failed                     [numReasons]uint64
	rejected                   [numReasons]uint64 // calls that failed before a transfer began
	bytes                      uint64             // of those that were completed
	partial                    uint64             // known to be in place of those that were not
	retries                    uint64             // attempts of jobs after the first
	failovers                  uint64             // paths that were changed under way
	fallbacks                  uint64             // not taken the best path, since it could not be set up
	received                   uint64             // the peer's, completed and delivered here
}

type counts [numOps]opCounts

func (c *counts) add(o *counts) {
	for i := range c {
		c, o := &c[i], &o[i]
		c.begun += o.begun
		c.completed += o.completed
		c.canceled += o.canceled
		for i := range c.failed {
			c.failed[i] += o.failed[i]
			c.rejected[i] += o.rejected[i]
		}
		c.bytes += o.bytes
		c.partial += o.partial
		c.retries += o.retries
		c.failovers += o.failovers
		c.fallbacks += o.fallbacks
		c.received += o.received
	}
}

// totals gives the counts their names.
func (n *Node) totals(c *counts) []observe.KindTotals {
	out := make([]observe.KindTotals, 0, numOps)
	for i := range c {
		x := &c[i]
		t := observe.KindTotals{Kind: opNames[i], Begun: x.begun, Completed: x.completed, Canceled: x.canceled,
			Bytes: x.bytes, Partial: x.partial,
			Retries: x.retries, Failovers: x.failovers, Fallbacks: x.fallbacks, Received: x.received,
			Failures: map[string]uint64{}, Rejected: map[string]uint64{}}
		for k, m := range x.failed {
			t.Failed += m
			if m > 0 {
				t.Failures[n.reasonName(k)] += m
			}
			if m := x.rejected[k]; m > 0 {
				t.Rejected[n.reasonName(k)] += m
			}
		}
		t.Running = t.Begun - t.Completed - t.Canceled - t.Failed
		out = append(out, t)
	}
	return out
}
