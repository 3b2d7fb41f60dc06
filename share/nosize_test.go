package share

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFilesWithoutASize: files that say that they have 0 bytes, and have more, are neither uploaded
// nor served as empty ones.
func TestFilesWithoutASize(t *testing.T) {
	ctx := testCtx(t)
	const dir = "/proc/sys/fs/inotify"
	names, err := os.ReadDir(dir)
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	s := serve(t, Options{Root: t.TempDir(), Writable: true})
	if _, err := Upload(ctx, s.c, "/proc/version", "v", UploadOptions{}); !errors.Is(err, ErrSize) {
		t.Errorf("Upload: %v, expected ErrSize", err)
	}
	u, err := UploadTree(ctx, s.c, []TreeSource{{Path: dir, Name: "d/"}}, TreeOptions{})
	if u == nil || u.Sent != 0 || u.Failed != len(names) || !errors.Is(err, ErrSize) {
		t.Errorf("UploadTree: %+v, %v; expected that %d files fail with ErrSize", u, err, len(names))
	}
	if list, err := Names(ctx, s.c, ""); err != nil || len(list) != 0 {
		t.Errorf("the other side has %v, %v", list, err)
	}
	served := serve(t, Options{Root: dir})
	if n := served.Snapshot(); n.Files != 0 || len(n.Skipped) != len(names) || !n.Complete ||
		!strings.Contains(n.Skipped[0].Reason, "0 bytes") {
		t.Errorf("%+v; expected that all are left out", n)
	}
}

// TestUploadOfAFileThatShrinks: the upload ends with ErrChanged, at the first attempt, whatever of
// the file has come.
func TestUploadOfAFileThatShrinks(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	s := serve(t, Options{Root: root, Writable: true})
	c := testLink(t, s.node.Addrs()[0]) // tries again for ever
	const size = 6 * window
	file := filepath.Join(t.TempDir(), "f")
	for _, cut := range []int64{0, window + 5, size - 1} {
		for _, digest := range []bool{false, true} {
			write(t, file, randomBytes(1, size))
			begun := 0
			_, err := Upload(ctx, c, file, "x", UploadOptions{Digest: digest, Progress: func(p Progress) {
				if begun++; begun == 1 {
					if err := os.Truncate(file, cut); err != nil {
						t.Error(err)
					}
				}
			}})
			var partial *PartialError
			if !errors.Is(err, ErrChanged) || errors.As(err, &partial) {
				t.Errorf("cut to %d: %v; expected ErrChanged, with nothing to go on with", cut, err)
			}
		}
	}
	if list, err := Names(ctx, s.c, ""); err != nil || len(list) != 0 {
		t.Errorf("the other side has %v, %v", list, err)
	}
}
