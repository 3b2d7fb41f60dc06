package transfer

import (
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/sched"
)

// PieceSize is the largest number of bytes that a transfer hands to a path as one operation;
// Progress advances by it, or by less while other transfers want the same path.
const PieceSize = 32 << 20

// ShareSize is the number of bytes that a transfer hands to a path at a time while others want the
// same path too, and the size up to which a transfer counts as small.
const ShareSize = 256 << 10

const (
	// wireRoom is how many bytes of large transfers are outstanding on a path over a wire while
	// several transfers share it, or more where the wire holds more: what is less leaves the wire
	// idle, what is more makes others wait.
	wireRoom  = 1 << 20
	wireTrips = 4 // round trips of what the wire carries that may be outstanding
	// nearRoom is the same for paths that this side completes by itself.
	nearRoom = 2 * ShareSize
	// calmed is the number of bytes that one transfer posts before it counts as alone: pieces
	// grow back to PieceSize with it.
	calmed = 2 * PieceSize
	// callerSize is the largest transfer that the goroutine which begins it carries itself, alone
	// on a path.Immediate, and stepSize what of it that goroutine hands over before others can have
	// the channel.
	callerSize = 4 << 20
	stepSize   = 1 << 20
	// keepCopies is the longest list of blocks that a slot keeps for its next operation.
	keepCopies = 1024
)

// Priority says how transfers of one peer share a path that all of them want. None starves: a
// transfer of a higher priority gets more bytes in the same time, not all of them. The zero value
// is PriorityNormal.
type Priority uint8

const (
	PriorityNormal Priority = iota // weight 4
	PriorityHigh                   // weight 16
	PriorityLow                    // weight 1
	priorities     = iota
)

func (p Priority) String() string {
	switch p {
	case PriorityNormal:
		return "normal"
	case PriorityHigh:
		return "high"
	case PriorityLow:
		return "low"
	}
	return "unknown"
}

var priorityWeights = [priorities]uint64{4, 16, 1}

// The queue of a channel has two classes for each priority: one for small operations and one for
// the pieces of large transfers. So a large one that may not have more outstanding for now does not
// hold small ones up, and neither can starve the other.
const (
	allClasses  = 1<<(2*priorities) - 1
	bulkClasses = 1<<(2*priorities) - 1<<priorities
)

func lightClass(p Priority) int { return int(p) }
func bulkClass(p Priority) int  { return priorities + int(p) }

// isBulk reports whether the transfer is large: its pieces take turns with those of other large
// ones.
func (t *Transfer) isBulk() bool {
	return t.bytes > ShareSize || t.part != nil && t.part.t.bytes > ShareSize
}

// flowOf says where in the queue a transfer belongs. Small ones of a priority share a flow, and
// with it their order; a large one has its own. A large one that only has its notification left is
// small.
func (ch *channel) flowOf(t *Transfer) (*sched.Flow[*Transfer], int) {
	switch {
	case !t.isBulk():
		return &ch.light[t.priority], lightClass(t.priority)
	case t.m.Posted():
		return &t.flow, lightClass(t.priority)
	case t.part != nil: // it has one turn with the other pieces of its transfer
		return t.part.flow(ch), bulkClass(t.priority)
	}
	return &t.flow, bulkClass(t.priority)
}

// alongside notes that a transfer which arrives shares the wire with what is outstanding.
func (ch *channel) alongside(t *Transfer) {
	if !t.isBulk() && ch.bulk > 0 && !ch.caps.OneSided {
		ch.calm = 0
	}
}

// enqueue gives a transfer its place in the queue, unless it has it.
func (ch *channel) enqueue(t *Transfer) {
	if t.item.Queued() {
		return
	}
	t.item.Value = t
	f, class := ch.flowOf(t)
	ch.queue.Push(f, class, &t.item)
}

// leave takes a transfer out of the queue.
func (ch *channel) leave(t *Transfer) {
	ch.queue.Remove(&t.item)
	ch.queue.Drop(&t.flow)
	if t.part != nil {
		ch.queue.Drop(t.part.flow(ch))
	}
}

// room is how many bytes of large transfers may be outstanding before the next piece is posted.
func (ch *channel) room() uint64 {
	if ch.queue.Flows() <= 1 && ch.calm >= calmed {
		return 2 * PieceSize
	}
	return min(max(ch.shared, ch.calm), 2*PieceSize)
}

// sharedRoom is what may be outstanding at first while several transfers share a path, and the
// round trip by which a channel adapts it, 0 if it does not.
func (p *Peer) sharedRoom(caps path.Capabilities) (uint64, time.Duration) {
	switch {
	case caps.OneSided:
		return nearRoom, 0
	case p.raw == nil:
		return wireRoom, 0
	}
	return wireRoom, sys.RoundTripOf(p.raw)
}

// learn adapts what may be outstanding on a shared path when the operation of a slot has ended.
func (ch *channel) learn(s *slot) {
	if s.bulk && ch.trip > 0 {
		ch.shared = carried(ch.shared, s.ahead, clock()-s.at, ch.trip)
	}
}

// carried moves what may be outstanding towards what a wire carries in so many round trips: an
// operation took so long with so many bytes outstanding.
func carried(shared, outstanding uint64, took, trip time.Duration) uint64 {
	n := float64(outstanding) * wireTrips * float64(trip) / float64(max(took, trip))
	return max((shared+uint64(min(n, 2*PieceSize)))/2, wireRoom)
}

// steps reports whether the next operation of a large transfer is a step of the goroutine that has
// submitted it, which holds the channel: that needs no other goroutine to go on, and no other
// transfer wants the path.
func (ch *channel) steps(t *Transfer) bool {
	return t == ch.callers && ch.now != nil && t.isBulk() && t.part == nil && t.bytes <= callerSize && !t.m.Posted() &&
		ch.inflight == 0 && ch.queue.Len() == 1
}

// size is how many bytes the next operation of a transfer takes, which is granted so many.
func (ch *channel) size(t *Transfer, grant uint64, step bool) uint64 {
	if t.m.Posted() {
		return 0
	}
	n := min(t.m.Left(), PieceSize)
	if !t.isBulk() {
		return n
	}
	if grant != sched.Unlimited {
		ch.calm = 0
	} else if ch.calm < calmed {
		grant = max(ch.calm/2&^(ShareSize-1), ShareSize)
	}
	if step {
		grant = min(grant, stepSize)
	}
	if most := ch.peer.limits.Piece(); most > 0 {
		grant = min(grant, most)
	}
	n = t.m.Whole(min(n, grant))
	ch.calm = min(ch.calm+n, calmed)
	return n
}

// pay takes an operation's bytes from the rates of the peer and the node; it returns how long they
// have to wait. They are taken at once: then this channel has its turn among those that share the
// rate, whatever is posted when it comes.
func (ch *channel) pay(bytes uint64) time.Duration {
	if need := bytes - min(ch.prepaid, bytes); need > 0 {
		if wait := ch.peer.limits.Send(int64(clock()), need); wait > 0 {
			ch.payTill = time.Now().Add(wait)
		}
		ch.prepaid += need
	}
	if !ch.payTill.IsZero() {
		if wait := time.Until(ch.payTill); wait > 0 {
			return wait
		}
		ch.payTill = time.Time{}
	}
	ch.prepaid -= bytes
	return 0
}
