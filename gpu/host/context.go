package host

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
)

type hostContext struct {
	dev  *device
	lost atomic.Pointer[driver.Error]

	mu      sync.Mutex
	streams map[*stream]struct{}
}

// err is what lost the device, nil while it works.
func (c *hostContext) err() error {
	if e := c.lost.Load(); e != nil {
		return e
	}
	return nil
}

func (c *hostContext) lose(op string, why any) {
	if fault, ok := why.(interface{ Addr() uintptr }); ok {
		why = fmt.Sprintf("it touched memory that is not there, at %#x", fault.Addr())
	}
	c.lost.CompareAndSwap(nil, &driver.Error{Kind: driver.ErrDeviceLost, Op: op, Text: fmt.Sprint(why),
		Hint: "close the context and open another"})
}

func (c *hostContext) MemoryInfo() (free, total uint64, err error) {
	return c.dev.info.Memory - c.dev.used.Load(), c.dev.info.Memory, c.err()
}

func (c *hostContext) Close() error { return nil }

// drain waits for all work that is in the streams now.
func (c *hostContext) drain() {
	c.mu.Lock()
	var all []*stream
	for s := range c.streams {
		all = append(all, s)
	}
	c.mu.Unlock()
	for _, s := range all {
		s.Wait()
	}
}

type memory struct {
	ctx    *hostContext
	region *mem.Region
	lease  mem.Lease
	data   []byte
	kind   driver.Kind
	taken  uint64 // bytes of the device's budget
}

func (c *hostContext) Alloc(o driver.MemorySpec) (driver.Memory, error) {
	if err := c.err(); err != nil {
		return nil, err
	}
	size := o.Size
	if o.Align > align {
		if o.Align > math.MaxInt64-size {
			return nil, &driver.Error{Kind: driver.ErrUnsupported, Op: "allocate",
				Text: fmt.Sprintf("an alignment of %d bytes", o.Align)}
		}
		size += o.Align - align
	}
	if err := c.dev.take(size); err != nil {
		return nil, err
	}
	r, err := mem.Alloc(mem.Options{Name: "gpu/host:" + o.Name, Size: int(size)})
	if err != nil {
		c.dev.give(size)
		return nil, &driver.Error{Kind: driver.ErrOutOfMemory, Op: "allocate", Text: err.Error(),
			Hint: "close what is not needed, or ask for less"}
	}
	l, err := r.Lease()
	if err != nil { // nothing else refers to the region
		c.dev.give(size)
		return nil, err
	}
	b := l.Bytes()
	if skip := -sys.Address(b) & uintptr(o.Align-1); skip > 0 {
		b = b[skip:]
	}
	return &memory{ctx: c, region: r, lease: l, data: b[:o.Size:o.Size], kind: o.Kind, taken: size}, nil
}

// Adopt needs nothing: the host reaches its memory.
func (c *hostContext) Adopt(b []byte) (driver.Memory, error) {
	return &memory{ctx: c, data: b, kind: driver.MappedMemory}, c.err()
}

func (m *memory) Addr() uint64 {
	if m.kind == driver.PinnedMemory {
		return 0
	}
	return uint64(sys.Address(m.data))
}

func (m *memory) Bytes() []byte { return m.data }

func (m *memory) Close() error {
	m.ctx.drain()
	if m.region == nil {
		return nil
	}
	m.lease.Release()
	err := m.region.Close()
	m.ctx.dev.give(m.taken)
	return err
}

// event counts how often it was recorded, and how far that has happened.
type event struct {
	ctx      *hostContext
	mu       sync.Mutex
	happened *sync.Cond
	recorded uint64
	done     uint64
	when     time.Time
}

func (c *hostContext) NewEvent(bool) (driver.Event, error) {
	e := &event{ctx: c}
	e.happened = sync.NewCond(&e.mu)
	return e, c.err()
}

// record is the number of a new record, which happen ends.
func (e *event) record() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recorded++
	return e.recorded
}

func (e *event) happen(n uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n > e.done { // otherwise a later record has overtaken this one
		e.done, e.when = n, time.Now()
		e.happened.Broadcast()
	}
}

func (e *event) last() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.recorded
}

func (e *event) await(n uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.done < n {
		e.happened.Wait()
	}
}

func (e *event) Query() (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.done == e.recorded, e.ctx.err()
}

func (e *event) Wait() error {
	e.await(e.last())
	return e.ctx.err()
}

func (e *event) Elapsed(since driver.Event) (time.Duration, error) {
	return e.time().Sub(since.(*event).time()), e.ctx.err()
}

func (e *event) time() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.when
}

func (e *event) Close() error { return nil }
