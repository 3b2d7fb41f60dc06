package pathtest

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// memoryStep is how many bytes one Poll of a memory path copies, memoryInline how many Post copies
// itself.
const (
	memoryStep   = 64 << 10
	memoryInline = 4 << 10
)

// NewMemory connects two nodes of one process by plain copies under one lock. It is the reference
// that says in the fewest lines what the contract means, and the second opinion when the suite and
// a path disagree. Both ends may be driven by different goroutines.
func NewMemory(a, b setup.Config) (pa, pb path.Path, err error) { return newMemory(a, b, sound) }

func newMemory(a, b setup.Config, f flaw) (pa, pb path.Path, err error) {
	link := &memoryLink{flaw: f, window: min(cmp.Or(a.Window, setup.DefaultWindow),
		cmp.Or(b.Window, setup.DefaultWindow))}
	for i, c := range []setup.Config{a, b} {
		if c.Exports == nil {
			return nil, nil, fmt.Errorf("pathtest: memory path: no Exports in configuration %d", i)
		}
		fd, err := sys.Eventfd()
		if err != nil {
			if i == 1 {
				sys.Close(link.ends[0].fd)
			}
			return nil, nil, err
		}
		e := &memoryEnd{link: link, reach: c.Reach(), fd: fd}
		e.slots = make([]memoryOp, link.window)
		e.notes = make([][path.MaxMessage]byte, link.window)
		for k := range e.slots {
			e.freeSlots = append(e.freeSlots, k)
			e.freeNotes = append(e.freeNotes, k)
		}
		e.queue = make([]int, 0, link.window)
		e.lent = make([]int, 0, link.window)
		e.events = make([]memoryEvent, 0, 2*link.window+1)
		link.ends[i] = e
	}
	link.ends[0].peer, link.ends[1].peer = link.ends[1], link.ends[0]
	return link.ends[0], link.ends[1], nil
}

type memoryLink struct {
	mu     sync.Mutex // guards everything below, on both ends
	flaw   flaw
	window int
	down   error
	ends   [2]*memoryEnd
}

// memoryEnd is one end. Every operation has a slot from Post until its EventDone is polled, and
// every notification has a note at the receiver until the Poll after the one that reported it; so
// nothing is ever allocated, and a sender whose peer does not poll waits.
type memoryEnd struct {
	link   *memoryLink
	peer   *memoryEnd
	reach  path.Reach
	fd     int // eventfd
	armed  bool
	closed bool

	slots     []memoryOp
	freeSlots []int
	queue     []int // slots of operations to do, in order
	notes     [][path.MaxMessage]byte
	freeNotes []int
	lent      []int // notes whose Msg the owner may still read
	events    []memoryEvent
	stats     path.Stats
	flawed    memoryFlaws
}

type memoryOp struct {
	op    path.Op
	msg   [path.MaxMessage]byte
	block int    // of op.Copies, being copied
	off   uint64 // bytes of it done
}

type memoryEvent struct {
	path.Event
	slot, note int // to give back; -1 for none
}

func (e *memoryEnd) Name() string { return "memory" }

func (e *memoryEnd) Capabilities() path.Capabilities {
	return path.Capabilities{OneSided: true, Proof: path.ProofMemory, Window: e.link.window,
		MaxMessage: path.MaxMessage, UserCopies: 1}
}

func (e *memoryEnd) Post(ops []path.Op) (int, error) {
	l := e.link
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range ops {
		op := &ops[i]
		if l.down != nil {
			return i, l.down
		}
		if err := e.check(op); err != nil {
			return i, err
		}
		if len(e.freeSlots) == 0 {
			e.stats.WindowFull++
			return i, path.ErrFull
		}
		last := len(e.freeSlots) - 1
		k := e.freeSlots[last]
		e.freeSlots = e.freeSlots[:last]
		s := &e.slots[k]
		s.op, s.block, s.off = *op, 0, 0
		s.op.Msg = s.msg[:copy(s.msg[:], op.Msg)]
		e.queue = append(e.queue, k)
		e.stats.OpsPosted++
		e.flawPosted(s)
	}
	e.run(memoryInline)
	return len(ops), nil
}

// check finds what is wrong with an operation before anything of it is done.
func (e *memoryEnd) check(op *path.Op) error {
	if len(op.Msg) > path.MaxMessage {
		return path.ErrTooLarge
	}
	switch op.Kind {
	case path.Put, path.Get:
		for i := range op.Copies {
			if !op.Copies[i].Local.Valid() {
				return mem.ErrBounds
			}
			if l := op.Copies[i].Local; l.Len > 0 && l.Bytes() == nil {
				return path.ErrUnreachable
			}
		}
	case path.Notify, path.Fence:
	default:
		return fmt.Errorf("pathtest: memory path: unknown operation kind %d", op.Kind)
	}
	return nil
}

// run does operations in order until budget bytes are copied or the first one cannot go on.
func (e *memoryEnd) run(budget uint64) {
	for len(e.queue) > 0 && e.link.down == nil {
		k := e.queue[0]
		s := &e.slots[k]
		var err error
		for err == nil && s.block < len(s.op.Copies) {
			if budget == 0 {
				return
			}
			var n uint64
			n, err = e.step(s, budget)
			budget -= n
		}
		if err == nil && (s.op.Notify || s.op.Kind == path.Notify) && !e.notify(s) {
			return
		}
		e.finish(k, err)
	}
}

// step copies up to budget bytes of the current block. The peer's reference is resolved again each
// time: an export that is revoked in between is not touched any more, which is why a fence has
// nothing to wait for.
func (e *memoryEnd) step(s *memoryOp, budget uint64) (uint64, error) {
	c := &s.op.Copies[s.block]
	want := path.Write
	if s.op.Kind == path.Get {
		want = path.Read
	}
	remote, err := e.resolve(s, c, want)
	if err != nil {
		e.peer.stats.Rejected++
		return 0, err
	}
	local := c.Local.Bytes()
	n := min(c.Local.Len-s.off, budget)
	from, to := local[s.off:s.off+n], remote[s.off:s.off+n]
	if s.op.Kind == path.Get {
		from, to = to, from
	}
	e.copy(s, to, from)
	if s.off += n; s.off == c.Local.Len {
		s.block, s.off = s.block+1, 0
	}
	return n, nil
}

func (e *memoryEnd) notify(s *memoryOp) bool {
	p := e.peer
	last := len(p.freeNotes) - 1
	if last < 0 {
		return false
	}
	note := p.freeNotes[last]
	p.freeNotes = p.freeNotes[:last]
	msg := p.notes[note][:copy(p.notes[note][:], s.op.Msg)]
	p.report(memoryEvent{path.Event{Kind: path.EventNotify, Imm: s.op.Imm, Bytes: s.op.Bytes(), Msg: msg}, -1, note})
	p.stats.NotifyReceived++
	e.stats.NotifySent++
	return true
}

// finish takes an operation out of the queue and reports its end.
func (e *memoryEnd) finish(k int, err error) {
	i := slices.Index(e.queue, k)
	e.queue = slices.Delete(e.queue, i, i+1)
	op := &e.slots[k].op
	ev := path.Event{Kind: path.EventDone, Token: op.Token, Bytes: op.Bytes(), Err: err}
	if err != nil {
		ev.Bytes = 0
		e.stats.OpsFailed++
	} else {
		e.stats.OpsDone++
		switch op.Kind {
		case path.Put:
			ev.Proof = path.ProofMemory
			e.stats.BytesPut += ev.Bytes
		case path.Get:
			ev.Proof = path.ProofMemory
			e.stats.BytesGot += ev.Bytes
		}
	}
	e.report(memoryEvent{ev, k, -1})
}

// report queues an event for this end's owner and wakes it.
func (e *memoryEnd) report(ev memoryEvent) {
	if e.flawReport(&ev) {
		e.events = append(e.events, ev)
		e.wake(ev.Kind)
	}
}

func (e *memoryEnd) wake(k path.EventKind) {
	if e.armed && !e.closed && !e.flawWake(k) {
		e.armed = false
		e.stats.Wakeups++
		sys.Ring(e.fd)
	}
}

func (e *memoryEnd) Poll(events []path.Event) int {
	l := e.link
	l.mu.Lock()
	defer l.mu.Unlock()
	e.flawPoll()
	e.freeNotes = append(e.freeNotes, e.lent...)
	if len(e.lent) > 0 && len(e.peer.queue) > 0 {
		e.peer.wake(0) // it may be waiting for one of these notes
	}
	e.lent = e.lent[:0]
	if len(e.events) < len(events) {
		e.run(memoryStep)
	}
	n := 0
	for ; n < len(events) && n < len(e.events); n++ {
		ev := &e.events[n]
		events[n] = ev.Event
		if ev.slot >= 0 && !e.flawCredit(ev) {
			e.freeSlots = append(e.freeSlots, ev.slot)
		}
		if ev.note >= 0 {
			e.lent = append(e.lent, ev.note)
		}
	}
	e.events = append(e.events[:0], e.events[n:]...)
	return n
}

func (e *memoryEnd) Arm() bool {
	l := e.link
	l.mu.Lock()
	defer l.mu.Unlock()
	e.run(memoryInline)
	if len(e.events) > 0 || len(e.lent) > 0 && len(e.peer.queue) > 0 {
		return true
	}
	if len(e.queue) > 0 {
		s := &e.slots[e.queue[0]]
		if s.block < len(s.op.Copies) {
			return true // otherwise it waits for a note of the peer, which will wake it
		}
	}
	e.armed = true
	if !e.closed && e.link.flaw != alwaysReadable {
		sys.Unring(e.fd)
	}
	return false
}

func (e *memoryEnd) FD() int { return e.fd }

func (e *memoryEnd) Cancel(token uint64) bool {
	l := e.link
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range e.queue {
		if e.slots[k].op.Token == token {
			e.flawCancel(&e.slots[k])
			e.finish(k, path.ErrCanceled)
			return true
		}
	}
	for i := range e.events {
		if e.events[i].Kind == path.EventDone && e.events[i].Token == token {
			return true // too late, but its EventDone was not polled yet
		}
	}
	return false
}

func (e *memoryEnd) Reaches(path.Desc) error { return nil }

func (e *memoryEnd) Stats() path.Stats {
	e.link.mu.Lock()
	defer e.link.mu.Unlock()
	return e.stats
}

func (e *memoryEnd) Explain() []string { return []string{"copies under a lock, for tests"} }

func (e *memoryEnd) Close() error {
	l := e.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down == nil {
		for i, end := range [2]*memoryEnd{e, e.peer} {
			reason := fmt.Errorf("memory path closed by this side: %w", path.ErrDown)
			if i == 1 {
				reason = fmt.Errorf("memory path closed by the peer: %w", path.ErrDown)
			}
			for len(end.queue) > 0 {
				end.flawCancel(&end.slots[end.queue[0]])
				end.finish(end.queue[0], reason)
			}
			end.report(memoryEvent{path.Event{Kind: path.EventDown, Err: reason}, -1, -1})
		}
		l.down = path.ErrDown
	}
	if e.closed {
		return nil
	}
	e.closed = true
	e.armed = false
	if e.link.flaw == leaksFD {
		return nil
	}
	return sys.Close(e.fd)
}
