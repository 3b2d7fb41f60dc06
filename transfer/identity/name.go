package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Sentinels of this package's errors; match them with errors.Is.
var (
	// ErrName is a name that breaks the rule of [CheckName], or a certificate that does not carry
	// exactly one.
	ErrName = errors.New("not a valid node name")
	// ErrWrongPeer is a peer whose certificate is good but says another name than was expected.
	ErrWrongPeer = errors.New("the peer has another name than expected")
	// ErrNoCertificate is a connection on which the peer showed no certificate.
	ErrNoCertificate = errors.New("the peer showed no certificate")
	// ErrUntrusted is a certificate that no root of the bundle issued, or that is not meant for
	// this use.
	ErrUntrusted = errors.New("the certificate is not of a trusted authority")
	// ErrExpired is a certificate whose time is over.
	ErrExpired = errors.New("the certificate has expired")
	// ErrNotYetValid is a certificate whose time has not begun.
	ErrNotYetValid = errors.New("the certificate is not valid yet")
	// ErrDenied is a peer whose name or serial number the rules deny.
	ErrDenied = errors.New("the peer is denied")
	// ErrProtocol is a connection that did not agree on TLS 1.3 and the protocol [ALPN].
	ErrProtocol = errors.New("not a Penstock connection")
	// ErrClosed is the use of an identity after Close.
	ErrClosed = errors.New("the identity is closed")
	// ErrMissing is a directory without an identity.
	ErrMissing = errors.New("there is no identity")
	// ErrPermissions is a file or directory that others own, can read or can change although they
	// must not.
	ErrPermissions = errors.New("permissions are too wide")
	// ErrCredentials are certificates and keys that do not make an identity: unreadable, or not
	// belonging together.
	ErrCredentials = errors.New("not usable credentials")
	// ErrPolicy is a file of rules with a mistake.
	ErrPolicy = errors.New("not usable rules")
)

// MaxName is the longest name of a node in bytes.
const MaxName = 63

// CheckName returns nil for a name that a node can have: 1 to 63 of the characters a-z, 0-9, '.',
// '-' and '_', the first and the last a letter or digit, and no two dots in a row. Everything else
// is an error that wraps [ErrName].
func CheckName(name string) error {
	bad := func(what string) error {
		return fmt.Errorf("identity: name %q: %s; expected 1 to 63 of a-z, 0-9, '.', '-', '_', beginning and ending "+
			"with a letter or digit: %w", clip(name), what, ErrName)
	}
	if name == "" {
		return bad("it is empty")
	}
	if len(name) > MaxName {
		return bad(fmt.Sprintf("it has %d bytes", len(name)))
	}
	for i := range len(name) {
		c := name[i]
		if alnum(c) {
			continue
		}
		if c != '.' && c != '-' && c != '_' {
			return bad(fmt.Sprintf("character %d", i+1))
		}
		if i == 0 || i == len(name)-1 {
			return bad(fmt.Sprintf("%q at an end", c))
		}
		if c == '.' && name[i-1] == '.' {
			return bad("two dots in a row")
		}
	}
	return nil
}

func alnum(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }

// clip shortens an unknown peer's text for an error text.
func clip(s string) string {
	const most = 80
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}

// nodeURI begins the one subject alternative name that carries a node's name; pairURI the one of a
// certificate that only serves one pairing and is not a node.
const (
	nodeURI = "penstock:node:"
	pairURI = "penstock:pair:"
)

// uriName is the rest of the certificate's only URI with the given beginning.
func uriName(c *x509.Certificate, scheme string) (string, error) {
	name, n := "", 0
	for _, u := range c.URIs {
		if s, ok := strings.CutPrefix(u.String(), scheme); ok {
			name = s
			n++
		}
	}
	if n != 1 {
		return "", fmt.Errorf("identity: the certificate has %d subject alternative names of the form %sNAME, "+
			"expected 1: %w", n, scheme, ErrName)
	}
	return name, CheckName(name)
}

// Peer is what a certificate says about a node.
type Peer struct {
	Name        string    // of the node, checked by CheckName
	Serial      string    // of the certificate: lower case hexadecimal digits without leading zeros
	Fingerprint string    // SHA-256 of the certificate: 64 lower case hexadecimal digits
	NotAfter    time.Time // when the certificate ends; no handshake after that
}

func peerOf(c *x509.Certificate) (Peer, error) {
	name, err := uriName(c, nodeURI)
	if err != nil {
		return Peer{}, err
	}
	return Peer{Name: name, Serial: c.SerialNumber.Text(16), Fingerprint: Fingerprint(c), NotAfter: c.NotAfter}, nil
}

// PeerOf says who is at the other end of a connection made with the configurations of an
// [Identity]. Those have proven the certificate during the handshake; this only reads it. The error
// wraps [ErrProtocol] for any other connection and for one whose handshake is not complete, and
// [ErrNoCertificate].
func PeerOf(cs tls.ConnectionState) (Peer, error) {
	if !cs.HandshakeComplete {
		return Peer{}, fmt.Errorf("identity: the handshake is not complete: %w", ErrProtocol)
	}
	if err := checkProtocol(cs, ALPN); err != nil {
		return Peer{}, err
	}
	if len(cs.PeerCertificates) == 0 {
		return Peer{}, fmt.Errorf("identity: %w", ErrNoCertificate)
	}
	return peerOf(cs.PeerCertificates[0])
}

func checkProtocol(cs tls.ConnectionState, want string) error {
	if cs.Version != tls.VersionTLS13 || cs.NegotiatedProtocol != want {
		return fmt.Errorf("identity: the connection has %s and the protocol %q, expected TLS 1.3 and %q: %w",
			tls.VersionName(cs.Version), clip(cs.NegotiatedProtocol), want, ErrProtocol)
	}
	return nil
}
