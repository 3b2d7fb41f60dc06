package share

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/identity"
)

// TestTruncatedWhileServed truncates a file that is being served, in the middle of a fetch: the
// server, a process of its own, lives and serves other files, and the fetch fails.
func TestTruncatedWhileServed(t *testing.T) {
	if serveChild(t) {
		return
	}
	ctx, root, out := testCtx(t), t.TempDir(), t.TempDir()
	const size = 6 * window
	file := filepath.Join(root, "large")
	write(t, file, randomBytes(1, size))
	write(t, filepath.Join(root, "other"), []byte("other"))
	p, addr := startServer(t, root)
	c := testNode(t, transfer.Options{Name: "client"})
	for _, cut := range []int64{0, 1, size/2 + 100, size - 1} {
		peer, err := c.Dial(ctx, addr)
		if err != nil {
			t.Fatal(err)
		}
		done := false
		_, err = Fetch(ctx, Over(peer), "large", FetchOptions{Output: filepath.Join(out, "large"),
			Progress: func(x Progress) {
				if !done && x.Bytes > x.Start {
					done = true
					if err := os.Truncate(file, cut); err != nil {
						t.Error(err)
					}
				}
			}})
		if !errors.Is(err, ErrChanged) || !done {
			t.Fatalf("cut to %d: %v", cut, err)
		}
		t.Logf("cut to %d: %v", cut, err)
		only(t, out)
		if peer.Err() != nil {
			t.Errorf("cut to %d: the session was lost: %v", cut, peer.Err())
		}
		if _, err := Fetch(ctx, Over(peer), "other",
			FetchOptions{Output: filepath.Join(out, "other"), Overwrite: true}); err != nil {
			t.Errorf("cut to %d: another file afterwards: %v", cut, err)
		}
		peer.Close()
		write(t, file, randomBytes(1, size))
		if err := errors.Join(os.RemoveAll(out), os.Mkdir(out, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-p.Done():
		t.Fatalf("the server ended: %v", p.Output())
	default:
	}
}

// childRoot is set in a process that serves for a test.
const childRoot = "PENSTOCK_SHARE_ROOT"

// serveChild serves for the test that started this process, until it is killed; it returns false in
// the test itself.
func serveChild(t *testing.T) bool {
	root := os.Getenv(childRoot)
	if root == "" {
		return false
	}
	listen := os.Getenv(childRoot + "_LISTEN")
	if listen == "" {
		listen = "tcp://127.0.0.1:0"
	}
	n, err := transfer.Open(context.Background(), transfer.Options{Anonymous: identity.All, Name: "child",
		Listen: []string{listen}})
	if err != nil {
		t.Fatal(err)
	}
	held := func(a Access) {
		if a.Name == os.Getenv(childRoot+"_HOLD") { // until it is killed
			os.Stdout.WriteString("held\n")
			select {}
		}
	}
	if _, err := Serve(context.Background(), n, Options{Root: root, Writable: true, Tensors: true,
		OnAccess: held}); err != nil {
		t.Fatal(err)
	}
	os.Stdout.WriteString("serving at " + n.Addrs()[0] + "\n")
	select {}
}

var servingLine = regexp.MustCompile(`serving at (\S+)`)

func startServer(t *testing.T, root string, env ...string) (*proc.Process, string) {
	t.Helper()
	p := proc.Start(t, proc.Self(t, append(env, childRoot+"="+root)...))
	return p, servingAt(t, p)
}

func servingAt(t *testing.T, p *proc.Process) string {
	t.Helper()
	m, err := p.WaitLine(testCtx(t), servingLine)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(m[1])
}

// TestPartialTruncatedWhileFetched truncates the partial file, which is mapped, while bytes arrive
// in it and while it is summed up: this process lives, the fetch fails, and the next one does not
// count what is gone as good.
func TestPartialTruncatedWhileFetched(t *testing.T) {
	ctx, root, dir := testCtx(t), t.TempDir(), t.TempDir()
	content := randomBytes(1, 4*window)
	write(t, filepath.Join(root, "x"), content)
	s := serve(t, Options{Root: root})
	out := filepath.Join(dir, "x")
	for _, cut := range []int64{0, window + 1, 2*window + 5000} {
		done := false
		_, err := Fetch(ctx, s.c, "x", FetchOptions{Output: out, Progress: func(p Progress) {
			if !done && p.Bytes > p.Start {
				done = true
				if err := os.Truncate(out+PartialSuffix, cut); err != nil {
					t.Error(err)
				}
			}
		}})
		if err == nil {
			t.Fatalf("cut to %d: the fetch succeeded", cut)
		}
		t.Logf("cut to %d: %v", cut, err)
		if _, err := os.Lstat(out); err == nil {
			t.Fatalf("cut to %d: the file is there", cut)
		}
	}
	f, err := Fetch(ctx, s.c, "x", FetchOptions{Output: out})
	if err != nil || f.Resumed > 3*window {
		t.Fatalf("%+v, %v", f, err)
	}
	same(t, out, content)
}
