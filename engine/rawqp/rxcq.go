package rawqp

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/rdmadev"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/flow"
)

const (
	// pollAtOnce is the number of completions that are taken in one call of the library.
	pollAtOnce = 64
	// dealAtOnce is the number of frames that one TryRecv brings to other queues at most.
	dealAtOnce = 256
	// parseAt is how much of a frame of several segments rules may look at: all headers, and all
	// that flex words reach.
	parseAt = 512
)

// rxCQ is the completion queue of all receive queues of a port, so that frames keep the order in
// which they came whosever memory they lie in. Its lock is the device's: its holder takes
// completions for all queues, and brings other queues their frames (RxFront.Bring).
type rxCQ struct {
	port *Port

	mu       sync.Mutex
	closed   bool
	events   *ibv.Channel
	cq       *ibv.CQ
	clock    clock
	wc       []ibv.WC // completions: those from next to n-1 are still to be looked at
	at       []uint64 // their times
	next, n  int
	now      int64 // when they were taken
	byQPN    map[uint32]*rxQueue
	last     *rxQueue // whose memory the last frame was received into
	inbox    *rxQueue // whose inbox is locked
	packets  *burst.Burst
	direct   *rxQueue // whose frames go to the burst of deal
	to       *burst.Burst
	steer    *engine.Steerer
	classify bool
	scratch  []byte
	layout   rdmadev.Layout

	receives int // of all queues, that may be posted; the lock of the port's set guards it
}

// newRxCQ makes it; times says whether the device is to note when frames came.
func newRxCQ(p *Port, times bool) (_ *rxCQ, err error) {
	c := &rxCQ{port: p, wc: make([]ibv.WC, pollAtOnce), at: make([]uint64, pollAtOnce), byQPN: map[uint32]*rxQueue{},
		scratch: make([]byte, max(p.longest(), parseAt))}
	if c.events, err = p.dev.CreateChannel(); err != nil {
		return nil, unavailable(err)
	}
	spec := ibv.CQSpec{Entries: min(p.o.Receives, p.dev.Attr.MaxCQE), Channel: c.events}
	if times {
		err = c.timed(spec)
	} else {
		c.cq, err = p.dev.CreateCQ(spec)
	}
	if err != nil {
		return nil, errors.Join(unavailable(err), c.events.Close())
	}
	c.steer = engine.NewSteerer(p.table, p.spec.Isolated, &p.counts)
	return c, nil
}

// timed makes a completion queue that notes times: of the wall clock, or else of the device's.
func (c *rxCQ) timed(spec ibv.CQSpec) (err error) {
	p := c.port
	spec.Times = ibv.TimesWall
	if c.cq, err = p.dev.CreateCQ(spec); err == nil || !errors.Is(err, ibv.ErrUnsupported) {
		c.clock.kind = ibv.TimesWall
		return err
	}
	if p.dev.Attr.TimestampMask == 0 || p.dev.Attr.ClockKHz == 0 {
		return fmt.Errorf("the device does not report the frequency of its clock: %w", engine.ErrUnsupported)
	}
	spec.Times = ibv.TimesDevice
	c.clock = clock{kind: ibv.TimesDevice, read: p.dev.Clock, mask: p.dev.Attr.TimestampMask, khz: p.dev.Attr.ClockKHz}
	if err := c.clock.compare(); err != nil {
		return err
	}
	c.cq, err = p.dev.CreateCQ(spec)
	return err
}

// close ends it. No queue is left.
func (c *rxCQ) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.steer.Close()
	return errors.Join(c.cq.Close(), c.events.Close())
}

// forget takes a queue off it whose queue pair is gone. The caller holds mu, and the lock of the
// port's set.
func (c *rxCQ) forget(q *rxQueue) {
	delete(c.byQPN, q.qp.Num())
	if c.last == q {
		c.last = nil
	}
	c.receives -= q.Spec().Depth
}

// arm asks for an event, and reports whether there are completions already. The caller holds mu.
func (c *rxCQ) arm() (more bool) {
	for { // the owner of one queue takes events for all
		cq, ok, err := c.events.Next()
		if err != nil {
			return true
		}
		if !ok {
			break
		}
		cq.Ack()
	}
	if c.cq.Arm(false) != nil {
		return true
	}
	return c.next < c.n || c.poll(pollAtOnce) > 0
}

// poll takes completions, once all of the last ones were looked at.
func (c *rxCQ) poll(most int) int {
	var err error
	if c.clock.kind == ibv.TimesNone {
		c.n, err = c.cq.Poll(c.wc[:most])
	} else {
		c.n, err = c.cq.PollTimes(c.wc[:most], c.at)
	}
	if c.next = 0; c.n > 0 {
		c.now = time.Now().UnixNano()
	}
	if err != nil {
		c.port.fail(fmt.Errorf("verbs: %s: %w: %w", c.port.name, engine.ErrDown, err))
	}
	return c.n
}

// wait returns when the goroutine that deals out frames now has done so: until then it may go by
// the rules from before.
func (c *rxCQ) wait() {
	c.mu.Lock()
	defer c.mu.Unlock()
}

// deal takes frames off the device: those of q go to b while there is room, all others to the inbox
// of their queue; with a nil b all do. It reports whether the device has no more. The caller holds
// mu.
func (c *rxCQ) deal(q *rxQueue, b *burst.Burst) (empty bool) {
	if c.closed {
		return true
	}
	c.classify = c.steer.Begin()
	live := c.port.rx.Live()
	if b != nil && q.Waiting() == 0 {
		c.direct, c.to = q, b
	}
	for others := 0; others < dealAtOnce && !empty; {
		room := pollAtOnce
		if b != nil {
			room = min(room, b.Room())
		}
		if room == 0 {
			break // what was taken is posted again all the same
		}
		if c.next == c.n {
			empty = c.poll(room) < room
		}
		for range min(room, c.n-c.next) {
			k := c.next
			c.next++
			if !c.take(&c.wc[k], c.at[k], live) {
				others++
			}
		}
	}
	c.brought()
	c.direct, c.to = nil, nil
	for _, x := range live {
		x.refill()
		if dry := x.recvs.Posted() == 0; dry != x.dry {
			if x.dry = dry; dry && x != q {
				x.Wake() // its owner may sleep until a frame comes, and none can
			}
		}
	}
	return empty
}

// packetsOf is the inbox of a queue, locked until brought; nil when the queue is closed.
func (c *rxCQ) packetsOf(q *rxQueue) *burst.Burst {
	if c.inbox != q {
		c.brought()
		if c.packets = q.Bring(); c.packets == nil {
			return nil
		}
		c.inbox = q
	}
	return c.packets
}

func (c *rxCQ) brought() {
	if c.inbox != nil {
		c.inbox.Brought()
		c.inbox = nil
	}
}

// take takes one completion, and reports whether it brought a frame that is in the burst of deal.
func (c *rxCQ) take(wc *ibv.WC, at uint64, live []*rxQueue) bool {
	src := c.last
	if src == nil || src.qp.Num() != wc.QPN() {
		if src = c.byQPN[wc.QPN()]; src == nil {
			return false // of a queue pair that is gone, with its memory
		}
		c.last = src
	}
	id, r := uint32(wc.ID()), src.recvs
	r.Came()
	if s := wc.Status(); s != ibv.Success {
		r.Free(id)
		src.broken = true
		if s == ibv.LocLenErr {
			src.Drop(engine.DropTooLong, 1)
		} else if s != ibv.WRFlushErr {
			src.Drop(engine.DropBadFrame, 1)
		}
		return false
	}
	if len(live) == 0 {
		r.Free(id)
		src.Drop(engine.DropClosed, 1)
		return false
	}
	length := wc.Len()
	to, rule := live[0], uint32(0)
	r.Lay(&c.layout, uint32(length))
	if c.classify {
		to, rule = c.steered(c.front(src, id, length), live)
	} else if src.parsed {
		packet.Parse(c.front(src, id, length), &c.steer.Layers) // what is malformed has fewer fields
	}
	if to == nil {
		r.Free(id)
		return false
	}
	if to.err != nil {
		r.Free(id)
		to.Drop(engine.DropDown, 1)
		return false
	}
	moved := 0
	if src.parsed {
		moved = c.cut(src, id)
	}
	dst := c.to
	if to != c.direct {
		dst = c.packetsOf(to)
	}
	i := rdmadev.NoRoom
	if dst != nil {
		i = r.Deliver(dst, id, &c.layout)
	}
	if i == rdmadev.NoRoom && to == c.direct {
		c.direct = nil // those behind it wait behind it
		if dst = c.packetsOf(to); dst != nil {
			i = r.Deliver(dst, id, &c.layout)
		}
	}
	if i < 0 {
		why := engine.DropTooLong
		if i == rdmadev.NoRoom {
			r.Free(id)
			if why = engine.DropQueueFull; dst == nil {
				why = engine.DropClosed
			}
		}
		to.Drop(why, 1)
		return false
	}
	if src.remote {
		to.hides(src, length)
	}
	if moved > 0 {
		to.Copied(moved)
	}
	c.mark(wc, at, to, dst, i)
	if rule != 0 {
		dst.Builder().SetFlow(i, rule)
	}
	return dst == c.to
}

// mark notes on a packet what the device says of it, and when it came, where its queue asks for
// that.
func (c *rxCQ) mark(wc *ibv.WC, at uint64, to *rxQueue, b *burst.Burst, i int) {
	var flags burst.Flags
	if wc.Flags()&ibv.FlagCsumOK != 0 {
		flags |= burst.ChecksumGood
	}
	ns := int64(0)
	switch spec := to.Spec(); {
	case spec.HardwareTime && c.clock.kind != ibv.TimesNone:
		ns, flags = c.clock.ns(at), flags|burst.HasTime|burst.HardwareTime
	case spec.Timestamps || spec.HardwareTime:
		ns, flags = c.now, flags|burst.HasTime
	}
	b.Builder().SetReceived(i, wc.Len(), flags, ns)
}

// steered is the queue that gets a frame, nil for none, and the rule that says so. It counts.
func (c *rxCQ) steered(frame []byte, live []*rxQueue) (*rxQueue, uint32) {
	p := c.port
	d := c.steer.Classify(frame)
	c.steer.Count(d, len(frame))
	if d.Verdict == flow.Unmatched && p.spec.Isolated {
		// a rule that was changed meanwhile has brought it: the kernel does not get it any more
		p.counts.Drop(engine.DropNoRule, 1)
		return nil, 0
	}
	switch id, ok := c.steer.Queue(d); {
	case !ok:
		return nil, 0
	case id == engine.First:
		return live[0], 0
	default:
		for _, q := range live {
			if q.ID() == id {
				return q, d.ID
			}
		}
	}
	p.counts.Drop(engine.DropNoQueue, 1)
	return nil, 0
}

// front is a frame for the classifier: as it lies if it is in one piece, otherwise what rules look
// at of it, in scratch.
func (c *rxCQ) front(src *rxQueue, id uint32, length int) []byte {
	l := &c.layout
	if l.N == 1 {
		return src.recvs.Bytes(id, 0, l.Off[0], l.Off[0]+l.Len[0])
	}
	frame := c.scratch[:min(length, len(c.scratch))]
	to := frame[:min(len(frame), parseAt)]
	for i := 0; i < l.N && len(to) > 0; i++ {
		n := min(len(to), int(l.Len[i]))
		if from := src.recvs.Bytes(id, i, l.Off[i], l.Off[i]+uint32(n)); from != nil {
			copy(to, from)
		} else {
			clear(to[:n]) // the CPU does not reach it
		}
		to = to[n:]
	}
	return frame
}

// cut moves the bytes between a header and its payload where the card has cut the frame at another
// place than behind its headers, and returns how many. The layout is the frame's afterwards.
func (c *rxCQ) cut(src *rxQueue, id uint32) (moved int) {
	l, r := &c.layout, src.recvs
	have, total, skip := l.Len[0], l.Len[0], uint32(splitRoom)
	if l.N == 2 {
		total += l.Len[1]
	}
	slot := uint32(src.Spec().Pools[0].SlotSize())
	want := min(uint32(max(int(c.steer.Layers.Payload), minCut)), total, slot)
	switch {
	case want > have: // the end of a longer header lies in front of the payload
		moved = copy(r.Bytes(id, 0, have, want), r.Bytes(id, 1, skip, skip+want-have))
		skip += want - have
	case want < have:
		skip -= have - want
		moved = copy(r.Bytes(id, 1, skip, splitRoom), r.Bytes(id, 0, want, have))
	}
	l.Len[0], l.Len[1], l.Off[1], l.N = want, total-want, skip, 2
	if total == want {
		l.N = 1
	}
	return moved
}
