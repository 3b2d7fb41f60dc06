package cuda

import "errors"

// Stream is a queue of work of a device, in order. Streams made here do not wait for the default
// stream (CU_STREAM_NON_BLOCKING). Any goroutine may use it; several at once get some order among
// them.
type Stream struct {
	c *Context
	h uintptr
}

// NewStream makes a stream. priority is one of the range of [Context.Priorities], and the driver
// takes the nearest for others. The caller closes it.
func (c *Context) NewStream(priority int) (*Stream, error) {
	const nonBlocking = 1
	h, err := in[uintptr](c, fnStreamCreate, nonBlocking, uintptr(priority))
	if err != nil {
		return nil, err
	}
	return &Stream{c, h}, nil
}

// Context is the stream's context.
func (s *Stream) Context() *Context { return s.c }

// Close ends the stream. What is queued is done nevertheless.
func (s *Stream) Close() error { return s.c.call(fnStreamDestroy, s.h) }

// Synchronize waits until all that is queued is done, and returns its error. It holds a thread
// meanwhile, which may spin.
func (s *Stream) Synchronize() error { return s.c.call(fnStreamSynchronize, s.h) }

// Done reports whether all that is queued is done, and its error. It does not wait.
func (s *Stream) Done() (bool, error) { return done(s.c, fnStreamQuery, s.h) }

// Priority is the stream's priority.
func (s *Stream) Priority() (int, error) {
	var l lent
	defer l.free()
	b, err := l.bytes(4)
	if err != nil {
		return 0, err
	}
	err = s.c.call(fnStreamGetPriority, s.h, address(b, 0))
	return int(get[int32](b, 0)), err
}

// Wait makes work that is queued from now on wait for an event's last Record, also of another
// context. It allocates nothing.
func (s *Stream) Wait(e *Event) error {
	if err := s.c.enter(); err != nil {
		return err
	}
	r := s.c.d.fn[fnStreamWaitEvent].Call3(s.h, e.h, 0)
	leave()
	return check(fnStreamWaitEvent, r)
}

// WriteValue32 queues a write of v to p, device memory or mapped host memory, after all that is
// queued, with a fence before it: a reader that sees v sees the work.
func (s *Stream) WriteValue32(p Pointer, v uint32) error {
	return s.value(fnStreamWriteValue32, p, uint64(v), 0)
}

// WriteValue64 is WriteValue32 for eight bytes.
func (s *Stream) WriteValue64(p Pointer, v uint64) error {
	return s.value(fnStreamWriteValue64, p, v, 0)
}

// AwaitValue32 makes work that is queued from now on wait until the value at p is at least v, in
// the arithmetic of int32 differences.
func (s *Stream) AwaitValue32(p Pointer, v uint32) error {
	return s.value(fnStreamWaitValue32, p, uint64(v), 0)
}

// AwaitValue64 is AwaitValue32 for eight bytes.
func (s *Stream) AwaitValue64(p Pointer, v uint64) error {
	return s.value(fnStreamWaitValue64, p, v, 0)
}

func (s *Stream) value(op fn, p Pointer, v uint64, flags uintptr) error {
	if err := s.c.d.Has(StreamValues); err != nil {
		return err
	}
	if err := s.c.enter(); err != nil {
		return err
	}
	r := s.c.d.fn[op].Call4(s.h, uintptr(p), uintptr(v), flags)
	leave()
	return about(check(op, r), "at %#x", uint64(p))
}

// done asks by a function that answers "not ready".
func done(c *Context, op fn, h uintptr) (bool, error) {
	if err := c.enter(); err != nil {
		return false, err
	}
	r := c.d.fn[op].Call1(h)
	leave()
	if Result(int32(r)) == ErrorNotReady {
		return false, nil
	}
	return int32(r) == 0, check(op, r)
}

// Event is a place in a stream that can be waited for.
type Event struct {
	c *Context
	h uintptr
}

// EventSpec says what an event is for.
type EventSpec struct {
	Timing bool // it keeps the time; costs a little. Not together with Share
	Spin   bool // waiting spins on a core: quicker, and a core is gone. Otherwise the thread sleeps
	Share  bool // other processes may open it (see [Event.Handle])
}

// NewEvent makes an event, which is done until it is recorded. The caller closes it.
func (c *Context) NewEvent(o EventSpec) (*Event, error) {
	const blocking, noTiming, interprocess = 1, 2, 4
	var flags uintptr
	if !o.Spin {
		flags |= blocking
	}
	if !o.Timing {
		flags |= noTiming
	}
	if o.Share {
		if o.Timing {
			return nil, errors.New("cuda: new event: it is to keep the time and to be shared with other processes, " +
				"and the driver does one of the two")
		}
		flags |= interprocess
	}
	h, err := in[uintptr](c, fnEventCreate, flags)
	if err != nil {
		return nil, err
	}
	return &Event{c, h}, nil
}

// Record puts the event behind all that is queued in the stream. It allocates nothing.
func (e *Event) Record(s *Stream) error {
	if err := e.c.enter(); err != nil {
		return err
	}
	r := e.c.d.fn[fnEventRecord].Call2(e.h, s.h)
	leave()
	return check(fnEventRecord, r)
}

// Done reports whether what the last Record stands behind is done, and its error. It does not wait
// and allocates nothing.
func (e *Event) Done() (bool, error) { return done(e.c, fnEventQuery, e.h) }

// Synchronize waits until what the last Record stands behind is done, and returns its error. It
// holds a thread meanwhile.
func (e *Event) Synchronize() error {
	if err := e.c.enter(); err != nil {
		return err
	}
	r := e.c.d.fn[fnEventSynchronize].Call1(e.h)
	leave()
	return check(fnEventSynchronize, r)
}

// Milliseconds is the time on the device between two events with Timing, both done. Its resolution
// is about half a microsecond.
func (e *Event) Milliseconds(since *Event) (float32, error) {
	return in[float32](e.c, fnEventElapsedTime, since.h, e.h)
}

// Close ends the event. What waits for it in a stream still does.
func (e *Event) Close() error { return e.c.call(fnEventDestroy, e.h) }
