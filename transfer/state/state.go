// Package state is the state machine of one transfer over its segments. It knows which bytes are in
// place (visible in the memory that they go to, by a completion of the path), which are
// outstanding, and what to do next. Events go in, the next step comes out: the package takes no
// lock, does no I/O and reads no clock. A channel is a path and its send queue, not one of Go; its
// owner drives the machine and does what the steps say. See State for the states and table for the
// legal transitions.
package state

import (
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/transfer/path"
)

// State is where a transfer is between its admission and its end. The diagram has the usual ways;
// table has all.
//
//	Admitted ──► Routed ──► Moving ──► Proving ──► Notifying ──► Ended
//	   ▲            │          │           │            │          ▲
//	   │            └──────────┴─────┬─────┴────────────┘          │
//	   │                             ▼                             │
//	   ├──────────────────────── Draining ─────────────────────────┤
//	   │                             │                             │
//	   └──────────────────────── Fencing ──────────────────────────┘
type State uint8

const (
	Admitted State = iota // its memory is registered and its share of the limits reserved; it has no channel
	Routed                // a channel has it, and has posted nothing of it
	Moving                // operations are outstanding, or are still to be posted
	Proving               // every byte is in place; the digests of both sides are being compared
	// the operation with the notification, which may have bytes too, is outstanding: nothing is
	// left to post
	Notifying
	Draining // it failed or lost its path; it posts nothing more, and waits for outstanding operations
	Fencing  // its path is down, and the peer is asked to close its end, which might still write
	Ended    // final: Err says whether it succeeded
	states   = iota
)

var names = [states]string{"admitted", "routed", "moving", "proving", "notifying", "draining", "fencing", "ended"}

func (s State) String() string {
	if s < states {
		return names[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

func set(of ...State) (m uint16) {
	for _, s := range of {
		m |= 1 << s
	}
	return m
}

// table has the legal transitions. Builds with -tags invariants check each.
var table = [states]uint16{
	// Ended: canceled, no path, or all of it came by bounce buffers
	Admitted: set(Routed, Ended),
	Routed:   set(Moving, Proving, Notifying, Draining, Fencing), // Proving: all bytes came by an earlier channel
	// Ended: a part of another transfer, which has no notification
	Moving:    set(Proving, Notifying, Draining, Fencing, Ended),
	Proving:   set(Notifying, Draining, Fencing),
	Notifying: set(Moving, Draining, Ended),  // Moving: the path did not accept the operation
	Draining:  set(Admitted, Fencing, Ended), // Admitted: its path cannot access its memory
	Fencing:   set(Admitted, Ended),          // Ended: it failed, too
}

// Step is what the owner of the channel has to do for a transfer.
type Step uint8

const (
	Wait  Step = iota // nothing to post now: take it from the channel's queue
	Queue             // something to post: it has a place in the channel's queue
	Prove             // all bytes are in place: have the digests compared once, and call Proved
	// its path is down, and nothing is outstanding here; when the peer has closed its end, call
	// Resume, or End if it has failed
	Fence
	Stage // its path cannot access its memory: call Resume, and have bounce buffers carry what is left
	End   // it is over: call End; Err says how
)

// Result is what became of an operation.
type Result uint8

const (
	Placed Result = iota // every byte is in place
	Failed               // with an error that ends the transfer
	// the path failed before the operation completed: whether its bytes are in place is not known
	PathDown
	Unreachable // the path cannot access the memory, and no byte of the operation moved
)

// Machine is the state of one transfer. It has one owner at a time: the goroutine that chooses a
// channel for it, then the one that holds the channel. A block is one path.Copy of its list; a
// Cursor is a block, an offset in it, and the bytes posted so far.
type Machine struct {
	kind   path.OpKind
	silent bool

	state State
	// the digests of both sides have to be equal before the peer gets the notification, and are not
	// compared yet
	asked       bool
	lost        Result // PathDown or Unreachable: why it drains; Placed: for an error
	doubt       bool   // the notification was outstanding when its path went down, and it had not failed before
	outstanding int    // operations
	bytes       uint64
	at          Cursor // the next byte to post
	copies      []path.Copy
	undone      []Segment // were posted; their bytes may not be in place
	err         error
}

// New is the machine of a transfer that was admitted. If asked is set, the digests of both sides
// have to be equal before the peer gets the notification. A silent one is a part of another
// transfer, and notifies no peer.
func New(kind path.OpKind, copies []path.Copy, bytes uint64, asked, silent bool) Machine {
	return Machine{kind: kind, copies: copies, bytes: bytes, asked: asked, silent: silent}
}

// State is the state that the transfer is in.
func (m *Machine) State() State { return m.state }

// Err is why the transfer fails or has failed: the cause rather than a cancellation that followed
// from it.
func (m *Machine) Err() error { return m.err }

// Outstanding is the number of operations that the path has not completed yet.
func (m *Machine) Outstanding() int { return m.outstanding }

// Left is the number of bytes that are not posted.
func (m *Machine) Left() uint64 { return m.bytes - m.at.Done }

// At is the next byte to post.
func (m *Machine) At() Cursor { return m.at }

// Asked reports whether the digests are to be compared, and are not yet.
func (m *Machine) Asked() bool { return m.asked }

// Copies is what was left of the transfer at the last Resume, at first all of it.
func (m *Machine) Copies() []path.Copy { return m.copies }

// Doubt reports whether the peer may have received the notification although the path failed before
// its completion came. Resume clears it: who resumes a transfer asks the peer first.
func (m *Machine) Doubt() bool { return m.doubt }

// Posted reports whether no byte is left to post; the notification may still be. A block number
// above 0 marks a transfer of no bytes as posted.
func (m *Machine) Posted() bool {
	return m.kind == path.Notify || m.at.Done == m.bytes && m.at != (Cursor{})
}

func (m *Machine) to(s State) {
	if invariants.Enabled && m.state != s && table[m.state]&(1<<s) == 0 {
		invariants.Broken("a transfer goes from %v to %v", m.state, s)
	}
	m.state = s
}

// Route gives the transfer to a channel.
func (m *Machine) Route() { m.to(Routed) }

// Next returns what to do now, and may change the state. The owner of the channel calls it after
// each event.
func (m *Machine) Next() Step {
	switch m.state {
	case Admitted, Fencing, Ended:
		return Wait
	}
	switch {
	case m.outstanding > 0 && (m.state == Draining || m.Posted()):
		return Wait
	case !m.Posted() && m.state != Draining:
		return Queue
	case m.state != Draining && m.state != Notifying && !m.silent: // all bytes are in place
		if m.asked {
			m.to(Proving)
			return Prove
		}
		return Queue
	case m.state != Draining:
		return End
	case m.lost == PathDown: // also one that has failed: the peer's end may still write
		m.to(Fencing)
		return Fence
	case m.err == nil:
		m.to(Admitted)
		return Stage
	}
	return End
}

// Post takes the next n bytes, at most Left, or the notification when all are in place; n is 0
// then. The operation carries the notification if notify is set: a small transfer takes one
// operation. Where the bytes are whole blocks the copies are a part of the caller's list, else they
// lie in buf, which grows as needed.
func (m *Machine) Post(n uint64, buf *[]path.Copy) (s Segment, copies []path.Copy, notify bool) {
	s = Segment{m.at, n}
	m.outstanding++
	if m.Posted() {
		m.to(Notifying)
		return s, nil, true
	}
	if m.at == (Cursor{}) && n == m.bytes {
		m.at = Cursor{max(len(m.copies), 1), 0, n}
		copies = m.copies
	} else if copies = m.blocks(n); copies == nil {
		*buf = Append(*buf, m.copies, &m.at, n)
		copies = *buf
	}
	if s.At == (Cursor{}) && m.Posted() && !m.silent && !m.asked {
		m.to(Notifying)
		return s, copies, true
	}
	m.to(Moving)
	return s, copies, false
}

// Whole is n, or less by n/16 at most if the next bytes to post then end where a block does: Post
// copies no list for those.
func (m *Machine) Whole(n uint64) uint64 {
	sum, off := uint64(0), m.at.Off
	for _, c := range m.copies[min(m.at.Block, len(m.copies)):] {
		if c.Local.Len-off > n-sum {
			break
		}
		sum, off = sum+c.Local.Len-off, 0
	}
	if n-sum > n/16 {
		return n
	}
	return sum
}

// blocks takes the next n bytes if they are whole blocks, and returns those; otherwise it returns
// nil.
func (m *Machine) blocks(n uint64) []path.Copy {
	first := m.at.Block
	end, sum := first, uint64(0)
	for m.at.Off == 0 && sum < n {
		sum += m.copies[end].Local.Len
		end++
	}
	if end == first || sum > n {
		return nil
	}
	m.at = Cursor{end, 0, m.at.Done + n}
	return m.copies[first:end:end]
}

// Unpost undoes the last Post: the path did not accept the operation. Several are undone in reverse
// order.
func (m *Machine) Unpost(s Segment) {
	m.outstanding--
	m.at = s.At
	m.to(Moving)
}

// Done records the completion of an operation. err is used if it Failed.
func (m *Machine) Done(s Segment, r Result, err error) {
	m.outstanding--
	switch r {
	case Failed:
		m.Fail(err)
	case PathDown, Unreachable:
		m.undone = append(m.undone, s)
		m.lose(r)
	}
}

// Refuse records that the path cannot access the memory of an operation that it did not accept,
// after Unpost.
func (m *Machine) Refuse() { m.lose(Unreachable) }

func (m *Machine) lose(r Result) {
	m.doubt = m.doubt || r == PathDown && m.state == Notifying
	if m.lost != PathDown {
		m.lost = r
	}
	m.to(Draining)
}

// Fail records an error. The transfer ends with it when nothing is outstanding and a path that is
// down is fenced; without a channel the caller ends it.
func (m *Machine) Fail(err error) {
	m.err = first(m.err, err)
	switch m.state {
	case Routed, Moving, Proving, Notifying:
		m.to(Draining)
	}
}

// Proved records the outcome of comparing the digests.
func (m *Machine) Proved(err error) {
	if m.asked = false; err != nil {
		m.Fail(err)
	}
}

// Fence takes the transfer from a channel whose path is down before it has waited for anything
// there. Nothing is outstanding.
func (m *Machine) Fence() { m.to(Fencing) }

// Resume makes what is not in place all that is left of the transfer, for the next channel, after
// the steps Fence and Stage.
func (m *Machine) Resume() {
	var rest []path.Copy
	left := m.Left()
	for _, u := range m.undone {
		left += u.Bytes
		rest = Append(rest, m.copies, &u.At, u.Bytes)
	}
	rest = Append(rest, m.copies, &m.at, m.Left())
	m.undone, m.lost, m.doubt = nil, Placed, false
	m.at = Cursor{Done: m.bytes - left}
	if left < m.bytes { // otherwise nothing is in place, and the caller's list is still right
		m.copies = rest
	}
	m.to(Admitted)
}

// Carried records, for a transfer without a channel, that bounce buffers brought all bytes: the
// digests, if asked for, and the notification are left.
func (m *Machine) Carried() { m.at = Cursor{max(len(m.copies), 1), 0, m.bytes} }

// End marks the transfer as over: after the step End, or without a channel.
func (m *Machine) End() { m.to(Ended) }

// first keeps the first of two errors, but prefers a cause over a cancellation that followed from
// it.
func first(have, e error) error {
	if have == nil || errors.Is(have, path.ErrCanceled) && e != nil {
		return e
	}
	return have
}
