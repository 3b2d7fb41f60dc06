package gpu

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/internal/invariants"
)

// Context owns memory, streams, events and modules on one device.
type Context struct {
	dev  *Device
	drv  driver.Context
	lost atomic.Pointer[error] // the first ErrDeviceLost

	mu     sync.Mutex
	live   map[*object]struct{} // what is open
	born   uint64               // objects ever made, which orders them in messages
	closed bool
}

func newContext(d *Device, drv driver.Context) *Context {
	return &Context{dev: d, drv: drv, live: map[*object]struct{}{}}
}

// Device is the device of the context.
func (c *Context) Device() *Device { return c.dev }

// Info is that of the device.
func (c *Context) Info() *Info { return &c.dev.info }

// Err is nil while the device works, and what wraps ErrDeviceLost once a call of this context has
// said that it does not.
func (c *Context) Err() error {
	if e := c.lost.Load(); e != nil {
		return *e
	}
	return nil
}

// MemoryInfo is the memory of the device that is free now, and all of it, in bytes. Others use the
// device too: what is free may be gone at once.
func (c *Context) MemoryInfo() (free, total uint64, err error) {
	if err := c.usable("ask for free memory"); err != nil {
		return 0, 0, err
	}
	free, total, err = c.drv.MemoryInfo()
	return free, total, c.note(err)
}

// FlushWrites makes what network cards have written into memory of the device visible to work that
// begins afterwards. Where the device sees it without (Info.FlushWrites is false) it does nothing.
// Any goroutine may call it, and it allocates nothing.
func (c *Context) FlushWrites() error {
	if !c.Info().FlushWrites {
		return nil
	}
	if err := c.usable("flush writes of network cards"); err != nil {
		return err
	}
	f, ok := c.drv.(driver.WriteFlusher)
	if !ok {
		return fmt.Errorf("gpu: %s: flush writes of network cards: %w: the runtime requires it and does not support it",
			c.dev,
			ErrDriver)
	}
	if err := f.FlushWrites(); err != nil {
		return fmt.Errorf("gpu: %s: flush writes of network cards: %w", c.dev, c.note(err))
	}
	return nil
}

// Live is the number of objects of the context that are open.
func (c *Context) Live() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.live)
}

// Close ends the context. With something of it still open it is an error that wraps ErrInUse and
// lists it, and nothing is closed.
func (c *Context) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	if len(c.live) > 0 {
		err := fmt.Errorf("gpu: %s: close the context: %w: %s", c.dev, ErrInUse, c.open())
		c.mu.Unlock()
		return err
	}
	c.closed = true
	c.mu.Unlock()
	err := c.drv.Close()
	c.dev.closed()
	return c.ending(err)
}

// open lists what is open, for a message. The caller holds mu.
func (c *Context) open() string {
	var parts []string
	objects := slices.SortedFunc(maps.Keys(c.live), func(a, b *object) int { return cmp.Compare(a.id, b.id) })
	for i, o := range objects {
		if i == 10 && !invariants.Enabled {
			parts = append(parts, fmt.Sprintf("and %d more", len(objects)-i))
			break
		}
		text := o.String()
		if o.stack != nil {
			text += ", made at\n" + format(o.stack)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

// usable is an error when the context is closed or its device lost.
func (c *Context) usable(what string) error {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return fmt.Errorf("gpu: %s: %s: the context is %w", c.dev, what, ErrClosed)
	}
	return c.Err()
}

// quiet is usable for calls that may wait in the driver for all work of the device: it is also an
// error while a Resident holds that. The caller calls done behind the driver's call.
func (c *Context) quiet(what string) (done func(), err error) {
	if err := c.usable(what); err != nil {
		return nil, err
	}
	return c.dev.pass(what)
}

// note remembers that the device is lost if err says so, and returns err.
func (c *Context) note(err error) error {
	if err != nil && errors.Is(err, ErrDeviceLost) {
		c.lost.CompareAndSwap(nil, &err)
	}
	return err
}

// ending is the error of closing something: that the device is lost is no news then.
func (c *Context) ending(err error) error {
	c.note(err)
	if errors.Is(err, ErrDeviceLost) {
		return nil
	}
	return err
}

// object is what everything that a context owns has in common.
type object struct {
	ctx    *Context
	what   string // "memory", "stream"
	name   string // the user's, or ""
	id     uint64
	closed atomic.Bool
	stack  []uintptr // of the call that made it; only under -tags invariants
}

// init enters the object as open. It fails when the context was closed meanwhile.
func (o *object) init(c *Context, what, name string) error {
	o.ctx, o.what, o.name = c, what, name
	if invariants.Enabled {
		var pc [24]uintptr
		o.stack = append([]uintptr(nil), pc[:runtime.Callers(3, pc[:])]...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return fmt.Errorf("gpu: %s: %s: the context is %w", c.dev, o, ErrClosed)
	}
	c.born++
	o.id = c.born
	c.live[o] = struct{}{}
	return nil
}

// end takes the object off the list; it reports false when it is closed already.
func (o *object) end() bool {
	if o.closed.Swap(true) {
		return false
	}
	o.ctx.mu.Lock()
	delete(o.ctx.live, o)
	o.ctx.mu.Unlock()
	return true
}

// usable is an error when the object is closed or the device lost.
func (o *object) usable() error {
	if o.closed.Load() {
		return fmt.Errorf("gpu: %s: %s is %w", o.ctx.dev, o, ErrClosed)
	}
	return o.ctx.Err()
}

// quiet is an error while a Resident holds the device, unless the object is closed or the device
// lost: to close it would wait in the driver. The caller calls done behind the driver's call.
func (o *object) quiet() (done func(), err error) {
	if o.closed.Load() || o.ctx.Err() != nil {
		return func() {}, nil
	}
	return o.ctx.dev.pass("close " + o.String())
}

func (o *object) String() string {
	if o.name == "" {
		return fmt.Sprintf("%s %d", o.what, o.id)
	}
	return fmt.Sprintf("%s %q", o.what, o.name)
}

func format(stack []uintptr) string {
	var b strings.Builder
	frames := runtime.CallersFrames(stack)
	for {
		f, more := frames.Next()
		fmt.Fprintf(&b, "\t%s %s:%d\n", f.Function, f.File, f.Line)
		if !more {
			return b.String()
		}
	}
}
