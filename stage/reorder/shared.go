package reorder

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet/burst"
)

// Shared is a plan whose packets come by several queues. The stage of each queue has it
// (NewShared), and all batches leave by the first of these stages. When that one ends, the batches
// that are open leave, and packets that the others bring are dropped (closed).
//
// Stages of one goroutine each use it at a time, under its lock.
type Shared struct {
	number uint64 // the order in which the locks of several are taken

	mu    sync.Mutex
	c     *collector
	home  *Stage // by which batches leave; nil before there is a stage
	ready []*open
	state state

	users   atomic.Pointer[[]*Stage] // that have it; mu is held to change it
	waiting atomic.Int32             // len(ready)
}

// state is what a Shared does with packets and batches.
type state uint8

const (
	taking state = iota
	ended        // home has ended: it takes no packets, and batches that are under way leave
	closed       // home is closed, or all stages are: nothing leaves
)

var shares atomic.Uint64

// Share makes a Shared of a plan. It is closed when the last stage that has it is.
func Share(p Plan) (*Shared, error) {
	s := &Shared{number: shares.Add(1)}
	s.users.Store(new([]*Stage))
	c, err := newCollector(p, func(x *open) {
		if s.state == closed {
			s.c.fell(x, engine.DropClosed)
			return
		}
		s.ready = append(s.ready, x)
		s.waiting.Store(int32(len(s.ready)))
	}, s.wake)
	s.c = c
	return s, err
}

// Closed reports whether no stage can have it any more.
func (s *Shared) Closed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state != taking
}

// join gives it to a stage. It is false when it is closed.
func (s *Shared) join(x *Stage) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != taking {
		return false
	}
	users := append(slices.Clone(*s.users.Load()), x)
	if s.users.Store(&users); s.home == nil {
		s.home = x
	}
	return true
}

// wake wakes the owners of its stages.
func (s *Shared) wake() {
	for _, x := range *s.users.Load() {
		x.wake()
	}
}

// end says that the stage brings nothing more: what is open leaves where no other stage
// brings anything, or where x is the one by which it leaves.
func (s *Shared) end(x *Stage) {
	if s.home == x || len(*s.users.Load()) == 1 {
		s.c.end()
	}
	if s.home == x {
		s.state = max(s.state, ended)
	}
}

// leave takes it from a stage, which has ended.
func (s *Shared) leave(x *Stage) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.wake() // the drain may have made batches
	if s.home == x {
		s.state = closed
		for _, o := range s.ready {
			s.c.fell(o, engine.DropClosed)
		}
		s.ready = nil
		s.waiting.Store(0)
	}
	if s.c.dev != nil {
		s.c.dev.drain() // also of what x brought: its queue is closed next
	}
	users := slices.DeleteFunc(slices.Clone(*s.users.Load()), func(o *Stage) bool { return o == x })
	if s.users.Store(&users); len(users) == 0 {
		s.state = closed
		err = s.c.shut()
	}
	return err
}

// give moves to b batches that have left, as many as there is room for.
func (s *Shared) give(b *burst.Burst) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, x := range s.ready {
		h := x.slot.Handle()
		i := b.Builder().Add(s.c.src, burst.Segment{Handle: h, Off: s.c.plan.Pool.Offset(h),
			Len: uint32(x.Place * x.PerBatch)})
		if i < 0 {
			break
		}
		b.Builder().SetFlow(i, s.c.plan.Flows[0])
		if x.First != 0 {
			b.Builder().SetReceived(i, 0, burst.HasTime, x.First)
		}
		s.c.recycle(x)
		n++
	}
	s.ready = s.ready[:copy(s.ready, s.ready[n:])]
	s.waiting.Store(int32(len(s.ready)))
}

// lock takes the locks of all plans of the stage, unlock gives them back and wakes the owners of
// other stages by which batches are to leave.
func (s *Stage) lock() {
	for _, p := range s.plans {
		p.mu.Lock()
	}
}

func (s *Stage) unlock() {
	for _, p := range s.plans {
		if p.c.dev != nil {
			p.c.dev.flush()
		}
		p.c.publish()
		other := p.home != s && len(p.ready) > 0
		p.mu.Unlock()
		if other {
			p.home.wake()
		}
	}
}

func (s *Stage) wake() {
	if w := s.waker.Load(); w != nil {
		w.Wake()
	}
}

// inOrder sorts plans by their numbers, so that stages that share several take their locks in one
// order.
func inOrder(plans []*Shared) []*Shared {
	slices.SortFunc(plans, func(a, b *Shared) int { return int(a.number) - int(b.number) })
	return plans
}
