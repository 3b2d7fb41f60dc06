package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"time"
)

// JoinTimeout is how long [Join] takes at most.
const JoinTimeout = 30 * time.Second

// Join pairs this machine with the one that printed an invitation: it makes a key, asks for a certificate for name, checks
// that it comes from the authority which the invitation names, and writes the files of a node into dir. The key never leaves
// this machine. A node of the same name and authority is renewed; any other is refused with [ErrExists], before anything is
// sent.
//
// Other errors wrap [ErrWrongAuthority] (perhaps somebody in the middle), [ErrWrongCode], [ErrPairingOver] or [ErrNameRefused].
func Join(ctx context.Context, v Invitation, dir, name string) (Contents, error) {
	if err := CheckName(name); err != nil {
		return Contents{}, err
	}
	if err := makeDir(dir); err != nil {
		return Contents{}, err
	}
	if err := joinable(dir, name, v); err != nil {
		return Contents{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, JoinTimeout, fmt.Errorf("identity: %s did not answer within %v", v.Address, JoinTimeout))
	defer cancel()
	because := func(err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", v.Address)
	if err != nil {
		return Contents{}, because(fmt.Errorf("identity: %w", err))
	}
	defer raw.Close()
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	defer stop()
	if err := v.join(raw, name, func(c Credentials) error { return save(dir, c) }); err != nil {
		return Contents{}, because(err)
	}
	return Inspect(dir)
}

// joinable refuses to replace what is in a directory by another node.
func joinable(dir, name string, v Invitation) error {
	if have, err := exists(filepath.Join(dir, NodeFile)); err != nil {
		return err
	} else if !have {
		return replaceable(dir, name, nil)
	}
	c, err := Inspect(dir)
	if err != nil {
		return err
	}
	for _, r := range c.Roots {
		if sha256.Sum256(r.Raw) == v.Root {
			return replaceable(dir, name, []*x509.Certificate{r})
		}
	}
	return replaceable(dir, name, nil)
}

// join runs the protocol on a connection. Keep is called with what was received and checked, before the host hears that all
// is well.
func (v Invitation) join(raw net.Conn, name string, keep func(Credentials) error) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("identity: a new key: %w", err)
	}
	u, err := url.Parse(nodeURI + name)
	if err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{URIs: []*url.URL{u}}, key)
	if err != nil {
		return fmt.Errorf("identity: the certificate request: %w", err)
	}
	c := tls.Client(raw, &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{pairALPN},
		// VerifyConnection verifies: only the authority whose hash is in the code counts, and it cannot be known earlier.
		InsecureSkipVerify:     true,
		VerifyConnection:       v.verifyHost,
		SessionTicketsDisabled: true,
	})
	if err := c.Handshake(); err != nil {
		return fmt.Errorf("identity: %s: %w", v.Address, err)
	}
	m := join{request: request}
	if m.proof, err = v.proof(c.ConnectionState(), "join", request); err != nil {
		return err
	}
	if _, err := c.Write(appendMessage(nil, messageJoin, m.encode())); err != nil {
		return fmt.Errorf("identity: %s: %w", v.Address, err)
	}
	t, body, err := readMessage(c)
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("identity: %s hung up without an answer; the code may have been used by another machine: %w", v.Address, err)
	}
	if err != nil {
		return fmt.Errorf("identity: %s: %w", v.Address, err)
	}
	switch {
	case t == messageRefuse && len(body) == 1:
		return refusal(body[0]).err(v.Address, name)
	case t != messageWelcome:
		return fmt.Errorf("identity: %s: message %d, expected %d: %w", v.Address, t, messageWelcome, ErrMessage)
	}
	got, err := v.credentials(c.ConnectionState(), body, name, key)
	if err != nil {
		return fmt.Errorf("%s: %w", v.Address, err)
	}
	if err := keep(got); err != nil {
		return err
	}
	if _, err := c.Write(appendMessage(nil, messageDone, nil)); err != nil {
		return fmt.Errorf("identity: the certificate was kept, but %s does not know: %w: %w", v.Address, ErrUnconfirmed, err)
	}
	// Closing with bytes unread would reset the connection and might lose what was sent: wait for the host to close first.
	c.CloseWrite()
	c.Read(make([]byte, 1))
	return nil
}

// verifyHost checks the certificate of the host: one for pairing, of the authority in the code.
func (v Invitation) verifyHost(cs tls.ConnectionState) error {
	if err := checkPairProtocol(cs); err != nil {
		return err
	}
	if len(cs.PeerCertificates) != 2 || sha256.Sum256(cs.PeerCertificates[1].Raw) != v.Root {
		return fmt.Errorf("identity: this is not the machine that printed the code, and somebody may be in the middle: %w", ErrWrongAuthority)
	}
	leaf, root := cs.PeerCertificates[0], cs.PeerCertificates[1]
	pool := x509.NewCertPool()
	pool.AddCert(root)
	if err := checkChain(cs.PeerCertificates[:1], pool, x509.ExtKeyUsageServerAuth, time.Now()); err != nil {
		if errors.Is(err, ErrUntrusted) {
			err = fmt.Errorf("%w: %w", err, ErrWrongAuthority)
		}
		return fmt.Errorf("identity: the certificate of the other machine: %w", err)
	}
	if _, err := uriName(leaf, pairURI); err != nil {
		return fmt.Errorf("identity: the certificate is not one for pairing; somebody may be in the middle: %w", ErrWrongAuthority)
	}
	return nil
}

// credentials checks a welcome and makes credentials of it.
func (v Invitation) credentials(cs tls.ConnectionState, body []byte, name string, key *ecdsa.PrivateKey) (Credentials, error) {
	var out Credentials
	w, err := parseWelcome(body)
	if err != nil {
		return out, err
	}
	want, err := v.proof(cs, "welcome", w.payload())
	if err != nil {
		return out, err
	}
	if !hmac.Equal(want[:], w.proof[:]) {
		return out, fmt.Errorf("identity: the other machine does not know the code: %w", ErrWrongCode)
	}
	for k, der := range w.certs {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return out, fmt.Errorf("identity: certificate %d: %w: %w", k+1, err, ErrMessage)
		}
		if k == 0 {
			out.Certificate = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: c}
		} else {
			out.Roots = append(out.Roots, c)
		}
	}
	if sha256.Sum256(out.Roots[0].Raw) != v.Root {
		return out, fmt.Errorf("identity: the first root is not the one in the code: %w", ErrWrongAuthority)
	}
	if !key.PublicKey.Equal(out.Certificate.Leaf.PublicKey) {
		return out, fmt.Errorf("identity: the certificate is for another key: %w", ErrCredentials)
	}
	s, err := newState(out, time.Now())
	if err != nil {
		return out, err
	}
	if s.self.Name != name {
		return out, fmt.Errorf("identity: the certificate is for %q, asked for %q: %w", s.self.Name, name, ErrWrongPeer)
	}
	return out, nil
}

// err is what a refusal means to the joiner.
func (r refusal) err(addr, name string) error {
	at := func(format string, args ...any) error {
		return fmt.Errorf("identity: %s: "+format, append([]any{addr}, args...)...)
	}
	switch r {
	case refusedCode:
		return at("the code is not the one that it printed last: %w", ErrWrongCode)
	case refusedOver:
		return at("the code was used already, or tried too often: %w; run \"penstock pair --listen\" there again", ErrPairingOver)
	case refusedName:
		return at("a node %q has a certificate already: %w; choose another --name, or renew it there with: penstock pair --listen ADDR --for %s", name, ErrNameRefused, name)
	case refusedOther:
		return at("it waits for another name than %q: %w; see its --for, and use the same --name here", name, ErrNameRefused)
	case refusedDenied:
		return at("its rules deny the name %q: %w", name, ErrNameRefused)
	case refusedMalformed:
		return at("it could not read the request: %w", ErrMessage)
	case refusedInternal:
		return at("it failed; see what it printed: %w", ErrPairingOver)
	}
	return at("refused for reason %d, which this program does not know: %w", uint8(r), ErrMessage)
}
