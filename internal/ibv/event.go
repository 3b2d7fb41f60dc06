package ibv

import (
	"fmt"

	"github.com/penstock-io/penstock/internal/sys"
)

// EventType is what an asynchronous event tells.
type EventType uint32

// The types (enum ibv_event_type).
const (
	EventCQErr EventType = iota
	EventQPFatal
	EventQPReqErr
	EventQPAccessErr
	EventCommEst
	EventSQDrained
	EventPathMig
	EventPathMigErr
	EventDeviceFatal
	EventPortActive
	EventPortErr
	EventLIDChange
	EventPKeyChange
	EventSMChange
	EventSRQErr
	EventSRQLimit
	EventQPLastWQE
	EventClientReregister
	EventGIDChange
	EventWQFatal
)

func (t EventType) String() string {
	return oneOf(uint32(t), "completion queue overrun", "queue pair failed", "invalid request from the peer",
		"access violation by the peer",
		"communication established", "send queue drained", "path migrated", "path migration failed", "device failed",
		"port active", "port down",
		"LID changed", "partition table changed", "subnet manager changed", "shared receive queue failed",
		"shared receive queue below its limit",
		"last receive taken", "client must register again", "GID table changed", "work queue failed")
}

// AsyncEvent is something that happened outside of a request. One of QP, CQ, SRQ and Port is set,
// by the type; none for the device. It is acknowledged already.
type AsyncEvent struct {
	Type EventType
	QP   *QP
	CQ   *CQ
	SRQ  *SRQ
	Port int
}

func (e AsyncEvent) String() string {
	switch {
	case e.QP != nil:
		return fmt.Sprintf("%s: %s", e.QP.name, e.Type)
	case e.CQ != nil:
		return fmt.Sprintf("%s: %s", e.CQ.name, e.Type)
	case e.SRQ != nil:
		return fmt.Sprintf("%s: %s", e.SRQ.name, e.Type)
	case e.Port != 0:
		return fmt.Sprintf("port %d: %s", e.Port, e.Type)
	}
	return e.Type.String()
}

// AsyncFD is a descriptor, non-blocking and the context's own, that is readable while NextAsync has
// an event.
func (c *Context) AsyncFD() int { return c.fd }

// NextAsync is the next asynchronous event; ok is false when there is none. Events of objects that
// are being closed are left out.
func (c *Context) NextAsync() (ev AsyncEvent, ok bool, err error) {
	c.eventMu.Lock()
	defer c.eventMu.Unlock()
	for {
		if c.event.v == nil {
			return AsyncEvent{}, false, &Error{Op: "get_async_event", On: c.name, Kind: ErrClosed}
		}
		ret, errno := c.lib.f.getAsyncEvent.CallErrno(c.h, c.event.p())
		switch e := sys.Errno(errno); {
		case int32(ret) == 0:
		case e == sys.EAGAIN:
			return AsyncEvent{}, false, nil
		case e == sys.EINTR:
			continue
		default:
			return AsyncEvent{}, false, failed("get_async_event", c.name, result(ret, errno))
		}
		ev, known := c.describe(c.event.v)
		c.lib.f.ackAsyncEvent.Call1(c.event.p())
		if known {
			return ev, true, nil
		}
	}
}

// describe finds the object of an event; false when it is gone.
func (c *Context) describe(x *cAsyncEvent) (AsyncEvent, bool) {
	ev := AsyncEvent{Type: EventType(x.typ)}
	switch ev.Type {
	case EventPortActive, EventPortErr, EventLIDChange, EventPKeyChange, EventSMChange, EventClientReregister,
		EventGIDChange:
		ev.Port = int(int32(x.element))
		return ev, true
	case EventCQErr, EventQPFatal, EventQPReqErr, EventQPAccessErr, EventCommEst, EventSQDrained, EventPathMig,
		EventPathMigErr, EventSRQErr, EventSRQLimit,
		EventQPLastWQE:
	default:
		return ev, true
	}
	o := c.tree.find(x.element)
	if o == nil {
		return ev, false
	}
	switch s := o.self.(type) {
	case *QP:
		ev.QP = s
	case *CQ:
		ev.CQ = s
		s.overrun.Store(true) // the only type that is about a completion queue
	case *SRQ:
		ev.SRQ = s
	}
	return ev, true
}
