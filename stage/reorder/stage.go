package reorder

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/packet/burst"
)

// Stage is the stage. See engine.Stage for the contract.
type Stage struct {
	from  engine.Receiver
	queue string
	plans []*Shared // by number
	// devices says that an accelerator has some of them.
	devices bool
	flows   map[uint32]*Shared

	in    *burst.Burst // what was received; empty between calls
	rest  *burst.Burst // packets that pass
	last  error        // what from said, as long as accelerators have packets without places
	ended error        // what it said, behind all that leaves
	wrong error        // of the stage, from then on
	next  int64        // the earliest deadline; 0: none

	timer *time.Timer
	waker atomic.Pointer[engine.Waker] // the owner's, for the timer and for other stages

	packets, bytes metrics.Counter
	drops          engine.DropCounters
	closed         bool
}

const (
	rounds  = 8   // looks at the queue before a call without packets returns
	inRoom  = 256 // packets of a look
	inParts = 2 * inRoom
)

// New makes a stage on from for the plans. Each flow is in one plan at most.
func New(from engine.Receiver, spec engine.StageSpec, plans ...Plan) (*Stage, error) {
	var shared []*Shared
	for _, p := range plans {
		x, err := Share(p)
		if err != nil {
			abandon(shared)
			return nil, err
		}
		shared = append(shared, x)
	}
	s, err := NewShared(from, spec, shared...)
	if err != nil {
		abandon(shared)
	}
	return s, err
}

// abandon closes plans that no stage has.
func abandon(plans []*Shared) {
	for _, p := range plans {
		p.c.shut()
	}
}

// NewShared makes a stage on from for plans that other stages may have as well. After an error it
// has none of them.
func NewShared(from engine.Receiver, spec engine.StageSpec, plans ...*Shared) (*Stage, error) {
	s := &Stage{from: from, queue: spec.Queue, flows: map[uint32]*Shared{}, in: burst.NewSegmented(inRoom, inParts),
		rest: burst.NewSegmented(inRoom, inParts)}
	if len(plans) == 0 {
		return nil, fmt.Errorf("%w: queue %q has none", ErrPlan, spec.Queue)
	}
	for _, p := range plans {
		for _, id := range p.c.plan.Flows {
			if other := s.flows[id]; other != nil {
				return nil, fmt.Errorf("%w %q: flow %d is in the plan %q too", ErrPlan, p.c.plan.Name, id,
					other.c.plan.Name)
			}
			s.flows[id] = p
		}
	}
	for i, p := range plans {
		if !p.join(s) {
			for _, p := range plans[:i] {
				p.leave(s)
			}
			return nil, fmt.Errorf("%w %q: the queue by which its batches leave was closed", ErrPlan, p.c.plan.Name)
		}
	}
	s.plans = inOrder(slices.Clone(plans))
	s.devices = slices.ContainsFunc(plans, func(p *Shared) bool { return p.c.dev != nil })
	return s, nil
}

// epoch is where deadlines count from, in nanoseconds of a clock that steps of the wall clock do
// not move. It is the same in all stages.
var epoch = time.Now()

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
		s.collect()
		if s.give(b); b.Len() > had || s.waiting() || b.Room() == 0 {
			break
		}
		if s.last != nil {
			if s.any((*device).undecided) {
				break
			}
			s.lock()
			for _, p := range s.plans {
				p.end(s)
			}
			s.unlock()
			s.last, s.ended = nil, s.last
			continue
		}
		if s.wrong != nil || s.ended != nil {
			if s.busy() {
				break
			}
			if s.wrong != nil {
				return 0, s.wrong
			}
			err := s.ended
			s.ended = nil
			return 0, err
		}
		if s.any((*device).full) {
			break
		}
		n, err := s.from.TryRecv(s.in)
		now := s.now()
		if n > 0 {
			s.sort(now)
		}
		if s.last = err; s.wrong != nil {
			s.last = s.wrong
		}
		if s.last == nil {
			if s.expire(now); n == 0 && !s.waiting() {
				break
			}
		}
	}
	return b.Len() - had, nil
}

// any reports whether f holds for the accelerator of a plan.
func (s *Stage) any(f func(*device) bool) (yes bool) {
	if !s.devices {
		return false
	}
	s.lock()
	defer s.unlock()
	return slices.ContainsFunc(s.plans, func(p *Shared) bool { return p.c.dev != nil && f(p.c.dev) })
}

// busy reports whether batches are under way that leave by this stage.
func (s *Stage) busy() bool {
	if !s.devices {
		return false
	}
	s.lock()
	defer s.unlock()
	return slices.ContainsFunc(s.plans, func(p *Shared) bool { return p.c.dev != nil && p.home == s && p.c.dev.busy() })
}

// collect takes in what accelerators have done.
func (s *Stage) collect() {
	if !s.devices {
		return
	}
	s.lock()
	defer s.unlock()
	for _, p := range s.plans {
		d := p.c.dev
		if d == nil {
			continue
		}
		if d.poll(p.c.now()); d.err != nil && s.wrong == nil {
			s.wrong, s.last = d.err, d.err
		}
	}
}

// now is the time, where a plan needs it.
func (s *Stage) now() int64 {
	for _, p := range s.plans {
		if now := p.c.now(); now != 0 {
			return now
		}
	}
	return 0
}

// sort places what was received, and puts aside what passes.
func (s *Stage) sort(now int64) {
	s.lock()
	defer s.unlock()
	flows := s.in.Flows()
	var p *Shared
	same := 0 // packets up to there have the same flow
	for i := 0; i < len(flows); i++ {
		if i == same {
			p = s.flows[flows[i]]
			for same < len(flows) && flows[same] == flows[i] {
				same++
			}
		}
		if p == nil {
			s.in.Take(s.rest, i) // there is room: rest is empty, and as large
			continue
		}
		c := p.c
		if p.state != taking {
			c.drops.Inc(engine.DropClosed)
			continue
		}
		if c.dev != nil {
			if c.dev.add(s.in, i, now) {
				continue
			}
			s.wrong = fmt.Errorf("reorder: queue %q: a packet is in memory that %s does not reach, and the plan %q "+
				"is for that: receive into memory of that device, or host memory: %w",
				s.queue, c.dev.ctx.Device(), c.plan.Name, engine.ErrUnsupported)
			s.drops.Add(engine.DropRefused, uint64(s.in.Builder().LivePart(i, s.in.Len())))
			break
		}
		if i += c.takeRun(s.in, i, same); i == same {
			i--
			continue
		}
		why, ok := c.take(s.in, i, now)
		if !ok {
			s.wrong = fmt.Errorf("reorder: queue %q: a packet is in memory of an accelerator, and the plan %q is for "+
				"the processor: receive into host_pinned memory, or use reorder_type: gpu where there is one: %w",
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
	s.lock()
	defer s.unlock()
	for _, p := range s.plans {
		if at := p.c.expire(now); at != 0 && (s.next == 0 || at < s.next) {
			s.next = at
		}
	}
}

func (s *Stage) waiting() bool {
	return s.rest.Len() > 0 || slices.ContainsFunc(s.plans, func(p *Shared) bool {
		return p.waiting.Load() > 0 && p.home == s
	})
}

// give moves to b what waits, as much as there is room for.
func (s *Stage) give(b *burst.Burst) {
	had := b.Len()
	for _, p := range s.plans {
		if p.waiting.Load() > 0 && p.home == s {
			p.give(b)
		}
	}
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
	s.waker.Store(w)
	over := s.last != nil || s.ended != nil || s.wrong != nil
	if s.waiting() || over && !s.devices {
		return true
	}
	if s.next != 0 {
		d := time.Duration(s.next - int64(time.Since(epoch)))
		if s.timer == nil {
			s.timer = time.AfterFunc(d, s.wake)
		} else {
			s.timer.Reset(d)
		}
	}
	if s.any((*device).wake) || over && !s.busy() {
		return true
	}
	if !over && s.from.Arm(w) && !s.any((*device).full) {
		w.Wake()
	}
	return false
}

// Stats implements engine.Stage. A batch is one packet.
func (s *Stage) Stats(out *engine.RxStats) {
	*out = engine.RxStats{Packets: s.packets.Load(), Bytes: s.bytes.Load()}
	s.drops.AddTo(&out.Drops)
	for _, p := range s.plans {
		if p.home == s {
			out.Copied += p.c.copied.Load()
			p.c.drops.AddTo(&out.Drops)
		}
	}
}

// Plans are the counts of each plan whose batches leave by this stage. Any goroutine may call it.
func (s *Stage) Plans() (out []Counts) {
	for _, p := range s.plans {
		if p.home == s {
			out = append(out, p.c.counts())
		}
	}
	return out
}

// Counts implements engine.StageCounter.
func (s *Stage) Counts() (out []engine.Count) {
	for _, n := range s.Plans() {
		for _, x := range []struct {
			name string
			n    uint64
		}{{"whole", n.Whole}, {"partial", n.Partial}, {"timed out", n.TimedOut}, {"lost", n.Lost},
			{"dropped", n.Dropped}, {"packets", n.Placed}, {"short packets", n.Short}, {"restarts", n.Restarts}} {
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
	s.drops.Add(engine.DropClosed, uint64(s.rest.Live()))
	s.rest.Release()
	var errs []error
	for _, p := range s.plans {
		errs = append(errs, p.leave(s))
	}
	s.wrong = engine.ErrClosed
	return errors.Join(errs...)
}
