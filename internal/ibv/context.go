package ibv

import (
	"errors"
	"fmt"
	"sync"

	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/sys"
)

// Context is a device that this process has opened. Everything else is made of it, and is closed
// before it.
type Context struct {
	object
	tree  tree
	lib   *Library
	dev   *Device
	c     *cContext
	x     *cExtended
	fd    int
	event temp[cAsyncEvent]

	eventMu sync.Mutex // one NextAsync at a time, since they share event

	attrMu sync.Mutex
	attr   *DeviceAttr // once it is known
	probe  *PD         // of the search for dma-bufs; closed, unless that failed
}

// Open opens the device. The caller closes the context.
func (d *Device) Open() (*Context, error) {
	l := d.lib
	var h uintptr
	found := false
	err := l.list(func(dev uintptr) error {
		if found || dl.GoString(l.f.getDeviceName.Call1(dev)) != d.name {
			return nil
		}
		found = true
		p, errno := l.f.openDevice.CallErrno(dev)
		if p == 0 {
			return openError(d.name, sys.Errno(errno))
		}
		code, err := executableNow()
		if err == nil {
			err = checkContext(p, dev, code)
		}
		if err != nil {
			return err // not closed: its layout is unknown
		}
		h = p
		return nil
	})
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, fmt.Errorf("ibv: %w: the device %s is gone", ErrUnavailable, d.name)
	}
	ctx := &Context{lib: l, dev: d, c: dl.At[cContext](h), x: extended(h)}
	ctx.fd = int(ctx.c.asyncFD)
	err = sys.SetNonblock(ctx.fd)
	if err == nil {
		ctx.event, err = newTemp[cAsyncEvent]()
	}
	if err == nil {
		err = ctx.object.open(&ctx.tree, "device", d.name, h, nil)
	}
	if err != nil {
		l.f.closeDevice.Call1(h)
		return nil, err
	}
	return ctx, nil
}

func openError(name string, errno sys.Errno) error {
	e := failed("open_device", name, errno)
	switch errno {
	case sys.EACCES, sys.EPERM:
		e.Kind, e.Hint = ErrUnavailable,
			"this user may not open /dev/infiniband/uverbs*: run as root, or give the group of the device file to "+
				"the user"
	case sys.ENOENT, sys.ENODEV:
		e.Kind, e.Hint = ErrUnavailable, "the device has no file below /dev/infiniband: modprobe ib_uverbs"
	}
	return e
}

// Close closes the device. ErrInUse names an object that is still open.
func (c *Context) Close() error {
	if c.probe != nil {
		if err := c.probe.Close(); err != nil {
			return err
		}
	}
	return c.object.close("close_device", func(h uintptr) error {
		c.eventMu.Lock()
		defer c.eventMu.Unlock()
		if err := c.returned("close_device", c.name, c.lib.f.closeDevice, h); err != nil {
			return err
		}
		c.event.free()
		c.event = temp[cAsyncEvent]{}
		return nil
	})
}

// Name is the kernel's name of the device.
func (c *Context) Name() string { return c.dev.name }

// Device is the device that was opened.
func (c *Context) Device() *Device { return c.dev }

// CompVectors is how many completion vectors (interrupts) the device has for CQSpec.Vector.
func (c *Context) CompVectors() int { return int(c.c.numCompVectors) }

// returned calls a function that returns an error number, or -1 with errno, or 0.
func (c *Context) returned(op, on string, f dl.Func, args ...uintptr) error {
	if errno := result(f.CallErrno(args...)); errno != 0 {
		return failed(op, on, errno)
	}
	return nil
}

// result is the error number of a call. Most verbs return it; some, and some drivers, return -1 and
// set errno.
func result(ret uintptr, errno int) sys.Errno {
	switch r := int32(ret); {
	case r == 0:
		return 0
	case r > 0:
		return sys.Errno(r)
	case errno != 0:
		return sys.Errno(errno)
	case r == -1:
		return sys.EIO
	default:
		return sys.Errno(-r)
	}
}

// made calls a function that returns the address of an object, or 0 with errno.
func made(op, on string, f dl.Func, args ...uintptr) (uintptr, *Error) {
	h, errno := f.CallErrno(args...)
	if h != 0 {
		return h, nil
	}
	if errno == 0 {
		errno = int(sys.EIO) // the library gave no reason
	}
	return 0, failed(op, on, sys.Errno(errno))
}

// PD is a protection domain: keys of its regions work in its queue pairs, all of them and no
// others. Keep one for each domain of trust.
type PD struct {
	object
	ctx *Context
}

// AllocPD makes a protection domain. The caller closes it, after everything that was made of it.
func (c *Context) AllocPD() (*PD, error) {
	if err := c.usable("alloc_pd"); err != nil {
		return nil, err
	}
	h, e := made("alloc_pd", c.name, c.lib.f.allocPD, c.h)
	if e != nil {
		return nil, e
	}
	pd := &PD{ctx: c}
	err := same(field{"ibv_pd.context", uint64(dl.At[cPD](h).context), uint64(c.h)})
	if err == nil {
		err = pd.open(&c.tree, "protection domain",
			fmt.Sprintf("protection domain %d of %s", dl.At[cPD](h).handle, c.name), h, nil, &c.object)
	}
	if err != nil {
		return nil, errors.Join(err, c.returned("dealloc_pd", c.name, c.lib.f.deallocPD, h))
	}
	return pd, nil
}

// Close frees the domain. ErrInUse names an object that is still open.
func (p *PD) Close() error {
	return p.close("dealloc_pd", func(h uintptr) error {
		return p.ctx.returned("dealloc_pd", p.name, p.ctx.lib.f.deallocPD, h)
	})
}
