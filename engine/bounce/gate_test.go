package bounce_test

import (
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/gpu/host"
)

// gate is a runtime whose copies wait, as long as it is shut, and are only done when it opens: a
// queue that gives memory back too soon has other bytes copied.
type gate struct {
	driver.Runtime
	mu      sync.Mutex
	opened  *sync.Cond
	shut    bool
	pending []func() error
}

// newGate is a card behind an open gate.
func newGate(t testing.TB) (*card, *gate) {
	t.Helper()
	drv, err := host.Driver(host.Options{})
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{Runtime: drv}
	g.opened = sync.NewCond(&g.mu)
	rt, err := gpu.New(g)
	if err != nil {
		t.Fatal(err)
	}
	return cardOf(t, rt, false), g
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = true
}

// open does the work that waits.
func (g *gate) open(t testing.TB) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = false
	for _, f := range g.pending {
		if err := f(); err != nil {
			t.Error(err)
		}
	}
	g.pending = nil
	g.opened.Broadcast()
}

// waiting is how much work waits.
func (g *gate) waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.pending)
}

// do does f, or lets it wait.
func (g *gate) do(s *gateStream, f func() error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.shut {
		s.work = 0
		return f()
	}
	s.work++
	g.pending = append(g.pending, f)
	return nil
}

func (g *gate) Devices() []driver.Device {
	return []driver.Device{&gateDevice{g.Runtime.Devices()[0], g}}
}

type gateDevice struct {
	driver.Device
	g *gate
}

func (d *gateDevice) Open() (driver.Context, error) {
	c, err := d.Device.Open()
	return &gateContext{c, d.g}, err
}

type gateContext struct {
	driver.Context
	g *gate
}

func (c *gateContext) Adopt(b []byte) (driver.Memory, error) {
	return c.Context.(driver.Adopter).Adopt(b)
}

func (c *gateContext) NewStream(o driver.StreamSpec) (driver.Stream, error) {
	s, err := c.Context.NewStream(o)
	return &gateStream{Stream: s, g: c.g}, err
}

func (c *gateContext) NewEvent(timing bool) (driver.Event, error) {
	e, err := c.Context.NewEvent(timing)
	return &gateEvent{Event: e, g: c.g}, err
}

type gateStream struct {
	driver.Stream
	g    *gate
	work int // of it that waits, under the gate's lock
}

func (s *gateStream) Copy(dst driver.Memory, dstOff uint64, src driver.Memory, srcOff, n uint64) error {
	return s.g.do(s, func() error { return s.Stream.Copy(dst, dstOff, src, srcOff, n) })
}

func (s *gateStream) Record(e driver.Event) error {
	x := e.(*gateEvent)
	x.set(true)
	return s.g.do(s, func() error {
		x.waits = false // under the gate's lock
		return s.Stream.Record(x.Event)
	})
}

func (s *gateStream) Wait() error {
	s.g.mu.Lock()
	for s.work > 0 && s.g.shut {
		s.g.opened.Wait()
	}
	s.g.mu.Unlock()
	return s.Stream.Wait()
}

type gateEvent struct {
	driver.Event
	g     *gate
	waits bool // its record does
}

func (e *gateEvent) set(waits bool) {
	e.g.mu.Lock()
	defer e.g.mu.Unlock()
	e.waits = waits
}

func (e *gateEvent) Query() (bool, error) {
	e.g.mu.Lock()
	waits := e.waits
	e.g.mu.Unlock()
	if waits {
		return false, nil
	}
	return e.Event.Query()
}

func (e *gateEvent) Wait() error {
	e.g.mu.Lock()
	for e.waits {
		e.g.opened.Wait()
	}
	e.g.mu.Unlock()
	return e.Event.Wait()
}

func (e *gateEvent) Elapsed(since driver.Event) (time.Duration, error) {
	return e.Event.Elapsed(since.(*gateEvent).Event)
}
