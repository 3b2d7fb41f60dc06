package cm

import (
	"errors"
	"fmt"
	"sync"

	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/sys"
)

// Channel gives events of the IDs that were made in it, one after the other. Its descriptor is
// readable while there are some. It may be used by several goroutines; each event goes to one of
// them.
type Channel struct {
	l  *Library
	fd int

	mu  sync.Mutex // of what follows; never held while the library is called
	ids map[uintptr]*ID

	live sync.WaitGroup // IDs that the library has

	next   sync.RWMutex // held for writing to get an event or close the channel, for reading to make an ID
	handle uintptr      // 0: closed
}

// Open makes a channel. Errors wrap ErrUnavailable where the kernel or the user's rights are in the
// way. The caller closes it.
func (l *Library) Open() (*Channel, error) {
	handle, errno := l.f.createChannel.CallErrno()
	if handle == 0 {
		e := &Error{Op: "create_event_channel", Errno: sys.Errno(errno), Kind: ErrUnavailable}
		switch e.Errno {
		case sys.EACCES, sys.EPERM:
			e.Hint = "this user may not open /dev/infiniband/rdma_cm: run as root, or give the user the group of " +
				"that file"
		default:
			e.Hint = "the kernel's connection manager does not answer: modprobe rdma_ucm (and is there a device? " +
				"rdma link)"
		}
		return nil, e
	}
	c := &Channel{l: l, handle: handle, fd: int(dl.At[cmChannel](handle).fd), ids: map[uintptr]*ID{}}
	if err := sys.SetNonblock(c.fd); err != nil {
		l.f.destroyChannel.Call1(handle)
		return nil, fmt.Errorf("cm: %w", err)
	}
	return c, nil
}

// FD is the descriptor to wait for: readable means that Next may have an event.
func (c *Channel) FD() int { return c.fd }

// Next is the next event, if there is one. It does not wait. The error is that of the channel; the
// event of a failure has its own.
func (c *Channel) Next() (ev Event, ok bool, err error) {
	c.next.Lock()
	defer c.next.Unlock()
	if c.handle == 0 {
		return Event{}, false, &Error{Op: "get_cm_event", Kind: ErrClosed}
	}
	at, err := dl.Alloc(8)
	if err != nil {
		return Event{}, false, err
	}
	defer dl.Free(at)
	for {
		if errno := c.l.call(c.l.f.getEvent, c.handle, dl.Address(at)); errno == sys.EAGAIN {
			return Event{}, false, nil
		} else if errno != 0 {
			return Event{}, false, &Error{Op: "get_cm_event", Errno: errno}
		}
		if ev, ok = c.take(*dl.At[uintptr](dl.Address(at))); ok {
			return ev, true, nil
		}
	}
}

// take makes an Event of the library's, which it gives back at once. That of an ID which was closed
// meanwhile is dropped.
func (c *Channel) take(at uintptr) (Event, bool) {
	e := dl.At[cmEvent](at)
	ev := Event{Type: EventType(e.typ), Status: int(e.status), Err: failure(EventType(e.typ), int(e.status))}
	handle, orphan := e.id, uintptr(0)
	c.mu.Lock()
	if ev.Type == ConnectRequest {
		if ev.Listener = c.ids[e.listen]; ev.Listener != nil {
			ev.ID = &ID{c: c, service: ev.Listener.service, handle: handle}
			c.ids[handle] = ev.ID
			c.live.Add(1)
		} else {
			orphan = handle
		}
	} else {
		ev.ID = c.ids[handle]
	}
	c.mu.Unlock()
	if ev.ID != nil {
		switch ev.Type {
		case ConnectRequest, ConnectResponse, Rejected, Established, Unreachable:
			ev.Params = e.given(ev.ID.service)
		}
	}
	// From here on the ID's owner can destroy it: the library's destroy_id waits for this.
	c.l.f.ackEvent.Call1(at)
	if orphan != 0 {
		c.l.f.destroyID.Call1(orphan)
	}
	return ev, ev.ID != nil
}

// Close closes the channel and all IDs that are left in it. A second Close does nothing.
func (c *Channel) Close() error {
	c.next.Lock()
	defer c.next.Unlock()
	if c.handle == 0 {
		return nil
	}
	c.mu.Lock()
	var left []*ID
	for _, id := range c.ids {
		left = append(left, id)
	}
	c.mu.Unlock()
	var errs []error
	for _, id := range left {
		errs = append(errs, id.Close())
	}
	c.live.Wait() // for those whose owners close them just now
	c.l.f.destroyChannel.Call1(c.handle)
	c.handle, c.fd = 0, -1
	return errors.Join(errs...)
}

// call is the error number of a function that returns 0, or -1 with errno.
func (l *Library) call(f dl.Func, args ...uintptr) sys.Errno {
	ret, errno := f.CallErrno(args...)
	switch {
	case int32(ret) == 0:
		return 0
	case errno == 0:
		return sys.EIO // the library gave no reason
	}
	return sys.Errno(errno)
}
