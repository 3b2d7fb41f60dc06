package share

import (
	"bytes"
	"context"
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
	"github.com/penstock-io/penstock/transfer/job"
)

func FuzzRemoveWire(f *testing.F) {
	for _, names := range [][]statName{{{"a", Tag{}}}, {{"a/b", Tag{1}}, {strings.Repeat("x", MaxName), Tag{2}}}} {
		b, _ := appendNames([]byte{flagRemoveDry}, names)
		f.Add(b, 1)
	}
	f.Add(append([]byte("\x00\xffa"), make([]byte, 16)...), 2)
	refused := removeAnswer{err: control.Errorf(control.NotFound, "no")}
	f.Add(refused.append((&removeAnswer{size: 7}).append(nil)), 2)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		if dry, names, err := parseRemove(b); err == nil {
			again := []byte{0}
			if dry {
				again[0] = flagRemoveDry
			}
			if again, n := appendNames(again, names); n == len(names) && !bytes.Equal(again, b) {
				t.Fatalf("%x is read as %v, %v", b, dry, names)
			}
		}
		answers, err := parseRemoveAnswers(b, n)
		if err != nil {
			return
		}
		var again []byte
		for _, a := range answers {
			again = a.append(again)
		}
		if len(answers) > n || !bytes.Equal(again, b) {
			t.Fatalf("%x is read as %d answers, %+v", b, n, answers)
		}
	})
}

// remove removes one file, or asks whether it would be removed.
func remove(c Conn, name string, tag Tag, dry bool) error {
	return Remove(context.Background(), c, []Entry{{Name: name, Tag: tag}}, RemoveOptions{DryRun: dry})
}

func gone(t *testing.T, p string) {
	t.Helper()
	if _, err := os.Lstat(p); err == nil {
		t.Errorf("%s is there", p)
	}
}

// TestRemove removes files: their names are free at once, empty directories go, the root and what
// is in use stay, and a mirror follows.
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
	if err := remove(s.c, "a/b/one", Tag{}, true); err != nil {
		t.Error(err)
	}
	same(t, filepath.Join(root, "a/b/one"), []byte("a/b/one"))
	for _, n := range []string{"a/b/one", "dir/three", "top"} {
		e, err := Find(ctx, s.c, n)
		if err != nil {
			t.Fatal(err)
		}
		if err := remove(s.c, n, e.Tag, false); err != nil {
			t.Errorf("%s: %v", n, err)
		}
		if _, err := Find(ctx, s.c, n); !errors.Is(err, control.NotFound) {
			t.Errorf("%s is found: %v", n, err)
		}
		for _, tag := range []Tag{{}, e.Tag} {
			for _, dry := range []bool{true, false} {
				if err := remove(s.c, n, tag, dry); !errors.Is(err, control.NotFound) {
					t.Errorf("%s is removed again: %v", n, err)
				}
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
		if err := remove(s.c, n, Tag{}, false); !errors.Is(err, control.NotFound) {
			t.Errorf("%s: %v", n, err)
		}
	}
	if err := remove(s.c, "a/two", Tag{}, false); err != nil {
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
		if err := remove(s.c, n, Tag{}, false); !errors.Is(err, ErrName) {
			t.Errorf("%q: %v", n, err)
		}
	}
	for _, b := range [][]byte{nil, {0}, {2, 1, 'a'}, {0, 255, 'a'}, {0, 1, 'a', 1},
		append([]byte{2, 1, 'a'}, make([]byte, 16)...),
		append([]byte{0, 1, 0xff}, make([]byte, 16)...), append([]byte{0, 0}, make([]byte, 16)...)} {
		if _, err := s.peer.Call(ctx, removeService, b); !errors.Is(err, control.BadRequest) {
			t.Errorf("%x: %v", b, err)
		}
	}
}

// TestRemoveNeedsRemovable asks shares that permit no removal: the right write and
// Options.Removable are needed, and MayRemove agrees.
func TestRemoveNeedsRemovable(t *testing.T) {
	ctx := testCtx(t)
	for _, x := range []struct {
		rights identity.Rights
		o      Options
		want   string
	}{
		{identity.All, Options{}, "lets no peer remove"},
		{identity.All, Options{Writable: true}, "penstock serve --removable"},
		{identity.Read | identity.List, Options{Writable: true, Removable: true}, "on this node, not write"},
		{identity.All, Options{Writable: true, Removable: true, MayRemove: func(_ *transfer.Peer, name string) error {
			return fmt.Errorf("%s is kept", name)
		}}, "f is kept"},
		{identity.Write | identity.List, Options{Writable: true, Removable: true}, ""},
		{identity.Write | identity.Read, Options{Writable: true, Removable: true}, ""},
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
		for _, dry := range []bool{true, false} {
			err := remove(Over(p), "f", Tag{}, dry)
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
	for _, dry := range []bool{true, false} {
		if err := remove(s.c, "f", e.Tag, dry); !errors.Is(err, ErrChanged) {
			t.Error(err)
		}
	}
	same(t, file, []byte("new"))
	if err := remove(s.c, "f", Tag{}, false); err != nil {
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
	if err := errors.Join(os.Symlink("real", filepath.Join(root, "linked")),
		os.Symlink("real/x", filepath.Join(root, "l"))); err != nil {
		t.Fatal(err)
	}
	s := serve(t, Options{Root: root, Writable: true, Removable: true, Tensors: true, FollowLinks: true})
	for name, want := range map[string]string{
		"real/m.safetensors/model.layers.0001.weight": `a tensor in the file "real/m.safetensors"`,
		"l":        "l is a symbolic link",
		"linked/x": "linked is a symbolic link",
	} {
		for _, dry := range []bool{true, false} {
			if err := remove(s.c, name, Tag{}, dry); !errors.Is(err, control.BadRequest) ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, expected %q", name, err, want)
			}
		}
	}
	same(t, filepath.Join(root, "real/x"), []byte("x"))
	for _, n := range []string{"real/x", "real/m.safetensors"} {
		if err := remove(s.c, n, Tag{}, false); err != nil {
			t.Error(err)
		}
		es, err := List(ctx, s.c, "") // the names that led to it are gone, too
		if err != nil || slices.ContainsFunc(es, func(e Entry) bool {
			return e.Name == "l" || strings.HasSuffix(e.Name, filepath.Base(n))
		}) {
			t.Errorf("after %s: %v, %v", n, es, err)
		}
	}
	gone(t, filepath.Join(root, "real"))
	if _, err := os.Lstat(filepath.Join(root, "linked")); err != nil {
		t.Error(err)
	}

	s = serve(t, Options{Root: root, Writable: true, Removable: true})
	for _, n := range []string{"l", "linked", "linked/x"} {
		if err := remove(s.c, n, Tag{}, false); !errors.Is(err, control.NotFound) {
			t.Errorf("%s: %v", n, err)
		}
	}
	only(t, root, stagingDir, "l", "linked")
}

// TestRemoveDuringUpload refuses a name that an upload is about to take, and keeps the directory of
// another; a stuck one gives way.
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
		if err := remove(s.c, "d/x", Tag{}, dry); !errors.Is(err, ErrBusy) {
			t.Error(err)
		}
	}
	same(t, filepath.Join(root, "d/x"), []byte("old"))
	for _, n := range []string{"d/e/z", "d/y"} {
		if err := remove(s.c, n, Tag{}, false); err != nil {
			t.Error(err)
		}
	}
	gone(t, filepath.Join(root, "d/e"))
	s.uploads.mu.Lock()
	s.uploads.idle = 0
	x := s.uploads.active["d/x"]
	s.uploads.mu.Unlock()
	if err := remove(s.c, "d/x", Tag{}, false); !errors.Is(err, ErrBusy) {
		t.Error(err)
	}
	<-x.over
	if err := remove(s.c, "d/x", Tag{}, false); err != nil {
		t.Error(err)
	}
	only(t, filepath.Join(root, "d")) // the upload of d/new needs it
}

// TestRemoveMany removes more files than one call takes: each has its own answer, in their order,
// and what is refused keeps no other one.
func TestRemoveMany(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	const n = 1500
	var files []Entry
	for i := range n {
		name := fmt.Sprintf("d%d/%04d", i/10, i)
		write(t, filepath.Join(root, name), make([]byte, i))
		files = append(files, Entry{Name: name})
	}
	long := strings.Repeat("because ", 2*maxReason/8)
	s := serve(t, Options{Root: root, Writable: true, Removable: true,
		MayRemove: func(_ *transfer.Peer, name string) error {
			if strings.HasSuffix(name, "7") {
				return errors.New(long)
			}
			return nil
		}})
	files[3].Tag, files[5].Name = Tag{1}, "\xff"
	for _, dry := range []bool{true, false} {
		told := 0
		err := Remove(ctx, s.c, files, RemoveOptions{DryRun: dry, OnFile: func(e Entry, err error) {
			i := told - 1 // the name that is none comes first
			if told == 0 {
				i = 5
			} else if told > 5 {
				i = told
			}
			told++
			want := error(nil)
			switch {
			case i == 5:
				want = ErrName
			case i == 3:
				want = ErrChanged
			case i%10 == 7:
				want = ErrRefused
			}
			if e.Name != files[i].Name || !errors.Is(err, want) || err == nil && e.Size != uint64(i) {
				t.Fatalf("%d: %+v, %v, expected %v of %q", i, e, err, want, files[i].Name)
			}
		}})
		if told != n || !errors.Is(err, ErrName) ||
			!strings.Contains(err.Error(), "152 of 1500 files are not removed") {
			t.Errorf("%d told, %v", told, err)
		}
		if left := s.Snapshot().Files; dry && left != n || !dry && left != 152 {
			t.Errorf("%d files are left", left)
		}
	}
	only(t, filepath.Join(root, "d0"), "0003", "0005", "0007")
	only(t, filepath.Join(root, "d1"), "0017")
	for i := range files {
		if files[i].Name = fmt.Sprintf("d%d/%04d", i/10, i); i%10 == 7 || i == 3 || i == 5 {
			same(t, filepath.Join(root, files[i].Name), make([]byte, i))
		}
	}
}

// TestRemoveAnswerLost loses the connection when the file is gone: the next attempt over the link
// finds nothing, and that is success.
func TestRemoveAnswerLost(t *testing.T) {
	root := t.TempDir()
	for _, n := range []string{"f", "g"} {
		write(t, filepath.Join(root, n), []byte("x"))
	}
	cut := func() {}
	s := serve(t, Options{Root: root, Writable: true, Removable: true, OnRemove: func(r Removed) {
		if r.Name == "g" {
			cut()
		}
	}})
	l, proxy := cutLink(t, s, job.Retry{Attempts: 20, Total: time.Minute})
	cut = proxy.Cut
	var told []string
	err := Remove(testCtx(t), OverLink(l), []Entry{{Name: "f"}, {Name: "g"}},
		RemoveOptions{OnFile: func(e Entry, err error) {
			told = append(told, fmt.Sprint(e.Name, err))
		}})
	if err != nil || !slices.Equal(told, []string{"f<nil>", "g<nil>"}) {
		t.Errorf("%q, %v", told, err)
	}
	only(t, root, stagingDir)
	if err := remove(OverLink(l), "f", Tag{}, false); !errors.Is(err, control.NotFound) {
		t.Error(err)
	}
}

// TestRemovalErrors says by which errors the caller knows why a file stays.
func TestRemovalErrors(t *testing.T) {
	for _, c := range []struct{ here, there error }{
		{&fs.PathError{Op: "unlinkat", Path: "f", Err: fs.ErrPermission}, ErrRefused},
		{&fs.PathError{Op: "lstat", Path: "f", Err: fs.ErrNotExist}, control.NotFound},
		{fmt.Errorf("%w: f", ErrChanged), ErrChanged}, {fmt.Errorf("%w: f", ErrBusy), ErrBusy},
		{ErrClosed, control.Shutdown}, {errors.New("x"), control.Internal},
	} {
		if err := removalError(removeRefusal(c.here)); !errors.Is(err, c.there) {
			t.Errorf("%v is told as %v, expected %v", c.here, err, c.there)
		}
	}
}

// TestRemoveTellsWriterNothing has a peer that may only write ask what would be removed, by names
// and by contents, and remove what is there: it does not learn what there is.
func TestRemoveTellsWriterNothing(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	write(t, filepath.Join(root, "f"), []byte("12345"))
	write(t, filepath.Join(root, "a.npy"),
		[]byte("\x93NUMPY\x01\x00\x46\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }            "+
			"\nabcdefgh"))
	n := testNode(t, transfer.Options{Name: "server", Anonymous: identity.Write, Listen: []string{"tcp://127.0.0.1:0"}})
	s, err := Serve(ctx, n, Options{Root: root, Writable: true, Removable: true, Tensors: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p, err := testNode(t, transfer.Options{Name: "client"}).Dial(ctx, n.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	c := Over(p)
	said := map[string]bool{}
	for _, name := range []string{"f", "none", "a.npy/array"} {
		for _, err := range []error{remove(c, name, Tag{}, true), remove(c, name, Tag{1}, true),
			remove(c, name, Tag{1}, false)} {
			if !errors.Is(err, ErrRefused) {
				t.Errorf("%s: %v", name, err)
			} else {
				said[err.Error()] = true
			}
		}
	}
	if len(said) != 1 {
		t.Errorf("the answers differ: %v", said)
	}
	if err := remove(c, "a.npy/array", Tag{}, false); !errors.Is(err, control.NotFound) {
		t.Errorf("a tensor: %v", err)
	}
	err = Remove(ctx, c, []Entry{{Name: "f"}}, RemoveOptions{OnFile: func(e Entry, err error) {
		if err != nil || e.Size != 0 {
			t.Errorf("%+v, %v", e, err)
		}
	}})
	if err != nil {
		t.Error(err)
	}
	gone(t, filepath.Join(root, "f"))
}
