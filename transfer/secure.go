package transfer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
)

// exporterLabel makes the secrets of data paths from the TLS session of the control connection (RFC 8446, section 7.5), with
// the path's token as context: each path has a secret of its own, which only the two ends of this session can compute.
const exporterLabel = "EXPORTER-penstock-path"

const (
	// handshakeTimeout bounds the TLS handshake of a connection that came in.
	handshakeTimeout = 2 * time.Second
	// maxStrangers is the number of connections whose handshake is under way; the one that has waited longest makes room.
	maxStrangers = 256
	// lookEvery is how often it is looked whether a peer's certificate or rights still hold.
	lookEvery = time.Second
)

// secure finds out who is at the other end of a fresh connection: by TLS with certificates on both sides when the node has an
// identity and the connection is TCP, by the kernel's word when it is a unix socket.
func (p *Peer) secure(ctx context.Context, a address) error {
	id := p.node.opts.Identity
	if u, ok := p.conn.(*net.UnixConn); ok {
		return p.sameUser(u)
	}
	if id == nil {
		return nil
	}
	var c *tls.Conn
	if p.role == control.Dialer {
		c = tls.Client(p.conn, id.Client(a.expect))
	} else {
		c = tls.Server(p.conn, id.Server())
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	if err := c.HandshakeContext(ctx); err != nil {
		var plain tls.RecordHeaderError
		if errors.As(err, &plain) {
			if plain.Conn != nil && p.role == control.Acceptor { // in the clear, which is what it understands
				b, _ := control.AppendFrame(nil, &control.Goodbye{Code: control.NotPermitted, Reason: "this node talks TLS only: give yours an identity of its authority (penstock pair)"})
				plain.Conn.SetWriteDeadline(time.Now().Add(handshakeTimeout))
				plain.Conn.Write(b)
			}
			return fmt.Errorf("the other side does not speak TLS: it needs an identity of the same authority (penstock pair): %w", err)
		}
		return fmt.Errorf("TLS handshake: %w", err)
	}
	cs := c.ConnectionState()
	cert, err := identity.PeerOf(cs)
	if err != nil {
		return err
	}
	p.cert, p.tls, p.conn = cert, &cs, c
	return nil
}

// sameUser refuses a unix socket whose other end belongs to another user: on an abstract socket anybody may connect. Root may
// connect to everybody, not everybody to root.
func (p *Peer) sameUser(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var uid int
	var cerr error
	if err := raw.Control(func(fd uintptr) { _, uid, cerr = sys.PeerCred(int(fd)) }); err != nil {
		return err
	}
	if cerr != nil {
		return cerr
	}
	own := sys.EffectiveUID()
	if trusted := uid == own || uid == 0 || own == 0 && p.role == control.Dialer; !trusted && !p.node.opts.Insecure {
		return fmt.Errorf("the other end of the unix socket belongs to user %d, this process to user %d: %w", uid, own, control.NotPermitted)
	}
	return nil
}

// secret is what a path of this session derives its keys from; nil when the session is not encrypted.
func (p *Peer) secret(t path.Token) ([]byte, error) {
	if p.tls == nil {
		return nil, nil
	}
	return p.tls.ExportKeyingMaterial(exporterLabel, t[:], path.SecretSize)
}

// Certificate says what the certificate of the peer says. It is false for a session without TLS.
func (p *Peer) Certificate() (identity.Peer, bool) { return p.cert, p.tls != nil }

// Security is that of the control connection.
func (p *Peer) Security() path.Security {
	switch {
	case p.tls != nil:
		return path.SecurityEncrypted
	case p.local:
		return path.SecurityHost
	}
	return path.SecurityNone
}

// Rights are what the peer may do on this node, as the policy says now.
func (p *Peer) Rights() identity.Rights {
	o := &p.node.opts
	switch {
	case o.Policy != nil:
		return o.Policy.Rights(p.cert.Name)
	case p.tls != nil:
		return o.Identity.Rights(p.cert.Name)
	}
	return identity.All
}

// may refuses what the policy does not permit the peer.
func (p *Peer) may(want identity.Rights) error {
	if have := p.Rights(); have&want != want {
		return control.Errorf(control.NotPermitted, "%s may %v on this node, not %v", p.who(), have, want)
	}
	return nil
}

// mayAny refuses a peer that has none of these rights.
func (p *Peer) mayAny(want identity.Rights) error {
	if have := p.Rights(); have&want == 0 {
		return control.Errorf(control.NotPermitted, "%s may %v on this node", p.who(), have)
	}
	return nil
}

// who names the peer for a refusal: by what is proven.
func (p *Peer) who() string {
	if p.tls != nil {
		return fmt.Sprintf("the node %q", p.cert.Name)
	}
	return "a peer without a certificate"
}

// pathRights are the rights that paths of this session give to the peer.
func pathRights(r identity.Rights) (out path.Rights) {
	if r&identity.Read != 0 {
		out |= path.Read
	}
	if r&identity.Write != 0 {
		out |= path.Write
	}
	return out
}

// holds says why the session must end, if the policy or the certificates say so now. The rights of open paths cannot change:
// a peer whose rights did has to dial again.
func (p *Peer) holds() error {
	p.node.obs.lookAtIdentity(p.node.opts.Identity)
	if p.tls != nil {
		if p.node.opts.Identity.Denied(p.cert.Name, p.cert.Serial) {
			return control.Errorf(control.NotPermitted, "%s is denied", p.who())
		}
		if end := p.cert.NotAfter; time.Now().After(end) {
			return control.Errorf(control.Shutdown, "the certificate of %s ended at %v: dial again with a new one", p.who(), end.UTC())
		}
	}
	if now := p.Rights(); now != p.rights {
		return control.Errorf(control.Shutdown, "the rights of %s changed from %v to %v: dial again", p.who(), p.rights, now)
	}
	return nil
}

// potential is the security that a path of a driver would have.
func (p *Peer) potential(t path.Traits) path.Security {
	switch {
	case t.SameHost:
		return path.SecurityHost
	case t.Encrypts && p.tls != nil:
		return path.SecurityEncrypted
	case p.local:
		return path.SecurityHost
	}
	return path.SecurityNone
}

// floor is the least security that a transfer takes: a session that is encrypted is never left for a path in the clear.
func (p *Peer) floor(asked path.Security) path.Security {
	f := max(asked, p.node.opts.Security)
	if p.tls != nil {
		f = max(f, path.SecurityHost)
	}
	return f
}

// isLocal reports whether an address is on this machine.
func isLocal(a net.Addr) bool {
	switch a := a.(type) {
	case *net.UnixAddr:
		return true
	case *net.TCPAddr:
		return a.IP.IsLoopback()
	}
	return false
}

// meet takes a connection among those whose handshake is under way. It is theirs until met.
func (n *Node) meet(p *Peer) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return ErrClosed
	}
	if p.role == control.Dialer {
		n.strangers.mine = append(n.strangers.mine, p)
	} else if old := n.strangers.add(p); old != nil {
		old.raw.Close()
	}
	return nil
}

func (n *Node) met(p *Peer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.strangers.remove(p)
}

// strangers are the peers whose handshake is under way, in the order in which they came.
type strangers struct {
	list []*Peer // that dialed this node
	mine []*Peer // that this node dialed
}

// add returns the stranger that makes room, if one has to.
func (s *strangers) add(p *Peer) (out *Peer) {
	if len(s.list) >= maxStrangers {
		out = s.list[0]
		s.list = s.list[1:]
	}
	s.list = append(s.list, p)
	return out
}

func (s *strangers) remove(p *Peer) {
	is := func(x *Peer) bool { return x == p }
	s.list = slices.DeleteFunc(s.list, is)
	s.mine = slices.DeleteFunc(s.mine, is)
}

// cut ends all handshakes.
func (s *strangers) cut() {
	for _, p := range slices.Concat(s.list, s.mine) {
		p.raw.Close()
	}
}
