package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestCheckName(t *testing.T) {
	for _, n := range []string{"a", "7", "gpu-7", "rack1.gpu_7", strings.Repeat("x", 63)} {
		if err := CheckName(n); err != nil {
			t.Errorf("%q: %v", n, err)
		}
	}
	for _, n := range []string{"", "A", "-a", "a-", ".a", "a.", "a..b", "a b", "a/b", "../a", "a\x00", "ä", "*", "a%2e",
		strings.Repeat("x", 64)} {
		if err := CheckName(n); !errors.Is(err, ErrName) || !strings.Contains(err.Error(), "expected 1 to 63") {
			t.Errorf("%q: %v", n, err)
		}
	}
}

func TestCheckNameIsItsRule(t *testing.T) {
	rule := regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$`)
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.StringOfN(rapid.SampledFrom([]rune("ab9.-_A/ ")), 0, 70, -1).Draw(t, "name")
		want := rule.MatchString(n) && !strings.Contains(n, "..")
		if got := CheckName(n) == nil; got != want {
			t.Fatalf("%q: %v", n, got)
		}
	})
}

func TestRights(t *testing.T) {
	for r := range All + 1 {
		got, err := ParseRights(r.String())
		if got != r || err != nil {
			t.Errorf("%v: %v, %v", r, got, err)
		}
	}
	if r, err := ParseRights("list,read"); r != Read|List || err != nil {
		t.Errorf("list,read: %v, %v", r, err)
	}
	for _, s := range []string{"", "Read", "read,", "read,read", "read, write", "all,read", "none,list", "exec",
		strings.Repeat("x", 1000)} {
		_, err := ParseRights(s)
		if !errors.Is(err, ErrPolicy) || !strings.Contains(err.Error(), "rights") || len(err.Error()) > 400 {
			t.Errorf("%q: %v", s, err)
		}
	}
	if s := (Read | 1<<7).String(); s != "read,0x80" {
		t.Errorf("unknown bits print as %q", s)
	}
	if Everyone(Read).Rights("x") != Read {
		t.Error("Everyone")
	}
	var _ Policy = (*Rules)(nil)
	var _ Policy = (*Identity)(nil)
}

func TestPeerOf(t *testing.T) {
	ca := authority(t)
	c, err := ca.Credentials("a", IssueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	leaf := c.Certificate.Leaf
	good := tls.ConnectionState{HandshakeComplete: true, Version: tls.VersionTLS13, NegotiatedProtocol: ALPN,
		PeerCertificates: []*x509.Certificate{leaf}}
	p, err := PeerOf(good)
	if err != nil || p.Name != "a" || p.Serial != leaf.SerialNumber.Text(16) || len(p.Fingerprint) != 64 ||
		!p.NotAfter.Equal(leaf.NotAfter) {
		t.Fatalf("%+v, %v", p, err)
	}
	uri := func(us ...string) *x509.Certificate {
		x := *leaf
		x.URIs = nil
		for _, s := range us {
			u, err := url.Parse(s)
			if err != nil {
				t.Fatal(err)
			}
			x.URIs = append(x.URIs, u)
		}
		return &x
	}
	for _, c := range []struct {
		what   string
		change func(*tls.ConnectionState)
		want   error
	}{
		{"handshake not complete", func(s *tls.ConnectionState) { s.HandshakeComplete = false }, ErrProtocol},
		{"TLS 1.2", func(s *tls.ConnectionState) { s.Version = tls.VersionTLS12 }, ErrProtocol},
		{"other protocol", func(s *tls.ConnectionState) { s.NegotiatedProtocol = "h2" }, ErrProtocol},
		{"no certificate", func(s *tls.ConnectionState) { s.PeerCertificates = nil }, ErrNoCertificate},
		{"no name", func(s *tls.ConnectionState) { s.PeerCertificates = []*x509.Certificate{uri()} }, ErrName},
		{"two names", func(s *tls.ConnectionState) {
			s.PeerCertificates = []*x509.Certificate{uri("penstock:node:a", "penstock:node:b")}
		}, ErrName},
		{"bad name", func(s *tls.ConnectionState) { s.PeerCertificates = []*x509.Certificate{uri("penstock:node:a#b")} }, ErrName},
		{"pairing", func(s *tls.ConnectionState) { s.PeerCertificates = []*x509.Certificate{uri("penstock:pair:00")} }, ErrName},
	} {
		s := good
		c.change(&s)
		if p, err := PeerOf(s); p != (Peer{}) || !errors.Is(err, c.want) {
			t.Errorf("%s: %+v, %v", c.what, p, err)
		}
	}
}
