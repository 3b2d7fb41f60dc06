package web

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// page is what the servers of these tests serve.
var page = map[string]http.Handler{
	"GET /page": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "a page") }),
}

// TestHost asks for the page under names that lead to this machine, as a browser does for a page of
// another site.
func TestHost(t *testing.T) {
	stop, addr, err := Serve(t.Context(), "127.0.0.1:0", Options{}, page)
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(addr)
	for host, want := range map[string]int{
		addr: http.StatusOK, "127.0.0.1": http.StatusOK, "localhost:" + port: http.StatusOK, "LocalHost": http.StatusOK,
		"[::1]:" + port: http.StatusOK, "[::1]": http.StatusOK,
		"attacker.example": http.StatusMisdirectedRequest, "attacker.example:" + port: http.StatusMisdirectedRequest,
		"127.0.0.1.attacker.example": http.StatusMisdirectedRequest,
		"localhost.attacker.example": http.StatusMisdirectedRequest,
		"localhost.":                 http.StatusMisdirectedRequest,
	} {
		r, err := http.NewRequest(http.MethodGet, "http://"+addr+"/page", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		a, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(a.Body)
		a.Body.Close()
		text := "a page"
		if want != http.StatusOK {
			text = "localhost"
		}
		if a.StatusCode != want || !strings.Contains(string(body), text) {
			t.Errorf("Host %s: %s %q", host, a.Status, body)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestServe(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", "192.0.2.1:0", ":0", "example.org:0"} {
		if _, _, err := Serve(t.Context(), address, Options{}, page); !errors.Is(err, ErrNotLoopback) {
			t.Errorf("%s: error %v", address, err)
		}
	}
	if _, _, err := Serve(t.Context(), "9095", Options{}, page); err == nil {
		t.Error("an address without a port was taken")
	}
	ctx, cancel := context.WithCancel(t.Context())
	for _, how := range []string{"stop", "context"} {
		stop, addr, err := Serve(ctx, "127.0.0.1:0", Options{}, page)
		if err != nil {
			t.Fatal(err)
		}
		for path, status := range map[string]int{"/page": http.StatusOK, "/": http.StatusNotFound} {
			r, err := http.Get("http://" + addr + path)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(r.Body)
			r.Body.Close()
			if err != nil || r.StatusCode != status ||
				(status == http.StatusOK) != strings.Contains(string(body), "a page") {
				t.Errorf("%s: %v %v %q", path, err, r.Status, body)
			}
		}
		http.DefaultClient.CloseIdleConnections()
		if how == "context" {
			cancel()
		}
		for range 2 {
			if err := stop(); err != nil {
				t.Errorf("%s: %v", how, err)
			}
		}
		if _, err := http.Get("http://" + addr + "/page"); err == nil {
			t.Errorf("%s: still served", how)
		}
	}
	cancel()
}

// With TLS pages are served by HTTPS, also beyond loopback.
func TestServeTLS(t *testing.T) {
	known := httptest.NewTLSServer(nil) // has a certificate, and a client that trusts it
	defer known.Close()
	o := Options{TLS: &tls.Config{Certificates: known.TLS.Certificates}}
	stop, addr, err := Serve(t.Context(), "0.0.0.0:0", o, page)
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(addr)
	r, err := known.Client().Get("https://127.0.0.1:" + port + "/page")
	if err != nil {
		t.Fatal(err)
	}
	if !r.Close {
		t.Error("the connection is kept, and with it the right that its certificate had")
	}
	body, err := io.ReadAll(r.Body)
	r.Body.Close()
	if err != nil || string(body) != "a page" {
		t.Errorf("%q, %v", body, err)
	}
	known.Client().CloseIdleConnections()
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// Probes: the process lives, and it can do its work or says why not.
func TestProbes(t *testing.T) {
	var why error
	stop, addr, err := Serve(t.Context(), "127.0.0.1:0", Options{Ready: func() error { return why }}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for text, err := range map[string]error{"200 OK ready\n": nil,
		"503 Service Unavailable the directory is gone\n": errors.New("the directory is gone")} {
		why = err
		for path, want := range map[string]string{"/healthz": "200 OK ok\n", "/readyz": text} {
			r, err := http.Get("http://" + addr + path)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(r.Body)
			r.Body.Close()
			if got := r.Status + " " + string(body); got != want {
				t.Errorf("%s with %v: %q, expected %q", path, why, got, want)
			}
		}
	}
	http.DefaultClient.CloseIdleConnections()
	if err := stop(); err != nil {
		t.Error(err)
	}
}
