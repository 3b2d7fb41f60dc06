package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
)

// begun begins an upload by hand.
func begun(t *testing.T, p *transfer.Peer, name string, size uint64) (beginAnswer, error) {
	t.Helper()
	r := beginRequest{token: token{1, name[0], byte(len(name))}, claim: claim{name, size, Tag{1}}}
	b, err := p.Call(testCtx(t), uploadService, r.append(nil))
	a, ok := parseBeginAnswer(b)
	if err == nil && (!ok || a.state != stateReady) {
		t.Fatalf("%x", b)
	}
	return a, err
}

// TestUploadTakesTheDiskInSteps has a peer announce a large file: it gets the disk in steps, not
// more than two ahead of what it has acknowledged, and none without asking.
func TestUploadTakesTheDiskInSteps(t *testing.T) {
	root := t.TempDir()
	s := serve(t, Options{Root: root, Writable: true})
	a, err := begun(t, s.peer, "x", 3*stepSize+5)
	if err != nil {
		t.Fatal(err)
	}
	call := func(b []byte) ([]byte, error) { return s.peer.Call(testCtx(t), uploadService, b) }
	taken := func(want int64) {
		t.Helper()
		fi, err := os.Stat(filepath.Join(root, stagingDir, partialBase(s.peer, "x")+PartialSuffix))
		if err != nil || fi.Size() != want {
			t.Errorf("%v bytes are taken, expected %d (%v)", fi.Size(), want, err)
		}
	}
	taken(0)
	for _, n := range []uint64{2, 3, 4, 1 << 60, ^uint64(0)} {
		if _, err := call(appendRoom(nil, a.id, n)); !errors.Is(err, control.BadRequest) {
			t.Errorf("step %d: %v", n, err)
		}
	}
	taken(0)
	// Bytes that the peer vouches for without room are not there, and summing them up does not kill
	// the process.
	if b, err := call(appendVerified(nil, a.id, stepSize)); err != nil || string(b) != string(make([]byte, 8)) {
		t.Errorf("%x, %v", b, err)
	}
	for n := range uint64(2) {
		for range 2 { // asked again it is the same
			if _, err := call(appendRoom(nil, a.id, n)); err != nil {
				t.Fatal(err)
			}
		}
	}
	taken(2 * stepSize)
	if _, err := call(appendRoom(nil, a.id, 2)); !errors.Is(err, control.BadRequest) {
		t.Errorf("a third step ahead: %v", err)
	}
	taken(2 * stepSize)
	exports := len(s.node.Snapshot().Exports)
	if _, err := call(appendVerified(nil, a.id, stepSize)); err != nil {
		t.Fatal(err)
	}
	if _, err := call(appendRoom(nil, a.id, 2)); err != nil {
		t.Error(err)
	}
	for ctx := testCtx(t); len(s.node.Snapshot().Exports) != exports; runtime.Gosched() {
		// the peer gets its answer before the step is revoked
		if ctx.Err() != nil {
			t.Fatal("the first step is acknowledged, and can still be written to")
		}
	}
	if _, err := call(appendRoom(nil, a.id, 0)); !errors.Is(err, control.BadRequest) {
		t.Errorf("a step that is acknowledged: %v", err)
	}
}

// TestUploadOfManySteps uploads a file in several steps, is interrupted in the middle of one, and
// goes on.
func TestUploadOfManySteps(t *testing.T) {
	ctx, root, file := testCtx(t), t.TempDir(), filepath.Join(t.TempDir(), "f")
	content := randomBytes(3, 2*stepSize+window+5)
	write(t, file, content)
	s := serve(t, Options{Root: root, Writable: true})
	partial := filepath.Join(root, stagingDir, partialBase(s.peer, "x")+PartialSuffix)
	stop := errors.New("enough")
	for _, end := range []uint64{stepSize + window, 1 << 40} {
		short, cancel := context.WithCancelCause(ctx)
		_, err := Upload(short, s.c, file, "x", UploadOptions{Progress: func(p Progress) {
			if fi, err := os.Stat(partial); err == nil && uint64(fi.Size()) > p.Bytes+2*stepSize {
				t.Errorf("at %d bytes %d are taken", p.Bytes, fi.Size())
			}
			if p.Bytes >= end {
				cancel(stop)
			}
		}})
		cancel(nil)
		if errors.Is(err, stop) != (end < 1<<40) {
			t.Fatal(err)
		}
	}
	same(t, filepath.Join(root, "x"), content)
	only(t, filepath.Join(root, stagingDir))
	if u, err := Upload(ctx, s.c, file, "y", UploadOptions{}); err != nil || u.Moved != uint64(len(content)) {
		t.Errorf("%+v, %v", u, err)
	}
}

// TestDiskFillsUpDuringUpload fills the disk while a file comes: the upload ends with an error
// before a byte is written to where no block is, what is there stays, and the upload goes on when
// there is room.
func TestDiskFillsUpDuringUpload(t *testing.T) {
	ctx, file := testCtx(t), filepath.Join(t.TempDir(), "f")
	content := randomBytes(4, stepSize+window)
	write(t, file, content)
	root := mounted(t, "tmpfs", "size=100m")
	s := serve(t, Options{Root: root, Writable: true, KeepFree: 8 << 20})
	filler := filepath.Join(root, "filler")
	_, err := Upload(ctx, s.c, file, "x", UploadOptions{Progress: func(p Progress) {
		if p.Bytes == window {
			write(t, filler, make([]byte, 24<<20))
		}
	}})
	e := (*PartialError)(nil)
	if !errors.Is(err, ErrNoSpace) || !errors.As(err, &e) || e.Good < window || e.Good > stepSize ||
		!strings.Contains(err.Error(), "KeepFree") {
		t.Fatalf("%v", err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if u, err := Upload(ctx, s.c, file, "x", UploadOptions{}); err != nil || u.Resumed != e.Good {
		t.Errorf("%+v, %v", u, err)
	}
	same(t, filepath.Join(root, "x"), content)
}

// TestUploadsKeepDiskFree uploads to a small disk: what would take from the part that stays free is
// refused at the beginning.
func TestUploadsKeepDiskFree(t *testing.T) {
	ctx, local := testCtx(t), t.TempDir()
	write(t, filepath.Join(local, "3"), make([]byte, 3<<20))
	write(t, filepath.Join(local, "6"), make([]byte, 6<<20))
	for _, c := range []struct {
		keep uint64
		file string
		want error
	}{{4 << 20, "3", nil}, {4 << 20, "6", ErrNoSpace}, {0, "6", nil}, {KeepNoneFree, "6", nil},
		{8 << 20, "3", ErrNoSpace}} {
		s := serve(t, Options{Root: mounted(t, "tmpfs", "size=8m"), Writable: true, KeepFree: c.keep})
		if _, err := begun(t, s.peer, "x", 6<<20); c.file == "6" && (err != nil) != (c.want != nil) {
			t.Errorf("%+v: begin: %v", c, err)
		}
		_, err := Upload(ctx, s.c, filepath.Join(local, c.file), "x", UploadOptions{})
		if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), "Options.KeepFree") {
			t.Errorf("%+v: %v", c, err)
		}
		s.Close()
	}
	for total, want := range map[uint64]uint64{0: 0, 8 << 20: 8 << 20 / 20, 100 << 30: 1 << 30} {
		if got := (&Options{}).keepFree(total); got != want {
			t.Errorf("of %d bytes %d stay free, expected %d", total, got, want)
		}
	}
}

// TestAnnouncedBytesCount has uploads announce more together than the share takes. One that does
// not come on gives way; saying again how far it is does not help it.
func TestAnnouncedBytesCount(t *testing.T) {
	s := serve(t, Options{Root: t.TempDir(), Writable: true, MaxBytes: 6000})
	a, err := begun(t, s.peer, "x", 5000)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := begun(t, s.peer, "yy", 2000); !errors.Is(err, control.OverBudget) {
		t.Errorf("beyond the bytes that the share takes: %v", err)
	}
	heard := func() time.Time {
		s.uploads.mu.Lock()
		defer s.uploads.mu.Unlock()
		return s.uploads.active["x"].heard
	}
	call := func(b []byte) {
		t.Helper()
		if _, err := s.peer.Call(testCtx(t), uploadService, b); err != nil {
			t.Fatal(err)
		}
	}
	was := heard()
	call(appendVerified(nil, a.id, 0))
	call(appendRoom(nil, a.id, 0))
	if _, err := begun(t, s.peer, "x", 5000); err != nil || heard() != was {
		t.Errorf("an upload that has got nothing has come on: %v", err)
	}
	call(appendVerified(nil, a.id, 5000))
	if heard() == was {
		t.Error("an upload that has got everything has not come on")
	}
	s.uploads.mu.Lock()
	s.uploads.idle = 0
	s.uploads.mu.Unlock()
	if _, err := begun(t, s.peer, "yy", 900); err != nil {
		t.Error(err)
	}
	if _, err := begun(t, s.peer, "zzz", 2000); !errors.Is(err, control.OverBudget) { // the bytes of x are on the disk
		t.Errorf("beyond the bytes that the share takes: %v", err)
	}
}

// TestNamesThatCannotBeServed uploads under names whose files the share would neither serve nor
// count.
func TestNamesThatCannotBeServed(t *testing.T) {
	ctx, root, file := testCtx(t), t.TempDir(), filepath.Join(t.TempDir(), "f")
	write(t, file, []byte("new"))
	write(t, filepath.Join(root, "ä"), []byte("old"))
	s := serve(t, Options{Root: root, Writable: true})
	deep := strings.Repeat("a/", maxDepth)
	if _, err := Upload(ctx, s.c, file, deep+"b/x", UploadOptions{}); !errors.Is(err, control.BadRequest) {
		t.Errorf("too deep: %v", err)
	}
	for _, name := range append(hostileNames[1:], ".x", "a/.x/b") {
		if len(name) > MaxName {
			continue // cannot be asked for
		}
		if _, err := begun(t, s.peer, name, 3); !errors.Is(err, control.BadRequest) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := Upload(ctx, s.c, file, "ä", UploadOptions{}); !errors.Is(err, ErrExists) {
		t.Errorf("a name that is not of ASCII alone: %v", err)
	}
	if _, err := Upload(ctx, s.c, file, deep+"x", UploadOptions{}); err != nil {
		t.Error(err)
	}
	if n := s.Snapshot(); n.Files != 2 || n.Bytes != 6 {
		t.Errorf("%+v", n)
	}
	// A file that is there and cannot be served counts all the same.
	s.mu.Lock()
	s.unserved["y"], s.unservedSum = 1<<20, 1<<20
	s.mu.Unlock()
	s.o.MaxBytes = 1 << 20
	if _, err := Upload(ctx, s.c, file, "z", UploadOptions{}); !errors.Is(err, ErrNoSpace) {
		t.Errorf("beside a large file that cannot be served: %v", err)
	}
	if err := s.Rescan(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := Upload(ctx, s.c, file, "z", UploadOptions{}); err != nil {
		t.Error(err)
	}
}

// TestAbandonedUploadsExpire leaves partial uploads behind: by default they are kept for a day, and
// then make room.
func TestAbandonedUploadsExpire(t *testing.T) {
	ctx := testCtx(t)
	for _, keep := range []time.Duration{0, time.Hour, KeepForever} {
		root := t.TempDir()
		s := serve(t, Options{Root: root, Writable: true, KeepPartial: keep, MaxBytes: 6000})
		staging := filepath.Join(root, stagingDir)
		leave := func(age time.Duration) {
			t.Helper()
			a, err := begun(t, s.peer, "x", 5000)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.peer.Call(ctx, uploadService, appendRoom(nil, a.id, 0)); err != nil && a.good == 0 {
				t.Fatal(err)
			}
			for _, q := range [][]byte{appendVerified(nil, a.id, 5000), appendEnd(nil, a.id)} {
				if _, err := s.peer.Call(ctx, uploadService, q); err != nil {
					t.Fatal(err)
				}
			}
			old := time.Now().Add(-age)
			for _, suffix := range []string{PartialSuffix, StateSuffix} {
				if err := os.Chtimes(filepath.Join(staging, partialBase(s.peer, "x")+suffix), old, old); err != nil {
					t.Fatal(err)
				}
			}
			s.uploads.mu.Lock()
			s.leavePartial(partialBase(s.peer, "x")) // as if it had ended then
			s.uploads.mu.Unlock()
		}
		limit := keep
		if keep == 0 {
			limit = 24 * time.Hour
		}
		if keep != KeepForever {
			leave(limit - time.Minute)
			if _, err := begun(t, s.peer, "yy", 2000); !errors.Is(err, control.OverBudget) {
				t.Errorf("%v: beside a partial upload that is kept: %v", keep, err)
			}
		}
		leave(limit + 1000*time.Hour)
		_, err := begun(t, s.peer, "yy", 2000)
		if keep == KeepForever && !errors.Is(err, control.OverBudget) || keep != KeepForever && err != nil {
			t.Errorf("%v: beside an old partial upload: %v", keep, err)
		}
	}
}

// TestModeStays replaces a file that only its owner may read by an upload, a fetch and a mirror.
func TestModeStays(t *testing.T) {
	ctx, root, local := testCtx(t), t.TempDir(), t.TempDir()
	file := filepath.Join(local, "f")
	write(t, file, []byte("new"))
	s := serve(t, Options{Root: root, Writable: true})
	mode := func(p string, want os.FileMode) {
		t.Helper()
		fi, err := os.Stat(p)
		if err != nil || fi.Mode().Perm() != want {
			t.Errorf("%s: mode %v, expected %v (%v)", p, fi.Mode().Perm(), want, err)
		}
	}
	write(t, filepath.Join(local, "plain"), nil)
	fi, err := os.Stat(filepath.Join(local, "plain"))
	if err != nil {
		t.Fatal(err)
	}
	usual := fi.Mode().Perm()
	for i, m := range []os.FileMode{0o600, 0o640, 0o400, 0o755} {
		name := fmt.Sprint("x", i)
		p := filepath.Join(root, name)
		if _, err := Upload(ctx, s.c, file, name, UploadOptions{}); err != nil {
			t.Fatal(err)
		}
		mode(p, usual)
		if err := os.Chmod(p, m); err != nil {
			t.Fatal(err)
		}
		if sys.EffectiveUID() == 0 {
			if err := os.Chown(p, 1234, 5678); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Upload(ctx, s.c, file, name, UploadOptions{Overwrite: true}); err != nil {
			t.Fatal(err)
		}
		mode(p, m)
		if fi, err := os.Stat(p); sys.EffectiveUID() == 0 &&
			(err != nil || sys.Identity(fi).UID != 1234 || sys.Identity(fi).GID != 5678) {
			t.Errorf("%s belongs to %+v (%v)", p, sys.Identity(fi), err)
		}
	}
	mode(filepath.Join(root, stagingDir), 0o700)
	// Until it is whole, too.
	write(t, filepath.Join(root, "large"), randomBytes(1, 2*window))
	out := filepath.Join(local, "out")
	write(t, out, []byte("secret"))
	if err := os.Chmod(out, 0o440); err != nil {
		t.Fatal(err)
	}
	if _, err := Fetch(ctx, s.c, "large", FetchOptions{Output: out, Overwrite: true, Progress: func(Progress) {
		mode(out+PartialSuffix, 0o600)
	}}); err != nil {
		t.Fatal(err)
	}
	mode(out, 0o440)
}

// TestStepsOutOfOrder has uploads ask for their second step first: the first one, which they ask
// for when nothing is free for it any more, does not come out of what stays free.
func TestStepsOutOfOrder(t *testing.T) {
	const keep = stepSize + 8<<20
	root := mounted(t, "tmpfs", "size=270m")
	s := serve(t, Options{Root: root, Writable: true, KeepFree: keep})
	var ids []uint64
	for _, name := range []string{"x", "yy"} {
		a, err := begun(t, s.peer, name, 2*stepSize)
		if errors.Is(err, control.OverBudget) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, a.id)
		if _, err := s.peer.Call(testCtx(t), uploadService, appendRoom(nil, a.id, 1)); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range ids {
		if _, err := s.peer.Call(testCtx(t), uploadService, appendRoom(nil, id, 0)); err != nil {
			t.Errorf("the first step of %d uploads: %v", len(ids), err)
		}
	}
	d, err := os.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if free, _, err := sys.DiskSpace(d); err != nil || free < keep {
		t.Errorf("%d bytes are free, expected at least %d (%v)", free, keep, err)
	}
}
