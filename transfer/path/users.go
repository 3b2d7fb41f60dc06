package path

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/internal/sys"
)

// ErrUser is what a connection fails with whose other end belongs to a user of this machine who is
// not let in.
var ErrUser = errors.New("the process at the other end belongs to a user who may not connect")

// Users says which users of this machine may be at the other end of a connection that proves no
// identity: a unix socket, or TCP in the clear with a loopback address. The zero value is the user
// of this process alone: neither root nor a user for whom the user namespace of this process has no
// number.
type Users struct {
	any  bool
	uids []int
}

// AnyUser lets every user of this machine in.
func AnyUser() Users { return Users{any: true} }

// TheseUsers lets these users in, by their numbers in the user namespace of this process, beside
// the user of this process.
func TheseUsers(uids ...int) Users { return Users{uids: slices.Clone(uids)} }

// ParseUsers reads user numbers with commas between them, or "any". "" is the zero value.
func ParseUsers(s string) (Users, error) {
	switch s {
	case "":
		return Users{}, nil
	case "any":
		return AnyUser(), nil
	}
	var u Users
	for f := range strings.SplitSeq(s, ",") {
		n, err := strconv.ParseUint(f, 10, 32)
		if err != nil {
			return Users{}, fmt.Errorf("users %q: expected user numbers such as 1000,1001, or any", s)
		}
		u.uids = append(u.uids, int(n))
	}
	return u, nil
}

// Permit refuses a user who is not let in. uid and err are what the kernel says of the other end:
// see sys.PeerCred, sys.TCPPeerUID. The error wraps ErrUser, or ErrDown if the connection is over.
func (u Users) Permit(uid int, err error) error {
	own := sys.EffectiveUID()
	switch {
	case u.any, err == nil && (uid == own || slices.Contains(u.uids, uid)):
		return nil
	case errors.Is(err, sys.ENOTCONN):
		return fmt.Errorf("%w: %w", ErrDown, err)
	case err != nil:
		return fmt.Errorf("%w (this process has user %d): %w", ErrUser, own, err)
	}
	return fmt.Errorf("%w: it has user %d, this process user %d", ErrUser, uid, own)
}

// Accept takes the next connection of a user who is let in, and closes those of others. What l
// listens on is of this machine alone: a unix socket, or TCP with a loopback address.
func (u Users) Accept(l net.Listener) (net.Conn, error) {
	for {
		c, err := l.Accept()
		if err != nil {
			return nil, err
		}
		if u.Permit(UserAt(c)) == nil {
			return c, nil
		}
		c.Close()
	}
}

// UserAt asks the kernel whose the other end of a connection on this machine is.
func UserAt(c net.Conn) (uid int, err error) {
	switch c := c.(type) {
	case *net.UnixConn:
		err = sys.OfConn(c, func(fd int) (err error) {
			_, uid, err = sys.PeerCred(fd)
			return err
		})
	case *net.TCPConn:
		err = sys.OfConn(c, func(fd int) (err error) {
			uid, err = sys.TCPPeerUID(fd)
			return err
		})
	default:
		err = fmt.Errorf("a connection of type %T: expected unix or TCP", c)
	}
	return uid, err
}
