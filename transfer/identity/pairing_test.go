package identity

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// outcome is what Serve returned.
type outcome struct {
	peer Peer
	err  error
}

// filled are options in which every machine that knows the code is confirmed, unless they say
// otherwise.
func filled(o PairingOptions) PairingOptions {
	if o.Self == "" {
		o.Self = "host"
	}
	if o.Confirm == nil {
		o.Confirm = func(context.Context, Candidate) (bool, error) { return true, nil }
	}
	return o
}

// host starts a pairing on loopback.
func host(t testing.TB, ca *Authority, o PairingOptions) (Invitation, <-chan outcome, context.CancelFunc) {
	t.Helper()
	p, err := ca.NewPairing(filled(o))
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan outcome, 1)
	go func() {
		peer, err := p.Serve(ctx, ln)
		done <- outcome{peer, err}
	}()
	t.Cleanup(cancel)
	return p.Invitation(ln.Addr().String()), done, cancel
}

func TestPairing(t *testing.T) {
	home, away := newDir(t), newDir(t)
	ca := setup(t, home, "a")
	v, done, _ := host(t, ca, PairingOptions{Self: "a"})
	v, err := ParseInvitation(v.Address, v.Code()) // as typed in
	if err != nil {
		t.Fatal(err)
	}
	c, err := Join(t.Context(), v, away, "b", JoinOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if o := <-done; o.err != nil || o.peer != c.Self || c.Self.Name != "b" || c.Authority != nil ||
		c.Issuer != Fingerprint(ca.cert) {
		t.Fatalf("host: %+v; joiner: %+v", o, c)
	}
	a, b := open(t, home, Options{}), open(t, away, Options{})
	for _, s := range []*Identity{a, b} {
		for _, c := range []*Identity{a, b} {
			if p, err := meet(t, s, c); err != nil || p != c.Self() {
				t.Errorf("%s dials %s: %+v, %v", c.Name(), s.Name(), p, err)
			}
		}
	}
	for name, mode := range map[string]os.FileMode{NodeFile: 0o600, CAFile: 0o644} {
		if fi, err := os.Stat(filepath.Join(away, name)); err != nil || fi.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, fi, err)
		}
	}
	// The code works once: the host does not listen any more.
	if _, err := Join(t.Context(), v, newDir(t), "c", JoinOptions{}); err == nil {
		t.Error("the code worked twice")
	}
	// The same machine again, by the name that the host allows: a new key and certificate, which a
	// running node takes up.
	v, done, _ = host(t, ca, PairingOptions{Self: "a", For: "b"})
	again, err := Join(t.Context(), v, away, "b", JoinOptions{})
	if err != nil || again.Self.Serial == c.Self.Serial {
		t.Fatalf("renewal: %+v, %v", again, err)
	}
	if o := <-done; o.err != nil {
		t.Error(o.err)
	}
	if err := reload(b); err != nil || b.Self() != again.Self {
		t.Errorf("the running node has %+v, %v", b.Self(), err)
	}
}

// change returns the invitation with one bit of its secret or its root changed.
func change(v Invitation, secret bool) Invitation {
	if secret {
		v.secret[15] ^= 1
	} else {
		v.Root[31] ^= 1
	}
	return v
}

// However many wrong codes come, the joiner with the right one gets through.
func TestWrongCodes(t *testing.T) {
	ca := authority(t)
	v, done, _ := host(t, ca, PairingOptions{})
	for range 20 {
		if _, err := Join(t.Context(), change(v, true), newDir(t), "b", JoinOptions{}); !errors.Is(err, ErrWrongCode) {
			t.Errorf("wrong secret: %v", err)
		}
	}
	// A wrong root is noticed by the joiner, who then says nothing.
	dir := newDir(t)
	for range 5 {
		if _, err := Join(t.Context(), change(v, false), dir, "b", JoinOptions{}); !errors.Is(err, ErrWrongAuthority) {
			t.Errorf("wrong root: %v", err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
	if _, err := Join(t.Context(), v, dir, "b", JoinOptions{}); err != nil {
		t.Errorf("the right code after wrong ones: %v", err)
	}
	if o := <-done; o.err != nil || o.peer.Name != "b" {
		t.Errorf("%+v", o)
	}
	if issued, _ := ca.Issued(); len(issued) != 1 {
		t.Errorf("issued: %+v", issued)
	}
}

// Many join at a time with one code: one gets a certificate, the others an error that it is over.
func TestParallelJoiners(t *testing.T) {
	ca := authority(t)
	v, done, _ := host(t, ca, PairingOptions{})
	var mu sync.Mutex
	var won []string
	var wg sync.WaitGroup
	for k := range 8 {
		dir := newDir(t)
		wg.Go(func() {
			name := fmt.Sprintf("b%d", k)
			_, err := Join(t.Context(), v, dir, name, JoinOptions{})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won = append(won, name)
			} else if have, _ := exists(filepath.Join(dir, NodeFile)); have {
				t.Errorf("%s failed with %v and has a certificate", name, err)
			}
		})
	}
	wg.Wait()
	o := <-done
	if len(won) != 1 || o.err != nil || o.peer.Name != won[0] {
		t.Errorf("%v have a certificate; the host says %+v", won, o)
	}
	if issued, _ := ca.Issued(); len(issued) != 1 {
		t.Errorf("issued: %+v", issued)
	}
}

// dialPair opens a pairing connection and checks nothing.
func dialPair(t testing.TB, addr string) *tls.Conn {
	t.Helper()
	c, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{pairALPN}})
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(time.Minute))
	t.Cleanup(func() { c.Close() })
	return c
}

// request makes a certificate request.
func request(t testing.TB, key crypto.Signer, x x509.CertificateRequest, names ...string) []byte {
	t.Helper()
	for _, n := range names {
		x.URIs = append(x.URIs, &url.URL{Scheme: "penstock", Opaque: "node:" + n})
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func p256(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// ask joins with any request, and returns the answer.
func ask(t testing.TB, v Invitation, request []byte) (messageType, []byte) {
	t.Helper()
	c := dialPair(t, v.Address)
	defer c.Close()
	m := join{request: request}
	var err error
	if m.proof, err = v.proof(c.ConnectionState(), "join", request); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(appendMessage(nil, messageJoin, m.encode())); err != nil {
		t.Fatal(err)
	}
	typ, body, err := readAnswer(c)
	if err != nil {
		t.Fatal(err)
	}
	return typ, body
}

// readAnswer is the first message of a host that is not to wait.
func readAnswer(c *tls.Conn) (messageType, []byte, error) {
	for {
		if typ, body, err := readMessage(c); err != nil || typ != messageWait {
			return typ, body, err
		}
	}
}

func refused(typ messageType, body []byte) refusal {
	if typ != messageRefuse || len(body) != 1 {
		return 0
	}
	return refusal(body[0])
}

// A joiner with the code still gets only what the host permits, and a refusal leaves the code good
// for another try.
func TestRequests(t *testing.T) {
	dir := newDir(t)
	ca := setup(t, dir, "a")
	if _, err := ca.Credentials("taken", IssueOptions{}); err != nil {
		t.Fatal(err)
	}
	rules, err := ParseRules([]byte("default all\ndeny name bad-*\n"))
	if err != nil {
		t.Fatal(err)
	}
	key := p256(t)
	big, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	broken := request(t, key, x509.CertificateRequest{}, "b")
	broken[len(broken)-1] ^= 1
	v, done, _ := host(t, ca, PairingOptions{Self: "a", Rules: rules})
	for _, c := range []struct {
		what    string
		request []byte
		want    refusal
	}{
		{"the host's name", request(t, key, x509.CertificateRequest{}, "a"), refusedName},
		{"a name that is taken", request(t, key, x509.CertificateRequest{}, "taken"), refusedName},
		{"a denied name", request(t, key, x509.CertificateRequest{}, "bad-1"), refusedDenied},
		{"two names", request(t, key, x509.CertificateRequest{}, "b", "c"), refusedMalformed},
		{"no name", request(t, key, x509.CertificateRequest{}), refusedMalformed},
		{"a path", request(t, key, x509.CertificateRequest{}, "../b"), refusedMalformed},
		{"a pattern", request(t, key, x509.CertificateRequest{}, "*"), refusedMalformed},
		{"a name as subject", request(t, key, x509.CertificateRequest{Subject: pkix.Name{CommonName: "b"}}), refusedMalformed},
		{"another curve", request(t, big, x509.CertificateRequest{}, "b"), refusedMalformed},
		{"another kind of key", request(t, ed, x509.CertificateRequest{}, "b"), refusedMalformed},
		{"a wrong signature", broken, refusedMalformed},
		{"no request", []byte{1}, refusedMalformed},
	} {
		if r := refused(ask(t, v, c.request)); r != c.want {
			t.Errorf("%s: refusal %d, expected %d", c.what, r, c.want)
		}
	}
	// A request for more than a name gets a name and no more.
	greedy := request(t, key, x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "root"}, DNSNames: []string{"example.org"},
		// CA:TRUE
		ExtraExtensions: []pkix.Extension{{Id: []int{2, 5, 29, 19}, Critical: true,
			Value: []byte{0x30, 0x03, 0x01, 0x01, 0xff}}},
	}, "b")
	typ, body := ask(t, v, greedy)
	if typ != messageWelcome {
		t.Fatalf("%d %v", typ, body)
	}
	w, err := parseWelcome(body)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(w.certs[0])
	if err != nil || cert.IsCA || len(cert.DNSNames) != 1 || cert.DNSNames[0] != "b" ||
		cert.Subject.CommonName != "b" || len(cert.URIs) != 1 {
		t.Errorf("%+v, %v", cert, err)
	}
	// That joiner never said that it kept the certificate.
	if o := <-done; !errors.Is(o.err, ErrUnconfirmed) || o.peer.Name != "b" {
		t.Errorf("%+v", o)
	}

	v, done, cancel := host(t, authority(t), PairingOptions{Self: "a"})
	if r := refused(ask(t, v, request(t, key, x509.CertificateRequest{}, "a"))); r != refusedName {
		t.Errorf("the host's name, which has no certificate: %d", r)
	}
	cancel()
	<-done
	v, done, cancel = host(t, ca, PairingOptions{Self: "a", For: "taken"})
	if r := refused(ask(t, v, request(t, key, x509.CertificateRequest{}, "c"))); r != refusedOther {
		t.Errorf("another name than expected: %d", r)
	}
	if _, err := Join(t.Context(), v, newDir(t), "c", JoinOptions{}); !errors.Is(err, ErrNameRefused) {
		t.Errorf("another name than expected: %v", err)
	}
	cancel()
	if o := <-done; !errors.Is(o.err, context.Canceled) {
		t.Errorf("%+v", o)
	}
	for _, o := range []PairingOptions{{Self: "a", For: "a"}, {For: "bad-1", Rules: rules}, {For: "No"}, {Self: "No"}} {
		if _, err := ca.NewPairing(filled(o)); err == nil {
			t.Errorf("%+v: a pairing that cannot succeed", o)
		}
	}
}

// What is not a message is refused or hung up on. It is no try, and the right joiner comes through
// afterwards.
func TestMalformedMessages(t *testing.T) {
	ca := authority(t)
	v, done, _ := host(t, ca, PairingOptions{})
	for _, b := range [][]byte{
		nil,
		[]byte("GET / HTTP/1.1\r\n\r\n"),
		appendMessage(nil, messageJoin, nil),
		appendMessage(nil, messageJoin, make([]byte, proofSize)),
		appendMessage(nil, messageJoin, make([]byte, proofSize+maxRequest+1)),
		appendMessage(nil, messageJoin, make([]byte, 65535)),
		appendMessage(nil, messageJoin, make([]byte, 100))[:50],
		appendMessage(nil, messageJoin, make([]byte, 100))[:5],
		appendMessage(nil, messageWelcome, make([]byte, 100)),
		appendMessage(nil, messageDone, nil),
		appendMessage(nil, 99, nil),
		append([]byte("pnpr\x02\x01\x00\x21"), make([]byte, 33)...),
	} {
		c := dialPair(t, v.Address)
		c.Write(b)
		c.CloseWrite()
		typ, body, err := readMessage(c)
		if err == nil && refused(typ, body) != refusedMalformed {
			t.Errorf("%.20q: message %d %v", b, typ, body)
		}
	}
	// Nor is it one to talk no TLS, another version of it, or another protocol in it.
	for _, hello := range []string{"", "x", "GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\xff\xff"} {
		c, err := net.Dial("tcp", v.Address)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, hello)
		c.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, c)
		c.Close()
	}
	for _, config := range []*tls.Config{{MaxVersion: tls.VersionTLS12, NextProtos: []string{pairALPN}},
		{NextProtos: []string{ALPN}}, {}} {
		config.InsecureSkipVerify = true
		if c, err := tls.Dial("tcp", v.Address, config); err == nil {
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Errorf("%v %v: the host answered", config.MaxVersion, config.NextProtos)
			}
			c.Close()
		}
	}
	if _, err := Join(t.Context(), v, newDir(t), "b", JoinOptions{}); err != nil {
		t.Error(err)
	}
	if o := <-done; o.err != nil {
		t.Error(o.err)
	}
}

// A pairing certificate opens nothing but this pairing.
func TestPairingCertificateIsNoNode(t *testing.T) {
	ca := authority(t)
	p, err := ca.NewPairing(filled(PairingOptions{}))
	if err != nil {
		t.Fatal(err)
	}
	a := issue(t, ca, "a", IssueOptions{})
	if _, _, serr, cerr := shake(t, a.Server(), rogue(p.config.Certificates[0])); !errors.Is(serr, ErrName) ||
		cerr == nil {
		t.Errorf("server %v, client %v", serr, cerr)
	}
}

// The end of the program ends the pairing at once, whatever connections there are.
func TestInterrupted(t *testing.T) {
	ca := authority(t)
	v, done, cancel := host(t, ca, PairingOptions{})
	silent, err := net.Dial("tcp", v.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	half := dialPair(t, v.Address)
	half.Write([]byte("pnpr"))
	cancel()
	if o := <-done; !errors.Is(o.err, context.Canceled) {
		t.Errorf("%+v", o)
	}
	if _, err := io.Copy(io.Discard, silent); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Error(err)
	}
	// While a joiner has its certificate and has not confirmed, the end says so.
	v, done, cancel = host(t, ca, PairingOptions{})
	asked := request(t, p256(t), x509.CertificateRequest{}, "b")
	c := dialPair(t, v.Address)
	m := join{request: asked}
	if m.proof, err = v.proof(c.ConnectionState(), "join", asked); err != nil {
		t.Fatal(err)
	}
	c.Write(appendMessage(nil, messageJoin, m.encode()))
	if typ, _, err := readAnswer(c); typ != messageWelcome || err != nil {
		t.Fatalf("%d, %v", typ, err)
	}
	cancel()
	if o := <-done; !errors.Is(o.err, ErrUnconfirmed) || o.peer.Name != "b" {
		t.Errorf("%+v", o)
	}
	// And at the other end: a host that says nothing.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ctx, stop := context.WithCancel(t.Context())
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := ln.Accept()
		if err == nil {
			accepted <- c
		}
		stop()
	}()
	v.Address = ln.Addr().String()
	dir := newDir(t)
	if _, err := Join(ctx, v, dir, "b", JoinOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("joiner: %v", err)
	}
	(<-accepted).Close()
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// queue is a listener whose connections tests make, for virtual time.
type queue struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newQueue() *queue { return &queue{conns: make(chan net.Conn), done: make(chan struct{})} }

func (q *queue) Accept() (net.Conn, error) {
	select {
	case c := <-q.conns:
		return c, nil
	case <-q.done:
		return nil, net.ErrClosed
	}
}
func (q *queue) Close() error   { q.once.Do(func() { close(q.done) }); return nil }
func (q *queue) Addr() net.Addr { return &net.TCPAddr{} }

func (q *queue) dial() net.Conn {
	a, b := net.Pipe()
	q.conns <- a
	return b
}

// An invitation that no joiner takes ends by itself.
func TestPairingTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := authority(t).NewPairing(filled(PairingOptions{}))
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, err = p.Serve(t.Context(), newQueue())
		if !errors.Is(err, ErrPairingOver) || time.Since(start) != PairingTimeout {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// starved is a listener in a process without descriptors.
type starved struct{ *queue }

func (s starved) Accept() (net.Conn, error) {
	select {
	case <-s.done:
		return nil, net.ErrClosed
	default:
		return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
}

// A process that takes all descriptors of the host does not end the invitation.
func TestPairingWithoutDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := authority(t).NewPairing(filled(PairingOptions{}))
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, err = p.Serve(t.Context(), starved{newQueue()})
		if !errors.Is(err, ErrPairingOver) || time.Since(start) < PairingTimeout {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// Connections that say nothing, or a byte now and then, end after their time and keep no joiner
// out.
func TestSlowConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := authority(t)
		p, err := ca.NewPairing(filled(PairingOptions{}))
		if err != nil {
			t.Fatal(err)
		}
		q := newQueue()
		done := make(chan outcome, 1)
		go func() {
			peer, err := p.Serve(t.Context(), q)
			done <- outcome{peer, err}
		}()
		start := time.Now()
		// One that is slow, with whole messages of TLS but a byte per second of its own.
		ended := make(chan time.Duration, 6*pairConns)
		drip := func(c net.Conn) {
			defer func() { ended <- time.Since(start) }()
			go io.Copy(io.Discard, c)
			for _, b := range []byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03abcdefghijklmnop") {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		}
		go drip(q.dial())
		if d := <-ended; d < pairPatience || d > pairPatience+time.Second {
			t.Errorf("the slow one was ended after %v", d)
		}
		// Many that say nothing: the oldest make room for the newest.
		flood := func(n int) {
			for range n {
				c := q.dial()
				go func() {
					io.Copy(io.Discard, c)
					ended <- 0
				}()
			}
		}
		flood(3 * pairConns)
		synctest.Wait()
		if n := len(ended); n != 2*pairConns {
			t.Errorf("%d silent connections ended, expected %d", n, 2*pairConns)
		}
		// And the right one comes through, also when many more come while it writes its files.
		kept := 0
		if err := p.Invitation("pipe:1").join(q.dial(), p256(t), "b", joining{
			wait: func(time.Duration) {},
			keep: func(string, Credentials) error { kept++; flood(2 * pairConns); return nil },
		}); err != nil || kept != 1 {
			t.Errorf("the right one: %v", err)
		}
		if o := <-done; o.err != nil || o.peer.Name != "b" {
			t.Errorf("%+v", o)
		}
		for range 5 * pairConns {
			<-ended
		}
	})
}
