package sys

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestBelow looks at and opens a file, at a link, and along links and out of the directory, which
// is refused.
func TestBelow(t *testing.T) {
	root := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "a/b"), 0o755),
		os.WriteFile(filepath.Join(root, "a/b/f"), []byte("123"), 0o600),
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
	f, err := OpenBelow(dir, "a/b/f")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if b, err := io.ReadAll(f); err != nil || string(b) != "123" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := OpenBelow(dir, "a/b/link"); !IsErrno(err, ELOOP) {
		t.Error(err)
	}
	for path, want := range map[string]Errno{"a/dir/f": ELOOP, "a/../../x": EXDEV, "/etc": EXDEV} {
		if _, err := LstatBelow(dir, path); !IsErrno(err, want) {
			t.Errorf("%s: %v, expected %v", path, err, want)
		}
		if _, err := OpenBelow(dir, path); !IsErrno(err, want) {
			t.Errorf("open %s: %v, expected %v", path, err, want)
		}
	}
}
