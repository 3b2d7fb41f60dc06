package gpu

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/internal/invariants"
)

// EventOptions say what event is wanted.
type EventOptions struct {
	Name string // for messages
	// Timing says that Elapsed will be asked for; it needs CapElapsed. Events without it are
	// cheaper.
	Timing bool
}

// Event is a point in a stream: it happens when what was put in before it is done. It can be
// recorded again, and then means the later point.
type Event struct {
	object
	drv      driver.Event
	timing   bool
	recorded atomic.Bool
	waits    sync.WaitGroup
	at       atomic.Pointer[point] // only under -tags invariants
}

// NewEvent makes an event that was never recorded. The caller closes it.
func (c *Context) NewEvent(o EventOptions) (*Event, error) {
	if o.Timing {
		if err := c.Info().Capabilities.Check(CapElapsed); err != nil {
			return nil, fmt.Errorf("gpu: %s: event %q with timing: %w", c.dev, o.Name, err)
		}
	}
	if err := c.usable("make an event"); err != nil {
		return nil, err
	}
	drv, err := c.drv.NewEvent(o.Timing)
	if err != nil {
		return nil, fmt.Errorf("gpu: %s: event %q: %w", c.dev, o.Name, c.note(err))
	}
	e := &Event{drv: drv, timing: o.Timing}
	if err := e.init(c, "event", o.Name); err != nil {
		drv.Close()
		return nil, err
	}
	return e, nil
}

// Query reports whether the event has happened. One that was never recorded is an error that wraps
// ErrArgument.
func (e *Event) Query() (bool, error) {
	if err := e.ready("query it"); err != nil {
		return false, err
	}
	p := e.point()
	done, err := e.drv.Query()
	if err != nil {
		return false, e.failed("query", err)
	}
	if done {
		p.seen()
	}
	return done, nil
}

// Wait waits until the event has happened, as it is recorded now, or ctx ends; see Stream.Wait.
func (e *Event) Wait(ctx context.Context) error {
	if err := e.ready("wait for it"); err != nil {
		return err
	}
	p := e.point()
	if err := await(ctx, &e.waits, e.drv); err != nil {
		if err == ctx.Err() {
			return err
		}
		return e.failed("wait", err)
	}
	p.seen()
	return nil
}

// Elapsed is the time from since to this event as the device measured it; negative where this one
// was first. Both must have happened, and were made with Timing in the same context.
func (e *Event) Elapsed(since *Event) (time.Duration, error) {
	for _, x := range []*Event{e, since} {
		if x == nil || x.ctx != e.ctx || !x.timing {
			return 0, fmt.Errorf("gpu: %s: %s: elapsed time: %w: expected two events of one context, both with timing",
				e.ctx.dev, &e.object, ErrArgument)
		}
		done, err := x.Query()
		if err != nil {
			return 0, err
		}
		if !done {
			return 0, fmt.Errorf("gpu: %s: %s: elapsed time: %w: it has not happened yet: wait for it", e.ctx.dev,
				&x.object, ErrArgument)
		}
	}
	d, err := e.drv.Elapsed(since.drv)
	if err != nil {
		return 0, e.failed("elapsed time", err)
	}
	return d, nil
}

// Close ends the event. Streams that wait for it still do. It waits for a Wait that was broken off.
func (e *Event) Close() error {
	if !e.end() {
		return nil
	}
	e.waits.Wait()
	return e.ctx.ending(e.drv.Close())
}

func (e *Event) ready(what string) error {
	if err := e.usable(); err != nil {
		return err
	}
	if !e.recorded.Load() {
		return e.never(what)
	}
	return nil
}

func (e *Event) never(what string) error {
	return fmt.Errorf("gpu: %s: %s: %s: %w: it was never recorded", e.ctx.dev, &e.object, what, ErrArgument)
}

func (e *Event) failed(op string, err error) error {
	return e.ctx.note(fmt.Errorf("gpu: %s: %s: %s: %w", e.ctx.dev, &e.object, op, err))
}

// checkEvent is an error unless e can be used in the stream.
func (s *Stream) checkEvent(e *Event) error {
	if e == nil {
		return s.refuse("event", "none")
	}
	if e.ctx != s.ctx {
		return s.refuse("event", "%s is of another context", &e.object)
	}
	return e.usable()
}

// mark remembers where the event was recorded; point is that place.
func (e *Event) mark(p point) {
	e.at.Store(&p)
}

func (e *Event) point() point {
	if invariants.Enabled {
		if p := e.at.Load(); p != nil {
			return *p
		}
	}
	return point{}
}
