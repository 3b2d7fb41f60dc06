package transfer

import (
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// user is a user of this machine, as the kernel names the owner of a socket.
type user struct {
	uid   int
	known bool
}

// findUser asks the kernel whose the other end of a connection without TLS is, and refuses users
// who are not let in. A TCP connection with no loopback address at either end proves nothing, and
// is there only because Options.Insecure permits it.
func (p *Peer) findUser() error {
	if !isLocal(p.raw.LocalAddr()) && !isLocal(p.raw.RemoteAddr()) {
		return nil
	}
	uid, err := p.owner()
	p.user = user{uid, err == nil}
	err = p.node.opts.AllowUID.Permit(uid, err)
	if errors.Is(err, path.ErrUser) {
		err = fmt.Errorf("%w; --allow-uid (Options.AllowUID) lets others in, and with an identity (penstock pair) "+
			"certificates say who is: %w", err, control.NotPermitted)
	}
	return err
}

// users are who may take part in paths of this session: the peer's user and this process's.
func (p *Peer) users() path.Users {
	if p.user.known {
		return path.TheseUsers(p.user.uid)
	}
	return p.node.opts.AllowUID
}

// Principal is who the peer is, by what is proven and never by what it says of itself: "cert:NAME"
// with TLS, "uid:N" for a process of this machine, and "ip:SOURCE" for any other.
func (p *Peer) Principal() string { return p.principal() }

// principal is who the peer is for limits and budgets, by what is proven and never by what it says
// of itself: "cert:NAME" with TLS, "uid:N" for a process of this machine, "ip:SOURCE" for any other
// (see setup.Source). All sessions of a principal share what it has. It is set when secure has
// returned.
func (p *Peer) principal() string {
	switch {
	case p.tls != nil:
		return "cert:" + p.cert.Name
	case p.user.known:
		return "uid:" + strconv.Itoa(p.user.uid)
	}
	t, ok := p.raw.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return "uid:unknown" // a unix socket of a user without a number here, whom AllowUID lets in
	}
	return "ip:" + setup.Source(t.AddrPort().Addr())
}
