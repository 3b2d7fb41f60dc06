package share

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
)

func FuzzRemoveWire(f *testing.F) {
	for _, r := range []removeRequest{{name: "a"}, {dry: true, name: "a/b", tag: Tag{1}}, {name: strings.Repeat("x", MaxName), tag: Tag{2}}} {
		f.Add(r.append(nil))
	}
	f.Add([]byte("\x00\xffa"))
	f.Add(append([]byte("\x00\x01a"), make([]byte, 16)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := parseRemove(b); err == nil && !bytes.Equal(r.append(nil), b) {
			t.Fatalf("%x is read as %+v", b, r)
		}
	})
}

func gone(t *testing.T, p string) {
	t.Helper()
	if _, err := os.Lstat(p); err == nil {
		t.Errorf("%s is there", p)
	}
}

// TestRemove removes files: their names are free at once, empty directories go, the root and what is in use stay, and a mirror follows.
func TestRemove(t *testing.T) {
	ctx, root, dst := testCtx(t), t.TempDir(), t.TempDir()
	for _, n := range []string{"top", "a/b/one", "a/two", "dir/.hidden", "dir/three"} {
		write(t, filepath.Join(root, n), []byte(n))
	}
	var removed []Removed
	var mu sync.Mutex
	s := serve(t, Options{Root: root, Writable: true, Removable: true, OnRemove: func(r Removed) {
		mu.Lock()
		removed = append(removed, r)
		mu.Unlock()
	}})
	if m, err := Mirror(ctx, s.c, dst, MirrorOptions{}); err != nil || m.Fetched != 4 {
		t.Fatalf("%+v, %v", m, err)
	}
	if err := Remove(ctx, s.c, "a/b/one", RemoveOptions{DryRun: true}); err != nil {
		t.Error(err)
	}
	same(t, filepath.Join(root, "a/b/one"), []byte("a/b/one"))
	for _, n := range []string{"a/b/one", "dir/three", "top"} {
		e, err := Find(ctx, s.c, n)
		if err != nil {
			t.Fatal(err)
		}
		if err := Remove(ctx, s.c, n, RemoveOptions{Tag: e.Tag}); err != nil {
			t.Errorf("%s: %v", n, err)
		}
		if _, err := Find(ctx, s.c, n); !errors.Is(err, control.NotFound) {
			t.Errorf("%s is found: %v", n, err)
		}
		for _, o := range []RemoveOptions{{}, {DryRun: true}, {Tag: e.Tag}} {
			if err := Remove(ctx, s.c, n, o); !errors.Is(err, control.NotFound) {
				t.Errorf("%s is removed again: %v", n, err)
			}
		}
	}
	if es, err := List(ctx, s.c, ""); err != nil || len(es) != 1 || es[0].Name != "a/two" {
		t.Errorf("%v, %v", es, err)
	}
	gone(t, filepath.Join(root, "a/b"))
	same(t, filepath.Join(root, "dir/.hidden"), []byte("dir/.hidden"))
	m, err := Mirror(ctx, s.c, dst, MirrorOptions{Delete: true})
	if err != nil || m.Deleted != 3 || m.Skipped != 1 {
		t.Errorf("mirror: %+v, %v", m, err)
	}
	gone(t, filepath.Join(dst, "top"))
	for _, n := range []string{"a", "dir", "nothing", ".penstock-uploads", "../x", "dir/.hidden"} {
		if err := Remove(ctx, s.c, n, RemoveOptions{}); !errors.Is(err, control.NotFound) {
			t.Errorf("%s: %v", n, err)
		}
	}
	if err := Remove(ctx, s.c, "a/two", RemoveOptions{}); err != nil {
		t.Error(err)
	}
	if fi, err := os.Stat(root); err != nil || !fi.IsDir() {
		t.Error(err)
	}
	if n := s.Snapshot(); n.Files != 0 || n.Bytes != 0 || !n.Complete {
		t.Errorf("%+v", n)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(removed) != 4 || removed[0].Name != "a/b/one" || removed[0].Size != 7 || removed[0].Peer.Name() != "client" {
		t.Errorf("%+v", removed)
	}
	for _, n := range []string{"", strings.Repeat("x", MaxName+1), "\xff"} {
		if err := Remove(ctx, s.c, n, RemoveOptions{}); !errors.Is(err, ErrName) {
			t.Errorf("%q: %v", n, err)
		}
	}
	for _, b := range [][]byte{nil, {0}, {0, 0}, {2, 1, 'a'}, {0, 255, 'a'}, {0, 1, 'a', 1}, append([]byte{0, 1, 'a'}, make([]byte, 16)...)} {
		if _, err := s.peer.Call(ctx, removeService, b); !errors.Is(err, control.BadRequest) {
			t.Errorf("%x: %v", b, err)
		}
	}
}

// TestRemoveNeedsRemovable asks shares that permit no removal: the right write and Options.Removable are needed, and MayRemove agrees.
func TestRemoveNeedsRemovable(t *testing.T) {
	ctx := testCtx(t)
	for _, x := range []struct {
		rights identity.Rights
		o      Options
		want   string
	}{
		{identity.All, Options{}, "lets no peer remove"},
		{identity.All, Options{Writable: true}, "penstock serve --removable"},
		{identity.Read | identity.List, Options{Writable: true, Removable: true}, "does not let you write"},
		{identity.All, Options{Writable: true, Removable: true, MayRemove: func(_ *transfer.Peer, name string) error { return fmt.Errorf("%s is kept", name) }}, "f is kept"},
		{identity.Write, Options{Writable: true, Removable: true}, ""},
	} {
		x.o.Root = t.TempDir()
		file := filepath.Join(x.o.Root, "f")
		write(t, file, []byte("x"))
		n := testNode(t, transfer.Options{Name: "server", Anonymous: x.rights, Listen: []string{"tcp://127.0.0.1:0"}})
		s, err := Serve(ctx, n, x.o)
		if err != nil {
			t.Fatal(err)
		}
		p, err := testNode(t, transfer.Options{Name: "client"}).Dial(ctx, n.Addrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range []RemoveOptions{{DryRun: true}, {}} {
			err := Remove(ctx, Over(p), "f", o)
			if x.want == "" {
				if err != nil {
					t.Error(err)
				}
			} else if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), x.want) {
				t.Errorf("%v, expected %q", err, x.want)
			}
		}
		if x.want == "" {
			gone(t, file)
		} else {
			same(t, file, []byte("x"))
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestRemoveOfAnotherContent keeps a file that was replaced since the caller saw it.
func TestRemoveOfAnotherContent(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	file := filepath.Join(root, "f")
	write(t, file, []byte("old"))
	s := serve(t, Options{Root: root, Writable: true, Removable: true})
	e, err := Find(ctx, s.c, "f")
	if err != nil {
		t.Fatal(err)
	}
	replaceFile(t, file, []byte("new"))
	for _, o := range []RemoveOptions{{Tag: e.Tag}, {Tag: e.Tag, DryRun: true}} {
		if err := Remove(ctx, s.c, "f", o); !errors.Is(err, ErrChanged) {
			t.Error(err)
		}
	}
	same(t, file, []byte("new"))
	if err := Remove(ctx, s.c, "f", RemoveOptions{}); err != nil {
		t.Error(err)
	}
	gone(t, file)
}

// TestRemoveKeepsTensorsAndLinks refuses a part of a file, and what a link leads to.
func TestRemoveKeepsTensorsAndLinks(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	model := filepath.Join(root, "real/m.safetensors")
	write(t, filepath.Join(root, "real/x"), []byte("x"))
	writeTensors(t, model, 2)
	if err := errors.Join(os.Symlink("real", filepath.Join(root, "linked")), os.Symlink("real/x", filepath.Join(root, "l"))); err != nil {
		t.Fatal(err)
	}
	s := serve(t, Options{Root: root, Writable: true, Removable: true, Tensors: true, FollowLinks: true})
	for name, want := range map[string]string{
		"real/m.safetensors/model.layers.0001.weight": `a tensor in the file "real/m.safetensors"`,
		"l":        "l is a symbolic link",
		"linked/x": "linked is a symbolic link",
	} {
		for _, dry := range []bool{true, false} {
			if err := Remove(ctx, s.c, name, RemoveOptions{DryRun: dry}); !errors.Is(err, control.BadRequest) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, expected %q", name, err, want)
			}
		}
	}
	same(t, filepath.Join(root, "real/x"), []byte("x"))
	for _, n := range []string{"real/x", "real/m.safetensors"} {
		if err := Remove(ctx, s.c, n, RemoveOptions{}); err != nil {
			t.Error(err)
		}
		es, err := List(ctx, s.c, "") // the names that led to it are gone, too
		if err != nil || slices.ContainsFunc(es, func(e Entry) bool { return e.Name == "l" || strings.HasSuffix(e.Name, filepath.Base(n)) }) {
			t.Errorf("after %s: %v, %v", n, es, err)
		}
	}
	gone(t, filepath.Join(root, "real"))
	if _, err := os.Lstat(filepath.Join(root, "linked")); err != nil {
		t.Error(err)
	}

	s = serve(t, Options{Root: root, Writable: true, Removable: true})
	for _, n := range []string{"l", "linked", "linked/x"} {
		if err := Remove(ctx, s.c, n, RemoveOptions{}); !errors.Is(err, control.NotFound) {
			t.Errorf("%s: %v", n, err)
		}
	}
	only(t, root, stagingDir, "l", "linked")
}

// TestRemoveDuringUpload refuses a name that an upload is about to take, and keeps the directory of another; a stuck one gives way.
func TestRemoveDuringUpload(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	for _, n := range []string{"d/x", "d/y", "d/e/z"} {
		write(t, filepath.Join(root, n), []byte("old"))
	}
	s := serve(t, Options{Root: root, Writable: true, Removable: true})
	uploader, err := testNode(t, transfer.Options{Name: "uploader"}).Dial(ctx, s.node.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range []string{"d/x", "d/new"} {
		r := beginRequest{overwrite: true, token: token{byte(i), 1}, claim: claim{n, 1000, Tag{1}}}
		if _, err := uploader.Call(ctx, uploadService, r.append(nil)); err != nil {
			t.Fatal(err)
		}
	}
	for _, dry := range []bool{true, false} {
		if err := Remove(ctx, s.c, "d/x", RemoveOptions{DryRun: dry}); !errors.Is(err, ErrBusy) {
			t.Error(err)
		}
	}
	same(t, filepath.Join(root, "d/x"), []byte("old"))
	for _, n := range []string{"d/e/z", "d/y"} {
		if err := Remove(ctx, s.c, n, RemoveOptions{}); err != nil {
			t.Error(err)
		}
	}
	gone(t, filepath.Join(root, "d/e"))
	s.uploads.mu.Lock()
	s.uploads.idle = 0
	x := s.uploads.active["d/x"]
	s.uploads.mu.Unlock()
	if err := Remove(ctx, s.c, "d/x", RemoveOptions{}); !errors.Is(err, ErrBusy) {
		t.Error(err)
	}
	<-x.over
	if err := Remove(ctx, s.c, "d/x", RemoveOptions{}); err != nil {
		t.Error(err)
	}
	only(t, filepath.Join(root, "d")) // the upload of d/new needs it
}

// TestRemoveAnswerLost loses the connection when the file is gone: the next attempt over the link finds nothing, and that is success.
func TestRemoveAnswerLost(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	write(t, filepath.Join(root, "f"), []byte("x"))
	cut := func() {}
	s := serve(t, Options{Root: root, Writable: true, Removable: true, OnRemove: func(Removed) { cut() }})
	l, proxy := cutLink(t, s, transfer.Retry{Attempts: 20, Total: time.Minute})
	cut = proxy.Cut
	if err := Remove(ctx, OverLink(l), "f", RemoveOptions{}); err != nil {
		t.Error(err)
	}
	gone(t, filepath.Join(root, "f"))
	if err := Remove(ctx, OverLink(l), "f", RemoveOptions{}); !errors.Is(err, control.NotFound) {
		t.Error(err)
	}
}

// TestRemovalErrors says by which errors the caller knows why a file stays.
func TestRemovalErrors(t *testing.T) {
	for _, c := range []struct{ here, there error }{
		{&fs.PathError{Op: "unlinkat", Path: "f", Err: fs.ErrPermission}, ErrRefused},
		{&fs.PathError{Op: "lstat", Path: "f", Err: fs.ErrNotExist}, control.NotFound},
		{fmt.Errorf("%w: f", ErrChanged), ErrChanged}, {fmt.Errorf("%w: f", ErrBusy), ErrBusy}, {ErrClosed, control.Shutdown}, {errors.New("x"), control.Internal},
	} {
		if err := toldOfRemoval(removeRefusal(c.here)); !errors.Is(err, c.there) {
			t.Errorf("%v is told as %v, expected %v", c.here, err, c.there)
		}
	}
}
