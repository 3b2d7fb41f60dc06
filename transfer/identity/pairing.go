package identity

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Sentinels of pairing.
var (
	// ErrPairingOver is an invitation that was used, or is too old.
	ErrPairingOver = errors.New("the invitation is over")
	// ErrWrongCode is a joiner, or a host, that does not know the secret of the invitation.
	ErrWrongCode = errors.New("wrong code")
	// ErrWrongAuthority is a host that is not of the authority which the code names.
	ErrWrongAuthority = errors.New("another authority than the code says")
	// ErrNameRefused is a name that the host does not give a certificate for.
	ErrNameRefused = errors.New("the name was refused")
	// ErrNotConfirmed is a machine whose key the host did not confirm.
	ErrNotConfirmed = errors.New("the machine was not confirmed")
	// ErrUnconfirmed is a machine that was given a certificate, where the end of the pairing is not
	// known: a joiner that did not say that it kept it, or a host that did not confirm that.
	ErrUnconfirmed = errors.New("the other machine did not confirm")
)

// PairingTimeout is how long an invitation is good by default.
const PairingTimeout = 10 * time.Minute

// PairingOptions are the choices for one pairing. Self and Confirm are needed.
type PairingOptions struct {
	Self    string        // the host's own name, which no joiner gets
	For     string        // the one name that may join, also if it has a certificate already; "": any that has none
	Valid   time.Duration // of the certificate; 0: LeafValid
	Timeout time.Duration // 0: PairingTimeout
	Rules   *Rules        // whose denied names cannot join

	// Confirm decides about a machine that knows the code, before it gets a certificate. One is
	// asked about at a time; others that know the code are refused meanwhile. False refuses this
	// one, and the pairing goes on; an error ends the pairing. It returns when ctx ends, which it
	// does when the machine hangs up or the pairing is over.
	Confirm func(ctx context.Context, c Candidate) (bool, error)
	// Joined is called when the machine has said that it kept its certificate, before the host
	// confirms that it is paired. After an error the host does not confirm, and Serve returns the
	// error. May be nil.
	Joined func(c Candidate, p Peer) error
	// Refused is called for each machine that knew the code and got no certificate. May be nil.
	Refused func(c Candidate, why string)
}

// Candidate is a machine that has proven that it knows the code and wants a certificate.
type Candidate struct {
	Name        string // that it asks for
	Address     string // that it comes from
	Fingerprint string // of its public key, see KeyFingerprint
}

// KeyFingerprint is the SHA-256 of a public key (SubjectPublicKeyInfo in DER), in hexadecimal.
func KeyFingerprint(public *ecdsa.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return "", fmt.Errorf("identity: the public key: %w", err)
	}
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:]), nil
}

// Pairing is the host's side: one invitation, for one other machine.
type Pairing struct {
	authority *Authority
	opts      PairingOptions
	invite    Invitation
	config    *tls.Config
	ctx       context.Context // of Serve
	until     time.Time       // when the invitation ends

	mu      sync.Mutex
	conns   []*pairConn // oldest first
	asking  bool        // about a machine that knows the code
	used    bool        // a certificate is being given to that machine
	done    bool
	peer    Peer
	err     error
	decided chan struct{} // closed when peer or err say how it ended
}

// NewPairing makes an invitation.
func (a *Authority) NewPairing(o PairingOptions) (*Pairing, error) {
	if err := CheckName(o.Self); err != nil {
		return nil, err
	}
	if o.Confirm == nil {
		return nil, fmt.Errorf("identity: a pairing without Confirm would take every machine that knows the code: %w",
			ErrNotConfirmed)
	}
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
	o.Timeout = cmp.Or(o.Timeout, PairingTimeout)
	// A certificate that only serves this pairing: nodes have none like it, so no node can stand in
	// for the host, and it is not a node's, so it opens nothing.
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("identity: a new key: %w", err)
	}
	var id [16]byte
	rand.Read(id[:])
	cert, err := a.sign(pairURI+hex.EncodeToString(id[:]), "penstock pairing", key.Public(),
		IssueOptions{Valid: o.Timeout + Skew})
	if err != nil {
		return nil, err
	}
	p := &Pairing{authority: a, opts: o, invite: newInvitation("", a.cert), decided: make(chan struct{})}
	knock := p.invite.knock()
	p.config = &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{pairALPN},
		SessionTicketsDisabled: true,
		Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw, a.cert.Raw}, PrivateKey: key,
			Leaf: cert}},
		VerifyConnection: checkPairProtocol,
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			for _, proto := range h.SupportedProtos {
				if hmac.Equal([]byte(proto), []byte(knock)) {
					p.knocked(h.Conn)
				}
			}
			return nil, nil
		},
	}
	return p, nil
}

func checkPairProtocol(cs tls.ConnectionState) error { return checkProtocol(cs, pairALPN) }

// Invitation is what the other machine needs, for the address at which it can reach this one.
func (p *Pairing) Invitation(address string) Invitation {
	v := p.invite
	v.Address = address
	return v
}

// Serve waits on a listener until one machine has joined and says which, or until the invitation is
// over: the machine was not confirmed, the invitation is too old ([ErrPairingOver]), or ctx is
// done. Machines that do not know the code cannot end it. Serve closes the listener and all
// connections before it returns. [ErrUnconfirmed] comes with the name that was given a certificate.
// A Pairing is served once.
func (p *Pairing) Serve(ctx context.Context, ln net.Listener) (Peer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.opts.Timeout,
		fmt.Errorf("identity: no machine joined within %v: %w", p.opts.Timeout, ErrPairingOver))
	defer cancel()
	p.ctx = ctx
	p.until, _ = ctx.Deadline()
	var conns sync.WaitGroup
	failed := make(chan error, 1)
	go func() {
		for {
			c, err := ln.Accept()
			switch {
			case err == nil:
			case errors.Is(err, net.ErrClosed):
				failed <- err
				return
			default: // such as no descriptors left: that passes, and a peer that causes it must not end the pairing
				<-time.After(acceptPause)
				continue
			}
			j := p.add(c)
			if j == nil {
				c.Close()
				continue
			}
			conns.Go(func() { p.serve(j) })
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

// abandon ends the pairing, unless a joiner gets a certificate at this moment: then the goroutine
// that serves that joiner reports the outcome, so that Serve reports every certificate that was
// given away.
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

// ask takes the turn of the one machine that is asked about, or says why it does not get it.
func (p *Pairing) ask() refusal {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.done || p.used:
		return refusedOver
	case p.asking:
		return refusedRival
	}
	p.asking = true
	return 0
}

// answered gives the turn back, or with ok makes it the one use of the code, which fails when the
// pairing is over.
func (p *Pairing) answered(ok bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asking = false
	if !ok || p.done {
		return false
	}
	p.used = true
	return true
}

// serve talks with one joiner.
func (p *Pairing) serve(j *pairConn) {
	defer p.remove(j)
	defer j.raw.Close()
	j.raw.SetDeadline(time.Now().Add(pairPatience))
	c := tls.Server(j.raw, p.config)
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
		// There is no limit of tries: 128 bits cannot be guessed, and with a limit any peer could
		// end the pairing.
		p.refuse(c, refusedCode)
		return
	}
	if !p.prove(j) {
		return
	}
	name, public, err := parseRequest(m.request)
	if err != nil {
		p.refuse(c, refusedMalformed)
		return
	}
	who := Candidate{Name: name, Address: j.raw.RemoteAddr().String()}
	if who.Fingerprint, err = KeyFingerprint(public); err != nil {
		p.refuse(c, refusedInternal)
		return
	}
	r, err := p.permit(name)
	if r == 0 && err == nil {
		r = p.ask()
	}
	if r != 0 || err != nil {
		p.turnAway(c, who, r)
		if err != nil {
			p.finish(Peer{}, err)
		}
		return
	}
	p.converse(c, j.raw, who, public)
}

// answer is what a joiner says after its request, or how its connection ended.
type answer struct {
	t   messageType
	err error
}

// converse asks for the confirmation of a machine that has the turn, and gives it its certificate.
func (p *Pairing) converse(c *tls.Conn, raw net.Conn, who Candidate, public *ecdsa.PublicKey) {
	wait := binary.BigEndian.AppendUint32(nil, uint32(time.Until(p.until)/time.Second))
	if _, err := c.Write(appendMessage(nil, messageWait, wait)); err != nil {
		p.answered(false)
		return
	}
	raw.SetDeadline(time.Time{})
	ctx, cancel := context.WithCancel(p.ctx)
	answers := make(chan answer, 1)
	var reading sync.WaitGroup
	reading.Go(func() {
		t, _, err := readMessage(c)
		answers <- answer{t, err}
		cancel() // before it has a certificate a joiner says nothing: it hung up
	})
	defer reading.Wait()
	defer raw.Close()
	ok, err := p.opts.Confirm(ctx, who)
	if ctx.Err() != nil {
		p.answered(false)
		return
	}
	raw.SetDeadline(time.Now().Add(pairPatience))
	if err != nil || !ok {
		p.answered(false)
		p.turnAway(c, who, refusedUnconfirmed)
		if err != nil {
			p.finish(Peer{}, err)
		}
		return
	}
	if !p.answered(true) {
		p.turnAway(c, who, refusedOver)
		return
	}
	peer, err := p.accept(c, who, public, answers)
	p.finish(peer, err)
}

// accept signs the certificate and hands it over.
func (p *Pairing) accept(c *tls.Conn, who Candidate, public *ecdsa.PublicKey, answers <-chan answer) (Peer, error) {
	roots, err := p.authority.bundle()
	if err != nil {
		p.refuse(c, refusedInternal)
		return Peer{}, err
	}
	cert, err := p.authority.Sign(who.Name, public, IssueOptions{Valid: p.opts.Valid})
	if err != nil {
		p.refuse(c, refusedInternal)
		return Peer{}, err
	}
	peer, err := peerOf(cert)
	if err != nil {
		return Peer{}, err
	}
	w := welcome{host: p.opts.Self, certs: [][]byte{cert.Raw}}
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
	unconfirmed := func(format string, args ...any) (Peer, error) {
		return peer, fmt.Errorf("identity: %q was given certificate %s: %w: %w", who.Name, peer.Serial, ErrUnconfirmed,
			fmt.Errorf(format, args...))
	}
	if _, err := c.Write(appendMessage(nil, messageWelcome, body)); err != nil {
		return unconfirmed("%w", err)
	}
	if a := <-answers; a.err != nil {
		return unconfirmed("%w", a.err)
	} else if a.t != messageDone {
		return unconfirmed("message %d, expected %d: %w", a.t, messageDone, ErrMessage)
	}
	if p.opts.Joined != nil {
		if err := p.opts.Joined(who, peer); err != nil {
			p.refuse(c, refusedInternal)
			return peer, err
		}
	}
	// The joiner has said that it is paired. If this answer is lost, Join returns ErrUnconfirmed.
	c.Write(appendMessage(nil, messageDone, nil))
	c.CloseWrite()
	return peer, nil
}

func (p *Pairing) refuse(c *tls.Conn, r refusal) {
	if _, err := c.Write(appendMessage(nil, messageRefuse, []byte{byte(r)})); err != nil {
		return
	}
	c.CloseWrite()
}

// turnAway refuses a machine that knows the code, and says so here first.
func (p *Pairing) turnAway(c *tls.Conn, who Candidate, r refusal) {
	if p.opts.Refused != nil {
		p.opts.Refused(who, r.String())
	}
	p.refuse(c, r)
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
