package sys

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestLstatBelow looks at a file, at a link, and along links and out of the directory, which is refused.
func TestLstatBelow(t *testing.T) {
	root := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "a/b"), 0o755), os.WriteFile(filepath.Join(root, "a/b/f"), []byte("123"), 0o600),
		os.Symlink("f", filepath.Join(root, "a/b/link")), os.Symlink("b", filepath.Join(root, "a/dir"))); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if fi, err := LstatBelow(dir, "a/b/f"); err != nil || fi.Size() != 3 || fi.Mode() != 0o600 {
		t.Errorf("%v, %v", fi, err)
	}
	if fi, err := LstatBelow(dir, "a/b/link"); err != nil || fi.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("%v, %v", fi, err)
	}
	if _, err := LstatBelow(dir, "a/c/f"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	for path, want := range map[string]Errno{"a/dir/f": ELOOP, "a/../../x": EXDEV, "/etc": EXDEV} {
		if _, err := LstatBelow(dir, path); !IsErrno(err, want) {
			t.Errorf("%s: %v, expected %v", path, err, want)
		}
	}
}
