package share

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
)

// leave begins an upload of size bytes, has so many of them counted as verified, and gives it up.
func leave(t *testing.T, p *transfer.Peer, r beginRequest, verified uint64) beginAnswer {
	t.Helper()
	ctx := testCtx(t)
	b, err := p.Call(ctx, uploadService, r.append(nil))
	a, ok := parseBeginAnswer(b)
	if err != nil || !ok || a.state != stateReady {
		t.Fatalf("%x, %v", b, err)
	}
	if verified > a.good {
		for _, q := range [][]byte{appendRoom(nil, a.id, 0), appendVerified(nil, a.id, verified)} {
			if _, err := p.Call(ctx, uploadService, q); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := p.Call(ctx, uploadService, appendEnd(nil, a.id)); err != nil {
		t.Fatal(err)
	}
	return a
}

// certified are peers of one share with a certificate each, and the same rights.
func certified(t *testing.T, o Options, rights identity.Rights, names ...string) (s *Server, peers []*transfer.Peer) {
	t.Helper()
	ctx := testCtx(t)
	ca, err := identity.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	issue := func(name string) *identity.Identity {
		id, err := ca.Issue(name, identity.IssueOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(id.Close)
		return id
	}
	n := testNode(t, transfer.Options{Name: "server", Policy: identity.Everyone(rights),
		Listen: []string{"tcp://127.0.0.1:0"}, Identity: issue("server")})
	if s, err = Serve(ctx, n, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	for _, name := range names {
		p, err := testNode(t, transfer.Options{Name: "same", Identity: issue(name)}).Dial(ctx, n.Addrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		peers = append(peers, p)
	}
	return s, peers
}

// TestPartialUploadsBelongToTheirPeer has a peer that may only write begin the file that another
// one has left a part of, with the same name, size and tag, and from the beginning: it learns
// nothing of that part, and the other one goes on with all of it.
func TestPartialUploadsBelongToTheirPeer(t *testing.T) {
	root := t.TempDir()
	_, peers := certified(t, Options{Root: root, Writable: true}, identity.Write, "a", "b")
	a, b := peers[0], peers[1]
	r := beginRequest{token: token{1}, claim: claim{"x", chunkSize + 5, Tag{1}}}
	leave(t, a, r, chunkSize)
	r.token[0]++
	if got := leave(t, b, r, 0); got.good != 0 || got.digest != digestOf(nil) {
		t.Errorf("another peer goes on at %d bytes with the digest %x", got.good, got.digest)
	}
	r.token[0]++
	r.restart = true
	leave(t, b, r, chunkSize)
	r.token[0]++
	r.restart = false
	if got := leave(t, a, r, 0); got.good != chunkSize {
		t.Errorf("its peer goes on at %d bytes, expected %d", got.good, chunkSize)
	}
	r.token[0]++
	if got := leave(t, b, r, 0); got.good != chunkSize {
		t.Errorf("the other peer goes on with its own at %d bytes, expected %d", got.good, chunkSize)
	}
}

// TestUploadsDoNotReadTheStagingDirectory plants files there: they count from the next scan on, and
// no upload looks for them.
func TestUploadsDoNotReadTheStagingDirectory(t *testing.T) {
	root := t.TempDir()
	s := serve(t, Options{Root: root, Writable: true, MaxFiles: 10})
	for i := range 9 {
		write(t, filepath.Join(root, stagingDir, fmt.Sprintf("%032x-%032x%s", i, i, PartialSuffix)), []byte("1"))
	}
	begin := func(name string) error {
		a, err := begun(t, s.peer, name, 1)
		if err == nil {
			_, err = s.peer.Call(testCtx(t), uploadService, appendEnd(nil, a.id))
		}
		return err
	}
	if err := begin("x"); err != nil {
		t.Error(err)
	}
	if got, err := smallBatch(t, s.peer, &smallRequest{token: token{1}}, []string{"y", "z"}, "1", "2"); err != nil ||
		string(got) != "\x01\x01" {
		t.Errorf("%v, %v", got, err)
	}
	if err := s.Rescan(testCtx(t)); err != nil {
		t.Fatal(err)
	}
	if err := begin("xx"); !errors.Is(err, control.OverBudget) {
		t.Errorf("after a scan: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(root, stagingDir)); err != nil {
		t.Fatal(err)
	}
	if err := s.Rescan(testCtx(t)); err != nil {
		t.Fatal(err)
	}
	if err := begin("xx"); err != nil {
		t.Errorf("after they are gone: %v", err)
	}
	s.uploads.mu.Lock()
	defer s.uploads.mu.Unlock()
	if ps := &s.uploads.partials; ps.n != 0 || ps.bytes != 0 || len(ps.of) != 0 {
		t.Errorf("%+v", ps)
	}
}

// TestPartialUploadsOfOnePeerAreBounded has a peer leave more partial uploads than are kept of one:
// its own oldest ones make room, also after a restart with a lower bound, and those of another peer
// stay.
func TestPartialUploadsOfOnePeerAreBounded(t *testing.T) {
	root := t.TempDir()
	s, peers := certified(t, Options{Root: root, Writable: true}, identity.Write, "a", "b")
	s.uploads.keep = 3
	a, b := peers[0], peers[1]
	n := byte(0)
	put := func(p *transfer.Peer, name string, verified uint64) beginAnswer {
		t.Helper()
		n++
		return leave(t, p, beginRequest{token: token{n}, claim: claim{name, 2, Tag{1}}}, verified)
	}
	put(b, "x0", 2)
	was := time.Now().Add(-time.Hour)
	for i := range 5 {
		name := fmt.Sprint("x", i)
		put(a, name, 2)
		base := shortHash("cert:a") + "-" + shortHash(name)
		for _, suffix := range []string{PartialSuffix, StateSuffix} { // times of files are coarse
			at := was.Add(time.Duration(i) * time.Second)
			if err := os.Chtimes(filepath.Join(root, stagingDir, base+suffix), at, at); err != nil {
				t.Fatal(err)
			}
		}
		s.uploads.mu.Lock()
		s.leavePartial(base)
		s.uploads.mu.Unlock()
	}
	kept := func(names ...string) {
		t.Helper()
		var want []string
		add := func(peer, name string) {
			base := shortHash("cert:"+peer) + "-" + shortHash(name)
			want = append(want, base+PartialSuffix, base+StateSuffix)
		}
		add("b", "x0")
		for _, name := range names {
			add("a", name)
		}
		slices.Sort(want)
		only(t, filepath.Join(root, stagingDir), want...)
	}
	kept("x2", "x3", "x4")
	s.uploads.keep = 1
	if err := s.Rescan(testCtx(t)); err != nil {
		t.Fatal(err)
	}
	kept("x4")
	if got := put(b, "x0", 0); got.good != 2 {
		t.Errorf("the other peer goes on at %d bytes", got.good)
	}
}
