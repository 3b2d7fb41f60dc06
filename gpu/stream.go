package gpu

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/internal/invariants"
)

// StreamOptions say what stream is wanted.
type StreamOptions struct {
	Name string // for messages
	// Priority above 0 asks to run before, below 0 after the others; a hint, without effect where
	// the device lacks CapPriorities.
	Priority int
}

// Stream is a queue of work that a device does in order.
type Stream struct {
	object
	drv   driver.Stream
	waits sync.WaitGroup // waits in the runtime whose callers may have left
	time  timeline       // only under -tags invariants
}

// NewStream makes a stream. The caller closes it.
func (c *Context) NewStream(o StreamOptions) (*Stream, error) {
	done, err := c.quiet("make a stream")
	if err != nil {
		return nil, err
	}
	defer done()
	drv, err := c.drv.NewStream(driver.StreamSpec{Name: o.Name, Priority: o.Priority})
	if err != nil {
		return nil, fmt.Errorf("gpu: %s: stream %q: %w", c.dev, o.Name, c.note(err))
	}
	s := &Stream{drv: drv}
	if err := s.init(c, "stream", o.Name); err != nil {
		drv.Close()
		return nil, err
	}
	return s, nil
}

// OpKind is what an Op does.
type OpKind uint8

const (
	OpCopy OpKind = iota + 1 // Dst, Src: of one length, not overlapping, at least one of them not PinnedMemory
	// Dst, Pattern, Width: Dst is not PinnedMemory, its offset and length are multiples of Width
	OpFill
	OpLaunch  // Call, Grid: with no work-items nothing happens
	OpRecord  // Event: it happens when what is before it is done
	OpWaitFor // Event: what is behind waits for it, as it is recorded now
)

// Op is one piece of work for a stream. CopyOp and the like make one. It may be used again.
type Op struct {
	Kind     OpKind
	Dst, Src Span
	Pattern  uint32 // the lower Width bytes are repeated, little-endian
	Width    int    // bytes: 1, 2 or 4
	Call     *Call
	Grid     Grid
	Event    *Event
}

// CopyOp copies src to dst. Memory of another context of the same runtime needs CapPeer.
func CopyOp(dst, src Span) Op { return Op{Kind: OpCopy, Dst: dst, Src: src} }

// FillOp fills dst with the lower width bytes of pattern (1, 2 or 4), little-endian.
func FillOp(dst Span, pattern uint32, width int) Op {
	return Op{Kind: OpFill, Dst: dst, Pattern: pattern, Width: width}
}

// LaunchOp runs a call on a grid.
func LaunchOp(c *Call, g Grid) Op { return Op{Kind: OpLaunch, Call: c, Grid: g} }

// RecordOp lets the event happen when what is in the stream before it is done.
func RecordOp(e *Event) Op { return Op{Kind: OpRecord, Event: e} }

// WaitForOp lets what is behind it in the stream wait for the event.
func WaitForOp(e *Event) Op { return Op{Kind: OpWaitFor, Event: e} }

// Enqueue puts work into the stream, in order, and lets it begin. n is how many were taken; fewer
// than len(ops) come with an error about ops[n], of which nothing was done. It allocates nothing,
// and returns before the work is done. Errors of the work itself come later, from any call of the
// context.
func (s *Stream) Enqueue(ops []Op) (n int, err error) {
	if err := s.usable(); err != nil {
		return 0, err
	}
	if invariants.Enabled {
		s.time.enter(&s.object)
		defer s.time.leave()
	}
	for n < len(ops) {
		if err = s.put(&ops[n]); err != nil {
			break
		}
		n++
	}
	if n > 0 {
		if ferr := s.drv.Flush(); ferr != nil && err == nil {
			err = s.failed("begin", ferr)
		}
	}
	return n, err
}

// one is Enqueue of one Op.
func (s *Stream) one(op *Op) error {
	if err := s.usable(); err != nil {
		return err
	}
	if invariants.Enabled {
		s.time.enter(&s.object)
		defer s.time.leave()
	}
	if err := s.put(op); err != nil {
		return err
	}
	if err := s.drv.Flush(); err != nil {
		return s.failed("begin", err)
	}
	return nil
}

// Copy is Enqueue of a CopyOp.
func (s *Stream) Copy(dst, src Span) error {
	op := CopyOp(dst, src)
	return s.one(&op)
}

// Fill is Enqueue of a FillOp.
func (s *Stream) Fill(dst Span, pattern uint32, width int) error {
	op := FillOp(dst, pattern, width)
	return s.one(&op)
}

// Launch is Enqueue of a LaunchOp.
func (s *Stream) Launch(c *Call, g Grid) error {
	op := LaunchOp(c, g)
	return s.one(&op)
}

// Record is Enqueue of a RecordOp.
func (s *Stream) Record(e *Event) error {
	op := RecordOp(e)
	return s.one(&op)
}

// WaitFor is Enqueue of a WaitForOp.
func (s *Stream) WaitFor(e *Event) error {
	op := WaitForOp(e)
	return s.one(&op)
}

// put checks one Op and gives it to the runtime.
func (s *Stream) put(op *Op) error {
	switch op.Kind {
	case OpCopy:
		return s.putCopy(&op.Dst, &op.Src)
	case OpFill:
		return s.putFill(&op.Dst, op.Pattern, op.Width)
	case OpLaunch:
		return s.putLaunch(op.Call, op.Grid)
	case OpRecord:
		e := op.Event
		if err := s.checkEvent(e); err != nil {
			return err
		}
		if err := s.drv.Record(e.drv); err != nil {
			return s.failed("record an event", err)
		}
		e.recorded.Store(true)
		if invariants.Enabled {
			e.mark(s.time.now())
		}
		return nil
	case OpWaitFor:
		e := op.Event
		if err := s.checkEvent(e); err != nil {
			return err
		}
		if !e.recorded.Load() {
			return e.never("wait for it")
		}
		if invariants.Enabled {
			s.time.depend(e.point())
		}
		if err := s.drv.WaitEvent(e.drv); err != nil {
			return s.failed("wait for an event", err)
		}
		return nil
	}
	return s.refuse("operation", "of kind %d: there is no such kind", op.Kind)
}

func (s *Stream) putCopy(dst, src *Span) error {
	if err := errors.Join(dst.check(), src.check()); err != nil {
		return err
	}
	d, r := dst.Memory, src.Memory
	switch {
	case dst.Len != src.Len:
		return s.refuse("copy", "%d bytes to a span of %d", src.Len, dst.Len)
	case d == r && dst.Off < src.Off+src.Len && src.Off < dst.Off+dst.Len && dst.Len > 0:
		return s.refuse("copy", "source and destination overlap in %s", &d.object)
	case d.kind == PinnedMemory && r.kind == PinnedMemory:
		return s.refuse("copy", "both sides are of kind %s, which only the CPU needs: use copy", PinnedMemory)
	case d.ctx != s.ctx && r.ctx != s.ctx:
		return s.refuse("copy", "neither side is of the stream's context")
	case dst.Len == 0:
		return nil
	}
	s.use(d, r)
	var err error
	if d.ctx == r.ctx {
		err = s.drv.Copy(d.drv, dst.Off, r.drv, src.Off, dst.Len)
	} else {
		err = s.copyPeer(d, dst.Off, r, src.Off, dst.Len)
	}
	if err != nil {
		return s.failed("copy", err)
	}
	return nil
}

func (s *Stream) copyPeer(d *Memory, dstOff uint64, r *Memory, srcOff, n uint64) error {
	if d.ctx.dev.rt != r.ctx.dev.rt {
		return fmt.Errorf("%w: the memories are of two runtimes: copy by way of the host", ErrArgument)
	}
	if err := s.ctx.Info().Capabilities.Check(CapPeer); err != nil {
		return err
	}
	p, ok := s.drv.(driver.PeerCopier)
	if !ok {
		return fmt.Errorf("%w: the runtime declares copies between contexts and does not have them", ErrDriver)
	}
	return p.CopyPeer(d.drv, dstOff, r.drv, srcOff, n)
}

func (s *Stream) putFill(dst *Span, pattern uint32, width int) error {
	if err := dst.check(); err != nil {
		return err
	}
	switch {
	case width != 1 && width != 2 && width != 4:
		return s.refuse("fill", "a pattern of %d bytes: expected 1, 2 or 4", width)
	case dst.Off%uint64(width) != 0 || dst.Len%uint64(width) != 0:
		return s.refuse("fill", "offset %d and length %d: expected multiples of the pattern's %d bytes", dst.Off,
			dst.Len, width)
	case dst.Memory.kind == PinnedMemory:
		return s.refuse("fill", "memory of kind %s, which only the CPU needs", PinnedMemory)
	case dst.Memory.ctx != s.ctx:
		return s.refuse("fill", "%s is of another context", &dst.Memory.object)
	case dst.Len == 0:
		return nil
	}
	s.use(dst.Memory, nil)
	if err := s.drv.Fill(dst.Memory.drv, dst.Off, dst.Len, pattern, width); err != nil {
		return s.failed("fill", err)
	}
	return nil
}

func (s *Stream) putLaunch(c *Call, g Grid) error {
	if c == nil {
		return s.refuse("launch", "no call")
	}
	if c.closed.Load() {
		return c.usable()
	}
	f := s.ctx.Info()
	switch {
	case c.ctx != s.ctx:
		return s.refuse("launch", "%s is of another context", &c.object)
	case g.Items() == 0:
		return nil
	case g.Group > f.MaxGroup || g.Groups > f.MaxGroups:
		return s.refuse("launch", "%d groups of %d: the device takes at most %d of %d", g.Groups, g.Group, f.MaxGroups,
			f.MaxGroup)
	}
	for _, m := range c.mems {
		if m != nil && m.closed.Load() {
			return m.usable()
		}
	}
	if invariants.Enabled {
		s.use(nil, nil)
		c.used(&s.time)
	}
	if err := s.drv.Launch(c.drv, g); err != nil {
		return s.failed("launch "+c.kernel.sig.Name, err)
	}
	return nil
}

// use notes, under -tags invariants, that the next work uses memory.
func (s *Stream) use(a, b *Memory) {
	if !invariants.Enabled {
		return
	}
	s.time.next()
	for _, m := range []*Memory{a, b} {
		if m != nil {
			m.uses.at(&s.time)
		}
	}
}

// Write copies src, any Go memory, to dst, in the order of the stream, and returns when src may be
// used again. Where src is not page-locked the driver copies it once more on the way; that is the
// price of any memory.
func (s *Stream) Write(dst Span, src []byte) error {
	if err := s.sync("write", &dst, len(src)); err != nil || len(src) == 0 {
		return err
	}
	if invariants.Enabled {
		s.time.enter(&s.object)
		defer s.time.leave()
	}
	p := s.time.now()
	if err := s.drv.Write(dst.Memory.drv, dst.Off, src); err != nil {
		return s.failed("write", err)
	}
	p.seen()
	return nil
}

// Read copies src to dst, any Go memory, in the order of the stream, and returns when the bytes are
// there.
func (s *Stream) Read(dst []byte, src Span) error {
	if err := s.sync("read", &src, len(dst)); err != nil || len(dst) == 0 {
		return err
	}
	if invariants.Enabled {
		s.time.enter(&s.object)
		defer s.time.leave()
	}
	p := s.time.now()
	if err := s.drv.Read(dst, src.Memory.drv, src.Off); err != nil {
		return s.failed("read", err)
	}
	p.seen()
	return nil
}

func (s *Stream) sync(op string, span *Span, n int) error {
	if err := s.usable(); err != nil {
		return err
	}
	if err := span.check(); err != nil {
		return err
	}
	switch {
	case span.Len != uint64(n):
		return s.refuse(op, "%d bytes of Go memory and a span of %d", n, span.Len)
	case span.Memory.ctx != s.ctx:
		return s.refuse(op, "%s is of another context", &span.Memory.object)
	}
	return nil
}

// Query reports whether all work in the stream is done.
func (s *Stream) Query() (bool, error) {
	if err := s.usable(); err != nil {
		return false, err
	}
	p := s.time.now()
	done, err := s.drv.Query()
	if err != nil {
		return false, s.failed("query", err)
	}
	if done {
		p.seen()
	}
	return done, nil
}

// Wait waits until all work is done that was put into the stream before, or ctx ends. In the latter
// case the error is that of ctx and the work goes on. With a ctx that cannot end, or when all is
// done, nothing is allocated.
func (s *Stream) Wait(ctx context.Context) error {
	if err := s.usable(); err != nil {
		return err
	}
	p := s.time.now()
	if err := await(ctx, &s.waits, s.drv); err != nil {
		if err == ctx.Err() {
			return err
		}
		return s.failed("wait", err)
	}
	p.seen()
	return nil
}

// Close waits for the work in the stream and ends it.
func (s *Stream) Close() error {
	if !s.end() {
		return nil
	}
	err := s.ctx.ending(s.drv.Wait())
	s.waits.Wait()
	if invariants.Enabled {
		s.time.now().seen()
	}
	return errors.Join(err, s.ctx.ending(s.drv.Close()))
}

func (s *Stream) refuse(op, format string, a ...any) error {
	return fmt.Errorf("gpu: %s: %s: %s: %w: %s", s.ctx.dev, &s.object, op, ErrArgument, fmt.Sprintf(format, a...))
}

func (s *Stream) failed(op string, err error) error {
	return s.ctx.note(fmt.Errorf("gpu: %s: %s: %s: %w", s.ctx.dev, &s.object, op, err))
}

// waitable is a stream or an event of a runtime.
type waitable interface {
	Query() (bool, error)
	Wait() error
}

// await waits for w or ctx. A wait in the runtime cannot be broken off: a goroutine is left with
// it, which waits counts, until it is over.
func await(ctx context.Context, waits *sync.WaitGroup, w waitable) error {
	if done, err := w.Query(); done || err != nil {
		return err
	}
	if ctx.Done() == nil {
		return w.Wait()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	over := make(chan error, 1)
	waits.Go(func() { over <- w.Wait() })
	select {
	case err := <-over:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
