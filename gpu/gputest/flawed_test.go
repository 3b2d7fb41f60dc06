package gputest

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/gpu/driver"
)

// flaw is a mistake that a runtime makes.
type flaw uint8

const (
	sound flaw = iota
	changesInfo
	misaligns
	hidesBytes
	copiesShort
	copiesBeside
	fillsShort
	fillsOtherWidth
	swapsWork
	dropsWork
	ignoresEvents
	happensEarly
	waitsNot
	eventWaitsNot
	readsAtOnce
	writesAtOnce
	setsNothing
	launchesNot
	launchesTwice
	timesBackwards
	takesAnyProgram
	plainOutOfMemory
	losesMemory
	workNotLost
	leaksGoroutine
	leaksDescriptor
	allocates
	mixesUnderLoad
	copiesPeerNot
	adoptsCopy
	fitsNothing
)

var (
	garbage  atomic.Pointer[[64]byte]
	leftMu   sync.Mutex
	leftOver []func() // ends what flaws have left
)

func left(end func()) {
	leftMu.Lock()
	defer leftMu.Unlock()
	leftOver = append(leftOver, end)
}

func endLeft() {
	leftMu.Lock()
	defer leftMu.Unlock()
	for _, f := range leftOver {
		f()
	}
	leftOver = nil
}

// The flawed runtime is a sound one with something in between.
type flawedRuntime struct {
	driver.Runtime
	flaw flaw
}

func (r *flawedRuntime) Devices() []driver.Device {
	var out []driver.Device
	for _, d := range r.Runtime.Devices() {
		out = append(out, &flawedDevice{Device: d, flaw: r.flaw})
	}
	return out
}

type flawedDevice struct {
	driver.Device
	flaw flaw
}

func (d *flawedDevice) Info() driver.Info {
	f := d.Device.Info()
	if d.flaw == changesInfo {
		f.MaxAlloc = f.Memory + 1
	}
	return f
}

func (d *flawedDevice) Open() (driver.Context, error) {
	c, err := d.Device.Open()
	if err != nil {
		return nil, err
	}
	return &flawedContext{Context: c, flaw: d.flaw}, nil
}

type flawedContext struct {
	driver.Context
	flaw flaw
}

type flawedMemory struct {
	driver.Memory
	c *flawedContext
}

func (m *flawedMemory) Addr() uint64 {
	if a := m.Memory.Addr(); a != 0 && m.c.flaw == misaligns {
		return a + 8
	}
	return m.Memory.Addr()
}

func (m *flawedMemory) Bytes() []byte {
	if m.c.flaw == hidesBytes {
		return nil
	}
	return m.Memory.Bytes()
}

func (m *flawedMemory) Close() error {
	if m.c.flaw == losesMemory {
		return nil
	}
	return m.Memory.Close()
}

func (c *flawedContext) Alloc(o driver.MemorySpec) (driver.Memory, error) {
	m, err := c.Context.Alloc(o)
	if err != nil {
		if c.flaw == plainOutOfMemory {
			return nil, errors.New("it did not work")
		}
		return nil, err
	}
	return &flawedMemory{m, c}, nil
}

func (c *flawedContext) Adopt(b []byte) (driver.Memory, error) {
	if c.flaw == adoptsCopy {
		b = append([]byte(nil), b...)
	}
	m, err := c.Context.(driver.Adopter).Adopt(b)
	if err != nil {
		return nil, err
	}
	return &flawedMemory{m, c}, nil
}

func (c *flawedContext) NewStream(o driver.StreamSpec) (driver.Stream, error) {
	s, err := c.Context.NewStream(o)
	if err != nil {
		return nil, err
	}
	return &flawedStream{Stream: s, c: c}, nil
}

func (c *flawedContext) NewEvent(timing bool) (driver.Event, error) {
	e, err := c.Context.NewEvent(timing)
	if err != nil {
		return nil, err
	}
	return &flawedEvent{Event: e, c: c}, nil
}

type flawedEvent struct {
	driver.Event
	c *flawedContext
}

func (e *flawedEvent) Query() (bool, error) {
	if e.c.flaw == happensEarly {
		return true, nil
	}
	return e.Event.Query()
}

func (e *flawedEvent) Wait() error {
	if e.c.flaw == eventWaitsNot {
		return nil
	}
	return e.Event.Wait()
}

func (e *flawedEvent) Elapsed(since driver.Event) (time.Duration, error) {
	d, err := e.Event.Elapsed(since.(*flawedEvent).Event)
	if e.c.flaw == timesBackwards {
		d = -d - 1
	}
	return d, err
}

type flawedStream struct {
	driver.Stream
	c     *flawedContext
	n     int
	later func() error // of swapsWork

	ignored bool // an event, by ignoresEvents
}

func raw(m driver.Memory) driver.Memory { return m.(*flawedMemory).Memory }

// do is one piece of work, in the order of the stream or not.
func (s *flawedStream) do(f func() error) error {
	s.n++
	switch {
	case s.c.flaw == dropsWork && s.n%50 == 0:
		return nil
	case s.c.flaw == swapsWork && s.later != nil:
		g := s.later
		s.later = nil
		return errors.Join(f(), g())
	case s.c.flaw == swapsWork && s.n%20 == 0:
		s.later = f
		return nil
	}
	return f()
}

func (s *flawedStream) flush() {
	if s.later != nil {
		s.later()
		s.later = nil
	}
}

func (s *flawedStream) Copy(dst driver.Memory, dstOff uint64, src driver.Memory, srcOff, n uint64) error {
	switch s.c.flaw {
	case copiesShort:
		if n%2 == 1 && n > 100 {
			n--
		}
	case copiesBeside:
		if n == 256 {
			n++
		}
	case allocates:
		garbage.Store(new([64]byte))
	}
	err := s.do(func() error { return s.Stream.Copy(raw(dst), dstOff, raw(src), srcOff, n) })
	if s.ignored { // so that it has certainly not waited
		err = errors.Join(err, s.Stream.Wait())
	}
	return err
}

func (s *flawedStream) CopyPeer(dst driver.Memory, dstOff uint64, src driver.Memory, srcOff, n uint64) error {
	if s.c.flaw == copiesPeerNot {
		return nil
	}
	return s.Stream.(driver.PeerCopier).CopyPeer(raw(dst), dstOff, raw(src), srcOff, n)
}

func (s *flawedStream) Fill(dst driver.Memory, off, n uint64, pattern uint32, width int) error {
	switch s.c.flaw {
	case fillsShort:
		if n > 5000 {
			n -= uint64(width)
		}
	case fillsOtherWidth:
		if width == 4 {
			width = 2
		}
	case mixesUnderLoad:
		if off%7 == 3 && n > 0 {
			pattern++
		}
	}
	return s.do(func() error { return s.Stream.Fill(raw(dst), off, n, pattern, width) })
}

func (s *flawedStream) Write(dst driver.Memory, off uint64, src []byte) error {
	s.flush()
	if s.c.flaw == writesAtOnce {
		copy(raw(dst).Bytes()[off:], src)
		return nil
	}
	return s.Stream.Write(raw(dst), off, src)
}

func (s *flawedStream) Read(dst []byte, src driver.Memory, off uint64) error {
	s.flush()
	if s.c.flaw == readsAtOnce {
		copy(dst, raw(src).Bytes()[off:])
		return nil
	}
	return s.Stream.Read(dst, raw(src), off)
}

func (s *flawedStream) Launch(c driver.Call, g driver.Grid) error {
	switch s.c.flaw {
	case launchesNot:
		if g.Items() > 1 { // not the kernel that holds a stream
			return nil
		}
	case launchesTwice:
		if err := s.Stream.Launch(c.(*flawedCall).Call, g); err != nil {
			return err
		}
	}
	return s.Stream.Launch(c.(*flawedCall).Call, g)
}

func (s *flawedStream) Record(e driver.Event) error {
	s.flush()
	return s.Stream.Record(e.(*flawedEvent).Event)
}

func (s *flawedStream) WaitEvent(e driver.Event) error {
	s.flush()
	if s.c.flaw == ignoresEvents {
		s.ignored = true
		return nil
	}
	return s.Stream.WaitEvent(e.(*flawedEvent).Event)
}

func (s *flawedStream) Query() (bool, error) {
	s.flush()
	done, err := s.Stream.Query()
	if s.c.flaw == workNotLost {
		err = nil
	}
	return done, err
}

func (s *flawedStream) Wait() error {
	s.flush()
	switch s.c.flaw {
	case waitsNot:
		return nil
	case workNotLost:
		s.Stream.Wait()
		return nil
	}
	return s.Stream.Wait()
}

func (s *flawedStream) Close() error {
	switch s.c.flaw {
	case leaksGoroutine:
		stop := make(chan struct{})
		go func() { <-stop }()
		left(func() { close(stop) })
	case leaksDescriptor:
		if f, err := os.Open(os.DevNull); err == nil {
			left(func() { f.Close() })
		}
	}
	return s.Stream.Close()
}

func (c *flawedContext) Load(p *driver.Program) (driver.Module, error) {
	if c.flaw == takesAnyProgram && p.Go == nil {
		q := *p
		q.Go = map[string]driver.GoFunc{p.Kernels[0].Name: func(driver.Grid, []driver.GoArg) {}}
		p = &q
	}
	m, err := c.Context.Load(p)
	if err != nil {
		return nil, err
	}
	return &flawedModule{m, c}, nil
}

type flawedModule struct {
	driver.Module
	c *flawedContext
}

func (m *flawedModule) Kernel(i int) (driver.Kernel, error) {
	k, err := m.Module.Kernel(i)
	if err != nil {
		return nil, err
	}
	return &flawedKernel{k, m.c}, nil
}

type flawedKernel struct {
	driver.Kernel
	c *flawedContext
}

func (k *flawedKernel) Occupancy(group uint32) (uint32, error) {
	if k.c.flaw == fitsNothing {
		return 0, nil
	}
	return k.Kernel.(driver.Occupancy).Occupancy(group)
}

func unwrap(a driver.Arg) driver.Arg {
	if a.Mem != nil {
		a.Mem = raw(a.Mem)
	}
	return a
}

func (k *flawedKernel) Prepare(args []driver.Arg) (driver.Call, error) {
	list := make([]driver.Arg, len(args))
	for i, a := range args {
		list[i] = unwrap(a)
	}
	c, err := k.Kernel.Prepare(list)
	if err != nil {
		return nil, err
	}
	return &flawedCall{c, k.c}, nil
}

type flawedCall struct {
	driver.Call
	c *flawedContext
}

func (c *flawedCall) Set(i int, a driver.Arg) error {
	if c.c.flaw == setsNothing {
		return nil
	}
	return c.Call.Set(i, unwrap(a))
}
