package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// Server is the configuration for the end that accepts connections: TLS 1.3 only, [ALPN] only, a
// certificate of an authority in the bundle from the peer, any name that is not denied. The caller
// owns it, and may keep it for as long as the identity is open: each handshake uses the
// certificate, the roots and the rules of its time.
//
// Sessions are not resumed: a ticket would let a peer in whose certificate has since been denied,
// replaced or has ended, and links live long, so that one more round trip at their start costs
// nothing that matters.
func (i *Identity) Server() *tls.Config {
	c := i.config()
	c.ClientAuth = tls.RequireAnyClientCert // VerifyConnection does the rest
	// Also one that has ended: the client is the one that refuses it, and so says why. Stats warn
	// this side.
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return i.shown() }
	c.VerifyConnection = func(cs tls.ConnectionState) error {
		_, err := i.verify(cs, ALPN, "", x509.ExtKeyUsageClientAuth)
		return i.count(err)
	}
	return c
}

// Web is the configuration for a server of HTTP/1.1 whose clients show certificates as peers do:
// each handshake needs one of an authority in the bundle, whose name has the rights need by the
// rules of that moment.
func (i *Identity) Web(need Rights) *tls.Config {
	c := i.Server()
	c.NextProtos = []string{webALPN}
	c.VerifyConnection = func(cs tls.ConnectionState) error {
		p, err := i.verify(cs, webALPN, "", x509.ExtKeyUsageClientAuth)
		if err == nil && i.Rights(p.Name)&need != need {
			err = fmt.Errorf("identity: peer %q has the rights %v, this page needs %v: %w", p.Name, i.Rights(p.Name),
				need, ErrDenied)
		}
		return i.count(err)
	}
	return c
}

const webALPN = "http/1.1"

// Client is the configuration for the end that dials. The peer must have the name expect; ""
// accepts every name of the authority that is not denied. It asks for no server name, so that no
// name travels in the clear. For the rest see [Identity.Server]. An expect that no node can have
// gives a configuration whose handshakes fail with [ErrName].
func (i *Identity) Client(expect string) *tls.Config {
	c := i.config()
	// Not insecure: VerifyConnection below verifies chain, time, use and name, against the roots of
	// this moment. The built-in verification could only use roots that are fixed in this
	// configuration and names of hosts.
	c.InsecureSkipVerify = true
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return i.own() }
	c.VerifyConnection = func(cs tls.ConnectionState) error {
		if expect != "" {
			if err := CheckName(expect); err != nil {
				return i.count(err)
			}
		}
		_, err := i.verify(cs, ALPN, expect, x509.ExtKeyUsageServerAuth)
		return i.count(err)
	}
	return c
}

func (i *Identity) config() *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{ALPN},
		SessionTicketsDisabled: true,
		Time:                   i.clock,
	}
}

// shown is the certificate of this side.
func (i *Identity) shown() (*tls.Certificate, error) {
	if i.closed.Load() {
		return nil, fmt.Errorf("identity: %w", ErrClosed)
	}
	i.look()
	return i.now.Load().cert, nil
}

// own is the certificate for a handshake that this side begins. One that has ended is an error
// here, where the user can renew it.
func (i *Identity) own() (*tls.Certificate, error) {
	c, err := i.shown()
	if err != nil {
		return nil, err
	}
	s := i.now.Load()
	if err := checkTime(s.cert.Leaf, i.clock()); err != nil {
		return nil, fmt.Errorf("identity: the node's own certificate %q: %w; see \"penstock pair renew\"", s.self.Name,
			err)
	}
	return c, nil
}

func (i *Identity) count(err error) error {
	if err != nil {
		i.refused.Add(1)
	} else {
		i.accepted.Add(1)
	}
	return err
}

// verify checks the peer of a handshake that is about to complete.
func (i *Identity) verify(cs tls.ConnectionState, protocol, expect string, use x509.ExtKeyUsage) (p Peer, err error) {
	if i.closed.Load() {
		return p, fmt.Errorf("identity: %w", ErrClosed)
	}
	if err := checkProtocol(cs, protocol); err != nil {
		return p, err
	}
	if len(cs.PeerCertificates) == 0 {
		return p, fmt.Errorf("identity: %w", ErrNoCertificate)
	}
	i.look()
	s := i.now.Load()
	leaf := cs.PeerCertificates[0]
	if err := checkChain(cs.PeerCertificates, s.pool, use, i.clock()); err != nil {
		return p, fmt.Errorf("identity: the peer's certificate: %w", err)
	}
	if p, err = peerOf(leaf); err != nil {
		return p, err
	}
	if expect != "" && p.Name != expect {
		return p, fmt.Errorf("identity: the peer is %q, expected %q: %w", p.Name, expect, ErrWrongPeer)
	}
	if i.denied(p.Name, p.Serial) {
		return p, fmt.Errorf("identity: peer %q with certificate %s: %w", p.Name, p.Serial, ErrDenied)
	}
	return p, nil
}

// checkChain verifies a chain, leaf first. The time of the leaf has errors of its own: they are the
// ones that happen.
func checkChain(chain []*x509.Certificate, roots *x509.CertPool, use x509.ExtKeyUsage, now time.Time) error {
	leaf := chain[0]
	inter := x509.NewCertPool()
	for _, c := range chain[1:] {
		inter.AddCert(c)
	}
	if err := checkTime(leaf, now); err != nil {
		return err
	}
	if leaf.IsCA {
		return fmt.Errorf("it is the certificate of an authority, not of a node: %w", ErrUntrusted)
	}
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: inter, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{use}})
	if err == nil {
		return nil
	}
	var unknown x509.UnknownAuthorityError
	if errors.As(err, &unknown) {
		return fmt.Errorf("issued by %q, which is not in the bundle: %w", clip(leaf.Issuer.String()), ErrUntrusted)
	}
	return fmt.Errorf("%w: %w", err, ErrUntrusted)
}

func checkTime(c *x509.Certificate, now time.Time) error {
	if now.Before(c.NotBefore) {
		return fmt.Errorf("it begins on %s and here it is %s; are both clocks right: %w", day(c.NotBefore), day(now),
			ErrNotYetValid)
	}
	if now.After(c.NotAfter) {
		return fmt.Errorf("it ended on %s and here it is %s: %w", day(c.NotAfter), day(now), ErrExpired)
	}
	return nil
}
