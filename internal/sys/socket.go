package sys

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Error numbers of sockets.
const (
	ECONNREFUSED = unix.ECONNREFUSED
	ENOENT       = unix.ENOENT
	EMFILE       = unix.EMFILE
	ENFILE       = unix.ENFILE
)

// Levels and names of socket options (man 7 socket, man 7 tcp).
const (
	SolSocket = unix.SOL_SOCKET
	SolTCP    = unix.IPPROTO_TCP

	SoReuseAddr = unix.SO_REUSEADDR
	SoSndBuf    = unix.SO_SNDBUF
	SoRcvBuf    = unix.SO_RCVBUF
	SoBusyPoll  = unix.SO_BUSY_POLL
	SoZeroCopy  = unix.SO_ZEROCOPY

	TCPNoDelay = unix.TCP_NODELAY
)

// MsgZeroCopy asks the kernel to send from the pages themselves; see ZeroCopyDone.
const MsgZeroCopy = unix.MSG_ZEROCOPY

// MsgMore says that more follows at once, so that the kernel fills its segments first.
const MsgMore = unix.MSG_MORE

// SocketTCP makes a TCP socket that is non-blocking, closed on exec and unknown to Go's runtime: no
// poller watches it.
func SocketTCP(ipv6 bool) (int, error) {
	family := unix.AF_INET
	if ipv6 {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	return fd, callError("socket", "tcp", err)
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16(), ZoneId: zoneID(a.Addr().Zone())}
}

// zoneID is the number of an interface by its name or number. 0 is none; a link-local address takes
// one, or the kernel refuses it.
func zoneID(zone string) uint32 {
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n)
	}
	if i, err := net.InterfaceByName(zone); err == nil {
		return uint32(i.Index)
	}
	return 0
}

func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// BindTCP gives the socket its local address; port 0 lets the kernel choose.
func BindTCP(fd int, a netip.AddrPort) error {
	return callError("bind", a.String(), unix.Bind(fd, sockaddr(a)))
}

// ListenTCP makes the socket accept connections, with room for backlog that wait.
func ListenTCP(fd, backlog int) error { return callError("listen", "", unix.Listen(fd, backlog)) }

// AcceptTCP takes the next connection, non-blocking and closed on exec. EAGAIN means that none
// waits.
func AcceptTCP(fd int) (int, netip.AddrPort, error) {
	nfd, sa, err := unix.Accept4(fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	if err != nil {
		return -1, netip.AddrPort{}, callError("accept4", "", err)
	}
	return nfd, addrPort(sa), nil
}

// SocketError takes the pending error of a socket; nil when there is none.
func SocketError(fd int) error {
	v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return callError("getsockopt", "SO_ERROR", err)
	}
	if v != 0 {
		return Errno(v)
	}
	return nil
}

// LocalAddr is the socket's own address.
func LocalAddr(fd int) (netip.AddrPort, error) {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}, callError("getsockname", "", err)
	}
	return addrPort(sa), nil
}

// SetOption sets an integer option.
func SetOption(fd, level, name, value int) error {
	if err := unix.SetsockoptInt(fd, level, name, value); err != nil {
		return callError("setsockopt", fmt.Sprintf("level %d option %d = %d", level, name, value), err)
	}
	return nil
}

// Option reads an integer option.
func Option(fd, level, name int) (int, error) {
	v, err := unix.GetsockoptInt(fd, level, name)
	if err != nil {
		return 0, callError("getsockopt", fmt.Sprintf("level %d option %d", level, name), err)
	}
	return v, nil
}

// SetCongestion chooses the congestion control of one connection by its name. ENOENT: the kernel
// does not have it; EPERM: it is not in net.ipv4.tcp_allowed_congestion_control and the process
// lacks CAP_NET_ADMIN.
func SetCongestion(fd int, name string) error {
	if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name); err != nil {
		return callError("setsockopt", "TCP_CONGESTION "+name, err)
	}
	return nil
}

// Congestion is the name of the congestion control in use.
func Congestion(fd int) (string, error) {
	s, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	if err != nil {
		return "", callError("getsockopt", "TCP_CONGESTION", err)
	}
	return s, nil
}

// ResetOnClose makes Close cut the connection at once (RST): what is queued for sending is dropped.
func ResetOnClose(fd int) error {
	return callError("setsockopt", "SO_LINGER 0", unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER,
		&unix.Linger{Onoff: 1}))
}

// Control is a function for net.Dialer and net.ListenConfig that calls set with the socket before
// it is used.
func Control(set func(fd int) error) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error { return within(c, set) }
}

// OfConn calls do with the descriptor of a socket of package net.
func OfConn(c syscall.Conn, do func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return within(raw, do)
}

func within(c syscall.RawConn, do func(fd int) error) (err error) {
	if e := c.Control(func(fd uintptr) { err = do(int(fd)) }); e != nil {
		return e
	}
	return err
}
