package reorder

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/metrics"
)

// Stage is the stage. See engine.Stage for the contract.
type Stage struct {
	from  engine.Receiver
	queue string
	plans []*collector
	flows map[uint32]*collector

	in    *burst.Burst // what was received; empty between calls
	rest  *burst.Burst // packets that pass
	ready []leaving    // batches that have left, in order
	ended error        // what from said behind all this
	wrong error        // of the stage, from then on
	next  int64        // the earliest deadline; 0: none
	began time.Time    // deadlines count from here

	timer *time.Timer
	waker atomic.Pointer[engine.Waker] // the timer's

	packets, bytes metrics.Counter
	drops          engine.DropCounters
	closed         bool
}

type leaving struct {
	c *collector
	x *open
}

const (
	rounds  = 8   // looks at the queue before a call without packets returns
	inRoom  = 256 // packets of a look
	inParts = 2 * inRoom
)

// New makes a stage on from for the plans. Each flow is in one plan at most.
func New(from engine.Receiver, spec engine.StageSpec, plans ...Plan) (*Stage, error) {
	s := &Stage{from: from, queue: spec.Queue, began: time.Now(), flows: map[uint32]*collector{}, in: burst.NewSegmented(inRoom, inParts), rest: burst.NewSegmented(inRoom, inParts)}
	if len(plans) == 0 {
		return nil, fmt.Errorf("%w: queue %q has none", ErrPlan, spec.Queue)
	}
	for _, p := range plans {
		var c *collector
		c, err := newCollector(p, func(x *open) { s.ready = append(s.ready, leaving{c, x}) })
		for _, id := range p.Flows {
			if err == nil && s.flows[id] != nil {
				c.cache.Close()
				err = fmt.Errorf("%w %q: flow %d is in the plan %q too", ErrPlan, p.Name, id, s.flows[id].plan.Name)
			}
			s.flows[id] = c
		}
		if err != nil {
			for _, c := range s.plans {
				c.cache.Close()
			}
			return nil, err
		}
		s.plans = append(s.plans, c)
	}
	return s, nil
}

// TryRecv implements engine.Receiver.
func (s *Stage) TryRecv(b *burst.Burst) (int, error) {
	if b == nil {
		return 0, engine.ErrNil
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	had := b.Len()
	for range rounds {
		if s.give(b); b.Len() > had || s.waiting() || b.Room() == 0 {
			break
		}
		if s.wrong != nil {
			return 0, s.wrong
		}
		if err := s.ended; err != nil {
			s.ended = nil
			return 0, err
		}
		n, err := s.from.TryRecv(s.in)
		now := s.now()
		if n > 0 {
			s.sort(now)
		}
		if err != nil || s.wrong != nil {
			s.ended = err
			s.all((*collector).leaveAll)
		} else if s.expire(now); n == 0 && !s.waiting() {
			break
		}
	}
	return b.Len() - had, nil
}

// now is the time, where a plan needs it.
func (s *Stage) now() int64 {
	for _, c := range s.plans {
		if c.plan.Timeout > 0 {
			return s.clock()
		}
	}
	return 0
}

// clock is the time of deadlines, in nanoseconds: steps of the wall clock do not move it.
func (s *Stage) clock() int64 { return int64(time.Since(s.began)) }

func (s *Stage) all(f func(*collector)) {
	for _, c := range s.plans {
		f(c)
	}
}

// sort places what was received, and puts aside what passes.
func (s *Stage) sort(now int64) {
	for i := range s.in.Len() {
		c := s.flows[s.in.Flow(i)]
		if c == nil {
			s.in.Take(s.rest, i) // there is room: rest is empty, and as large
			continue
		}
		why, ok := c.take(s.in, i, now)
		if !ok {
			s.wrong = fmt.Errorf("reorder: queue %q: a packet is in memory of an accelerator, and the plan %q is for the processor: receive into host_pinned memory, or use reorder_type: gpu where there is one: %w",
				s.queue, c.plan.Name, engine.ErrUnsupported)
			s.drops.Add(engine.DropRefused, uint64(s.in.Builder().LivePart(i, s.in.Len())))
			break
		}
		if why != engine.NumDrops {
			c.drops.Inc(why)
		}
	}
	s.in.Release()
}

// expire lets batches leave whose time has passed.
func (s *Stage) expire(now int64) {
	s.next = 0
	for _, c := range s.plans {
		if at := c.expire(now); at != 0 && (s.next == 0 || at < s.next) {
			s.next = at
		}
	}
}

func (s *Stage) waiting() bool { return len(s.ready) > 0 || s.rest.Len() > 0 }

// give moves to b what waits, as much as there is room for.
func (s *Stage) give(b *burst.Burst) {
	had := b.Len()
	n := 0
	for _, l := range s.ready {
		x := l.x
		h := x.slot.Handle()
		i := b.Builder().Add(l.c.src, burst.Segment{Handle: h, Off: l.c.plan.Pool.Offset(h), Len: uint32(x.Place * x.PerBatch)})
		if i < 0 {
			break
		}
		b.Builder().SetFlow(i, l.c.plan.Flows[0])
		if x.First != 0 {
			b.Builder().SetReceived(i, 0, burst.HasTime, x.First)
		}
		l.c.recycle(x)
		n++
	}
	s.ready = s.ready[:copy(s.ready, s.ready[n:])]
	if s.rest.Len() > 0 {
		s.rest.MoveTo(b)
	}
	for i := had; i < b.Len(); i++ {
		s.bytes.Add(uint64(b.PacketLen(i)))
	}
	s.packets.Add(uint64(b.Len() - had))
}

// Arm implements engine.Receiver.
func (s *Stage) Arm(w *engine.Waker) (ready bool) {
	if s.waiting() || s.ended != nil || s.wrong != nil {
		return true
	}
	if s.next != 0 {
		s.waker.Store(w)
		d := time.Duration(s.next - s.clock())
		if s.timer == nil {
			s.timer = time.AfterFunc(d, func() { s.waker.Load().Wake() })
		} else {
			s.timer.Reset(d)
		}
	}
	if s.from.Arm(w) {
		w.Wake()
	}
	return false
}

// Stats implements engine.Stage. A batch is one packet.
func (s *Stage) Stats(out *engine.RxStats) {
	*out = engine.RxStats{Packets: s.packets.Load(), Bytes: s.bytes.Load()}
	s.drops.AddTo(&out.Drops)
	for _, c := range s.plans {
		out.Copied += c.copied.Load()
		c.drops.AddTo(&out.Drops)
	}
}

// Plans are the counts of each plan. Any goroutine may call it.
func (s *Stage) Plans() (out []Counts) {
	for _, c := range s.plans {
		out = append(out, c.counts())
	}
	return out
}

// Counts implements engine.StageCounter.
func (s *Stage) Counts() (out []engine.Count) {
	for _, n := range s.Plans() {
		for _, x := range []struct {
			name string
			n    uint64
		}{{"whole", n.Whole}, {"partial", n.Partial}, {"timed out", n.TimedOut}, {"lost", n.Lost}, {"dropped", n.Dropped}, {"packets", n.Placed}, {"short packets", n.Short}, {"restarts", n.Restarts}} {
			out = append(out, engine.Count{Name: n.Plan + ": " + x.name, N: x.n})
		}
	}
	return out
}

// Close implements engine.Stage. What is open, and what waits, is dropped.
func (s *Stage) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
	for _, l := range s.ready {
		l.c.drop(l.x, engine.DropClosed)
	}
	s.ready = nil
	s.drops.Add(engine.DropClosed, uint64(s.rest.Live()))
	s.rest.Release()
	s.all((*collector).shut)
	s.wrong = engine.ErrClosed
	return nil
}
