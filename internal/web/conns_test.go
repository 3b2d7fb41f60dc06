package web

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// TestConnectionsAreBounded: a client that opens connections without end has its own oldest ones
// closed, whether they said nothing or wait for a further request, and another client gets its
// page.
func TestConnectionsAreBounded(t *testing.T) {
	known := httptest.NewTLSServer(nil) // has a certificate, and a client that trusts it
	known.Close()
	for _, secure := range []bool{false, true} {
		for _, asks := range []bool{false, true} {
			t.Run(fmt.Sprintf("tls %v asks %v", secure, asks), func(t *testing.T) {
				var o Options
				client, scheme := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, "http"
				trusts := known.Client().Transport.(*http.Transport).TLSClientConfig
				if secure {
					o.TLS, scheme = &tls.Config{Certificates: known.TLS.Certificates}, "https"
					client.Transport.(*http.Transport).TLSClientConfig = trusts
				}
				stop, addr, err := Serve(t.Context(), "127.0.0.1:0", o, page)
				if err != nil {
					t.Fatal(err)
				}
				defer stop()
				var all []net.Conn
				for range 3 * mostConns {
					c, err := net.Dial("tcp", addr)
					if err != nil {
						t.Fatal(err)
					}
					defer c.Close()
					c.SetDeadline(time.Now().Add(30 * time.Second))
					all = append(all, c)
					if !asks || secure {
						continue
					}
					// Now the server waits a minute for a further request.
					fmt.Fprintf(c, "GET /healthz HTTP/1.1\r\nHost: %s\r\n\r\n", addr)
					r, err := http.ReadResponse(bufio.NewReader(c), nil)
					if err != nil {
						t.Fatal(err)
					}
					io.Copy(io.Discard, r.Body)
				}
				for i, c := range all[:2*mostConns] {
					if b, err := io.ReadAll(c); err != nil || len(b) > 0 {
						t.Fatalf("connection %d is open still: %v", i, err)
					}
				}
				r, err := client.Get(scheme + "://" + addr + "/page")
				if err != nil {
					t.Fatal(err)
				}
				if r.Body.Close(); r.StatusCode != http.StatusOK {
					t.Error(r.Status)
				}
			})
		}
	}
}

// TestBusyConnectionsStay: connections without a request make room first.
func TestBusyConnectionsStay(t *testing.T) {
	x := newConns()
	defer x.own.Release()
	x.most = 3
	var pairs [5][2]net.Conn
	come := func(i int) {
		pairs[i][0], pairs[i][1] = net.Pipe()
		x.state(pairs[i][0], http.StateNew)
	}
	closed := func(i int) bool {
		pairs[i][1].SetReadDeadline(time.Unix(1, 0))
		_, err := pairs[i][1].Read(make([]byte, 1))
		return err == io.EOF
	}
	for i := range 3 {
		come(i)
	}
	x.state(pairs[0][0], http.StateActive)
	come(3)
	if closed(0) || !closed(1) || closed(2) {
		t.Error("expected the oldest one without a request to be closed")
	}
	x.state(pairs[2][0], http.StateActive)
	x.state(pairs[3][0], http.StateActive)
	come(4)
	if !closed(0) || closed(2) || closed(3) {
		t.Error("expected the oldest one to be closed")
	}
	for _, i := range []int{1, 2, 0, 3, 4} { // also those that made room
		x.state(pairs[i][0], http.StateClosed)
		pairs[i][0].Close()
	}
	if len(x.all) != 0 {
		t.Errorf("%d are left", len(x.all))
	}
}
