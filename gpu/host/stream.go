package host

import (
	"runtime/debug"
	"sync"

	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/mem/vec"
)

// inline is the number of arguments that a launch carries without an allocation.
const inline = 10

// task is one piece of work. Which fields it has says what it does.
type task struct {
	dst, src []byte // with src: a copy, otherwise a fill
	pattern  uint32
	width    int

	fn   driver.GoFunc // a launch
	name string
	grid driver.Grid
	args [inline]driver.GoArg
	more []driver.GoArg // all of them, where they are more
	n    int

	ev     *event // recorded, or waited for
	evWait bool
	evAt   uint64
}

// stream is a goroutine and what it has to do.
type stream struct {
	ctx      *hostContext
	mu       sync.Mutex
	progress *sync.Cond
	queue    []task // from head on
	head     int
	put      uint64 // tasks ever put in
	done     uint64
	closing  bool
	ended    chan struct{}
}

func (c *hostContext) NewStream(driver.StreamSpec) (driver.Stream, error) {
	if err := c.err(); err != nil {
		return nil, err
	}
	s := &stream{ctx: c, ended: make(chan struct{})}
	s.progress = sync.NewCond(&s.mu)
	c.mu.Lock()
	c.streams[s] = struct{}{}
	c.mu.Unlock()
	go s.work()
	return s, nil
}

// push puts a task in and returns its number. The queue grows as it must and is used again, so that
// it allocates nothing in the long run.
func (s *stream) push(t *task) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.head > 64 && s.head > len(s.queue)/2 {
		n := copy(s.queue, s.queue[s.head:])
		clear(s.queue[n:])
		s.queue, s.head = s.queue[:n], 0
	}
	s.queue = append(s.queue, *t)
	s.put++
	s.progress.Broadcast()
	return s.put
}

func (s *stream) work() {
	defer close(s.ended)
	debug.SetPanicOnFault(true) // memory that is gone loses the device and not the process
	var t task
	for {
		s.mu.Lock()
		for s.head == len(s.queue) && !s.closing {
			s.progress.Wait()
		}
		if s.head == len(s.queue) {
			s.mu.Unlock()
			return
		}
		t = s.queue[s.head]
		s.queue[s.head] = task{}
		if s.head++; s.head == len(s.queue) {
			s.queue, s.head = s.queue[:0], 0
		}
		s.mu.Unlock()
		s.run(&t)
		s.mu.Lock()
		s.done++
		s.progress.Broadcast()
		s.mu.Unlock()
	}
}

// run does a task. On a lost device it does only events, so that all waits go on.
func (s *stream) run(t *task) {
	if t.ev != nil {
		if t.evWait {
			t.ev.await(t.evAt)
		} else {
			t.ev.happen(t.evAt)
		}
		return
	}
	if s.ctx.err() != nil {
		return
	}
	defer func() {
		if v := recover(); v != nil {
			what := "copy or fill"
			if t.fn != nil {
				what = "kernel " + t.name
			}
			s.ctx.lose(what, v)
		}
	}()
	switch {
	case t.fn != nil:
		args := t.more
		if args == nil {
			args = t.args[:t.n]
		}
		t.fn(t.grid, args)
	case t.src != nil:
		vec.Copy(t.dst, t.src)
	default:
		fill(t.dst, t.pattern, t.width)
	}
}

func fill(dst []byte, pattern uint32, width int) {
	all := uint64(pattern)
	for n := width; n < 8; n *= 2 {
		all = all&(1<<(8*n)-1) | all<<(8*n)
	}
	vec.Set(dst, all)
}

// The methods below refuse on a lost device, and otherwise take the work: where the work loses the
// device, a later call says so.

func (s *stream) Copy(dst driver.Memory, dstOff uint64, src driver.Memory, srcOff, n uint64) error {
	return s.take(&task{dst: dst.(*memory).data[dstOff : dstOff+n], src: src.(*memory).data[srcOff : srcOff+n]})
}

// CopyPeer is Copy: devices of the host have one memory.
func (s *stream) CopyPeer(dst driver.Memory, dstOff uint64, src driver.Memory, srcOff, n uint64) error {
	return s.Copy(dst, dstOff, src, srcOff, n)
}

func (s *stream) Fill(dst driver.Memory, off, n uint64, pattern uint32, width int) error {
	return s.take(&task{dst: dst.(*memory).data[off : off+n], pattern: pattern, width: width})
}

func (s *stream) Write(dst driver.Memory, off uint64, src []byte) error {
	s.await(s.push(&task{dst: dst.(*memory).data[off : off+uint64(len(src))], src: src}))
	return s.ctx.err()
}

func (s *stream) Read(dst []byte, src driver.Memory, off uint64) error {
	s.await(s.push(&task{dst: dst, src: src.(*memory).data[off : off+uint64(len(dst))]}))
	return s.ctx.err()
}

func (s *stream) Launch(c driver.Call, g driver.Grid) error {
	x := c.(*call)
	t := task{fn: x.kernel.f, name: x.kernel.name, grid: g, n: len(x.args)}
	if len(x.args) > inline {
		t.more = append(t.more, x.args...)
	} else {
		copy(t.args[:], x.args)
	}
	return s.take(&t)
}

func (s *stream) Record(e driver.Event) error {
	x := e.(*event)
	return s.take(&task{ev: x, evAt: x.record()})
}

func (s *stream) WaitEvent(e driver.Event) error {
	x := e.(*event)
	return s.take(&task{ev: x, evAt: x.last(), evWait: true})
}

// take puts a task in. Events go in on a lost device too, since others may wait for what they were
// recorded for.
func (s *stream) take(t *task) error {
	err := s.ctx.err()
	if err == nil || t.ev != nil {
		s.push(t)
	}
	return err
}

func (s *stream) Flush() error { return nil }

func (s *stream) Query() (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done == s.put, s.ctx.err()
}

func (s *stream) Wait() error {
	s.mu.Lock()
	n := s.put
	s.mu.Unlock()
	s.await(n)
	return s.ctx.err()
}

// await waits until task n is done.
func (s *stream) await(n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.done < n {
		s.progress.Wait()
	}
}

func (s *stream) Close() error {
	s.mu.Lock()
	s.closing = true
	s.progress.Broadcast()
	s.mu.Unlock()
	<-s.ended
	s.ctx.mu.Lock()
	delete(s.ctx.streams, s)
	s.ctx.mu.Unlock()
	return nil
}
