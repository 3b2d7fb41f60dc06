package identity

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"fmt"
	"math/big"
	"net/url"
	"strings"
	"sync"
	"time"
)

const (
	// RootValid is how long a root certificate is valid by default: ten years.
	RootValid = 10 * 365 * 24 * time.Hour
	// LeafValid is how long a node's certificate is valid by default: one year.
	LeafValid = 365 * 24 * time.Hour
	// Skew is by how much certificates are dated back, so that machines whose clocks differ accept
	// them at once.
	Skew = time.Hour
)

// Authority issues certificates: a root certificate and its key, ECDSA on P-256 (RFC 5480; it is
// what hardware tokens and validated modules have). It is safe for use by several goroutines.
type Authority struct {
	cert  *x509.Certificate
	key   crypto.Signer
	clock func() time.Time
	dir   string // where it writes down what it signs; "": in memory

	mu     sync.Mutex
	issued []Issued // without a directory
}

// NewAuthority makes an authority with a new key, in memory.
func NewAuthority() (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("identity: a new key: %w", err)
	}
	var id [4]byte
	rand.Read(id[:])
	now := time.Now().Truncate(time.Second)
	t := &x509.Certificate{
		SerialNumber:          newSerial(),
		Subject:               pkix.Name{CommonName: "penstock authority " + hex.EncodeToString(id[:])},
		NotBefore:             now.Add(-Skew),
		NotAfter:              now.Add(RootValid),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("identity: the root certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("identity: the root certificate: %w", err)
	}
	return &Authority{cert: cert, key: key, clock: time.Now}, nil
}

// IssueOptions are the choices for one certificate. The zero value is good.
type IssueOptions struct {
	Valid     time.Duration       // from now on; 0: LeafValid. A certificate never outlives its root
	NotBefore time.Time           // zero: now less Skew. With it Valid counts from here
	Roots     []*x509.Certificate // what the identity trusts besides the authority; Issue only
	Options   Options             // of the identity; Issue only
}

// Issue makes a key and a certificate for a name and an identity of both that trusts this
// authority, all in memory.
func (a *Authority) Issue(name string, o IssueOptions) (*Identity, error) {
	c, err := a.Credentials(name, o)
	if err != nil {
		return nil, err
	}
	return New(c, o.Options)
}

// Credentials makes a key and a certificate for a name, and the roots to trust: what [New] and
// [Identity.Set] take.
func (a *Authority) Credentials(name string, o IssueOptions) (Credentials, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Credentials{}, fmt.Errorf("identity: a new key: %w", err)
	}
	cert, err := a.Sign(name, key.Public(), o)
	if err != nil {
		return Credentials{}, err
	}
	roots, err := a.bundle()
	if err != nil {
		return Credentials{}, err
	}
	return Credentials{
		Certificate: tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert},
		Roots:       append(roots, o.Roots...),
	}, nil
}

// Sign makes a certificate for a name and a public key whose private key the caller need not have.
func (a *Authority) Sign(name string, public crypto.PublicKey, o IssueOptions) (*x509.Certificate, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	c, err := a.sign(nodeURI+name, name, public, o)
	if err != nil {
		return nil, err
	}
	p, err := peerOf(c)
	if err != nil {
		return nil, err
	}
	return c, a.record(p)
}

func (a *Authority) sign(uri, subject string, public crypto.PublicKey, o IssueOptions) (*x509.Certificate, error) {
	now := a.clock().Truncate(time.Second)
	if !now.Before(a.cert.NotAfter) {
		return nil, fmt.Errorf("identity: the authority's certificate ended on %s: %w; make a new authority "+
			"(docs/security.md)", day(a.cert.NotAfter), ErrExpired)
	}
	valid := cmp.Or(o.Valid, LeafValid)
	from, until := now.Add(-Skew), now.Add(valid)
	if !o.NotBefore.IsZero() {
		from, until = o.NotBefore, o.NotBefore.Add(valid)
	}
	if until.After(a.cert.NotAfter) {
		until = a.cert.NotAfter
	}
	u, err := url.Parse(uri)
	if err != nil {
		return nil, fmt.Errorf("identity: certificate for %q: %w", clip(subject), err)
	}
	t := &x509.Certificate{
		SerialNumber:          newSerial(),
		Subject:               pkix.Name{CommonName: subject},
		NotBefore:             from,
		NotAfter:              until,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		URIs:                  []*url.URL{u},
	}
	if strings.HasPrefix(uri, nodeURI) {
		t.DNSNames = []string{subject} // for clients of Web: programs that know hosts only
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, public, a.key)
	if err != nil {
		return nil, fmt.Errorf("identity: certificate for %q: %w", clip(subject), err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("identity: certificate for %q: %w", clip(subject), err)
	}
	return c, nil
}

// newSerial is a random positive number of 127 bits, as RFC 5280 (4.1.2.2) wants it to fit 20
// octets and be unique.
func newSerial() *big.Int {
	var b [16]byte
	rand.Read(b[:])
	b[0] = b[0]&0x7f | 0x40
	return new(big.Int).SetBytes(b[:])
}

// Fingerprint is the SHA-256 of a certificate as 64 lower case hexadecimal digits.
func Fingerprint(c *x509.Certificate) string {
	h := sha256.Sum256(c.Raw)
	return hex.EncodeToString(h[:])
}

func day(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }
