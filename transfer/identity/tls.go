package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// Server is the configuration for the end that accepts connections: TLS 1.3 only, [ALPN] only, a certificate of an authority
// in the bundle from the peer, any name that is not denied. The caller owns it, and may keep it for as long as the identity
// is open: each handshake uses the certificate, the roots and the rules of its time.
//
// Sessions are not resumed: a ticket would let a peer in whose certificate has since been denied, replaced or has ended, and
// links live long, so that one more round trip at their start costs nothing that matters.
func (i *Identity) Server() *tls.Config {
	c := i.config()
	c.ClientAuth = tls.RequireAnyClientCert // VerifyConnection does the rest
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return i.own() }
	c.VerifyConnection = func(cs tls.ConnectionState) error { return i.count(i.verify(cs, "", x509.ExtKeyUsageClientAuth)) }
	return c
}

// Client is the configuration for the end that dials. The peer must have the name expect; "" accepts every name of the
// authority that is not denied. It asks for no server name, so that no name travels in the clear. For the rest see
// [Identity.Server]. An expect that no node can have gives a configuration whose handshakes fail with [ErrName].
func (i *Identity) Client(expect string) *tls.Config {
	c := i.config()
	// Not insecure: VerifyConnection below verifies chain, time, use and name, against the roots of this moment. The
	// built-in verification could only use roots that are fixed in this configuration and names of hosts.
	c.InsecureSkipVerify = true
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return i.own() }
	c.VerifyConnection = func(cs tls.ConnectionState) error {
		if expect != "" {
			if err := CheckName(expect); err != nil {
				return i.count(err)
			}
		}
		return i.count(i.verify(cs, expect, x509.ExtKeyUsageServerAuth))
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

// own is the certificate to show. One that has ended is an error here, where the user can renew it, rather than at each peer.
func (i *Identity) own() (*tls.Certificate, error) {
	if i.closed.Load() {
		return nil, fmt.Errorf("identity: %w", ErrClosed)
	}
	i.look()
	s := i.now.Load()
	if err := checkTime(s.cert.Leaf, i.clock()); err != nil {
		return nil, fmt.Errorf("identity: the node's own certificate %q: %w; see \"penstock pair renew\"", s.self.Name, err)
	}
	return s.cert, nil
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
func (i *Identity) verify(cs tls.ConnectionState, expect string, use x509.ExtKeyUsage) error {
	if i.closed.Load() {
		return fmt.Errorf("identity: %w", ErrClosed)
	}
	if err := checkProtocol(cs); err != nil {
		return err
	}
	if len(cs.PeerCertificates) == 0 {
		return fmt.Errorf("identity: %w", ErrNoCertificate)
	}
	i.look()
	s := i.now.Load()
	leaf := cs.PeerCertificates[0]
	if err := checkChain(cs.PeerCertificates, s.pool, use, i.clock()); err != nil {
		return fmt.Errorf("identity: the peer's certificate: %w", err)
	}
	p, err := peerOf(leaf)
	if err != nil {
		return err
	}
	if expect != "" && p.Name != expect {
		return fmt.Errorf("identity: the peer is %q, expected %q: %w", p.Name, expect, ErrWrongPeer)
	}
	if s.rules.Denied(p.Name, p.Serial) {
		return fmt.Errorf("identity: peer %q with certificate %s: %w", p.Name, p.Serial, ErrDenied)
	}
	return nil
}

// checkChain verifies a chain, leaf first. The time of the leaf has errors of its own: they are the ones that happen.
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
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: inter, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{use}})
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
		return fmt.Errorf("it begins on %s and here it is %s; are both clocks right: %w", day(c.NotBefore), day(now), ErrNotYetValid)
	}
	if now.After(c.NotAfter) {
		return fmt.Errorf("it ended on %s and here it is %s: %w", day(c.NotAfter), day(now), ErrExpired)
	}
	return nil
}
