package identity

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

// ALPN is the protocol that the configurations of an [Identity] agree on (RFC 7301).
const ALPN = "penstock/1"

// Credentials are what a node proves its name with, and whom it believes.
type Credentials struct {
	Certificate tls.Certificate     // the leaf, intermediates if there are any, and the private key
	Roots       []*x509.Certificate // at least one; several while a fleet moves from one authority to the next
}

// Options are the choices for an [Identity]. The zero value is good.
type Options struct {
	// Names of files, relative to the directory unless absolute. Cert and Key may be the same file.
	// Policy need not exist unless it is named here: without it no peer has any rights. Beside a
	// Policy of another place the directory's own file denies too, and gives no rights.
	Cert   string // "": node.pem
	Key    string // "": the file of Cert
	CA     string // "": ca.pem
	Policy string // "": policy

	Interval time.Duration    // how often at most files are looked at; 0: once per second; negative: each time
	Rules    *Rules           // rights and denials until there is a file of rules; nil: no rights for anyone
	Clock    func() time.Time // what certificates are checked against; nil: time.Now
}

// Stats count what became of handshakes and files since the identity was made.
type Stats struct {
	Self       Peer   // what the certificate in use says; Self.NotAfter is when it must have been renewed
	Accepted   uint64 // handshakes in which the peer's certificate was accepted
	Refused    uint64 // handshakes in which it was not
	Loaded     uint64 // times that credentials or rules were replaced
	LoadErrors uint64 // times that changed files could not be used
	LoadError  string // present errors, each until it is fixed; "": all is well
	Warning    string // that the certificate in use has ended, or ends within WarnBefore
}

// Identity is a node's name with its proof, the roots it trusts, and what it lets peers do. It is
// safe for use by several goroutines, and needs none of its own.
type Identity struct {
	clock func() time.Time
	watch *watch // nil: lives in memory

	now    atomic.Pointer[state]
	rules  atomic.Pointer[Rules]
	closed atomic.Bool

	denials atomic.Pointer[Rules] // of the directory, beside the rules of Options.Policy; of these no rights

	accepted, refused, loaded, loadErrors atomic.Uint64
}

// WarnBefore is how long before its end a certificate is warned of.
const WarnBefore = 48 * time.Hour

func clockOr(c func() time.Time) func() time.Time {
	if c == nil {
		return time.Now
	}
	return c
}

// warning is Stats.Warning.
func (i *Identity) warning(p Peer) string {
	verb, end := "ends", p.NotAfter
	switch left := end.Sub(i.clock()); {
	case left > WarnBefore:
		return ""
	case left <= 0:
		verb = "has ended, so that no peer takes it: it ended"
	}
	return fmt.Sprintf("the certificate of node %q %s on %s: renew it by \"penstock pair renew\"", p.Name, verb,
		end.UTC().Format("2006-01-02 15:04 MST"))
}

// state is what handshakes use; it is replaced as a whole, never changed.
type state struct {
	cert *tls.Certificate
	self Peer
	pool *x509.CertPool
}

// New makes an identity that lives in memory. It fails with an error that wraps [ErrCredentials],
// [ErrName], [ErrExpired] or [ErrNotYetValid] where a peer with the same roots would refuse the
// certificate.
func New(c Credentials, o Options) (*Identity, error) {
	i := &Identity{clock: clockOr(o.Clock)}
	s, err := newState(c, i.clock())
	if err != nil {
		return nil, err
	}
	i.now.Store(s)
	i.rules.Store(o.Rules)
	return i, nil
}

// newState checks credentials as a peer with the same roots would.
func newState(c Credentials, now time.Time) (*state, error) {
	if len(c.Certificate.Certificate) == 0 || c.Certificate.PrivateKey == nil {
		return nil, fmt.Errorf("identity: the certificate or its key is missing: %w", ErrCredentials)
	}
	if len(c.Roots) == 0 {
		return nil, fmt.Errorf("identity: there is no root certificate: %w", ErrCredentials)
	}
	chain := make([]*x509.Certificate, len(c.Certificate.Certificate))
	for k, der := range c.Certificate.Certificate {
		x, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("identity: certificate %d of the chain: %w: %w", k+1, err, ErrCredentials)
		}
		chain[k] = x
	}
	leaf := chain[0]
	key, ok := c.Certificate.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("identity: a key of type %T cannot sign: %w", c.Certificate.PrivateKey, ErrCredentials)
	}
	if public, ok := leaf.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !public.Equal(key.Public()) {
		return nil, fmt.Errorf("identity: the key is not that of the certificate: %w", ErrCredentials)
	}
	s := &state{pool: x509.NewCertPool()}
	for k, r := range c.Roots {
		if !r.IsCA || !r.BasicConstraintsValid {
			return nil, fmt.Errorf("identity: root %d (%s) is not the certificate of an authority: %w", k+1,
				clip(r.Subject.String()), ErrCredentials)
		}
		s.pool.AddCert(r)
	}
	var err error
	if s.self, err = peerOf(leaf); err != nil {
		return nil, err
	}
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if err := checkChain(chain, s.pool, use, now); err != nil {
			return nil, fmt.Errorf("identity: the node's own certificate %q: %w", s.self.Name, err)
		}
	}
	cert := c.Certificate
	cert.Leaf = leaf
	s.cert = &cert
	return s, nil
}

// SetRules replaces the rules of an identity that has no file of rules; a file that comes later
// wins. Nil gives no rights to anyone.
func (i *Identity) SetRules(r *Rules) {
	i.rules.Store(r)
	i.loaded.Add(1)
}

// Name is the node's name, which its certificate says. It is fixed while the identity lives:
// credentials with another name are refused when files are read again.
func (i *Identity) Name() string { return i.now.Load().self.Name }

// Self is what the certificate in use says.
func (i *Identity) Self() Peer { return i.now.Load().self }

// Rules are those in use now, with all denials; nil gives no rights to anyone.
func (i *Identity) Rules() *Rules { return i.rules.Load().withDenials(i.denials.Load()) }

// Rights are what the rules in use give to a name; it makes the identity a [Policy].
func (i *Identity) Rights(name string) Rights {
	i.look()
	return i.rules.Load().Rights(name)
}

// Denied reports whether the rules in use deny a name or the serial number of a certificate, as
// [Peer] holds them. Denied peers get no new handshake; a program that wants their sessions to end
// asks for each from time to time.
func (i *Identity) Denied(name, serial string) bool {
	i.look()
	return i.denied(name, serial)
}

// ToPermit says to a peer of this name how it is given rights here. No path is in it.
func (i *Identity) ToPermit(name, rights string) string {
	command := fmt.Sprintf("run on %s: penstock pair allow %s %s", i.Name(), name, rights)
	switch w := i.watch; {
	case w == nil:
		return command
	case len(w.denials.files) > 0:
		return fmt.Sprintf("write \"allow %s %s\" into the file of rules of %s (--policy)", name, rights, i.Name())
	default:
		if own, err := DefaultDir(); err != nil || filepath.Join(own, PolicyFile) != w.rules.files[0].path {
			command += " --dir DIR, with the directory of its --identity"
		}
		return command
	}
}

func (i *Identity) denied(name, serial string) bool {
	return i.rules.Load().Denied(name, serial) || i.denials.Load().Denied(name, serial)
}

// Stats are the counts so far, and what is wrong now.
func (i *Identity) Stats() Stats {
	i.look()
	self := i.Self()
	out := Stats{Self: self, Warning: i.warning(self), Accepted: i.accepted.Load(), Refused: i.refused.Load(),
		Loaded: i.loaded.Load(), LoadErrors: i.loadErrors.Load()}
	if w := i.watch; w != nil {
		var present []string
		for _, g := range []*group{&w.credentials, &w.rules, &w.denials} {
			if err := g.failure(); err != nil {
				present = append(present, err.Error())
			}
		}
		out.LoadError = strings.Join(present, "; ")
	}
	return out
}

// Close ends the use of the identity: handshakes fail with [ErrClosed] from now on. Sessions that
// live are not touched.
func (i *Identity) Close() { i.closed.Store(true) }
