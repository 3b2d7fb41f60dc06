// Package web serves pages by HTTP and HTTPS: it holds the listener, the rules of who may ask, the
// bounds of connections, and the probes of the process. Its callers bring the handlers, by their
// patterns:
//
//	stop, addr, err := web.Serve(ctx, "127.0.0.1:9095", web.Options{}, map[string]http.Handler{"GET /metrics": page})
package web

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// ErrNotLoopback refuses to serve other machines: the pages tell any host that asks what
// this one does.
var ErrNotLoopback = errors.New("without an identity, pages are served on loopback addresses only")

// Options modify Serve. The zero value serves this machine.
type Options struct {
	// TLS, if any, has Serve answer by HTTPS, and then also beyond this machine. It must verify who
	// asks, as [identity.Identity.Web] does.
	TLS *tls.Config
	// Ready, if any, is asked by GET /readyz. Its error is the answer, with the status 503.
	Ready func() error
}

// shutdownTimeout is how long requests that are under way may take when the server ends.
const shutdownTimeout = 2 * time.Second

// byAddress refuses requests for a host that is neither an IP address nor localhost. A page of
// another site, open in a browser on this machine, gets at a loopback address only by a name of its
// own that leads there (DNS rebinding).
func byAddress(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil { // without a port
			host = strings.TrimSuffix(strings.TrimPrefix(r.Host, "["), "]")
		}
		if _, err := netip.ParseAddr(host); err != nil && !strings.EqualFold(host, "localhost") {
			http.Error(w, fmt.Sprintf("this page is for http://127.0.0.1, http://[::1] and http://localhost, not for the host %q: "+
				"a proxy in front of it sends one of them as Host", r.Host), http.StatusMisdirectedRequest)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// IsLoopback reports whether an address HOST:PORT says that it is of this machine alone.
func IsLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip, bad := netip.ParseAddr(host)
	return err == nil && (host == "localhost" || bad == nil && ip.IsLoopback())
}

// Serve answers until ctx ends or stop is called, which returns when the server has ended: the
// handlers by their patterns (http.ServeMux), GET /healthz with 200 as long as the process runs,
// and GET /readyz. addr is the address with the port that the kernel chose. Without TLS the address
// must be a loopback address (127.0.0.1:9095, [::1]:0, localhost:9095), and the Host of a request
// an IP address or localhost; others are refused.
func Serve(ctx context.Context, address string, o Options, handlers map[string]http.Handler) (stop func() error,
	addr string, err error) {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, "", fmt.Errorf("address %q: expected HOST:PORT: %w", address, err)
	}
	if o.TLS == nil && !IsLoopback(address) {
		return nil, "", fmt.Errorf("address %q: %w", address, ErrNotLoopback)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, "", err
	}
	if ap, err := netip.ParseAddrPort(l.Addr().String()); o.TLS == nil && (err != nil || !ap.Addr().IsLoopback()) {
		// localhost may be anything
		l.Close()
		return nil, "", fmt.Errorf("address %q is %v: %w", address, l.Addr(), ErrNotLoopback)
	}
	mux := http.NewServeMux()
	for pattern, h := range handlers {
		mux.Handle(pattern, h)
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if o.Ready != nil {
			if err := o.Ready(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
		}
		io.WriteString(w, "ready\n")
	})
	conns := newConns()
	srv := &http.Server{Handler: byAddress(mux), ReadTimeout: 5 * time.Second, WriteTimeout: writeTimeout,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10, ConnState: conns.state}
	if o.TLS != nil {
		l = tls.NewListener(l, o.TLS)
		// each request shows a certificate, so that one whose right was taken away ends with its
		// request
		srv.SetKeepAlivesEnabled(false)
		srv.Handler = mux                         // a browser has no certificate of a peer
		srv.ErrorLog = log.New(io.Discard, "", 0) // of handshakes: the identity counts those that it refuses
	}
	ended := make(chan error, 1)
	go func() {
		defer conns.own.Release()
		ended <- srv.Serve(l)
	}()
	done := make(chan struct{})
	var failed error
	shutdown := func() {
		c, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
		defer cancel()
		if err := srv.Shutdown(c); err != nil {
			failed = errors.Join(err, srv.Close())
		}
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			failed = errors.Join(failed, err)
		}
		close(done)
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		<-ctx.Done()
		shutdown()
	}()
	return func() error {
		cancel()
		<-done
		return failed
	}, l.Addr().String(), nil
}
