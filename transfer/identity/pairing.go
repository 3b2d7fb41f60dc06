package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"
)

// Sentinels of pairing.
var (
	// ErrPairingOver is an invitation that was used, had too many wrong tries, or is too old.
	ErrPairingOver = errors.New("the invitation is over")
	// ErrWrongCode is a joiner, or a host, that does not know the secret of the invitation.
	ErrWrongCode = errors.New("wrong code")
	// ErrWrongAuthority is a host that is not of the authority which the code names.
	ErrWrongAuthority = errors.New("another authority than the code says")
	// ErrNameRefused is a name that the host does not give a certificate for.
	ErrNameRefused = errors.New("the name was refused")
	// ErrUnconfirmed is a joiner that was given a certificate and did not say that it kept it.
	ErrUnconfirmed = errors.New("the other machine did not confirm")
)

const (
	// PairingTimeout is how long an invitation is good unless told otherwise.
	PairingTimeout = 10 * time.Minute
	// PairingTries is how many wrong codes end an invitation unless told otherwise.
	PairingTries = 3

	pairConns    = 32               // connections at a time; a further one ends the oldest
	pairPatience = 10 * time.Second // for one connection from beginning to end
)

// PairingOptions are the choices for one pairing. The zero value is good, but for Self.
type PairingOptions struct {
	Self    string        // the host's own name, which nobody else gets
	For     string        // the one name that may join, also if it has a certificate already; "": any that has none
	Valid   time.Duration // of the certificate; 0: LeafValid
	Timeout time.Duration // 0: PairingTimeout
	Tries   int           // 0: PairingTries
	Rules   *Rules        // whose denied names cannot join
}

// Pairing is the host's side: one invitation, for one other machine.
type Pairing struct {
	authority *Authority
	opts      PairingOptions
	invite    Invitation
	config    *tls.Config

	mu      sync.Mutex
	used    bool
	wrong   int
	conns   []net.Conn // oldest first
	proven  []net.Conn // of joiners that know the secret
	done    bool
	peer    Peer
	err     error
	decided chan struct{} // closed when peer or err say how it ended
}

// NewPairing makes an invitation.
func (a *Authority) NewPairing(o PairingOptions) (*Pairing, error) {
	if o.For != "" {
		if err := CheckName(o.For); err != nil {
			return nil, err
		}
		if o.For == o.Self {
			return nil, fmt.Errorf("identity: %q is this machine's own name: %w", o.For, ErrNameRefused)
		}
		if o.Rules.Denied(o.For, "") {
			return nil, fmt.Errorf("identity: %q is denied by the rules: %w", o.For, ErrNameRefused)
		}
	}
	o.Timeout = durationOr(o.Timeout, PairingTimeout)
	if o.Tries <= 0 {
		o.Tries = PairingTries
	}
	// A certificate that only serves this pairing: nodes have none like it, so no node can stand in for the host, and it is
	// not a node's, so it opens nothing.
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("identity: a new key: %w", err)
	}
	var id [16]byte
	rand.Read(id[:])
	cert, err := a.sign(pairURI+hex.EncodeToString(id[:]), "penstock pairing", key.Public(), IssueOptions{Valid: o.Timeout + Skew})
	if err != nil {
		return nil, err
	}
	p := &Pairing{authority: a, opts: o, invite: newInvitation("", a.cert), decided: make(chan struct{})}
	p.config = &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{pairALPN},
		SessionTicketsDisabled: true,
		Certificates:           []tls.Certificate{{Certificate: [][]byte{cert.Raw, a.cert.Raw}, PrivateKey: key, Leaf: cert}},
		VerifyConnection:       checkPairProtocol,
	}
	return p, nil
}

func checkPairProtocol(cs tls.ConnectionState) error {
	if cs.NegotiatedProtocol != pairALPN {
		return fmt.Errorf("identity: protocol %q, expected %q: %w", clip(cs.NegotiatedProtocol), pairALPN, ErrProtocol)
	}
	return nil
}

// Invitation is what the other machine needs, for the address at which it can reach this one.
func (p *Pairing) Invitation(address string) Invitation {
	v := p.invite
	v.Address = address
	return v
}

// Serve waits on a listener until one machine has joined and says which, or until the invitation is over: used, tried too
// often, too old ([ErrPairingOver]), or ctx done. It closes the listener and all connections before it returns.
// [ErrUnconfirmed] comes with the name that was given a certificate.
func (p *Pairing) Serve(ctx context.Context, ln net.Listener) (Peer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.opts.Timeout, fmt.Errorf("identity: nobody joined within %v: %w", p.opts.Timeout, ErrPairingOver))
	defer cancel()
	var conns sync.WaitGroup
	failed := make(chan error, 1)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				failed <- err
				return
			}
			if !p.add(c) {
				c.Close()
				continue
			}
			conns.Go(func() { p.serve(c) })
		}
	}()
	var accept error
	select {
	case <-p.decided:
	case accept = <-failed:
		p.finish(Peer{}, fmt.Errorf("identity: %w", accept))
	case <-ctx.Done():
		if p.abandon(context.Cause(ctx)) {
			p.hangUp()
			<-p.decided
		}
	}
	ln.Close()
	if accept == nil {
		<-failed
	}
	p.hangUp()
	conns.Wait()
	return p.peer, p.err
}

// hangUp closes the connections that there are.
func (p *Pairing) hangUp() {
	p.mu.Lock()
	open := append(p.conns, p.proven...)
	p.conns, p.proven = nil, nil
	p.mu.Unlock()
	for _, c := range open {
		c.Close()
	}
}

// abandon ends the pairing, unless the code is in use at this moment: then whoever serves that joiner says how it ended, so
// that no certificate is given away unsaid.
func (p *Pairing) abandon(err error) (inUse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done {
		return false
	}
	if p.used {
		return true
	}
	p.done, p.err = true, err
	close(p.decided)
	return false
}

// finish decides how the pairing ends; the first one to say so wins.
func (p *Pairing) finish(peer Peer, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done {
		return
	}
	p.done, p.peer, p.err = true, peer, err
	close(p.decided)
}

// add takes up a connection. One too many ends the oldest: somebody who opens connections and says nothing cannot keep the
// right one out.
func (p *Pairing) add(c net.Conn) bool {
	p.mu.Lock()
	if p.done {
		p.mu.Unlock()
		return false
	}
	var oldest net.Conn
	if len(p.conns) >= pairConns {
		oldest = p.conns[0]
		p.conns = slices.Delete(p.conns, 0, 1)
	}
	p.conns = append(p.conns, c)
	p.mu.Unlock()
	if oldest != nil {
		oldest.Close()
	}
	return true
}

// remove forgets a connection that has ended.
func (p *Pairing) remove(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	is := func(x net.Conn) bool { return x == c }
	p.conns = slices.DeleteFunc(p.conns, is)
	p.proven = slices.DeleteFunc(p.proven, is)
}

// protect keeps a connection from being ended for the sake of newer ones.
func (p *Pairing) protect(c net.Conn) {
	p.remove(c)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done {
		c.Close() // Serve waits for this one and has already closed those it knew
		return
	}
	p.proven = append(p.proven, c)
}

// serve talks with one joiner.
func (p *Pairing) serve(raw net.Conn) {
	defer raw.Close()
	defer p.remove(raw)
	raw.SetDeadline(time.Now().Add(pairPatience))
	c := tls.Server(raw, p.config)
	if c.Handshake() != nil {
		return
	}
	t, body, err := readMessage(c)
	if err != nil || t != messageJoin {
		if errors.Is(err, ErrMessage) || err == nil {
			p.refuse(c, refusedMalformed)
		}
		return
	}
	m, err := parseJoin(body)
	if err != nil {
		p.refuse(c, refusedMalformed)
		return
	}
	want, err := p.invite.proof(c.ConnectionState(), "join", m.request)
	if err != nil {
		p.refuse(c, refusedInternal)
		return
	}
	if !hmac.Equal(want[:], m.proof[:]) { // in constant time
		r, err := p.wrongTry()
		p.refuse(c, r) // before the end, which hangs up
		if err != nil {
			p.finish(Peer{}, err)
		}
		return
	}
	// From here on the joiner knows the secret.
	p.protect(raw)
	name, public, err := parseRequest(m.request)
	if err != nil {
		p.refuse(c, refusedMalformed)
		return
	}
	if r, err := p.permit(name); err != nil || r != 0 {
		p.refuse(c, r)
		if err != nil {
			p.finish(Peer{}, err)
		}
		return
	}
	if !p.claim() {
		p.refuse(c, refusedOver)
		return
	}
	peer, err := p.accept(c, name, public)
	p.finish(peer, err)
}

// accept signs the certificate and hands it over.
func (p *Pairing) accept(c *tls.Conn, name string, public *ecdsa.PublicKey) (Peer, error) {
	roots, err := p.authority.bundle()
	if err != nil {
		p.refuse(c, refusedInternal)
		return Peer{}, err
	}
	cert, err := p.authority.Sign(name, public, IssueOptions{Valid: p.opts.Valid})
	if err != nil {
		p.refuse(c, refusedInternal)
		return Peer{}, err
	}
	peer, err := peerOf(cert)
	if err != nil {
		return Peer{}, err
	}
	w := welcome{certs: [][]byte{cert.Raw}}
	for _, r := range roots {
		w.certs = append(w.certs, r.Raw)
	}
	if w.proof, err = p.invite.proof(c.ConnectionState(), "welcome", w.payload()); err != nil {
		return peer, err
	}
	body, err := w.encode()
	if err != nil {
		p.refuse(c, refusedInternal)
		return peer, err
	}
	if _, err := c.Write(appendMessage(nil, messageWelcome, body)); err != nil {
		return peer, fmt.Errorf("identity: %q was given a certificate: %w: %w", name, ErrUnconfirmed, err)
	}
	if t, _, err := readMessage(c); err != nil {
		return peer, fmt.Errorf("identity: %q was given a certificate: %w: %w", name, ErrUnconfirmed, err)
	} else if t != messageDone {
		return peer, fmt.Errorf("identity: %q was given a certificate: %w: message %d, expected %d", name, ErrUnconfirmed, t, messageDone)
	}
	c.CloseWrite()
	return peer, nil
}

func (p *Pairing) refuse(c *tls.Conn, r refusal) {
	if _, err := c.Write(appendMessage(nil, messageRefuse, []byte{byte(r)})); err != nil {
		return
	}
	c.CloseWrite()
}

// wrongTry counts a wrong code. The error is how the pairing must end, if it must.
func (p *Pairing) wrongTry() (refusal, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done || p.used || p.wrong >= p.opts.Tries {
		return refusedOver, nil
	}
	p.wrong++
	if p.wrong < p.opts.Tries {
		return refusedCode, nil
	}
	return refusedOver, fmt.Errorf("identity: %d wrong codes: %w; somebody else may be trying", p.wrong, ErrPairingOver)
}

// claim takes the one use of the code.
func (p *Pairing) claim() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used || p.done || p.wrong >= p.opts.Tries {
		return false
	}
	p.used = true
	return true
}

// permit says whether a name may have a certificate.
func (p *Pairing) permit(name string) (refusal, error) {
	switch {
	case p.opts.For != "" && name != p.opts.For:
		return refusedOther, nil
	case name == p.opts.Self:
		return refusedName, nil
	case p.opts.Rules.Denied(name, ""):
		return refusedDenied, nil
	case p.opts.For != "":
		return 0, nil
	}
	switch have, err := p.authority.Has(name); {
	case err != nil:
		return refusedInternal, err
	case have:
		return refusedName, nil
	}
	return 0, nil
}

// parseRequest takes the name and the key from a certificate request, and nothing else.
func parseRequest(der []byte) (string, *ecdsa.PublicKey, error) {
	r, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return "", nil, fmt.Errorf("identity: the certificate request: %w: %w", err, ErrMessage)
	}
	public, ok := r.PublicKey.(*ecdsa.PublicKey)
	if !ok || public.Curve != elliptic.P256() {
		return "", nil, fmt.Errorf("identity: the certificate request: expected a key on P-256: %w", ErrMessage)
	}
	if err := r.CheckSignature(); err != nil {
		return "", nil, fmt.Errorf("identity: the certificate request: %w: %w", err, ErrMessage)
	}
	name, err := uriName(&x509.Certificate{URIs: r.URIs}, nodeURI)
	return name, public, err
}
