package share

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
)

func TestUpload(t *testing.T) {
	ctx, root, local := testCtx(t), t.TempDir(), t.TempDir()
	s := serve(t, Options{Root: root, Writable: true})
	for name, b := range map[string][]byte{"empty": {}, "a/b/small": []byte("hello"),
		" large. ": randomBytes(3, 2*window+chunkSize+7)} {
		file := filepath.Join(local, "f")
		write(t, file, b)
		var last Progress
		sent, err := Upload(ctx, s.c, file, name, UploadOptions{Progress: func(p Progress) { last = p }})
		if err != nil {
			t.Fatal(err)
		}
		if sent.Moved != uint64(len(b)) || sent.Resumed != 0 || last.Bytes != uint64(len(b)) {
			t.Errorf("%+v, %+v", sent, last)
		}
		p, _ := PathOf(name)
		same(t, filepath.Join(root, filepath.FromSlash(p)), b)
		e, err := Find(ctx, s.c, name)
		if err != nil || e.Size != uint64(len(b)) {
			t.Errorf("%+v, %v", e, err)
		}
		back := filepath.Join(t.TempDir(), "back")
		if _, err := Fetch(ctx, s.c, name, FetchOptions{Output: back}); err != nil {
			t.Fatal(err)
		}
		same(t, back, b)
	}
	only(t, filepath.Join(root, stagingDir))
	only(t, root, " large. ", stagingDir, "a", "empty")
	file := filepath.Join(local, "f")
	if _, err := Upload(ctx, s.c, file, "empty", UploadOptions{}); !errors.Is(err, ErrExists) {
		t.Errorf("over a file: %v", err)
	}
	if _, err := Upload(ctx, s.c, file, "a", UploadOptions{Overwrite: true}); !errors.Is(err, ErrExists) {
		t.Errorf("over a directory: %v", err)
	}
	if _, err := Upload(ctx, s.c, file, "empty/x", UploadOptions{}); err == nil {
		t.Error("below a file")
	}
	write(t, file, []byte("other"))
	if _, err := Upload(ctx, s.c, file, "empty", UploadOptions{Overwrite: true}); err != nil {
		t.Error(err)
	}
	same(t, filepath.Join(root, "empty"), []byte("other"))
	only(t, filepath.Join(root, stagingDir))
}

func TestUploadRefusals(t *testing.T) {
	ctx, local := testCtx(t), t.TempDir()
	file := filepath.Join(local, "f")
	write(t, file, make([]byte, 5000))
	refused := func(o Options, name string, want error) {
		t.Helper()
		o.Root = t.TempDir()
		write(t, filepath.Join(o.Root, "there"), make([]byte, 1000))
		s := serve(t, o)
		_, err := Upload(ctx, s.c, file, name, UploadOptions{})
		if !errors.Is(err, want) {
			t.Errorf("%+v: %v, expected %v", o, err, want)
		}
		if _, err := os.Lstat(filepath.Join(o.Root, "x")); err == nil {
			t.Errorf("%+v: the file is there", o)
		}
	}
	refused(Options{}, "x", ErrRefused)
	refused(Options{Writable: true, MaxBytes: 4999}, "x", ErrNoSpace)
	refused(Options{Writable: true, MaxBytes: 5999}, "x", ErrNoSpace)
	refused(Options{Writable: true, MaxFiles: 1}, "x", ErrNoSpace)
	refused(Options{Writable: true, MayUpload: func(*transfer.Peer, string, uint64) error {
		return errors.New("not you")
	}}, "x", ErrRefused)
	refused(Options{Writable: true}, "", ErrName)
	for _, name := range []string{"\xff", "../x", "a//b", "a/../b", "/x", "x.partial", stagingDir + "/x", "a\nb"} {
		refused(Options{Writable: true}, name, ErrName)
	}
	refused(Options{Writable: true}, "a/.x/b", control.BadRequest)
	ok := Options{Root: t.TempDir(), Writable: true, MaxBytes: 6000, MaxFiles: 2}
	write(t, filepath.Join(ok.Root, "there"), make([]byte, 1000))
	s := serve(t, ok)
	if _, err := Upload(ctx, s.c, file, "x", UploadOptions{}); err != nil {
		t.Error(err)
	}
}

func TestUploadOverLinksThatLeadOut(t *testing.T) {
	ctx, root, out, local := testCtx(t), t.TempDir(), t.TempDir(), t.TempDir()
	file := filepath.Join(local, "f")
	write(t, file, []byte("new"))
	write(t, filepath.Join(out, "victim"), []byte("old"))
	if err := errors.Join(os.Symlink(out, filepath.Join(root, "dir")),
		os.Symlink(filepath.Join(out, "victim"), filepath.Join(root, "file")),
		os.Symlink("sub", filepath.Join(root, "inside")), os.Mkdir(filepath.Join(root, "sub"), 0o755)); err != nil {
		t.Fatal(err)
	}
	s := serve(t, Options{Root: root, Writable: true})
	for _, name := range []string{"dir/victim", "dir/new", "file", "inside/x"} {
		if _, err := Upload(ctx, s.c, file, name, UploadOptions{Overwrite: true}); err == nil {
			t.Errorf("%s: uploaded", name)
		}
	}
	same(t, filepath.Join(out, "victim"), []byte("old"))
	only(t, out, "victim")
	only(t, filepath.Join(root, "sub"))
	// The staging directory itself is a link.
	if err := errors.Join(os.RemoveAll(filepath.Join(root, stagingDir)),
		os.Symlink(out, filepath.Join(root, stagingDir))); err != nil {
		t.Fatal(err)
	}
	if _, err := Upload(ctx, s.c, file, "y", UploadOptions{}); err == nil {
		t.Error("uploaded through a staging directory that is a link")
	}
	only(t, out, "victim")
}

// An upload ends while its commit waits until the peer cannot write to the file any more: its place
// is not free before that, or the peer could write to the file of the next upload.
func TestUploadEndedWhileItIsFenced(t *testing.T) {
	ctx, file := testCtx(t), filepath.Join(t.TempDir(), "f")
	write(t, file, randomBytes(9, 100_000))
	s := serve(t, Options{Root: t.TempDir(), Writable: true})
	s.node.AcceptQueues("")
	theirs, err := s.peer.OpenQueue(ctx, transfer.QueueOptions{Path: "tcp"})
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	q, err := s.node.AcceptQueue(ctx, "") // it is not polled: by it the peer may write as long as it is not
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	failed := make(chan error, 1)
	go func() {
		_, err := Upload(ctx, s.c, file, "x", UploadOptions{})
		failed <- err
	}()
	var u *upload
	for fenced := false; !fenced; runtime.Gosched() {
		if ctx.Err() != nil {
			t.Fatal("the commit never came")
		}
		s.uploads.mu.Lock()
		u = s.uploads.active["x"]
		s.uploads.mu.Unlock()
		if u == nil {
			continue
		}
		u.mu.Lock()
		fenced = u.p == nil && len(u.commit) == 0 && isClosed(u.ready)
		u.mu.Unlock()
	}
	u.cancel(ErrGaveUp)
	select {
	case <-u.over:
		t.Error("nothing is left of the upload, although its peer may still write")
	case <-time.After(200 * time.Millisecond): // what should not happen, does not happen in this time
	}
	var events [4]path.Event
	for !isClosed(u.over) {
		q.Poll(events[:])
		if ctx.Err() != nil {
			t.Fatal("the upload does not end")
		}
	}
	if err := <-failed; err == nil {
		t.Error("the upload succeeded")
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
