package pathtest

import (
	"github.com/penstock-io/penstock/transfer/path"
)

// flaw breaks a memory path on purpose, so that the suite's own tests can show that the suite
// notices.
type flaw uint8

const (
	sound flaw = iota
	dropsDone
	doublesDone
	forgetsLastByte
	writesLate
	ignoresRights
	losesWakeup
	wrongImm
	truncatesMsg
	writesBeyond
	leaksCredits
	narrowOffsets
	boundsOverflow
	fenceTooEarly
	writesAfterCancel
	notifiesEarly
	swapsNotices
	silentDown
	doubleDown
	exceedsWindow
	wrongBytes
	wrongStats
	allocates
	leaksFD
	leaksGoroutine
	failureKills
	writesAfterClose
	alwaysReadable
)

// memoryFlaws is what broken variants remember.
type memoryFlaws struct {
	count    int
	late     []byte // memory to write to later
	lateFrom []byte
	garbage  []byte
}

// flawPosted runs after an operation was accepted.
func (e *memoryEnd) flawPosted(s *memoryOp) {
	switch e.link.flaw {
	case allocates:
		e.flawed.garbage = make([]byte, 64)
	case notifiesEarly:
		if s.op.Notify && e.notify(s) {
			s.op.Notify = false
		}
	case exceedsWindow:
		if len(e.freeSlots) == 0 && len(e.slots) < e.link.window+4 {
			e.slots = append(e.slots, memoryOp{})
			e.freeSlots = append(e.freeSlots, len(e.slots)-1)
		}
	case leaksGoroutine:
		if e.flawed.count == 0 {
			go func() { select {} }()
		}
		e.flawed.count++
	}
}

// resolve is what the peer's table says about a block, or what a broken variant makes of it.
func (e *memoryEnd) resolve(s *memoryOp, c *path.Copy, want path.Rights) ([]byte, error) {
	x := e.peer.reach
	off, n := c.RemoteOff, c.Local.Len
	switch e.link.flaw {
	case ignoresRights:
		want = 0
	case narrowOffsets:
		off = uint64(uint32(off))
	case boundsOverflow:
		if b, err := x.Resolve(c.Key, 0, n, want); err == nil && off+n < off {
			return b[:n:n], nil
		}
	case fenceTooEarly:
		// Resolves once per block: a revocation in the middle goes unnoticed.
		if s.off > 0 && e.flawed.late != nil {
			return e.flawed.late, nil
		}
		b, err := x.Resolve(c.Key, off, n, want)
		e.flawed.late = b
		return b, err
	}
	return x.Resolve(c.Key, off, n, want)
}

func (e *memoryEnd) copy(s *memoryOp, to, from []byte) {
	switch e.link.flaw {
	case forgetsLastByte:
		if len(from) > 64 {
			from = from[:len(from)-1]
		}
	case writesLate:
		if len(from) > 4096 {
			e.flawed.late, e.flawed.lateFrom = to, from
			return
		}
	case writesBeyond:
		c := &s.op.Copies[s.block]
		if x, _, err := e.peer.reach.Lookup(c.Key); err == nil && s.op.Kind == path.Put {
			if end := c.RemoteOff + c.Local.Len; end < x.Span().Len {
				x.Span().Bytes()[end] ^= 1
			}
		}
	}
	copy(to, from)
}

// flawReport changes an event on its way; false drops it.
func (e *memoryEnd) flawReport(ev *memoryEvent) bool {
	f := &e.flawed
	switch e.link.flaw {
	case dropsDone:
		if ev.Kind == path.EventDone {
			f.count++
			return f.count%7 != 0
		}
	case doublesDone:
		if ev.Kind == path.EventDone {
			if f.count++; f.count%7 == 0 {
				twice := *ev
				twice.slot = -1
				e.events = append(e.events, twice)
			}
		}
	case wrongImm:
		ev.Imm = uint64(uint32(ev.Imm))
	case truncatesMsg:
		ev.Msg = ev.Msg[:min(len(ev.Msg), path.MaxMessage-1)]
	case swapsNotices:
		if n := len(e.events); ev.Kind == path.EventNotify && n > 0 && e.events[n-1].Kind == path.EventNotify {
			e.events[n-1], *ev = *ev, e.events[n-1]
		}
	case silentDown:
		return ev.Kind != path.EventDown || e.closed || len(e.queue) > 0
	case doubleDown:
		if ev.Kind == path.EventDown {
			e.events = append(e.events, *ev)
		}
	case wrongBytes:
		if ev.Kind == path.EventDone && ev.Err == nil {
			ev.Bytes = ev.Bytes &^ 1
		}
	case wrongStats:
		e.stats.OpsDone++
	case failureKills:
		if ev.Kind == path.EventDone && ev.Err != nil {
			e.link.down = path.ErrDown
		}
	}
	return true
}

func (e *memoryEnd) flawWake(k path.EventKind) bool {
	f := &e.flawed
	f.count++
	return e.link.flaw == losesWakeup && f.count%100 == 0
}

func (e *memoryEnd) flawPoll() {
	f := &e.flawed
	switch e.link.flaw {
	case writesLate, writesAfterCancel:
		if f.count++; f.count%3 == 0 && f.late != nil && !e.closed {
			copy(f.late, f.lateFrom)
			f.late = nil
		}
	case writesAfterClose:
		if e.link.down != nil && f.late != nil {
			f.late[0]++
		}
	}
}

func (e *memoryEnd) flawCancel(s *memoryOp) {
	if (e.link.flaw == writesAfterCancel || e.link.flaw == writesAfterClose) && e.flawed.late == nil &&
		s.block < len(s.op.Copies) {
		c := &s.op.Copies[s.block]
		b, err := e.peer.reach.Resolve(c.Key, c.RemoteOff, c.Local.Len, 0)
		if err == nil && s.op.Kind == path.Put {
			e.flawed.late, e.flawed.lateFrom = b[s.off:], c.Local.Bytes()[s.off:]
		}
	}
}

// flawCredit says that an operation's place in the window is never given back.
func (e *memoryEnd) flawCredit(ev *memoryEvent) bool {
	return e.link.flaw == leaksCredits && ev.Err != nil
}
