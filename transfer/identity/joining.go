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
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"time"
)

// JoinTimeout is how long [Join] waits for the other machine at most, besides the time in which
// that one is confirming.
const JoinTimeout = 30 * time.Second

// JoinOptions are the choices for [Join]. The zero value is good.
type JoinOptions struct {
	// Waiting is called when the host has accepted the code and is about to confirm this machine's
	// key, with the fingerprint that the host shows too (see KeyFingerprint).
	Waiting func(fingerprint string)
	// Joined is called with the host's name when the certificate is good, before Join writes
	// anything or confirms to the host. An error ends the pairing.
	Joined func(host string) error
}

// Join pairs this machine with the one that made an invitation: it asks for a certificate for name
// and the key of [NewKey], or a new one, checks that the certificate comes from the authority which
// the invitation names, and writes the files of a node into dir. The key never leaves this machine.
// A node of the same name and authority is renewed; any other is refused with [ErrExists], before
// anything is sent. Join returns nil when the host has said that it knows of the end.
//
// Other errors wrap [ErrWrongAuthority] (perhaps a man in the middle), [ErrWrongCode],
// [ErrPairingOver], [ErrNameRefused], [ErrNotConfirmed], or [ErrUnconfirmed]: then the certificate
// was kept, and the host may not know.
func Join(ctx context.Context, v Invitation, dir, name string, o JoinOptions) (Contents, error) {
	if err := CheckName(name); err != nil {
		return Contents{}, err
	}
	if err := makeDir(dir); err != nil {
		return Contents{}, err
	}
	named := func(r *x509.Certificate) bool { return sha256.Sum256(r.Raw) == v.Root }
	if err := replaceable(dir, name, named); err != nil {
		return Contents{}, err
	}
	key, err := pendingKey(dir)
	if errors.Is(err, ErrMissing) {
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	if err != nil {
		return Contents{}, err
	}
	fingerprint, err := KeyFingerprint(&key.PublicKey)
	if err != nil {
		return Contents{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(JoinTimeout, func() {
		cancel(fmt.Errorf("identity: %s did not answer in time: %w", v.Address, context.DeadlineExceeded))
	})
	defer late.Stop()
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
	err = v.join(raw, key, name, joining{
		wait: func(most time.Duration) {
			late.Reset(most + JoinTimeout)
			if o.Waiting != nil {
				o.Waiting(fingerprint)
			}
		},
		keep: func(host string, c Credentials) error {
			if o.Joined != nil {
				if err := o.Joined(host); err != nil {
					return err
				}
			}
			if err := save(dir, c); err != nil {
				return err
			}
			return forgetPending(dir)
		},
	})
	if errors.Is(err, ErrUnconfirmed) {
		return Contents{}, err
	}
	if err != nil {
		return Contents{}, because(err)
	}
	return Inspect(dir)
}

// joining is what a joiner does on the way.
type joining struct {
	// the host knows that the code is right and takes at most so long to confirm
	wait func(most time.Duration)
	keep func(host string, got Credentials) error // what was received was checked; the host has no confirmation yet
}

// join runs the protocol on a connection.
func (v Invitation) join(raw net.Conn, key *ecdsa.PrivateKey, name string, on joining) error {
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
		NextProtos: []string{pairALPN, v.knock()},
		// VerifyConnection verifies: only the authority whose hash is in the code counts, and it
		// cannot be known earlier.
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
	var t messageType
	var body []byte
	for waits := 0; ; waits++ {
		t, body, err = readMessage(c)
		switch {
		case errors.Is(err, io.EOF):
			return fmt.Errorf("identity: %s hung up without an answer; another machine may have used the code: %w",
				v.Address, err)
		case err != nil:
			return fmt.Errorf("identity: %s: %w", v.Address, err)
		case t == messageRefuse && len(body) == 1:
			return refusal(body[0]).err(v.Address, name)
		case t == messageWait && len(body) == 4 && waits == 0:
			on.wait(time.Duration(binary.BigEndian.Uint32(body)) * time.Second)
			continue
		case t != messageWelcome:
			return fmt.Errorf("identity: %s: message %d, expected %d: %w", v.Address, t, messageWelcome, ErrMessage)
		}
		break
	}
	host, got, err := v.credentials(c.ConnectionState(), body, name, key)
	if err != nil {
		return fmt.Errorf("%s: %w", v.Address, err)
	}
	if err := on.keep(host, got); err != nil {
		return err
	}
	_, err = c.Write(appendMessage(nil, messageDone, nil))
	if err == nil {
		if t, body, err = readMessage(c); err == nil && t == messageRefuse && len(body) == 1 {
			err = refusal(body[0]).err(v.Address, name)
		} else if err == nil && t != messageDone {
			err = fmt.Errorf("message %d, expected %d: %w", t, messageDone, ErrMessage)
		}
	}
	if err != nil {
		return fmt.Errorf("identity: this machine has its certificate; whether %s knows is not known, see what it "+
			"printed: %w: %w", v.Address, ErrUnconfirmed, err)
	}
	return nil
}

// verifyHost checks the certificate of the host: one for pairing, of the authority in the code.
func (v Invitation) verifyHost(cs tls.ConnectionState) error {
	if err := checkPairProtocol(cs); err != nil {
		return err
	}
	if len(cs.PeerCertificates) != 2 || sha256.Sum256(cs.PeerCertificates[1].Raw) != v.Root {
		return fmt.Errorf("identity: this is not the machine that printed the code, and a third machine may be in the "+
			"middle: %w", ErrWrongAuthority)
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
		return fmt.Errorf("identity: the certificate is not one for pairing; a third machine may be in the middle: %w",
			ErrWrongAuthority)
	}
	return nil
}

// credentials checks a welcome and makes credentials of it.
func (v Invitation) credentials(cs tls.ConnectionState, body []byte, name string, key *ecdsa.PrivateKey) (host string,
	out Credentials, err error) {
	w, err := parseWelcome(body)
	if err != nil {
		return "", out, err
	}
	want, err := v.proof(cs, "welcome", w.payload())
	if err != nil {
		return "", out, err
	}
	if !hmac.Equal(want[:], w.proof[:]) {
		return "", out, fmt.Errorf("identity: the other machine does not know the code: %w", ErrWrongCode)
	}
	for k, der := range w.certs {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return "", out, fmt.Errorf("identity: certificate %d: %w: %w", k+1, err, ErrMessage)
		}
		if k == 0 {
			out.Certificate = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: c}
		} else {
			out.Roots = append(out.Roots, c)
		}
	}
	if sha256.Sum256(out.Roots[0].Raw) != v.Root {
		return "", out, fmt.Errorf("identity: the first root is not the one in the code: %w", ErrWrongAuthority)
	}
	if !key.PublicKey.Equal(out.Certificate.Leaf.PublicKey) {
		return "", out, fmt.Errorf("identity: the certificate is for another key: %w", ErrCredentials)
	}
	s, err := newState(out, time.Now())
	if err != nil {
		return "", out, err
	}
	if w.host == name {
		return "", out, fmt.Errorf("identity: the other machine says that it is %q itself: %w", name, ErrNameRefused)
	}
	if s.self.Name != name {
		return "", out, fmt.Errorf("identity: the certificate is for %q, asked for %q: %w", s.self.Name, name,
			ErrWrongPeer)
	}
	return w.host, out, nil
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
		return at("another machine used the code: %w; run \"penstock pair --listen\" there again", ErrPairingOver)
	case refusedName:
		return at("a node %q has a certificate already: %w; choose another --name, or renew it there with: penstock "+
			"pair --listen ADDR --for %s", name, ErrNameRefused, name)
	case refusedOther:
		return at("it waits for another name than %q: %w; see its --for, and use the same --name here", name,
			ErrNameRefused)
	case refusedDenied:
		return at("its rules deny the name %q: %w", name, ErrNameRefused)
	case refusedMalformed:
		return at("it could not read the request: %w", ErrMessage)
	case refusedUnconfirmed:
		return at("the key of this machine was not confirmed there: %w; see what it printed", ErrNotConfirmed)
	case refusedRival:
		return at("another machine that knows the code is being confirmed there at this moment: %w; say no there "+
			"unless that is intended", ErrNotConfirmed)
	case refusedInternal:
		return at("it failed; see what it printed: %w", ErrPairingOver)
	}
	return at("refused for reason %d, which this program does not know: %w", uint8(r), ErrMessage)
}
