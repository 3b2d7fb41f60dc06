package sys_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/sys"
)

const otherUID = 65533

// as runs f on a thread of another user, which ends with it. Root alone can.
func as(t *testing.T, uid int, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocks it
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); e != 0 {
			done <- e
			return
		}
		done <- f()
	}()
	switch err := <-done; {
	case errors.Is(err, unix.EPERM):
		testenv.Missing(t, "root, to make sockets of another user", err)
	case err != nil:
		t.Fatal(err)
	}
}

func listenTCP(addr string) (int, error) {
	a := netip.MustParseAddrPort(addr)
	fd, err := sys.SocketTCP(a.Addr().Is6())
	if err == nil {
		if err = sys.BindTCP(fd, a); err == nil {
			err = sys.ListenTCP(fd, 8)
		}
	}
	return fd, err
}

func listening(t *testing.T, addr string) int {
	t.Helper()
	fd, err := listenTCP(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sys.Close(fd) })
	return fd
}

// connectTCP connects to a listener, blocking, and leaves the connection with it.
func connectTCP(to netip.AddrPort) (int, error) {
	family := unix.AF_INET
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	return fd, unix.Connect(fd, sockaddr(to))
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// TestTCPPeerUID looks at both ends of connections between two users, before and after they are
// accepted and closed.
func TestTCPPeerUID(t *testing.T) {
	own := os.Geteuid()
	for _, c := range []struct{ name, listen, dial string }{
		{"IPv4", "127.0.0.1:0", "127.0.0.1"},
		{"IPv6", "[::1]:0", "::1"},
		{"Mapped", "[::]:0", "127.0.0.1"},
		{"MappedBoth", "[::]:0", "::ffff:127.0.0.1"},
		{"AnyIPv4", "0.0.0.0:0", "127.0.0.3"},
	} {
		for _, who := range []int{own, otherUID} {
			t.Run(c.name, func(t *testing.T) {
				l := listening(t, c.listen)
				at, err := sys.LocalAddr(l)
				if err != nil {
					t.Fatal(err)
				}
				to := netip.AddrPortFrom(netip.MustParseAddr(c.dial), at.Port())
				dialer := -1
				dial := func() (err error) { dialer, err = connectTCP(to); return err }
				if who == own {
					if err := dial(); err != nil {
						t.Fatal(err)
					}
				} else {
					as(t, who, dial)
				}
				defer func() { sys.Close(dialer) }()
				check := func(what string, fd, want int) {
					t.Helper()
					if got, err := sys.TCPPeerUID(fd); err != nil || got != want {
						t.Errorf("%s: user %d, %v; expected %d", what, got, err, want)
					}
				}
				check("listener, nobody has accepted", dialer, own)
				acceptor, _, err := sys.AcceptTCP(l)
				if err != nil {
					t.Fatal(err)
				}
				defer sys.Close(acceptor)
				check("acceptor", dialer, own)
				check("dialer", acceptor, who)
				sys.Close(dialer)
				dialer = -1
				if got, err := sys.TCPPeerUID(acceptor); !errors.Is(err, sys.ENOTCONN) {
					t.Errorf("a dialer that closed: user %d, %v; expected ENOTCONN", got, err)
				}
			})
		}
	}
}

// TestTCPPeerUIDOfListener has another user listen and not accept: many kernels say then that the
// connection is root's.
func TestTCPPeerUIDOfListener(t *testing.T) {
	for _, deferred := range []bool{false, true} {
		l := -1
		as(t, otherUID, func() (err error) {
			if l, err = listenTCP("127.0.0.1:0"); err == nil && deferred {
				err = sys.SetOption(l, sys.SolTCP, unix.TCP_DEFER_ACCEPT, 60)
			}
			return err
		})
		defer sys.Close(l)
		at, err := sys.LocalAddr(l)
		if err != nil {
			t.Fatal(err)
		}
		fd, err := connectTCP(at)
		if err != nil {
			t.Fatal(err)
		}
		defer sys.Close(fd)
		if got, err := sys.TCPPeerUID(fd); err != nil || got != otherUID {
			t.Errorf("deferred %v: the listener's user %d, %v; expected %d", deferred, got, err, otherUID)
		}
	}
}

// TestTCPPeerUIDOfAcceptor has a connection accepted by another user than the one who listens.
func TestTCPPeerUIDOfAcceptor(t *testing.T) {
	l := listening(t, "127.0.0.1:0")
	at, err := sys.LocalAddr(l)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := connectTCP(at)
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close(fd)
	accepted := -1
	as(t, otherUID, func() (err error) {
		accepted, _, err = sys.AcceptTCP(l)
		return err
	})
	defer sys.Close(accepted)
	if got, err := sys.TCPPeerUID(fd); err != nil || got != otherUID {
		t.Errorf("user %d, %v; expected %d, who accepted", got, err, otherUID)
	}
}

// TestTCPPeerUIDOfPortTakenOver closes the socket of a connection and has another user listen where
// it was: the answer is not that user.
func TestTCPPeerUIDOfPortTakenOver(t *testing.T) {
	l := listening(t, "127.0.0.1:0")
	at, err := sys.LocalAddr(l)
	if err != nil {
		t.Fatal(err)
	}
	dialer, err := connectTCP(at)
	if err != nil {
		t.Fatal(err)
	}
	from, err := sys.LocalAddr(dialer)
	if err != nil {
		t.Fatal(err)
	}
	a, _, err := sys.AcceptTCP(l)
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close(a)
	if err := sys.ResetOnClose(dialer); err != nil {
		t.Fatal(err)
	}
	sys.Close(dialer)
	listening(t, from.String())
	if got, err := sys.TCPPeerUID(a); !errors.Is(err, sys.ENOTCONN) {
		t.Errorf("user %d, %v; expected ENOTCONN", got, err)
	}
}

// TestTCPPeerUIDElsewhere asks on a thread that is in another network namespace than the
// connection.
func TestTCPPeerUIDElsewhere(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fd, err := connectTCP(netip.MustParseAddrPort(l.Addr().String()))
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close(fd)
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocks it
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		_, err := sys.TCPPeerUID(fd)
		done <- err
	}()
	if err := <-done; errors.Is(err, unix.EPERM) {
		testenv.Missing(t, "the right to make a network namespace", err)
	} else if !errors.Is(err, sys.ErrNoOwner) {
		t.Errorf("%v, expected ErrNoOwner", err)
	}
}
