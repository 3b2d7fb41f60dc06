package share

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
)

// hungryService makes the child of TestOutOfDescriptors take all descriptors ("eat"), give them
// back ("free") and scan ("rescan").
const hungryService = "test/hungry"

func hungryChild(t *testing.T) bool {
	root := os.Getenv(childRoot)
	if root == "" {
		return false
	}
	n, err := transfer.Open(context.Background(), transfer.Options{Anonymous: identity.All, Name: "child",
		Listen: []string{"tcp://127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := Serve(context.Background(), n, Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	var eaten []*os.File
	if _, err := n.Handle(hungryService, func(ctx context.Context, _ *transfer.Peer, b []byte) ([]byte, error) {
		switch string(b) {
		case "eat":
			for {
				f, err := os.Open(os.DevNull)
				if err != nil {
					return []byte(err.Error()), nil
				}
				eaten = append(eaten, f)
			}
		case "free":
			for _, f := range eaten {
				f.Close()
			}
			eaten = nil
		}
		if err := s.Rescan(ctx); err != nil {
			return []byte(err.Error()), nil
		}
		return fmt.Appendf(nil, "%v", s.Snapshot().Complete), nil
	}); err != nil {
		t.Fatal(err)
	}
	os.Stdout.WriteString("serving at " + n.Addrs()[0] + "\n")
	select {}
}

// TestOutOfDescriptors has a server run out of descriptors: it goes on serving what it serves, says
// that its listing is not complete, and no mirror deletes anything. When descriptors are there
// again, what is really gone goes.
func TestOutOfDescriptors(t *testing.T) {
	if hungryChild(t) {
		return
	}
	ctx, root, dir := testCtx(t), t.TempDir(), t.TempDir()
	names := []string{"a", "b/c", "b/d/e", "gone", "written"}
	for _, n := range names {
		write(t, filepath.Join(root, n), []byte(n))
	}
	self := proc.Self(t, childRoot+"="+root)
	self.Args = append([]string{"-c", `ulimit -n 100 && exec "$0" "$@"`, self.Path}, self.Args...)
	self.Path = "/bin/sh"
	server := proc.Start(t, self)
	peer, err := testNode(t, transfer.Options{Name: "client"}).Dial(ctx, servingAt(t, server))
	if err != nil {
		t.Fatal(err)
	}
	c := Over(peer)
	if m, err := Mirror(ctx, c, dir, MirrorOptions{Delete: true}); err != nil || m.Fetched != len(names) {
		t.Fatalf("%+v, %v", m, err)
	}
	tell := func(what string) string {
		t.Helper()
		b, err := peer.Call(ctx, hungryService, []byte(what))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if said := tell("eat"); !strings.Contains(said, "too many open files") {
		t.Fatalf("descriptors ended with %q", said)
	}
	if err := os.Remove(filepath.Join(root, "gone")); err != nil {
		t.Fatal(err)
	}
	look := func(names ...string) {
		t.Helper()
		for range 2 {
			for _, n := range names {
				if _, err := Find(ctx, c, n); err != nil {
					t.Errorf("%s: %v", n, err)
				}
			}
		}
		if es, err := List(ctx, c, ""); err != nil || len(es) != len(names) {
			t.Errorf("%d of %d names are listed, %v", len(es), len(names), err)
		}
	}
	look(names...)
	if said := tell("rescan"); !strings.Contains(said, "too many open files") {
		t.Errorf("a scan without descriptors said %q", said)
	}
	look(names...)
	m, err := Mirror(ctx, c, dir, MirrorOptions{Delete: true})
	if !errors.Is(err, ErrIncomplete) || m.Deleted != 0 || m.Undeleted != 0 || m.Skipped != len(names) {
		t.Errorf("%+v, %v", m, err)
	}
	// A file that is written to has other bytes than its tag says: it is not served as it was, and
	// not taken for absent either.
	write(t, filepath.Join(root, "written"), []byte("anew"))
	if _, err := Find(ctx, c, "written"); !errors.Is(err, control.NotFound) {
		t.Errorf("a file that was written to: %v", err)
	}
	m, err = Mirror(ctx, c, dir, MirrorOptions{Delete: true})
	if !errors.Is(err, ErrIncomplete) || m.Deleted != 0 || m.Undeleted != 1 {
		t.Errorf("%+v, %v", m, err)
	}
	for _, n := range names {
		same(t, filepath.Join(dir, n), []byte(n))
	}
	if said := tell("free"); said != "true" {
		t.Errorf("a scan with descriptors said %q", said)
	}
	if m, err = Mirror(ctx, c, dir, MirrorOptions{Delete: true}); err != nil || m.Deleted != 1 || m.Fetched != 1 ||
		m.Incomplete != nil {
		t.Errorf("%+v, %v", m, err)
	}
	same(t, filepath.Join(dir, "written"), []byte("anew"))
	only(t, dir, recordName, "a", "b", "written")
}

// TestMirrorDeletesByCompleteListingsOnly mirrors with Delete from sides whose listing does not
// prove that a file is gone.
func TestMirrorDeletesByCompleteListingsOnly(t *testing.T) {
	ctx, dir := testCtx(t), t.TempDir()
	mirror := func(c Conn) (*Mirrored, error) {
		t.Helper()
		m, err := Mirror(ctx, c, dir, MirrorOptions{Delete: true})
		if m == nil {
			t.Fatal(err)
		}
		return m, err
	}
	refused := func(what string, c Conn, hint string) {
		t.Helper()
		m, err := mirror(c)
		if !errors.Is(err, ErrIncomplete) || m.Deleted != 0 || m.Undeleted != 2 ||
			!strings.Contains(err.Error(), hint) {
			t.Errorf("%s: %+v, %v", what, m, err)
		}
		same(t, filepath.Join(dir, "y"), []byte("y"))
	}
	root := t.TempDir()
	for _, n := range []string{"x", "y", "z"} {
		write(t, filepath.Join(root, n), []byte(n))
	}
	s := serve(t, Options{Root: root})
	if m, err := mirror(s.c); err != nil || m.Fetched != 3 || !s.Snapshot().Complete {
		t.Fatalf("%+v, %v", m, err)
	}
	refused("more files than are served", serve(t, Options{Root: root, MaxFiles: 1}).c, "--max-files")

	foreign := testNode(t, transfer.Options{Name: "foreign", Listen: []string{"tcp://127.0.0.1:0"}})
	r, err := mem.Alloc(mem.Options{Size: 1 << 12})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := foreign.Export(mem.Span{Region: r, Len: 1}, transfer.ExportOptions{Name: "x"}); err != nil {
		t.Fatal(err)
	}
	p, err := testNode(t, transfer.Options{Name: "client"}).Dial(ctx, foreign.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	refused("a node that does not say", Over(p), "does not report")
	answer := []byte{byte(lackScan), 8: 0}
	if _, err := foreign.Handle(listingService, func(context.Context, *transfer.Peer, []byte) ([]byte, error) {
		return answer, nil
	}); err != nil {
		t.Fatal(err)
	}
	refused("a share that has not looked at its files", Over(p), "try again")
	answer = []byte{byte(lackMore) + 1, 8: 0}
	refused("an answer that is none", Over(p), "does not report")
	answer = []byte{byte(lackNothing)}
	refused("a short answer", Over(p), "does not report")
}

// wholeListing is a listing with its end.
func wholeListing(ctx context.Context, c Conn) (names []Entry, lacks lack, err error) {
	names, end, err := listing(ctx, c, "")
	if err == nil {
		lacks, err = end(ctx)
	}
	return names, lacks, err
}

// TestListingAcrossTrouble lists while something could not be looked at in between, which is over
// when the list ends.
func TestListingAcrossTrouble(t *testing.T) {
	ctx, n := testCtx(t), testNode(t, transfer.Options{Name: "foreign", Listen: []string{"tcp://127.0.0.1:0"}})
	count := byte(0)
	if _, err := n.Handle(listingService, func(context.Context, *transfer.Peer, []byte) ([]byte, error) {
		count++
		return []byte{byte(lackNothing), 8: count}, nil
	}); err != nil {
		t.Fatal(err)
	}
	p, err := testNode(t, transfer.Options{Name: "client"}).Dial(ctx, n.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, lacks, err := wholeListing(ctx, Over(p)); err != nil || lacks != lackSome {
		t.Errorf("lacks %d, %v", lacks, err)
	}
}

// TestReplacedFilesStayListed replaces a file of many tensors while its names are listed: none is
// ever missing.
func TestReplacedFilesStayListed(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	file := filepath.Join(root, "x.safetensors")
	const tensors = 2000
	write(t, file, manyTensors(tensors, 0))
	s := serve(t, Options{Root: root, Tensors: true})
	done := make(chan error)
	go func() {
		for i := range byte(20) {
			replaceFile(t, file, manyTensors(tensors, i+1))
			if err := s.Rescan(ctx); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for lists := 0; ; lists++ {
		es, lacks, err := wholeListing(ctx, s.c)
		if err != nil || len(es) != tensors+1 || lacks != lackNothing {
			t.Fatalf("list %d: %d names, lacks %d, %v", lists, len(es), lacks, err)
		}
		select {
		case err := <-done:
			if err != nil || lists == 0 {
				t.Errorf("%d lists, %v", lists, err)
			}
			if n := s.Snapshot(); n.Files != 1 || n.Tensors != tensors || n.Changes != 21 {
				t.Errorf("%+v", n)
			}
			return
		default:
		}
	}
}

// TestLookupsWhileAFileIsReplaced looks names up while a file is being exported, which may take
// long: lookups of others do not wait.
func TestLookupsWhileAFileIsReplaced(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	write(t, filepath.Join(root, "b", "a.safetensors"), manyTensors(3, 1))
	s := serve(t, Options{Root: root, Tensors: true})
	s.work.Lock()
	defer s.work.Unlock()
	for name, want := range map[string]error{"b/a.safetensors": nil, "b/a.safetensors/t000001": nil,
		"b": control.NotFound, "c": control.NotFound,
		"b/a.safetensors/t3": control.NotFound, "c/d": control.NotFound} {
		if _, err := Find(ctx, s.c, name); !errors.Is(err, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPlaceThatIsNoFile puts a directory, a link and nothing where files were: that is absence, and
// the listing is complete.
func TestPlaceThatIsNoFile(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	for _, n := range []string{"a", "b/c", "d"} {
		write(t, filepath.Join(root, n), []byte(n))
	}
	s := serve(t, Options{Root: root})
	for _, n := range []string{"a", "b", "d"} {
		if err := os.RemoveAll(filepath.Join(root, n)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Join(root, "a"), 0o755),
		os.Symlink("a", filepath.Join(root, "b"))); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"a", "b/c", "d", strings.Repeat("x", 255)} {
		if _, err := Find(ctx, s.c, n); !errors.Is(err, control.NotFound) {
			t.Errorf("%s: %v", n, err)
		}
	}
	if err := s.Rescan(ctx); err != nil {
		t.Fatal(err)
	}
	n := s.Snapshot()
	if n.Files != 0 || !n.Complete || !slices.ContainsFunc(n.Skipped, func(x Skipped) bool { return x.Path == "b" }) {
		t.Errorf("%+v", n)
	}
}

// TestLeftOutStaysCounted leaves out tensors of a file: each scan counts them again until the file
// changes, and until then a mirror with Delete fails.
func TestLeftOutStaysCounted(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	file := filepath.Join(root, "m.safetensors")
	writeTensors(t, file, 2)
	write(t, filepath.Join(root, "bad.npy"), []byte("not one"))
	s := serve(t, Options{Root: root, Tensors: true})
	taken, err := s.node.Export(mem.Span{Region: s.files["bad.npy"].region, Len: 1},
		transfer.ExportOptions{Name: "m.safetensors/model.layers.0002.weight"})
	if err != nil {
		t.Fatal(err)
	}
	expect := func(complete bool, paths ...string) {
		t.Helper()
		if err := s.Rescan(ctx); err != nil {
			t.Fatal(err)
		}
		var got []string
		n := s.Snapshot()
		for _, x := range n.Skipped {
			got = append(got, x.Path)
		}
		if n.Complete != complete || !slices.Equal(got, paths) {
			t.Errorf("complete: %v, left out: %q", n.Complete, got)
		}
		expectCounts(t, s.Server, map[string]float64{"left_out[]": float64(len(paths))})
	}
	expect(true, "bad.npy/")
	writeTensors(t, file, 3)
	for range 3 {
		expect(false, "bad.npy/", "m.safetensors/model.layers.0002.weight")
	}
	taken.Revoke(ctx)
	if _, err := Mirror(ctx, s.c, t.TempDir(), MirrorOptions{Delete: true, Parts: true}); !errors.Is(err,
		ErrIncomplete) {
		t.Error(err)
	}
	replaceFile(t, file, manyTensors(1, 0))
	expect(true, "bad.npy/")
	if err := os.Remove(filepath.Join(root, "bad.npy")); err != nil {
		t.Fatal(err)
	}
	expect(true)
}

// blocked is a log whose first record waits.
type blocked struct {
	slog.Handler
	reached, goOn chan struct{}
	once          *sync.Once
}

func (b blocked) Enabled(context.Context, slog.Level) bool { return true }
func (b blocked) Handle(context.Context, slog.Record) error {
	b.once.Do(func() {
		close(b.reached)
		<-b.goOn
	})
	return nil
}

// TestListingAwaitsTheFirstScan mirrors a share that is still looking at its files.
func TestListingAwaitsTheFirstScan(t *testing.T) {
	ctx, root, dst := testCtx(t), t.TempDir(), t.TempDir()
	write(t, filepath.Join(root, "z"), []byte("last"))
	if err := os.Symlink("z", filepath.Join(root, "a")); err != nil { // which is logged
		t.Fatal(err)
	}
	n := testNode(t, transfer.Options{Name: "server", Listen: []string{"tcp://127.0.0.1:0"}})
	b := blocked{slog.DiscardHandler, make(chan struct{}), make(chan struct{}), new(sync.Once)}
	served := make(chan *Server)
	go func() {
		s, err := Serve(ctx, n, Options{Root: root, Logger: slog.New(b)})
		if err != nil {
			t.Error(err)
		}
		served <- s
	}()
	<-b.reached
	p, err := testNode(t, transfer.Options{Name: "client"}).Dial(ctx, n.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	type outcome struct {
		m   *Mirrored
		err error
	}
	mirrored := make(chan outcome)
	go func() {
		m, err := Mirror(ctx, Over(p), dst, MirrorOptions{Delete: true})
		mirrored <- outcome{m, err}
	}()
	for range 100 { // by then its question has come; if not, the listing has nothing to wait for
		if _, _, err := LeftOut(ctx, Over(p), ""); err != nil {
			t.Fatal(err)
		}
	}
	close(b.goOn)
	if o := <-mirrored; o.err != nil || o.m.Fetched != 1 || o.m.Incomplete != nil {
		t.Errorf("%+v, %v", o.m, o.err)
	}
	same(t, filepath.Join(dst, "z"), []byte("last"))
	if s := <-served; s != nil {
		s.Close()
	}
}
