package transfer

import (
	"context"

	"github.com/penstock-io/penstock/transfer/observe"
)

// Events begins to collect the node's events: at most size of them (at least 1, at most 65,536)
// wait to be read. What comes while so many wait is dropped for this subscriber alone and counted
// (Event.Missed, Subscription.Missed): the node never waits for a subscriber. Events that concern
// one peer come in the order in which they happened. The subscription ends with ctx, with Close, or
// with the node.
func (n *Node) Events(ctx context.Context, size int) *observe.Subscription {
	return n.account.Bus.Subscribe(ctx, size)
}

// eventBuffer is how many events may wait for Options.OnEvent.
const eventBuffer = 1024

// callOnEvent gives the node's events to Options.OnEvent, in order and one at a time, until the
// node is closed.
func (n *Node) callOnEvent(f func(observe.Event)) {
	s := n.Events(context.Background(), eventBuffer)
	go func() { // not waited for by Close, which f may call
		for e := range s.C() {
			f(e)
		}
	}()
}
