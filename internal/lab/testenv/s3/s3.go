// Package s3 runs a store that speaks S3 (versitygw, built from tools/s3) for a test, behind a
// proxy whose requests the test may break.
package s3

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
)

// The root user of a store.
const (
	AccessKey = "penstock"
	SecretKey = "a-secret-of-the-lab"
)

// startLimit bounds waiting for a store to listen.
const startLimit = time.Minute

// program builds versitygw once and keeps it in the lab's cache.
var program = sync.OnceValues(func() (string, error) {
	root, err := testenv.Root()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, "tools", "s3")
	sources, err := testenv.HashFiles(dir)
	if err != nil {
		return "", err
	}
	return testenv.Cached("versitygw-"+testenv.Hash(sources, runtime.Version()), func(tmp string) error {
		cmd := exec.Command("go", "build", "-trimpath", "-o", tmp, "github.com/versity/versitygw/cmd/versitygw")
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("s3: building versitygw in %s: %w\n%s", dir, err, out)
		}
		return nil
	})
})

// A Breaker looks at a request before the store does. It returns true when it has answered it.
type Breaker func(w http.ResponseWriter, r *http.Request) bool

// A Store is a running store without buckets.
type Store struct {
	URL     string // of the proxy
	breaker atomic.Pointer[Breaker]
}

// Start runs a store until the test ends.
func Start(t testenv.TB) *Store {
	t.Helper()
	bin, err := program()
	if err != nil {
		testenv.Missing(t, "versitygw", err)
	}
	testenv.Record(t, "peer", "versitygw", filepath.Base(bin))
	dir, err := os.MkdirTemp("", "s3-")
	if err == nil {
		t.Cleanup(func() { os.RemoveAll(dir) })
		err = errors.Join(os.Mkdir(filepath.Join(dir, "data"), 0o700), os.Mkdir(filepath.Join(dir, "meta"), 0o700))
	}
	if err != nil {
		t.Fatalf("s3: %v", err)
	}
	addr := "@penstock-s3-" + rand.Text()
	p := proc.Start(t, proc.Spec{Path: bin, Dir: dir, Args: []string{"--port", addr, "--access", AccessKey, "--secret",
		SecretKey, "--keep-alive", "posix", "--sidecar", filepath.Join(dir, "meta"), filepath.Join(dir, "data")}})
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	if _, err := p.WaitLine(ctx, regexp.MustCompile(regexp.QuoteMeta(addr))); err != nil {
		t.Fatalf("s3: %v", err)
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", addr)
	}
	transport := &http.Transport{DialContext: dial}
	s := &Store{}
	back := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: "http", Host: r.In.Host}) // which is signed
		r.Out.URL.RawPath, r.Out.URL.RawQuery = r.In.URL.RawPath, r.In.URL.RawQuery
	}}
	back.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b := s.breaker.Load(); b == nil || *b == nil || !(*b)(w, r) {
			back.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(func() {
		front.CloseClientConnections()
		front.Close()
		transport.CloseIdleConnections()
	})
	s.URL = front.URL
	// It says that it listens a moment before it does.
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		c, err := dial(ctx, "", "")
		if err == nil {
			c.Close()
			return s
		}
		select {
		case <-tick.C:
		case <-p.Done():
			t.Fatalf("s3: the store has ended: %v", err)
		case <-ctx.Done():
			t.Fatalf("s3: the store does not listen: %v", err)
		}
	}
}

// Env is the environment of a program that uses the store as its root user.
func (s *Store) Env() map[string]string {
	return map[string]string{"AWS_ENDPOINT_URL": s.URL, "AWS_ENDPOINT_URL_S3": "", "AWS_REGION": "us-east-1",
		"AWS_ACCESS_KEY_ID": AccessKey, "AWS_SECRET_ACCESS_KEY": SecretKey, "AWS_SESSION_TOKEN": "",
		"AWS_EC2_METADATA_DISABLED": "true", "NO_PROXY": "127.0.0.1"}
}

// Break lets b look at all requests from now on; nil: none is looked at.
func (s *Store) Break(b Breaker) { s.breaker.Store(&b) }

// Answer answers with an error of S3.
func Answer(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, "<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>a fault of the lab</Message></Error>", code)
}

// Cut reads n bytes of the body and ends the connection.
func Cut(w http.ResponseWriter, r *http.Request, n int64) {
	_, _ = io.CopyN(io.Discard, r.Body, n)
	panic(http.ErrAbortHandler)
}
