package cm

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/sys"
)

// Port spaces of the connection manager. Each has ports of its own, and that of TCP is not the one
// of the internet.
const (
	portSpaceTCP = 0x0106 // reliable connections
	portSpaceUDP = 0x0111 // datagrams
	portSpaceIB  = 0x013f // whatever the ID is made for
)

// passive asks for an ID that is bound and does no more (RAI_PASSIVE).
const passive = 1

// Service is what the queue pairs of an ID carry.
type Service uint8

// The services. An ID meets those of its own service only.
const (
	RC Service = iota // reliable connections, as every program with rdma_cm has them
	UC                // unreliable connections, in the port space RDMA_PS_IB
	UD                // datagrams: the peer's queue pair is found, and nothing is connected
)

func (s Service) String() string {
	switch s {
	case RC:
		return "RC"
	case UC:
		return "UC"
	case UD:
		return "UD"
	}
	return fmt.Sprintf("service %d", uint8(s))
}

func (s Service) portSpace() uintptr {
	switch s {
	case UC:
		return portSpaceIB
	case UD:
		return portSpaceUDP
	}
	return portSpaceTCP
}

func (s Service) qpType() int32 {
	switch s {
	case UC:
		return int32(ibv.UC)
	case UD:
		return int32(ibv.UD)
	}
	return int32(ibv.RC)
}

// ID is one connection, or one listener. It may be used by several goroutines.
type ID struct {
	c       *Channel
	service Service
	mu      sync.Mutex
	handle  uintptr // 0: closed
}

// NewID makes an ID for RC. The caller closes it.
func (c *Channel) NewID() (*ID, error) {
	return c.newID("create_id", RC, func() (uintptr, error) { return c.create(RC) })
}

// NewIDAt makes an ID for a service that is bound to an address, as Bind says. The caller closes
// it.
func (c *Channel) NewIDAt(s Service, a netip.AddrPort) (*ID, error) {
	if s != UC {
		id, err := c.newID("create_id", s, func() (uintptr, error) { return c.create(s) })
		if err != nil {
			return nil, err
		}
		if err := id.Bind(a); err != nil {
			return nil, errors.Join(err, id.Close())
		}
		return id, nil
	}
	b, err := sockaddr(a)
	if err != nil {
		return nil, err
	}
	if b == nil {
		return nil, errNoAddress("create_ep")
	}
	return c.newID("create_ep", s, func() (uintptr, error) {
		handle, errno, err := c.l.endpoint(s, b)
		if err != nil {
			return 0, err
		}
		if errno != 0 {
			return 0, callError("create_ep", errno)
		}
		if errno := c.l.call(c.l.f.migrate, handle, c.handle); errno != 0 {
			c.l.f.destroyID.Call1(handle)
			return 0, callError("migrate_id", errno)
		}
		return handle, nil
	})
}

// create makes the library's ID.
func (c *Channel) create(s Service) (uintptr, error) {
	at, err := dl.Alloc(8)
	if err != nil {
		return 0, err
	}
	defer dl.Free(at)
	if errno := c.l.call(c.l.f.createID, c.handle, dl.Address(at), 0, s.portSpace()); errno != 0 {
		return 0, callError("create_id", errno)
	}
	return *dl.At[uintptr](dl.Address(at)), nil
}

// newID enters an ID that do makes.
func (c *Channel) newID(op string, s Service, do func() (uintptr, error)) (*ID, error) {
	c.next.RLock()
	defer c.next.RUnlock()
	if c.handle == 0 {
		return nil, &Error{Op: op, Kind: ErrClosed}
	}
	handle, err := do()
	if err != nil {
		return nil, err
	}
	id := &ID{c: c, service: s, handle: handle}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ids[id.handle] = id
	c.live.Add(1)
	return id, nil
}

// do calls f with the ID's handle and makes an error of its answer.
func (id *ID) do(op string, f dl.Func, args ...uintptr) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.locked(op, f, args...)
}

// onDevice is do for calls in which the library looks at the device of the ID without asking
// whether it has one.
func (id *ID) onDevice(op string, f dl.Func, args ...uintptr) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.handle != 0 && dl.At[cmID](id.handle).verbs == 0 {
		return &Error{Op: op, Kind: ErrState,
			Hint: "the ID has no device yet: ResolveAddress (and its event) or a ConnectRequest gives it one"}
	}
	return id.locked(op, f, args...)
}

func (id *ID) locked(op string, f dl.Func, args ...uintptr) error {
	if id.handle == 0 {
		return &Error{Op: op, Kind: ErrClosed}
	}
	if errno := id.c.l.call(f, append([]uintptr{id.handle}, args...)...); errno != 0 {
		return callError(op, errno)
	}
	return nil
}

func callError(op string, errno sys.Errno) error {
	e := &Error{Op: op, Errno: errno}
	switch errno {
	case sys.EINVAL:
		e.Kind, e.Hint = ErrState, "this does not come now, or the device does not take it"
	case sys.EADDRINUSE:
		e.Hint = "another program has this port: choose another one (0 is any)"
	case sys.EADDRNOTAVAIL, sys.ENODEV:
		e.Kind, e.Hint = ErrAddress,
			"no RDMA device has this address: rdma link shows the interfaces of devices, ip address their addresses"
	case sys.ENETUNREACH, sys.EHOSTUNREACH:
		e.Kind, e.Hint = ErrAddress, "the kernel has no route to it: ip route get"
	}
	return e
}

// Bind gives the ID a local address. Port 0 is any; an address that stands for all (0.0.0.0, ::)
// means all devices.
func (id *ID) Bind(a netip.AddrPort) error {
	b, err := sockaddr(a)
	if err != nil {
		return err
	}
	if b == nil {
		return errNoAddress("bind_addr")
	}
	return id.with(b, func(p uintptr) error { return id.do("bind_addr", id.c.l.f.bind, p) })
}

func errNoAddress(op string) error {
	return &Error{Op: op, Kind: ErrInvalid, Hint: "expected an IP address and a port"}
}

// with calls f with a copy of b in C memory.
func (id *ID) with(b []byte, f func(p uintptr) error) error {
	if len(b) == 0 {
		return f(0)
	}
	m, err := dl.Alloc(len(b))
	if err != nil {
		return err
	}
	defer dl.Free(m)
	copy(m, b)
	return f(dl.Address(m))
}

// ResolveAddress finds the device that leads to an address, and its neighbour there. from is the
// local address, or the zero value for any. It ends in AddressResolved or AddressError.
func (id *ID) ResolveAddress(from, to netip.AddrPort, timeout time.Duration) error {
	src, err := sockaddr(from)
	if err != nil {
		return err
	}
	dst, err := sockaddr(to)
	if err != nil {
		return err
	}
	if dst == nil || src != nil && from.Addr().Is4() != to.Addr().Is4() {
		return &Error{Op: "resolve_addr", Kind: ErrInvalid,
			Hint: fmt.Sprintf("from %s to %s: expected addresses of one kind, IPv4 or IPv6", from, to)}
	}
	ms, err := milliseconds("resolve_addr", timeout)
	if err != nil {
		return err
	}
	return id.with(src, func(s uintptr) error {
		return id.with(dst, func(d uintptr) error { return id.do("resolve_addr", id.c.l.f.resolveAddress, s, d, ms) })
	})
}

// ResolveRoute finds the way to the address that was resolved. It ends in RouteResolved or
// RouteError.
func (id *ID) ResolveRoute(timeout time.Duration) error {
	ms, err := milliseconds("resolve_route", timeout)
	if err != nil {
		return err
	}
	return id.onDevice("resolve_route", id.c.l.f.resolveRoute, ms)
}

func milliseconds(op string, d time.Duration) (uintptr, error) {
	if d < time.Millisecond || d.Milliseconds() > 1<<31-1 {
		return 0, &Error{Op: op, Kind: ErrInvalid, Hint: fmt.Sprintf("a timeout of %v: expected 1 ms to 24 days", d)}
	}
	return uintptr(d.Milliseconds()), nil
}

// Listen begins to take connections at the address that was bound; each is an event ConnectRequest.
// backlog is how many may wait for Accept.
func (id *ID) Listen(backlog int) error {
	return id.do("listen", id.c.l.f.listen, uintptr(max(1, min(backlog, 1<<15))))
}

// Connect asks the peer for a connection. It ends in ConnectResponse, Rejected, Unreachable or
// ConnectError.
func (id *ID) Connect(p Params) error {
	if err := p.check("connect", MaxConnectData); err != nil {
		return err
	}
	return id.params("connect", id.c.l.f.connect, p)
}

// Accept takes a connection that was asked for. Its queue pair is ready to send (InitQP, ReadyQP)
// before this is called, since the peer may send at once. It ends in Established, or in
// ConnectError or Unreachable where the peer does not answer any more.
func (id *ID) Accept(p Params) error {
	most := MaxAcceptData
	if id.service == UD {
		most = MaxDatagramData
	}
	if err := p.check("accept", most); err != nil {
		return err
	}
	return id.params("accept", id.c.l.f.accept, p)
}

func (id *ID) params(op string, f dl.Func, p Params) error {
	b, err := newBlock(p)
	if err != nil {
		return err
	}
	defer b.free()
	return id.onDevice(op, f, b.address())
}

// Reject says no to a connection that was asked for, with a reason for the peer's program.
func (id *ID) Reject(reason []byte) error {
	most := MaxRejectData
	if id.service == UD {
		most = MaxDatagramData
	}
	if len(reason) > most {
		return &Error{Op: "reject", Kind: ErrInvalid,
			Hint: fmt.Sprintf("%d bytes: expected at most %d", len(reason), most)}
	}
	return id.with(reason, func(p uintptr) error {
		return id.onDevice("reject", id.c.l.f.reject, p, uintptr(len(reason)))
	})
}

// Establish tells the peer, which has accepted, that this side is ready. Its queue pair is ready to
// send before (ReadyQP). No event follows.
func (id *ID) Establish() error { return id.onDevice("establish", id.c.l.f.establish) }

// Disconnect ends the connection; both sides get Disconnected. The queue pair is the caller's to
// end (QP.Err).
func (id *ID) Disconnect() error { return id.onDevice("disconnect", id.c.l.f.disconnect) }

// InitQP moves the queue pair of this connection from Reset to Init, with the port and the
// partition of the connection, and of UD with the key that the connection manager has for all.
// Receives may be posted then. A queue pair for UD needs no more of the ID: it is made ready by its
// own functions.
func (id *ID) InitQP(q *ibv.QP, access ibv.Access) error { return id.move(q, ibv.QPInit, access, nil) }

// Pauses are what happens when a message finds no buffer. The zero value is what the connection
// manager says: a receiver asks for 655 ms, and a sender tries again as often as its peer has said.
type Pauses struct {
	// code of the pause that this side asks for, 1 to 31 (InfiniBand specification, table 45); 0:
	// the connection manager's
	MinRNR   uint8
	RNRRetry uint8 // how often this side tries again, 1 to 7, which is for ever; 0: what the peer has said
}

// ReadyQP moves the queue pair from Init to ReadyToReceive and ReadyToSend, with what both sides
// agreed on. access is what the peer may do with it; responder and initiator are the numbers of
// reads and atomics at once that go to Accept, or Agreed.
func (id *ID) ReadyQP(q *ibv.QP, access ibv.Access, responder, initiator uint8, pauses Pauses) error {
	// Init once more: before the connection was asked for, less was known.
	if err := id.move(q, ibv.QPInit, access, nil); err != nil {
		return err
	}
	if err := id.move(q, ibv.QPReadyToReceive, access, func(a *qpAttr) {
		if responder != Agreed {
			a.maxDestAtomic = responder
		}
		if pauses.MinRNR != 0 {
			a.minRNR = pauses.MinRNR
		}
	}); err != nil {
		return err
	}
	return id.move(q, ibv.QPReadyToSend, access, func(a *qpAttr) {
		if initiator != Agreed {
			a.maxRdAtomic = initiator
		}
		if pauses.RNRRetry != 0 {
			a.rnrRetry = pauses.RNRRetry
		}
	})
}

// move makes one transition with the attributes that the connection manager has for it.
func (id *ID) move(q *ibv.QP, to ibv.QPState, access ibv.Access, change func(*qpAttr)) error {
	attr, err := dl.Alloc(ibv.SizeQPAttr)
	if err != nil {
		return err
	}
	defer dl.Free(attr)
	mask, err := dl.Alloc(4)
	if err != nil {
		return err
	}
	defer dl.Free(mask)
	a := dl.At[qpAttr](dl.Address(attr))
	a.state = uint32(to)
	if err := id.onDevice("init_qp_attr", id.c.l.f.initQPAttr, dl.Address(attr), dl.Address(mask)); err != nil {
		return err
	}
	if change != nil {
		change(a)
	}
	return q.ModifyAs(to, attr, int(*dl.At[int32](dl.Address(mask))), access)
}

// Device is the name of the device that the ID is bound to and the number of its port; "" and 0
// while it is bound to none or to all.
func (id *ID) Device() (name string, port int) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.handle == 0 {
		return "", 0
	}
	h := dl.At[cmID](id.handle)
	if name = nameOf(h.verbs); name == "" {
		return "", 0
	}
	return name, int(h.port)
}

// Local is the address of this side, the zero value as long as there is none.
func (id *ID) Local() netip.AddrPort { return id.address(func(h *cmID) []byte { return h.source[:] }) }

// Remote is the address of the peer, the zero value as long as there is none.
func (id *ID) Remote() netip.AddrPort { return id.address(func(h *cmID) []byte { return h.dest[:] }) }

func (id *ID) address(of func(*cmID) []byte) netip.AddrPort {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.handle == 0 {
		return netip.AddrPort{}
	}
	return addrPort(of(dl.At[cmID](id.handle)))
}

// optionACKTimeout is RDMA_OPTION_ID_ACK_TIMEOUT, an option of the library (rdma_set_option).
const optionACKTimeout = 3

// SetACKTimeout sets how long the queue pairs of the connection wait for an acknowledgement: 4.096
// µs × 2^n; 0 is for ever. Before Connect or Accept.
func (id *ID) SetACKTimeout(n uint8) error {
	if n > 31 {
		return &Error{Op: "set_option", Kind: ErrInvalid,
			Hint: fmt.Sprintf("an acknowledgement timeout of %d: expected 0 to 31", n)}
	}
	return id.option(optionACKTimeout, []byte{n})
}

func (id *ID) option(name uintptr, value []byte) error {
	return id.with(value, func(p uintptr) error {
		return id.do("set_option", id.c.l.f.setOption, 0, name, p, uintptr(len(value)))
	})
}

// Close ends the ID. A connection is disconnected by it, a request that was not accepted rejected;
// its queue pair stays the caller's. No event of it comes any more. A second Close does nothing.
func (id *ID) Close() error {
	id.mu.Lock()
	handle := id.handle
	id.handle = 0
	id.mu.Unlock()
	if handle == 0 {
		return nil
	}
	id.c.mu.Lock()
	delete(id.c.ids, handle)
	id.c.mu.Unlock()
	defer id.c.live.Done()
	if errno := id.c.l.call(id.c.l.f.destroyID, handle); errno != 0 {
		return &Error{Op: "destroy_id", Errno: errno}
	}
	return nil
}
