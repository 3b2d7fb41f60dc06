package transfer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/address"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// exporterLabel makes the secrets of data paths from the TLS session of the control connection (RFC
// 8446, section 7.5), with the path's token as context: each path has a secret of its own, which
// only the two ends of this session can compute.
const exporterLabel = "EXPORTER-penstock-path"

const (
	// handshakeTimeout bounds the first bytes of a connection that came in, and each handshake,
	// where round trips are short (sys.Patience). A machine that begins many processes at once
	// gives them little time, and a kernel that lost a SYN sends a lost first segment again after
	// 3 s only (RFC 6298, section 5.7). setup.Pending bounds the number of handshakes.
	handshakeTimeout = 10 * time.Second
	// lookEvery is how often it is looked whether the certificates and rights of this node and its
	// peers still hold.
	lookEvery = time.Second
)

// secure finds out who is at the other end of a fresh connection: by TLS with certificates on both
// sides when the node has an identity and the connection is TCP, else by the kernel's word.
func (p *Peer) secure(ctx context.Context, a address.Address) error {
	id := p.node.opts.Identity
	if _, unix := p.conn.(*net.UnixConn); unix || id == nil {
		err := p.findUser()
		switch {
		case errors.Is(err, path.ErrUser) && p.role == control.Acceptor:
			p.turnAway(p.conn, "the user of this node lets only its own user in, and those of --allow-uid "+
				"(Options.AllowUID)")
		case errors.Is(err, path.ErrDown) && p.role == control.Dialer:
			if why := p.turnedAway(); why != nil {
				return why
			}
		}
		if err == nil {
			err = p.sort()
		}
		return err
	}
	if err := p.sort(); err != nil {
		return err
	}
	var c *tls.Conn
	if p.role == control.Dialer {
		c = tls.Client(p.conn, id.Client(a.Expect))
	} else {
		c = tls.Server(p.conn, id.Server())
	}
	ctx, cancel := context.WithTimeout(ctx, p.patience(ctx))
	defer cancel()
	defer p.node.lookAtIdentity()
	start := time.Now()
	if err := c.HandshakeContext(ctx); err != nil {
		var plain tls.RecordHeaderError
		if errors.As(err, &plain) {
			if plain.Conn != nil && p.role == control.Acceptor { // in the clear, which is what it understands
				p.turnAway(plain.Conn,
					"this node talks TLS only: give yours an identity of its authority (penstock pair)")
			}
			return fmt.Errorf("the other side does not speak TLS: it needs an identity of the same authority "+
				"(penstock pair): %w", err)
		}
		return fmt.Errorf("TLS handshake: %w", err)
	}
	p.shook = time.Since(start)
	cs := c.ConnectionState()
	cert, err := identity.PeerOf(cs)
	if err != nil {
		return err
	}
	p.cert, p.tls, p.conn = cert, &cs, c
	return nil
}

// patience bounds one handshake of a fresh connection. The deadline of the dialer's context
// decides, where there is one: the handshake fails shortly before it, and says how far it came.
// Elsewhere the round trips of the connection decide.
func (p *Peer) patience(ctx context.Context) time.Duration {
	if end, ok := ctx.Deadline(); ok && p.role == control.Dialer {
		return max(time.Until(end)*15/16, time.Millisecond)
	}
	return sys.PatienceOf(handshakeTimeout, p.raw)
}

// turnAway says why to a peer that gets no session, in the clear.
func (p *Peer) turnAway(c net.Conn, reason string) {
	b, _ := control.AppendFrame(nil, &control.Goodbye{Code: control.NotPermitted, Reason: reason})
	c.SetWriteDeadline(time.Now().Add(handshakeTimeout))
	c.Write(b)
}

// turnedAway is the reason that the other side gave before it closed the connection; nil if it gave
// none.
func (p *Peer) turnedAway() error {
	b := make([]byte, 2*control.MaxText)
	p.conn.SetReadDeadline(time.Now().Add(sys.PatienceOf(handshakeTimeout, p.raw)))
	n, _ := io.ReadFull(p.conn, b)
	m, _, _ := control.ParseFrame(b[:n])
	if g, ok := m.(*control.Goodbye); ok {
		return &control.Error{Code: g.Code, Text: g.Reason, Remote: true}
	}
	return nil
}

// secret is what a path of this session derives its keys from; nil when the session is not
// encrypted.
func (p *Peer) secret(t setup.Token) ([]byte, error) {
	if p.tls == nil {
		return nil, nil
	}
	return p.tls.ExportKeyingMaterial(exporterLabel, t[:], setup.SecretSize)
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

// Rights are what the peer may do on this node, as the policy says now: the one place where rights
// come from.
func (p *Peer) Rights() identity.Rights {
	o := &p.node.opts
	switch {
	case p.tls == nil:
		return o.Anonymous
	case o.Policy != nil:
		return o.Policy.Rights(p.cert.Name)
	}
	return o.Identity.Rights(p.cert.Name)
}

// mayEnter refuses a peer that has no rights here and dialed this node. One that this node dialed
// needs none.
func (p *Peer) mayEnter() error {
	if p.rights != 0 {
		return nil
	}
	if p.tls == nil {
		return control.Errorf(control.NotPermitted, "%s has no rights on the node %q (Options.Anonymous)", p.who(),
			p.node.opts.Name)
	}
	return control.Errorf(control.NotPermitted, "%s has no rights on the node %q%s", p.who(),
		p.node.opts.Identity.Name(), p.toPermit("RIGHTS"))
}

// Require refuses a peer that has none of these rights on this node, as the policy says now; for no
// rights it is nil. The error is for the peer, and names the command that gives it the first of
// them.
func (p *Peer) Require(any identity.Rights) error {
	have := p.Rights()
	if any == 0 || have&any != 0 {
		return nil
	}
	return control.Errorf(control.NotPermitted, "%s may %v on this node, not %v%s", p.who(), have, any,
		p.toPermit((have | any&-any).String()))
}

// toPermit is the command of this node that gives the peer rights, "" where no certificate decides.
func (p *Peer) toPermit(rights string) string {
	if p.tls == nil {
		return ""
	}
	return "; to permit it, " + p.node.opts.Identity.ToPermit(p.cert.Name, rights)
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

// holds says why the session must end, if the policy or the certificates say so now. The rights of
// open paths cannot change: a peer whose rights did has to dial again.
func (p *Peer) holds() error {
	if p.tls != nil {
		if p.node.opts.Identity.Denied(p.cert.Name, p.cert.Serial) {
			return control.Errorf(control.NotPermitted, "%s is denied", p.who())
		}
		if end := p.cert.NotAfter; time.Now().After(end) {
			return control.Errorf(control.Shutdown, "the certificate of %s ended at %v: dial again with a new one",
				p.who(), end.UTC())
		}
	}
	if now := p.Rights(); now != p.rights {
		return control.Errorf(control.Shutdown, "the rights of %s changed from %v to %v: dial again", p.who(), p.rights,
			now)
	}
	return nil
}

const (
	// complainEvery is how often the node reports again that files of the identity cannot be used.
	complainEvery = time.Minute
	// warnEvery is how often it warns again that its certificate ends.
	warnEvery = time.Hour
)

// identityState is what a node has seen of its identity.
type identityState struct {
	loaded atomic.Uint64 // when it was last looked at
	broken complaint     // about its files
	ending complaint     // about the end of its certificate
}

// complaint is a problem that the node reports again until it is fixed.
type complaint struct {
	mu   sync.Mutex // guards what follows
	said string
	at   time.Time
}

// due reports whether it is time to say what is wrong; "" is nothing. The same is said again after
// every.
func (c *complaint) due(what string, now time.Time, every time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if what == "" {
		c.said = ""
	}
	if what == c.said && (what == "" || now.Sub(c.at) < every) {
		return false
	}
	c.said, c.at = what, now
	return true
}

// lookAtIdentity tells when the identity has other certificates or rules than when it was last
// looked at, and when changed files cannot be used.
func (n *Node) lookAtIdentity() {
	id := n.opts.Identity
	if id == nil {
		return
	}
	o, s := &n.identityState, id.Stats()
	if old := o.loaded.Load(); s.Loaded > old && o.loaded.CompareAndSwap(old, s.Loaded) {
		n.account.Bus.Emit(observe.Event{Kind: observe.EventIdentityReloaded, Name: id.Name()})
	}
	if o.ending.due(s.Warning, time.Now(), warnEvery) {
		n.log.Warn(s.Warning)
	}
	if o.broken.due(s.LoadError, time.Now(), complainEvery) {
		n.log.Error("changed certificates or rules cannot be used", "node", id.Name(), "error", s.LoadError)
		n.account.Bus.Emit(observe.Event{Kind: observe.EventIdentityRefused, Name: id.Name(), Reason: s.LoadError})
	}
}

// watchIdentity looks at the identity until Close, so that an operator knows what is wrong with it
// before a peer comes.
func (n *Node) watchIdentity() {
	defer n.wg.Done()
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			n.lookAtIdentity()
		case <-n.ctx.Done():
			return
		}
	}
}

// potential is the security that a path of a driver would have.
func (p *Peer) potential(t setup.Traits) path.Security {
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

// floor is the least security that a transfer takes: a session that is encrypted is never left for
// a path in the clear.
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

// meet takes a connection that came in among those whose handshake is under way. It is theirs until
// met.
func (n *Node) meet(p *Peer) error {
	source := ""
	if p.role == control.Acceptor {
		source = p.source()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return ErrClosed
	}
	if p.role == control.Acceptor {
		if old, full := n.handshaking.Add(source, p); full {
			old.raw.Close()
		}
	}
	return nil
}

// source is where a connection comes from as far as that is known before its handshake: the user on
// this machine, or the address.
func (p *Peer) source() string {
	if isLocal(p.raw.RemoteAddr()) {
		if uid, err := p.owner(); err == nil {
			return "uid:" + strconv.Itoa(uid)
		}
	}
	if a, ok := p.raw.RemoteAddr().(*net.TCPAddr); ok {
		return setup.Source(a.AddrPort().Addr())
	}
	return p.principal()
}

// met ends that: the handshake is over, or the session has been charged to the peer's principal,
// whose budget bounds it from then on.
func (n *Node) met(p *Peer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.handshaking.Remove(p)
}
