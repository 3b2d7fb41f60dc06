package share

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
)

func (r *dirsRequest) append(b []byte) []byte {
	b = append(b, r.op)
	if r.op == opDirsList {
		b = append(append(b, byte(len(r.after))), r.after...)
	}
	return append(b, r.prefixOrName...)
}

func FuzzDirsWire(f *testing.F) {
	for _, r := range []dirsRequest{{op: opDirsList}, {opDirsList, "a/b", "a"}, {op: opDirsMake, prefixOrName: "x"}} {
		f.Add(r.append(nil))
	}
	f.Add([]byte("\x01\xffa"))
	f.Add([]byte("\x01\x01a\x02bc"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := parseDirs(b); err == nil && !bytes.Equal(r.append(nil), b) {
			t.Fatalf("%x is read as %+v", b, r)
		}
		if dirs, _, err := parseLinkPage(b, "", false); err == nil && !slices.IsSortedFunc(dirs, func(a, b link) int {
			return strings.Compare(a.name, b.name)
		}) {
			t.Fatalf("%x is read as %q", b, dirs)
		}
	})
}

// dirsIn are the directories below a directory, with slashes.
func dirsIn(t *testing.T, root string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(p string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && p != root && d.Name() != stagingDir {
			out = append(out, filepath.ToSlash(strings.TrimPrefix(p, root+"/")))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestEmptyDirectories brings directories without files to the other side and back.
func TestEmptyDirectories(t *testing.T) {
	ctx, root, local := testCtx(t), t.TempDir(), t.TempDir()
	write(t, filepath.Join(local, "a/file"), []byte("1"))
	write(t, filepath.Join(local, "a/b/x"), []byte("2"))
	for _, d := range []string{"none", "a/none/deep/er", "out/a", "é"} {
		if err := os.MkdirAll(filepath.Join(local, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var f Filter
	if err := f.Exclude("out"); err != nil {
		t.Fatal(err)
	}
	s := serve(t, Options{Root: root, Writable: true})
	for range 2 {
		if _, u, err := uploadTree(t, s.c, TreeOptions{Filter: &f}, TreeSource{local, "run/"},
			TreeSource{t.TempDir(), "alone/"}, TreeSource{t.TempDir(), ""}); err != nil || u.Sent+u.Kept != 2 {
			t.Fatalf("%+v, %v", u, err)
		}
	}
	want := []string{"alone", "run", "run/a", "run/a/b", "run/a/none", "run/a/none/deep", "run/a/none/deep/er",
		"run/none", "run/é"}
	if got := dirsIn(t, root); !slices.Equal(got, want) {
		t.Fatalf("%q", got)
	}
	for _, scanned := range []bool{false, true} {
		if scanned {
			if err := s.Rescan(ctx); err != nil {
				t.Fatal(err)
			}
		}
		dst := t.TempDir()
		if m, err := Mirror(ctx, s.c, dst, MirrorOptions{}); err != nil || m.Fetched != 2 {
			t.Fatalf("%+v, %v", m, err)
		}
		if got := dirsIn(t, dst); !slices.Equal(got, want) {
			t.Errorf("scanned %t: %q", scanned, got)
		}
		dst = t.TempDir()
		if _, err := Mirror(ctx, s.c, dst, MirrorOptions{Prefix: "run/a/n"}); err != nil {
			t.Fatal(err)
		}
		if got := dirsIn(t, dst); !slices.Equal(got,
			[]string{"run", "run/a", "run/a/none", "run/a/none/deep", "run/a/none/deep/er"}) {
			t.Errorf("scanned %t, of a prefix: %q", scanned, got)
		}
	}
	// Where a file is in the way, that directory fails alone.
	dst := t.TempDir()
	write(t, filepath.Join(dst, "alone"), nil)
	if m, err := Mirror(ctx, s.c, dst, MirrorOptions{}); !errors.Is(err, ErrUnsafe) || m.Fetched != 2 ||
		m.Failed != 1 || m.Failures[0].Name != "alone/" {
		t.Errorf("%+v, %v", m, err)
	}
	write(t, filepath.Join(root, "taken"), nil)
	if _, u, err := uploadTree(t, s.c, TreeOptions{}, TreeSource{t.TempDir(), "taken/"}); err == nil || u.Failed != 1 ||
		u.Failures[0].Name != "taken/" {
		t.Errorf("%+v, %v", u, err)
	}
	same(t, filepath.Join(root, "taken"), nil)
}

// TestDirectoriesAreBounded: names lead nowhere but below the root, and each directory counts as a
// file.
func TestDirectoriesAreBounded(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	out := t.TempDir()
	if err := os.Symlink(out, filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	s := serve(t, Options{Root: root, Writable: true, MaxFiles: 30,
		MayUpload: func(_ *transfer.Peer, name string, _ uint64) error {
			if strings.HasPrefix(name, "secret") {
				return errors.New("not here")
			}
			return nil
		}})
	mk := func(name string) error {
		r := dirsRequest{op: opDirsMake, prefixOrName: name}
		_, err := s.peer.Call(ctx, dirsService, r.append(nil))
		return err
	}
	for name, code := range map[string]control.Code{"link/x": control.BadRequest, "": control.BadRequest,
		strings.Repeat("x", 256):               control.BadRequest,
		strings.Repeat("d/", maxDepth+1) + "x": control.BadRequest, "secret/x": control.NotPermitted,
		"\xff":  control.BadRequest,
		"../up": control.BadRequest, ".hidden": control.BadRequest} {
		if err := mk(name); !errors.Is(err, code) {
			t.Errorf("%q: %v, expected %v", name, err, code)
		}
	}
	if err := errors.Join(mk("in/x"), mk("y"), mk("in/x")); err != nil {
		t.Error(err)
	}
	for i := range 27 {
		if err := mk(fmt.Sprint(i)); err != nil {
			t.Error(err)
		}
	}
	if err := mk("more"); !errors.Is(err, control.OverBudget) {
		t.Errorf("one too many: %v", err)
	}
	if err := mk("7"); err != nil {
		t.Errorf("one that is there: %v", err)
	}
	if got := dirsIn(t, out); len(got) > 0 {
		t.Errorf("outside: %q", got)
	}
	if got := len(dirsIn(t, root)); got != 30 { // with the one that is not empty
		t.Errorf("%d directories", got)
	}
	// A peer that may neither list nor write gets nothing, and a share that takes nothing makes
	// nothing.
	for _, rights := range []identity.Rights{identity.Read, identity.Read | identity.List} {
		n := testNode(t, transfer.Options{Name: "strict", Listen: []string{"tcp://127.0.0.1:0"}, Anonymous: rights})
		srv, err := Serve(ctx, n, Options{Root: t.TempDir(), Writable: rights == identity.Read})
		if err != nil {
			t.Fatal(err)
		}
		defer srv.Close()
		p, err := testNode(t, transfer.Options{Name: "other"}).Dial(ctx, n.Addrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range []dirsRequest{{op: opDirsList}, {op: opDirsMake, prefixOrName: "x"}} {
			if _, err := p.Call(ctx, dirsService, r.append(nil)); !errors.Is(err, control.NotPermitted) &&
				(r.op != opDirsList || rights&identity.List == 0) {
				t.Errorf("%v, %v: %v", rights, r, err)
			}
		}
	}
}

// TestManyEmptyDirectories are listed in several answers.
func TestManyEmptyDirectories(t *testing.T) {
	root := t.TempDir()
	var want []string
	for i := range 700 {
		want = append(want, fmt.Sprintf("%0100d", i))
		if err := os.Mkdir(filepath.Join(root, want[i]), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, b := range []string{"", "\x02", "\x01", "\x00\x02a", "\x00\x01b\x01a", "\x00\x01a", "\x00\x00",
		"\x00\x01\xff"} {
		// what no server answers after "a"
		if dirs, _, err := parseLinkPage([]byte(b), "a", false); err == nil {
			t.Errorf("%q is read as %q", b, dirs)
		}
	}
	s := serve(t, Options{Root: root})
	if got, err := emptyDirs(testCtx(t), s.c, ""); err != nil || !slices.Equal(got, want) {
		t.Errorf("%d, %v", len(got), err)
	}
}
