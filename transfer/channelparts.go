package transfer

import (
	"time"

	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/sched"
)

// slotTable counts what is outstanding on a path.
type slotTable struct {
	slots    []slot
	free     []uint32
	inflight int
	bulk     int    // of these, parts of large transfers
	bulkLen  uint64 // bytes of those
	calm     uint64 // bytes posted since several transfers shared the path
	shared   uint64 // bytes of large transfers that may be outstanding while several transfers share the path
	gathered uint64 // operations handed over so far
}

// pacing holds a channel back where the rates of its peer do.
type pacing struct {
	prepaid  uint64      // bytes that were taken from the rate and not posted yet
	payTill  time.Time   // when they may be
	metered  uint64      // bytes of the peer that were counted against its rate
	resume   *time.Timer // serves the channel again when the peer's rate allows it
	heldTill time.Time   // not served before, because of the peer's rate
}

// batched collects small transfers into one post.
type batched struct {
	batch    control.Batcher // used when batching is on
	batching bool
	timer    *time.Timer // flushes the batch at its deadline, and goes on when the rate allows it
}

// scratch is room for one post and one poll.
type scratch struct {
	ops     [postMax]path.Op
	from    [postMax]*Transfer
	charged [postMax]sched.Charge
	events  [64]path.Event
	ends    [postMax]path.Event // of hand
}

// closing says how far the end of a path is.
type closing struct {
	down   error       // why the channel takes no more work
	gone   bool        // the path is closed and all its events are processed
	muted  bool        // the loop does not watch the descriptor: the peer is held back, or the channel is attended
	broken []*Transfer // their path is going down under them
}
