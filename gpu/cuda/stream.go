package cuda

import (
	"runtime"
	"time"

	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/internal/cuda"
	"github.com/penstock-io/penstock/internal/sys"
)

type stream struct {
	c *cudaContext
	s *cuda.Stream
}

// NewStream makes a stream. To CUDA, lower numbers go first, and 0 goes last of all.
func (c *cudaContext) NewStream(o driver.StreamSpec) (driver.Stream, error) {
	s, err := c.c.NewStream(max(c.greatest, min(c.least, -o.Priority)))
	if err != nil {
		return nil, translate(err)
	}
	return &stream{c, s}, nil
}

func (s *stream) Copy(dst driver.Memory, dstOff uint64, src driver.Memory, srcOff, n uint64) error {
	to, from := dst.(*memory), src.(*memory)
	at, of := to.at+cuda.Pointer(dstOff), from.at+cuda.Pointer(srcOff)
	var err error
	switch {
	case !to.host() && !from.host():
		err = s.s.OnDevice(at, of, n)
	case !to.host():
		err = s.s.ToDevice(at, uintptr(of), n)
	case !from.host():
		err = s.s.FromDevice(uintptr(at), of, n)
	default:
		err = s.s.Copy(at, of, n)
	}
	return translate(err)
}

// CopyPeer is Copy between contexts. Host memory is pinned for all of them.
func (s *stream) CopyPeer(dst driver.Memory, dstOff uint64, src driver.Memory, srcOff, n uint64) error {
	to, from := dst.(*memory), src.(*memory)
	if to.host() || from.host() {
		return s.Copy(dst, dstOff, src, srcOff, n)
	}
	return translate(s.s.ToPeer(to.at+cuda.Pointer(dstOff), to.c.c, from.at+cuda.Pointer(srcOff), from.c.c, n))
}

func (s *stream) Fill(dst driver.Memory, off, n uint64, pattern uint32, width int) error {
	m := dst.(*memory)
	return translate(s.s.Fill(m.addr+cuda.Pointer(off), width, pattern, n/uint64(width)))
}

// Write copies from Go memory. It waits for what is in the stream first: the driver's copy of
// pageable memory would wait as well, but with its locks held, and so stop every other call behind
// a persistent kernel. An argument of a method of an interface is never on a goroutine's stack, so
// that src stays where it is.
func (s *stream) Write(dst driver.Memory, off uint64, src []byte) error {
	m := dst.(*memory)
	at := m.at + cuda.Pointer(off)
	err := s.wait()
	if p := sys.Address(src); err == nil && m.host() {
		err = s.s.Copy(at, cuda.Pointer(p), uint64(len(src)))
	} else if err == nil {
		err = s.s.ToDevice(at, p, uint64(len(src)))
	}
	return s.finish(err, src)
}

// Read copies to Go memory; see Write.
func (s *stream) Read(dst []byte, src driver.Memory, off uint64) error {
	m := src.(*memory)
	of := m.at + cuda.Pointer(off)
	err := s.wait()
	if p := sys.Address(dst); err == nil && m.host() {
		err = s.s.Copy(cuda.Pointer(p), of, uint64(len(dst)))
	} else if err == nil {
		err = s.s.FromDevice(p, of, uint64(len(dst)))
	}
	return s.finish(err, dst)
}

// finish waits for the copy: where b is page-locked memory the driver has only begun.
func (s *stream) finish(err error, b []byte) error {
	if err == nil {
		err = s.wait()
	}
	runtime.KeepAlive(b)
	return translate(err)
}

func (s *stream) Launch(c driver.Call, g driver.Grid) error {
	return translate(c.(*call).l.Run(s.s, cuda.Dim{X: g.Groups}, cuda.Dim{X: g.Group}, 0))
}

func (s *stream) Record(e driver.Event) error    { return translate(e.(*event).e.Record(s.s)) }
func (s *stream) WaitEvent(e driver.Event) error { return translate(s.s.Wait(e.(*event).e)) }

// Flush has nothing to do: the driver begins at once.
func (s *stream) Flush() error { return nil }

func (s *stream) Query() (bool, error) {
	done, err := s.s.Done()
	return done, translate(err)
}

func (s *stream) Wait() error { return translate(s.wait()) }

// looks is how often a wait asks before it sleeps: some microseconds, since most waits are short
// and waking takes tens of them.
const looks = 32

// wait waits for an event behind all that is in the stream: one that sleeps, as the driver's own
// wait for a stream spins.
func (s *stream) wait() error {
	e, err := s.c.waiter()
	if err != nil {
		return err
	}
	defer s.c.give(e)
	if err := e.Record(s.s); err != nil {
		return err
	}
	for range looks {
		if done, err := e.Done(); done || err != nil {
			return err
		}
	}
	return e.Synchronize()
}

func (s *stream) Close() error { return translate(s.s.Close()) }

type event struct{ e *cuda.Event }

func (c *cudaContext) NewEvent(timing bool) (driver.Event, error) {
	e, err := c.c.NewEvent(cuda.EventSpec{Timing: timing})
	if err != nil {
		return nil, translate(err)
	}
	return &event{e}, nil
}

func (e *event) Query() (bool, error) {
	done, err := e.e.Done()
	return done, translate(err)
}

// Wait leaves the looking to the driver, which knows which record was the last one when it was
// called.
func (e *event) Wait() error { return translate(e.e.Synchronize()) }

func (e *event) Elapsed(since driver.Event) (time.Duration, error) {
	ms, err := e.e.Milliseconds(since.(*event).e)
	return time.Duration(float64(ms) * float64(time.Millisecond)), translate(err)
}

func (e *event) Close() error { return translate(e.e.Close()) }
