package cuda

import (
	"fmt"
	"runtime"
	"sync/atomic"
)

// Context is a device's primary context, which all of a process shares: PyTorch in the same process
// has the same one. Any goroutine may use it, and several at once. Each call makes it current on
// the thread that it runs on (see the package's documentation).
type Context struct {
	dev   *Device
	d     *Driver
	h     uintptr
	ended atomic.Bool
}

// Retain takes a reference to the device's primary context, which the driver makes when the process
// has none: this takes long (100 ms and more) and some hundred MiB of the device's memory. The
// caller ends it with [Context.Release].
func (d *Device) Retain() (*Context, error) {
	if err := d.d.alive(); err != nil {
		return nil, err
	}
	h, r := out[uintptr](d.d.fn[fnPrimaryRetain], uintptr(d.h))
	if err := check(fnPrimaryRetain, r); err != nil {
		return nil, about(err, "device %d", d.ordinal)
	}
	return &Context{dev: d, d: d.d, h: h}, nil
}

// Active reports whether this process has the device's primary context.
func (d *Device) Active() (bool, error) {
	_, active, r := func() (uint32, int32, uintptr) {
		// cuDevicePrimaryCtxGetState has the device first.
		var l lent
		defer l.free()
		b, err := l.bytes(8)
		if err != nil {
			return 0, 0, 2
		}
		r := d.d.fn[fnPrimaryGetState].Call3(uintptr(d.h), address(b, 0), address(b, 4))
		return get[uint32](b, 0), get[int32](b, 4), r
	}()
	return active != 0, about(check(fnPrimaryGetState, r), "device %d", d.ordinal)
}

// Release gives the reference back; the driver destroys the context with the last one, and all that
// is in it. A second Release does nothing.
func (c *Context) Release() error {
	if c.ended.Swap(true) {
		return nil
	}
	return about(check(fnPrimaryRelease, c.d.fn[fnPrimaryRelease].Call1(uintptr(c.dev.h))), "device %d", c.dev.ordinal)
}

// Device is the device of the context.
func (c *Context) Device() *Device { return c.dev }

// enter holds the goroutine's thread and makes the context current there. Where it returns an error
// the thread is not held, else leave lets it go.
func (c *Context) enter() error {
	if c.ended.Load() {
		return &Error{Call: fmt.Sprintf("a context of device %d that this program has released", c.dev.ordinal),
			Result: ErrorContextDestroyed}
	}
	runtime.LockOSThread()
	if r := c.d.fn[fnCtxSetCurrent].Call1(c.h); int32(r) != 0 {
		runtime.UnlockOSThread()
		return about(check(fnCtxSetCurrent, r), "device %d", c.dev.ordinal)
	}
	return nil
}

func leave() { runtime.UnlockOSThread() }

// call makes a call of the driver in the context.
func (c *Context) call(op fn, args ...uintptr) error {
	if err := c.enter(); err != nil {
		return err
	}
	r := c.d.fn[op].Call(args...)
	leave()
	return check(op, r)
}

// in is out in a context.
func in[T any](c *Context, op fn, args ...uintptr) (T, error) {
	if err := c.enter(); err != nil {
		var zero T
		return zero, err
	}
	v, r := out[T](c.d.fn[op], args...)
	leave()
	return v, check(op, r)
}

// ins is outs in a context.
func ins[A, B any](c *Context, op fn, args ...uintptr) (A, B, error) {
	if err := c.enter(); err != nil {
		var a A
		var b B
		return a, b, err
	}
	a, b, r := outs[A, B](c.d.fn[op], args...)
	leave()
	return a, b, check(op, r)
}

// Synchronize waits until the device has done all work of the context, and returns its error. It
// holds a thread meanwhile.
func (c *Context) Synchronize() error { return c.call(fnCtxSynchronize) }

// MemInfo is how much of the device's memory is free, for all processes, and how much there is, in
// bytes.
func (c *Context) MemInfo() (free, total uint64, err error) {
	return ins[uint64, uint64](c, fnMemGetInfo)
}

// Priorities is the range of priorities of streams: lower numbers go first. Both are 0 where the
// device knows none.
func (c *Context) Priorities() (least, greatest int, err error) {
	l, g, err := ins[int32, int32](c, fnCtxGetPriorityRange)
	return int(l), int(g), err
}

// EnablePeer lets kernels and copies of c reach the memory of peer's device. It holds until the
// context ends; once more is no error.
func (c *Context) EnablePeer(peer *Context) error {
	if err := c.d.Has(Peer); err != nil {
		return err
	}
	err := c.call(fnCtxEnablePeer, peer.h, 0)
	if e, ok := err.(*Error); ok && e.Result == ErrorPeerAlreadyEnabled {
		return nil
	}
	return about(err, "device %d to device %d", c.dev.ordinal, peer.dev.ordinal)
}

// DisablePeer ends what EnablePeer began.
func (c *Context) DisablePeer(peer *Context) error {
	if err := c.d.Has(Peer); err != nil {
		return err
	}
	return about(c.call(fnCtxDisablePeer, peer.h), "device %d to device %d", c.dev.ordinal, peer.dev.ordinal)
}

// FlushWrites orders all writes that network cards made into the memory of c's device so far before
// what the scope reads afterwards. It is needed where [Info.Ordering] is less than the scope, and
// is possible where [Info.FlushByHost].
func (c *Context) FlushWrites(scope Ordering) error {
	if err := c.d.Has(FlushWrites); err != nil {
		return err
	}
	if scope != OrderingOwner && scope != OrderingAllDevices {
		return fmt.Errorf("cuda: flush writes for %v: expected owner or all devices", scope)
	}
	return about(c.call(fnFlushWrites, 0, uintptr(scope)), "for %v", scope)
}
