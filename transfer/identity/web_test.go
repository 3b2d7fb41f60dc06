package identity

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"testing"
)

// A page of Web answers clients of net/http whose certificate has the right that the page needs,
// and refuses all others. The clients verify the name of the node.
func TestWeb(t *testing.T) {
	a := authority(t)
	server := issue(t, a, "node-7", IssueOptions{})
	rules, err := ParseRules([]byte("allow scraper status\nallow reader read\n"))
	if err != nil {
		t.Fatal(err)
	}
	server.SetRules(rules)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{ErrorLog: log.New(io.Discard, "", 0),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "here")
		})}
	go srv.Serve(tls.NewListener(l, server.Web(Status)))
	defer srv.Close()
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	other := authority(t)
	for _, c := range []struct {
		what, name string
		cert       []tls.Certificate
		ok         bool
	}{
		{"the right", "node-7", []tls.Certificate{credentials(t, a, "scraper", IssueOptions{})}, true},
		{"another right", "node-7", []tls.Certificate{credentials(t, a, "reader", IssueOptions{})}, false},
		{"no rule", "node-7", []tls.Certificate{credentials(t, a, "unknown", IssueOptions{})}, false},
		{"another authority", "node-7", []tls.Certificate{credentials(t, other, "scraper", IssueOptions{})}, false},
		{"no certificate", "node-7", nil, false},
		{"another node expected", "node-8", []tls.Certificate{credentials(t, a, "scraper", IssueOptions{})}, false},
	} {
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: c.name, Certificates: c.cert},
			ForceAttemptHTTP2: true}
		r, err := (&http.Client{Transport: tr}).Get("https://" + l.Addr().String())
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", c.what, err)
		}
		if err == nil {
			if b, err := io.ReadAll(r.Body); err != nil || string(b) != "here" {
				t.Errorf("%s: %q, %v", c.what, b, err)
			}
			r.Body.Close()
		}
		tr.CloseIdleConnections()
	}
	if s := server.Stats(); s.Accepted != 1 || s.Refused != 3 { // the last two do not come to show a certificate
		t.Errorf("accepted %d, refused %d", s.Accepted, s.Refused)
	}
}
