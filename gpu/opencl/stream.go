package opencl

import (
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/internal/ocl"
)

// stream is a queue, and a mark behind what was put in last.
type stream struct {
	c *openclContext
	q *ocl.Queue
	mark
}

func (c *openclContext) NewStream(driver.StreamSpec) (driver.Stream, error) {
	q, err := c.l.NewQueue(c.ctx, c.d.id)
	if err != nil {
		return nil, wrap(err, "make a queue")
	}
	s := &stream{c: c, q: q, mark: mark{l: c.l}}
	c.mu.Lock()
	c.queues[s] = struct{}{}
	c.mu.Unlock()
	return s, nil
}

func (s *stream) Close() error {
	s.c.mu.Lock()
	delete(s.c.queues, s)
	s.c.mu.Unlock()
	s.set(0)
	return lost(s.q.Close(), "close")
}

func (s *stream) Copy(dst driver.Memory, dstOff uint64, src driver.Memory, srcOff, n uint64) error {
	d, r := dst.(*memory), src.(*memory)
	var err error
	switch {
	case d.host == 0 && r.host == 0:
		err = s.q.Copy(d.buf, dstOff, r.buf, srcOff, n)
	case d.host == 0:
		err = s.q.Write(d.buf, dstOff, r.host+uintptr(srcOff), n)
	case r.host == 0:
		err = s.q.Read(d.host+uintptr(dstOff), r.buf, srcOff, n)
	default:
		err = s.q.SVMCopy(d.host+uintptr(dstOff), r.host+uintptr(srcOff), n)
	}
	return lost(err, "copy")
}

func (s *stream) Fill(dst driver.Memory, off, n uint64, pattern uint32, width int) error {
	d := dst.(*memory)
	if d.svm {
		return lost(s.q.SVMFill(d.host+uintptr(off), n, pattern, width), "fill")
	}
	return lost(s.q.Fill(d.buf, off, n, pattern, width), "fill")
}

func (s *stream) Write(dst driver.Memory, off uint64, src []byte) error {
	d := dst.(*memory)
	if d.host == 0 {
		return lost(s.q.WriteBytes(d.buf, off, src), "write")
	}
	if d.svm {
		return lost(s.q.SVMWriteBytes(d.host+uintptr(off), src), "write")
	}
	// Pinned memory is the host's: its bytes are written when what is before is done.
	if err := s.q.Finish(); err != nil {
		return lost(err, "write")
	}
	copy(d.Bytes()[off:], src)
	return nil
}

func (s *stream) Read(dst []byte, src driver.Memory, off uint64) error {
	r := src.(*memory)
	if r.host == 0 {
		return lost(s.q.ReadBytes(dst, r.buf, off), "read")
	}
	if r.svm {
		return lost(s.q.SVMReadBytes(dst, r.host+uintptr(off)), "read")
	}
	if err := s.q.Finish(); err != nil {
		return lost(err, "read")
	}
	copy(dst, r.Bytes()[off:])
	return nil
}

func (s *stream) Launch(c driver.Call, g driver.Grid) error {
	x := c.(*call)
	if uint64(g.Group) > x.group {
		return fmt.Errorf("%w: groups of %d items: the kernel %s takes at most %d on this device", gpu.ErrArgument,
			g.Group, x.name, x.group)
	}
	err := s.q.Launch(x.id, g.Groups, g.Group)
	if err == nil {
		return nil
	}
	var e *ocl.Error
	if errors.As(err, &e) && e.Code == ocl.OutOfResources {
		return wrap(err, "launch "+x.name) // the kernel needs more than the device has, and was not launched
	}
	return lost(err, "launch "+x.name)
}

func (s *stream) Record(e driver.Event) error {
	m, err := s.q.Marker()
	if err != nil {
		return lost(err, "record")
	}
	e.(*event).set(m)
	return nil
}

func (s *stream) WaitEvent(e driver.Event) error {
	x := e.(*event).get()
	defer s.l.Release(x)
	return lost(s.q.WaitFor(x), "wait for an event")
}

// Flush puts the mark behind all that is in the queue, and lets it begin.
func (s *stream) Flush() error {
	m, err := s.q.Marker()
	if err != nil {
		return lost(err, "flush")
	}
	s.set(m)
	return lost(s.q.Flush(), "flush")
}
