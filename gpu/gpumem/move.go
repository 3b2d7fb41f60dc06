package gpumem

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/mem"
)

// mover copies between a region of device memory and the host's.
type mover struct {
	p *Provider
	m *gpu.Memory
}

// Device names the device.
func (v *mover) Device() string { return v.p.Device().String() }

// Staging is the Provider itself, for memory of kind mem.HostPinned.
func (v *mover) Staging() mem.Provider { return v.p }

// Load begins a copy from the device.
func (v *mover) Load(dst mem.Span, off uint64) (mem.Move, error) {
	here, there, err := v.sides(dst, off)
	switch {
	case err != nil:
		return nil, err
	case dst.Region.ReadOnly():
		return nil, fmt.Errorf("gpumem: %s: load into region %q, which is read-only: %w", v.p.o.Name, dst.Region.Name(),
			gpu.ErrArgument)
	case dst.Len == 0:
		return over{}, nil
	}
	v.p.counts.loads.Add(1)
	v.p.counts.loaded.Add(dst.Len)
	if here.Memory != nil {
		return v.p.begin(here, there)
	}
	return v.p.load(dst.Bytes(), there)
}

// Store begins a copy to the device.
func (v *mover) Store(off uint64, src mem.Span) (mem.Move, error) {
	here, there, err := v.sides(src, off)
	switch {
	case err != nil:
		return nil, err
	case src.Len == 0:
		return over{}, nil
	}
	v.p.counts.stores.Add(1)
	v.p.counts.stored.Add(src.Len)
	if here.Memory != nil {
		return v.p.begin(there, here)
	}
	return v.p.store(there, src.Bytes())
}

// sides are both ends of a copy. here is without memory where the context does not know that of s.
func (v *mover) sides(s mem.Span, off uint64) (here, there gpu.Span, err error) {
	if !s.Valid() {
		return here, there, fmt.Errorf("gpumem: %s: offset %d + %d bytes is not inside its region: %w", v.p.o.Name,
			s.Off, s.Len, mem.ErrBounds)
	}
	if off > v.m.Size() || s.Len > v.m.Size()-off {
		return here, there, fmt.Errorf("gpumem: %s: offset %d + %d bytes of %s memory, but it has %d: %w", v.p.o.Name,
			off, s.Len, v.m.Name(), v.m.Size(), mem.ErrBounds)
	}
	there = gpu.Span{Memory: v.m, Off: off, Len: s.Len}
	if m := Memory(s.Region); m != nil && m.Context() == v.p.c {
		return gpu.Span{Memory: m, Off: s.Off, Len: s.Len}, there, nil
	}
	if s.Len > 0 && s.Bytes() == nil {
		return here, there, fmt.Errorf("gpumem: %s: region %q of kind %s is neither the host's nor of this context: "+
			"go by way of the host: %w", v.p.o.Name,
			s.Region.Name(), s.Region.Kind(), mem.ErrUnavailable)
	}
	return here, there, nil
}

// copyStream is a stream for copies, which has one user at a time.
type copyStream struct {
	mu  sync.Mutex
	s   *gpu.Stream
	ops [2]gpu.Op
}

// begin puts a copy into the next stream.
func (p *Provider) begin(dst, src gpu.Span) (mem.Move, error) {
	m, err := p.take()
	if err != nil {
		return nil, err
	}
	m.bytes = dst.Len
	l := &p.streams[int(p.next.Add(1))%len(p.streams)]
	m.s = l.s
	l.mu.Lock()
	l.ops = [2]gpu.Op{gpu.CopyOp(dst, src), gpu.RecordOp(m.ev)}
	n, err := l.s.Enqueue(l.ops[:])
	l.ops = [2]gpu.Op{}
	l.mu.Unlock()
	if err == nil {
		return m, nil
	}
	err = m.failed(err)
	if n > 0 { // the copy may be under way, and no event would say when it is over
		err = errors.Join(err, awaitStream(l.s))
	}
	p.give(m)
	return nil, err
}

// drain waits for the copies that are under way now. Where the device is lost there are none.
func (p *Provider) drain() {
	for i := range p.streams {
		awaitStream(p.streams[i].s)
	}
	for _, b := range p.bounces {
		awaitStream(b.s)
	}
}

// awaitStream waits for a stream, once more where that fails on a device that works: a missing
// event must not free memory that the stream still uses.
func awaitStream(s *gpu.Stream) error {
	err := s.Wait(context.Background())
	if err != nil && !errors.Is(err, gpu.ErrDeviceLost) {
		err = errors.Join(err, s.Wait(context.Background()))
	}
	return err
}

// move is a copy under way, and the event behind it.
type move struct {
	p     *Provider
	s     *gpu.Stream
	ev    *gpu.Event
	bytes uint64
	ended bool // only under -tags invariants
}

// Done asks whether the copy is over.
func (m *move) Done() (bool, error) {
	m.used()
	done, err := m.ev.Query()
	if err == nil && !done {
		return false, nil
	}
	return true, m.end(err)
}

// Wait waits for the copy.
func (m *move) Wait(ctx context.Context) error {
	m.used()
	err := m.ev.Wait(ctx)
	if err != nil && err == ctx.Err() {
		return err
	}
	return m.end(err)
}

// end gives the event to the next move. Where the event failed, end waits for the copy itself: its
// bytes are the caller's again.
func (m *move) end(err error) error {
	if err != nil {
		if !errors.Is(err, gpu.ErrDeviceLost) {
			err = errors.Join(err, awaitStream(m.s))
		}
		err = m.failed(err)
	}
	m.p.give(m)
	return err
}

func (m *move) failed(err error) error {
	return fmt.Errorf("gpumem: %s: copy of %d bytes: %w", m.p.o.Name, m.bytes, err)
}

func (m *move) used() {
	if invariants.Enabled && m.ended {
		panic("gpumem: a Move is used after its end")
	}
}

// over is a copy that was over at once.
type over struct{}

func (over) Done() (bool, error)        { return true, nil }
func (over) Wait(context.Context) error { return nil }

// moves are the moves that can be used again, and all events. Only the user refers to a move that
// is out: when the user drops it, the garbage collector gives its event back.
type moves struct {
	idle    []*move
	orphans []*gpu.Event // of moves that were dropped
	events  []*gpu.Event
	closed  bool
}

// take is a move whose event may be recorded.
func (p *Provider) take() (*move, error) {
	p.mu.Lock()
	ms := &p.moves
	if n := len(ms.idle); n > 0 {
		m := ms.idle[n-1]
		ms.idle = ms.idle[:n-1]
		p.mu.Unlock()
		return m, nil
	}
	var ev *gpu.Event
	if n := len(ms.orphans); n > 0 {
		ev = ms.orphans[n-1]
		ms.orphans = ms.orphans[:n-1]
	}
	p.mu.Unlock()
	if ev == nil {
		var err error
		if ev, err = p.c.NewEvent(gpu.EventOptions{Name: p.o.Name}); err != nil {
			return nil, fmt.Errorf("gpumem: %s: %w", p.o.Name, err)
		}
		p.mu.Lock()
		closed := ms.closed
		if !closed {
			ms.events = append(ms.events, ev)
		}
		p.mu.Unlock()
		if closed {
			return nil, errors.Join(fmt.Errorf("gpumem: %s is %w", p.o.Name, gpu.ErrClosed), ev.Close())
		}
	}
	m := &move{p: p, ev: ev}
	runtime.AddCleanup(m, p.orphan, ev)
	return m, nil
}

// give takes back a move that is over. Builds that check ownership do not use it again, so that a
// second use is seen.
func (p *Provider) give(m *move) {
	if invariants.Enabled {
		m.ended = true
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.moves.closed {
		p.moves.idle = append(p.moves.idle, m)
	}
}

// orphan takes back the event of a move that its user has dropped.
func (p *Provider) orphan(ev *gpu.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.moves.closed {
		p.moves.orphans = append(p.moves.orphans, ev)
	}
}

// close ends the moves and returns the events to close.
func (ms *moves) close() []*gpu.Event {
	events := ms.events
	*ms = moves{closed: true}
	return events
}

// counts are of copies since the start.
type counts struct{ loads, stores, loaded, stored, bounced atomic.Uint64 }

// Stats are counters of copies since the start. Sizes are in bytes.
type Stats struct {
	Loads, Stores uint64 // copies from and to device memory that were begun
	Loaded        uint64
	Stored        uint64
	Bounced       uint64 // of both: what was neither pinned nor of the device, and was copied once more on its way
}

// Stats may be called from any goroutine.
func (p *Provider) Stats() Stats {
	c := &p.counts
	return Stats{Loads: c.loads.Load(), Stores: c.stores.Load(), Loaded: c.loaded.Load(), Stored: c.stored.Load(),
		Bounced: c.bounced.Load()}
}
