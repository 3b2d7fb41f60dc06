package share

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
)

// mkdir asks a share for a directory.
func mkdir(t *testing.T, p *transfer.Peer, name string) error {
	t.Helper()
	_, err := p.Call(testCtx(t), dirsService, (&dirsRequest{op: opDirsMake, prefixOrName: name}).append(nil))
	return err
}

// countedDirs fails unless a share counts the directories that are there, and so many that are to
// come.
func countedDirs(t *testing.T, s *serving, coming int) {
	t.Helper()
	s.mu.Lock()
	there, n := slices.Sorted(maps.Keys(s.dirCount.there)), len(s.dirCount.coming)
	s.mu.Unlock()
	if want := dirsIn(t, s.o.Root); !slices.Equal(there, slices.Sorted(slices.Values(want))) || n != coming {
		t.Errorf("%q are counted and %d to come, expected %q and %d", there, n, want, coming)
	}
}

// TestDirectoriesCountAsFiles: each directory takes the place of a file, whether a peer asks for
// it, or an upload needs it, and as long as that is under way.
func TestDirectoriesCountAsFiles(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	write(t, filepath.Join(root, "old", "f"), nil)
	s := serve(t, Options{Root: root, Writable: true, Removable: true, MaxFiles: 10})
	full := func(what string) {
		t.Helper()
		if err := mkdir(t, s.peer, "more"); !errors.Is(err, control.OverBudget) {
			t.Errorf("%s, a directory: %v", what, err)
		}
		if got, err := smallBatch(t, s.peer, &smallRequest{token: token{9}}, []string{"more"}, "1"); err != nil ||
			got[0] != smallNot {
			t.Errorf("%s, a small file: %v, %v", what, got, err)
		}
		if _, err := begun(t, s.peer, "more", 1); !errors.Is(err, control.OverBudget) {
			t.Errorf("%s, an upload: %v", what, err)
		}
	}
	if err := mkdir(t, s.peer, "a/b/c"); err != nil {
		t.Fatal(err)
	}
	countedDirs(t, s, 0)
	if err := mkdir(t, s.peer, "a/1/2/3/4/5"); err != nil {
		t.Fatal(err)
	}
	full("with 9 directories and a file")
	countedDirs(t, s, 0)
	if err := os.RemoveAll(filepath.Join(root, "a")); err != nil {
		t.Fatal(err)
	}
	if err := s.Rescan(ctx); err != nil {
		t.Fatal(err)
	}
	countedDirs(t, s, 0)
	// An upload that needs directories has them counted from its beginning on, each once, until it
	// is over.
	a, err := begun(t, s.peer, "u/v/w/x", 5)
	if err != nil {
		t.Fatal(err)
	}
	b, err := begun(t, s.peer, "u/v/y", 5)
	if err != nil {
		t.Fatal(err)
	}
	countedDirs(t, s, 3)
	if err := mkdir(t, s.peer, "u/v/1/2/3/4"); !errors.Is(err, control.OverBudget) {
		t.Errorf("beside uploads under way: %v", err)
	}
	if err := mkdir(t, s.peer, "u/v/1/2/3"); err != nil {
		t.Error(err)
	}
	full("with uploads under way")
	countedDirs(t, s, 1)
	for _, id := range []uint64{a.id, b.id} {
		if _, err := s.peer.Call(ctx, uploadService, appendEnd(nil, id)); err != nil {
			t.Fatal(err)
		}
	}
	countedDirs(t, s, 0)
	// Batches and whole uploads make directories, and removals take them away.
	if got, err := smallBatch(t, s.peer, &smallRequest{token: token{2}}, []string{"p/q/r", "p/s/t"}, "1",
		"2"); err != nil || string(got) != "\x01\x00" {
		// 8 are there
		t.Errorf("%v, %v", got, err)
	}
	countedDirs(t, s, 0)
	if err := remove(s.c, "p/q/r", Tag{}, false); err != nil {
		t.Error(err)
	}
	countedDirs(t, s, 0)
	file := filepath.Join(t.TempDir(), "f")
	write(t, file, []byte("1"))
	if _, err := Upload(ctx, s.c, file, "p/q", UploadOptions{}); err != nil {
		t.Error(err)
	}
	countedDirs(t, s, 0)
	if err := s.Rescan(ctx); err != nil {
		t.Fatal(err)
	}
	countedDirs(t, s, 0)
}

// TestDirectoriesTakeBytes: a directory takes a block of the bytes that a share takes, and of the
// disk that stays free.
func TestDirectoriesTakeBytes(t *testing.T) {
	s := serve(t, Options{Root: t.TempDir(), Writable: true, MaxBytes: 4*dirBytes + 10, KeepFree: 1000})
	for i := range 3 {
		if err := mkdir(t, s.peer, fmt.Sprint("d", i)); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := smallBatch(t, s.peer, &smallRequest{token: token{1}}, []string{"n/x", "n/y"}, "0123456789",
		"1"); err != nil || string(got) != "\x01\x00" {
		t.Errorf("%v, %v", got, err)
	}
	if err := mkdir(t, s.peer, "more"); !errors.Is(err, control.OverBudget) {
		t.Errorf("above MaxBytes: %v", err)
	}
	s.o.MaxBytes = 0
	s.uploads.mu.Lock()
	defer s.uploads.mu.Unlock()
	for free, want := range map[uint64]error{1000 + 2*dirBytes: nil, 999 + 2*dirBytes: ErrNoSpace} {
		if err := s.quota(disk{free, 1 << 40}, "new/er/.", 0, 0, ""); !errors.Is(err, want) {
			t.Errorf("%d bytes are free: %v", free, err)
		}
	}
}

// TestDirectoriesOfAFailedUpload has an upload make its directories and fail behind them: they
// count.
func TestDirectoriesOfAFailedUpload(t *testing.T) {
	root := t.TempDir()
	s := serve(t, Options{Root: root, Writable: true})
	if err := os.MkdirAll(filepath.Join(root, "a/b"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(root, "a/b/c"), nil)
	s.madeDirs("a/b/c/d", errors.New("c is a file"))
	countedDirs(t, s, 0)
}
