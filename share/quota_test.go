package share

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
)

// TestPartialUploadsCount has a peer begin many uploads, vouch for what lies there, and give them
// up: what stays of them counts against the number of files.
func TestPartialUploadsCount(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	s := serve(t, Options{Root: root, Writable: true, MaxFiles: 4})
	kept := 0
	for i := range 12 {
		r := beginRequest{token: token{byte(i)}, claim: claim{fmt.Sprint("x", i), 1, Tag{1}}}
		b, err := s.peer.Call(ctx, uploadService, r.append(nil))
		if errors.Is(err, control.OverBudget) {
			continue
		}
		a, ok := parseBeginAnswer(b)
		if err != nil || !ok || a.state != stateReady {
			t.Fatalf("%x, %v", b, err)
		}
		for _, q := range [][]byte{appendRoom(nil, a.id, 0), appendVerified(nil, a.id, 1)} {
			if _, err := s.peer.Call(ctx, uploadService, q); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.peer.Call(ctx, uploadService, appendEnd(nil, a.id)); err != nil {
			t.Fatal(err)
		}
		kept++
	}
	if kept != 4 {
		t.Errorf("%d partial files are kept by a share of at most 4", kept)
	}
	// One that is there can be gone on with.
	r := beginRequest{token: token{99}, claim: claim{"x0", 1, Tag{1}}}
	if _, err := s.peer.Call(ctx, uploadService, r.append(nil)); err != nil {
		t.Error(err)
	}
}

// TestUploadIsNotTakenOver has another peer begin an upload of the same name, size and tag, as a
// second worker with the same file does: the one that is under way goes on.
func TestUploadIsNotTakenOver(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	s := serve(t, Options{Root: root, Writable: true})
	other, err := testNode(t, transfer.Options{Name: "other"}).Dial(ctx, s.node.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	r := beginRequest{token: token{1}, claim: claim{"x", chunkSize, Tag{1}}}
	b, err := s.peer.Call(ctx, uploadService, r.append(nil))
	if err != nil {
		t.Fatal(err)
	}
	a, _ := parseBeginAnswer(b)
	r.token = token{2}
	if _, err := other.Call(ctx, uploadService, r.append(nil)); !errors.Is(err, control.Busy) {
		t.Errorf("the same file of another peer: %v", err)
	}
	if _, err := s.peer.Call(ctx, uploadService, appendRoom(nil, a.id, 0)); err != nil {
		t.Errorf("the upload under way: %v", err)
	}
}

// TestOnePeerLeavesRoom has one peer begin uploads until it is refused: another one can still begin
// one.
func TestOnePeerLeavesRoom(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	s := serve(t, Options{Root: root, Writable: true})
	other, err := testNode(t, transfer.Options{Name: "other"}).Dial(ctx, s.node.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; ; i++ {
		r := beginRequest{token: token{1, byte(i)}, claim: claim{fmt.Sprint("x", i), 1, Tag{1}}}
		_, err := s.peer.Call(ctx, uploadService, r.append(nil))
		if errors.Is(err, control.Busy) {
			break
		}
		if err != nil || i > 1000 {
			t.Fatal(i, err)
		}
	}
	r := beginRequest{token: token{2}, claim: claim{"y", 1, Tag{1}}}
	if _, err := other.Call(ctx, uploadService, r.append(nil)); err != nil {
		t.Errorf("another peer: %v", err)
	}
}

// TestUploadsCountByCertificate has peers call themselves as they like: what counts is the name in
// the certificate.
func TestUploadsCountByCertificate(t *testing.T) {
	ctx := testCtx(t)
	ca, err := identity.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	issue := func(name string) *identity.Identity {
		t.Helper()
		id, err := ca.Issue(name, identity.IssueOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(id.Close)
		return id
	}
	n := testNode(t, transfer.Options{Name: "server", Policy: identity.Everyone(identity.All),
		Listen: []string{"tcp://127.0.0.1:0"}, Identity: issue("server")})
	s, err := Serve(ctx, n, Options{Root: t.TempDir(), Writable: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	a := issue("a")
	dial := func(id *identity.Identity, name string) *transfer.Peer {
		t.Helper()
		p, err := testNode(t, transfer.Options{Name: name, Identity: id}).Dial(ctx, n.Addrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	begin := func(p *transfer.Peer, i int) error {
		r := beginRequest{token: token{byte(i)}, claim: claim{fmt.Sprint("x", i), 1, Tag{1}}}
		_, err := p.Call(ctx, uploadService, r.append(nil))
		return err
	}
	sessions := []*transfer.Peer{dial(a, "one"), dial(a, "two"), dial(a, "three")}
	for i := range maxUploadsOfOne {
		if err := begin(sessions[i%3], i); err != nil {
			t.Fatal(i, err)
		}
	}
	for i, p := range sessions {
		if err := begin(p, maxUploadsOfOne+i); !errors.Is(err, control.Busy) {
			t.Errorf("session %d: one upload too many: %v", i, err)
		}
	}
	b := dial(issue("b"), "one")
	if err := begin(b, maxUploadsOfOne); err != nil {
		t.Errorf("a peer that calls itself like another one: %v", err)
	}
	if err := begin(b, 0); !errors.Is(err, control.Busy) {
		t.Errorf("it takes the upload of the other one over: %v", err)
	}
}

// onLine is a writer that calls a function with each line of a log.
type onLine func(string)

func (f onLine) Write(b []byte) (int, error) {
	f(string(b))
	return len(b), nil
}

// TestQuotaDuringRescan begins an upload in the middle of a scan: a file that cannot be served
// counts before the scan has come to it, too.
func TestQuotaDuringRescan(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	write(t, filepath.Join(root, "a"), []byte("1"))
	write(t, filepath.Join(root, "b\xff"), make([]byte, 10000)) // a name that is not UTF-8
	said := func(string) {}
	s := serve(t, Options{Root: root, Writable: true, MaxBytes: 12000,
		Logger: slog.New(slog.NewTextHandler(onLine(func(l string) {
			said(l)
		}), nil))})
	if _, err := begun(t, s.peer, "x", 5000); !errors.Is(err, control.OverBudget) {
		t.Fatalf("before a scan: %v", err)
	}
	write(t, filepath.Join(root, "a"), []byte("22"))
	scanning := 0
	said = func(line string) {
		if strings.Contains(line, "msg=served path=a") {
			scanning++
			if _, err := begun(t, s.peer, "x", 5000); !errors.Is(err, control.OverBudget) {
				t.Errorf("during a scan: %v", err)
			}
		}
	}
	if err := s.Rescan(ctx); err != nil || scanning != 1 {
		t.Fatalf("seen %d times, %v", scanning, err)
	}
	said = func(string) {}
	if err := os.Remove(filepath.Join(root, "b\xff")); err != nil {
		t.Fatal(err)
	}
	if err := s.Rescan(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := begun(t, s.peer, "x", 5000); err != nil {
		t.Errorf("after it is gone: %v", err)
	}
}
