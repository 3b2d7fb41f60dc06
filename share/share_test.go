package share

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
)

func TestMain(m *testing.M) {
	if testenv.Race { // it is for races, the other runs are for the models
		flag.Set("rapid.checks", "25")
	}
	goleak.VerifyTestMain(m)
}

// wait is far more than anything here takes; it only ends what hangs.
const wait = 2 * time.Minute

func testCtx(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	t.Cleanup(cancel)
	return ctx
}

func testNode(t testing.TB, o transfer.Options) *transfer.Node {
	t.Helper()
	if o.Anonymous == 0 {
		o.Anonymous = identity.All
	}
	n, err := transfer.Open(testCtx(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// serving is a server of a directory and a client of it.
type serving struct {
	*Server
	c    Conn
	peer *transfer.Peer
}

func serve(t testing.TB, o Options) *serving {
	t.Helper()
	n := testNode(t, transfer.Options{Name: "server", Listen: []string{"tcp://127.0.0.1:0"}})
	s, err := Serve(testCtx(t), n, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	c := testNode(t, transfer.Options{Name: "client"})
	p, err := c.Dial(testCtx(t), n.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	return &serving{s, Over(p), p}
}

func randomBytes(seed uint64, n int) []byte {
	b := make([]byte, n)
	at := min(n, 1<<20+7) // what follows is the same again, but never at the same place of a window or a chunk
	rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(b[:at])
	for at < n {
		at += copy(b[at:], b[:at])
	}
	return b
}

func write(t testing.TB, p string, b []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// same fails unless the file has these bytes.
func same(t testing.TB, p string, want []byte) {
	t.Helper()
	b, err := os.ReadFile(p)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b, want) {
		t.Fatalf("%s: %d bytes that differ from the %d expected", p, len(b), len(want))
	}
}

// only fails unless the directory holds exactly these names.
func only(t testing.TB, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if len(got) != len(want) {
		t.Fatalf("%s holds %q, expected %q", dir, got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("%s holds %q, expected %q", dir, got, want)
		}
	}
}

func TestServeListFetch(t *testing.T) {
	ctx, root, out := testCtx(t), t.TempDir(), t.TempDir()
	files := map[string][]byte{
		"empty": {}, "small": []byte("hello"), "sub/odd %": randomBytes(1, 4097),
		"sub/deep/large": randomBytes(2, 3*window+chunkSize+5),
	}
	for n, b := range files {
		write(t, filepath.Join(root, n), b)
	}
	write(t, filepath.Join(root, ".hidden"), []byte("x"))
	if err := os.Symlink("/etc/passwd", filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	s := serve(t, Options{Root: root})
	entries, err := List(ctx, s.c, "")
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != len(files) {
		t.Fatalf("%v", entries)
	}
	for _, e := range entries {
		want, ok := files[e.Name]
		if !ok || e.Size != uint64(len(want)) || e.Tag == (Tag{}) {
			t.Errorf("%+v", e)
		}
		p := filepath.Join(out, filepath.Base(e.Name))
		var last Progress
		f, err := Fetch(ctx, s.c, e.Name, FetchOptions{Output: p, Progress: func(p Progress) { last = p }})
		if err != nil {
			t.Fatal(err)
		}
		same(t, p, want)
		if f.Moved != e.Size || f.Resumed != 0 || last.Bytes != e.Size || last.Size != e.Size {
			t.Errorf("%+v, %+v", f, last)
		}
	}
	only(t, out, "empty", "large", "odd %", "small")
	if _, err := Fetch(ctx, s.c, "small", FetchOptions{Output: filepath.Join(out, "small")}); !errors.Is(err,
		ErrExists) {
		t.Errorf("over a file: %v", err)
	}
	if _, err := Fetch(ctx, s.c, "large", FetchOptions{Output: filepath.Join(out, "x")}); !errors.Is(err,
		control.NotFound) {
		t.Errorf("no such name: %v", err)
	}
	if _, err := Fetch(ctx, s.c, "empty", FetchOptions{Output: filepath.Join(out, "small"),
		Overwrite: true}); err != nil {
		t.Error(err)
	}
	same(t, filepath.Join(out, "small"), nil)
	n := s.Snapshot()
	if n.Files != 4 || len(n.Skipped) != 1 || n.Skipped[0].Path != "link" {
		t.Errorf("%+v", n)
	}
}

func TestTags(t *testing.T) {
	ctx := testCtx(t)
	find := func(o Options) Tag {
		t.Helper()
		s := serve(t, o)
		e, err := Find(ctx, s.c, "x")
		if err != nil || e.Tag == (Tag{}) {
			t.Fatal(e, err)
		}
		return e.Tag
	}
	a, b := t.TempDir(), t.TempDir()
	write(t, filepath.Join(a, "x"), []byte("content"))
	write(t, filepath.Join(b, "x"), []byte("content"))
	weak := find(Options{Root: a})
	if find(Options{Root: a}) != weak {
		t.Error("another weak tag after a restart")
	}
	if find(Options{Root: b}) == weak {
		t.Error("the same weak tag of another file")
	}
	strong := find(Options{Root: a, Strong: true})
	if find(Options{Root: b, Strong: true}) != strong {
		t.Error("another strong tag of the same content")
	}
	now := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(a, "x"), now, now); err != nil {
		t.Fatal(err)
	}
	if find(Options{Root: a}) == weak {
		t.Error("the same weak tag after the times changed")
	}
	if find(Options{Root: a, Strong: true}) != strong {
		t.Error("another strong tag after the times changed")
	}
	write(t, filepath.Join(b, "x"), []byte("Content"))
	if find(Options{Root: b, Strong: true}) == strong {
		t.Error("the same strong tag of another content")
	}
}

// TestChangesAreServed adds, changes and removes files under a running server, which is asked for
// their names.
func TestChangesAreServed(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	s := serve(t, Options{Root: root, MaxFiles: 3})
	look := func(name string, size int) {
		t.Helper()
		e, err := Find(ctx, s.c, name)
		if size < 0 != errors.Is(err, control.NotFound) || size >= 0 && (err != nil || e.Size != uint64(size)) {
			t.Errorf("%s: %+v, %v; expected %d", name, e, err, size)
		}
	}
	look("d/x", -1)
	write(t, filepath.Join(root, "d/x"), []byte("12345"))
	look("d/x", 5)
	write(t, filepath.Join(root, "d/x"), []byte("123456"))
	look("d/x", 6)
	write(t, filepath.Join(root, "d/y"), []byte("1"))
	if err := os.RemoveAll(filepath.Join(root, "d")); err != nil {
		t.Fatal(err)
	}
	look("d/x", -1)
	write(t, filepath.Join(root, ".h"), []byte("1"))
	write(t, filepath.Join(root, "p"+PartialSuffix), []byte("1"))
	look(".h", -1)
	look("p"+PartialSuffix, -1)
	for i := range 4 {
		write(t, filepath.Join(root, string(rune('a'+i))), []byte("1"))
	}
	if err := s.Rescan(ctx); err != nil {
		t.Fatal(err)
	}
	es, err := List(ctx, s.c, "")
	// p.partial is none of this package
	if n := s.Snapshot(); err != nil || len(es) != 3 || n.Files != 3 || len(n.Skipped) != 2 ||
		n.Bytes != 3 {
		t.Errorf("%v, %+v, %v", es, n, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	look("a", -1)
	if err := s.Rescan(ctx); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

func TestRescanEvery(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	s := serve(t, Options{Root: root, RescanEvery: time.Millisecond, Hidden: true})
	write(t, filepath.Join(root, ".new"), []byte("1"))
	for { // until the test's time is over
		es, err := List(ctx, s.c, "")
		if err != nil {
			t.Fatal(err)
		}
		if len(es) == 1 && es[0].Name == ".new" {
			return
		}
	}
}

func TestServeOneFile(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	write(t, filepath.Join(root, "x"), []byte("x"))
	write(t, filepath.Join(root, "y"), []byte("y"))
	s := serve(t, Options{Root: filepath.Join(root, "x")})
	es, err := List(ctx, s.c, "")
	if err != nil || len(es) != 1 || es[0].Name != "x" {
		t.Errorf("%v, %v", es, err)
	}
	if _, err := Find(ctx, s.c, "y"); !errors.Is(err, control.NotFound) {
		t.Errorf("its neighbour: %v", err)
	}
	n := testNode(t, transfer.Options{})
	for _, o := range []Options{{Root: filepath.Join(root, "none")}, {Root: filepath.Join(root, "x"), Writable: true},
		{Root: "/dev/null"}} {
		if _, err := Serve(ctx, n, o); err == nil {
			t.Errorf("%+v is served", o)
		}
	}
}

// TestQuietFiles opens a file whose time is a moment ahead, as a peer may make it: that is not
// waited for.
func TestQuietFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	write(t, file, []byte("1"))
	ahead := time.Now().Add(900 * time.Millisecond)
	if err := os.Chtimes(file, ahead, ahead); err != nil {
		t.Fatal(err)
	}
	n := 0
	f, _, err := openQuiet(testCtx(t), func() (*os.File, os.FileInfo, error) {
		n++
		f, err := os.Open(file)
		if err != nil {
			return nil, nil, err
		}
		fi, err := f.Stat()
		return f, fi, err
	})
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if n > 5 {
		t.Errorf("it was opened %d times", n)
	}
}
