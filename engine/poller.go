package engine

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/metrics"
)

// PollMode says what a Poller does when there is nothing to receive.
type PollMode uint8

// The modes.
const (
	Event    PollMode = iota // sleeps until a queue wakes it
	Adaptive                 // looks again for a while, then sleeps
	Busy                     // never sleeps, and keeps a processor for itself
)

func (m PollMode) String() string {
	switch m {
	case Event:
		return "event"
	case Adaptive:
		return "adaptive"
	case Busy:
		return "busy"
	}
	return fmt.Sprintf("mode %d", uint8(m))
}

// Unpinned is the CPU of a Poller that runs wherever the scheduler puts it.
const Unpinned = -1

// PollerOptions describe a Poller.
type PollerOptions struct {
	Name string // for messages; "" becomes "poller"
	// CPU is the processor to stay on, counted from 0 among those that the process may use;
	// Unpinned for any.
	CPU  int
	Mode PollMode
	// Spin is how long an Adaptive poller looks again before it sleeps, at most; 0 means 50
	// microseconds.
	Spin time.Duration
}

// Poller is a goroutine that receives on any number of Receivers, which are queues or the stages
// behind them, and hands bursts over to their consumers through rings. All its methods may be
// called from any goroutine.
type Poller struct {
	o     PollerOptions
	waker *Waker
	spin  spinner
	timer *time.Timer // nil until it is needed
	done  chan struct{}

	stopping atomic.Bool
	list     atomic.Pointer[[]*Polled]
	mu       sync.Mutex // held to change list

	iterations, empty, sleeps, asleep, bursts, packets, stalls metrics.Counter
}

// busyPollers is the number of pollers that keep a processor.
var busyPollers atomic.Int64

// NewPoller starts a poller without queues. A Busy one needs a processor of its own: it is refused
// with ErrUnavailable when the scheduler would have none left for all others.
func NewPoller(o PollerOptions) (*Poller, error) {
	if o.Name == "" {
		o.Name = "poller"
	}
	if o.Spin <= 0 {
		o.Spin = 50 * time.Microsecond
	}
	if o.Mode > Busy {
		return nil, fmt.Errorf("engine: poller %q: %v: expected event, adaptive or busy: %w", o.Name, o.Mode,
			ErrInvalid)
	}
	if n := runtime.NumCPU(); o.CPU < Unpinned || o.CPU >= n {
		return nil, fmt.Errorf("engine: poller %q: CPU %d: this process may use %d, counted from 0, or -1 for any: %w",
			o.Name, o.CPU, n, ErrInvalid)
	}
	if o.Mode == Busy {
		others, procs := busyPollers.Add(1)-1, runtime.GOMAXPROCS(0)
		if int(others)+2 > procs {
			busyPollers.Add(-1)
			return nil, fmt.Errorf("engine: poller %q: a busy poller keeps a processor of the Go scheduler for "+
				"itself, and %d of %d have busy pollers already: "+
				"none would be left for anything else; use the mode adaptive, or a larger GOMAXPROCS: %w", o.Name,
				others, procs, ErrUnavailable)
		}
	}
	p := &Poller{o: o, waker: NewWaker(), spin: newSpinner(o.Spin), done: make(chan struct{})}
	p.list.Store(new([]*Polled))
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		<-p.done
		return nil, fmt.Errorf("engine: poller %q: cannot stay on CPU %d: %w", o.Name, o.CPU, err)
	}
	return p, nil
}

// Name is the name given at creation.
func (p *Poller) Name() string { return p.o.Name }

// run is the goroutine.
func (p *Poller) run(started chan<- error) {
	defer close(p.done)
	if p.o.Mode == Busy {
		defer busyPollers.Add(-1)
	}
	if p.o.CPU != Unpinned {
		runtime.LockOSThread() // never unlocked: the pinned thread ends with the goroutine
		if err := sys.PinThread(p.o.CPU); err != nil {
			started <- err
			return
		}
		p.spin.keep = true
	}
	started <- nil
	for spinning, again, short := false, false, false; ; {
		p.iterations.Inc()
		got, deadline := false, time.Time{}
		for _, c := range *p.list.Load() {
			if c.poll(p.stopping.Load()) {
				got = true
			}
			if c.cur != nil && !c.deadline.IsZero() && (deadline.IsZero() || c.deadline.Before(deadline)) {
				deadline = c.deadline
			}
		}
		switch {
		case got:
			if spinning || short {
				p.spin.hit() // or looking again would have found it
			}
			spinning, again, short = false, false, false
			continue
		case p.stopping.Load() && len(*p.list.Load()) == 0:
			return
		}
		p.empty.Inc()
		short = false
		switch p.o.Mode {
		case Busy:
			continue
		case Adaptive:
			if !spinning {
				p.spin.begin(math.MaxInt64)
			}
			if spinning = p.spin.again(); spinning {
				continue
			}
			p.spin.miss()
		}
		ready := false
		for _, c := range *p.list.Load() {
			if c.cur != nil && c.q.Arm(p.waker) {
				ready, c.stuck = true, true
			}
		}
		if ready {
			if again {
				runtime.Gosched() // it says that there is something, and gives nothing
			}
			again = true
			continue
		}
		again = false
		short = p.sleep(deadline) < p.o.Spin
	}
}

// sleep waits for a Wake, or the deadline if there is one, and returns how long.
func (p *Poller) sleep(deadline time.Time) time.Duration {
	start := time.Now()
	var at <-chan time.Time
	if !deadline.IsZero() {
		d := deadline.Sub(start)
		if p.timer == nil {
			p.timer = time.NewTimer(d)
		} else {
			p.timer.Reset(d)
		}
		defer p.timer.Stop()
		at = p.timer.C
	}
	select {
	case <-p.waker.C():
	case <-at:
	}
	p.sleeps.Inc()
	d := time.Since(start)
	p.asleep.Add(uint64(d))
	return d
}

// Add makes the poller the owner of q, and returns where to receive what comes on it. There is no
// limit to the number of Receivers. The error is ErrClosed, or ErrExists for one that this poller
// has.
func (p *Poller) Add(q Receiver, o PollOptions) (*Polled, error) {
	if q == nil {
		return nil, ErrNil
	}
	c, err := newPolled(p, q, o)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	list := *p.list.Load()
	switch {
	case p.stopping.Load():
		return nil, ErrClosed
	case slices.ContainsFunc(list, func(c *Polled) bool { return c.q == q }):
		return nil, fmt.Errorf("engine: poller %q serves this queue already: %w", p.o.Name, ErrExists)
	}
	list = append(slices.Clone(list), c)
	p.list.Store(&list)
	p.waker.Wake()
	return c, nil
}

// Remove gives q back to the caller, who owns it then and may close it. What was received by then
// is still delivered, and then the Polled ends with ErrClosed. One that the poller has not, or no
// more, is ErrNotFound.
func (p *Poller) Remove(q Receiver) error {
	for _, c := range *p.list.Load() {
		if c.q == q {
			c.leaving.Store(true)
			p.waker.Wake()
			<-c.detached
			return nil
		}
	}
	return ErrNotFound
}

// drop takes c off the list.
func (p *Poller) drop(c *Polled) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(*p.list.Load()), func(o *Polled) bool { return o == c })
	p.list.Store(&list)
}

// Close removes all queues and ends the goroutine, and waits for that. The queues are the caller's
// again. Bursts that were handed over stay where they are until they are received, or Polled.Close.
// Calling it again does nothing.
func (p *Poller) Close() {
	p.mu.Lock()
	p.stopping.Store(true)
	p.mu.Unlock()
	p.waker.Wake()
	<-p.done
}

// PollerStats are counts of a poller since it was started.
type PollerStats struct {
	Queues     int    // that it has now
	Iterations uint64 // rounds over all queues
	Empty      uint64 // of which found nothing
	Bursts     uint64 // handed over
	Packets    uint64 // in them
	// Stalls is how often a queue was left alone because all bursts for it were out: its consumer
	// is too slow. What is lost because of that is counted where it is lost, by the
	// queue.
	Stalls uint64
	Sleeps uint64
	Asleep time.Duration
}

// Stats fills s.
func (p *Poller) Stats(s *PollerStats) {
	*s = PollerStats{
		Queues: len(*p.list.Load()), Iterations: p.iterations.Load(), Empty: p.empty.Load(), Bursts: p.bursts.Load(),
		Packets: p.packets.Load(), Stalls: p.stalls.Load(), Sleeps: p.sleeps.Load(),
		Asleep: time.Duration(p.asleep.Load()),
	}
}
