package sys

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestWriteNew makes files that are new, and none where there is a file or a link.
func TestWriteNew(t *testing.T) {
	root := t.TempDir()
	if err := os.Symlink("nowhere", filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	mask, err := Umask()
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1_600_000_000, 123_456_789)
	for name, exact := range map[string]bool{"less": false, "exact": true} {
		want := fs.FileMode(0o577)
		if err := WriteNew(dir, name, []byte("bytes"), want, exact, at); err != nil {
			t.Fatal(err)
		}
		if !exact {
			want &^= mask
		}
		fi, err := os.Stat(filepath.Join(root, name))
		b, rerr := os.ReadFile(filepath.Join(root, name))
		if err = errors.Join(err, rerr); err != nil || fi.Mode() != want || !fi.ModTime().Equal(at) ||
			string(b) != "bytes" {
			t.Errorf("%s: %v, %q, %v", name, fi, b, err)
		}
		st, err := StatIn(dir, name)
		if err != nil || !st.Regular || st.Size != 5 || st.Perm != want || st.ModifiedNs != at.UnixNano() ||
			st.FileIdentity != Identity(fi) {
			t.Errorf("%s: %+v, %v", name, st, err)
		}
	}
	if err := WriteNew(dir, "empty", nil, 0o600, false, at); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"less", "link"} {
		if err := WriteNew(dir, name, []byte("other"), 0o600, false, at); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if st, err := StatIn(dir, "link"); err != nil || st.Regular {
		t.Errorf("%+v, %v", st, err)
	}
	if _, err := StatIn(dir, "none"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// TestReadWhole reads a file, one that is too short, and what is none.
func TestReadWhole(t *testing.T) {
	root := t.TempDir()
	name := filepath.Join(root, "f")
	if err := os.WriteFile(name, []byte("12345"), 0o640); err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string, b []byte) (before, after FileStat, err error) {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return ReadWhole(f, b)
	}
	b := make([]byte, 5)
	if was, now, err := read(name, b); err != nil || string(b) != "12345" || was != now ||
		was.FileIdentity != Identity(fi) || was.Size != 5 || was.Perm != fi.Mode() {
		t.Errorf("%q, %+v, %+v, %v", b, was, now, err)
	}
	if _, _, err := read(name, make([]byte, 6)); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
	if _, _, err := read("/proc/version", nil); !errors.Is(err, EFBIG) { // it says that it has 0 bytes
		t.Error(err)
	}
	if was, _, err := read(root, b); err != nil || was.Regular {
		t.Errorf("a directory: %+v, %v", was, err)
	}
}
