package identity

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// impostor listens as a pairing host would and lets a function talk with each joiner.
func impostor(t testing.TB, config *tls.Config, talk func(*tls.Conn)) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			raw, err := ln.Accept()
			if err != nil {
				return
			}
			raw.SetDeadline(time.Now().Add(time.Minute))
			c := tls.Server(raw, config)
			if c.Handshake() == nil {
				talk(c)
			}
			raw.Close()
		}
	}()
	t.Cleanup(func() { ln.Close(); <-done })
	return ln.Addr().String()
}

func pairServer(c tls.Certificate) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{c}, NextProtos: []string{pairALPN}, MinVersion: tls.VersionTLS13}
}

// A joiner tells nothing to a man in the middle, who has every certificate that can be had without
// the authority's key.
func TestManInTheMiddle(t *testing.T) {
	ca, own := authority(t), authority(t)
	real, done, cancel := host(t, ca, PairingOptions{})
	node := credentials(t, ca, "node", IssueOptions{})
	chain := func(c tls.Certificate, root *x509.Certificate) tls.Certificate {
		c.Certificate = [][]byte{c.Certificate[0], root.Raw}
		return c
	}
	ownPairing, err := own.NewPairing(filled(PairingOptions{}))
	if err != nil {
		t.Fatal(err)
	}
	late := &Authority{cert: ca.cert, key: ca.key, clock: func() time.Time { return time.Now().Add(-48 * time.Hour) }}
	old, err := late.NewPairing(filled(PairingOptions{}))
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]tls.Certificate{
		"its own authority":                     ownPairing.config.Certificates[0],
		"its own certificate and the real root": chain(ownPairing.config.Certificates[0], ca.cert),
		"a node's certificate":                  chain(node, ca.cert),
		"a node's certificate without the root": node,
		"the real root, and a certificate of it": {Certificate: [][]byte{node.Certificate[0], node.Certificate[0],
			ca.cert.Raw}, PrivateKey: node.PrivateKey},
		"a pairing certificate that ended":         old.config.Certificates[0],
		"the root of the code as its own, unknown": chain(credentials(t, own, "x", IssueOptions{}), own.cert),
	} {
		heard := make(chan []byte, 1)
		addr := impostor(t, pairServer(c), func(c *tls.Conn) {
			b, _ := io.ReadAll(c)
			heard <- b
		})
		v := real
		v.Address = addr
		dir := newDir(t)
		_, err := Join(t.Context(), v, dir, "b", JoinOptions{})
		if want := ErrWrongAuthority; !errors.Is(err, want) &&
			!(strings.Contains(what, "ended") && errors.Is(err, ErrExpired)) {
			t.Errorf("%s: %v", what, err)
		}
		select {
		case b := <-heard: // the handshake may look complete to a server
			if len(b) != 0 {
				t.Errorf("%s: the joiner said %d bytes", what, len(b))
			}
		default:
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
			t.Errorf("%s: left %v, %v", what, entries, err)
		}
	}
	cancel()
	<-done
}

// Even with a pairing certificate of the right authority an attacker cannot relay a joiner's words:
// the proofs are bound to the connection that they were made on. And an overheard proof is worth
// nothing later.
func TestRelay(t *testing.T) {
	ca := authority(t)
	real, done, _ := host(t, ca, PairingOptions{})
	other, err := ca.NewPairing(filled(PairingOptions{}))
	if err != nil {
		t.Fatal(err)
	}
	var relayed []byte
	answers := make(chan refusal, 1)
	pass := func(t testing.TB, message []byte) refusal {
		c := dialPair(t, real.Address)
		defer c.Close()
		if _, err := c.Write(message); err != nil {
			t.Error(err)
		}
		typ, body, err := readMessage(c)
		if err != nil {
			t.Error(err)
		}
		return refused(typ, body)
	}
	v := real
	v.Address = impostor(t, other.config, func(c *tls.Conn) {
		typ, body, err := readMessage(c)
		if err != nil {
			return
		}
		relayed = appendMessage(nil, typ, body)
		r := pass(t, relayed)
		answers <- r
		c.Write(appendMessage(nil, messageRefuse, []byte{byte(r)}))
		c.CloseWrite()
	})
	if _, err := Join(t.Context(), v, newDir(t), "b", JoinOptions{}); !errors.Is(err, ErrWrongCode) {
		t.Errorf("joiner: %v", err)
	}
	if r := <-answers; r != refusedCode {
		t.Errorf("the real host answered %d", r)
	}
	if r := pass(t, relayed); r != refusedCode {
		t.Errorf("later: %d", r)
	}
	if bytes.Contains(relayed, real.secret[:]) {
		t.Error("the secret travelled")
	}
	if _, err := Join(t.Context(), real, newDir(t), "b", JoinOptions{}); err != nil {
		t.Error(err)
	}
	if o := <-done; o.err != nil {
		t.Error(o.err)
	}
}

// A host that does not keep the protocol, although it has the authority's certificate, leaves
// nothing behind at the joiner.
func TestHostileHost(t *testing.T) {
	ca, other := authority(t), authority(t)
	p, err := ca.NewPairing(filled(PairingOptions{}))
	if err != nil {
		t.Fatal(err)
	}
	v := p.Invitation("")
	// answer makes a welcome for the joiner that asked.
	answer := func(c *tls.Conn, m join, change func(name *string, public **ecdsa.PublicKey, w *welcome)) []byte {
		name, public, err := parseRequest(m.request)
		if err != nil {
			t.Error(err)
			return nil
		}
		w := welcome{host: "host", certs: [][]byte{nil, ca.cert.Raw}}
		change(&name, &public, &w)
		if w.certs[0] == nil {
			cert, err := ca.Sign(name, public, IssueOptions{})
			if err != nil {
				t.Error(err)
				return nil
			}
			w.certs[0] = cert.Raw
		}
		if w.proof == [proofSize]byte{} {
			w.proof, _ = v.proof(c.ConnectionState(), "welcome", w.payload())
		}
		return append(w.proof[:], w.payload()...)
	}
	foreign := credentials(t, other, "b", IssueOptions{})
	type change = func(name *string, public **ecdsa.PublicKey, w *welcome)
	welcomes := map[string]struct {
		change change
		want   error
	}{
		"good":         {func(*string, **ecdsa.PublicKey, *welcome) {}, nil},
		"no proof":     {func(_ *string, _ **ecdsa.PublicKey, w *welcome) { w.proof[0] = 1 }, ErrWrongCode},
		"another name": {func(n *string, _ **ecdsa.PublicKey, _ *welcome) { *n = "c" }, ErrWrongPeer},
		"another key": {func(_ *string, k **ecdsa.PublicKey, _ *welcome) {
			*k = &p256(t).PublicKey
		}, ErrCredentials},
		"another root": {func(_ *string, _ **ecdsa.PublicKey, w *welcome) {
			w.certs[1] = other.cert.Raw
		}, ErrWrongAuthority},
		"another's cert": {func(_ *string, _ **ecdsa.PublicKey, w *welcome) {
			w.certs[0] = foreign.Certificate[0]
		}, ErrCredentials},
		"the root as cert": {func(_ *string, _ **ecdsa.PublicKey, w *welcome) {
			w.certs[0] = ca.cert.Raw
		}, ErrCredentials},
		"a node as root": {func(_ *string, _ **ecdsa.PublicKey, w *welcome) {
			w.certs = append(w.certs, foreign.Certificate[0])
		}, ErrCredentials},
		"garbage": {func(_ *string, _ **ecdsa.PublicKey, w *welcome) {
			w.certs[0] = []byte{0x30, 0}
		}, ErrMessage},
		"too few": {func(_ *string, _ **ecdsa.PublicKey, w *welcome) { w.certs = w.certs[:1] }, ErrMessage},
		"empty cert": {func(_ *string, _ **ecdsa.PublicKey, w *welcome) {
			w.certs = append(w.certs, []byte{})
		}, ErrMessage},
		"its own proof": {nil, ErrWrongCode},
		"a bad name":    {func(_ *string, _ **ecdsa.PublicKey, w *welcome) { w.host = "No" }, ErrMessage},
		"no name":       {func(_ *string, _ **ecdsa.PublicKey, w *welcome) { w.host = "" }, ErrMessage},
		"our name":      {func(_ *string, _ **ecdsa.PublicKey, w *welcome) { w.host = "b" }, ErrNameRefused},
	}
	try := func(what string, want error, talk func(*tls.Conn, join)) {
		t.Helper()
		addr := impostor(t, p.config, func(c *tls.Conn) {
			_, body, err := readMessage(c)
			if err != nil {
				t.Error(err)
				return
			}
			m, err := parseJoin(body)
			if err != nil {
				t.Error(err)
				return
			}
			talk(c, m)
			c.CloseWrite()
		})
		v := v
		v.Address = addr
		dir := newDir(t)
		_, err := Join(t.Context(), v, dir, "b", JoinOptions{})
		if want == nil && err != nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %v, expected %v", what, err, want)
		}
		entries, _ := os.ReadDir(dir)
		if want != nil && len(entries) != 0 {
			t.Errorf("%s: left %v", what, entries)
		}
	}
	for what, w := range welcomes {
		try(what, w.want, func(c *tls.Conn, m join) {
			change := w.change
			if change == nil { // the joiner's own proof sent back
				change = func(_ *string, _ **ecdsa.PublicKey, w *welcome) { w.proof = m.proof }
			}
			c.Write(appendMessage(nil, messageWelcome, answer(c, m, change)))
			if typ, _, err := readMessage(c); err == nil && typ == messageDone {
				c.Write(appendMessage(nil, messageDone, nil))
			}
		})
	}
	for what, b := range map[string][]byte{
		"nothing":           nil,
		"half a head":       []byte("pnpr"),
		"half a body":       appendMessage(nil, messageWelcome, make([]byte, 100))[:50],
		"other magic":       []byte("HTTP/1.1 400 Bad Request"),
		"too large":         appendMessage(nil, messageWelcome, make([]byte, 65535)),
		"a long refusal":    appendMessage(nil, messageRefuse, []byte{1, 2}),
		"an empty refusal":  appendMessage(nil, messageRefuse, nil),
		"a join":            appendMessage(nil, messageJoin, make([]byte, 100)),
		"done":              appendMessage(nil, messageDone, nil),
		"unknown refusal":   appendMessage(nil, messageRefuse, []byte{200}),
		"malformed refusal": appendMessage(nil, messageRefuse, []byte{byte(refusedMalformed)}),
		"two waits": append(appendMessage(nil, messageWait, make([]byte, 4)),
			appendMessage(nil, messageWait, make([]byte, 4))...),
		"a long wait":  appendMessage(nil, messageWait, make([]byte, 5)),
		"a short wait": appendMessage(nil, messageWait, make([]byte, 3)),
	} {
		want := ErrMessage
		switch what {
		case "nothing":
			want = io.EOF
		case "half a head", "half a body":
			want = io.ErrUnexpectedEOF
		}
		try(what, want, func(c *tls.Conn, _ join) { c.Write(b) })
	}
	for r, want := range map[refusal]error{refusedCode: ErrWrongCode, refusedOver: ErrPairingOver,
		refusedName:  ErrNameRefused,
		refusedOther: ErrNameRefused, refusedDenied: ErrNameRefused, refusedInternal: ErrPairingOver,
		refusedUnconfirmed: ErrNotConfirmed, refusedRival: ErrNotConfirmed} {
		try(fmt.Sprint("refusal ", r), want, func(c *tls.Conn, _ join) {
			c.Write(appendMessage(nil, messageRefuse, []byte{byte(r)}))
		})
	}
}

// What would lose something is refused before anything is sent: the address is never dialled.
func TestJoinLooksFirst(t *testing.T) {
	ca, other := authority(t), authority(t)
	v := newInvitation("127.0.0.1:1", ca.cert)
	home := newDir(t)
	setup(t, home, "a")
	wide := newDir(t)
	if err := os.MkdirAll(wide, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(wide, 0o777); err != nil {
		t.Fatal(err)
	}
	broken := node(t, ca, "b")
	write(t, broken, NodeFile, []byte("x"), 0o600)
	file := filepath.Join(t.TempDir(), "file")
	write(t, filepath.Dir(file), "file", nil, 0o600)
	for _, c := range []struct {
		what, dir, name string
		want            error
	}{
		{"an authority", home, "a", ErrExists},
		{"another name", node(t, ca, "c"), "b", ErrExists},
		{"another authority", node(t, other, "b"), "b", ErrExists},
		{"a bad name", newDir(t), "B", ErrName},
		{"a directory for all", wide, "b", ErrPermissions},
		{"a broken identity", broken, "b", ErrCredentials},
		{"a file", file, "b", nil},
	} {
		_, err := Join(t.Context(), v, c.dir, c.name, JoinOptions{})
		var op *net.OpError
		if err == nil || errors.As(err, &op) || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v, expected %v", c.what, err, c.want)
		}
	}
	var op *net.OpError
	if _, err := Join(t.Context(), v, newDir(t), "b", JoinOptions{}); !errors.As(err, &op) {
		t.Errorf("nobody there: %v", err)
	}
}

func TestInvitation(t *testing.T) {
	ca := authority(t)
	v := newInvitation("host.example:7071", ca.cert)
	code := v.Code()
	got, err := ParseInvitation(v.Address, code)
	if err != nil || got != v || len(code) != 68 || !LooksLikeCode(code) || !LooksLikeCode(v.Address+"#"+code) ||
		!LooksLikeCode(code[1:]) {
		t.Fatalf("%v, %v", got, err)
	}
	for _, s := range []string{"", "host:1", "[2001:db8::1]:7071", "a-file-name", strings.Repeat("a", 80),
		strings.Repeat("b.", 34), "/" + code[1:]} {
		if LooksLikeCode(s) {
			t.Errorf("%q looks like a code", s)
		}
	}
	for _, c := range [][2]string{{v.Address, ""}, {v.Address, code + "x"}, {v.Address, code[:len(code)-1]}, {"", code},
		{"host", code}, {"host:0", code},
		{"host:65536", code}, {"ho st:1", code}, {"host:http", code}, {":7", code}, {"h'o:1", code}, {v.Address, code[:len(code)-1] + "*"},
		{strings.Repeat("a", 600) + ":x", code}, {v.Address, code[:len(code)-4] + "\n\n\n\n"},
		{"host:1", strings.Repeat("A", 68)}} {
		_, err := ParseInvitation(c[0], c[1])
		if !errors.Is(err, ErrInvitation) || strings.Contains(err.Error(), code) {
			t.Errorf("%q: %v", c, err)
		}
	}
	// A single wrong character is noticed, but for a chance of 1 in 65,536.
	missed := 0
	for k := range code {
		c := "A"
		if code[k] == 'A' {
			c = "B"
		}
		if _, err := ParseInvitation(v.Address, code[:k]+c+code[k+1:]); err == nil {
			missed++
		}
	}
	if missed > 1 {
		t.Errorf("%d of %d typing errors were not noticed", missed, len(code))
	}
	// No way of printing but Code shows the secret.
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "v", v, "p", &v, "s", []Invitation{v})
	j, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	outs := []string{log.String(), string(j), v.String()}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%b"} {
		outs = append(outs, fmt.Sprintf(verb, v), fmt.Sprintf(verb, &v), fmt.Sprintf(verb, []Invitation{v}))
	}
	for _, s := range outs {
		for _, f := range []string{"%x", "%d", "%v"} {
			secret := strings.Trim(fmt.Sprintf(f, v.secret), "[]")
			if strings.Contains(s, secret) || strings.Contains(s, code[50:60]) {
				t.Errorf("shows the secret: %s", s)
			}
		}
	}
	if other := newInvitation(v.Address, ca.cert); other.secret == v.secret {
		t.Error("two invitations with one secret")
	}
}

func TestWelcomeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := welcome{host: rapid.StringMatching("[a-z0-9]([-_]?[a-z0-9])*").Filter(func(s string) bool {
			return CheckName(s) == nil
		}).Draw(t, "host"), certs: rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 1, 900), 2, 1+maxRoots).Draw(t, "certs")}
		copy(w.proof[:], rapid.SliceOfN(rapid.Byte(), proofSize, proofSize).Draw(t, "proof"))
		b, err := w.encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseWelcome(b)
		if err != nil || got.proof != w.proof || got.host != w.host || len(got.certs) != len(w.certs) ||
			!bytes.Equal(got.payload(), w.payload()) {
			t.Fatalf("%v", err)
		}
		cut := rapid.IntRange(0, len(b)-1).Draw(t, "cut")
		if _, err := parseWelcome(b[:cut]); !errors.Is(err, ErrMessage) {
			t.Fatalf("cut at %d of %d: %v", cut, len(b), err)
		}
		if _, err := parseWelcome(append(b, 0)); !errors.Is(err, ErrMessage) {
			t.Fatalf("a byte more: %v", err)
		}
	})
	for _, w := range []welcome{{host: "a"}, {certs: [][]byte{{1}, {2}}}, {host: "a", certs: make([][]byte, 18)},
		{host: "a", certs: [][]byte{make([]byte, maxMessage+1), {1}}},
		{host: "a", certs: [][]byte{make([]byte, maxMessage-40), {1}, {2}}}} {
		if _, err := w.encode(); !errors.Is(err, ErrMessage) {
			t.Errorf("%d certificates: %v", len(w.certs), err)
		}
	}
}

func FuzzInvitation(f *testing.F) {
	ca := authority(f)
	f.Add("127.0.0.1:7071", newInvitation("", ca.cert).Code())
	f.Add("[::1]:1", newInvitation("", ca.cert).Code())
	f.Add("host:1", "")
	f.Fuzz(func(t *testing.T, address, code string) {
		v, err := ParseInvitation(address, code)
		if err != nil {
			if !errors.Is(err, ErrInvitation) {
				t.Fatal(err)
			}
			return
		}
		if v.Address != address || v.Code() != code || !LooksLikeCode(code) {
			t.Fatalf("%q is read as %q", code, v.Code())
		}
	})
}

func FuzzMessages(f *testing.F) {
	ca := authority(f)
	w := welcome{host: "host", certs: [][]byte{ca.cert.Raw, ca.cert.Raw}}
	b, err := w.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(appendMessage(nil, messageWelcome, b))
	f.Add(appendMessage(nil, messageJoin, join{request: request(f, p256(f), x509.CertificateRequest{}, "b")}.encode()))
	f.Add(appendMessage(nil, messageRefuse, []byte{1}))
	f.Add(appendMessage(nil, messageDone, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		typ, body, err := readMessage(r)
		if err != nil {
			return
		}
		if used := b[:len(b)-r.Len()]; !bytes.Equal(used, appendMessage(nil, typ, body)) {
			t.Fatalf("message %d is not what was read", typ)
		}
		if m, err := parseJoin(body); err == nil {
			if !bytes.Equal(m.encode(), body) {
				t.Fatal("a join is not what was read")
			}
			if name, public, err := parseRequest(m.request); err == nil && (CheckName(name) != nil || public == nil) {
				t.Fatalf("a request for %q", name)
			}
		}
		if m, err := parseWelcome(body); err == nil {
			if again, err := m.encode(); err != nil || !bytes.Equal(again, body) {
				t.Fatalf("a welcome is not what was read: %v", err)
			}
		}
	})
}

// A message that says it is too large for its type is refused by its head; nothing is allocated for
// it or waited for.
func TestMessageLimits(t *testing.T) {
	for typ, most := range map[messageType]int{0: 0, messageJoin: 4128, messageWelcome: 16384, messageRefuse: 1,
		messageDone: 0, messageWait: 4, 99: 0} {
		good := appendMessage(nil, typ, make([]byte, most))
		if got, body, err := readMessage(bytes.NewReader(good)); err != nil || got != typ || len(body) != most {
			t.Errorf("type %d with %d bytes: %v", typ, most, err)
		}
		for _, n := range []int{most + 1, 65535} {
			head := appendMessage(nil, typ, make([]byte, n))[:messageHead]
			if _, _, err := readMessage(bytes.NewReader(head)); !errors.Is(err, ErrMessage) {
				t.Errorf("type %d with %d bytes: %v", typ, n, err)
			}
		}
	}
}

// A proof is what docs/pairing.md says, the same at both ends of a connection, and changes with
// everything it covers.
func TestProof(t *testing.T) {
	ca := authority(t)
	a, b := issue(t, ca, "a", IssueOptions{}), issue(t, ca, "b", IssueOptions{})
	v := newInvitation("h:1", ca.cert)
	one, same, serr, cerr := shake(t, a.Server(), b.Client("a"))
	other, _, serr2, cerr2 := shake(t, a.Server(), b.Client("a"))
	if err := errors.Join(serr, cerr, serr2, cerr2); err != nil {
		t.Fatal(err)
	}
	proof := func(v Invitation, cs tls.ConnectionState, direction, payload string) [proofSize]byte {
		t.Helper()
		p, err := v.proof(cs, direction, []byte(payload))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	exporter, err := one.ExportKeyingMaterial("EXPORTER-penstock-pair-1", nil, 32)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("payload"))
	h := hmac.New(sha256.New, v.secret[:])
	h.Write([]byte("penstock pair 1 join\x00"))
	h.Write(exporter)
	h.Write(sum[:])
	want := [proofSize]byte(h.Sum(nil))
	if proof(v, one, "join", "payload") != want || proof(v, same, "join", "payload") != want {
		t.Error("a proof is not what the documentation says")
	}
	for what, p := range map[string][proofSize]byte{
		"direction":  proof(v, one, "welcome", "payload"),
		"payload":    proof(v, one, "join", "payloae"),
		"connection": proof(v, other, "join", "payload"),
		"secret":     proof(change(v, true), one, "join", "payload"),
	} {
		if p == want {
			t.Errorf("another %s gives the same proof", what)
		}
	}
}
