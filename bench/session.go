package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/path"
)

// How both sides wait.
const (
	Spin  = "spin"  // poll without pause: a core each
	Event = "event" // sleep until there is something to do
)

// brake lets the spinning side of a session rest while something else is measured, which would
// otherwise share its core.
type brake struct {
	halt    atomic.Bool
	resting atomic.Bool
	mu      sync.Mutex
	resumed chan struct{} // nil unless resting
}

// halted reports whether the session is over; it returns only when the session does not rest.
func (b *brake) halted() bool {
	if b.resting.Load() {
		b.mu.Lock()
		c := b.resumed
		b.mu.Unlock()
		if c != nil {
			<-c
		}
	}
	return b.halt.Load()
}

func (b *brake) rest() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.resumed == nil {
		b.resumed = make(chan struct{})
		b.resting.Store(true)
	}
}

func (b *brake) resume() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.resumed != nil {
		b.resting.Store(false)
		close(b.resumed)
		b.resumed = nil
	}
}

// shut ends the session.
func (b *brake) shut() {
	b.halt.Store(true)
	b.resume()
}

// session serves the queues of one measurement on the second process: the peer's puts and gets make
// progress in its polls.
type session struct {
	s       *server
	q       request
	queues  []*transfer.Queue
	opened  chan error
	ended   chan error
	brake   brake
	cancel  context.CancelFunc
	checked uint64 // by the echo
}

func queueName(i int) string { return fmt.Sprintf("q%d", i) }

func newSession(s *server, q *request) *session {
	x := &session{s: s, q: *q, opened: make(chan error, 1), ended: make(chan error, 1)}
	for i := range q.Queues {
		s.node.AcceptQueues(queueName(i))
	}
	ctx, cancel := context.WithCancel(s.ctx)
	x.cancel = cancel
	go x.run(ctx)
	return x
}

// run accepts the queues and serves them. Its goroutine is the queues' owner, except in event mode
// with several.
func (x *session) run(ctx context.Context) {
	for i := range x.q.Queues {
		q, err := x.s.node.AcceptQueue(ctx, queueName(i))
		if err != nil {
			x.opened <- err
			x.ended <- nil
			return
		}
		x.queues = append(x.queues, q)
	}
	x.opened <- nil
	if x.q.Pin {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := sys.PinThread(1); err != nil {
			x.ended <- err
			return
		}
		defer sys.UnpinThread()
	}
	var err error
	switch {
	case x.q.Echo:
		err = x.echo(ctx)
	case x.q.Mode == Spin:
		x.spin()
	default:
		x.sleep(ctx)
	}
	for _, q := range x.queues {
		err = errors.Join(err, q.Close())
	}
	x.ended <- err
}

func (x *session) ready() error {
	if x == nil {
		return errors.New("bench: no session")
	}
	err := <-x.opened
	x.opened <- err
	return err
}

// stop ends the session and returns what its echo checked.
func (x *session) stop() (uint64, error) {
	if x == nil {
		return 0, errors.New("bench: no session")
	}
	x.brake.shut()
	x.cancel()
	err := <-x.ended
	return x.checked, err
}

func (x *session) syscalls() uint64 {
	if err := x.ready(); err != nil {
		return 0
	}
	n := uint64(0)
	for _, q := range x.queues {
		n += q.Path().Stats().Syscalls
	}
	return n
}

func (x *session) spin() {
	events := make([]path.Event, 64)
	for !x.brake.halted() {
		for _, q := range x.queues {
			q.Poll(events)
		}
	}
}

func (x *session) sleep(ctx context.Context) {
	var wg sync.WaitGroup
	for _, q := range x.queues {
		wg.Go(func() {
			events := make([]path.Event, 64)
			for {
				n, err := q.Wait(ctx, events, 0)
				if err != nil || n > 0 && events[n-1].Kind == path.EventDown {
					return
				}
			}
		})
	}
	wg.Wait()
}

// echo waits for puts of small messages into "ping", checks each byte, and puts the answer into the
// first peer's "pong".
func (x *session) echo(ctx context.Context) error {
	q := x.queues[0]
	ping := x.s.memory["ping"]
	if ping == nil {
		return errors.New(`bench: echo needs memory "ping"`)
	}
	remote, err := q.Peer().Lookup(ctx, "pong")
	if err != nil {
		return err
	}
	in := ping.region.All().Bytes()[:x.q.Size]
	local, err := Allocate("pong source", x.q.Size, x.q.Huge)
	if err != nil {
		return err
	}
	defer local.Close()
	p, err := newPinger(q, local, remote, x.q.Size)
	if err != nil {
		return err
	}
	events := make([]path.Event, 8)
	for want := uint64(1); ; want++ {
		got, err := p.hear(ctx, events, x.q.Mode, &x.brake)
		if err != nil || got == 0 {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if got != want || !messageIs(in, want) {
			return fmt.Errorf("%w: echo: message %d is wrong or out of order (number %d)", paired.ErrFailed, want, got)
		}
		x.checked += uint64(len(in))
		if err := p.say(want); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}
