package sys

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/penstock-io/penstock/internal/netlink"
)

// ErrNoOwner is what TCPPeerUID and PeerCred return when the kernel cannot name the user at the
// other end.
var ErrNoOwner = errors.New("the kernel names no user of this machine for the other end")

// ENOTCONN says that a connection is over.
const ENOTCONN = unix.ENOTCONN

// TCPPeerUID tells the user whose socket is at the other end of the established TCP connection fd,
// both ends of which are in the calling thread's network namespace. It asks the kernel for the one
// socket that has the addresses and ports of fd the other way round (NETLINK_SOCK_DIAG, man 7
// sock_diag), which takes no rights. The other end cannot forge the answer. It is the user who made
// that socket: by connect, or by accept. While no process has accepted the connection, it is the
// user of the socket that listens. The error is ENOTCONN if an end was closed, and else wraps
// ErrNoOwner.
func TCPPeerUID(fd int) (int, error) {
	uid, err := tcpPeerUID(fd)
	if err != nil {
		return 0, fmt.Errorf("owner of a TCP connection: %w", err)
	}
	return uid, nil
}

func tcpPeerUID(fd int) (int, error) {
	local, err := LocalAddr(fd)
	if err != nil {
		return 0, err
	}
	to, err := unix.Getpeername(fd)
	if err != nil {
		return 0, callError("getpeername", "", err)
	}
	remote := unmapped(addrPort(to))
	local = unmapped(local)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		return 0, callError("getsockopt", "SO_COOKIE", err)
	}
	d, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrNoOwner, callError("socket", "NETLINK_SOCK_DIAG", err))
	}
	defer unix.Close(d)
	peer, err := findTCP(d, remote, local)
	if err != nil {
		return 0, err
	}
	if peer.pending() {
		// The listener is found by its own address. The connection still waits afterwards, so the
		// listener was not closed.
		l, err := findTCP(d, remote, netip.AddrPortFrom(anyOf(remote.Addr()), 0))
		if err != nil {
			return 0, err
		}
		if peer, err = findTCP(d, remote, local); err != nil {
			return 0, err
		}
		if peer.pending() && l.state == unix.BPF_TCP_LISTEN {
			peer.uid, peer.inode, peer.state = l.uid, l.inode, unix.BPF_TCP_ESTABLISHED
		}
	}
	// That fd is connected after the other end was looked up means that it was so then: the two are
	// the ends of one connection. The cookie means that the answers are about this network
	// namespace.
	own, err := findTCP(d, local, remote)
	switch {
	case err != nil:
		return 0, err
	case own.cookie != cookie:
		if _, err := unix.Getpeername(fd); err != nil {
			return 0, callError("getpeername", "", err)
		}
		return 0, fmt.Errorf("no socket %v in the network namespace of this thread, or a kernel without inet_diag "+
			"and tcp_diag: %w", local, ErrNoOwner)
	case own.state != unix.BPF_TCP_ESTABLISHED, peer.state != unix.BPF_TCP_ESTABLISHED, peer.inode == 0:
		return 0, fmt.Errorf("the connection of %v with %v is over (states %d and %d of TCP): %w", local, remote,
			own.state, peer.state, ENOTCONN)
	}
	return oneUser(int(peer.uid))
}

// tcpSocket is what the kernel says of a socket.
type tcpSocket struct {
	state  uint8
	cookie uint64
	uid    uint32
	inode  uint32 // 0: no process has it
}

// pending reports whether it is a connection that no process has accepted. What the kernel gives as
// its owner then depends on its version, and is root in many.
func (s *tcpSocket) pending() bool {
	return s.inode == 0 && (s.state == unix.BPF_TCP_ESTABLISHED || s.state == unix.BPF_TCP_SYN_RECV)
}

// Of linux/inet_diag.h and linux/sock_diag.h.
const (
	sockDiagByFamily = 20
	diagRequest      = 8 + diagID      // struct inet_diag_req_v2
	diagMessage      = 4 + diagID + 20 // struct inet_diag_msg
	diagID           = 48              // struct inet_diag_sockid
)

// findTCP asks for the socket that has these addresses. If there is none, the kernel may answer
// with one that listens on local; else the answer is the zero value.
func findTCP(fd int, local, remote netip.AddrPort) (s tcpSocket, err error) {
	family := byte(unix.AF_INET)
	if local.Addr().Is6() {
		family = unix.AF_INET6
	}
	var req [diagRequest]byte
	req[0], req[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(req[4:], ^uint32(0)) // in any state
	id := req[8:]
	binary.BigEndian.PutUint16(id, local.Port())
	binary.BigEndian.PutUint16(id[2:], remote.Port())
	copy(id[4:20], local.Addr().AsSlice())
	copy(id[20:36], remote.Addr().AsSlice())
	binary.NativeEndian.PutUint64(id[40:], ^uint64(0)) // with any cookie
	const seq = 1
	if err := NetlinkSend(fd, netlink.End(append(netlink.Begin(nil, sockDiagByFamily, 0, seq),
		req[:]...))); err != nil {
		return s, err
	}
	var buf [4096]byte
	n, e := NetlinkRecv(fd, buf[:]) // the kernel has answered when send returns
	if e != 0 {
		return s, callError("recv", "NETLINK_SOCK_DIAG", e)
	}
	m, _, ok := netlink.Next(buf[:min(n, len(buf))])
	switch {
	case ok && m.Kind == netlink.Error:
		no, _ := m.Errno()
		if Errno(no) == ENOENT {
			return s, nil
		}
		return s, fmt.Errorf("%w: %w", ErrNoOwner, callError("sock_diag", "tcp", Errno(no)))
	case !ok || m.Kind != sockDiagByFamily || len(m.Body) < diagMessage:
		return s, fmt.Errorf("answer of sock_diag of %d bytes is malformed: %w", n, EINVAL)
	}
	b := m.Body
	s.state = b[1]
	got, to := diagAddress(b[0], b[8:24], b[4:]), diagAddress(b[0], b[24:40], b[6:])
	b = b[4:]
	s.cookie = binary.NativeEndian.Uint64(b[40:])
	s.uid, s.inode = binary.NativeEndian.Uint32(b[60:]), binary.NativeEndian.Uint32(b[64:])
	if s.state != unix.BPF_TCP_LISTEN && (got != local || to != remote) {
		return tcpSocket{}, nil
	}
	return s, nil
}

func diagAddress(family byte, addr, port []byte) netip.AddrPort {
	a := netip.AddrFrom16([16]byte(addr)).Unmap()
	if family == unix.AF_INET {
		a = netip.AddrFrom4([4]byte(addr))
	}
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(port))
}

func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

func anyOf(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// oneUser refuses the number that stands for every user to whom the user namespace of this process
// gives none (man 7 user_namespaces, "Unmapped user and group IDs"), unless the namespace has
// numbers for all.
func oneUser(uid int) (int, error) {
	if numbersForAll() {
		return uid, nil
	}
	overflow := 65534
	if s, err := ReadSetting("/proc/sys/kernel/overflowuid"); err == nil {
		if n, err := strconv.Atoi(s); err == nil {
			overflow = n
		}
	}
	if uid == overflow && !allMapped() {
		return 0, fmt.Errorf("user %d stands for all users that this user namespace has no number for: %w", uid,
			ErrNoOwner)
	}
	return uid, nil
}

// numbersForAll is allMapped, read once: a user namespace gets its numbers once, and a process of
// several threads cannot change to another one.
var numbersForAll = sync.OnceValue(allMapped)

// allMapped reports whether each user has a number in the user namespace of this process.
func allMapped() bool {
	b, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return false
	}
	var n uint64
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 {
			count, _ := strconv.ParseUint(f[2], 10, 32)
			n += count
		}
	}
	return n == 1<<32-1
}
