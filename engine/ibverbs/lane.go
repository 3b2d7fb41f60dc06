package ibverbs

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/flow"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/packet"
)

const (
	// pollAtOnce is the number of completions that are taken in one call of the library.
	pollAtOnce = 64
	// pumpOthers is the number of completions for other queues that one TryRecv deals out at most.
	pumpOthers = 256
	// lookAt is how much of a frame of several segments rules may look at: all headers, and all that flex words reach.
	lookAt = 512
)

// lane is where the receive queues of a port hear of frames: one completion queue for all, so that frames keep the order in which they came
// whosever memory they lie in. Its lock guards the receiving side of all queues.
type lane struct {
	port   *Port
	mu     sync.Mutex
	closed bool
	events *ibv.Channel
	cq     *ibv.CQ
	clock  clock
	wc     []ibv.WC
	at     []uint64
	byQPN  map[uint32]*rxQueue
	last   *rxQueue
	posted int // receives of all queues, that there may be

	cache    *flow.Cache
	counters *flow.Counters
	layers   packet.Layers
	scratch  []byte
	now      int64 // when the completions at hand were taken
}

// newLane makes it; times says whether the device is to note when frames came.
func newLane(p *Port, times bool) (_ *lane, err error) {
	l := &lane{port: p, wc: make([]ibv.WC, pollAtOnce), at: make([]uint64, pollAtOnce), byQPN: map[uint32]*rxQueue{}, scratch: make([]byte, max(p.longest(), lookAt))}
	if l.events, err = p.dev.CreateChannel(); err != nil {
		return nil, unavailable(err)
	}
	spec := ibv.CQSpec{Entries: min(p.o.Receives, p.attr.MaxCQE), Channel: l.events}
	if times {
		err = l.timed(spec)
	} else {
		l.cq, err = p.dev.CreateCQ(spec)
	}
	if err != nil {
		return nil, errors.Join(unavailable(err), l.events.Close())
	}
	if l.cache, err = flow.NewCache(flow.MinCacheSize << 4); err != nil {
		return nil, errors.Join(err, l.cq.Close(), l.events.Close())
	}
	l.counters = p.table.NewCounters()
	return l, nil
}

// timed makes a completion queue that notes times: of the wall clock, or else of the device's.
func (l *lane) timed(spec ibv.CQSpec) (err error) {
	p := l.port
	spec.Times = ibv.TimesWall
	if l.cq, err = p.dev.CreateCQ(spec); err == nil || !errors.Is(err, ibv.ErrUnsupported) {
		l.clock.kind = ibv.TimesWall
		return err
	}
	if p.attr.TimestampMask == 0 || p.attr.ClockKHz == 0 {
		return fmt.Errorf("the device does not say how fast its clock is: %w", engine.ErrUnsupported)
	}
	spec.Times = ibv.TimesDevice
	l.clock = clock{kind: ibv.TimesDevice, read: p.dev.Clock, mask: p.attr.TimestampMask, khz: p.attr.ClockKHz}
	if err := l.clock.compare(); err != nil {
		return err
	}
	l.cq, err = p.dev.CreateCQ(spec)
	return err
}

// close ends it. No queue is left.
func (l *lane) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.counters.Close()
	return errors.Join(l.cq.Close(), l.events.Close())
}

// leave returns when whoever is at the lane now has left it: until then it may go by the rules from before.
func (l *lane) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
}

// pump takes frames off the device: those of q go to b while there is room, all others to where they wait; with a nil b all do. It returns
// how many were added to b, and reports whether the device has no more. The caller holds mu.
func (l *lane) pump(q *rxQueue, b *burst.Burst) (n int, empty bool) {
	if l.closed {
		return 0, true
	}
	snap := l.port.table.Snapshot()
	live := *l.port.live.Load()
	for others := 0; others < pumpOthers; {
		room := pollAtOnce
		if b != nil {
			room = min(room, b.Room())
		}
		if room == 0 {
			break // what was taken is posted again all the same
		}
		k, err := l.poll(room)
		if err != nil {
			l.port.fail(fmt.Errorf("ibverbs: %s: %w: %w", l.port.name, engine.ErrDown, err))
		}
		for i := range k {
			if l.take(&l.wc[i], l.at[i], snap, live, q, b) {
				n++
			} else {
				others++
			}
		}
		if k < room {
			empty = true
			break
		}
	}
	for _, x := range live {
		if x.refill(); x.posted == 0 && x.waker != nil {
			x.retry.Arm(x.waker) // its owner sleeps, and nobody tells when there are slots again: no frame can come
		}
	}
	return n, empty
}

func (l *lane) poll(room int) (n int, err error) {
	if l.clock.kind == ibv.TimesNone {
		n, err = l.cq.Poll(l.wc[:room])
	} else {
		n, err = l.cq.PollTimes(l.wc[:room], l.at)
	}
	if n > 0 {
		l.now = time.Now().UnixNano()
	}
	return n, err
}

// take takes one completion, and reports whether it brought a frame for q that is in b.
func (l *lane) take(wc *ibv.WC, at uint64, snap *flow.Snapshot, live []*rxQueue, q *rxQueue, b *burst.Burst) bool {
	src := l.last
	if src == nil || src.qp.Num() != wc.QPN() {
		if src = l.byQPN[wc.QPN()]; src == nil {
			return false // of a queue pair that is gone, with its memory
		}
		l.last = src
	}
	id := uint32(wc.ID())
	src.posted--
	if s := wc.Status(); s != ibv.Success {
		src.free(id)
		src.broken = true
		if s == ibv.LocLenErr {
			src.drop(engine.DropTooLong, 1)
		} else if s != ibv.WRFlushErr {
			src.drop(engine.DropBadFrame, 1)
		}
		return false
	}
	if len(live) == 0 {
		src.free(id)
		src.drop(engine.DropClosed, 1)
		return false
	}
	length := wc.Len()
	to, rule := live[0], uint32(0)
	rules := snap.Classifier().Len() > 0 || l.port.spec.Isolated
	if rules || src.free42 {
		frame := src.look(id, length, l.scratch)
		packet.Parse(frame, &l.layers) // what is malformed has fewer fields
		if rules {
			to, rule = l.steer(snap, frame, live)
		}
	}
	if to == nil {
		src.free(id)
		return false
	}
	if to.err != nil {
		src.free(id)
		to.drop(engine.DropDown, 1)
		return false
	}
	var flags burst.Flags
	if wc.Flags()&ibv.FlagCsumOK != 0 {
		flags |= burst.ChecksumGood
	}
	ns := int64(0)
	switch {
	case to.spec.HardwareTime && l.clock.kind != ibv.TimesNone:
		ns, flags = l.clock.ns(at), flags|burst.HasTime|burst.HardwareTime
	case to.spec.Timestamps || to.spec.HardwareTime:
		ns, flags = l.now, flags|burst.HasTime
	}
	cut := -1
	if src.free42 {
		cut = int(l.layers.Payload)
	}
	dst := b
	if to != q || b == nil || to.pending.Len() > 0 {
		dst = to.pending
	}
	i := src.deliver(dst, id, length, cut)
	if i == noRoom && dst == b {
		dst = to.pending
		i = src.deliver(dst, id, length, cut)
	}
	switch {
	case i == noRoom:
		src.free(id)
		to.drop(engine.DropQueueFull, 1)
		return false
	case i == lost:
		to.drop(engine.DropTooLong, 1)
		return false
	}
	if src.remote {
		to.hides(src, length)
	}
	dst.SetReceived(i, length, flags, ns)
	if rule != 0 {
		dst.SetFlow(i, rule)
	}
	if dst != b {
		to.wakeLocked()
		return false
	}
	return true
}

// steer says which queue gets a frame, nil for none, after it has counted it.
func (l *lane) steer(snap *flow.Snapshot, frame []byte, live []*rxQueue) (*rxQueue, uint32) {
	p := l.port
	d := l.cache.Classify(snap.Classifier(), frame, &l.layers)
	l.counters.Count(snap, d, len(frame))
	switch d.Verdict {
	case flow.Deliver:
		for _, q := range live {
			if q.id == int(d.Queue) {
				return q, d.ID
			}
		}
		p.drops[engine.DropNoQueue].Add(1)
	case flow.Discard:
		p.drops[engine.DropRule].Add(1)
	default:
		if !p.spec.Isolated {
			return live[0], 0
		}
		p.drops[engine.DropNoRule].Add(1) // a rule that was changed meanwhile has brought it
	}
	return nil, 0
}
