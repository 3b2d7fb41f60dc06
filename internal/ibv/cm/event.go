package cm

import (
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/sys"
)

// Errors of events and calls, matched by errors.Is.
var (
	ErrAddress     = errors.New("no RDMA device leads to the address")
	ErrRoute       = errors.New("no RDMA route to the address")
	ErrUnreachable = errors.New("the peer does not answer")
	// what it said with it is in Event.Params.PrivateData
	ErrRejected = errors.New("the peer rejected the connection")
	ErrRefused  = errors.New("no service listens at the address") // a rejection by the peer's connection manager
	ErrConnect  = errors.New("the connection could not be made")
	ErrGone     = errors.New("the RDMA device was removed")
	ErrState    = errors.New("not in this state")
	ErrClosed   = errors.New("closed")
)

// EventType is what happened.
type EventType uint32

// The events of reliable connections, numbered as the library does. Those that end in an error have
// it in Event.Err.
const (
	AddressResolved EventType = 0 // the device is known: ID.Device
	AddressError    EventType = 1 // ErrAddress
	RouteResolved   EventType = 2 // Connect may follow
	RouteError      EventType = 3 // ErrRoute
	ConnectRequest  EventType = 4 // a peer wants to connect to Event.Listener; Event.ID is the new one
	ConnectResponse EventType = 5 // the peer accepted: make the queue pair ready, then Establish
	ConnectError    EventType = 6 // ErrConnect
	Unreachable     EventType = 7 // ErrUnreachable
	Rejected        EventType = 8 // ErrRejected or ErrRefused
	// the connection that was accepted is up; of UD: the peer accepted, and says where to send to
	Established    EventType = 9
	Disconnected   EventType = 10 // the peer disconnected, or this side did
	DeviceRemoved  EventType = 11 // ErrGone: everything on the device is to be closed
	AddressChanged EventType = 14 // the address moved to another device; connections stay where they are
	TimeWaitExit   EventType = 15 // the queue pair's number may be used for another connection
)

func (t EventType) String() string {
	switch t {
	case AddressResolved:
		return "address resolved"
	case AddressError:
		return "address error"
	case RouteResolved:
		return "route resolved"
	case RouteError:
		return "route error"
	case ConnectRequest:
		return "connect request"
	case ConnectResponse:
		return "connect response"
	case ConnectError:
		return "connect error"
	case Unreachable:
		return "unreachable"
	case Rejected:
		return "rejected"
	case Established:
		return "established"
	case Disconnected:
		return "disconnected"
	case DeviceRemoved:
		return "device removed"
	case AddressChanged:
		return "address changed"
	case TimeWaitExit:
		return "time wait is over"
	}
	return fmt.Sprintf("event %d", uint32(t))
}

// Event is something that happened to an ID. The caller owns it; nothing of the library is in it.
type Event struct {
	Type     EventType
	ID       *ID
	Listener *ID // of a ConnectRequest: the ID that listens
	Status   int // as the library has it: a negative error number, or the reason of a rejection
	// of ConnectRequest, ConnectResponse, Rejected, Established and (UD) Unreachable: what the peer
	// gave along
	Params Params
	Err    error // an *Error where the event is one, else nil
}

// Params go along with a connection. Private data comes out at the other side with zeros behind it,
// up to the most that there may be: a side that sends data of several lengths says the length in
// it.
type Params struct {
	PrivateData        []byte // at most MaxConnectData, MaxAcceptData or MaxRejectData bytes
	ResponderResources uint8  // reads and atomics of the peer at once that this side takes
	InitiatorDepth     uint8  // reads and atomics of this side at once
	FlowControl        bool   // the hardware's end-to-end flow control; Soft-RoCE has none
	RetryCount         uint8  // 0 to 7; of the side that connects
	RNRRetryCount      uint8  // 0 to 6; 7 is for ever
	SRQ                bool   // the queue pair has a shared receive queue, which excludes FlowControl
	QPN                uint32 // its number; a request for UD does not carry it

	// Of UD, where the peer accepted: the key of its queue pair, and the way there.
	QKey uint32
	To   ibv.Address
}

// The most private data that the connection manager of InfiniBand and RoCE carries, in bytes.
const (
	MaxConnectData = 56
	MaxAcceptData  = 196
	MaxRejectData  = 148

	// UD answers with other messages.
	MaxDatagramData = 136
)

// Agreed in place of a number of reads and atomics at once means as many as both sides said.
const Agreed = 0xff

func (p Params) check(op string, most int) error {
	switch {
	case len(p.PrivateData) > most:
		return &Error{Op: op, Kind: ErrInvalid, Hint: fmt.Sprintf("%d bytes of private data: expected at most %d",
			len(p.PrivateData), most)}
	case p.RetryCount > 7 || p.RNRRetryCount > 7:
		return &Error{Op: op, Kind: ErrInvalid, Hint: fmt.Sprintf("%d retries, %d RNR retries: expected at most 7",
			p.RetryCount, p.RNRRetryCount)}
	case p.QPN == 0 || p.QPN >= 1<<24:
		return &Error{Op: op, Kind: ErrInvalid,
			Hint: fmt.Sprintf("queue pair %#x: expected the number of the queue pair, 24 bits", p.QPN)}
	}
	return nil
}

// ErrInvalid is wrapped by errors of arguments that are wrong before any call.
var ErrInvalid = errors.New("invalid argument")

// Error is a call or an event that failed.
type Error struct {
	Op     string    // the call, without rdma_, or the event
	Errno  sys.Errno // 0 of a rejection, and where the library gave none
	Reason int       // of a rejection: the code of the InfiniBand specification (12.6.7.2)
	Kind   error     // one of the errors of this package, or nil
	Hint   string    // what it means and how to fix it, or ""
}

func (e *Error) Error() string {
	s := "cm: " + e.Op
	if e.Kind != nil {
		s += ": " + e.Kind.Error()
	}
	if e.Errno != 0 {
		s += ": " + e.Errno.Error()
	}
	if e.Hint != "" {
		s += ": " + e.Hint
	}
	return s
}

// Unwrap gives the error number and the kind to errors.Is.
func (e *Error) Unwrap() []error {
	var out []error
	if e.Errno != 0 {
		out = append(out, e.Errno)
	}
	if e.Kind != nil {
		out = append(out, e.Kind)
	}
	return out
}

// failure is the error of an event, nil where it is none. status is a negative error number, but of
// a rejection its reason.
func failure(t EventType, status int) error {
	e := &Error{Op: t.String()}
	switch t {
	case AddressError:
		e.Kind, e.Hint = ErrAddress,
			"is there a route to it (ip route get), a neighbour that answers (ip neigh), and a device on that "+
				"interface (rdma link)?"
	case RouteError:
		e.Kind, e.Hint = ErrRoute, "on InfiniBand the subnet manager answers this: is one running?"
	case ConnectError:
		e.Kind = ErrConnect
	case Unreachable:
		if status > 0 { // the answer of a service for datagrams
			e.Kind, e.Reason, e.Hint = ErrRejected, status, datagramReason(status)
			if status == datagramNoService {
				e.Kind = ErrRefused
			}
			return e
		}
		e.Kind, e.Hint = ErrUnreachable, "is the peer up, and does its firewall let UDP port 4791 (RoCE) pass?"
	case Rejected:
		if status > 0 {
			e.Kind, e.Reason = ErrRejected, status
			if status == reasonNoService {
				e.Kind = ErrRefused
			}
			e.Hint = reason(status)
			return e
		}
		e.Kind = ErrRejected // iWARP gives an error number
	case DeviceRemoved:
		e.Kind = ErrGone
	default:
		if status >= 0 {
			return nil
		}
	}
	if status < 0 {
		e.Errno = sys.Errno(-status)
	}
	return e
}

// Reasons of rejections (InfiniBand specification, volume 1, 12.6.7.2) that say more than their
// number.
const reasonNoService = 8

// datagramNoService is the status of a service for datagrams (InfiniBand specification, volume 1,
// 12.11.1.2) that is not there.
const datagramNoService = 1

func datagramReason(status int) string {
	switch status {
	case datagramNoService:
		return "status 1: is the peer's program running, and is this its port for datagrams?"
	case 2:
		return "status 2: the program at the other side said no"
	case 3:
		return "status 3: the peer has no queue pair for it"
	}
	return fmt.Sprintf("status %d of the InfiniBand specification, volume 1, 12.11.1.2", status)
}

func reason(code int) string {
	switch code {
	case 1:
		return "reason 1: the peer has no queue pair left"
	case 3:
		return "reason 3: the peer has no resources left"
	case 4:
		return "reason 4: the peer gave up waiting"
	case reasonNoService:
		return "reason 8: is the peer's program running, and is this its port?"
	case 9, 18, 20:
		return fmt.Sprintf("reason %d: the peer's connection manager does not carry this service", code)
	case 10:
		return "reason 10: the peer still has an old connection of this queue pair number: try again"
	case 28:
		return "reason 28: the program at the other side said no"
	}
	return fmt.Sprintf("reason %d of the InfiniBand specification, volume 1, 12.6.7.2", code)
}
