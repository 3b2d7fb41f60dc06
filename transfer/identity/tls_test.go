package identity

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func authority(t testing.TB) *Authority {
	t.Helper()
	a, err := NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func issue(t testing.TB, a *Authority, name string, o IssueOptions) *Identity {
	t.Helper()
	i, err := a.Issue(name, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(i.Close)
	return i
}

// connect makes a connection with buffers, unlike net.Pipe: a side that refuses says so and leaves.
func connect(t testing.TB) (a, b net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if b, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if a, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// shake lets two configurations meet. Each side says what it thinks of the other; a TLS 1.3 client
// knows only after it has read something.
func shake(t testing.TB, server, client *tls.Config) (atServer, atClient tls.ConnectionState, serverErr,
	clientErr error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	a, b := connect(t)
	s, c := tls.Server(a, server), tls.Client(b, client)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer a.Close()
		if serverErr = s.HandshakeContext(ctx); serverErr == nil {
			_, serverErr = s.Write([]byte("!"))
		}
		atServer = s.ConnectionState()
	}()
	if clientErr = c.HandshakeContext(ctx); clientErr == nil {
		_, clientErr = io.ReadFull(c, make([]byte, 1))
	}
	atClient = c.ConnectionState()
	b.Close()
	<-done
	return
}

func TestHandshake(t *testing.T) {
	ca := authority(t)
	a, b := issue(t, ca, "a", IssueOptions{}), issue(t, ca, "b", IssueOptions{})
	s, c, serr, cerr := shake(t, a.Server(), b.Client("a"))
	if serr != nil || cerr != nil {
		t.Fatal(serr, cerr)
	}
	if p, err := PeerOf(s); p.Name != "b" || err != nil {
		t.Errorf("the server sees %q, %v", p.Name, err)
	}
	if p, err := PeerOf(c); p.Name != "a" || err != nil {
		t.Errorf("the client sees %q, %v", p.Name, err)
	}
	if _, _, serr, cerr = shake(t, a.Server(), b.Client("c")); !errors.Is(cerr, ErrWrongPeer) || serr == nil {
		t.Errorf("another name: server %v, client %v", serr, cerr)
	}
}

// rogue is a configuration made without this package: it shows what it likes and believes
// everything.
func rogue(c ...tls.Certificate) *tls.Config {
	return &tls.Config{
		Certificates:       c,
		InsecureSkipVerify: true,
		ClientAuth:         tls.RequestClientCert,
		NextProtos:         []string{ALPN},
		MinVersion:         tls.VersionTLS12,
	}
}

func credentials(t testing.TB, a *Authority, name string, o IssueOptions) tls.Certificate {
	t.Helper()
	c, err := a.Credentials(name, o)
	if err != nil {
		t.Fatal(err)
	}
	return c.Certificate
}

// forge makes a certificate that the authority itself would not.
func forge(t testing.TB, a *Authority, change func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	u, _ := url.Parse(nodeURI + "b")
	x := &x509.Certificate{
		SerialNumber: newSerial(), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth,
			x509.ExtKeyUsageServerAuth}, URIs: []*url.URL{u},
	}
	change(x)
	der, err := x509.CreateCertificate(rand.Reader, x, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func TestRefusals(t *testing.T) {
	ca, other := authority(t), authority(t)
	denied := credentials(t, ca, "denied", IssueOptions{})
	bySerial := credentials(t, ca, "fine", IssueOptions{})
	rules, err := ParseRules([]byte("default all\ndeny name den*\ndeny serial " + bySerial.Leaf.SerialNumber.Text(16) +
		"\n"))
	if err != nil {
		t.Fatal(err)
	}
	old := authority(t)
	good := credentials(t, ca, "b", IssueOptions{})
	a := issue(t, ca, "a", IssueOptions{Options: Options{Rules: rules}})
	before := a.Stats()
	uris := func(us ...string) func(*x509.Certificate) {
		return func(x *x509.Certificate) {
			x.URIs = nil
			for _, s := range us {
				u, err := url.Parse(s)
				if err != nil {
					t.Fatal(err)
				}
				x.URIs = append(x.URIs, u)
			}
		}
	}
	// A certificate of a node must not issue others.
	leafAsCA := &Authority{cert: good.Leaf, key: good.PrivateKey.(crypto.Signer), clock: time.Now}
	byLeaf := forge(t, leafAsCA, func(*x509.Certificate) {})
	byLeaf.Certificate = append(byLeaf.Certificate, good.Leaf.Raw)

	cases := []struct {
		what string
		cert tls.Certificate
		want error
	}{
		{"another authority", credentials(t, other, "b", IssueOptions{}), ErrUntrusted},
		{"another authority that sends its root", tls.Certificate{Certificate: [][]byte{credentials(t, old, "b",
			IssueOptions{}).Certificate[0], old.cert.Raw}}, ErrUntrusted},
		{"expired", credentials(t, ca, "b", IssueOptions{NotBefore: time.Now().Add(-3 * time.Hour), Valid: time.Hour}), ErrExpired},
		{"not yet valid", credentials(t, ca, "b", IssueOptions{NotBefore: time.Now().Add(time.Hour)}), ErrNotYetValid},
		{"denied by name", denied, ErrDenied},
		{"denied by serial number", bySerial, ErrDenied},
		{"the root itself", tls.Certificate{Certificate: [][]byte{ca.cert.Raw}, PrivateKey: ca.key}, ErrUntrusted},
		{"issued by a node", byLeaf, ErrUntrusted},
		{"for pairing", forge(t, ca, uris(pairURI+"00")), ErrName},
		{"two names", forge(t, ca, uris(nodeURI+"b", nodeURI+"c")), ErrName},
		{"no name", forge(t, ca, uris()), ErrName},
		{"a bad name", forge(t, ca, uris(nodeURI+"../b")), ErrName},
		{"for e-mail only", forge(t, ca, func(x *x509.Certificate) { x.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageEmailProtection} }), ErrUntrusted},
	}
	// The root of the second case has no key above: give it one.
	k := credentials(t, old, "b", IssueOptions{})
	cases[1].cert = tls.Certificate{Certificate: [][]byte{k.Certificate[0], old.cert.Raw}, PrivateKey: k.PrivateKey}
	for _, c := range cases {
		t.Run(c.what, func(t *testing.T) {
			if _, _, serr, cerr := shake(t, a.Server(), rogue(c.cert)); !errors.Is(serr, c.want) || cerr == nil {
				t.Errorf("as client: server %v, client %v; expected %v", serr, cerr, c.want)
			}
			if _, _, serr, cerr := shake(t, rogue(c.cert), a.Client("")); !errors.Is(cerr, c.want) || serr == nil {
				t.Errorf("as server: server %v, client %v; expected %v", serr, cerr, c.want)
			}
		})
	}
	n := uint64(len(cases))
	// The node refused each once as a client and once as a server, and accepted none.
	if s := a.Stats(); s.Refused-before.Refused != 2*n || s.Accepted != before.Accepted {
		t.Errorf("%+v, expected %d refused", s, 2*n)
	}

	one := func(use x509.ExtKeyUsage) tls.Certificate {
		return forge(t, ca, func(x *x509.Certificate) { x.ExtKeyUsage = []x509.ExtKeyUsage{use} })
	}
	if _, _, serr, _ := shake(t, a.Server(), rogue(one(x509.ExtKeyUsageServerAuth))); !errors.Is(serr, ErrUntrusted) {
		t.Errorf("a certificate for servers as client: %v", serr)
	}
	if _, _, _, cerr := shake(t, rogue(one(x509.ExtKeyUsageClientAuth)), a.Client("")); !errors.Is(cerr, ErrUntrusted) {
		t.Errorf("a certificate for clients as server: %v", cerr)
	}
	if _, _, serr, cerr := shake(t, a.Server(), rogue()); serr == nil || cerr == nil {
		t.Errorf("no certificate: server %v, client %v", serr, cerr)
	}
	if _, _, serr, cerr := shake(t, a.Server(), rogue(good)); serr != nil || cerr != nil {
		t.Errorf("the same with a good certificate: server %v, client %v", serr, cerr)
	}
	for what, change := range map[string]func(*tls.Config){
		"TLS 1.2":        func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 },
		"other protocol": func(c *tls.Config) { c.NextProtos = []string{"h2"} },
		"no protocol":    func(c *tls.Config) { c.NextProtos = nil },
	} {
		c := rogue(good)
		change(c)
		if _, _, serr, cerr := shake(t, a.Server(), c); serr == nil || cerr == nil {
			t.Errorf("client with %s: server %v, client %v", what, serr, cerr)
		}
		if _, _, serr, cerr := shake(t, c, a.Client("")); serr == nil || cerr == nil {
			t.Errorf("server with %s: server %v, client %v", what, serr, cerr)
		}
	}
	if _, _, _, cerr := shake(t, rogue(good), a.Client("not a name")); !errors.Is(cerr, ErrName) {
		t.Errorf("an expected name that cannot be: %v", cerr)
	}
	a.Close()
	if _, _, serr, cerr := shake(t, a.Server(), rogue(good)); !errors.Is(serr, ErrClosed) || cerr == nil {
		t.Errorf("closed: server %v, client %v", serr, cerr)
	}
	if _, _, serr, cerr := shake(t, rogue(good), a.Client("")); !errors.Is(cerr, ErrClosed) || serr == nil {
		t.Errorf("closed: server %v, client %v", serr, cerr)
	}
}

func TestPlaintext(t *testing.T) {
	a := issue(t, authority(t), "a", IssueOptions{})
	for _, hello := range []string{"GET / HTTP/1.1\r\n\r\n", "PNST\x01\x01\x00\x00\x00\x00\x00\x00",
		"\x16\x03\x01\xff\xff"} {
		raw, far := net.Pipe()
		go func() {
			io.WriteString(far, hello)
			io.Copy(io.Discard, far)
		}()
		c := tls.Server(raw, a.Server())
		raw.SetDeadline(time.Now().Add(time.Minute))
		if hello[0] == 0x16 {
			// Longer than a record can be: no memory for it, no waiting.
			if err := c.Handshake(); err == nil {
				t.Errorf("%q was accepted", hello)
			}
		} else if err := c.Handshake(); !errors.As(err, new(tls.RecordHeaderError)) {
			t.Errorf("%q: %v", hello, err)
		}
		raw.Close()
		far.Close()
	}
}

// A session cannot be resumed: nothing but a full handshake lets a peer in.
func TestNoResumption(t *testing.T) {
	ca := authority(t)
	a := issue(t, ca, "a", IssueOptions{})
	c := rogue(credentials(t, ca, "b", IssueOptions{}))
	c.ClientSessionCache = tls.NewLRUClientSessionCache(8)
	c.ServerName = "x"
	server := a.Server() // one, as a listener keeps it: keys of tickets live in it
	for range 2 {
		s, _, serr, cerr := shake(t, server, c)
		if serr != nil || cerr != nil || s.DidResume {
			t.Fatalf("resumed: %v; %v, %v", s.DidResume, serr, cerr)
		}
	}
	if s := a.Stats(); s.Accepted != 2 {
		t.Errorf("%+v, expected two full handshakes", s)
	}
}

// The name and the exporter are the same at both ends, whatever the name.
func TestBothEndsAgree(t *testing.T) {
	ca := authority(t)
	a := issue(t, ca, "a", IssueOptions{})
	b := issue(t, ca, "x.y_z-9", IssueOptions{})
	s, c, serr, cerr := shake(t, a.Server(), b.Client("a"))
	if serr != nil || cerr != nil {
		t.Fatal(serr, cerr)
	}
	x, err1 := s.ExportKeyingMaterial("EXPORTER-test", nil, 32)
	y, err2 := c.ExportKeyingMaterial("EXPORTER-test", nil, 32)
	if err1 != nil || err2 != nil || !bytes.Equal(x, y) {
		t.Errorf("%v, %v", err1, err2)
	}
	if p, err := PeerOf(s); err != nil || p != b.Self() {
		t.Errorf("%+v, %v; expected %+v", p, err, b.Self())
	}
}

// Certificates are good for machines whose clocks differ by less than Skew, and say so when they
// differ by more.
func TestClocks(t *testing.T) {
	ca := authority(t)
	at := func(d time.Duration) (*Identity, error) {
		return ca.Issue("a", IssueOptions{Options: Options{Clock: func() time.Time { return time.Now().Add(d) }}})
	}
	if _, err := at(-Skew + time.Minute); err != nil {
		t.Errorf("a slow clock: %v", err)
	}
	if _, err := at(-Skew - time.Minute); !errors.Is(err, ErrNotYetValid) || !strings.Contains(err.Error(), "clocks") {
		t.Errorf("a clock that is far too slow: %v", err)
	}
	if _, err := at(LeafValid + time.Minute); !errors.Is(err, ErrExpired) {
		t.Errorf("a clock that is far too fast: %v", err)
	}
	// A certificate that ends while it is in use is an error that names it, at the end that can
	// renew it.
	var off atomic.Int64
	o := Options{Clock: func() time.Time { return time.Now().Add(time.Duration(off.Load())) }}
	a, err := ca.Issue("a", IssueOptions{Options: o})
	if err != nil {
		t.Fatal(err)
	}
	b, err := ca.Issue("b", IssueOptions{Options: o, Valid: 2 * LeafValid})
	if err != nil {
		t.Fatal(err)
	}
	for left, want := range map[time.Duration]string{WarnBefore + time.Hour: "", WarnBefore - time.Hour: "ends on",
		-time.Hour: "has ended"} {
		off.Store(int64(LeafValid - left))
		if w := a.Stats().Warning; (w == "") != (want == "") || !strings.Contains(w, want) {
			t.Errorf("%v before its end: %q", left, w)
		}
	}
	off.Store(int64(LeafValid + time.Hour))
	if _, _, _, cerr := shake(t, b.Server(), a.Client("b")); !errors.Is(cerr, ErrExpired) {
		t.Errorf("own certificate over: %v", cerr)
	}
	if _, _, _, cerr := shake(t, a.Server(), b.Client("a")); !errors.Is(cerr, ErrExpired) ||
		!strings.Contains(cerr.Error(), "peer's certificate") {
		t.Errorf("the server's certificate over: %v", cerr)
	}
	if _, err := ca.Credentials("a", IssueOptions{Valid: 2 * RootValid}); err != nil {
		t.Fatal(err)
	} else if c := credentials(t, ca, "a",
		IssueOptions{Valid: 2 * RootValid}); !c.Leaf.NotAfter.Equal(ca.cert.NotAfter) {
		t.Errorf("a certificate until %v outlives its root, %v", c.Leaf.NotAfter, ca.cert.NotAfter)
	}
	late := &Authority{cert: ca.cert, key: ca.key, clock: func() time.Time { return time.Now().Add(RootValid) }}
	if _, err := late.Credentials("a", IssueOptions{}); !errors.Is(err, ErrExpired) {
		t.Errorf("an authority whose time is over: %v", err)
	}
}

func TestNewRefuses(t *testing.T) {
	ca, other := authority(t), authority(t)
	good, err := ca.Credentials("a", IssueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	foreign, _ := other.Credentials("a", IssueOptions{})
	for what, c := range map[string]Credentials{
		"nothing":  {},
		"no roots": {Certificate: good.Certificate},
		"no key": {Certificate: tls.Certificate{Certificate: good.Certificate.Certificate},
			Roots: good.Roots},
		"a leaf as root": {Certificate: good.Certificate, Roots: []*x509.Certificate{good.Certificate.Leaf}},
		"other roots":    {Certificate: good.Certificate, Roots: foreign.Roots},
		"another one's key": {Certificate: tls.Certificate{Certificate: good.Certificate.Certificate,
			PrivateKey: foreign.Certificate.PrivateKey}, Roots: good.Roots},
		"unreadable": {Certificate: tls.Certificate{Certificate: [][]byte{{1}}, PrivateKey: ca.key},
			Roots: good.Roots},
		"the root as a node": {Certificate: tls.Certificate{Certificate: [][]byte{ca.cert.Raw}, PrivateKey: ca.key},
			Roots: good.Roots},
		"a key that cannot sign": {Certificate: tls.Certificate{Certificate: good.Certificate.Certificate,
			PrivateKey: 7}, Roots: good.Roots},
	} {
		if i, err := New(c, Options{}); err == nil {
			t.Errorf("%s: made %v", what, i.Name())
		}
	}
	if _, err := ca.Issue("Bad", IssueOptions{}); !errors.Is(err, ErrName) {
		t.Errorf("a bad name: %v", err)
	}
}

// One full mutual handshake over loopback, both ends, and one byte.
func BenchmarkHandshake(b *testing.B) {
	ca := authority(b)
	s, c := issue(b, ca, "a", IssueOptions{}), issue(b, ca, "b", IssueOptions{})
	b.ReportAllocs()
	for b.Loop() {
		if _, _, serr, cerr := shake(b, s.Server(), c.Client("a")); serr != nil || cerr != nil {
			b.Fatal(serr, cerr)
		}
	}
}

// A handshake looks at the files itself, at both ends, before it decides.
func TestHandshakesLook(t *testing.T) {
	ca := authority(t)
	b := issue(t, ca, "b", IssueOptions{})
	for _, server := range []bool{true, false} {
		dir := node(t, ca, "a")
		a := open(t, dir, always)
		for _, c := range []struct {
			rules string
			want  error
		}{{"default all\ndeny name b\n", ErrDenied}, {"default all\n", nil},
			{"deny serial " + b.Self().Serial, ErrDenied}} {
			write(t, dir, PolicyFile, []byte(c.rules), 0o600)
			s, d := a, b
			if !server {
				s, d = b, a
			}
			if _, err := meet(t, s, d); !errors.Is(err, c.want) {
				t.Errorf("as server %v, %q: %v, expected %v", server, c.rules, err, c.want)
			}
		}
	}
}
